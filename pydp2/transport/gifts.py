"""A descriptor from a hub to its peers, the other way round than :mod:`.handover`: there is something that all may see.

A peer that has use for it makes a pair of sockets and hands one end over. The hub sends the descriptor there at once,
so the peer finds it without waiting for it, or finds that there is none. A byte back says that it is in use: from then
on the hub may rely on it. Where nothing comes of it, the two go on without.
"""

from __future__ import annotations

import contextlib
import os
import socket

from pydp2.transport.handover import Handed, hand_over, has_ended

_NOTE = 64  # bytes that may be said of a gift
_PEERS = 1024  # that have asked and have not said that they use it


class Gifts:
    """The hub's end. ``gift``: the descriptor, which stays its owner's, and what is to be said of it; None: there is
    none."""

    def __init__(self) -> None:
        self.gift: tuple[int, bytes] | None = None
        self._given: dict[bytes, socket.socket] = {}
        self._used: set[bytes] = set()

    def asked(self, peer: bytes, descriptor: int) -> None:
        """``peer`` has handed over ``descriptor``, a socket to send the gift to."""
        try:
            channel = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            return
        self.drop(peer)
        for other in [each for each, known in self._given.items() if has_ended(known)]:
            self.drop(other)  # it died before it said whether it uses it
        channel.setblocking(False)
        if self.gift is not None and len(self._given) < _PEERS:
            with contextlib.suppress(OSError):
                socket.send_fds(channel, [self.gift[1]], [self.gift[0]])
                self._given[peer] = channel
                return
        channel.close()

    def used(self, peer: bytes) -> bool:
        """Whether ``peer`` has said that it uses the gift."""
        channel = self._given.get(peer)
        if channel is not None:
            try:
                said = channel.recv(1)
            except BlockingIOError:
                return False
            except OSError:
                said = b""
            self.drop(peer)
            if said:
                self._used.add(peer)
        return peer in self._used

    def drop(self, peer: bytes) -> None:
        """``peer`` is gone, or asks anew."""
        self._used.discard(peer)
        if (channel := self._given.pop(peer, None)) is not None:
            channel.close()

    def close(self) -> None:
        """Nobody is given anything any more."""
        self.gift = None
        for peer in list(self._given):
            self.drop(peer)


class Wish:
    """A peer's end, of the hub at ``address``. ``token``: to be told to the hub; None: it cannot be asked."""

    def __init__(self, address: str) -> None:
        self.token: bytes | None = None
        self._channel: socket.socket | None = None
        self._handed: Handed | None = None
        if not hasattr(socket, "SOCK_SEQPACKET"):
            return
        try:
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        with theirs:
            self._handed = hand_over(address, theirs.fileno())
        if self._handed is None:
            mine.close()
            return
        mine.setblocking(False)
        self.token, self._channel = self._handed.token, mine

    @property
    def open(self) -> bool:
        """Something may come yet."""
        return self._channel is not None

    def look(self) -> tuple[int, bytes] | None:
        """The descriptor and what is said of it, if that has come; it is the caller's, who says :meth:`use` or
        :meth:`close`."""
        if self._channel is None:
            return None
        try:
            note, descriptors, _, _ = socket.recv_fds(self._channel, _NOTE, 4)
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

    def use(self) -> None:
        """What was given is in use."""
        if self._channel is not None:
            with contextlib.suppress(OSError):  # the hub is gone
                self._channel.send(b"+")
        self.close()

    def close(self) -> None:
        """There is no use for it."""
        if self._handed is not None:
            self._handed.connection.close()
            self._handed = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
