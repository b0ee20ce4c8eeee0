"""The ledger of one file: what is committed, what is refused, who is to blame."""

from __future__ import annotations

import numpy as np
import pytest

from pydp2.errors import Error, RemoteProtocolError
from pydp2.order import END, Failure, Run
from pydp2.protocol.ranges import ENDED, HOLE_COST, OPEN, SAMPLE_COST, Part
from pydp2.server.ledger import NO_PAUSE, Entry


def part(first: int, count: int, *, attempt: int = 1, holes: tuple[int, ...] = (), state: int = OPEN) -> Part:
    reasons = [[y, "bits", f"bad {y}"] for y in holes]
    return Part(7, attempt, first, count, count - len(holes), state, [first + count], reasons, {})


def run_of(part: Part, size: int = 10) -> Run | None:
    ordinals = [y for y in range(part.first, part.first + part.count) if y not in {h[0] for h in part.holes}]
    if not ordinals:
        return None
    return Run(None, 0, len(ordinals), np.array(ordinals), np.full(len(ordinals), size), None)


def commit(entry: Entry, part: Part) -> None:
    entry.commit(part, run_of(part))


@pytest.fixture
def entry() -> Entry:
    return Entry(file=7, position=3, worker=1, attempt=1, limit=1000)


def ordinals(entry: Entry) -> list[int]:
    found: list[int] = []
    while isinstance(front := entry.front(), Run):
        found += front.ordinals[front.lo : front.hi].tolist()
        entry.take(front.hi - front.lo)
    return found


def test_ranges_are_committed_in_order_and_found_by_the_merge(entry: Entry) -> None:
    commit(entry, part(0, 3))
    commit(entry, part(3, 2, state=ENDED))
    assert (entry.committed, entry.crcs) == (5, [5])
    assert ordinals(entry) == [0, 1, 2, 3, 4]
    assert entry.front() is END


@pytest.mark.parametrize("first", [1, 4])
def test_a_range_that_leaves_a_gap_is_refused(entry: Entry, first: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"from sample {first}, but 0 are committed"):
        commit(entry, part(first, 2))
    assert entry.committed == 0


def test_a_range_that_comes_twice_is_refused(entry: Entry) -> None:
    commit(entry, part(0, 3))
    with pytest.raises(RemoteProtocolError, match="from sample 0, but 3 are committed"):
        commit(entry, part(0, 3))
    assert ordinals(entry) == [0, 1, 2]


def test_only_the_attempt_that_is_valid_now_is_accepted(entry: Entry) -> None:
    assert entry.accepts(1, part(0, 1, attempt=1))
    assert not entry.accepts(1, part(0, 1, attempt=0))
    assert not entry.accepts(2, part(0, 1, attempt=1))
    entry.lose(None)
    assert not entry.accepts(1, part(0, 1, attempt=1))
    entry.worker, entry.attempt = 2, 2
    assert not entry.accepts(1, part(0, 1, attempt=1))
    commit(entry, part(0, 1, attempt=2, state=ENDED))
    assert not entry.accepts(2, part(1, 1, attempt=2))


def test_holes_cost_credit_until_the_merge_has_passed_them(entry: Entry) -> None:
    commit(entry, part(0, 4, holes=(0, 2)))
    assert entry.spent == 2 * HOLE_COST + 2 * (10 + SAMPLE_COST)
    assert entry.use == entry.spent  # more than the limit of 1000: nothing of it is hidden
    assert [*entry.pass_holes()] == [(0, "bits", "bad 0")]
    entry.take(1)
    assert [*entry.pass_holes()] == [(2, "bits", "bad 2")]
    entry.take(1)
    assert entry.spent == entry.merged


def test_holes_behind_the_last_sample_are_passed_before_the_end(entry: Entry) -> None:
    commit(entry, part(0, 3, holes=(1, 2), state=ENDED))
    assert [*entry.pass_holes()] == []
    assert entry.take(1) == 0
    assert [*entry.pass_holes()] == [(1, "bits", "bad 1"), (2, "bits", "bad 2")]
    assert entry.front() is END
    assert entry.use == 0


def test_a_grant_that_was_not_spent_returns_at_the_end_and_at_a_death(entry: Entry) -> None:
    commit(entry, part(0, 2))
    assert entry.use == 1000
    entry.lose(None)
    assert entry.use == entry.spent == 2 * (10 + SAMPLE_COST)
    entry.worker, entry.attempt, entry.limit = 2, 2, 900
    commit(entry, part(2, 0, attempt=2, state=ENDED))
    assert entry.use == entry.spent


def test_a_file_is_condemned_at_the_third_death_at_the_same_sample(entry: Entry) -> None:
    assert [entry.lose(5), entry.lose(6), entry.lose(5), entry.lose(None), entry.lose(5)] == [False] * 4 + [True]


def test_before_a_deadly_sample_all_before_it_must_be_committed(entry: Entry) -> None:
    entry.lose(5)
    entry.lose(2)
    assert (entry.stops, entry.pause) == ({2, 5}, 2)
    entry.worker, entry.attempt = 2, 2
    commit(entry, part(0, 2, attempt=2))
    entry.lose(None)
    assert entry.stops == {5}
    entry.worker, entry.attempt = 3, 3
    commit(entry, part(2, 3, attempt=3))
    entry.lose(None)
    assert (entry.stops, entry.pause) == (set(), NO_PAUSE)


def test_a_file_given_up_ends_behind_what_is_committed(entry: Entry) -> None:
    commit(entry, part(0, 2))
    error = Error("three workers died")
    entry.give_up(error, skip=False)
    assert ordinals(entry) == [0, 1]
    assert entry.front() == Failure(error)
    assert entry.ended


def test_a_file_that_is_skipped_ends_there_as_if_it_had_no_more(entry: Entry) -> None:
    commit(entry, part(0, 2))
    error = Error("three workers died")
    entry.give_up(error, skip=True)
    assert ordinals(entry) == [0, 1]
    assert entry.front() is END
    assert entry.early is error
