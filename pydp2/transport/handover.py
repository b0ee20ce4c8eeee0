"""Descriptors from a peer to a hub, on a Unix socket beside the hub's own; no descriptor travels in ZeroMQ.

A peer connects, sends a descriptor with a token that it made up, and is done; in a message to the hub it then names the
token. By then the descriptor waits here, so nobody has to wait for it, and nobody has to watch this socket.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from pathlib import Path

from pydp2.transport.slabs import TOKEN, create

_BACKLOG = 128
_UNCLAIMED = 64  # descriptors that nobody has named yet


def _path(address: str) -> str | None:
    """Where descriptors for the hub at ``address`` are handed over; None where they cannot be."""
    path = address.removeprefix("ipc://")
    usable = path != address and not path.startswith("@") and hasattr(socket, "SOCK_SEQPACKET")
    return f"{path}.fd" if usable else None


class Handover:
    """The hub's end. Where it cannot be, nothing ever arrives, and bytes go through sockets."""

    def __init__(self, address: str) -> None:
        self._path = _path(address)
        self._socket: socket.socket | None = None
        self._silent: list[socket.socket] = []  # connected, and nothing was sent yet
        self._unclaimed: dict[bytes, int] = {}
        if self._path is None:
            return
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            Path(self._path).unlink(missing_ok=True)  # of a service that was killed; the address is ours
            listener.bind(self._path)
            Path(self._path).chmod(0o600)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
        else:
            self._socket = listener

    def take(self, token: bytes) -> int | None:
        """The descriptor that was sent with ``token``, once."""
        if token not in self._unclaimed and self._socket is not None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = self._socket.accept()
                    connection.setblocking(False)
                    self._silent.append(connection)
            waiting, self._silent = self._silent, []
            for connection in waiting:
                self._hear(connection)
            for connection in self._silent[:-_UNCLAIMED]:
                connection.close()
            self._silent = self._silent[-_UNCLAIMED:]
        return self._unclaimed.pop(token, None)

    def _hear(self, connection: socket.socket) -> None:
        try:
            token, descriptors, _, _ = socket.recv_fds(connection, TOKEN, 4)
        except BlockingIOError:
            self._silent.append(connection)
            return
        except OSError:
            token, descriptors = b"", []
        connection.close()
        if len(token) != TOKEN or len(descriptors) != 1 or token in self._unclaimed:
            for descriptor in descriptors:
                os.close(descriptor)
            return
        self._unclaimed[token] = descriptors[0]
        if len(self._unclaimed) > _UNCLAIMED:
            os.close(self._unclaimed.pop(next(iter(self._unclaimed))))

    def close(self) -> None:
        """Close, and remove the socket."""
        for descriptor in self._unclaimed.values():
            os.close(descriptor)
        for connection in self._silent:
            connection.close()
        self._unclaimed, self._silent = {}, []
        if self._socket is not None and self._path is not None:
            self._socket.close()
            self._socket = None
            with contextlib.suppress(OSError):
                Path(self._path).unlink()


def hand_over(address: str, descriptor: int) -> bytes | None:
    """Send ``descriptor`` to the hub at ``address``: the token under which it is found there. None: that cannot be."""
    path = _path(address)
    if path is None:
        return None
    token = secrets.token_bytes(TOKEN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        try:
            connection.connect(path)
            socket.send_fds(connection, [token], [descriptor])
        except OSError:
            return None
    return token


def offer(address: str, size: int) -> tuple[int, bytes] | None:
    """A new slab with room for ``size`` bytes, handed over to the hub at ``address``: its descriptor, and its token
    there. None: that cannot be."""
    descriptor = create(size)
    if descriptor is None:
        return None
    token = hand_over(address, descriptor)
    if token is None:
        os.close(descriptor)
        return None
    return descriptor, token
