"""Hand a descriptor from a hub to its peers; :mod:`.fd_passing` goes the other way.

A peer that has use for it makes a pair of sockets and hands one end over. The hub sends the descriptor there at once,
so the peer finds it without waiting for it, or finds that there is none. A byte back says that it is in use: from then
on the hub may rely on it. If any of this fails, the two go on without it.
"""

from __future__ import annotations

import contextlib

from pydp2.system.stdlib import _socket, os, socket
from pydp2.transport.fd_passing import SentFd, has_ended, send_fd

_MAX_NOTE_BYTES = 64  # bytes of the note that goes with a descriptor
_MAX_PEERS = 1024  # peers that have asked and have not said that they use it


class FdOffer:
    """Hub's end. ``offered``: the descriptor, which stays its owner's, and a note that goes with
    it; None: there is none."""

    def __init__(self) -> None:
        self.offered: tuple[int, bytes] | None = None
        self._channels: dict[bytes, socket.socket] = {}
        self._users: set[bytes] = set()

    def answer(self, peer: bytes, descriptor: int) -> None:
        """Send the offered descriptor to the socket ``descriptor``, which ``peer`` has handed over."""
        try:
            channel = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            return
        self.forget_peer(peer)
        for other in [each for each, known in self._channels.items() if has_ended(known)]:
            self.forget_peer(other)  # it died before it said whether it uses the descriptor
        channel.setblocking(False)
        if self.offered is not None and len(self._channels) < _MAX_PEERS:
            with contextlib.suppress(OSError):
                socket.send_fds(channel, [self.offered[1]], [self.offered[0]])
                self._channels[peer] = channel
                return
        channel.close()

    def is_used_by(self, peer: bytes) -> bool:
        """Return True if ``peer`` has said that it uses the descriptor."""
        channel = self._channels.get(peer)
        if channel is not None:
            try:
                received = channel.recv(1)
            except BlockingIOError:
                return False
            except OSError:
                received = b""
            self.forget_peer(peer)
            if received:
                self._users.add(peer)
        return peer in self._users

    def forget_peer(self, peer: bytes) -> None:
        """Forget ``peer``, which is gone or asks anew."""
        self._users.discard(peer)
        if (channel := self._channels.pop(peer, None)) is not None:
            channel.close()

    def close(self) -> None:
        """Offer nothing any more, and forget all peers."""
        self.offered = None
        for peer in list(self._channels):
            self.forget_peer(peer)


class FdRequest:
    """Peer's end, for the hub at ``address``. ``token``: what to tell the hub; None: the hub cannot be asked."""

    def __init__(self, address: str) -> None:
        self.token: bytes | None = None
        self._channel: socket.socket | None = None
        self._sent: SentFd | None = None
        self._given: tuple[int, bytes] | None = None
        if not hasattr(socket, "SOCK_SEQPACKET"):
            return
        try:
            pair = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # that of socket makes those of its module
            own_end, peer_end = (socket.socket(fileno=end.detach()) for end in pair)
        except OSError:
            return
        with peer_end:
            self._sent = send_fd(address, peer_end.fileno())
        if self._sent is None:
            own_end.close()
            return
        own_end.setblocking(False)
        self.token, self._channel = self._sent.token, own_end

    @property
    def is_open(self) -> bool:
        """True while an answer may still come."""
        return self._channel is not None

    def poll(self) -> tuple[int, bytes] | None:
        """Return the descriptor and the note that goes with it, if they have come. The descriptor is closed by
        :meth:`accept` or :meth:`close`, one of which the caller calls then; after an exception it may ask again."""
        if self._channel is None or self._given is not None:
            return self._given
        try:
            note, descriptors, _, _ = socket.recv_fds(self._channel, _MAX_NOTE_BYTES, 4)
            self._given = (descriptors[0], note) if descriptors else None
        except BlockingIOError:
            return None
        except OSError:
            descriptors = []
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        if not descriptors:
            self.close()
        return self._given

    def accept(self) -> None:
        """Tell the hub that the descriptor is in use, and close."""
        if self._channel is not None:
            with contextlib.suppress(OSError):  # the hub is gone
                self._channel.send(b"+")
        self.close()

    def close(self) -> None:
        """Close, also the descriptor, which was not used if it was not accepted."""
        if self._given is not None:
            descriptor, self._given = self._given[0], None
            os.close(descriptor)
        if self._sent is not None:
            self._sent.connection.close()
            self._sent = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
