"""What a message of batches holds: each batch apart, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydp2.errors import RemoteProtocolError
from pydp2.inputs import Batch, Columns, Slots
from pydp2.protocol import messages as m
from pydp2.protocol.facts import split
from pydp2.protocol.packs import unpacked
from pydp2.transport import buffers


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch that came: what announced it, its rows, the pool of the point and the facts that came with it."""

    head: m.BatchHead
    columns: Columns
    pool: bytes = b""
    facts: list[list[Any]] = field(default_factory=list)

    def batch(self, pass_id: int) -> Batch:
        """For the trainer."""
        head = self.head
        return Batch(
            self.columns,
            pass_id=pass_id,
            index=head.index,
            size=head.size,
            pool_weight=head.pool_weight,
            padding=head.padding,
            bucket=head.bucket.get("longest") or None,
        )


def arrived(slots: Slots, head: m.BatchHead, body: Sequence[memoryview]) -> list[Arrived]:
    """The batches that came with ``head`` and the frames ``body``. Raises RemoteProtocolError for what cannot be."""
    frames, facts = split("BatchHead", body, head.facts)
    pool = b""
    if head.saved:
        if not frames:
            raise RemoteProtocolError("BatchHead: a point without its pool")
        *frames, last = frames
        pool = bytes(last)
    if any(type(index) is not int for index in head.beyond):
        raise RemoteProtocolError("BatchHead: numbers of batches are needed beyond it")
    first, *others = unpacked(head)
    columns = Columns.from_frames(slots, sum(each.rows for each in (first, *others)), buffers(frames))
    if not others:
        return [Arrived(first, columns, pool, facts)]
    batches = [Arrived(first, columns.slice(0, first.rows), pool, facts)]
    at = first.rows
    for each in others:
        batches.append(Arrived(each, columns.slice(at, at + each.rows)))
        at += each.rows
    return batches
