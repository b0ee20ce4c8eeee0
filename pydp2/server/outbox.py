"""What trainers are told, small batches of one trainer several to a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydp2.inputs.picked import Picked, together
from pydp2.protocol import messages as m
from pydp2.protocol.packs import MOST, PACK_BYTES, goes_with, packed

Said = tuple[bytes, m.Message, Sequence[Any]]
"""To whom, what, and its frames; those of a BatchHead begin with the :class:`Picked` of its rows."""


@dataclass(slots=True)
class _Pack:
    heads: list[m.BatchHead]
    picked: list[Picked]
    behind: Sequence[Any]  # frames of the first that follow the columns
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self.picked[0].nbytes

    def takes(self, head: m.BatchHead, picked: Picked) -> bool:
        fits = len(self.heads) < MOST and self.nbytes + picked.nbytes <= PACK_BYTES
        if not fits or not goes_with(head, self.heads[0]):
            return False
        self.heads.append(head)
        self.picked.append(picked)
        self.nbytes += picked.nbytes
        return True


def messages(out: deque[Said]) -> Iterator[tuple[bytes, m.Message, Sequence[Any], list[m.BatchHead]]]:
    """Empties ``out``: what is sent to whom, and which batches that announces. Each gets its own in order."""
    packs: dict[bytes, _Pack] = {}
    while out:
        peer, message, frames = out.popleft()
        pack = packs.get(peer)
        if isinstance(message, m.BatchHead):
            picked, *behind = frames
            if pack is not None and pack.takes(message, picked):
                continue
            packs[peer] = _Pack([message], [picked], behind)
        else:
            packs.pop(peer, None)
        if pack is not None:
            yield _closed(peer, pack)
        if not isinstance(message, m.BatchHead):
            yield peer, message, frames, []
    for peer, pack in packs.items():
        yield _closed(peer, pack)


def _closed(peer: bytes, pack: _Pack) -> tuple[bytes, m.Message, Sequence[Any], list[m.BatchHead]]:
    return peer, packed(pack.heads), [together(pack.picked), *pack.behind], pack.heads
