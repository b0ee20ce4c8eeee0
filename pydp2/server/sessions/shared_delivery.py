"""Deliver each batch of a pass to whichever trainer asks first (``share="dynamic"``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pydp2.data.columns.checksum_log import NO_CHECKSUMS, LoggedChecksums, joined
from pydp2.order.snapshot import SnapshotPoint
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.server.sessions.delivery import Outcome
from pydp2.server.sessions.pass_runner import BatchGroup, PassEnded, PassRunner
from pydp2.server.sessions.rank_registry import RankRegistry
from pydp2.server.sessions.trainer import InFlightBatch, Trainer, batches_received, split_group, without_received
from pydp2.server.snapshots.job_snapshot import PassState

_MAX_CUT_AHEAD = 1000  # batches that may be used beyond one that is not


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
        own = trainer.sent < len(trainer.in_flight)
        if not (own or self._waiting):
            return None
        batch = trainer.in_flight[trainer.sent] if own else self._waiting[0]
        if not trainer.can_send(batch.cost, self._limit):
            return None
        if not own:
            trainer.enqueue(self._waiting.popleft())
        return trainer.pop_next()

    def claim(self, trainer: Trainer) -> None:
        """Do nothing: no batch is kept for a trainer that is not there."""

    def release(self, trainer: Trainer) -> None:
        self._waiting = deque(sorted((*self._waiting, *trainer.take_back()), key=lambda batch: batch.index))

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
        unused = [*self._waiting, *(batch for trainer in self._trainers.values() for batch in trainer.in_flight)]
        return min(unused, key=lambda batch: batch.index, default=None)

    def position_of(self, trainer: Trainer) -> int:
        return self.first_unused

    def first_missing(self, trainer: Trainer) -> int:
        return trainer.in_flight[0].first if trainer.in_flight else max(self._next, trainer.first_unused)

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
        return not self._waiting and not any(each.in_flight for each in self._trainers.values())

    def batch_count(self, trainer: Trainer, end: PassEnded) -> int:
        return end.batches

    def late_trainers(self) -> tuple[list[Trainer], bool]:
        return [], False
