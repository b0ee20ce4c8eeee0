"""Deliver the batches of a pass to the ranks of a job in turn: batch ``n`` belongs to rank ``n % world``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from math import inf

from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.server.sessions.delivery import Outcome
from pydp2.server.sessions.pass_runner import BatchGroup, PassEnded, PassRunner
from pydp2.server.sessions.rank_registry import RankRegistry
from pydp2.server.sessions.trainer import InFlightBatch, Trainer, split_group
from pydp2.server.sessions.unclaimed import UnclaimedBatches
from pydp2.server.snapshots.job_snapshot import PassState

# Groups that may wait for a rank, besides the last one of a pass: so many, and twice what any rank asks for at a time;
# for a rank that is not there, twice what any rank asked for at first.
_WINDOW = 4
_MAX_STATES = 256  # between one look at which are still needed and the next


class RankedDelivery:
    """Batches of a pass of ``runner`` on their way to the ranks of ``registry``. A rank may have up to ``limit``
    bytes that it was sent and has not used."""

    unfinished_states = frozenset({PassState.BEFORE, PassState.IN})

    def __init__(self, registry: RankRegistry, runner: PassRunner, limit: int) -> None:
        self._registry = registry
        self._trainers = registry.trainers
        self._runner = runner
        self._limit = limit
        self._opened = 0  # where the pass began, or was taken up
        self._position = 0  # all batches before this one are cut
        self._states: deque[StreamState] = deque()  # where those that are behind may stand
        self._ahead: deque[Outcome] = deque()  # what comes next, as far as it was looked at
        self._unclaimed = UnclaimedBatches()

    def begin(self, start: StreamState) -> None:
        self._opened = self._position = start.batch
        self._states = deque([replace(start, acknowledged_ahead=[])])

    def clear(self) -> None:
        self._unclaimed.clear()
        for one in self._ahead:
            for batch in one.batches if isinstance(one, BatchGroup) else ():
                batch.rows.release()
        self._ahead.clear()

    def cut(self, most: int) -> Outcome | None:
        if self._registry.alone:
            return self._runner.next_group(most)
        if self._blocked_by_slow():
            return self._cut_last(most)
        return self._ahead.popleft() if self._ahead else self._runner.next_group(most, self._absent_room())

    def _absent_room(self) -> float:
        """Return how many bytes may be cut for ranks that are not there: for all of them together, as many as the pool
        may have."""
        if not self._registry.absent:
            return inf
        there = len(self._trainers) * self._limit
        known = sum(ready.cost for one in self._ahead if isinstance(one, BatchGroup) for ready in one.batches)
        return self._runner.plan.pool_bytes + there - self._unclaimed.nbytes - known

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
        return self._is_unclaimed_full() or any(self._is_full(each, window) for each in self._trainers.values())

    def _window(self) -> int:
        return _WINDOW + 2 * max((each.ahead for each in self._trainers.values()), default=0)

    def _is_unclaimed_full(self) -> bool:
        """Return True if the others wait for ranks that are not there."""
        return len(self._unclaimed) >= _WINDOW + 2 * max((each.prefetch for each in self._trainers.values()), default=0)

    def _is_full(self, trainer: Trainer, window: int) -> bool:
        """Return True if the others wait for ``trainer``."""
        if trainer.state is PassState.LEFT:
            return False
        return len(trainer.in_flight) >= window or (
            len(trainer.in_flight) > 1 and trainer.in_flight_bytes >= self._limit
        )

    def queue(self, group: BatchGroup) -> None:
        self._position = group.after.batch
        if not self._registry.alone:  # a sole trainer knows where it stands
            self._states.append(group.after)
            if len(self._states) > _MAX_STATES:
                self.state()
        unclaimed: dict[int, InFlightBatch] = {}
        for rank, batch in enumerate(split_group(group)):
            trainer = self._trainers.get(rank)
            if trainer is None and rank not in self._registry.passed_through:
                unclaimed[rank] = batch
            elif trainer is None or trainer.state is PassState.LEFT or batch.index < trainer.first_unused:
                batch.release()
            else:
                trainer.enqueue(batch)
        self._unclaimed.add(unclaimed)

    def next_for(self, trainer: Trainer) -> InFlightBatch | None:
        if trainer.sent == len(trainer.in_flight) or not trainer.can_send(
            trainer.in_flight[trainer.sent].cost, self._limit
        ):
            return None
        return trainer.pop_next()

    def claim(self, trainer: Trainer) -> None:
        for batch in self._unclaimed.claim(trainer.rank):
            trainer.enqueue(batch)

    def release(self, trainer: Trainer) -> None:
        trainer.clear()

    def can_join(self, trainer: Trainer, begin: m.BeginPass) -> bool:
        return begin.first_batch + trainer.rank >= self._opened

    def join(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        trainer.join(begin, start.early_ends)

    def acknowledge(self, batches: Iterable[int]) -> None:
        """Do nothing: where a rank stands follows from the batches that it still has."""

    def position_of(self, trainer: Trainer) -> int:
        return self.first_missing(trainer)

    def first_missing(self, trainer: Trainer) -> int:
        return trainer.in_flight[0].first if trainer.in_flight else max(self._position, trainer.first_unused)

    def state(self) -> StreamState:
        firsts = [each.in_flight[0].first for each in self._trainers.values() if each.in_flight]
        low = min(firsts, default=self._position)
        if (first := self._unclaimed.first) is not None:
            low = min(low, first)
        while len(self._states) > 1 and self._states[1].batch <= low:
            self._states.popleft()
        return self._states[0]

    def state_after(self, batch: InFlightBatch) -> StreamState:
        return batch.group.after

    def is_drained(self) -> bool:
        return True

    def batch_count(self, trainer: Trainer, end: PassEnded) -> int:
        return max(0, -(-(end.batches - trainer.rank) // self._registry.world))

    def late_trainers(self) -> tuple[list[Trainer], bool]:
        window = self._window()
        absent = self._registry.absent > 0 and (self._is_unclaimed_full() or self._runner.pool_over_limit)
        return [each for each in self._trainers.values() if self._is_full(each, window)], absent
