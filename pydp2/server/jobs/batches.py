"""Describe batches that were cut, and keep those that one trainer was sent and has not used, with what it knows of the
state of its pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydp2.data.columns.checksum_log import NO_CHECKSUMS, RECORD_BYTES, LoggedChecksums
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.errors import Error
from pydp2.order.batcher import BatchCut
from pydp2.order.snapshot import SnapshotPoint
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import BATCH_COST
from pydp2.protocol.early_ends import to_frames, to_list


class CutBatch(NamedTuple):
    """Batch that was cut, and its rows. ``cost``: the bytes that it counts as long as it is kept, for its columns and
    for what is known of it."""

    cut: BatchCut
    rows: BatchRows
    bucket: dict[str, Any]
    cost: int

    @classmethod
    def of(cls, cut: BatchCut, rows: BatchRows, bucket: dict[str, Any]) -> CutBatch:
        """Return the batch that was cut as ``cut``."""
        return cls(cut, rows, bucket, rows.padded_bytes + BATCH_COST)


class BatchGroup(NamedTuple):
    """Batches that go out together, one for each rank, at the end of a pass maybe fewer.

    ``after``: the state of a trainer that has used its batch of the group. ``checksums_before``: of files that were
    read before the point of that state, since the point before.
    """

    batches: list[CutBatch]
    after: StreamState
    checksums_before: LoggedChecksums = NO_CHECKSUMS


@dataclass(frozen=True, slots=True)
class PassEnded:
    """The pass is over. ``is_empty``: no file of it had a sample, good or bad."""

    batches: int
    samples: int
    dropped: int
    uniform: bool
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class PassBroken:
    """The pass failed."""

    error: Error


@dataclass(slots=True)
class InFlightBatch:
    """Batch that is kept until it is used. ``group``: what it was cut with, without the batches; ``first``: the
    first of these. ``cost``: the bytes that it counts against ``prefetch_bytes``."""

    batch: CutBatch
    group: BatchGroup
    first: int
    cost: int

    @property
    def index(self) -> int:
        return self.batch.cut.index

    def release(self) -> None:
        """Give back its rows: it is used, or not wanted any more."""
        self.batch.rows.release()


def split_group(group: BatchGroup) -> list[InFlightBatch]:
    """Return each batch of ``group`` by itself: none keeps the rows of another."""
    shared, first = group, group.batches[0].cut.index
    if len(group.batches) > 1:
        shared = group._replace(batches=[])
    return [InFlightBatch(batch, shared, first, batch.cost) for batch in group.batches]


def batches_received(begin: m.BeginPass, batches: Iterable[InFlightBatch]) -> list[int]:
    """Return which of ``batches`` the trainer that says ``begin`` has had."""
    return [
        batch.index for batch in batches if batch.index < begin.first_batch or batch.index in begin.acknowledged_ahead
    ]


def without_received(batches: Iterable[InFlightBatch], received: Container[int]) -> Iterator[InFlightBatch]:
    """Yield those of ``batches`` that are not among the ``received`` ones, and release the others."""
    for batch in batches:
        if batch.index in received:
            batch.release()
        else:
            yield batch


@dataclass(slots=True)
class Flow:
    """Batches of one trainer that are not used, in order, and how many more it may be sent: ``credit`` counts batches,
    the limit of :meth:`can_send` bytes."""

    in_flight: deque[InFlightBatch] = field(default_factory=deque)
    in_flight_bytes: int = 0  # what they cost
    sent: int = 0  # of them, in the present run
    sent_bytes: int = 0
    unread_bytes: int = 0  # sent in earlier runs of this connection, where they may still lie
    used_count: int = 0  # batches of the present run that are used
    credit: int = 0
    prefetch: int = 0  # batches that it asked for when it joined
    ahead: int = 0  # the most that it asked for at a time beyond the one that it takes next
    asked_later: int = 0  # batches that it asked for in its present run, beside those that it asked for at first

    def enqueue(self, batch: InFlightBatch) -> None:
        """Keep a batch for the trainer."""
        self.in_flight.append(batch)
        self.in_flight_bytes += batch.cost

    def clear(self) -> None:
        """Drop all batches."""
        for batch in self.take_back():
            batch.release()

    def take_back(self) -> deque[InFlightBatch]:
        """Remove and return all batches."""
        taken, self.in_flight = self.in_flight, deque()
        self.in_flight_bytes = 0
        self._forget_sent()
        return taken

    def _forget_sent(self) -> None:
        """End a run: nothing says whether what was sent in it and not used was read."""
        self.unread_bytes += self.sent_bytes
        self.sent = self.sent_bytes = 0

    def acknowledge(self, done: int) -> list[int]:
        """Drop the first ``done`` batches that were sent in this run, which are used, and return their numbers."""
        numbers = []
        while self.used_count < done and self.sent:
            batch = self.in_flight.popleft()
            self.in_flight_bytes -= batch.cost
            self.sent_bytes -= batch.cost
            self.sent -= 1
            self.used_count += 1
            self.unread_bytes = 0  # that came before it
            numbers.append(batch.index)
            batch.release()
        return numbers

    def add_credit(self, count: int) -> None:
        """Let the trainer be sent ``count`` batches more. 0: it has read all that came, and waits."""
        if not count:
            self.unread_bytes = 0
        self.asked_later += count
        self.credit += count
        self.ahead = max(self.ahead, self.credit + self.sent - 1)

    def can_send(self, cost: int, limit: int) -> bool:
        """Return True if a batch of ``cost`` bytes may be sent, where ``limit`` bytes may be sent and not used. One
        beside the batch in the trainer's hand may always be, however large both are."""
        at_least = self.sent < 2 and not self.unread_bytes
        return self.credit > 0 and (at_least or self.unread_bytes + self.sent_bytes + cost <= limit)

    @property
    def next_unsent(self) -> InFlightBatch | None:
        """First batch that was not sent in this run."""
        return self.in_flight[self.sent] if self.sent < len(self.in_flight) else None

    def pop_next(self) -> InFlightBatch:
        """Count the next batch as sent, and return it."""
        batch = self.in_flight[self.sent]
        self.sent += 1
        self.sent_bytes += batch.cost
        self.credit -= 1
        return batch

    def begin_run(self, begin: m.BeginPass) -> list[int]:
        """Go on with the run of ``begin``. Return the numbers of the batches that the trainer has used."""
        used = batches_received(begin, self.in_flight)
        self.in_flight = deque(without_received(self.in_flight, used))
        self.in_flight_bytes = sum(batch.cost for batch in self.in_flight)
        self._forget_sent()
        self.used_count = 0
        self.prefetch = begin.credit
        self.credit = begin.credit + self.asked_later  # while the run could not begin
        self.ahead = max(begin.credit, self.credit - 1)
        return used

    def disconnect(self) -> None:
        """Forget the connection: what was sent and not used is sent again to the process that comes next."""
        self.sent = self.sent_bytes = self.unread_bytes = self.used_count = self.credit = 0

    def end_pass(self) -> None:
        """Drop all batches: another pass begins."""
        self.clear()
        self.used_count = self.credit = 0


@dataclass(slots=True)
class StateFeed:
    """Parts of the state that one trainer was sent with its batches: those that are new go with the next one."""

    point: SnapshotPoint | None = None
    checksums: LoggedChecksums | None = None  # of what was read since the point
    known_early_ends: set[int] = field(default_factory=set)  # files
    early_ends_sent: int = 0  # early ends that came with its last batch, and with those before it

    def head(self, run: int, batch: InFlightBatch, at: StreamState) -> tuple[m.BatchHead, list[Any]]:
        """Return the message that announces ``batch``, and its frames: rows, new records of checksums, and what else is
        new. ``at``: where the trainer is once it has it."""
        cut, picked = batch.batch.cut, batch.batch.rows
        point = None if at.point is self.point else at.point
        records = at.checksums.since(self.checksums)
        if self.checksums is None or self.checksums.values is not at.checksums.values:
            # for a state between the last batch and this one, from the point of the last one
            before = batch.group.checksums_before if self.checksums is None else self.checksums.whole()
            records = before.since(self.checksums) + records
        self.point, self.checksums, early_ends = at.point, at.checksums, []
        if self.early_ends_sent != len(met := batch.group.after.early_ends):
            early_ends = to_frames(to_list({file: met[file] for file in met if file not in self.known_early_ends}))
            self.known_early_ends.update(met)
            self.early_ends_sent = len(met)
        head = m.BatchHead(
            run,
            cut.index,
            len(picked),
            cut.size,
            cut.pool_weight,
            cut.padding,
            at.tail[1],
            at.batch,
            at.acknowledged_ahead,
            {} if point is None else point.to_wire(),
            len(early_ends),
            batch.batch.bucket,
            checksum_records=len(records) // RECORD_BYTES,
        )
        return head, [picked, records, *(() if point is None else (point.pool,)), *early_ends]
