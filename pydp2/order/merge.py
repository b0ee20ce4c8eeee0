"""The merge: lanes bound to files take turns (docs/order.md, "Merge").

Pure bookkeeping of where the merge stands. It never looks further than the one file whose turn it is: what that file
gives next decides everything, so neither timing nor the way samples were chunked can show in the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pydp2.order.files import turn_length
from pydp2.order.plan import Plan
from pydp2.order.saved import Recall, Saved, SavedLane
from pydp2.order.source import END, WAIT, Failure, Gap, Run, Source


@dataclass(slots=True)
class Lane:
    """One of the files that take turns, and how many samples a turn of it takes."""

    file: int
    turn: int


class Merge:
    """Gives the samples of all files one run at a time, in the order of the plan."""

    def __init__(
        self,
        plan: Plan,
        source: Source,
        order: npt.NDArray[np.int64],
        saved: Saved | None = None,
        recalls: Mapping[int, Recall] | None = None,
    ) -> None:
        self._plan = plan
        self._source = source
        self.order = order
        self.next_file = 0
        self.lanes: list[Lane] = []
        self.current = 0
        if saved is not None:
            self._restore(saved, recalls or {})
            return
        while len(self.lanes) < plan.lanes and self.next_file < len(self.order):
            self.lanes.append(self._bind())
        self.left = self.lanes[0].turn if self.lanes else 0

    def _restore(self, saved: Saved, recalls: Mapping[int, Recall]) -> None:
        self.next_file, self.current, self.left = saved.next_file, saved.current, saved.left
        for lane in saved.lanes:
            self._source.bind(lane.file, recalls[lane.file])
            self.lanes.append(Lane(lane.file, turn_length(self._plan, lane.file)))

    def positions(self) -> list[SavedLane]:
        """Where it stands in the file of each lane."""
        return [self._source.position(lane.file) for lane in self.lanes]

    def _bind(self) -> Lane:
        file = int(self.order[self.next_file])
        self.next_file += 1
        self._source.bind(file)
        return Lane(file, turn_length(self._plan, file))

    @property
    def file(self) -> int:
        """The file whose turn it is. Only while there are lanes."""
        return self.lanes[self.current].file

    @property
    def label(self) -> str:
        """How an error message names that file."""
        return self._source.label(self.file)

    def front(self) -> Run | Failure | Gap:
        """The next samples, at most to the end of the turn; a failure; WAIT; or END when every file has ended."""
        while self.lanes:
            if self.left == 0:
                self._step()
            lane = self.lanes[self.current]
            front = self._source.front(lane.file)
            if front is not END:
                if isinstance(front, Run) and front.hi - front.lo > self.left:
                    front.hi = front.lo + self.left
                return front
            self._source.finish(lane.file)
            if self.next_file < len(self.order):
                self.lanes[self.current] = self._bind()  # and the same turn goes on
                continue
            del self.lanes[self.current]
            if self.lanes:
                self.current %= len(self.lanes)
                self.left = self.lanes[self.current].turn
        return END

    def take(self, count: int) -> None:
        """The first ``count`` samples of the run that :meth:`front` gave are merged."""
        self._source.take(self.lanes[self.current].file, count)
        self.left -= count

    def _step(self) -> None:
        self.current = (self.current + 1) % len(self.lanes)
        self.left = self.lanes[self.current].turn


class Relaxed(Merge):
    """``order="relaxed"``: whichever lane has something goes next, with all of it. Only the multiset is promised."""

    def front(self) -> Run | Failure | Gap:
        """Samples of any lane; a failure; WAIT when no lane has anything; or END."""
        for _ in range(len(self.lanes)):
            self.left = 1 << 62
            front = super().front()
            if front is not WAIT:
                return front
            self.current = (self.current + 1) % len(self.lanes)
        return WAIT if self.lanes else END
