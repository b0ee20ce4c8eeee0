"""Hand descriptors from a peer to a hub, on a Unix socket beside the hub's own; no descriptor travels in ZeroMQ.

A peer connects, sends a descriptor with a token that it made up, and names the token in a message to the hub
at once. By then the descriptor waits here, so the hub never waits for it and need not watch this socket. The
peer keeps the connection as long as it lives: if it has ended before the token was named, the peer has died,
and its descriptor is closed.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from pydp2.system.stdlib import os, socket
from pydp2.transport.descriptors import file_identity, foreign_user, unix_listener, unlink_own
from pydp2.transport.service_address import ipc_path
from pydp2.transport.slabs import TOKEN_BYTES, create_slab

_MAX_SILENT = 8  # connections of peers that have handed over nothing yet
_MAX_UNCLAIMED = 64  # descriptors that no message has named yet


def _fd_socket_path(address: str) -> str | None:
    """Return where descriptors for the hub at ``address`` are handed over; None if they cannot be."""
    path = ipc_path(address)
    return f"{path}.fd" if path and hasattr(socket, "SOCK_SEQPACKET") else None


class _UnclaimedFd(NamedTuple):
    """Descriptor that no message has named yet, and the connection to the peer that handed it over."""

    descriptor: int
    connection: socket.socket

    def close(self) -> None:
        os.close(self.descriptor)
        self.connection.close()


class FdReceiver:
    """Hub's end. Where it cannot listen, nothing ever arrives, and bytes go through sockets."""

    def __init__(self, address: str) -> None:
        self._path = _fd_socket_path(address)
        self._socket: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._silent: list[socket.socket] = []  # connected, and nothing has come yet
        self._unclaimed: dict[bytes, _UnclaimedFd] = {}
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._socket = unix_listener(self._path, socket.SOCK_SEQPACKET)
                self._identity = file_identity(self._path)

    def claim(self, token: bytes) -> int | None:
        """Return the descriptor that was sent with ``token``, once. None: it is not there and will not come, or its
        sender has ended, so nothing would ever release it."""
        waiting, self._silent = self._silent, []
        for connection in waiting:
            self._receive_fd(connection)
        while token not in self._unclaimed and (accepted := self._accept()) is not None:
            self._receive_fd(accepted)  # one after another: those that wait behind it take no descriptor meanwhile
        self.close_abandoned()
        found = self._unclaimed.pop(token, None)
        if found is None:
            return None
        found.connection.close()
        return found.descriptor

    def close_abandoned(self) -> None:
        """Close the descriptors of peers that have ended since."""
        for token, unclaimed in list(self._unclaimed.items()):
            if has_ended(unclaimed.connection):
                self._unclaimed.pop(token).close()

    def _accept(self) -> socket.socket | None:
        """Return the next connection of this user, or None."""
        while self._socket is not None:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # no connection waits, or no descriptor is left for one
                return None
            if foreign_user(connection) is None:
                connection.setblocking(False)
                return connection
            connection.close()
        return None

    def _receive_fd(self, connection: socket.socket) -> None:
        try:
            token, descriptors, _, _ = socket.recv_fds(connection, TOKEN_BYTES, 4)
        except BlockingIOError:
            self._silent.append(connection)
            if len(self._silent) > _MAX_SILENT:
                self._silent.pop(0).close()
            return
        except OSError:
            token, descriptors = b"", []
        if len(self._unclaimed) >= _MAX_UNCLAIMED:
            self.close_abandoned()
        known = token in self._unclaimed or len(self._unclaimed) >= _MAX_UNCLAIMED
        if len(token) == TOKEN_BYTES and len(descriptors) == 1 and not known:
            self._unclaimed[token] = _UnclaimedFd(descriptors[0], connection)
            return
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)

    def close(self) -> None:
        """Close and remove the socket."""
        for unclaimed in self._unclaimed.values():
            unclaimed.close()
        for connection in self._silent:
            connection.close()
        self._unclaimed, self._silent = {}, []
        if self._socket is not None and self._path is not None:
            unlink_own(self._path, self._identity)
            self._socket.close()
            self._socket = None


def has_ended(connection: socket.socket) -> bool:
    """Return True if the other end is closed. Nothing is sent on such a connection any more."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


class SentFd(NamedTuple):
    """Token and connection of a descriptor that was handed over. The hub finds it under ``token`` once a message names
    that; until then ``connection`` must stay open."""

    token: bytes
    connection: socket.socket


def send_fd(address: str, descriptor: int) -> SentFd | None:
    """Send ``descriptor`` to the hub at ``address``. Return None if that is not possible."""
    path = _fd_socket_path(address)
    if path is None:
        return None
    token = os.urandom(TOKEN_BYTES)
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        return None
    connection.setblocking(False)
    try:
        connection.connect(path)
        socket.send_fds(connection, [token], [descriptor])
    except OSError:
        connection.close()
        return None
    return SentFd(token, connection)


def send_new_slab(address: str, size: int) -> tuple[int, SentFd] | None:
    """Make a slab with room for ``size`` bytes, hand it over to the hub at ``address``, and return its descriptor and
    what was handed over. Return None if that is not possible."""
    descriptor = create_slab(size)
    if descriptor is None:
        return None
    handed = send_fd(address, descriptor)
    if handed is None:
        os.close(descriptor)
        return None
    return descriptor, handed
