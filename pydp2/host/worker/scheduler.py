"""Choose which of the files of a worker runs next (docs/order.md, "Credit", rule 4, and "Several jobs").

Within a dispatch it is the one that a merge waits for, or else the one that the merge wants earliest; at the beginning
of a pass files are run turn by turn, as the merge takes them. Between dispatches they take turns: those whose merge
waits for something here come first, and among equals the one that was served least recently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from pydp2.host.worker.task import FileTask


@dataclass(slots=True)
class _DispatchTasks:
    pass_id: int
    seed: int
    last_served: int = 0  # time when it was served last
    tasks: dict[int, FileTask] = field(default_factory=dict)  # by attempt


class TaskScheduler:
    """Scheduler of one worker's tasks. ``max_unbound``: how many files of a dispatch that are not yet bound may be
    open at the same time."""

    def __init__(self, max_unbound: int) -> None:
        self._max_unbound = max_unbound
        self._dispatches: dict[int, _DispatchTasks] = {}
        self._all: dict[int, FileTask] = {}
        self._merge_waits_for: set[int] = set()  # attempts, some of which may be over by now
        self._serve_count = 0

    def __bool__(self) -> bool:
        return bool(self._all)

    def __iter__(self) -> Iterator[FileTask]:
        return iter(self._all.values())

    def begin_dispatch(self, dispatch_id: int, pass_id: int, seed: int) -> None:
        """Begin a dispatch of this number."""
        self._dispatches[dispatch_id] = _DispatchTasks(pass_id, seed)

    def end_dispatch(self, dispatch_id: int) -> list[FileTask]:
        """End a dispatch and return the tasks that it had."""
        ended = self._dispatches.pop(dispatch_id, None)
        if ended is None:
            return []
        for attempt in ended.tasks:
            del self._all[attempt]
        return list(ended.tasks.values())

    def end_all_dispatches(self) -> list[FileTask]:
        """End all dispatches and return the tasks that they had."""
        return [task for dispatch_id in list(self._dispatches) for task in self.end_dispatch(dispatch_id)]

    def add_task(self, dispatch_id: int, task: FileTask) -> None:
        """Add ``task``, which was assigned for ``dispatch_id``."""
        whose = self._dispatches.get(dispatch_id)
        if whose is not None:
            task.dispatch_id, task.pass_id, task.seed = dispatch_id, whose.pass_id, whose.seed
            whose.tasks[task.attempt] = self._all[task.attempt] = task

    def task_of(self, attempt: int) -> FileTask | None:
        """Return the task of ``attempt``, or None if it is over."""
        return self._all.get(attempt)

    def grant(self, attempt: int, limit: int, pause: int, bound: int) -> None:
        """Let the task of ``attempt``, unless it is over, go on up to ``limit`` bytes and to sample index ``pause``."""
        if (task := self._all.get(attempt)) is not None:
            task.limit, task.pause, task.bound = limit, pause, bool(bound)
            task.wait_reported = False

    def note_sent(self, attempts: Iterable[int]) -> None:
        """Note that samples of ``attempts`` were sent: no merge waits for these files until it says so again."""
        for attempt in attempts:
            if (task := self._all.get(attempt)) is not None:
                task.merge_waits = False

    def remove_task(self, task: FileTask) -> None:
        """Remove ``task``, which is over."""
        del self._all[task.attempt], self._dispatches[task.dispatch_id].tasks[task.attempt]

    def take_unopened(self, attempts: Iterable[int]) -> list[int]:
        """Remove those of ``attempts`` whose files are not open, and return them."""
        tasks = [self._all[attempt] for attempt in attempts if attempt in self._all]
        unopened = [task for task in tasks if not task.is_open]
        for task in unopened:
            self.remove_task(task)
        return [task.attempt for task in unopened]

    def choose(self, report: Callable[[FileTask], None]) -> FileTask | None:
        """Return the task that is to run now, or None. Call ``report`` with those that were looked at
        and wait for something."""
        best: FileTask | None = None
        whose: _DispatchTasks | None = None
        for dispatch in self._dispatches.values():
            task = self._choose_in_dispatch(dispatch.tasks.values(), report)
            if task is None:
                continue
            if (
                best is None
                or whose is None
                or (best.merge_waits, -whose.last_served) < (task.merge_waits, -dispatch.last_served)
            ):
                best, whose = task, dispatch
        if whose is not None:
            self._serve_count += 1
            whose.last_served = self._serve_count
        return best

    def _choose_in_dispatch(self, tasks: Collection[FileTask], report: Callable[[FileTask], None]) -> FileTask | None:
        """Return the task of a dispatch that is wanted earliest among those that can go on."""
        best: FileTask | None = None
        ahead = sum(1 for task in tasks if task.is_open and not task.bound)
        for task in tasks:
            if best is not None and task.priority > best.priority:
                continue
            if task.missing_credit is not None:
                report(task)
            elif task.is_open or task.bound or task.merge_waits or ahead < self._max_unbound:
                best = task
        return best

    def is_ramping(self, dispatch_id: int) -> bool:
        """Return True if some file of ``dispatch_id`` that is run turn by turn can go on."""
        return any(
            task.is_ramping and task.missing_credit is None for task in self._dispatches[dispatch_id].tasks.values()
        )

    def mark_merge_waits(self, attempt: int, until_index: int) -> FileTask | None:
        """Note that a merge waits for the samples of ``attempt`` below sample index
        ``until_index``, and return its task."""
        task = self._all.get(attempt)
        if task is not None:
            task.merge_waits, task.merge_waits_until = True, until_index
            self._merge_waits_for.add(attempt)
        return task

    def merge_waits_for_other(self, task: FileTask, *, any_job: bool) -> bool:
        """Return True if a merge waits for something other than ``task`` that can run here: another job's, or
        (``any_job``) also the same job's."""
        if not self._merge_waits_for:
            return False
        wanted = [
            other
            for attempt in self._merge_waits_for
            if (other := self._all.get(attempt)) is not None and other.merge_waits
        ]
        self._merge_waits_for = {other.attempt for other in wanted}
        return any(
            other is not task and other.missing_credit is None and (any_job or other.dispatch_id != task.dispatch_id)
            for other in wanted
        )
