"""A descriptor from a hub to its peers, the other way round than :mod:`.fd_passing`: there is something that all may
see.

A peer that has use for it makes a pair of sockets and hands one end over. The hub sends the descriptor there at once,
so the peer finds it without waiting for it, or finds that there is none. A byte back says that it is in use: from then
on the hub may rely on it. Where nothing comes of it, the two go on without.
"""

from __future__ import annotations

import contextlib
import os
import socket

from pydp2.transport.fd_passing import SentFd, has_ended, send_fd

_MAX_NOTE_BYTES = 64  # bytes that may be said of a descriptor
_MAX_PEERS = 1024  # that have asked and have not said that they use it


class FdOffer:
    """The hub's end. ``offered``: the descriptor, which stays its owner's, and what is to be said of it; None: there is
    none."""

    def __init__(self) -> None:
        self.offered: tuple[int, bytes] | None = None
        self._channels: dict[bytes, socket.socket] = {}
        self._users: set[bytes] = set()

    def answer(self, peer: bytes, descriptor: int) -> None:
        """``peer`` has handed over ``descriptor``, a socket to send the descriptor to."""
        try:
            channel = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            return
        self.forget_peer(peer)
        for other in [each for each, known in self._channels.items() if has_ended(known)]:
            self.forget_peer(other)  # it died before it said whether it uses it
        channel.setblocking(False)
        if self.offered is not None and len(self._channels) < _MAX_PEERS:
            with contextlib.suppress(OSError):
                socket.send_fds(channel, [self.offered[1]], [self.offered[0]])
                self._channels[peer] = channel
                return
        channel.close()

    def is_used_by(self, peer: bytes) -> bool:
        """Whether ``peer`` has said that it uses the descriptor."""
        channel = self._channels.get(peer)
        if channel is not None:
            try:
                said = channel.recv(1)
            except BlockingIOError:
                return False
            except OSError:
                said = b""
            self.forget_peer(peer)
            if said:
                self._users.add(peer)
        return peer in self._users

    def forget_peer(self, peer: bytes) -> None:
        """``peer`` is gone, or asks anew."""
        self._users.discard(peer)
        if (channel := self._channels.pop(peer, None)) is not None:
            channel.close()

    def close(self) -> None:
        """Nobody is given anything any more."""
        self.offered = None
        for peer in list(self._channels):
            self.forget_peer(peer)


class FdRequest:
    """A peer's end, of the hub at ``address``. ``token``: to be told to the hub; None: it cannot be asked."""

    def __init__(self, address: str) -> None:
        self.token: bytes | None = None
        self._channel: socket.socket | None = None
        self._sent: SentFd | None = None
        if not hasattr(socket, "SOCK_SEQPACKET"):
            return
        try:
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        with theirs:
            self._sent = send_fd(address, theirs.fileno())
        if self._sent is None:
            mine.close()
            return
        mine.setblocking(False)
        self.token, self._channel = self._sent.token, mine

    @property
    def is_open(self) -> bool:
        """Something may come yet."""
        return self._channel is not None

    def poll(self) -> tuple[int, bytes] | None:
        """The descriptor and what is said of it, if that has come; it is the caller's, who says :meth:`accept` or
        :meth:`close`."""
        if self._channel is None:
            return None
        try:
            note, descriptors, _, _ = socket.recv_fds(self._channel, _MAX_NOTE_BYTES, 4)
        except BlockingIOError:
            return None
        except OSError:
            note, descriptors = b"", []
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        if not descriptors:
            self.close()
            return None
        return descriptors[0], note

    def accept(self) -> None:
        """What was given is in use."""
        if self._channel is not None:
            with contextlib.suppress(OSError):  # the hub is gone
                self._channel.send(b"+")
        self.close()

    def close(self) -> None:
        """There is no use for it."""
        if self._sent is not None:
            self._sent.connection.close()
            self._sent = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
