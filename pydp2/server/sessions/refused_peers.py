"""Part from clients that broke the protocol, and tell each of them why.

The connection of a peer without a key stays, because libzmq cannot end that of one peer. So a client that was only
heard no more would wait for an answer without end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pydp2.errors import ProtocolError, RemoteProtocolError, shorten, to_wire
from pydp2.protocol import messages as m
from pydp2.transport import Hub, PeerGone

_MAX_PEERS = 1024  # that are remembered: one more of them would be told again
_MAX_REASON = 2000  # characters


class RefusedPeers:
    """Peers of ``hub`` that were refused. ``log(text, kind)`` writes what the user is to know."""

    def __init__(self, hub: Hub, log: Callable[[str, str], None]) -> None:
        self._hub, self._log = hub, log
        self._peers: dict[bytes, None] = {}

    def __contains__(self, peer: bytes) -> bool:
        """Return True if ``peer`` was refused: nothing that it says counts."""
        return peer in self._peers

    def refuse(self, peer: bytes, error: ProtocolError, now: float) -> None:
        """Tell ``peer`` that the service does not take what it sent, and hear it no more."""
        why = shorten(str(error), _MAX_REASON)
        self._log(f"a client broke the protocol: {why}", "protocol")
        self._hub.note_refusal(peer, "broke the protocol", now)
        refused = RemoteProtocolError(
            f"the service does not take what this client sent, and has parted from it: {why}; use the same release of "
            "pydp2 on both sides, and connect again"
        )
        with contextlib.suppress(PeerGone):
            self._hub.send(peer, [m.encode(m.Closing("it broke the protocol", to_wire(refused)))])
        self._peers[peer] = None
        if len(self._peers) > _MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        self._hub.end_peer(peer)
