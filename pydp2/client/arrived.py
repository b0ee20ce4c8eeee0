"""What a message of batches holds: each batch apart, checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from typing import Any

import numpy as np

from pydp2.client.lots import Lot, Shown, lots
from pydp2.errors import RemoteProtocolError
from pydp2.inputs import Batch, Columns, Slots
from pydp2.inputs.columns import Ints
from pydp2.protocol import messages as m
from pydp2.protocol.facts import split
from pydp2.protocol.packs import unpacked
from pydp2.transport import buffers

Rows = Columns | tuple[Lot, int, int]
"""Those of a batch: columns, or a part of a lot."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch that came: what announced it, its rows, the pool of the point and the facts that came with it.

    ``number``: which batch of its run it is.
    """

    head: m.BatchHead
    rows: Rows
    number: int
    pool: bytes = b""
    facts: list[list[Any]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """What of it lies here, or is held at the service, before it is taken."""
        return self.rows.nbytes if isinstance(self.rows, Columns) else self.rows[0].row_cost * self.head.rows

    @property
    def column_bytes(self) -> int:
        """The bytes of its columns, once :meth:`batch` has made it."""
        return self.rows.nbytes if isinstance(self.rows, Columns) else self.rows[0].nbytes(*self.rows[1:])

    @property
    def shown(self) -> bool:
        """Its rows lie in memory that the service shows."""
        return not isinstance(self.rows, Columns)

    def taken(self, run: int, done: int) -> bool:
        """Whether it belongs to another run than ``run``, or to the first ``done`` batches of that."""
        return self.head.run != run or self.number < done

    def batch(self, pass_id: int) -> Batch:
        """For the trainer. Raises RemoteProtocolError where its rows are none, Moved where they are others by now."""
        head = self.head
        if isinstance(self.rows, Columns):
            columns = self.rows
        else:
            lot, lo, hi = self.rows
            columns = lot.columns(lo, hi)
        return Batch(
            columns,
            pass_id=pass_id,
            index=head.index,
            size=head.size,
            pool_weight=head.pool_weight,
            padding=head.padding,
            bucket=head.bucket.get("longest") or None,
        )


def arrived(
    slots: Slots, head: m.BatchHead, body: Sequence[memoryview], shown: Shown | None = None, number: int = 0
) -> list[Arrived]:
    """The batches that came with ``head`` and the frames ``body``. ``shown``: the memory of the service that can be
    seen. ``number``: which batch of its run the first one is. Raises RemoteProtocolError for what cannot be."""
    frames, facts = split("BatchHead", body, head.facts)
    pool = b""
    if head.saved:
        if not frames:
            raise RemoteProtocolError("BatchHead: a point without its pool")
        *frames, last = frames
        pool = bytes(last)
    if any(type(index) is not int for index in head.beyond):
        raise RemoteProtocolError("BatchHead: numbers of batches are needed beyond it")
    heads = unpacked(head)
    counts = [each.rows for each in heads]
    parts: Iterable[Rows]
    if head.kept:
        parts = lots(*_kept(head, sum(counts), frames, shown), counts)
    else:
        parts = _parts(Columns.from_frames(slots, sum(counts), buffers(frames)), counts)
    first, *others = map(Arrived, heads, parts, count(number))
    return [replace(first, pool=pool, facts=facts), *others]


def _parts(columns: Columns, counts: Sequence[int]) -> list[Columns]:
    """``columns`` as several of ``counts`` rows."""
    if len(counts) == 1:
        return [columns]
    ends = accumulate(counts)
    return [columns.slice(end - count, end) for count, end in zip(counts, ends, strict=True)]


def _kept(head: m.BatchHead, rows: int, frames: Sequence[memoryview], shown: Shown | None) -> tuple[Shown, Ints]:
    """What is shown, and the numbers of the rows of ``head`` there, checked."""
    if shown is None or head.kept > shown.layout.rows:
        raise RemoteProtocolError(f"BatchHead: rows of a cache of {head.kept}, which is not known here")
    if len(frames) != 1 or frames[0].nbytes != 8 * rows:
        raise RemoteProtocolError("BatchHead: one frame with the number of each row is needed")
    numbers = np.frombuffer(frames[0], "<i8").astype(np.int64)
    where = shown.within(numbers)
    if rows and not 0 <= int(where.min()) <= int(where.max()) < head.kept:
        raise RemoteProtocolError(f"BatchHead: a row that is not among the {head.kept} of the cache")
    return shown, numbers
