"""Batches for whoever asks first: what is not handed out, and where a job stands when some are used out of turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from pydp2.order.snapshot import SnapshotPoint
from pydp2.protocol import messages as m
from pydp2.server.sessions.trainer import InFlightBatch, Trainer, batches_received
from pydp2.server.snapshots.job_snapshot import ResumePoint


class SharedDelivery:
    """The batches of a pass that ``trainers`` share. A position is the first batch that is not used, and those used
    beyond it (docs/order.md, "Ranks")."""

    def __init__(self, trainers: Mapping[int, Trainer]) -> None:
        self._members = trainers
        self._waiting: deque[InFlightBatch] = deque()
        self._next = 0  # the batch that is cut next
        self._used: set[int] = set()
        self._points: list[SnapshotPoint] = []
        self._tail_consumed = 0  # of the tail, before the batch that is cut next

    def begin(self, batch: int, beyond: Collection[int], saved: SnapshotPoint | None) -> None:
        """A pass begins before ``batch``; those in ``beyond`` are used."""
        self.clear()
        self._next = batch
        self._tail_consumed = 0
        self._used = set(beyond)
        self._points = [] if saved is None else [saved]

    def clear(self) -> None:
        """The pass is over: nobody is handed anything of it any more."""
        self._waiting.clear()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add_batches(self, batches: Iterable[InFlightBatch]) -> None:
        """Batches were cut together."""
        for held in batches:
            self._waiting.append(held)
            group = held.group
            self._next, self._tail_consumed = group.after, group.tail_consumed
            if group.point is not None and (not self._points or self._points[-1] is not group.point):
                self._points.append(group.point)

    @property
    def next_batch(self) -> InFlightBatch:
        """The next one for whoever asks, as long as nobody takes it."""
        return self._waiting[0]

    def pop_batch(self) -> InFlightBatch:
        """The next one for whoever asks."""
        return self._waiting.popleft()

    def requeue(self, trainer: Trainer) -> None:
        """What ``trainer`` had and has not used goes to the others."""
        self._waiting = deque(sorted((*self._waiting, *trainer.in_flight), key=lambda held: held.index))
        trainer.clear()

    def rejoin(self, begin: m.BeginPass) -> None:
        """Somebody goes on who has had what was meanwhile given back."""
        mine = batches_received(begin, self._waiting)
        self._used.update(mine)
        self._waiting = deque(held for held in self._waiting if held.index not in mine)

    def acknowledge(self, numbers: Iterable[int]) -> None:
        """These batches are used."""
        self._used.update(numbers)

    @property
    def first_unused(self) -> int:
        """All batches before this one are used."""
        first = self._first()
        return self._next if first is None else first.index

    @property
    def cut_ahead(self) -> int:
        """How many batches were cut since the first that is not used."""
        return self._next - self.first_unused

    def _first(self) -> InFlightBatch | None:
        held = [*self._waiting, *(one for trainer in self._members.values() for one in trainer.in_flight)]
        return min(held, key=lambda one: one.index, default=None)

    def resume_point(self) -> ResumePoint:
        """Where the job stands."""
        first = self._first()
        low, gone = self._next, self._tail_consumed
        if first is not None:
            cut, low = first.batch.cut, first.index
            gone = max(0, cut.tail_consumed - len(cut.row_ids) + cut.padding)
        while len(self._points) > 1 and self._points[1].batch_index <= low:
            del self._points[0]
        point = self._points[0] if self._points and self._points[0].batch_index <= low else None
        self._used = {index for index in self._used if index > low}
        return ResumePoint(low, gone, point, sorted(self._used))
