"""The ledger of one file: what is committed, what is refused, who is to blame."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from pydp2.errors import Error, RemoteProtocolError
from pydp2.order.sample_source import END, FileFailure, SampleRun
from pydp2.order.snapshot import UNREACHED, Reread
from pydp2.protocol.file_ranges import DROPPED_COST, FILE_ENDED, FILE_OPEN, SAMPLE_COST, FileRange
from pydp2.server.actions import WorkerGone
from pydp2.server.dispatch.file_state import FileState
from pydp2.server.dispatch.ledger import MAX_MEMORY_DEATHS, NO_PAUSE, FileLedger
from pydp2.server.dispatch.reread import open_ledger


def part(
    first: int, count: int, *, attempt: int = 1, dropped_samples: tuple[int, ...] = (), state: int = FILE_OPEN
) -> FileRange:
    reasons = [[y, "bits", f"bad {y}"] for y in dropped_samples]
    return FileRange(7, attempt, first, count, count - len(dropped_samples), state, [first + count], reasons, {})


def run_of(part: FileRange, size: int = 10) -> SampleRun | None:
    sample_indices = [
        y for y in range(part.first_index, part.first_index + part.count) if y not in {h[0] for h in part.dropped}
    ]
    if not sample_indices:
        return None
    return SampleRun(None, 0, len(sample_indices), np.array(sample_indices), np.full(len(sample_indices), size), None)


def commit(entry: FileLedger, part: FileRange) -> None:
    entry.commit(part, run_of(part))


@pytest.fixture
def entry() -> FileLedger:
    made = FileLedger(file=7, position=3, limit=1000)
    made.assign(1, 1)
    return made


def gone(entry: FileLedger, sample_index: int | None, **how: bool) -> WorkerGone:
    """The worker ended while it was asking for ``sample_index``; None: not for a sample of this file."""
    running = None if sample_index is None else (entry.file, entry.attempt, sample_index)
    return WorkerGone(1, running, "was killed", **how)


def sample_indices(entry: FileLedger) -> list[int]:
    found: list[int] = []
    while isinstance(front := entry.next_run(), SampleRun):
        found += front.sample_indices[front.lo : front.hi].tolist()
        entry.consume(front.hi - front.lo)
    return found


def test_ranges_are_committed_in_order_and_found_by_the_merge(entry: FileLedger) -> None:
    commit(entry, part(0, 3))
    commit(entry, part(3, 2, state=FILE_ENDED))
    assert (entry.committed, entry.crcs) == (5, [5])
    assert sample_indices(entry) == [0, 1, 2, 3, 4]
    assert entry.next_run() is END


@pytest.mark.parametrize("first", [1, 4])
def test_a_range_that_leaves_a_gap_is_refused(entry: FileLedger, first: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"from sample {first}, but 0 are committed"):
        commit(entry, part(first, 2))
    assert entry.committed == 0


def test_a_range_that_comes_twice_is_refused(entry: FileLedger) -> None:
    commit(entry, part(0, 3))
    with pytest.raises(RemoteProtocolError, match="from sample 0, but 3 are committed"):
        commit(entry, part(0, 3))
    assert sample_indices(entry) == [0, 1, 2]


def test_only_the_attempt_that_is_valid_now_is_accepted(entry: FileLedger) -> None:
    assert entry.accepts(1, 1)
    assert not entry.accepts(1, 0)
    assert not entry.accepts(2, 1)
    entry.return_to_queue()
    assert not entry.accepts(1, 1)
    entry.assign(2, 2)
    assert not entry.accepts(1, 1)
    commit(entry, part(0, 1, attempt=2, state=FILE_ENDED))
    assert not entry.accepts(2, 2)


def test_a_chunk_of_an_older_attempt_is_refused_though_the_same_worker_has_the_file_again(entry: FileLedger) -> None:
    entry.return_to_queue()
    entry.assign(1, 3)
    assert [entry.accepts(1, attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, False]


def test_samples_that_a_new_attempt_replays_cost_nothing_again(entry: FileLedger) -> None:
    commit(entry, part(0, 3))
    entry.lose_worker(gone(entry, 3))
    entry.assign(2, 2)
    entry.limit = 1000
    again = entry.assignment(0)
    assert (again.start, again.crcs, again.spent_bytes) == (3, [3], 3 * (10 + SAMPLE_COST))
    assert (entry.use, entry.unspent) == (1000, 1000 - again.spent_bytes)
    commit(entry, part(3, 2, attempt=2))
    assert entry.spent_bytes == 5 * (10 + SAMPLE_COST)
    assert sample_indices(entry) == [0, 1, 2, 3, 4]
    assert entry.use == 1000 - entry.spent_bytes


def test_of_a_file_that_is_read_again_only_the_samples_that_were_asked_for_cost_credit() -> None:
    entry = open_ledger(7, 3, Reread(np.array([1, 4])), UNREACHED)
    entry.assign(1, 1)
    assert (entry.assignment(0).send_from, entry.assignment(0).until) == (5, 5)
    run = SampleRun(None, 0, 2, np.array([1, 4]), np.full(2, 10), None)
    entry.commit(FileRange(7, 1, 0, 5, 2, FILE_ENDED, [5], [], {}), run)
    assert (entry.committed, entry.spent_bytes) == (5, 2 * (10 + SAMPLE_COST))


@pytest.mark.parametrize("after", ["a range", "a loss"])
def test_what_the_worker_waited_for_is_over_with_the_next_range_and_with_the_worker(
    entry: FileLedger, after: str
) -> None:
    entry.need, entry.wanted, entry.needs_own_worker = 70, True, True
    if after == "a range":
        commit(entry, part(0, 1))
    else:
        entry.lose_worker(gone(entry, None))
    assert (entry.need, entry.wanted, entry.needs_own_worker) == (0, False, False)


def test_a_file_that_is_closed_gives_back_the_memory_of_what_the_merge_has_not_taken(entry: FileLedger) -> None:
    for first in (0, 2):
        commit(entry, part(first, 2))
    entry.next_run()
    entry.consume(1)
    runs = [*entry.runs]
    for run in runs:
        run.columns = Mock()
    entry.close()
    assert [run.columns.slice.call_args.args for run in runs] == [(1, 2), (0, 2)]
    assert all(run.columns.slice().release.called for run in runs)


def test_a_range_of_no_samples_leaves_the_checksum_of_those_before(entry: FileLedger) -> None:
    commit(entry, part(0, 2))
    entry.commit(FileRange(7, 1, 2, 0, 0, FILE_ENDED, [], [], {}), None)
    assert entry.end_checksum == (2, 2)


def test_holes_cost_credit_until_the_merge_has_passed_them(entry: FileLedger) -> None:
    commit(entry, part(0, 4, dropped_samples=(0, 2)))
    assert entry.spent_bytes == 2 * DROPPED_COST + 2 * (10 + SAMPLE_COST)
    assert entry.use == entry.spent_bytes  # more than the limit of 1000: nothing of it is hidden
    assert [*entry.pass_dropped()] == [(0, "bits", "bad 0")]
    entry.next_run()
    entry.consume(1)
    assert [*entry.pass_dropped()] == [(2, "bits", "bad 2")]
    entry.consume(1)
    assert entry.spent_bytes == entry.merged


def test_holes_behind_the_last_sample_are_passed_before_the_end(entry: FileLedger) -> None:
    commit(entry, part(0, 3, dropped_samples=(1, 2), state=FILE_ENDED))
    assert [*entry.pass_dropped()] == []
    entry.next_run()
    assert entry.consume(1) == 0
    assert [*entry.pass_dropped()] == [(1, "bits", "bad 1"), (2, "bits", "bad 2")]
    assert entry.next_run() is END
    assert entry.use == 0


def test_a_grant_that_was_not_spent_returns_at_the_end_and_at_a_death(entry: FileLedger) -> None:
    commit(entry, part(0, 2))
    assert entry.use == 1000
    entry.return_to_queue()
    assert entry.use == entry.spent_bytes == 2 * (10 + SAMPLE_COST)
    entry.assign(2, 2)
    entry.limit = 900
    commit(entry, part(2, 0, attempt=2, state=FILE_ENDED))
    assert entry.use == entry.spent_bytes


def test_a_file_is_condemned_at_the_third_death_at_the_same_sample(entry: FileLedger) -> None:
    for attempt, sample_index in enumerate([5, 6, 5, None], 2):
        assert entry.lose_worker(gone(entry, sample_index)) is None
        assert entry.state is FileState.QUEUED
        entry.assign(1, attempt)
    assert entry.lose_worker(gone(entry, 5)) == 5
    assert entry.state is FileState.CONDEMNED


def test_before_a_deadly_sample_all_before_it_must_be_committed(entry: FileLedger) -> None:
    entry.lose_worker(gone(entry, 5))
    entry.assign(1, 2)
    entry.lose_worker(gone(entry, 2))
    assert (entry.pauses, entry.pause) == ({2, 5}, 2)
    entry.assign(2, 2)
    commit(entry, part(0, 2, attempt=2))
    entry.return_to_queue()
    assert entry.pauses == {5}
    entry.assign(3, 3)
    commit(entry, part(2, 3, attempt=3))
    entry.return_to_queue()
    assert (entry.pauses, entry.pause) == (set(), NO_PAUSE)


def test_a_file_that_starves_workers_again_and_again_is_condemned(entry: FileLedger) -> None:
    for attempt in range(2, MAX_MEMORY_DEATHS + 1):
        assert entry.lose_worker(gone(entry, attempt, over_memory=True)) is None
        entry.assign(1, attempt)
    assert entry.lose_worker(gone(entry, 0, over_memory=True)) == 0
    assert entry.state is FileState.CONDEMNED


def test_a_file_of_which_workers_send_what_is_not_accepted_is_condemned_unless_something_new_comes(
    entry: FileLedger,
) -> None:
    """At whichever samples they are when they end."""
    for attempt, sample_index in enumerate((9, 2), 2):
        assert entry.lose_worker(gone(entry, sample_index, broke_protocol=True)) is None
        entry.assign(1, attempt)
    commit(entry, part(0, 2, attempt=3))
    for attempt, sample_index in enumerate((4, 30), 4):
        assert entry.lose_worker(gone(entry, sample_index, broke_protocol=True)) is None
        entry.assign(1, attempt)
    assert entry.lose_worker(gone(entry, 17, broke_protocol=True)) == 17
    assert entry.state is FileState.CONDEMNED


def test_a_file_given_up_ends_behind_what_is_committed(entry: FileLedger) -> None:
    commit(entry, part(0, 2))
    error = Error("three workers died")
    entry.end_early(error, skip=False)
    assert sample_indices(entry) == [0, 1]
    assert entry.next_run() == FileFailure(error, entry.file, 2)
    assert entry.ended


def test_a_file_that_is_skipped_ends_there_as_if_it_had_no_more(entry: FileLedger) -> None:
    commit(entry, part(0, 2))
    error = Error("three workers died")
    entry.end_early(error, skip=True)
    assert sample_indices(entry) == [0, 1]
    assert entry.next_run() is END
    assert entry.early_end is error
