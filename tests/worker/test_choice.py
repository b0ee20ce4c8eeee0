"""Which of a worker's files runs next: within a job the one that is wanted earliest, between jobs they take turns."""

from __future__ import annotations

from typing import Any

import pytest

from pydp2.protocol.ranges import Assignment
from pydp2.server.ledger import NO_PAUSE
from pydp2.worker.choice import Tasks
from pydp2.worker.task import Task


def task(attempt: int, position: int, *, limit: int = 1000, bound: bool = True) -> Task:
    return Task.of(Assignment(attempt, attempt, position, 0, 0, limit, NO_PAUSE, bound, []), 1)


def choose(tasks: Tasks) -> int | None:
    found = tasks.choose(lambda _: None)
    return None if found is None else found.attempt


@pytest.fixture
def two() -> Tasks:
    """Two readings: attempts 1, 2 and 3 of the first, 4 and 5 of the other."""
    tasks = Tasks(ahead=1)
    tasks.begin(1, pass_id=0, seed=5)
    tasks.begin(2, pass_id=3, seed=6)
    for attempt, position in ((1, 7), (2, 4), (3, 9)):
        tasks.add(1, task(attempt, position))
    for attempt, position in ((4, 1), (5, 0)):
        tasks.add(2, task(attempt, position))
    return tasks


def of(tasks: Tasks, attempt: int) -> Task:
    found = tasks.get(attempt)
    assert found is not None
    return found


def test_readings_take_turns_each_with_the_file_that_is_wanted_earliest(two: Tasks) -> None:
    assert [choose(two) for _ in range(4)] == [2, 5, 2, 5]
    assert (of(two, 2).pass_id, of(two, 2).seed, of(two, 5).pass_id, of(two, 5).seed) == (0, 5, 3, 6)


def test_what_a_merge_waits_for_comes_first_in_its_reading_and_before_another_one(two: Tasks) -> None:
    two.want(3, 0)
    assert [choose(two) for _ in range(3)] == [3, 3, 3]
    two.want(4, 0)
    assert [choose(two) for _ in range(4)] == [4, 3, 4, 3], "both wait: they alternate"


def test_in_turns_the_one_that_had_the_fewest_comes_first_whichever_is_waited_for(two: Tasks) -> None:
    two.end(2)
    for attempt in (1, 2):
        of(two, attempt).turn, of(two, attempt).ramp = 5, 15
    assert two.ramps(1)
    order = []
    two.want(1, 0)
    while two.ramps(1):
        order.append(choose(two))
        of(two, order[-1]).y = of(two, order[-1]).turn_end
    assert order == [2, 1, 2, 1, 2, 1]
    of(two, 1).wanted = False
    assert choose(two) == 2, "then the one that is wanted earliest"
    two.want(3, 0)
    assert choose(two) == 3


def test_one_that_is_past_its_turns_and_waited_for_comes_before_those_that_have_turns(two: Tasks) -> None:
    two.end(2)
    of(two, 2).turn, of(two, 2).ramp = 5, 15
    of(two, 1).turn, of(two, 1).ramp, of(two, 1).y = 5, 15, 15
    assert choose(two) == 2
    two.want(1, 20)
    assert choose(two) == 1
    of(two, 2).spent = 2000
    assert not two.ramps(1), "the other one waits for credit"


def test_a_reading_without_credit_keeps_nobody_back(two: Tasks) -> None:
    for attempt in (4, 5):
        of(two, attempt).spent = 2000
        two.want(attempt, 0)
    assert [choose(two) for _ in range(3)] == [2, 2, 2]
    assert not two.waiting_beside(of(two, 2), any_job=True)


def test_another_job_waits_here_only_for_what_can_run(two: Tasks) -> None:
    one = of(two, 2)
    two.want(2, 0)
    assert not two.waiting_beside(one, any_job=True), "itself"
    two.want(1, 0)
    assert not two.waiting_beside(one, any_job=False), "the same job's"
    assert two.waiting_beside(one, any_job=True)
    of(two, 1).wanted = False  # it was sent meanwhile
    assert not two.waiting_beside(one, any_job=True)
    two.want(4, 0)
    assert two.waiting_beside(one, any_job=False)
    two.end(2)
    assert not two.waiting_beside(one, any_job=True)


def test_files_not_bound_are_opened_some_at_a_time_for_each_reading_and_one_that_is_waited_for_beside_them() -> None:
    tasks = Tasks(ahead=1)
    for reading, attempts in ((1, (1, 2)), (2, (3, 4))):
        tasks.begin(reading, 0, 0)
        for attempt in attempts:
            tasks.add(reading, task(attempt, attempt, bound=False))
    opened: list[Any] = []
    for _ in range(4):
        found = tasks.choose(lambda _: None)
        if found is None:
            break
        found.iterator, found.spent = iter(()), 2000  # it is open, and waits for credit
        opened.append(found.attempt)
    assert opened == [1, 3]
    tasks.want(4, 0)
    assert choose(tasks) == 4


def test_a_reading_that_is_over_takes_its_files_along_and_what_comes_for_it_later_is_not_taken(two: Tasks) -> None:
    assert sorted(each.attempt for each in two.end(1)) == [1, 2, 3]
    assert two.end(1) == []
    two.add(1, task(9, 0))
    assert two.get(9) is None
    assert [choose(two) for _ in range(2)] == [5, 5]
    assert sorted(each.attempt for each in two.end_all()) == [4, 5]
    assert not two
