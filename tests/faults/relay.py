"""A TCP relay between trainers and a service: cuts, delays, holds back and lets go, on one machine and without rights.

All addresses are of this machine. What is said of the network is what trainer and service see of it: bytes that come
late, none at all, a reset, nobody who listens.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from pathlib import Path

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset, and what was not delivered is lost


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens at, below those that the kernel gives to whoever connects: there it may happen that a
    client, trying again and again, is connected to itself."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    start = int.from_bytes(os.urandom(4), "little")
    for n in range(1000):
        port = 10_000 + (start + n) % max(1, min(low, 65_000) - 10_000)
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                trial.bind((host, port))
                return port
    raise AssertionError("no port is free")


class _Pair:
    """A connection through the relay: two sockets, and what waits to be written to each, with its time. ``ended``: the
    sockets whose other side writes no more."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.other = {near: far, far: near}
        self.waiting: dict[socket.socket, deque[tuple[float, bytes]]] = {near: deque(), far: deque()}
        self.ended: set[socket.socket] = set()


class Relay(threading.Thread):
    """Listens at ``address``, which has the token or key of the service at ``where``, and passes on to that.

    ``delay``: seconds that bytes are late. ``held``: bytes stay here, nobody is told. ``down``: nobody listens.
    """

    def __init__(self, where: str) -> None:
        super().__init__(name="relay", daemon=True)
        endpoint, mark, query = where.partition("?")
        self._port = int(endpoint.rpartition(":")[2])
        self._listens_at = free_port()
        self.address = f"tcp://127.0.0.1:{self._listens_at}{mark}{query}"
        self.delay = 0.0
        self.held = False
        self.connections = 0
        """How many there have been."""
        self._down = False
        self._cut = self._cut_newest = False
        self._ends = False
        self._listener: socket.socket | None = None
        self._pairs: dict[socket.socket, _Pair] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._changed = threading.Condition()
        self._turns = 0
        self.start()

    # -- what is done to it --------------------------------------------------------------------------------------------
    def cut(self, *, down: bool = False) -> None:
        """Reset all connections; ``down``: and take no new ones."""
        self._cut, self._down = True, down
        self._settle()

    def cut_newest(self) -> None:
        """Reset the connection that was made last."""
        self._cut_newest = True
        self._settle()

    def up(self) -> None:
        """Take connections again, and pass on what was held."""
        self._down = self.held = False
        self._settle()

    def end(self) -> None:
        """Reset all, and end."""
        self._cut = self._ends = True
        with contextlib.suppress(OSError):  # the thread has seen it already, and closed its end
            self._wake.send(b"!")
        self.join(10)
        self._wake.close()

    def _settle(self) -> None:
        """Until the thread has done what was asked for."""
        with self._changed:
            target = self._turns + 2
            self._wake.send(b"!")
            assert self._changed.wait_for(lambda: self._turns >= target or not self.is_alive(), 10)

    # -- the thread ----------------------------------------------------------------------------------------------------
    def run(self) -> None:
        while True:
            self._listen(not self._down and not self._ends)
            if self._cut:
                self._cut = False
                for one in list(self._pairs):
                    self._drop(one)
            if self._cut_newest and self._pairs:
                self._cut_newest = False
                self._drop([*self._pairs][-1])
            if self._ends:
                break
            with self._changed:
                self._turns += 1
                self._changed.notify_all()
            for key, _ in self._selector.select(0.002 if self._pairs else 0.02):
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._pairs:
                    self._read(key.fileobj)  # type: ignore[arg-type]
            for one in list(self._pairs):
                if one in self._pairs:
                    self._write(one)
        self._selector.close()
        self._woken.close()

    def _listen(self, wanted: bool) -> None:
        if wanted and self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self._listens_at), backlog=64)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif not wanted and self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", self._port), 2)
        except OSError:
            self._close(near)  # as if nobody listened
            return
        self.connections += 1
        pair = _Pair(near, far)
        for one in (near, far):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs[one] = pair
            self._selector.register(one, selectors.EVENT_READ)

    def _read(self, one: socket.socket) -> None:
        pair = self._pairs[one]
        try:
            data = one.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            self._drop(one)
            return
        if not data:  # the end comes behind what was sent before it
            self._selector.unregister(one)
            pair.ended.add(one)
        pair.waiting[pair.other[one]].append((time.monotonic() + self.delay, data))

    def _write(self, one: socket.socket) -> None:
        waiting = self._pairs[one].waiting[one]
        while waiting and not self.held and waiting[0][0] <= time.monotonic():
            when, data = waiting.popleft()
            if not data:  # no reset yet: that would take from the other side what it has not read
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_WR)
                if len(self._pairs[one].ended) == 2:
                    self._drop(one)
                return
            try:
                sent = one.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                if one not in self._pairs[one].ended:
                    self._drop(one)
                    return
                sent = len(data)  # nobody is there to read it
            if sent < len(data):
                waiting.appendleft((when, data[sent:]))
                return

    def _drop(self, one: socket.socket) -> None:
        pair = self._pairs.get(one)
        if pair is None:
            return
        for each in pair.other:
            del self._pairs[each]
            with contextlib.suppress(KeyError):  # of one that has said its last
                self._selector.unregister(each)
            self._close(each)

    def _close(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        one.close()
