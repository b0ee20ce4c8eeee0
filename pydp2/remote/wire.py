"""Exchange requests and answers between a reader and the fetch process, over a local socket.

A message is its length (4 bytes, little-endian) and a msgpack dict. A connection is one open file, or one listing.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, cast

import msgpack

HELD_RANGES = 8
"""Number of answers to one reader whose blocks stay on disk: the newest ones. A reader of columns goes back and forth
between as many places."""

_LENGTH = struct.Struct("<I")
_LIMIT = 1 << 24


class Channel:
    """Connection over which messages go. :meth:`receive` raises EOFError if the other end has closed it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, message: dict[str, Any]) -> None:
        """Send ``message``. Raises OSError."""
        data = msgpack.packb(message)
        self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> dict[str, Any]:
        """Return the next message. Raises EOFError, OSError."""
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if size > _LIMIT:
            raise EOFError
        return cast(dict[str, Any], msgpack.unpackb(self._exactly(size)))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def has_ended(self) -> bool:
        """Return True if the other end has closed the connection, or has died."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
