"""Strangers to a service: raw sockets that speak ZMTP by hand, badly, endlessly or not at all; and services in programs
of their own, with few descriptors."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydp2.transport.service_address import ipc_path, split_token

from .runs import at_rest, processes, wait_until

GREETING = 64  # bytes
LARGE = bytes(64 << 10)


def as_another_user(work: Callable[[], bool]) -> bool:
    """Whether ``work()`` is true in a process of user 65534, which only root can have. It may not be able to read the
    interpreter's folders, so what ``work`` imports must have been imported here."""
    child = os.fork()
    if child == 0:
        status = 9
        try:
            os.setgid(65534)
            os.setuid(65534)
            status = 0 if work() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def dial(address: str) -> socket.socket:
    """Connect a raw socket to the service at ``address``; never waits for it."""
    path = ipc_path(address)
    one = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX)
    one.setblocking(False)
    if path is not None:
        with contextlib.suppress(BlockingIOError):
            one.connect(path)
        return one
    host, _, port = split_token(address)[0].removeprefix("tcp://").rpartition(":")
    one.connect_ex((host, int(port)))
    return one


def greeting(mechanism: bytes) -> bytes:
    """The first bytes of a peer that speaks ZMTP 3.1."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + b"\0" + bytes(31)


def command(name: bytes, data: bytes) -> bytes:
    """A command frame."""
    body = bytes([len(name)]) + name + data
    return bytes([4, len(body)]) + body if len(body) < 256 else b"\x06" + struct.pack(">Q", len(body)) + body


def hello(token: bytes) -> bytes:
    """What a peer says that knows the mechanism, and ``token``."""
    return command(b"HELLO", b"\5pydp2" + bytes([len(token)]) + token)


CURVE_HELLO = command(b"HELLO", b"\1\0" + bytes(72) + bytes(range(32)) + bytes(8) + bytes(range(80)))
READY = command(b"READY", b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER")
PART = b"\x03" + struct.pack(">Q", len(LARGE)) + LARGE  # of a message that is never finished
EMPTY_PARTS = b"\x01\0" * (32 << 10)

FLOODS: dict[str, tuple[bytes, bytes]] = {
    "noise": (b"", LARGE),
    "a greeting for ever": (b"\xff" + bytes(8) + b"\x7f", b"\x03" * (64 << 10)),
    "no mechanism, then parts": (greeting(b"NULL") + READY, PART),
    "no mechanism, then empty parts": (greeting(b"NULL") + READY, EMPTY_PARTS),
    "wrong token, then parts": (greeting(b"PLAIN") + hello(b"0" * 32) + READY, PART),
    "wrong token, then empty parts": (greeting(b"PLAIN") + hello(b"0" * 32), EMPTY_PARTS),
    "no token, then parts": (greeting(b"PLAIN") + hello(b""), PART),
    "parts in place of a token": (greeting(b"PLAIN"), PART),
    "a command without end": (greeting(b"PLAIN") + b"\x06" + struct.pack(">Q", 1 << 40), LARGE),
    "a command of a mebibyte": (greeting(b"PLAIN"), command(b"HELLO", bytes(1 << 20))),
    "many commands": (greeting(b"PLAIN"), command(b"PING", bytes(100)) * 500),
    "another mechanism": (greeting(b"CURVE"), PART),
    "a key that opens nothing, then parts": (greeting(b"CURVE") + CURVE_HELLO, PART),
}
"""What a stranger says first, and what it says after that as long as somebody listens."""


class Crowd:
    """Threads that flood ``address``, each in one of the ways ``floods``, until :meth:`end`: on a new connection when
    one is closed. ``sent``: bytes that went."""

    def __init__(self, address: str, floods: Sequence[str]) -> None:
        self.sent = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(address, *FLOODS[name])) for name in floods]
        for thread in self._threads:
            thread.start()

    def _run(self, address: str, first: bytes, then: bytes) -> None:
        while not self._over.is_set():
            with dial(address) as one:
                one.settimeout(0.5)
                with contextlib.suppress(OSError):
                    one.sendall(first)
                    while not self._over.is_set():
                        self.sent += one.send(then)

    def end(self) -> None:
        """Hang up."""
        self._over.set()
        for thread in self._threads:
            thread.join()


class Flow:
    """Connections to ``address`` that say nothing, one after another, so many of them at a time, until :meth:`end`."""

    def __init__(self, address: str, held: int) -> None:
        self.count = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(address, held))
        self._thread.start()

    def _run(self, address: str, held: int) -> None:
        ones: deque[socket.socket] = deque()
        while not self._over.wait(0.001):
            ones.append(dial(address))
            self.count += 1
            if len(ones) > held:
                ones.popleft().close()
        for one in ones:
            one.close()

    def end(self) -> None:
        """Nobody comes any more, and those who are there go."""
        self._over.set()
        self._thread.join()


def _is_open(one: socket.socket) -> bool:
    """Whether the other end has not closed the connection; takes what it said."""
    try:
        return bool(one.recv(1 << 10))
    except BlockingIOError:
        return True
    except OSError:
        return False


class Stalled:
    """So many connections to ``address`` that never finish their handshake, until :meth:`end`: one half says nothing,
    the other one a byte a second. Each that is closed is opened again."""

    def __init__(self, address: str, count: int) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(address, count))
        self._thread.start()

    def _run(self, address: str, count: int) -> None:
        said = greeting(b"CURVE") + CURVE_HELLO
        with selectors.DefaultSelector() as waits:

            def come(number: int) -> None:
                waits.register(dial(address), selectors.EVENT_READ, [number, 0])

            for number in range(count):
                come(number)
                if number % 50 == 49:
                    time.sleep(0.02)  # else the kernel takes some for connected that the service never sees
            next_byte = time.monotonic()
            while not self._over.is_set():
                for key, _ in waits.select(0.1):
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    if not _is_open(one):
                        waits.unregister(one)
                        one.close()
                        come(key.data[0])
                if time.monotonic() > next_byte:
                    next_byte += 1.0
                    for key in [*waits.get_map().values()]:
                        number, at = key.data
                        if number % 2:
                            key.data[1] += 1
                            with contextlib.suppress(OSError):
                                os.write(key.fd, said[at : at + 1])
            for key in [*waits.get_map().values()]:
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()

    def end(self) -> None:
        """Hang up."""
        self._over.set()
        self._thread.join()


@contextlib.contextmanager
def silent(address: str, count: int) -> Iterator[list[socket.socket]]:
    """``count`` connections to ``address`` that say nothing."""
    ones = [dial(address) for _ in range(count)]
    try:
        yield ones
    finally:
        for one in ones:
            one.close()


SERVICE = """
import json, resource, signal, sys
import pydp2

limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
with pydp2.launch(
    sys.argv[6:], sys.argv[3], workers=int(sys.argv[4]), args=json.loads(sys.argv[5]), bind=sys.argv[2]
) as service:
    print("at", service.address, service.pid, flush=True)
    signal.pause()
"""
"""A program with a service that has few descriptors: their number, bind, provider, workers, args as JSON, files."""


BUSY_HUB = """
import sys, time
import zmq
from pydp2.transport import Hub

hub = Hub(zmq.Context(), "tcp://127.0.0.1:*", max_frame=1 << 20)
print("at", hub.address, flush=True)
while True:
    time.sleep(float(sys.argv[1]))
    hub.accept(time.monotonic())
"""
"""A program with a hub whose loop is busy with other things for so many seconds at a time."""


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  # numbers, no paths


def descriptors_at_rest(pid: int, workers: int) -> int:
    """How many descriptors a service has open once its workers and the one in reserve are there, for each has some,
    nothing has come for half a second, and nobody lacks a core for what is still to come."""
    assert wait_until(lambda: len(processes("pydp2-worker")) == workers + 1)
    last, since = descriptors(pid), time.monotonic()

    def stays() -> bool:
        nonlocal last, since
        now = descriptors(pid)
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > 0.5 and at_rest(processes("pydp2-"))

    assert wait_until(stays, 60)
    return last


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
