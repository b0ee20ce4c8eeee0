"""Keeps new TCP connections away from a hub while few descriptors are left.

libzmq accepts every connection over TCP, also of who will never show a token, and lets go of it when the handshake
takes too long. When it has no descriptor left it tries again and again; it would take each one that the server needs
for itself. So the hub has the kernel drop connections before libzmq sees them, until there is room again. Those that
are established do not notice.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time

from pydp2.transport.descriptors import limit, opened

_RESERVE = 16  # descriptors that are kept for the server's own needs; it opens again with twice as many
_FEW = 512  # with fewer left, nobody comes in by TCP in the moment in which a worker does
_ATTACH_FILTER, _DETACH_FILTER = 26, 27  # SO_ATTACH_FILTER, SO_DETACH_FILTER of Linux
_DROP_ALL = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0), 8)  # one instruction: return 0 bytes
_PROGRAM = struct.pack("@HP", 1, ctypes.addressof(_DROP_ALL))


class AcceptFilter:
    """For the listening socket ``descriptor``, which stays its owner's. ``refused``: why it was shut, since that was
    last cleared."""

    def __init__(self, descriptor: int) -> None:
        self.refused = ""
        self._listener = socket.socket(fileno=os.dup(descriptor))
        self._listener.setblocking(False)
        self._spare = os.dup(descriptor)
        self._shut = self._low = False
        self._held = 0.0  # until when it stays shut at least

    def look(self) -> None:
        """Shut it or open it, by how many descriptors are left."""
        most, used = limit(), opened()
        low = used + (2 * _RESERVE if self._low else _RESERVE) >= most
        if low and not self._low:
            self.refused = (
                f"new connections over TCP have to wait: the service needs {_RESERVE} descriptors for itself, it has "
                f"{most} (RLIMIT_NOFILE) and {used} of them are open; raise the limit with `ulimit -n` before it is "
                "started, or end others that are connected"
            )
        self._low = low
        if low or time.monotonic() < self._held:
            self._close()
        elif self._shut:
            self._open()

    def hold(self, seconds: float) -> None:
        """Somebody else is let in who must find a descriptor: if few are left, stay shut for so long."""
        if opened() + _FEW < limit():
            return
        self._held = time.monotonic() + seconds
        self._close()

    def _close(self) -> None:
        if not self._shut:
            with contextlib.suppress(OSError):  # a system without filters: there libzmq takes what there is
                self._listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, _PROGRAM)
                self._shut = True
        self._drain()

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        self._shut = False

    def _drain(self) -> None:
        """Turn away whom libzmq has not accepted yet: it would go on trying."""
        if self._spare >= 0:
            os.close(self._spare)
        with contextlib.suppress(OSError):
            while True:
                self._listener.accept()[0].close()
        self._spare = -1
        with contextlib.suppress(OSError):
            self._spare = os.dup(self._listener.fileno())

    def close(self) -> None:
        """Let go of the listening socket."""
        self._listener.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
