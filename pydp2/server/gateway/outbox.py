"""Collect what trainers are sent, with several small batches of one trainer in a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydp2.data.rowstore.batch_rows import BatchRows, RowView, concat_rows
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import MAX_BATCHES, MAX_PACK_BYTES, can_follow, pack_heads

OutMessage = tuple[bytes, m.Message, Sequence[Any]]
"""To whom, what, and its frames; those of a BatchHead begin with the :class:`BatchRows` of its rows and new records of
checksums; a message has those of all its batches in one frame."""
PackedMessage = tuple[bytes, m.Message, Sequence[Any], list[m.BatchHead]]
"""To whom, what, its frames, and the batches that it announces."""


@dataclass(slots=True)
class _MessagePack:
    heads: list[m.BatchHead]
    picked: list[BatchRows]
    checksums: list[bytes]
    behind: Sequence[Any]  # frames of the first that follow the columns and the checksums
    shared_rows: int  # so many rows has the cache where they lie, if their numbers are enough
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self._carries(self.picked[0])

    def _carries(self, picked: BatchRows) -> int:
        return 8 * len(picked) if self.shared_rows else picked.store.carried_bytes(picked.row_ids, picked.nbytes)

    def takes(self, head: m.BatchHead, picked: BatchRows, checksums: bytes, shared_rows: int) -> bool:
        more = self._carries(picked)
        alike = bool(shared_rows) == bool(self.shared_rows)
        fits = len(self.heads) < MAX_BATCHES and self.nbytes + more <= MAX_PACK_BYTES
        if not (alike and fits and can_follow(head, self.heads[0])):
            return False
        self.shared_rows = max(self.shared_rows, shared_rows)
        self.heads.append(head)
        self.picked.append(picked)
        self.checksums.append(checksums)
        self.nbytes += more
        return True


def _here(peer: bytes, picked: BatchRows) -> int:
    return 0


def drain(out: deque[OutMessage], shared_rows: Callable[[bytes, BatchRows], int] = _here) -> Iterator[PackedMessage]:
    """Empty ``out``, and yield each message that is to be sent. Each peer gets its own in order. A message has to be
    sent before the next one is asked for: then the rows of its batches, which it held, are released.

    ``shared_rows`` returns the number of rows from which a peer can gather those that were picked, so that it needs
    their numbers alone; 0: it cannot.
    """
    packs: dict[bytes, _MessagePack] = {}
    while out:
        peer, message, frames = out.popleft()
        pack = packs.get(peer)
        if isinstance(message, m.BatchHead):
            picked, checksums, *behind = frames
            known = shared_rows(peer, picked)
            if pack is not None and pack.takes(message, picked, checksums, known):
                continue
            packs[peer] = _MessagePack([message], [picked], [checksums], behind, known)
        else:
            packs.pop(peer, None)
        if pack is not None:
            yield from _send_pack(peer, pack)
        if not isinstance(message, m.BatchHead):
            yield peer, message, frames, []
    for peer, pack in packs.items():
        yield from _send_pack(peer, pack)


def _send_pack(peer: bytes, pack: _MessagePack) -> Iterator[PackedMessage]:
    """Yield the message, then release its rows: it is sent."""
    yield _encode_pack(peer, pack)
    for picked in pack.picked:
        picked.release()


def _encode_pack(peer: bytes, pack: _MessagePack) -> PackedMessage:
    head, rows, checksums = pack_heads(pack.heads), concat_rows(pack.picked), b"".join(pack.checksums)
    behind = [checksums, *pack.behind] if checksums else pack.behind
    if pack.shared_rows:
        head.shared_rows = pack.shared_rows  # of this message alone: the head was made for it
        return peer, head, [rows.handles(), *behind], pack.heads
    if (split := rows.store.split(rows.row_ids)) is not None:
        head.elsewhere, head.nbytes = split.elsewhere, sum(each.padded_bytes for each in pack.picked)
        return peer, head, [RowView(split.store, split.here), split.order, split.handles, *behind], pack.heads
    return peer, head, [rows, *behind], pack.heads
