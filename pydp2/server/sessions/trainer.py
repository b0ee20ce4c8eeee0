"""Keep one trainer of a job: what it has been sent, what of that it has used, and where it stands in the pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydp2.data.columns.checksum_log import RECORD_BYTES, LoggedChecksums
from pydp2.order.snapshot import SnapshotPoint
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.early_ends import to_frames, to_list
from pydp2.protocol.state_table import next_state
from pydp2.server.sessions.pass_runner import BatchGroup, CutBatch
from pydp2.server.sessions.trainer_state import TRAINER_TRANSITIONS, TrainerEvent
from pydp2.server.snapshots.job_snapshot import PassState, RankSnapshot


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
    """Each batch of ``group`` by itself: none keeps the rows of another."""
    shared, first = group, group.batches[0].cut.index
    if len(group.batches) > 1:
        shared = group._replace(batches=[])
    return [InFlightBatch(ready, shared, first, ready.cost) for ready in group.batches]


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


@dataclass(slots=True, eq=False)
class Trainer:
    """Trainer of a job. ``peer`` is empty while no process is connected as this trainer; ``last_heard``: when it
    last said something."""

    rank: int
    peer: bytes = b""
    session: str = ""
    pid: int = 0
    host: str = ""  # where the process is, if that may be another host
    connection_number: int = 0  # of the connections that its process has made, the one that it has
    last_heard: float = 0.0
    joined: bool = True  # it knows the present generation
    state: PassState = PassState.BEFORE  # changed by move() alone
    run: int = 0
    ended_run: int = 0  # the present one, once it was sent the end or an error
    credit: int = 0
    in_flight: deque[InFlightBatch] = field(default_factory=deque)
    in_flight_bytes: int = 0  # what they cost
    sent: int = 0  # of them, in the present run
    sent_bytes: int = 0
    unread_bytes: int = 0  # sent in earlier runs of this connection, where they may still lie
    used_count: int = 0  # batches of the present run that are used
    first_unused: int = 0  # before this batch it has had all of its own
    point: SnapshotPoint | None = None  # the last one told
    checksums: LoggedChecksums | None = None  # those told of what was read since
    told: set[int] = field(default_factory=set)  # files that it knows to end early
    met: int = 0  # early ends that came with its last batch, and with those before it
    prefetch: int = 0  # batches that it asked for when it joined
    ahead: int = 0  # the most that it asked for at a time beyond the one that it takes next
    pending: m.BeginPass | None = None  # of a pass that cannot begin yet
    waits_for: str = ""  # the state from which it begins once the others have ended their pass
    asked_later: int = 0  # batches that it asked for in its present run, beside those that it asked for at first
    unanswered: str = ""  # the state that its last runs named, while it is not known to have had anything since
    was_told: bool = False  # the end, or an error, in the run before

    @property
    def process(self) -> str:
        """Name of its process, for messages."""
        return f"process {self.pid} on {self.host}" if self.host else f"process {self.pid}"

    def take_over(self, session: str) -> None:
        """Note that another process has its place now, which calls itself ``session``."""
        self.session, self.run, self.joined, self.waits_for, self.unanswered = session, 0, True, "", ""

    @classmethod
    def from_snapshot(cls, rank: RankSnapshot) -> Trainer:
        """Return the trainer that was written down as ``rank``, which is not connected and has not begun."""
        return cls(rank.rank, session=rank.session, joined=rank.joined, unanswered=rank.unanswered)

    def snapshot(self, first_unused: int) -> RankSnapshot:
        """Return what a service writes down of it. It has used all of its batches before ``first_unused``."""
        left = self.state is PassState.LEFT and self.ended_run != self.run  # and was not told how the pass ended
        return RankSnapshot(
            self.rank, self.session, self.state, self.joined, first_unused, "" if left else self.unanswered
        )

    def begin_run(self, begin: m.BeginPass) -> None:
        """Begin the run that it asks for with ``begin``."""
        self.was_told = self.ended_run == self.run
        self.run, self.ended_run, self.asked_later = begin.request_id, 0, 0
        if not begin.state_name:
            self.unanswered = ""

    def has_asked(self, begin: m.BeginPass) -> bool:
        """Return True if ``begin`` repeats what was heard of it, and it has had nothing since."""
        return begin.is_repeat and begin.state_name == self.unanswered

    def move(self, event: TrainerEvent) -> None:
        """Change the state as ``event`` says. Raises IllegalTransition when the present state does not allow it."""
        self.state = next_state(TRAINER_TRANSITIONS, self.state, event)

    def enqueue(self, batch: InFlightBatch) -> None:
        """Keep a batch for this trainer."""
        self.in_flight.append(batch)
        self.in_flight_bytes += batch.cost

    def clear(self) -> None:
        """Drop all batches that are kept for it."""
        for batch in self.take_back():
            batch.release()

    def take_back(self) -> deque[InFlightBatch]:
        """Remove and return all batches that are kept for it."""
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
        if numbers:
            self.unanswered = ""
        return numbers

    def add_credit(self, count: int) -> None:
        """Let it be sent ``count`` batches more. 0: it has read all that came, and waits."""
        if not count:
            self.unread_bytes = 0
        self.asked_later += count
        self.credit += count
        self.ahead = max(self.ahead, self.credit + self.sent - 1)

    def can_send(self, cost: int, limit: int) -> bool:
        """Return True if a batch of ``cost`` bytes may be sent, where ``limit`` bytes may be sent and not used. One
        beside the batch in its hand may always be, however large both are."""
        at_least = self.sent < 2 and not self.unread_bytes
        return self.credit > 0 and (at_least or self.unread_bytes + self.sent_bytes + cost <= limit)

    def pop_next(self) -> InFlightBatch:
        """Count the next batch that is kept for it as sent, and return it."""
        batch = self.in_flight[self.sent]
        self.sent += 1
        self.sent_bytes += batch.cost
        self.credit -= 1
        return batch

    def join(self, begin: m.BeginPass, early_ends: Iterable[int]) -> list[int]:
        """Go on with the run of ``begin``; the trainer knows the ``early_ends`` of these files. Return the numbers of
        the batches that it has used."""
        used = batches_received(begin, self.in_flight)
        self.in_flight = deque(without_received(self.in_flight, used))
        self.in_flight_bytes = sum(batch.cost for batch in self.in_flight)
        self.move(TrainerEvent.JOIN)
        self.first_unused = max(self.first_unused, begin.first_batch)
        self._forget_sent()
        self.used_count = 0
        self.prefetch = begin.credit
        self.credit = begin.credit + self.asked_later  # while the run could not begin
        self.ahead = max(begin.credit, self.credit - 1)
        self.checksums, self.told, self.met = None, set(early_ends), 0  # of a run before, some may not have been read
        return used

    def _forget_told(self) -> None:
        self.point, self.checksums, self.told, self.met = None, None, set(), 0

    def disconnect(self) -> None:
        """Forget the connection: what was sent and not used is sent again to the process that comes next."""
        self.peer = b""
        self.sent = self.sent_bytes = self.unread_bytes = self.used_count = self.credit = 0
        self._forget_told()
        self.pending = None

    def reset(self) -> None:
        """Reset it for the next pass."""
        self.move(TrainerEvent.RESET)
        self.clear()
        self.used_count = self.credit = self.first_unused = 0
        self._forget_told()

    def head(self, batch: InFlightBatch, at: StreamState) -> tuple[m.BatchHead, list[Any]]:
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
        if self.met != len(met := batch.group.after.early_ends):
            early_ends = to_frames(to_list({file: met[file] for file in met if file not in self.told}))
            self.told.update(met)
            self.met = len(met)
        head = m.BatchHead(
            self.run, cut.index, len(picked), cut.size, cut.pool_weight, cut.padding, at.tail[1], at.batch,
            at.acknowledged_ahead, {} if point is None else point.to_wire(), len(early_ends), batch.batch.bucket,
            checksum_records=len(records) // RECORD_BYTES,
        )  # fmt: skip
        return head, [picked, records, *(() if point is None else (point.pool,)), *early_ends]
