"""What trainers are told, small batches of one trainer several to a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
    kept: int  # so many rows has the cache where they lie, if their numbers are enough
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self._carries(self.picked[0])

    def _carries(self, picked: Picked) -> int:
        return 8 * len(picked) if self.kept else picked.nbytes

    def takes(self, head: m.BatchHead, picked: Picked, kept: int) -> bool:
        more = self._carries(picked)
        fits = len(self.heads) < MOST and self.nbytes + more <= PACK_BYTES and kept == self.kept
        if not fits or not goes_with(head, self.heads[0]):
            return False
        self.heads.append(head)
        self.picked.append(picked)
        self.nbytes += more
        return True


def _here(peer: bytes, picked: Picked) -> int:
    return 0


def messages(
    out: deque[Said], kept: Callable[[bytes, Picked], int] = _here
) -> Iterator[tuple[bytes, m.Message, Sequence[Any], list[m.BatchHead]]]:
    """Empties ``out``: what is sent to whom, and which batches that announces. Each gets its own in order.

    ``kept``: of how many rows a peer can gather those that were picked, so that it needs their numbers alone; 0: it
    cannot.
    """
    packs: dict[bytes, _Pack] = {}
    while out:
        peer, message, frames = out.popleft()
        pack = packs.get(peer)
        if isinstance(message, m.BatchHead):
            picked, *behind = frames
            known = kept(peer, picked)
            if pack is not None and pack.takes(message, picked, known):
                continue
            packs[peer] = _Pack([message], [picked], behind, known)
        else:
            packs.pop(peer, None)
        if pack is not None:
            yield _closed(peer, pack)
        if not isinstance(message, m.BatchHead):
            yield peer, message, frames, []
    for peer, pack in packs.items():
        yield _closed(peer, pack)


def _closed(peer: bytes, pack: _Pack) -> tuple[bytes, m.Message, Sequence[Any], list[m.BatchHead]]:
    head, rows = packed(pack.heads), together(pack.picked)
    if pack.kept:
        return peer, replace(head, kept=pack.kept), [rows.numbers(), *pack.behind], pack.heads
    return peer, head, [rows, *pack.behind], pack.heads
