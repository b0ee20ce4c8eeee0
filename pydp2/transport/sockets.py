"""Set up ZeroMQ sockets: what both ends of a connection have in common, the hub (:mod:`.hub`) and its peers
(:mod:`.line`).

libzmq hides what matters here, so three things are added. Its queues count messages, not bytes: they are left
unbounded, credit bounds them. A peer's death is silent: a hub finds out by sending (:class:`PeerGone`), a line
by a monitor. On one machine there are no heartbeats: the kernel tells of every death, and a program that is
stopped (Ctrl-Z, a debugger) is not dead. Connecting over TCP succeeds even if no hub listens: the caller sets a
deadline on the first answer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import zmq

from pydp2.transport import service_address

Frames = Sequence[Any]
"""Objects that offer their bytes; behind the first also ones that are made late (:class:`.slabs.DeferredFrames`)."""
SLABS_PER_SHARE = 8
"""Number of slabs of each end that have one share of few addresses together."""
PEER_FILLS = b"+"
"""Mark behind the token of a slab that the peer fills."""
VOID_FRAME = b"pydp2: cut off.."
"""Last frame of a void message, whose sender was cut off in the middle of it."""
REFUSAL_EVENTS = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""Events of a monitor that say that the hub did not admit this peer."""
_EVENT = struct.Struct("=Hi")  # first frame that a monitor gives; the second is the endpoint
_HANDSHAKE_MS = 5_000
_BACKLOG = 1024  # connections that the kernel keeps until libzmq accepts them: after a restart all peers come at once


class PeerGone(Exception):
    """The peer that a message was meant for is no longer connected."""


def read_event(monitor: zmq.Socket[bytes]) -> tuple[int, int]:
    """Return the next event of a monitor, with its value. (zmq.utils.monitor would do, and imports asyncio.)"""
    event, value = _EVENT.unpack(monitor.recv_multipart()[0])
    return event, value


def set_options(socket: zmq.Socket[bytes], address: str) -> None:
    """Set on ``socket``, for ``address``, the options that both ends have."""
    # Without it libzmq takes [::1] for no address, with it no IPv4.
    socket.setsockopt(zmq.IPV6, service_address.uses_ipv6(address))
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.BACKLOG, _BACKLOG)


def error_text(error: BaseException) -> str:
    """Return the text of ``error``, without the number of a system error."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def new_context(io_threads: int = 1) -> zmq.Context[zmq.Socket[bytes]]:
    """Return a ZeroMQ context of one's own, never shared and never inherited by a fork."""
    return zmq.Context(io_threads)


class Poller:
    """Set of sockets and file descriptors to wait for together."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()

    def add(self, handle: Any) -> None:
        """Watch a hub's or line's handle, or a file descriptor, for input."""
        self._poller.register(handle, zmq.POLLIN)

    def remove(self, handle: Any) -> None:
        """Stop watching ``handle``."""
        self._poller.unregister(handle)

    def wait(self, timeout_ms: int) -> set[Any]:
        """Return the handles that are readable, after at most ``timeout_ms``."""
        return {handle for handle, _ in self._poller.poll(timeout_ms)}


def prepare_zero_copy() -> None:
    """Have pyzmq open now what it needs to send without a copy. Otherwise it does so at the first such send, when there
    may be no descriptor left for it."""
    zmq.Frame(b"", copy=False, copy_threshold=0)
