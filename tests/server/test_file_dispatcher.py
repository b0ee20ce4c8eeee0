"""One pass over the files: what workers are told, in lists of actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pydp2.errors import Error, FileCondemned, RemoteProtocolError, to_wire
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun
from pydp2.order.snapshot import FilePosition, Reread, SnapshotPoint
from pydp2.protocol.file_ranges import (
    DROPPED_COST,
    FILE_ENDED,
    FILE_OPEN,
    FILE_RAISED,
    SAMPLE_COST,
    FileAssignment,
    FileRange,
)
from pydp2.protocol.messages import Assign, BeginDispatch, EndDispatch, Grant, StealFile, Want
from pydp2.server.actions import Action, Log, Loss, Send, WorkerGone
from pydp2.server.cache.memory import MemoryCache
from pydp2.server.dispatch.cache_fill import CacheFill
from pydp2.server.dispatch.file_dispatcher import CycleReading, FileDispatcher, ReadContext
from pydp2.server.dispatch.ledger import NO_PAUSE
from pydp2.server.dispatch.ledger_source import LedgerSource
from pydp2.system.log_events import LogEvent
from tests.server.sources import losses_of, source_of

COST = 84 + SAMPLE_COST  # of every sample here: 100


def reading(files: int, cycle_length: int = 2, workers: int = 2, budget: int = 4000, **options: Any) -> FileDispatcher:
    """Files are wanted in list order; with 2 files of the cycle each has a share of 1000 and 2000 are left for the
    others."""
    cycle = {name: options.pop(name) for name in ("ramp", "share") if name in options}
    context = {name: options.pop(name) for name in ("skip_errors", "cache") if name in options}
    made = FileDispatcher(
        ReadContext(budget=budget, workers=workers, label=str, **context),
        CycleReading(length=cycle_length, **cycle),
        pass_id=4,
        seed=9,
        order=np.arange(files),
        **options,
    )
    for file in range(min(cycle_length, files)):
        made.open_file(file)
    return made


def assigned(actions: list[Action]) -> dict[int, list[FileAssignment]]:
    """What each worker is to run."""
    found: dict[int, list[FileAssignment]] = {}
    for action in actions:
        if isinstance(action, Send) and isinstance(action.message, Assign):
            found.setdefault(action.worker, []).extend(map(FileAssignment.from_wire, action.message.items))
    return found


def grants(actions: list[Action]) -> list[list[int]]:
    """[worker, attempt, limit, pause, bound] of every grant. Attempts are numbered as files are given out."""
    return [
        [a.worker, *item]
        for a in actions
        if isinstance(a, Send) and isinstance(a.message, Grant)
        for item in a.message.items
    ]


def send(
    made: FileDispatcher, worker: int, file: int, first: int, rows: int, *, state: int = FILE_OPEN,
    dropped_samples: int = 0, error: Mapping[str, str] | None = None, attempt: int | None = None,
    size: int = COST - SAMPLE_COST, did_not_repeat: bool = False,
) -> None:  # fmt: skip
    """``worker`` sends ``rows`` samples and then ``dropped_samples`` dropped ones."""
    if attempt is None:
        attempt = made.ledgers[file].attempt
    bad = [[first + rows + i, "bits", "bad"] for i in range(dropped_samples)]
    part = FileRange(
        file,
        attempt,
        first,
        rows + dropped_samples,
        rows,
        state,
        [first + rows],
        bad,
        dict(error or {}),
        did_not_repeat,
    )
    run = SampleRun(None, 0, rows, np.arange(first, first + rows), np.full(rows, size), None) if rows else None
    made.commit(worker, part, run)


def merge(source: LedgerSource, file: int) -> int:
    """Take all that is there of ``file``."""
    taken = 0
    while isinstance(front := source.next_run(file), SampleRun):
        source.consume(file, front.hi - front.lo)
        taken += front.hi - front.lo
    return taken


def test_files_are_handed_out_in_the_order_of_the_merge_and_bound_ones_with_their_whole_share() -> None:
    made = reading(9)
    made.add_worker(1)
    made.add_worker(2)
    actions = made.dispatch()
    assert actions[:2] == [Send(1, BeginDispatch(0, 4, 9)), Send(2, BeginDispatch(0, 4, 9))]
    given = assigned(actions)
    assert sorted(a.file for each in given.values() for a in each) == [0, 1, 2, 3, 4, 5]
    assert [(a.file, a.position, a.bound, a.limit) for a in given[1]] == [
        (0, 0, True, 1000), (2, 2, False, 125), (4, 4, False, 125),
    ]  # fmt: skip
    assert made.dispatch() == []


def test_a_worker_that_ends_files_quickly_is_given_more_at_a_time() -> None:
    made = reading(400, workers=1)
    made.add_worker(1)
    waiting = [len(assigned(made.dispatch())[1])]
    for file in range(5):
        send(made, 1, file, 0, 0, state=FILE_ENDED)
        waiting.append(len(assigned(made.dispatch()).get(1, [])))
    assert waiting == [4, 1, 1, 2, 2, 2]


def test_tiny_files_are_not_known_without_end() -> None:
    made = reading(10_000, workers=1)
    made.add_worker(1)
    while given := assigned(made.dispatch()):
        for each in given[1]:
            send(made, 1, each.file, 0, 0, state=FILE_ENDED)
    assert 4000 < len(made.ledgers) < 5000


def test_files_that_wait_at_a_worker_leave_the_credit_to_those_that_are_read() -> None:
    made = reading(400, workers=2, budget=640_000)  # 320,000 for files ahead, 160,000 for one of them
    for worker in (1, 2):
        made.add_worker(worker)
    made.dispatch()
    for file in range(2, 60):
        entry = made.ledgers[file]
        assert entry.worker is not None
        send(made, entry.worker, file, 0, 5, state=FILE_ENDED)  # each costs 500
        made.dispatch()
    waiting = [entry for entry in made.ledgers.values() if entry.worker is not None and not entry.bound]
    assert 40 < len(waiting) <= 2 * 64
    assert {entry.limit for entry in waiting[-10:]} == {160_000 // 128}, "more than twice what a file costs"


def test_files_ahead_that_were_refused_get_their_credit_in_order_when_others_use_less() -> None:
    made = reading(20, workers=2)
    for worker in (1, 2):
        made.add_worker(worker)
    made.dispatch()
    for file in (2, 3, 4, 5):  # they use up the 2000 of the rest
        entry = made.ledgers[file]
        assert entry.worker is not None
        entry.limit = 500
        made.credit.set_use(file, entry.use)
        send(made, entry.worker, file, 0, 5)
        made.worker_blocked(entry.worker, file, entry.attempt, 5, need=COST)
    assert grants(made.dispatch()) == []
    send(made, made.ledgers[0].worker or 0, 0, 0, 0, state=FILE_ENDED)
    made.close_file(0)
    made.open_file(2)  # its 500 are bytes of its own share now
    granted = {attempt: bound for _, attempt, _, _, bound in grants(made.dispatch())}
    assert granted == {made.ledgers[2].attempt: 1, made.ledgers[3].attempt: 0, made.ledgers[4].attempt: 0}


def test_the_credit_of_a_worker_follows_their_number_while_a_pass_runs() -> None:
    made = reading(100, cycle_length=1, workers=2)  # a rest of 2000
    for worker in range(1, 5):
        made.add_worker(worker)
        made.dispatch(expecting=max(0, 2 - worker))
        assert made.credit.ahead == 2000 // max(2, worker)
    for worker in range(4, 1, -1):
        made.worker_lost(WorkerGone(worker, None, "was told to end"))
        made.dispatch()
        assert made.credit.ahead == 2000 // (worker - 1)


def test_workers_that_are_starting_get_their_share_of_the_lanes() -> None:
    made = reading(4, cycle_length=4)
    made.add_worker(1)
    assert [a.file for a in assigned(made.dispatch(expecting=1))[1]] == [0, 1]
    made.add_worker(2)
    assert [a.file for a in assigned(made.dispatch())[2]] == [2, 3]


@pytest.mark.parametrize(("files", "first", "second"), [(4, [0, 3], [1, 2]), (40, [0], [1, 2, 3])])
def test_workers_get_equally_many_files_of_a_short_list_and_equally_long_turns_of_a_longer_one(
    files: int, first: list[int], second: list[int]
) -> None:
    """The files of a short list are as good as the whole pass; those of a longer one are followed by others."""
    made = reading(files, cycle_length=4, budget=100, share=lambda file: [64, 23, 20, 16][file % 4])
    made.add_worker(1)
    made.add_worker(2)
    given = assigned(made.dispatch())
    assert sorted(a.file for a in given[1] if a.file < 4) == first
    assert sorted(a.file for a in given[2] if a.file < 4) == second


def test_a_worker_that_never_starts_does_not_keep_the_merge_waiting() -> None:
    made = reading(4, cycle_length=4)
    made.add_worker(1)
    made.dispatch(expecting=1)
    made.want(3)
    assert assigned(made.dispatch(expecting=1, waits=True)) == {}
    assert [a.file for a in assigned(made.dispatch(expecting=1))[1]] == [3]
    assert assigned(made.dispatch(expecting=1)) == {}
    made.want(2)
    assert [a.file for a in assigned(made.dispatch(expecting=1))[1]] == [2]
    assert assigned(made.dispatch()) == {}


def test_a_worker_is_told_when_one_of_its_files_is_bound() -> None:
    made = reading(4, workers=1)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 0, state=FILE_ENDED)
    made.close_file(0)
    made.open_file(2)
    assert [1, 3, 1000, NO_PAUSE, 1] in grants(made.dispatch())


def test_the_merge_that_waits_is_said_once_until_something_came() -> None:
    made = reading(1, cycle_length=1, workers=1)
    source = source_of(made)
    made.add_worker(1)
    made.dispatch()
    assert source.next_run(0) is WAIT
    made.want(0, 7)
    made.want(0, 6)
    assert [a for a in made.dispatch() if isinstance(a, Send)] == [Send(1, Want(1, 7))]
    send(made, 1, 0, 0, 1)
    merge(source, 0)
    made.want(0, 6)
    assert Send(1, Want(1, 7)) in made.dispatch()
    send(made, 1, 0, 1, 1)
    merge(source, 0)
    made.want(0, 1 << 62)
    assert Send(1, Want(1, 2 + 4096)) in made.dispatch()


@pytest.mark.parametrize(("pull", "asked"), [(1, [5, 100, 1024]), (16, [5, 5, 5])])
def test_without_turns_a_file_is_asked_for_more_at_a_time_the_longer_it_is_waited_for(
    pull: int, asked: list[int]
) -> None:
    """It is the same one that is waited for again and again; with turns the merge goes on to another."""
    made = reading(1, cycle_length=1, workers=1, budget=10**7, share=lambda _: pull)
    source = source_of(made)
    made.add_worker(1)
    made.dispatch()
    for rows, more in zip((2, 98, 4900), asked, strict=True):
        send(made, 1, 0, made.ledgers[0].committed, rows)
        merge(source, 0)
        made.want(0, 5)
        assert Send(1, Want(1, made.ledgers[0].committed + more)) in made.dispatch()


def test_what_is_merged_is_granted_again_in_steps_worth_a_message() -> None:
    made = reading(1, cycle_length=1, workers=1)  # a share of 4000
    source = source_of(made)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 30)
    source.next_run(0)
    source.consume(0, 5)
    assert grants(made.dispatch()) == []
    source.consume(0, 11)
    assert grants(made.dispatch()) == [[1, 1, 5600, NO_PAUSE, 1]]


def test_one_sample_exceeds_the_share_only_if_the_merge_waits_for_it_and_nothing_else_of_it_is_there() -> None:
    made = reading(3)
    source = source_of(made)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 9)
    made.worker_blocked(1, 0, made.ledgers[0].attempt, 9, need=5000)
    assert grants(made.dispatch()) == []  # the merge is elsewhere
    source.next_run(0)
    source.consume(0, 8)
    assert all(limit <= 1800 for _, attempt, limit, *_ in grants(made.dispatch()) if attempt == 1)
    source.consume(0, 1)
    made.worker_blocked(1, 0, made.ledgers[0].attempt, 9, need=5000)
    made.want(0)
    assert [1, 1, 5900, NO_PAUSE, 1] in grants(made.dispatch())
    assert made.credit.used <= 4000 + 5000


def test_dropped_samples_count_against_the_credit_of_their_file() -> None:
    made = reading(1, cycle_length=1, workers=1)
    losses = losses_of(made)
    source = source_of(made, losses)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 0, dropped_samples=10)
    assert made.credit.used == 10 * DROPPED_COST > made.credit.share
    made.worker_blocked(1, 0, 1, 10, need=1)
    assert grants(made.dispatch()) == []
    assert source.next_run(0) is WAIT  # the merge passes them
    assert losses.dropped == 10
    assert grants(made.dispatch()) == [[1, 1, 10 * DROPPED_COST + 4000, NO_PAUSE, 1]]


def test_where_the_merge_stands_and_how_many_were_dropped_before_it_agree() -> None:
    made = reading(1, cycle_length=1, workers=1)
    source = source_of(made)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 2, dropped_samples=3)
    source.next_run(0)
    source.consume(0, 1)
    assert (source.position(0).sample_index, source.merged_counts) == (1, (1, 0))
    source.consume(0, 1)
    assert (source.position(0).sample_index, source.merged_counts) == (
        2,
        (2, 0),
    )  # whether those behind it are there yet does not show
    source.next_run(0)
    assert (source.position(0).sample_index, source.merged_counts) == (5, (2, 3))
    send(made, 1, 0, 5, 0, dropped_samples=1)
    assert (source.position(0).sample_index, source.merged_counts) == (5, (2, 3))
    source.next_run(0)
    assert (source.position(0).sample_index, source.merged_counts) == (6, (2, 4))


def test_a_report_that_a_grant_has_crossed_means_nothing() -> None:
    made = reading(1, cycle_length=1, workers=1)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 3)
    before = made.ledgers[0].need
    made.worker_blocked(1, 0, 1, 2, need=70)
    made.worker_blocked(1, 0, 1, 2, need=0)
    made.dispatch()
    made.worker_blocked(1, 0, 1, 3, need=0)  # and one at no stop
    assert made.ledgers[0].need == before
    assert made.dispatch() == []


def test_a_worker_that_waits_beyond_what_it_sent_breaks_the_protocol() -> None:
    made = reading(1, cycle_length=1, workers=1)
    made.add_worker(1)
    made.dispatch()
    with pytest.raises(RemoteProtocolError, match="waits at sample 4, but 0 are committed"):
        made.worker_blocked(1, 0, 1, 4, need=70)


def test_at_the_start_the_first_lanes_are_run_by_their_turns_as_far_as_the_first_batches_go() -> None:
    made = reading(3, workers=1, ramp={0: 6, 1: 10}, share=lambda file: 3 + 2 * file)
    made.add_worker(1)
    assert [(a.file, a.block_length, a.ramp_until) for a in assigned(made.dispatch())[1]] == [
        (1, 5, 10),
        (0, 3, 6),
        (2, 7, 0),
    ]


@pytest.mark.parametrize(("missing", "each"), [(1, 1), (100, 50), (300, 75), (4000, 1000)])
def test_there_a_worker_is_asked_for_its_part_of_what_the_pool_lacks(missing: int, each: int) -> None:
    """Of half of it, when it is much: so the merge does not have all of it to do at the end."""
    made = reading(2, workers=2, ramp={0: 6, 1: 6}, share=lambda _: 20)
    source = source_of(made)
    made.add_worker(1)
    made.add_worker(2)
    made.dispatch()
    made.want(0, 3, missing)
    assert Send(1, Want(1, each)) in made.dispatch()
    send(made, 1, 0, 0, 7)
    merge(source, 0)
    made.want(0, 3, missing)
    assert Send(1, Want(1, 7 + 3)) in made.dispatch(), "later it is asked for the rest of the turn"


def test_a_lost_worker_s_file_runs_again_from_what_is_committed_and_its_late_output_is_dropped() -> None:
    made = reading(1, cycle_length=1, workers=1)
    source = source_of(made)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 4)
    made.worker_lost(WorkerGone(1, (0, 1, 6), "was killed"))
    send(made, 1, 0, 4, 2, attempt=1)  # had been on its way
    made.worker_blocked(1, 0, 1, 6, need=9999)
    made.add_worker(2)
    again = assigned(made.dispatch())[2][0]
    assert (again.attempt, again.start, again.spent_bytes, again.crcs, again.pause) == (2, 4, 4 * COST, [4], 6)
    send(made, 1, 0, 4, 2, attempt=1)
    send(made, 2, 0, 4, 1, attempt=2, state=FILE_ENDED)
    assert merge(source, 0) == 5
    assert source.next_run(0) is END


def test_files_that_a_worker_returns_go_to_others_and_those_that_it_has_begun_stay() -> None:
    made = reading(4, cycle_length=4)
    source = source_of(made)
    made.add_worker(1)
    given = {each.file: each.attempt for each in assigned(made.dispatch())[1]}
    send(made, 1, 0, 0, 4)
    made.add_worker(2)
    made.dispatch()
    made.load.retire(1)
    assert 1 not in assigned(made.dispatch()), "it gets nothing new"
    made.return_files(1, {given[2], given[3], 999})
    again = {each.file: each for each in assigned(made.dispatch())[2]}
    assert again.keys() == {2, 3}
    assert [(again[file].start, again[file].pause) for file in (2, 3)] == [(0, NO_PAUSE)] * 2
    send(made, 1, 2, 0, 1, attempt=given[2])  # which it said that it would not
    assert not made.ledgers[2].committed
    send(made, 1, 0, 4, 1, state=FILE_ENDED)
    send(made, 1, 1, 0, 3, state=FILE_ENDED)
    assert made.load.file_count(1) == 0
    made.return_files(1, {given[0]})  # of a file that has ended
    assert merge(source, 0) == 5


def stolen(made: FileDispatcher) -> list[tuple[int, int]]:
    """Worker and file of what is asked back at the next dispatch, which gives out nothing else."""
    actions = made.dispatch()
    assert assigned(actions) == {}
    files = {ledger.attempt: file for file, ledger in made.ledgers.items()}
    sent = [action for action in actions if isinstance(action, Send)]
    return [(action.worker, files[m.attempt]) for action in sent if isinstance(m := action.message, StealFile)]


def test_a_worker_without_a_file_gets_one_that_another_has_not_begun() -> None:
    made = reading(5, cycle_length=5)
    made.add_worker(1)
    made.add_worker(2)
    given = assigned(made.dispatch())
    assert [[each.file for each in given[worker]] for worker in (1, 2)] == [[0, 2, 4], [1, 3]]
    attempts = {each.file: each.attempt for each in given[1] + given[2]}
    assert stolen(made) == [], "both have files"
    send(made, 1, 2, 0, 1)
    for file in (1, 3):
        send(made, 2, file, 0, 1, state=FILE_ENDED)
    assert stolen(made) == [(1, 4)], "the one that it comes to last"
    assert stolen(made) == [], "one worker has nothing to do, and one was asked"
    made.return_files(1, {attempts[4]})
    assert [each.file for each in assigned(made.dispatch())[2]] == [4]
    send(made, 2, 4, 0, 1, attempt=made.ledgers[4].attempt, state=FILE_ENDED)
    assert stolen(made) == [(1, 0)], "what came of file 2 shows that it is begun"
    made.return_files(1, set())
    assert stolen(made) == [], "that one was begun, too"
    assert len(made.load) == 2, "neither retires"
    for file in (0, 2):
        send(made, 1, file, made.ledgers[file].committed, 1, state=FILE_ENDED)
    assert merge(source_of(made), 0) == 1


def test_the_only_file_of_a_worker_is_not_asked_back_and_a_lost_worker_owes_no_answer() -> None:
    made = reading(3, cycle_length=3)
    made.add_worker(1)
    made.dispatch()
    made.add_worker(2)
    assert stolen(made) == [(1, 2)]
    made.worker_lost(WorkerGone(1, None, "was killed by SIGKILL"))
    assert [each.file for each in assigned(made.dispatch())[2]] == [0, 1, 2]
    made.add_worker(3)
    assert stolen(made) == [(2, 2)]
    made.return_files(2, {made.ledgers[2].attempt})
    assert [each.file for each in assigned(made.dispatch())[3]] == [2]
    made.add_worker(4)
    assert stolen(made) == [(2, 1)]
    made.return_files(2, {made.ledgers[1].attempt})
    assert [each.file for each in assigned(made.dispatch())[4]] == [1]
    made.add_worker(5)
    assert stolen(made) == [], "each of the others has one file, and begins it now"


def test_only_the_file_that_was_running_is_condemned_and_after_three_deaths_at_the_same_sample() -> None:
    made = reading(2)
    source = source_of(made)
    for worker in range(1, 4):
        made.add_worker(worker)
        if worker > 1:
            assert {a.pause for a in assigned(made.dispatch())[worker] if a.file == 1} == {7}
        else:
            made.dispatch()
        made.worker_lost(WorkerGone(worker, (1, made.ledgers[1].attempt, 7), "was killed by SIGSEGV"))
    assert source.next_run(0) is WAIT
    found = source.next_run(1)
    assert isinstance(found, FileFailure)
    assert isinstance(found.error, FileCondemned)
    assert str(found.error).startswith("file 1, sample 7: three workers died")
    made.add_worker(9)
    assert [a.file for a in assigned(made.dispatch())[9]] == [0]


def reading_with_one_alone(files: int) -> FileDispatcher:
    """Worker 1 had too much memory while it ran file 1, of which 2 samples are committed, so worker 2 has it alone."""
    made = reading(files, cycle_length=files)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 1, 0, 2)
    made.worker_lost(WorkerGone(1, (1, made.ledgers[1].attempt, 2), "was replaced", over_memory=True))
    made.add_worker(2)
    assert [each.file for each in assigned(made.dispatch())[2]] == [1]
    return made


@pytest.mark.parametrize("after", ["a range", "its end", "credit", "a stop", "its error", "its close", "its return"])
def test_what_a_worker_had_no_memory_for_is_alone_at_the_next_one_until_something_comes_of_it(after: str) -> None:
    """So no file is condemned for the memory that others need."""
    made = reading_with_one_alone(3)
    assert assigned(made.dispatch()) == {}
    if after == "its return":
        made.add_worker(3)
        assert [each.file for each in assigned(made.dispatch())[3]] == [0, 2], "another one gets the others"
        made.return_files(2, {made.ledgers[1].attempt})
        assert [each.file for each in assigned(made.dispatch())[3]] == [1]
        return
    if after in ("credit", "a stop"):
        made.worker_blocked(2, 1, made.ledgers[1].attempt, 2, 9999 if after == "credit" else 0)
    elif after == "its close":
        made.close_file(1)
    else:
        state = {"a range": FILE_OPEN, "its end": FILE_ENDED, "its error": FILE_RAISED}[after]
        send(made, 2, 1, 2, 1, state=state, error=to_wire(Error("bad")) if after == "its error" else None)
    assert [each.file for each in assigned(made.dispatch())[2]] == [0, 2]


def test_it_goes_to_a_worker_that_has_others_when_there_is_no_other() -> None:
    made = reading(3, cycle_length=3)
    made.add_worker(1)
    made.dispatch()
    made.add_worker(2)
    made.worker_lost(WorkerGone(1, (1, made.ledgers[1].attempt, 2), "was replaced", over_memory=True))
    assert [each.file for each in assigned(made.dispatch())[2]] == [1]
    made.add_worker(3)
    made.worker_lost(WorkerGone(2, (1, made.ledgers[1].attempt, 2), "was replaced", over_memory=True))
    assert [each.file for each in assigned(made.dispatch())[3]] == [1]
    made.add_worker(4)
    made.worker_lost(WorkerGone(3, (1, made.ledgers[1].attempt, 2), "was replaced", over_memory=True))
    assert [each.file for each in assigned(made.dispatch())[4]] == [1]
    send(made, 4, 1, 0, 1)
    made.worker_lost(WorkerGone(4, (0, 99, 0), "was replaced", over_memory=True))
    made.add_worker(5)
    assert sorted(each.file for each in assigned(made.dispatch())[5]) == [0, 1, 2], "something new had come of it"


def test_a_file_whose_worker_broke_the_protocol_is_alone_at_the_next_one_and_then_condemned() -> None:
    """So the file is condemned, and none of those whose samples came in the same messages."""
    made = reading(3, cycle_length=3)
    source = source_of(made)
    for worker in (1, 2, 3):
        made.add_worker(worker)
        given = [each.file for each in assigned(made.dispatch())[worker]]
        assert given == ([0, 1, 2] if worker == 1 else [1])
        running = (1, made.ledgers[1].attempt, 10 * worker)
        made.worker_lost(WorkerGone(worker, running, "broke the protocol: why", broke_protocol=True))
    found = source.next_run(1)
    assert isinstance(found, FileFailure)
    assert isinstance(found.error, FileCondemned)
    assert "file 1, sample 30: 3 workers in a row sent what the service does not accept" in str(found.error)
    assert "(the last one broke the protocol: why)" in str(found.error)


def test_a_merge_that_waits_for_another_file_asks_for_the_one_that_is_alone() -> None:
    """Otherwise the merge of another job, which waits at the same worker, would always come first."""
    made = reading_with_one_alone(2)
    made.want(0)
    assert Send(2, Want(made.ledgers[1].attempt, 3)) in made.dispatch()


def test_a_lost_host_leaves_turns_as_they_are_and_no_file_alone() -> None:
    """It counts against the file that was running, as one that may have taken the host's memory."""
    made = reading(2, workers=1, ramp={0: 6, 1: 10})
    source = source_of(made)
    for worker in range(1, 6):
        made.add_worker(worker)
        given = assigned(made.dispatch())[worker]
        assert {each.file: each.ramp_until for each in given} == {0: 6, 1: 10}
        made.worker_lost(
            WorkerGone(worker, (1, made.ledgers[1].attempt, 0), "was lost", over_memory=True, host_lost=True)
        )
    assert isinstance(source.next_run(1), FileFailure)


def test_after_a_worker_without_memory_files_do_not_take_turns() -> None:
    """All of them would be open at the next one, too, before any of them came further."""
    made = reading(2, workers=1, ramp={0: 6, 1: 10})
    made.add_worker(1)
    assert {each.ramp_until for each in assigned(made.dispatch())[1]} == {6, 10}
    made.worker_lost(WorkerGone(1, None, "was replaced", over_memory=True))
    made.add_worker(2)
    assert {each.ramp_until for each in assigned(made.dispatch())[2]} == {0}


@pytest.mark.parametrize("running", [None, (0, 99, 7), (1, 1, 7)])
def test_a_death_between_samples_or_in_another_file_or_attempt_blames_nobody(running: Any) -> None:
    made = reading(1, cycle_length=1)
    made.add_worker(1)
    made.dispatch()
    made.worker_lost(WorkerGone(1, running, "was killed"))
    assert made.ledgers[0].deaths == {}


def test_a_file_that_changed_is_named_once() -> None:
    made, actions = reading(1, cycle_length=1), list[Action]()
    for worker in (1, 2):
        made.add_worker(worker)
        made.dispatch()
        send(made, worker, 0, made.ledgers[0].committed, 1, did_not_repeat=True)
        made.worker_lost(WorkerGone(worker, None, "was killed"))
        actions += made.dispatch()
    (log,) = [action for action in actions if isinstance(action, Log)]
    assert log.event is LogEvent.FILE_CHANGED
    assert "file 0: process() did not repeat itself" in log.text


def test_an_error_of_the_user_s_code_waits_at_its_place() -> None:
    made = reading(1, cycle_length=1)
    source = source_of(made)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 2, state=FILE_RAISED, error=to_wire(Error("no such word")))
    assert merge(source, 0) == 2
    found = source.next_run(0)
    assert isinstance(found, FileFailure)
    assert str(found.error) == "no such word"


def test_with_errors_skipped_the_file_ends_there_and_a_fact_says_so() -> None:
    made = reading(1, cycle_length=1, skip_errors=True)
    losses = losses_of(made)
    source = source_of(made, losses)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 2, state=FILE_RAISED, error=to_wire(Error("no such word")))
    assert merge(source, 0) == 2
    assert source.next_run(0) is END
    assert losses.early_ends == {0: (2, "no such word")}
    assert [a.event for a in made.dispatch() if isinstance(a, Log)] == [LogEvent.FILE_ENDED_EARLY]


def test_a_file_that_is_known_to_end_before_its_first_sample_is_given_to_nobody() -> None:
    made = reading(4, cycle_length=1, workers=1, early_ends={2: (0, "no such word")})
    source = source_of(made)
    made.add_worker(1)
    given = [a.file for a in assigned(made.dispatch())[1]]
    assert given == [0, 1, 3]
    made.open_file(2)
    assert source.next_run(2) is END


def test_what_the_merge_met_last_is_told_before_the_workers_are_told_to_end() -> None:
    made = reading(1, cycle_length=1)
    source = source_of(made)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 0, dropped_samples=1, state=FILE_ENDED)
    assert source.next_run(0) is END
    source.close_file(0)
    text = "file 0, sample 0, slot bits: bad"
    assert made.end() == [
        Log(text, LogEvent.SAMPLE_DROPPED, {"file": "0", "sample": 0, "slot": "bits"}),
        Loss(4, "0", 0, "bits", "bad", "dropped"), Send(1, EndDispatch(0))
    ]  # fmt: skip
    assert made.dispatch() == []


def test_late_output_of_a_file_that_the_merge_is_done_with_is_dropped() -> None:
    made = reading(1, cycle_length=1)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 0, state=FILE_ENDED)
    made.close_file(0)
    send(made, 1, 0, 0, 3, attempt=1)
    made.worker_blocked(1, 0, 1, 0, need=4)
    assert made.ledgers == {}
    assert made.credit.used == 0


def test_pd_44_a_file_in_the_cache_needs_no_worker_and_no_credit() -> None:
    cache = CacheFill(MemoryCache(1 << 20))
    first = reading(1, cycle_length=1, cache=cache)
    first.add_worker(1)
    first.dispatch()
    send(first, 1, 0, 0, 3)
    merge(source_of(first), 0)
    send(first, 1, 0, 3, 2, state=FILE_ENDED)
    merge(source_of(first), 0)
    for _ in range(3):
        later = reading(1, cycle_length=1, cache=cache)
        later.add_worker(1)
        assert later.dispatch() == [Send(1, BeginDispatch(0, 4, 9))]
        assert later.credit.used == 0
        source = source_of(later)
        assert merge(source, 0) == 5
        assert source.next_run(0) is END


def test_a_file_that_was_skipped_is_read_again_in_the_next_pass() -> None:
    cache = CacheFill(MemoryCache(1 << 20))
    made = reading(1, cycle_length=1, cache=cache, skip_errors=True)
    made.add_worker(1)
    made.dispatch()
    send(made, 1, 0, 0, 2, state=FILE_RAISED, error=to_wire(Error("out of reach just now")))
    assert not cache.is_coming(0)
    assert cache.memory is not None
    assert cache.memory.bytes == 0


@pytest.mark.parametrize(("next_file", "share"), [(2, 500), (1, 250)])
def test_a_pass_taken_up_after_its_last_file_was_bound_reads_ahead_with_the_whole_budget(
    next_file: int, share: int
) -> None:
    """For files of the cycle and as many files again that bring back the pool; while one more is to come, half is kept
    for it."""
    saved = SnapshotPoint(5, b"", False, 0, next_file, 0, 0, [FilePosition(0, 3, 0, [])], merged=9, dropped=0)
    made = FileDispatcher(
        ReadContext(budget=1000, workers=2, label=str),
        CycleReading(length=1),
        pass_id=4,
        seed=9,
        order=np.arange(2),
        saved=saved,
    )
    made.open_file(0, Reread(np.arange(0), 3))
    assert made.credit.share == share
