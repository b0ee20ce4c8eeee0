"""Keep new TCP connections away from a hub while few descriptors are left, or strangers come in crowds.

libzmq accepts every connection over TCP, also of a peer that never shows a token, and closes it when the handshake
takes too long. When it has no descriptor left it tries again and again; it would take each one that the server needs
for itself. So the hub has the kernel drop connections before libzmq sees them, until there is room again. Established
connections do not notice.

A stranger that comes again as soon as it is refused costs some 70 KB each time, until the hub's loop answers: libzmq
queues its questions without a bound, also for peers that are gone. The kernel of a peer whose connection is dropped
waits a second before it tries again, so a short pause makes such strangers slow.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time

from pydp2.transport.descriptors import descriptor_limit, open_descriptors

_RESERVE = 16  # descriptors that are kept for the server's own needs; it opens again with twice as many
_FEW_LEFT = 512  # with fewer descriptors left, no peer comes in by TCP at the moment at which a worker connects
_ADJUST_SECONDS = 0.25  # seconds between two counts of the descriptors that are left
_MAX_REFUSED = 64  # peers refused in between, before there is a pause
_PAUSE_SECONDS = 0.1  # and how long it is at least
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # SO_ATTACH_FILTER, SO_DETACH_FILTER of Linux
_DROP_ALL = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0), 8)  # one instruction: return 0 bytes
_PROGRAM = struct.pack("@HP", 1, ctypes.addressof(_DROP_ALL))


class AcceptFilter:
    """Filter in front of the listening socket ``descriptor``, which stays its owner's. ``refusal``: why it was shut,
    since that was last cleared."""

    def __init__(self, descriptor: int) -> None:
        self.refusal = ""
        self._listener = socket.socket(fileno=os.dup(descriptor))
        self._listener.setblocking(False)
        self._spare_descriptor = os.dup(descriptor)
        self._is_closed = self._is_low = False
        self._closed_until = 0.0  # time until which it stays shut at least
        self._refused = 0  # peers that were refused since the last look
        self._adjusted_at = 0.0

    def adjust_if_due(self, now: float) -> None:
        """Do :meth:`adjust` if the last time is a while ago."""
        if now - self._adjusted_at > _ADJUST_SECONDS:
            self._adjusted_at = now
            self.adjust()

    def adjust(self) -> None:
        """Shut or open the filter, by how many descriptors are left."""
        self._refused = 0
        most, used = descriptor_limit(), open_descriptors()
        low = used + (2 * _RESERVE if self._is_low else _RESERVE) >= most
        if low and not self._is_low:
            self.refusal = (
                f"new connections over TCP have to wait: the service needs {_RESERVE} descriptors for itself, it has "
                f"{most} (RLIMIT_NOFILE) and {used} of them are open; raise the limit with `ulimit -n` before it is "
                "started, or end others that are connected"
            )
        self._is_low = low
        if low or time.monotonic() < self._closed_until:
            self._attach_filter()
        elif self._is_closed:
            self._detach_filter()

    def close_for(self, seconds: float) -> None:
        """Stay shut for ``seconds`` if few descriptors are left, because another peer that is let in must find one."""
        if open_descriptors() + _FEW_LEFT >= descriptor_limit():
            self._pause(seconds)

    def note_refused(self, count: int) -> None:
        """Note that ``count`` peers were not let in, and stay shut for a moment if they are many."""
        self._refused += count
        if count and self._refused > _MAX_REFUSED:
            self._pause(_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)
        self._attach_filter()

    def _attach_filter(self) -> None:
        if not self._is_closed:
            with contextlib.suppress(OSError):  # on a system without filters libzmq takes what there is
                self._listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, _PROGRAM)
                self._is_closed = True
        self._hang_up_waiting()

    def _detach_filter(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        self._is_closed = False

    def _hang_up_waiting(self) -> None:
        """Hang up on the connections that libzmq has not accepted yet: it would go on trying."""
        if self._spare_descriptor >= 0:
            os.close(self._spare_descriptor)
        with contextlib.suppress(OSError):
            while True:
                self._listener.accept()[0].close()
        self._spare_descriptor = -1
        with contextlib.suppress(OSError):
            self._spare_descriptor = os.dup(self._listener.fileno())

    def close(self) -> None:
        """Close the duplicates of the listening socket."""
        self._listener.close()
        if self._spare_descriptor >= 0:
            os.close(self._spare_descriptor)
            self._spare_descriptor = -1
