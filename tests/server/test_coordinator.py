"""The workers of a service: events in, lists of actions out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pydp2.errors import ProviderError
from pydp2.order import Run
from pydp2.protocol.messages import Assign, BeginReading, EndReading
from pydp2.protocol.ranges import ENDED, OPEN, Assignment, Part
from pydp2.server.actions import Action, Fatal, Log, Send, Spawn, WorkerBroken, WorkerGone, WorkerReady
from pydp2.server.coordinator import Coordinator
from pydp2.server.ledger import NO_PAUSE
from pydp2.server.reading import Reading

SAME: dict[str, Any] = {"slots": ["as declared"], "pool_size": -1}


def pass_over(files: int, pass_id: int = 0, workers: int = 2) -> Reading:
    made = Reading(
        pass_id=pass_id, seed=5, order=np.arange(files), lanes=min(files, 2), budget=4000, workers=workers, label=str
    )
    for file in range(min(files, 2)):
        made.bind(file)
    return made


def ready(coordinator: Coordinator, *workers: int) -> None:
    for worker in workers:
        assert coordinator.handle(WorkerReady(worker, SAME)) == []


def assign(worker: int, *items: Assignment, reading: int = 1) -> Send:
    return Send(worker, Assign(reading, [item.to_wire() for item in items]))


def chunk(file: int, attempt: int, first: int, rows: int, state: int = OPEN) -> tuple[Part, Run | None]:
    run = Run(None, 0, rows, np.arange(first, first + rows), np.full(rows, 84), None) if rows else None
    return Part(file, attempt, first, rows, rows, state, [first + rows], [], {}), run


@pytest.fixture
def two() -> Coordinator:
    """Two workers at work, one in reserve."""
    coordinator = Coordinator(2)
    assert coordinator.start() == [Spawn(0, 0), Spawn(1, 1), Spawn(2, 2)]
    ready(coordinator, 0, 1, 2)
    return coordinator


def test_one_worker_more_than_asked_for_is_started_and_stands_by(two: Coordinator) -> None:
    assert two.active == [0, 1]
    assert two.expecting == 0
    assert [two.seat_of(worker) for worker in (0, 1, 2, 3)] == [0, 1, 2, None]


def test_whoever_is_ready_first_works() -> None:
    coordinator = Coordinator(2)
    coordinator.start()
    coordinator.begin(pass_over(4))
    ready(coordinator, 2)
    assert coordinator.active == [2]
    assert coordinator.expecting == 1
    assert coordinator.dispatch()[0] == Send(2, BeginReading(1, 0, 5))
    ready(coordinator, 0, 1)
    assert sorted(coordinator.active) == [0, 2]


def test_a_worker_lost_with_a_file_half_sent_is_replaced_by_the_reserve_at_once(two: Coordinator) -> None:
    reading = pass_over(1)
    two.begin(reading)
    assert two.dispatch() == [
        Send(0, BeginReading(1, 0, 5)), Send(1, BeginReading(1, 0, 5)),
        assign(0, Assignment(0, 1, 0, 0, 0, 4000, NO_PAUSE, True, [])),
    ]  # fmt: skip
    reading.commit(0, *chunk(0, 1, 0, 3))
    gone = two.handle(WorkerGone(0, (0, 1, 5), "was killed by SIGKILL"))
    assert [type(action) for action in gone] == [Log, Spawn]
    assert gone[1] == Spawn(3, 3)
    assert two.active == [1, 2]
    assert two.lost == 1
    assert two.dispatch() == [
        Send(2, BeginReading(1, 0, 5)),
        assign(1, Assignment(0, 2, 0, 3, 300, 4000, 5, True, [3])),
    ]  # fmt: skip


def test_at_the_last_file_of_a_pass_nothing_more_is_handed_out(two: Coordinator) -> None:
    reading = pass_over(1)
    two.begin(reading)
    two.dispatch()
    reading.commit(0, *chunk(0, 1, 0, 3, ENDED))
    assert two.dispatch() == []
    assert two.end(reading) == [Send(0, EndReading(1)), Send(1, EndReading(1))]
    assert two.dispatch() == []


def test_output_of_an_earlier_reading_never_passes_for_that_of_the_present_one(two: Coordinator) -> None:
    """Another trainer begins its own pass 0: the same pass, file and worker, but not the same attempt."""
    first = pass_over(1)
    two.begin(first)
    two.dispatch()
    late = chunk(0, 1, 0, 3)
    two.end(first)
    again = pass_over(1)
    two.begin(again)
    two.dispatch()
    for each in (two, again):
        each.commit(0, *late)
        each.blocked(0, 0, 1, 3, 77)
    assert again.entries[0].committed == 0
    two.handle(WorkerGone(0, (0, 1, 3), "was killed"))
    assert again.entries[0].deaths == {}


def test_readings_side_by_side_share_workers_and_budget_and_each_gets_what_is_its(two: Coordinator) -> None:
    one, other = pass_over(1), pass_over(1, pass_id=7)
    two.begin(one, "train")
    two.begin(other, "eval")
    assert one.credit.budget == other.credit.budget == 2000
    sent = [act for act in two.dispatch() if isinstance(act, Send)]
    assert [act.message for act in sent if act.worker == 0 and isinstance(act.message, BeginReading)] == [
        BeginReading(1, 0, 5), BeginReading(2, 7, 5),
    ]  # fmt: skip
    assert (one.entries[0].attempt, other.entries[0].attempt) == (1, 2)
    for attempt, rows in ((2, 3), (1, 1), (9, 5)):
        two.commit(0, *chunk(0, attempt, 0, rows))
    assert (one.entries[0].committed, other.entries[0].committed) == (1, 3)
    two.handle(WorkerGone(0, (0, 2, 3), "was killed"))
    assert (one.entries[0].deaths, other.entries[0].deaths) == ({}, {3: 1}), "blame falls on one of them"
    two.dispatch()
    assert two.end(one) == [Send(1, EndReading(1)), Send(2, EndReading(1))]
    assert other.credit.budget == 4000
    two.commit(1, *chunk(0, one.entries[0].attempt, 1, 5))
    assert other.entries[0].committed == 3
    assert two.end(one) == []


def test_what_is_told_of_a_reading_names_the_job_where_there_are_several(two: Coordinator) -> None:
    one, other = pass_over(1), pass_over(1)
    two.begin(one, "train")
    two.dispatch()

    def drop(reading: Reading) -> list[str]:
        reading._out += reading.losses.drop(0, (3, "bits", "bad"))
        return [act.text for act in two.dispatch() if isinstance(act, Log)]

    assert drop(one) == ["file 0, sample 3, slot bits: bad"]
    two.begin(other, "eval")
    assert drop(other) == ["job 'eval': file 0, sample 3, slot bits: bad"]


def test_a_worker_that_cannot_get_its_provider_ready_ends_the_service(two: Coordinator) -> None:
    error = ProviderError("the hook raised")
    assert two.handle(WorkerBroken(2, error)) == [Fatal(error)]


def test_a_worker_that_declares_something_else_ends_the_service_with_both_named(two: Coordinator) -> None:
    (action,) = two.handle(WorkerReady(2, SAME | {"pool_size": 7}))
    assert isinstance(action, Fatal)
    assert "(pool_size: -1 and 7)" in str(action.error)


def test_a_worker_lost_before_anything_was_declared_ends_the_service() -> None:
    coordinator = Coordinator(2)
    coordinator.start()
    (action,) = coordinator.handle(WorkerGone(1, None, "ended with exit code 3"))
    assert isinstance(action, Fatal)
    assert "ended with exit code 3 while it imported the provider" in str(action.error)


def test_workers_lost_before_they_were_ready_are_replaced_a_few_times(two: Coordinator) -> None:
    lost: list[list[Action]] = [two.handle(WorkerGone(0, None, "was killed"))]
    for number in range(3, 8):
        lost.append(two.handle(WorkerGone(number, None, "was killed")))
    assert [type(actions[-1]) for actions in lost] == [Spawn] * 5 + [Fatal]
    assert two.active == [1, 2]  # those that were ready work on meanwhile


def test_those_that_somebody_killed_before_they_were_ready_are_replaced_more_often(two: Coordinator) -> None:
    lost = [two.handle(WorkerGone(0, None, "was killed by SIGKILL", of_itself=False))]
    for number in range(3, 23):
        lost.append(two.handle(WorkerGone(number, None, "was killed by SIGKILL", of_itself=False)))
    assert [type(actions[-1]) for actions in lost] == [Spawn] * 20 + [Fatal]


def test_the_reserve_that_is_lost_is_no_loss_to_the_pass(two: Coordinator) -> None:
    two.begin(pass_over(4))
    two.dispatch()
    assert two.handle(WorkerGone(2, None, "was killed")) == [Spawn(3, 3)]
    assert two.lost == 0
    assert two.dispatch() == []


def test_with_every_worker_lost_the_files_wait_for_the_next_that_is_ready(two: Coordinator) -> None:
    two.begin(pass_over(2))
    two.dispatch()
    for worker in (0, 1, 2):
        two.handle(WorkerGone(worker, None, "was killed"))
        two.dispatch()
    assert two.active == []
    assert two.expecting == 2
    assert two.dispatch() == []
    ready(two, 4)
    sent = [a for a in two.dispatch() if isinstance(a, Send)]
    assert [type(a.message) for a in sent] == [BeginReading, Assign]
    assert {a.worker for a in sent} == {4}


def test_seats_are_used_again_but_never_by_two() -> None:
    coordinator = Coordinator(1)
    taken = {a.worker: a.seat for a in coordinator.start() if isinstance(a, Spawn)}
    ready(coordinator, 0, 1)
    for _ in range(20):
        lost = min(taken)
        del taken[lost]
        actions = coordinator.handle(WorkerGone(lost, None, "was killed", of_itself=False))
        taken |= {a.worker: a.seat for a in actions if isinstance(a, Spawn)}
        assert len(set(taken.values())) == len(taken) == 2
        assert max(taken.values()) < coordinator.seats
        ready(coordinator, max(taken))


def test_a_service_that_closes_replaces_nobody(two: Coordinator) -> None:
    two.close()
    assert two.handle(WorkerGone(0, None, "was ended")) == []


def test_news_of_a_worker_that_is_not_known_changes_nothing(two: Coordinator) -> None:
    assert two.handle(WorkerGone(77, None, "was killed")) == []
    assert two.handle(WorkerReady(77, SAME)) == []
    assert two.active == [0, 1]
