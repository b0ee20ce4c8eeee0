"""The files that a worker was given, and which of them runs next (docs/order.md, "Credit", rules 4 and 7).

Within a reading it is the one that a merge waits for, or else the one that the merge wants earliest; at the beginning
of a pass files are run turn by turn, as the merge takes them. Between readings they take turns: those whose merge waits
for something here come first, and among equals the one that was served least recently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from pydp2.worker.task import Task


@dataclass(slots=True)
class _Reading:
    pass_id: int
    seed: int
    turn: int = 0  # when it was served last
    tasks: dict[int, Task] = field(default_factory=dict)  # by attempt


class Tasks:
    """Of one worker. ``ahead``: how many files of a reading that are not yet bound may be open at the same time."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._readings: dict[int, _Reading] = {}
        self._all: dict[int, Task] = {}
        self._wanted: set[int] = set()  # attempts, maybe more than there are by now
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._all)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._all.values())

    def begin(self, reading: int, pass_id: int, seed: int) -> None:
        """There is a reading of this number."""
        self._readings[reading] = _Reading(pass_id, seed)

    def end(self, reading: int) -> list[Task]:
        """It is over: the tasks that it had."""
        ended = self._readings.pop(reading, None)
        if ended is None:
            return []
        for attempt in ended.tasks:
            del self._all[attempt]
        return list(ended.tasks.values())

    def end_all(self) -> list[Task]:
        """All are over."""
        return [task for reading in list(self._readings) for task in self.end(reading)]

    def add(self, reading: int, task: Task) -> None:
        """``task`` was assigned for ``reading``."""
        whose = self._readings.get(reading)
        if whose is not None:
            task.reading, task.pass_id, task.seed = reading, whose.pass_id, whose.seed
            whose.tasks[task.attempt] = self._all[task.attempt] = task

    def get(self, attempt: int) -> Task | None:
        """The task of ``attempt``, while it is not over."""
        return self._all.get(attempt)

    def remove(self, task: Task) -> None:
        """``task`` is over."""
        del self._all[task.attempt], self._readings[task.reading].tasks[task.attempt]

    def choose(self, report: Callable[[Task], None]) -> Task | None:
        """The task that is to run now; those that were looked at and wait for something are given to ``report``."""
        best: Task | None = None
        whose: _Reading | None = None
        for reading in self._readings.values():
            task = self._first(reading.tasks.values(), report)
            if task is None:
                continue
            if best is None or whose is None or (best.wanted, -whose.turn) < (task.wanted, -reading.turn):
                best, whose = task, reading
        if whose is not None:
            self._turn += 1
            whose.turn = self._turn
        return best

    def _first(self, tasks: Collection[Task], report: Callable[[Task], None]) -> Task | None:
        """The one of a reading that is wanted earliest among those that can go on."""
        best: Task | None = None
        ahead = sum(1 for task in tasks if task.started and not task.bound)
        for task in tasks:
            if best is not None and task.rank > best.rank:
                continue
            if task.waits is not None:
                report(task)
            elif task.started or task.bound or task.wanted or ahead < self._ahead:
                best = task
        return best

    def ramps(self, reading: int) -> bool:
        """Whether some file of ``reading`` can go on that is run turn by turn."""
        return any(task.ramping and task.waits is None for task in self._readings[reading].tasks.values())

    def want(self, attempt: int, until: int) -> Task | None:
        """A merge waits for what ``attempt`` gives below ordinal ``until``."""
        task = self._all.get(attempt)
        if task is not None:
            task.wanted, task.due = True, until
            self._wanted.add(attempt)
        return task

    def waiting_beside(self, task: Task, *, any_job: bool) -> bool:
        """Whether a merge waits for something else than ``task`` that can run here: another job's, or (``any_job``)
        that of the same job too."""
        if not self._wanted:
            return False
        wanted = [other for attempt in self._wanted if (other := self._all.get(attempt)) is not None and other.wanted]
        self._wanted = {other.attempt for other in wanted}
        return any(
            other is not task and other.waits is None and (any_job or other.reading != task.reading) for other in wanted
        )
