"""Send trainers their batches: how many each may be sent, what of the state goes with them, how they are packed.

A batch of a trainer waits in its :class:`Flow` until the trainer has credit for it. When it goes out,
:class:`StateFeed` says which parts of the state are new to the trainer. Its message then waits in the :class:`Outbox`
of the job, where several small batches of a trainer become one message. The batch is kept until it is used, because a
connection may break at any time: then it is sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from pydp2.data.columns.checksum_log import RECORD_BYTES, LoggedChecksums
from pydp2.data.rowstore.batch_rows import BatchRows, RowView, concat_rows
from pydp2.order.snapshot import SnapshotPoint
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import MAX_BATCHES, MAX_PACK_BYTES, can_follow, pack_heads
from pydp2.protocol.early_ends import to_frames, to_list
from pydp2.server.jobs.groups import BatchGroup, CutBatch

OutMessage = tuple[bytes, m.Message, Sequence[Any]]
"""To whom, what, and its frames; those of a BatchHead begin with the :class:`BatchRows` of its rows, their origins and
new records of checksums; a message has the origins of all its batches in one frame, and the checksums in another."""
PackedMessage = tuple[bytes, m.Message, Sequence[Any], list[m.BatchHead]]
"""To whom, what, its frames, and the batches that it announces."""


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


def split_group(group: BatchGroup, peers: int = 1) -> list[InFlightBatch]:
    """Return each batch of ``group`` by itself: none keeps the rows of another. Each comes ``peers`` times, as its rank
    has so many trainers; its rows are in memory once."""
    shared, first = group, group.batches[0].cut.index
    if len(group.batches) > 1:
        shared = group._replace(batches=[])
    if peers > 1:
        for batch in group.batches:
            for _ in range(peers - 1):
                batch.rows.retain()
    return [InFlightBatch(batch, shared, first, batch.cost) for batch in group.batches for _ in range(peers)]


def without_received(begin: m.BeginPass, batches: Iterable[InFlightBatch]) -> tuple[deque[InFlightBatch], list[int]]:
    """Return those of ``batches`` that the trainer which says ``begin`` has not had, and the numbers of the others,
    which are released."""
    kept: deque[InFlightBatch] = deque()
    received = []
    for batch in batches:
        if batch.index < begin.first_batch or batch.index in begin.acknowledged_ahead:
            received.append(batch.index)
            batch.release()
        else:
            kept.append(batch)
    return kept, received


@dataclass(slots=True)
class Flow:
    """Batches of one trainer that are not used, in order, and how many more it may be sent: ``credit`` counts batches,
    ``limit`` the bytes that it may have been sent and not used."""

    limit: int = 0
    in_flight: deque[InFlightBatch] = field(default_factory=deque)
    in_flight_bytes: int = 0  # what they cost
    sent: int = 0  # of them, in the present run
    sent_bytes: int = 0
    unread_bytes: int = 0  # sent in earlier runs of this connection, where they may still lie
    used_count: int = 0  # batches of the present run that are used
    taken_batches: int = 0  # used since take_used()
    taken_samples: int = 0
    credit: int = 0
    prefetch: int = 0  # batches that it asked for when it joined
    ahead: int = 0  # the most that it asked for at a time beyond the one that it takes next
    asked_later: int = 0  # batches that it asked for in its present run, beside those that it asked for at first
    starved_since: float = inf  # time since which it has used all that was sent, and asks for more

    def enqueue(self, batch: InFlightBatch) -> None:
        """Keep a batch for the trainer."""
        self.in_flight.append(batch)
        self.in_flight_bytes += batch.cost

    @property
    def first(self) -> int | None:
        """First batch of the group of the first batch that is not used; None: there is none."""
        return self.in_flight[0].first if self.in_flight else None

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
            self.taken_batches += 1
            self.taken_samples += len(batch.batch.cut.row_ids) - batch.batch.cut.padding
            self.unread_bytes = 0  # that came before it
            numbers.append(batch.index)
            batch.release()
        return numbers

    def take_used(self) -> tuple[int, int]:
        """Return once how many batches, and samples of them, are used since the last call."""
        used = self.taken_batches, self.taken_samples
        self.taken_batches = self.taken_samples = 0
        return used

    def add_credit(self, count: int) -> None:
        """Let the trainer be sent ``count`` batches more. 0: it has read all that came, and waits."""
        if not count:
            self.unread_bytes = 0
        self.asked_later += count
        self.credit += count
        self.ahead = max(self.ahead, self.credit + self.sent - 1)

    def can_send(self, cost: int) -> bool:
        """Return True if a batch of ``cost`` bytes may be sent. One beside the batch in the trainer's hand may always
        be, however large both are."""
        at_least = self.sent < 2 and not self.unread_bytes
        return self.credit > 0 and (at_least or self.unread_bytes + self.sent_bytes + cost <= self.limit)

    @property
    def is_all_sent(self) -> bool:
        """True if all batches that it has were sent in this run."""
        return self.sent == len(self.in_flight)

    @property
    def lacks_batch(self) -> bool:
        """True if the trainer could be sent a batch that is not cut yet."""
        return self.is_all_sent and self.can_send(0)

    def take_next(self) -> InFlightBatch | None:
        """Count the next batch as sent, and return it. None: there is none, or it may not be sent now."""
        if self.is_all_sent:
            return None
        batch = self.in_flight[self.sent]
        if not self.can_send(batch.cost):
            return None
        self.starved_since = inf
        self.sent += 1
        self.sent_bytes += batch.cost
        self.credit -= 1
        return batch

    def begin_run(self, begin: m.BeginPass) -> list[int]:
        """Go on with the run of ``begin``. Return the numbers of the batches that the trainer has used."""
        self.in_flight, used = without_received(begin, self.in_flight)
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
        """Return the message that announces ``batch``, and its frames: rows, origins, new records of checksums, and
        what else is new. ``at``: where the trainer is once it has it."""
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
            has_origins=cut.origins is not None,
        )
        origins = b"" if cut.origins is None else cut.origins.tobytes()
        return head, [picked, origins, records, *(() if point is None else (point.pool,)), *early_ends]


@dataclass(slots=True)
class _MessagePack:
    heads: list[m.BatchHead]
    picked: list[BatchRows]
    origins: list[bytes]
    checksums: list[bytes]
    behind: Sequence[Any]  # frames of the first that follow the columns, the origins and the checksums
    shared_rows: int  # so many rows has the cache where they lie, if their numbers are enough
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self._carries(self.picked[0]) + len(self.origins[0])

    def _carries(self, picked: BatchRows) -> int:
        return 8 * len(picked) if self.shared_rows else picked.store.carried_bytes(picked.row_ids, picked.nbytes)

    def takes(self, head: m.BatchHead, frames: Sequence[Any], shared_rows: int) -> bool:
        picked, origins, checksums, *_ = frames
        more = self._carries(picked) + len(origins)
        alike = bool(shared_rows) == bool(self.shared_rows)
        fits = len(self.heads) < MAX_BATCHES and self.nbytes + more <= MAX_PACK_BYTES
        if not (alike and fits and can_follow(head, self.heads[0])):
            return False
        self.shared_rows = max(self.shared_rows, shared_rows)
        self.heads.append(head)
        self.picked.append(picked)
        self.origins.append(origins)
        self.checksums.append(checksums)
        self.nbytes += more
        return True


class Outbox:
    """Messages to the trainers of a job, in order. They hold the rows of their batches. ``has_ranks``: ranks share the
    job, and what no rank can tell a service that is started again has to be written down."""

    def __init__(self, *, has_ranks: bool = False) -> None:
        self.messages: deque[OutMessage] = deque()
        self.snapshot_due = False
        """Something happened that a service which keeps states has to write down before it sends these messages."""
        self._has_ranks = has_ranks

    def send(self, peer: bytes, message: m.Message, frames: Sequence[Any] = ()) -> None:
        """Add a message to ``peer``, if there is one."""
        if peer:
            self.messages.append((peer, message, frames))

    def note_change(self) -> None:
        """Note that something happened that no rank could tell to a service that is started again."""
        self.snapshot_due = self._has_ranks

    def drain(self, shared_rows: Callable[[bytes, BatchRows], int] | None = None) -> Iterator[PackedMessage]:
        """Remove all messages, and yield each that is to be sent. Each peer gets its own in order. A message has to be
        sent before the next one is asked for: then the rows of its batches, which it held, are released.

        ``shared_rows`` returns the number of rows from which a peer can gather those that were picked, so that it needs
        their numbers alone; 0: it cannot.
        """
        packs: dict[bytes, _MessagePack] = {}
        while self.messages:
            peer, message, frames = self.messages.popleft()
            pack = packs.get(peer)
            if isinstance(message, m.BatchHead):
                picked, origins, checksums, *behind = frames
                known = 0 if shared_rows is None else shared_rows(peer, picked)
                if pack is not None and pack.takes(message, frames, known):
                    continue
                packs[peer] = _MessagePack([message], [picked], [origins], [checksums], behind, known)
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
    head, rows = pack_heads(pack.heads), concat_rows(pack.picked)
    joined = (b"".join(pack.origins), b"".join(pack.checksums))
    behind = [*filter(None, joined), *pack.behind]
    if pack.shared_rows:
        head.shared_rows = pack.shared_rows  # of this message alone: the head was made for it
        return peer, head, [rows.handles(), *behind], pack.heads
    if (split := rows.store.split(rows.row_ids)) is not None:
        head.elsewhere, head.nbytes = split.elsewhere, sum(picked.padded_bytes for picked in pack.picked)
        return peer, head, [RowView(split.store, split.here), split.order, split.handles, *behind], pack.heads
    return peer, head, [rows, *behind], pack.heads
