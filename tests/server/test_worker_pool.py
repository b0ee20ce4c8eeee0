"""The workers of a service: events in, lists of actions out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pydp2.errors import ProviderError
from pydp2.options.service_spec import status_rows
from pydp2.order.sample_source import SampleRun
from pydp2.protocol.file_ranges import FILE_ENDED, FILE_OPEN, FileAssignment, FileRange
from pydp2.protocol.messages import Assign, BeginDispatch, EndDispatch
from pydp2.server.actions import (
    THIS_HOST,
    Action,
    Fatal,
    Log,
    Send,
    Spawn,
    TurnAway,
    WorkerBroken,
    WorkerGone,
    WorkerReady,
)
from pydp2.server.dispatch.file_dispatcher import CycleReading, FileDispatcher, ReadContext
from pydp2.server.dispatch.ledger import NO_PAUSE
from pydp2.server.workers.worker_pool import WorkerPool
from pydp2.system.log_events import LogEvent
from tests.server.sources import losses_of

SAME: dict[str, Any] = {"slots": ["as declared"], "pool_size": -1}


def pass_over(files: int, pass_id: int = 0, workers: int = 2) -> FileDispatcher:
    made = FileDispatcher(
        ReadContext(budget=4000, workers=workers, label=str),
        CycleReading(length=min(files, 2)),
        pass_id=pass_id,
        seed=5,
        order=np.arange(files),
    )
    for file in range(min(files, 2)):
        made.open_file(file)
    return made


def ready(worker_pool: WorkerPool, *workers: int) -> None:
    for worker in workers:
        assert worker_pool.handle(WorkerReady(worker, SAME)) == []


def assign(worker: int, *items: FileAssignment, reading: int = 1) -> Send:
    return Send(worker, Assign(reading, [item.to_wire() for item in items]))


def chunk(file: int, attempt: int, first: int, rows: int, state: int = FILE_OPEN) -> tuple[FileRange, SampleRun | None]:
    run = SampleRun(None, 0, rows, np.arange(first, first + rows), np.full(rows, 84), None) if rows else None
    return FileRange(file, attempt, first, rows, rows, state, [first + rows], [], {}), run


@pytest.fixture
def two() -> WorkerPool:
    """Two workers at work, one in reserve."""
    worker_pool = WorkerPool(2)
    assert worker_pool.start() == [Spawn(0, 0), Spawn(1, 1), Spawn(2, 2)]
    ready(worker_pool, 0, 1, 2)
    return worker_pool


def test_one_worker_more_than_asked_for_is_started_and_stands_by(two: WorkerPool) -> None:
    assert two.active == [0, 1]
    assert two.starting == 0
    assert [two.host_of(worker) for worker in (0, 1, 2, 3)] == [THIS_HOST, THIS_HOST, THIS_HOST, None]


def test_whoever_is_ready_first_works() -> None:
    worker_pool = WorkerPool(2)
    worker_pool.start()
    worker_pool.begin_pass(pass_over(4))
    ready(worker_pool, 2)
    assert worker_pool.active == [2]
    assert worker_pool.starting == 1
    assert worker_pool.dispatch(0.0)[0] == Send(2, BeginDispatch(1, 0, 5))
    ready(worker_pool, 0, 1)
    assert sorted(worker_pool.active) == [0, 2]


def test_at_the_beginning_of_a_pass_workers_that_are_starting_keep_their_share_of_the_files() -> None:
    worker_pool = WorkerPool(2)
    worker_pool.start()
    dispatcher = pass_over(2)
    worker_pool.begin_pass(dispatcher)
    ready(worker_pool, 0)
    worker_pool.dispatch(100.0)
    dispatcher.want(1)
    worker_pool.dispatch(100.4)
    assert dispatcher.load.file_count(0) == 1, "the other worker will be there soon"
    worker_pool.dispatch(100.5)
    assert dispatcher.load.file_count(0) == 2, "the merge waits for it"


def test_a_worker_lost_with_a_file_half_sent_is_replaced_by_the_reserve_at_once(two: WorkerPool) -> None:
    reading = pass_over(1)
    two.begin_pass(reading)
    assert two.dispatch(0.0) == [
        Send(0, BeginDispatch(1, 0, 5)), Send(1, BeginDispatch(1, 0, 5)),
        assign(0, FileAssignment(0, 1, 0, 0, 0, 4000, NO_PAUSE, True, [])),
    ]  # fmt: skip
    reading.commit(0, *chunk(0, 1, 0, 3))
    gone = two.handle(WorkerGone(0, (0, 1, 5), "was killed by SIGKILL"))
    assert [type(action) for action in gone] == [Log, Spawn]
    assert gone[1] == Spawn(3, 3)
    assert two.active == [1, 2]
    assert two.workers_lost == 1
    assert two.dispatch(0.0) == [
        Send(2, BeginDispatch(1, 0, 5)),
        assign(1, FileAssignment(0, 2, 0, 3, 300, 4000, 5, True, [3])),
    ]  # fmt: skip


def test_at_the_last_file_of_a_pass_nothing_more_is_handed_out(two: WorkerPool) -> None:
    reading = pass_over(1)
    two.begin_pass(reading)
    two.dispatch(0.0)
    reading.commit(0, *chunk(0, 1, 0, 3, FILE_ENDED))
    assert two.dispatch(0.0) == []
    assert two.end_pass(reading) == [Send(0, EndDispatch(1)), Send(1, EndDispatch(1))]
    assert two.dispatch(0.0) == []


def test_output_of_an_earlier_reading_never_passes_for_that_of_the_present_one(two: WorkerPool) -> None:
    """Another trainer begins its own pass 0: the same pass, file and worker, but not the same attempt."""
    first = pass_over(1)
    two.begin_pass(first)
    two.dispatch(0.0)
    late = chunk(0, 1, 0, 3)
    two.end_pass(first)
    again = pass_over(1)
    two.begin_pass(again)
    two.dispatch(0.0)
    for each in (two, again):
        each.commit(0, *late)
        each.worker_blocked(0, 0, 1, 3, 77)
    assert again.ledgers[0].committed == 0
    two.handle(WorkerGone(0, (0, 1, 3), "was killed"))
    assert again.ledgers[0].deaths == {}


def test_readings_side_by_side_share_workers_and_budget_and_each_gets_what_is_its(two: WorkerPool) -> None:
    one, other = pass_over(1), pass_over(1, pass_id=7)
    two.begin_pass(one, "train")
    two.begin_pass(other, "eval")
    assert one.credit.budget == other.credit.budget == 2000
    sent = [act for act in two.dispatch(0.0) if isinstance(act, Send)]
    assert [act.message for act in sent if act.worker == 0 and isinstance(act.message, BeginDispatch)] == [
        BeginDispatch(1, 0, 5), BeginDispatch(2, 7, 5),
    ]  # fmt: skip
    assert (one.ledgers[0].attempt, other.ledgers[0].attempt) == (1, 2)
    for attempt, rows in ((2, 3), (1, 1), (9, 5)):
        two.commit(0, *chunk(0, attempt, 0, rows))
    assert (one.ledgers[0].committed, other.ledgers[0].committed) == (1, 3)
    two.handle(WorkerGone(0, (0, 2, 3), "was killed"))
    assert (one.ledgers[0].deaths, other.ledgers[0].deaths) == ({}, {3: 1}), "blame falls on one of them"
    two.dispatch(0.0)
    assert two.end_pass(one) == [Send(1, EndDispatch(1)), Send(2, EndDispatch(1))]
    assert other.credit.budget == 4000
    two.commit(1, *chunk(0, one.ledgers[0].attempt, 1, 5))
    assert other.ledgers[0].committed == 3
    assert two.end_pass(one) == []


def test_what_is_told_of_a_reading_names_the_job_unless_it_is_the_default_one_alone(two: WorkerPool) -> None:
    one, other = pass_over(1), pass_over(1)
    two.begin_pass(one, "default")
    two.dispatch(0.0)

    def drop(reading: FileDispatcher) -> list[str]:
        reading.actions += losses_of(reading).drop(0, (3, "bits", "bad"))
        return [act.text for act in two.dispatch(0.0) if isinstance(act, Log)]

    assert drop(one) == ["file 0, sample 3, slot bits: bad"]
    two.begin_pass(other, "eval")
    assert drop(other) == ["job 'eval': file 0, sample 3, slot bits: bad"]
    assert drop(one) == ["job 'default': file 0, sample 3, slot bits: bad"]
    two.end_pass(one)
    assert drop(other) == ["job 'eval': file 0, sample 3, slot bits: bad"]


def test_a_worker_that_cannot_get_its_provider_ready_ends_the_service(two: WorkerPool) -> None:
    error = ProviderError("the hook raised")
    assert two.handle(WorkerBroken(2, error)) == [Fatal(error)]


def test_a_worker_that_declares_something_else_ends_the_service_with_both_named(two: WorkerPool) -> None:
    (action,) = two.handle(WorkerReady(2, SAME | {"pool_size": 7}))
    assert isinstance(action, Fatal)
    assert "(pool_size: -1 and 7)" in str(action.error)


def test_a_worker_lost_before_anything_was_declared_ends_the_service() -> None:
    worker_pool = WorkerPool(2)
    worker_pool.start()
    (action,) = worker_pool.handle(WorkerGone(1, None, "ended with exit code 3"))
    assert isinstance(action, Fatal)
    assert "ended with exit code 3 while it imported the provider" in str(action.error)


def test_workers_lost_before_they_were_ready_are_replaced_a_few_times(two: WorkerPool) -> None:
    lost: list[list[Action]] = [two.handle(WorkerGone(0, None, "was killed"))]
    for number in range(3, 8):
        lost.append(two.handle(WorkerGone(number, None, "was killed")))
    assert [type(actions[-1]) for actions in lost] == [Spawn] * 5 + [Fatal]
    assert two.active == [1, 2]  # those that were ready work on meanwhile


def test_those_that_somebody_killed_before_they_were_ready_are_replaced_more_often(two: WorkerPool) -> None:
    lost = [two.handle(WorkerGone(0, None, "was killed by SIGKILL", voluntary=False))]
    for number in range(3, 23):
        lost.append(two.handle(WorkerGone(number, None, "was killed by SIGKILL", voluntary=False)))
    assert [type(actions[-1]) for actions in lost] == [Spawn] * 20 + [Fatal]


def test_the_reserve_that_is_lost_is_no_loss_to_the_pass(two: WorkerPool) -> None:
    two.begin_pass(pass_over(4))
    two.dispatch(0.0)
    assert two.handle(WorkerGone(2, None, "was killed")) == [
        Log("worker 2 was killed; it stood by", LogEvent.WORKER_LOST, {"worker": 2, "host": 0}), Spawn(3, 3),
    ]  # fmt: skip
    assert two.workers_lost == 0
    assert two.dispatch(0.0) == []


def test_with_every_worker_lost_the_files_wait_for_the_next_that_is_ready(two: WorkerPool) -> None:
    two.begin_pass(pass_over(2))
    two.dispatch(0.0)
    for worker in (0, 1, 2):
        two.handle(WorkerGone(worker, None, "was killed"))
        two.dispatch(0.0)
    assert two.active == []
    assert two.starting == 2
    assert two.dispatch(0.0) == []
    ready(two, 4)
    sent = [a for a in two.dispatch(0.0) if isinstance(a, Send)]
    assert [type(a.message) for a in sent] == [BeginDispatch, Assign]
    assert {a.worker for a in sent} == {4}


def test_seats_are_used_again_but_never_by_two() -> None:
    worker_pool = WorkerPool(1)
    taken = {a.worker: a.status_row for a in worker_pool.start() if isinstance(a, Spawn)}
    ready(worker_pool, 0, 1)
    for _ in range(20):
        lost = min(taken)
        del taken[lost]
        actions = worker_pool.handle(WorkerGone(lost, None, "was killed", voluntary=False))
        taken |= {a.worker: a.status_row for a in actions if isinstance(a, Spawn)}
        assert len(set(taken.values())) == len(taken) == 2
        assert max(taken.values()) < status_rows(1)
        ready(worker_pool, max(taken))


def test_a_service_that_closes_replaces_nobody(two: WorkerPool) -> None:
    two.close()
    assert two.handle(WorkerGone(0, None, "was ended")) == []


def test_news_of_a_worker_that_is_not_known_changes_nothing(two: WorkerPool) -> None:
    assert two.handle(WorkerGone(77, None, "was killed")) == []
    assert two.handle(WorkerReady(77, SAME)) == []
    assert two.active == [0, 1]


def lost_in_a_row(worker_pool: WorkerPool, worker: int, most: int) -> tuple[int, list[Action]]:
    """How many workers ended, beginning with ``worker``, until more follows than another one; and what that is."""
    for number in range(most):
        actions = worker_pool.handle(WorkerGone(worker, None, "ended with exit code 3", voluntary=True))
        if found := [act for act in actions if not isinstance(act, Log | Spawn)]:
            return number + 1, found
        (spawned,) = [act.worker for act in actions if isinstance(act, Spawn)]
        ready(worker_pool, spawned)
        worker = worker_pool.active[-1]
    return most, []


def test_a_host_whose_workers_end_without_a_sample_is_turned_away_and_the_service_goes_on(two: WorkerPool) -> None:
    started = [act.worker for act in two.add_host(1, 1) if isinstance(act, Spawn)]
    ready(two, *started)
    two.begin_pass(pass_over(4))
    count, found = lost_in_a_row(two, two.active[-1], 30)
    assert count == 20
    (turned_away,) = found
    assert isinstance(turned_away, TurnAway)
    assert turned_away.host == 1
    assert "20 workers in a row ended outside of process()" in str(turned_away.error)
    two.remove_host(1, {}, "was turned away")
    assert two.active == [0, 1]


def test_workers_that_end_without_a_sample_between_them_end_the_service_also_while_nobody_reads(
    two: WorkerPool,
) -> None:
    count, found = lost_in_a_row(two, two.active[-1], 30)
    assert count == 20
    assert isinstance(found[-1], Fatal)


def test_workers_in_reserve_that_end_count_too(two: WorkerPool) -> None:
    """Otherwise they would be replaced for ever."""
    two.begin_pass(pass_over(4))
    reserve, lost, found = 2, 0, list[Action]()
    while not any(isinstance(act, Fatal) for act in found):
        found = two.handle(WorkerGone(reserve, None, "ended with exit code 3"))
        reserve, lost = reserve + 1, lost + 1
        if any(isinstance(act, Spawn) for act in found):
            ready(two, reserve)
    assert lost == 20


def killed_in_a_row(worker_pool: WorkerPool, most: int) -> tuple[int, list[Action]]:
    """How many workers can be killed until more follows than another one; and what that is."""
    for number in range(most):
        actions = worker_pool.handle(WorkerGone(worker_pool.active[-1], None, "was killed", voluntary=False))
        if found := [act for act in actions if not isinstance(act, Log | Spawn)]:
            return number + 1, found
        ready(worker_pool, *(act.worker for act in actions if isinstance(act, Spawn)))
    return most, []


def test_kills_from_outside_end_the_service_only_after_many_and_in_a_pass(two: WorkerPool) -> None:
    assert killed_in_a_row(two, 500) == (500, [])
    two.begin_pass(pass_over(4))
    count, (fatal,) = killed_in_a_row(two, 500)
    assert count == 200
    assert isinstance(fatal, Fatal)
    assert "200 workers in a row were killed, without a sample between them" in str(fatal.error)


def test_a_sample_between_them_forgives_kills_and_deaths(two: WorkerPool) -> None:
    made = pass_over(4)
    two.begin_pass(made)
    for _ in range(3):
        assert killed_in_a_row(two, 150) == (150, [])
        assert lost_in_a_row(two, two.active[-1], 15) == (15, [])
        made.samples_committed += 1


def test_a_host_that_names_a_sample_which_was_not_asked_for_is_not_believed(two: WorkerPool) -> None:
    made = pass_over(4)
    two.begin_pass(made)
    two.dispatch(0.0)
    attempt = made.ledgers[0].attempt
    gone = WorkerGone(0, (1 << 40, attempt, 3), "ended with exit code 3", voluntary=True)
    assert [act.text for act in two.handle(gone) if isinstance(act, Log)] == [
        "worker 0 ended with exit code 3; its files go to another"
    ]
