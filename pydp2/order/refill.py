"""Reading a saved pool again: which samples of which files, and in what order they come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from pydp2.errors import NotRepeatable
from pydp2.inputs import names
from pydp2.order.plan import Plan
from pydp2.order.pool import tail_order
from pydp2.order.saved import Recall, Saved
from pydp2.order.source import END, Failure, Gap, Run, Source


def recalls_of(plan: Plan, saved: Saved) -> dict[int, Recall]:
    """What ``saved`` needs of its files: the samples of its pool (of a tail those not yet gone) and of its lanes."""
    files, ordinals = names.decode(saved.pool)
    if saved.ended:
        kept = np.sort(tail_order(plan, len(files))[saved.offset :])
        files, ordinals = files[kept], ordinals[kept]
    numbers, starts = np.unique(files, return_index=True)
    ends = np.append(starts, len(files))[1:]
    recalls = {int(file): Recall(ordinals[lo:hi]) for file, lo, hi in zip(numbers, starts, ends, strict=True)}
    for lane in saved.lanes:
        recall = recalls.setdefault(lane.file, Recall(np.empty(0, np.int64)))
        recall.start, recall.check, recall.crcs = lane.y, lane.check, lane.crcs
    return recalls


class Refill:
    """Takes the samples of ``recalls`` from ``source``, by name. Files that are no lanes are bound some at a time."""

    def __init__(self, source: Source, most: int, recalls: Mapping[int, Recall], lanes: set[int]) -> None:
        self._source = source
        self._recalls = recalls
        self._lanes = lanes
        self._files = deque(sorted(file for file, recall in recalls.items() if len(recall.ordinals)))
        self._unbound = deque(file for file in self._files if file not in lanes)
        for _ in range(most):
            self._bind()
        self._taken = 0

    def _bind(self) -> None:
        if self._unbound:
            file = self._unbound.popleft()
            self._source.bind(file, self._recalls[file])

    @property
    def file(self) -> int | None:
        """The file whose samples come next; None when all are back."""
        return self._files[0] if self._files else None

    def front(self) -> Run | Failure | Gap:
        """The next samples of that file which belong to the pool."""
        file = self._files[0]
        front = self._source.front(file)
        if front is END:
            return Failure(
                NotRepeatable(
                    f"file {self._source.label(file)}: process() yields fewer samples than when the state was saved; "
                    "it must give the same samples whenever it is run"
                )
            )
        if isinstance(front, Run):
            left = len(self._recalls[file].ordinals) - self._taken
            front.hi = min(front.hi, front.lo + left)
        return front

    def take(self, count: int) -> None:
        """``count`` of them are back in the pool."""
        file = self._files[0]
        self._source.take(file, count)
        self._taken += count
        if self._taken == len(self._recalls[file].ordinals):
            self._files.popleft()
            self._taken = 0
            if file not in self._lanes:
                self._source.finish(file)
                self._bind()
