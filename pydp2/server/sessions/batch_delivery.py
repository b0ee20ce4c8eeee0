"""Dealing out the batches of a pass: who gets which, who waits for whom (docs/order.md, "Ranks").

A batch is kept until the trainer that it went to has used it: asked for the next one, or left in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any

from pydp2.errors import Error, to_wire
from pydp2.protocol import messages as m
from pydp2.server.sessions.pass_runner import BatchGroup, PassBroken, PassEnded, PassRunner
from pydp2.server.sessions.rank_registry import RankRegistry
from pydp2.server.sessions.shared_delivery import SharedDelivery
from pydp2.server.sessions.trainer import InFlightBatch, Trainer, split_group
from pydp2.server.sessions.unclaimed import UnclaimedBatches
from pydp2.server.snapshots.job_snapshot import PassState, ResumePoint

_WINDOW = 4  # groups, and twice what any rank asks for at a time, that may wait for a rank; and the last one of a pass
_MAX_GROUPS_AHEAD = 1000  # batches that may be used beyond one that is not, dynamic
_MAX_RESUME_POINTS = 64  # between one look at which are still needed and the next


class BatchDelivery(RankRegistry):
    """Deals the batches of ``job`` to its trainers. What is to be sent collects in ``out``."""

    def __init__(
        self, job: PassRunner, name: str, world: int, dynamic: bool, lease: float, prefetch_bytes: int
    ) -> None:
        super().__init__(name, world, dynamic, lease)
        self.job = job
        self.out: deque[tuple[bytes, m.Message, Sequence[Any]]] = deque()
        """Messages to be sent, and to whom."""
        self.in_pass = False
        self.snapshot_due = False
        """Something happened that has to be written down before more is sent, where states are kept."""
        self._limit = prefetch_bytes  # of what one trainer was sent and has not used, and of what waits for it
        self._position = 0  # before this batch all were cut
        self._resume_points: deque[ResumePoint] = deque()  # where those who are behind may stand
        self._early_ends: list[list[Any]] = []  # the last that were told
        self._end: PassEnded | PassBroken | None = None
        self._next: deque[BatchGroup | PassEnded | PassBroken] = deque()  # what comes next, as far as it was looked at
        self._unclaimed = UnclaimedBatches()
        self._shared = SharedDelivery(self.trainers)  # dynamic

    def _has_demand(self) -> bool:
        """Whether anybody can take a batch that there is not yet."""
        return any(
            each.state is PassState.IN and each.sent == len(each.in_flight) and each.can_send(0, self._limit)
            for each in self.trainers.values()
        )

    def _cut_group(self, most: int) -> BatchGroup | PassEnded | PassBroken | None:
        """What comes next for those who ask. None: nothing now, or those who are behind are too far behind."""
        if self.alone:
            return self.job.next_group(most)
        if self.dynamic:
            # beyond that, who holds the first one uses it, or its lease ends; and what waits is too large for who asks
            return None if self._shared or self._shared.cut_ahead >= _MAX_GROUPS_AHEAD else self.job.next_group()
        if self._blocked_by_slow():
            return self._cut_last(most)
        return self._next.popleft() if self._next else self.job.next_group(most, self._absent_room())

    def _absent_room(self) -> float:
        """What may be cut for ranks that are not there: of all of them together, as many bytes as the pool may have."""
        if not self.absent:
            return inf
        there = len(self.trainers) * self._limit
        known = sum(ready.cost for one in self._next if isinstance(one, BatchGroup) for ready in one.batches)
        return self.job.plan.pool_bytes + there - self._unclaimed.nbytes - known

    def _cut_last(self, most: int) -> BatchGroup | PassEnded | PassBroken | None:
        """What comes next, if it is the last group of the pass, or its end. That is kept back for nobody who is behind:
        so nobody has to be waited for by those who have all of theirs."""
        while len(self._next) < 2 and not (self._next and not isinstance(self._next[-1], BatchGroup)):
            outcome = self.job.next_group(most, self._absent_room())
            if outcome is None:
                return None
            self._next.append(outcome)
        return None if isinstance(self._next[-1], BatchGroup) else self._next.popleft()

    def _blocked_by_slow(self) -> bool:
        """Whether so much waits for a rank that the others wait for it."""
        window = self._window()
        return len(self._unclaimed) >= window or any(self._is_full(each, window) for each in self.trainers.values())

    def _window(self) -> int:
        return _WINDOW + 2 * max((each.ahead for each in self.trainers.values()), default=0)

    def _is_full(self, trainer: Trainer, window: int) -> bool:
        """Whether the others wait for ``trainer``."""
        if trainer.state is PassState.LEFT:
            return False
        return len(trainer.in_flight) >= window or (
            len(trainer.in_flight) > 1 and trainer.in_flight_bytes >= self._limit
        )

    def _queue_group(self, group: BatchGroup) -> None:
        self._position = group.after
        if len(group.early_ends) != len(self._early_ends):
            self._early_ends = group.early_ends
            self.snapshot_due = not self.alone
        batches = split_group(group)
        if self.dynamic:
            self._shared.add_batches(batches)
            return
        if not self.alone:  # its trainer knows where it stands
            self._resume_points.append(ResumePoint(group.after, group.tail_consumed, group.point))
            if len(self._resume_points) > _MAX_RESUME_POINTS:
                self._resume_point()
        unclaimed: dict[int, InFlightBatch] = {}
        for rank, held in enumerate(batches):
            trainer = self.trainers.get(rank)
            if trainer is None:
                if rank not in self._passed_through:
                    unclaimed[rank] = held
            elif trainer.state is not PassState.LEFT and held.index >= trainer.first_unused:
                trainer.enqueue(held)
        self._unclaimed.add(unclaimed)

    def _hand_out(self) -> None:
        for trainer in self.trainers.values():
            while trainer.state is PassState.IN and trainer.credit > 0:
                own = trainer.sent < len(trainer.in_flight)
                if not (own or self._shared):
                    break
                held = trainer.in_flight[trainer.sent] if own else self._shared.next_batch
                if not trainer.can_send(held.cost, self._limit):
                    break
                if not own:
                    trainer.enqueue(self._shared.pop_batch())
                trainer.pop_next()
                group = held.group
                edge = (
                    self._shared.resume_point()
                    if self.dynamic
                    else ResumePoint(group.after, group.tail_consumed, group.point)
                )
                self.out.append((trainer.peer, *trainer.head(held, edge)))

    def _finish(self) -> None:
        """Tell those who have used all of theirs that there is no more."""
        if self._end is None or (
            self.dynamic and (self._shared or any(each.in_flight for each in self.trainers.values()))
        ):
            return
        for trainer in self.trainers.values():
            if trainer.state is PassState.IN and not trainer.in_flight:
                if isinstance(self._end, PassBroken):
                    trainer.state = PassState.LEFT
                    self._fail(trainer, self._end.error)
                else:
                    trainer.state = PassState.ENDED
                    self.snapshot_due = not self.alone
                    end = self._end
                    count = end.batches if self.dynamic else max(0, -(-(end.batches - trainer.rank) // self.world))
                    self._tell(trainer, m.PassEnd(trainer.run, count, end.samples, end.dropped, end.uniform))

    def _late_trainers(self) -> tuple[list[Trainer], bool]:
        """Trainers that others wait for, and whether they wait for ranks that are not there."""
        trainers = self.trainers.values()
        if any(each.pending is not None for each in trainers):
            late = [
                each for each in trainers if each.pending is None and each.state in (PassState.BEFORE, PassState.IN)
            ]
            return late, self.absent > 0
        if not (self.in_pass and self._has_demand()):
            return [], False
        window = self._window()
        absent = self.absent > 0 and (len(self._unclaimed) >= window or self.job.pool_over_limit)
        return [each for each in trainers if self._is_full(each, window)], absent

    def _clear_pass(self) -> None:
        """The pass is over: what waits for anybody is let go."""
        self._shared.clear()
        self._unclaimed.clear()
        self._next.clear()
        self._passed_through.clear()
        for each in self.trainers.values():
            each.clear()

    # -- where they stand ------------------------------------------------------------------------------------------
    def _first_for(self, trainer: Trainer) -> int:
        """The first batch from which on nothing is missing for ``trainer``."""
        return trainer.in_flight[0].first if trainer.in_flight else max(self._position, trainer.first_unused)

    def _resume_point(self) -> ResumePoint:
        """Where the pass can be taken up so that nobody misses what it has not used."""
        if self.dynamic:
            return self._shared.resume_point()
        firsts = [each.in_flight[0].first for each in self.trainers.values() if each.in_flight]
        low = min(firsts, default=self._position)
        if (first := self._unclaimed.first) is not None:
            low = min(low, first)
        while len(self._resume_points) > 1 and self._resume_points[1].batch_index <= low:
            self._resume_points.popleft()
        return self._resume_points[0]

    def _acknowledge(self, numbers: list[int]) -> None:
        if self.dynamic:
            self._shared.acknowledge(numbers)

    # -- telling ---------------------------------------------------------------------------------------------------
    def _fail(self, trainer: Trainer, error: Error) -> None:
        self._tell(trainer, m.Failed(trainer.run, to_wire(error)))

    def _tell(self, trainer: Trainer, message: m.Message) -> None:
        if trainer.peer:
            self.out.append((trainer.peer, message, ()))
