"""Keep what workers say before their engine has told which process each is. Pure.

A worker may be quicker than the news of its start. Until that comes, a process that says it is this worker may be any
process of this user; so it is believed once the engine has named the same one.
"""

from __future__ import annotations

from pydp2.protocol.messages import Hello, Message

_MAX_PEERS = 64  # real workers are few at a time
_MAX_MESSAGES = 4  # a worker says no more before it is answered


class EarlyHellos:
    """Peers that said which worker they are, and what they said after it."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[Hello, list[Message]]] = {}

    def hold(self, peer: bytes, hello: Hello) -> None:
        """Keep what ``peer`` says until the engine has told of its worker."""
        if len(self._kept) < _MAX_PEERS:
            self._kept[peer] = hello, []

    def add(self, peer: bytes, message: Message) -> None:
        """Keep ``message`` too, if ``peer`` is one that waits."""
        if peer in self._kept and len(self._kept[peer][1]) < _MAX_MESSAGES:
            self._kept[peer][1].append(message)

    def take(self, worker: int, pid: int) -> tuple[bytes, list[Message]]:
        """Return the peer that is ``worker``, which the engine says is process ``pid``, and all that it said: b"" and
        nothing if it has not spoken yet. Others that said so are forgotten."""
        named = {peer: kept for peer, kept in self._kept.items() if kept[0].worker == worker}
        for peer in named:
            del self._kept[peer]
        return next(((peer, [hello, *rest]) for peer, (hello, rest) in named.items() if hello.pid == pid), (b"", []))
