"""Split a message of batches into single batches, and check them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice, repeat
from typing import Any, NamedTuple

from pydp2.client.row_kinds import RowKind, batch_of
from pydp2.client.row_sources import Rows, RowSources
from pydp2.data.columns.batch import Batch
from pydp2.data.columns.checksum_log import RECORD_BYTES, are_records
from pydp2.data.columns.columns import Columns
from pydp2.errors import RemoteProtocolError
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import unpack_head
from pydp2.protocol.early_ends import split_frames

_ORIGIN_BYTES = 2 * 8  # of a row


class Conversion(NamedTuple):
    """Way in which a loader of a framework makes its values, for a thread that may do so while the loop is busy.

    ``convert``: makes the value of a batch. ``context``: returns what values depend on beside their batch, in the
    thread that calls it. ``wanted``: what that is in the thread of the loop. Where it is not the same, a thread must
    not convert.
    """

    convert: Callable[[Batch], Any]
    context: Callable[[], object]
    wanted: object


MAKE_VALUES = Conversion(Batch.values, lambda: None, None)
"""Conversion for a loop over batches themselves: their values are made."""


@dataclass(slots=True)  # not frozen: one is made for each batch
class ReceivedBatch:
    """Batch that came: the head that announced it, its rows, the pool of the point, the early-end records, the records
    of checksums and the origins of its rows that came with it.

    ``number``: its number in its run. ``is_first``: it is the first batch of its message. ``converted``: the batch for
    the trainer, if a loader's value was made of it. ``kind``: what its rows are; None: samples.
    """

    head: m.BatchHead
    rows: Rows
    number: int
    is_first: bool = True
    pool: bytes = b""
    early_ends: list[list[Any]] = field(default_factory=list)
    checksums: bytes = b""
    origins: memoryview | None = None
    converted: Batch | None = None
    kind: RowKind | None = None
    _behind: tuple[StreamState, StreamState] | None = None

    @property
    def sizes(self) -> tuple[int, int, bool]:
        """Number of its bytes that lie here, or are held at the service, before it is taken; number of bytes of its
        columns, once :meth:`to_batch` has made it; True if its rows lie in memory that the service shows."""
        if isinstance(self.rows, Columns):
            nbytes = self.rows.nbytes
            return nbytes, nbytes, False
        together, lo, hi = self.rows
        return (*together.sizes(lo, hi), True)

    @property
    def awaits_rows(self) -> bool:
        """True if rows of it have not come yet."""
        return not isinstance(self.rows, Columns) and not self.rows[0].is_here

    @property
    def is_prepared(self) -> bool:
        """True if its rows are here, gathered."""
        return isinstance(self.rows, Columns) or self.rows[0].is_gathered

    def columns(self) -> Columns:
        """Return the rows, gathered once. Raises RemoteProtocolError if they are invalid, StaleRows if their cells hold
        others by now."""
        if isinstance(self.rows, Columns):
            return self.rows
        together, lo, hi = self.rows
        return together.columns(lo, hi)

    def to_batch(self, pass_id: int) -> Batch:
        """Return the batch for the trainer. Raises what :meth:`columns` does."""
        if (converted := self.converted) is not None:
            self.converted = None
            return converted
        return batch_of(self.kind, self.columns(), self.head, pass_id, self.origins)

    def position_behind(self, before: StreamState) -> StreamState:
        """Return the position behind the batch, which is made once. ``before``: the one behind the batch before it.
        Raises RemoteProtocolError for an invalid point."""
        if self._behind is None or self._behind[0] is not before:
            self._behind = before, before.after(self.head, self.pool, self.early_ends, self.checksums)
        return self._behind[1]


def parse_batches(
    head: m.BatchHead, body: Sequence[memoryview], sources: RowSources, number: int = 0
) -> list[ReceivedBatch]:
    """Return the batches that came with ``head`` and the frames ``body``. ``number``: the number of the first batch in
    its run. Raises RemoteProtocolError for an invalid message."""
    if any(type(index) is not int for index in head.acknowledged_ahead):
        raise RemoteProtocolError("BatchHead: numbers of batches are needed beyond it")
    heads = unpack_head(head)
    frames, origins, checksums, pool, early_ends = _split_body(heads, body)
    rows = sources.rows_of(head, [each.rows for each in heads], frames)
    batches = [*map(ReceivedBatch, heads, rows, count(number), chain((True,), repeat(False)))]
    batches[0].pool, batches[0].early_ends = pool, early_ends
    if sources.kind is not None:
        for batch in batches:
            batch.kind = sources.kind
    at = 0
    for batch in batches if checksums else ():
        end = at + RECORD_BYTES * batch.head.checksum_records
        batch.checksums, at = checksums[at:end], end
    at = 0
    if origins is not None:
        for batch in batches:
            end = at + _ORIGIN_BYTES * batch.head.rows
            batch.origins, at = origins[at:end], end
    return batches


def replace_by_batches(inbox: list[Any], at: int, sources: RowSources, number: int) -> None:
    """Replace the message at ``at`` of ``inbox`` by its batches, as :func:`parse_batches` does. After an exception the
    message is there as before, or the batches are."""
    head, body = inbox[at]
    inbox[at : at + 1] = parse_batches(head, body, sources, number)
    if head.elsewhere:  # if an exception comes before this, only memory waits for the next run
        sources.note_taken(head)


def _split_body(
    heads: Sequence[m.BatchHead], body: Sequence[memoryview]
) -> tuple[Sequence[memoryview], memoryview | None, bytes, bytes, list[list[Any]]]:
    """Return the frames of rows, the origins, the records of checksums, the pool of a point, and the early-end records
    of a message with the batches of ``heads``. Raises RemoteProtocolError."""
    head = heads[0]
    frames, early_ends = split_frames("BatchHead", body, head.early_end_frames)
    pool = checksums = b""
    if head.snapshot:
        if not frames:
            raise RemoteProtocolError("BatchHead: a point without its pool")
        pool = bytes(frames.pop())
    if records := sum(each.checksum_records for each in heads):
        checksums = bytes(frames.pop()) if frames else b""
        if len(checksums) != RECORD_BYTES * records or not are_records(checksums):
            raise RemoteProtocolError(
                f"BatchHead: {records} records of checksums are needed, of three numbers from 0 on"
            )
    origins = None
    if head.has_origins:
        rows = sum(each.rows for each in heads)
        origins = memoryview(frames.pop() if frames and rows else b"").cast("B")
        if len(origins) != _ORIGIN_BYTES * rows:
            raise RemoteProtocolError("BatchHead: origins are needed for all of its rows, and no others")
    return frames, origins, checksums, pool, early_ends


def fetch_rows(head: m.BatchHead, body: Sequence[memoryview], sources: RowSources) -> None:
    """Have ``sources`` ask for the rows of the message that lie elsewhere. Raises RemoteProtocolError."""
    heads = unpack_head(head)
    sources.fetch(head, [each.rows for each in heads], _split_body(heads, body)[0])


def is_second_prepared(inbox: Sequence[Any], converts: bool) -> bool:
    """Return True if nothing of the second batch of ``inbox`` is to be prepared. ``converts``: it is converted, too."""
    second = inbox[1] if len(inbox) > 1 else None
    return isinstance(second, ReceivedBatch) and (second.converted is not None if converts else second.is_prepared)


def second_batch(inbox: list[Any], sources: RowSources, run: int, number: int) -> ReceivedBatch | None:
    """Return the second batch of ``inbox``. None: it has not come.

    If its message is one of ``run``, where the batch has the ``number``, the batches replace the message. An invalid
    message stays: the error belongs to the time when it is asked for.
    """
    match inbox[1:2]:
        case [(m.BatchHead() as head, _)] if head.request_id == run:
            with contextlib.suppress(RemoteProtocolError):
                replace_by_batches(inbox, 1, sources, number)
    match inbox[1:2]:
        case [ReceivedBatch() as following]:
            return following
    return None


def convert_gathered(
    inbox: Sequence[Any], conversion: Conversion, position: StreamState, goes_on: Callable[[], bool]
) -> bool:
    """Convert the second batch of ``inbox``, whose rows are here, and as long as ``goes_on`` those behind it that were
    gathered with it. The first one is in hand, and the stream is at ``position`` behind it. Return False if this thread
    cannot, because what values depend on is not the same here."""
    whole = inbox[1].columns().whole[0]
    for received in islice(inbox, 1, None):
        if not isinstance(received, ReceivedBatch) or not received.is_prepared:
            break
        if received.columns().whole[0] is not whole:
            break
        if conversion.context() != conversion.wanted:
            return False
        if received.converted is None:
            batch = received.to_batch(position.pass_id)
            batch._ready = conversion, conversion.convert(batch)
            received.converted = batch
        position = received.position_behind(position)
        if not goes_on():
            break
    return True
