"""ZeroMQ sockets: a hub (one server, many peers) and a line (one peer's end).

libzmq hides what matters here, so three things are added. Its queues count messages, not bytes: they are left
unbounded, credit bounds them. A peer's death is silent: a hub finds out by sending (``Gone``), a line by a monitor.
There are no heartbeats: on one machine the kernel tells of every death, and a program that is stopped (Ctrl-Z, a
debugger) is not dead.
Connecting to nobody succeeds: whoever connects sets a deadline on the first answer.

Large bodies go through shared memory (:mod:`.slabs`) where that can be. Such a message is an empty frame, the reference
(from a peer, behind the token of its slab), and the header. A peer offers a slab for what it is sent by an empty frame
and the token; in the same way it asks for what a hub has for all (:mod:`.gifts`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq
from zmq.utils.monitor import recv_monitor_message

from pydp2.errors import RemoteProtocolError, ServiceUnreachable
from pydp2.transport.gifts import Gifts, Wish
from pydp2.transport.handover import Handover, offer
from pydp2.transport.slabs import TOKEN, Filler, Viewer, lies_in_slab, stow

Frames = Sequence[Any]
"""Whatever offers its bytes, and behind the first one frames that are made late (:class:`.slabs.Late`)."""
_SMALL = 1 << 16  # libzmq lays smaller frames side by side in a shared buffer: unaligned, and each pins all of it
_ENDINGS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
_HANDSHAKE_MS = 5_000
_CHUNKS = 256 << 20  # bytes of a slab for what a worker sends: of it, as much is ever used as is under way at a time
_BATCHES = 256 << 20  # for what a trainer is sent: the same
_PEERS = 1024  # that have offered a slab
_NEVER_MS = 3_600_000  # not -1: with that, libzmq drops what had arrived and was not read yet when the other side goes


class Gone(Exception):
    """The peer that a message was meant for is no longer connected."""


def _prepare(socket: zmq.Socket[bytes], address: str, max_frame: int) -> None:
    socket.setsockopt(zmq.IPV6, address.startswith("tcp://["))  # without it libzmq takes [::1] for no address
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)


class Hub:
    """The server's end: bound to an address, talks to peers by their routing id.

    A peer that sends a frame above ``max_frame`` bytes loses its connection. ``max_waiting``: messages of one peer that
    may wait here to be received; with more, that peer has to wait (0: any number).
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, max_frame: int, max_waiting: int = 0
    ) -> None:
        self._socket = context.socket(zmq.ROUTER)
        _prepare(self._socket, address, max_frame)
        self._socket.setsockopt(zmq.RCVHWM, max_waiting)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as exc:
            self._socket.close()
            raise ServiceUnreachable(
                f"cannot bind {address}: {exc}; choose an address that is free, or leave bind out for a fresh one"
            ) from None
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._max_frame = max_frame
        self._handover = Handover(self.address)
        self._fillers: dict[bytes, Filler] = {}
        self._viewers: dict[bytes, dict[bytes, Viewer]] = {}
        self.gifts = Gifts()
        """What peers may see, where they can be given a descriptor."""

    @property
    def handle(self) -> zmq.Socket[bytes]:
        """What :class:`Poll` registers."""
        return self._socket

    def send(self, peer: bytes, frames: Frames) -> None:
        """Queue a message; never blocks. Raises Gone when ``peer`` is not connected any more."""
        try:
            self._socket.send_multipart([peer, *_wrapped(self._fillers.get(peer), frames)], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as exc:
            if exc.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                self.drop(peer)
                raise Gone from None
            raise

    def receive(self) -> tuple[bytes, list[memoryview]] | None:
        """The next message, for :meth:`open`, and who sent it, or None."""
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            peer, message = frames[0].bytes, [f.buffer for f in frames[1:]]
            if len(message) != 2 or len(message[0]):
                return peer, message
            self._offered(peer, bytes(message[1]))

    def open(self, peer: bytes, frames: list[memoryview]) -> list[memoryview]:
        """The header and the frames of a message that ``peer`` sent, wherever they lie.

        Raises RemoteProtocolError when they are not where it says.
        """
        if len(frames) < 2 or len(frames[0]):
            return frames
        if len(frames) != 3:
            raise RemoteProtocolError(f"a message of {len(frames)} frames, the first one empty")
        token = bytes(frames[1][:TOKEN])
        viewers = self._viewers.setdefault(peer, {})
        if token not in viewers:
            descriptor = self._handover.take(token)
            if descriptor is None:
                raise RemoteProtocolError("a reference into a slab that was never handed over")
            try:
                viewers[token] = Viewer(descriptor)
            except OSError as exc:
                raise RemoteProtocolError(f"a slab that cannot be mapped: {exc}") from None
        body = viewers[token].frames(frames[1][TOKEN:])
        if self._max_frame >= 0 and any(len(frame) > self._max_frame for frame in body):
            raise RemoteProtocolError(f"a frame above {self._max_frame} bytes")
        return [frames[2], *body]

    def _offered(self, peer: bytes, token: bytes) -> None:
        """``peer`` offers a slab for what it is sent, or a way to give it something. If that cannot be used, things go
        on without it."""
        descriptor = self._handover.take(token)
        if descriptor is None:
            return
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            self.gifts.asked(peer, descriptor)
            return
        if len(self._fillers) >= _PEERS:
            os.close(descriptor)
            return
        with contextlib.suppress(OSError, RemoteProtocolError):
            self._fillers[peer] = Filler(descriptor)

    def drop(self, peer: bytes) -> None:
        """Let go of the memory that is shared with ``peer``, who is gone. What came from there stays as long as it is
        used."""
        self._fillers.pop(peer, None)
        self._viewers.pop(peer, None)
        self.gifts.drop(peer)

    def close(self, linger_ms: int = 0) -> None:
        """Close; what is queued has ``linger_ms`` to leave."""
        self._socket.close(linger=linger_ms)
        self._handover.close()
        self.gifts.close()
        self._fillers.clear()
        self._viewers.clear()


class Line:
    """A peer's end of a connection to a hub. ``lends``: what it sends may go through shared memory."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        max_frame: int = -1,
        watch: bool = False,
        lends: bool = False,
    ) -> None:
        self._address = address
        self._token = b""
        self._lends = lends
        self._filler: Filler | None = None
        self._viewer: Viewer | None = None
        self.wish: Wish | None = None
        """For what the hub has for all, once it was asked."""
        self._socket = context.socket(zmq.DEALER)
        _prepare(self._socket, address, max_frame)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        self._monitor = self._socket.get_monitor_socket(_ENDINGS) if watch else None
        self._lost = False
        try:
            self._socket.connect(address)
        except zmq.ZMQError as exc:
            self.close()
            raise ServiceUnreachable(f"{address} is not an address that can be connected to: {exc}") from None

    def send(self, frames: Frames) -> None:
        """Queue a message; never blocks. Where nobody is connected any more it goes nowhere: ``lost`` tells."""
        if self._lends:
            self._lends = False
            self._lend()
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(_wrapped(self._filler, frames, self._token), zmq.NOBLOCK, copy=False)

    def _lend(self) -> None:
        """Make a slab for what is sent, if that can be."""
        if (offered := offer(self._address, _CHUNKS)) is not None:
            descriptor, token = offered
            with contextlib.suppress(OSError):
                self._filler = Filler(descriptor)
                self._token = token

    def borrow(self) -> None:
        """Offer a slab for what is received, if that can be. To be called once the hub has answered."""
        if (offered := offer(self._address, _BATCHES)) is not None:
            descriptor, token = offered
            with contextlib.suppress(OSError):
                self._viewer = Viewer(descriptor)
                self._socket.send_multipart([b"", token], zmq.NOBLOCK)

    def ask(self) -> None:
        """Ask for what the hub has for all, if that can be. To be called once the hub has answered."""
        self.wish = Wish(self._address)
        if self.wish.token is not None:
            with contextlib.suppress(zmq.Again):
                self._socket.send_multipart([b"", self.wish.token], zmq.NOBLOCK)

    def receive(self, timeout_ms: int = 0) -> list[memoryview] | None:
        """The next message within ``timeout_ms`` (-1: forever), or None. Raises RemoteProtocolError when its frames are
        not where it says."""
        if timeout_ms and not self._socket.poll(timeout_ms):
            return None
        try:
            frames = [f.buffer for f in self._socket.recv_multipart(zmq.NOBLOCK, copy=False)]
        except zmq.Again:
            return None
        if len(frames) < 2 or len(frames[0]):
            return frames
        if len(frames) != 3 or self._viewer is None:
            raise RemoteProtocolError(f"a message of {len(frames)} frames, the first one empty")
        return [frames[2], *self._viewer.frames(frames[1])]

    @property
    def handle(self) -> zmq.Socket[bytes]:
        """What :class:`Poll` registers."""
        return self._socket

    @property
    def lost(self) -> bool:
        """There is no connection any more, or there was nobody to connect to. Only of a watched line."""
        while self._monitor is not None and not self._lost and self._monitor.poll(0):
            event: dict[str, Any] = recv_monitor_message(self._monitor)  # type: ignore[assignment]  # typed as awaitable too
            self._lost = bool(event["event"] & _ENDINGS)
        return self._lost

    def wait(self, timeout_ms: int) -> bool:
        """Wait until there is a message or the connection is lost; False when neither came in time."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        if self._monitor is not None and not self._lost:
            poller.register(self._monitor, zmq.POLLIN)
        return bool(poller.poll(timeout_ms))

    def close(self, linger_ms: int = 0) -> None:
        """Close; what is queued has ``linger_ms`` to leave."""
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._monitor = None
        self._socket.close(linger=linger_ms)
        self._filler = self._viewer = None
        if self.wish is not None:
            self.wish.close()


class Poll:
    """Waits for sockets and file descriptors together."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()

    def add(self, handle: Any) -> None:
        """Watch a hub's or line's handle, or a file descriptor, for input."""
        self._poller.register(handle, zmq.POLLIN)

    def remove(self, handle: Any) -> None:
        """Stop watching."""
        self._poller.unregister(handle)

    def wait(self, timeout_ms: int) -> set[Any]:
        """The handles that have something, after at most ``timeout_ms``."""
        return {handle for handle, _ in self._poller.poll(timeout_ms)}


def context(io_threads: int = 1) -> zmq.Context[zmq.Socket[bytes]]:
    """A ZeroMQ context of one's own, never shared and never inherited by a fork."""
    return zmq.Context(io_threads)


def _wrapped(filler: Filler | None, frames: Frames, token: bytes = b"") -> list[Any]:
    """The message ``frames`` as it is sent: its body in shared memory, if that can be."""
    head, *body = frames
    reference, body = stow(filler, body)
    return [head, *body] if reference is None else [b"", token + reference, head]


def buffers(frames: Sequence[memoryview]) -> list[npt.NDArray[np.uint8]]:
    """Received raw frames as byte arrays that are aligned, writable and pin no memory but their own."""
    out = []
    for frame in frames:
        array = np.frombuffer(frame, np.uint8)
        if array.nbytes < _SMALL or array.ctypes.data % 8 or not array.flags.writeable:
            array = array.copy()
        out.append(array)
    return out


def views(frames: Sequence[memoryview]) -> list[npt.NDArray[np.uint8]]:
    """The same for who only reads them, and soon is done with it: what lies in shared memory stays there."""
    return [np.frombuffer(frame, np.uint8) if lies_in_slab(frame) else buffers([frame])[0] for frame in frames]
