"""Which of a worker's files runs next: within a job the one that is wanted earliest, between jobs they take turns."""

from __future__ import annotations

from typing import Any

import pytest

from pydp2.host.worker.scheduler import TaskScheduler
from pydp2.host.worker.task import FileTask
from pydp2.protocol.file_ranges import FileAssignment
from pydp2.server.dispatch.ledger import NO_PAUSE


def task(attempt: int, position: int, *, limit: int = 1000, bound: bool = True) -> FileTask:
    return FileTask.from_assignment(FileAssignment(attempt, attempt, position, 0, 0, limit, NO_PAUSE, bound, []), 1)


def choose(tasks: TaskScheduler) -> int | None:
    found = tasks.choose(lambda _: None)
    return None if found is None else found.attempt


@pytest.fixture
def two() -> TaskScheduler:
    """Two readings: attempts 1, 2 and 3 of the first, 4 and 5 of the other."""
    tasks = TaskScheduler(max_unbound=1)
    tasks.begin_dispatch(1, pass_id=0, seed=5)
    tasks.begin_dispatch(2, pass_id=3, seed=6)
    for attempt, position in ((1, 7), (2, 4), (3, 9)):
        tasks.add_task(1, task(attempt, position))
    for attempt, position in ((4, 1), (5, 0)):
        tasks.add_task(2, task(attempt, position))
    return tasks


def of(tasks: TaskScheduler, attempt: int) -> FileTask:
    found = tasks.task_of(attempt)
    assert found is not None
    return found


def test_readings_take_turns_each_with_the_file_that_is_wanted_earliest(two: TaskScheduler) -> None:
    assert [choose(two) for _ in range(4)] == [2, 5, 2, 5]
    assert (of(two, 2).pass_id, of(two, 2).seed, of(two, 5).pass_id, of(two, 5).seed) == (0, 5, 3, 6)


def test_what_a_merge_waits_for_comes_first_in_its_reading_and_before_another_one(two: TaskScheduler) -> None:
    two.mark_merge_waits(3, 0)
    assert [choose(two) for _ in range(3)] == [3, 3, 3]
    two.mark_merge_waits(4, 0)
    assert [choose(two) for _ in range(4)] == [4, 3, 4, 3], "both wait: they alternate"


def test_in_turns_the_one_that_had_the_fewest_comes_first_whichever_is_waited_for(two: TaskScheduler) -> None:
    two.end_dispatch(2)
    for attempt in (1, 2):
        of(two, attempt).block_length, of(two, attempt).ramp_until = 5, 15
    assert two.is_ramping(1)
    order = []
    two.mark_merge_waits(1, 0)
    while two.is_ramping(1):
        order.append(choose(two))
        of(two, order[-1]).next_index = of(two, order[-1]).block_end
    assert order == [2, 1, 2, 1, 2, 1]
    of(two, 1).merge_waits = False
    assert choose(two) == 2, "then the one that is wanted earliest"
    two.mark_merge_waits(3, 0)
    assert choose(two) == 3


def test_one_that_is_past_its_turns_and_waited_for_comes_before_those_that_have_turns(two: TaskScheduler) -> None:
    two.end_dispatch(2)
    of(two, 2).block_length, of(two, 2).ramp_until = 5, 15
    of(two, 1).block_length, of(two, 1).ramp_until, of(two, 1).next_index = 5, 15, 15
    assert choose(two) == 2
    two.mark_merge_waits(1, 20)
    assert choose(two) == 1
    of(two, 2).spent_bytes = 2000
    assert not two.is_ramping(1), "the other one waits for credit"


def test_a_reading_without_credit_keeps_nobody_back(two: TaskScheduler) -> None:
    for attempt in (4, 5):
        of(two, attempt).spent_bytes = 2000
        two.mark_merge_waits(attempt, 0)
    assert [choose(two) for _ in range(3)] == [2, 2, 2]
    assert not two.merge_waits_for_other(of(two, 2), any_job=True)


def test_another_job_waits_here_only_for_what_can_run(two: TaskScheduler) -> None:
    one = of(two, 2)
    two.mark_merge_waits(2, 0)
    assert not two.merge_waits_for_other(one, any_job=True), "itself"
    two.mark_merge_waits(1, 0)
    assert not two.merge_waits_for_other(one, any_job=False), "the same job's"
    assert two.merge_waits_for_other(one, any_job=True)
    of(two, 1).merge_waits = False  # it was sent meanwhile
    assert not two.merge_waits_for_other(one, any_job=True)
    two.mark_merge_waits(4, 0)
    assert two.merge_waits_for_other(one, any_job=False)
    two.end_dispatch(2)
    assert not two.merge_waits_for_other(one, any_job=True)


def test_files_not_bound_are_opened_some_at_a_time_for_each_reading_and_one_that_is_waited_for_beside_them() -> None:
    tasks = TaskScheduler(max_unbound=1)
    for dispatch_id, attempts in ((1, (1, 2)), (2, (3, 4))):
        tasks.begin_dispatch(dispatch_id, 0, 0)
        for attempt in attempts:
            tasks.add_task(dispatch_id, task(attempt, attempt, bound=False))
    opened: list[Any] = []
    for _ in range(4):
        found = tasks.choose(lambda _: None)
        if found is None:
            break
        found.iterator, found.spent_bytes = iter(()), 2000  # it is open, and waits for credit
        opened.append(found.attempt)
    assert opened == [1, 3]
    tasks.mark_merge_waits(4, 0)
    assert choose(tasks) == 4


def test_a_reading_that_is_over_takes_its_files_along_and_what_comes_for_it_later_is_not_taken(
    two: TaskScheduler,
) -> None:
    assert sorted(each.attempt for each in two.end_dispatch(1)) == [1, 2, 3]
    assert two.end_dispatch(1) == []
    two.add_task(1, task(9, 0))
    assert two.task_of(9) is None
    assert [choose(two) for _ in range(2)] == [5, 5]
    assert sorted(each.attempt for each in two.end_all_dispatches()) == [4, 5]
    assert not two
