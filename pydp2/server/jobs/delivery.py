"""Deliver the batches of a pass to the trainers of a job (docs/order.md, "Ranks").

There are three ways: a sole rank has all of them (:class:`SoloDelivery`), each rank has its batches in turn
(:class:`RankedDelivery`), or a batch goes to whichever trainer asks first (:class:`SharedDelivery`). With all of them a
batch is kept until the trainer that it went to has used it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Protocol

from pydp2.data.columns.checksum_log import NO_CHECKSUMS, LoggedChecksums, joined
from pydp2.order.snapshot import SnapshotPoint
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.server.jobs.batches import (
    BatchGroup,
    InFlightBatch,
    PassBroken,
    PassEnded,
    batches_received,
    split_group,
    without_received,
)
from pydp2.server.jobs.membership import RankRegistry, Trainer
from pydp2.server.jobs.pass_runner import PassRunner
from pydp2.server.snapshots.job_snapshot import PassState

# Groups that may wait for a rank, besides the last one of a pass: so many, and twice what any rank asks for at a time;
# for a rank that is not there, twice what any rank asked for at first.
_WINDOW = 4
_MAX_STATES = 256  # between one look at which are still needed and the next
_MAX_CUT_AHEAD = 1000  # batches that a dynamic job may have used beyond one that is not

Outcome = BatchGroup | PassEnded | PassBroken
"""Next step of a pass: a group of batches, its end, or its failure."""


class Delivery(Protocol):
    """Batches of a pass that were cut and not used, and the trainers that they belong to."""

    unfinished_states: frozenset[PassState]
    """The states in which a trainer keeps the pass from ending."""

    def begin(self, start: StreamState) -> None:
        """Begin a pass, or go on with one, at ``start``."""
        ...

    def clear(self) -> None:
        """Drop all batches that wait: the pass is over."""
        ...

    def cut(self, most: int) -> Outcome | None:
        """Return what comes next in the pass, looking at about ``most`` batches. None: there is nothing now, or a
        trainer is so far behind that the others wait for it."""
        ...

    def queue(self, group: BatchGroup) -> None:
        """Keep the batches of ``group`` for their trainers."""
        ...

    def next_for(self, trainer: Trainer) -> InFlightBatch | None:
        """Return the batch that goes to ``trainer`` now and count it as sent. None: there is none, or ``trainer`` may
        not be sent one."""
        ...

    def claim(self, trainer: Trainer) -> None:
        """Give ``trainer``, which has just connected, the batches that were kept for its rank."""
        ...

    def release(self, trainer: Trainer) -> None:
        """Take back the batches that ``trainer`` has not used: it does not want them."""
        ...

    def can_join(self, trainer: Trainer, begin: m.BeginPass) -> bool:
        """Return True if all batches that ``trainer`` needs from ``begin`` on are still to be had."""
        ...

    def join(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        """Go on with ``trainer`` where ``begin`` says, whose position is ``start``."""
        ...

    def acknowledge(self, batches: Iterable[int]) -> None:
        """Note that the batches with these numbers are used."""
        ...

    def position_of(self, trainer: Trainer) -> int:
        """Return the number of the batch that ``trainer`` goes on at when it connects."""
        ...

    def first_missing(self, trainer: Trainer) -> int:
        """Return the first batch that ``trainer`` may still have to be sent."""
        ...

    def state(self) -> StreamState:
        """Return where the pass can be taken up so that no trainer misses a batch that it has not used; what is known
        of its files and buckets is left out."""
        ...

    def state_after(self, batch: InFlightBatch) -> StreamState:
        """Return the state of a trainer once it has used ``batch``; what is known of files and buckets may be left
        out."""
        ...

    def is_drained(self) -> bool:
        """Return True if trainers that have used their batches may be told that the pass is over."""
        ...

    def batch_count(self, trainer: Trainer, end: PassEnded) -> int:
        """Return the number of batches that the end of the pass names to ``trainer``."""
        ...

    def late_trainers(self) -> tuple[list[Trainer], bool]:
        """Return the trainers that keep the others from going on, and whether ranks that are not there do, too."""
        ...


class SoloDelivery:
    """All batches of a pass of ``runner``, on their way to the only rank of ``registry``. It may have up to ``limit``
    bytes that it was sent and has not used, and says itself where it stands."""

    unfinished_states = frozenset({PassState.BEFORE, PassState.IN})

    def __init__(self, registry: RankRegistry, runner: PassRunner, limit: int) -> None:
        self._registry = registry
        self._trainers = registry.trainers
        self._runner = runner
        self._limit = limit
        self._opened = 0  # where the pass began, or was taken up
        self._position = 0  # all batches before this one are cut

    def begin(self, start: StreamState) -> None:
        self._opened = self._position = start.batch

    def clear(self) -> None:
        """Do nothing: batches wait at trainers alone."""

    def cut(self, most: int) -> Outcome | None:
        return self._runner.next_group(most)

    def queue(self, group: BatchGroup) -> None:
        self._position = group.after.batch
        for batch in split_group(group):
            self._enqueue(self._trainers[0], batch)

    def _enqueue(self, trainer: Trainer, batch: InFlightBatch) -> None:
        if trainer.state is PassState.LEFT or batch.index < trainer.first_unused:
            batch.release()
        else:
            trainer.flow.enqueue(batch)

    def next_for(self, trainer: Trainer) -> InFlightBatch | None:
        batch = trainer.flow.next_unsent
        if batch is None or not trainer.flow.can_send(batch.cost, self._limit):
            return None
        return trainer.flow.pop_next()

    def claim(self, trainer: Trainer) -> None:
        """Do nothing: no batch is kept for a rank that is not there."""

    def release(self, trainer: Trainer) -> None:
        trainer.flow.clear()

    def can_join(self, trainer: Trainer, begin: m.BeginPass) -> bool:
        return begin.first_batch + trainer.rank >= self._opened

    def join(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        trainer.join(begin, start.early_ends)

    def acknowledge(self, batches: Iterable[int]) -> None:
        """Do nothing: where a rank stands follows from the batches that it still has."""

    def position_of(self, trainer: Trainer) -> int:
        return self.first_missing(trainer)

    def first_missing(self, trainer: Trainer) -> int:
        queued = trainer.flow.in_flight
        return queued[0].first if queued else max(self._position, trainer.first_unused)

    def state(self) -> StreamState:
        return StreamState(self._runner.pass_id, self._position)

    def state_after(self, batch: InFlightBatch) -> StreamState:
        return batch.group.after

    def is_drained(self) -> bool:
        return True

    def batch_count(self, trainer: Trainer, end: PassEnded) -> int:
        return max(0, -(-(end.batches - trainer.rank) // self._registry.world))

    def late_trainers(self) -> tuple[list[Trainer], bool]:
        return [], False


class RankedDelivery(SoloDelivery):
    """Batches of a pass of ``runner``, on their way to the ranks of ``registry``: batch ``n`` belongs to rank
    ``n % world``. Batches of ranks that are not there are kept, and a rank that is behind holds the others up."""

    def __init__(self, registry: RankRegistry, runner: PassRunner, limit: int) -> None:
        super().__init__(registry, runner, limit)
        self._states: deque[StreamState] = deque()  # where those that are behind may stand
        self._ahead: deque[Outcome] = deque()  # what comes next, as far as it was looked at
        self._unclaimed = UnclaimedBatches()

    def begin(self, start: StreamState) -> None:
        super().begin(start)
        self._states = deque([replace(start, acknowledged_ahead=[])])

    def clear(self) -> None:
        self._unclaimed.clear()
        for outcome in self._ahead:
            for batch in outcome.batches if isinstance(outcome, BatchGroup) else ():
                batch.rows.release()
        self._ahead.clear()

    def cut(self, most: int) -> Outcome | None:
        if self._blocked_by_slow():
            return self._cut_last(most)
        return self._ahead.popleft() if self._ahead else self._runner.next_group(most, self._absent_room())

    def _absent_room(self) -> float:
        """Return how many bytes of batches may still be cut for absent ranks: ``pool_bytes`` for all of them together,
        and what connected ranks may have."""
        if not self._registry.absent:
            return inf
        connected = len(self._trainers) * self._limit
        groups = (outcome for outcome in self._ahead if isinstance(outcome, BatchGroup))
        ahead = sum(batch.cost for group in groups for batch in group.batches)
        return self._runner.plan.pool_bytes + connected - self._unclaimed.nbytes - ahead

    def _cut_last(self, most: int) -> Outcome | None:
        """Return what comes next if it is the last group of the pass, or its end. These wait for no rank that is
        behind, so ranks that have all of their batches need not wait for it either."""
        while len(self._ahead) < 2 and not (self._ahead and not isinstance(self._ahead[-1], BatchGroup)):
            outcome = self._runner.next_group(most, self._absent_room())
            if outcome is None:
                return None
            self._ahead.append(outcome)
        return None if isinstance(self._ahead[-1], BatchGroup) else self._ahead.popleft()

    def _blocked_by_slow(self) -> bool:
        """Return True if so much waits for one rank that the others wait for it."""
        window = self._window()
        return self._is_unclaimed_full() or any(self._is_full(trainer, window) for trainer in self._trainers.values())

    def _window(self) -> int:
        return _WINDOW + 2 * max((trainer.flow.ahead for trainer in self._trainers.values()), default=0)

    def _is_unclaimed_full(self) -> bool:
        """Return True if the others wait for ranks that are not there."""
        return len(self._unclaimed) >= _WINDOW + 2 * max(
            (trainer.flow.prefetch for trainer in self._trainers.values()), default=0
        )

    def _is_full(self, trainer: Trainer, window: int) -> bool:
        """Return True if the others wait for ``trainer``."""
        if trainer.state is PassState.LEFT:
            return False
        flow = trainer.flow
        return len(flow.in_flight) >= window or (len(flow.in_flight) > 1 and flow.in_flight_bytes >= self._limit)

    def queue(self, group: BatchGroup) -> None:
        self._position = group.after.batch
        self._states.append(group.after)
        if len(self._states) > _MAX_STATES:
            self.state()
        unclaimed: dict[int, InFlightBatch] = {}
        for rank, batch in enumerate(split_group(group)):
            if rank in self._trainers:
                self._enqueue(self._trainers[rank], batch)
            elif rank in self._registry.passed_through:
                batch.release()
            else:
                unclaimed[rank] = batch
        self._unclaimed.add(unclaimed)

    def claim(self, trainer: Trainer) -> None:
        for batch in self._unclaimed.claim(trainer.rank):
            trainer.flow.enqueue(batch)

    def state(self) -> StreamState:
        firsts = [trainer.flow.in_flight[0].first for trainer in self._trainers.values() if trainer.flow.in_flight]
        low = min(firsts, default=self._position)
        if (first := self._unclaimed.first) is not None:
            low = min(low, first)
        while len(self._states) > 1 and self._states[1].batch <= low:
            self._states.popleft()
        return self._states[0]

    def late_trainers(self) -> tuple[list[Trainer], bool]:
        window = self._window()
        absent = self._registry.absent > 0 and (self._is_unclaimed_full() or self._runner.pool_over_limit)
        return [trainer for trainer in self._trainers.values() if self._is_full(trainer, window)], absent


class UnclaimedBatches:
    """Batches that wait for ranks that have not come in this pass: of each group, its batches by rank."""

    def __init__(self) -> None:
        self._groups: list[dict[int, InFlightBatch]] = []
        self.nbytes = 0
        """Bytes that all batches in it count for."""

    def __len__(self) -> int:
        """Groups: so many batches wait for a rank at most."""
        return len(self._groups)

    @property
    def first(self) -> int | None:
        """First batch of the first group, None if there is none."""
        return next(iter(self._groups[0].values())).first if self._groups else None

    def add(self, batches: Mapping[int, InFlightBatch]) -> None:
        """Keep the ``batches`` of a group that belong to ranks that are not there."""
        if batches:
            self._groups.append(dict(batches))
            self.nbytes += sum(batch.cost for batch in batches.values())

    def claim(self, rank: int) -> list[InFlightBatch]:
        """Remove and return what waits for ``rank``, which has come, in order."""
        mine = [held for batches in self._groups if (held := batches.pop(rank, None)) is not None]
        self._groups = [batches for batches in self._groups if batches]
        self.nbytes -= sum(held.cost for held in mine)
        return mine

    def clear(self) -> None:
        """Drop all batches: the pass is over."""
        for batches in self._groups:
            for held in batches.values():
                held.release()
        self._groups.clear()
        self.nbytes = 0


class SharedDelivery:
    """Batches of a pass of ``runner`` on their way to the trainers of ``registry``, each of which may have up to
    ``limit`` bytes that it was sent and has not used. A position is the first batch that is not used, and those used
    beyond it (docs/order.md, "Ranks")."""

    unfinished_states = frozenset({PassState.IN})

    def __init__(self, registry: RankRegistry, runner: PassRunner, limit: int) -> None:
        self._trainers = registry.trainers
        self._runner = runner
        self._limit = limit
        self._waiting: deque[InFlightBatch] = deque()
        self._next = 0  # the batch that is cut next
        self._used: set[int] = set()
        self._points: list[tuple[SnapshotPoint | None, LoggedChecksums]] = []  # with checksums up to the next one
        self._loaded: list[tuple[int, LoggedChecksums]] = []  # of states, needed up to a batch that is not cut yet
        self._checksums = NO_CHECKSUMS  # all of them, since the first point
        self._tail_consumed = 0  # of the tail, before the batch that is cut next

    def begin(self, start: StreamState) -> None:
        self.clear()
        self._next = start.batch
        self._tail_consumed = 0
        self._used = set(start.acknowledged_ahead)
        self._points = [(start.point, start.checksums)]
        self._loaded = []
        self._checksums = start.checksums
        self._note_loaded(start)

    def _note_loaded(self, state: StreamState) -> None:
        """Keep the checksums of ``state`` while batches that were used before are not cut here."""
        if state.acknowledged_ahead:
            self._loaded.append((max(state.acknowledged_ahead), state.checksums))
            self._checksums = self._checksums.extended(state.checksums.since(None))

    def clear(self) -> None:
        for batch in self._waiting:
            batch.release()
        self._waiting.clear()

    def cut(self, most: int) -> Outcome | None:
        # Beyond the limit, the trainer that has the first batch uses it, or its lease ends. What waits is too large for
        # the trainers that ask.
        if self._waiting or self._next - self.first_unused >= _MAX_CUT_AHEAD:
            return None
        return self._runner.next_group()

    def queue(self, group: BatchGroup) -> None:
        self._waiting += split_group(group)
        after = group.after
        self._next, self._tail_consumed = after.batch, after.tail[1]
        point, known = self._points.pop()
        if point is after.point:
            records = after.checksums.since(known)
        else:
            rest = group.checksums_before.since(known)
            self._points.append((point, known.extended(rest)))
            records = rest + after.checksums.since(None)
        self._points.append((after.point, after.checksums))
        self._checksums = self._checksums.extended(records)

    def next_for(self, trainer: Trainer) -> InFlightBatch | None:
        flow = trainer.flow
        batch = flow.next_unsent
        if batch is None and not self._waiting:
            return None
        if not flow.can_send((self._waiting[0] if batch is None else batch).cost, self._limit):
            return None
        if batch is None:
            flow.enqueue(self._waiting.popleft())
        return flow.pop_next()

    def claim(self, trainer: Trainer) -> None:
        """Do nothing: no batch is kept for a trainer that is not there."""

    def release(self, trainer: Trainer) -> None:
        self._waiting = deque(sorted((*self._waiting, *trainer.flow.take_back()), key=lambda batch: batch.index))

    def can_join(self, trainer: Trainer, begin: m.BeginPass) -> bool:
        return True

    def join(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        self._used.update(trainer.join(begin, start.early_ends))
        self._note_loaded(start)
        received = batches_received(begin, self._waiting)  # it was given up for lost, and these were taken back
        self._used.update(received)
        self._waiting = deque(without_received(self._waiting, received))

    def acknowledge(self, batches: Iterable[int]) -> None:
        self._used.update(batches)

    @property
    def first_unused(self) -> int:
        """Number of the first batch that is not used."""
        first = self._first()
        return self._next if first is None else first.index

    def _first(self) -> InFlightBatch | None:
        unused = [*self._waiting, *(batch for trainer in self._trainers.values() for batch in trainer.flow.in_flight)]
        return min(unused, key=lambda batch: batch.index, default=None)

    def position_of(self, trainer: Trainer) -> int:
        return self.first_unused

    def first_missing(self, trainer: Trainer) -> int:
        return trainer.flow.in_flight[0].first if trainer.flow.in_flight else max(self._next, trainer.first_unused)

    def state(self) -> StreamState:
        first = self._first()
        low, consumed = self._next, self._tail_consumed
        if first is not None:
            cut, low = first.batch.cut, first.index
            consumed = max(0, cut.tail_consumed - len(cut.row_ids) + cut.padding)
        while len(self._points) > 1 and (later := self._points[1][0]) is not None and later.batch_index <= low:
            del self._points[0]
            self._loaded = [(last, logged) for last, logged in self._loaded if last >= self._next]
            self._checksums = joined(logged for _, logged in (*self._points, *self._loaded))
        self._used = {index for index in self._used if index > low}
        return StreamState(
            self._runner.pass_id, low, sorted(self._used), {}, self._points[0][0], self._checksums, {}, (low, consumed)
        )

    def state_after(self, batch: InFlightBatch) -> StreamState:
        return self.state()

    def is_drained(self) -> bool:
        return not self._waiting and not any(trainer.flow.in_flight for trainer in self._trainers.values())

    def batch_count(self, trainer: Trainer, end: PassEnded) -> int:
        return end.batches

    def late_trainers(self) -> tuple[list[Trainer], bool]:
        return [], False
