"""How many batches are asked for: never so few that a trainer waits for ever, never more than it may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.client.run_protocol import WIDE_WINDOW_BYTES, WINDOW_BYTES, PrefetchWindow
from pydp2.protocol.batch_packing import BATCH_COST

LIMIT = 1 << 40
sizes = st.one_of(st.integers(0, 5000), st.integers(0, 2 * WINDOW_BYTES))


def say(ahead: PrefetchWindow, done: int, *, now: bool = False) -> int | None:
    """What is asked for before batch ``done`` is taken, as a client says it."""
    count = ahead.next_request(done, now=now)
    if count is not None:
        ahead.note_requested(count, done)
    return count


@given(st.integers(1, 9), st.booleans(), st.booleans(), st.lists(st.tuples(sizes, st.booleans()), max_size=200))
def test_a_batch_is_asked_for_before_it_is_taken(
    least: int, report_each: bool, may_exceed_prefetch: bool, taken: list[tuple[int, bool]]
) -> None:
    ahead = PrefetchWindow(least, LIMIT, report_each=report_each, may_exceed_prefetch=may_exceed_prefetch)
    asked = ahead.start_pass()
    assert asked == least
    for done, (nbytes, waits) in enumerate(taken):
        asked += say(ahead, done) or 0
        if waits:
            asked += say(ahead, done, now=True) or 0
        assert 1 <= asked <= 65
        if not may_exceed_prefetch:
            assert asked <= least + 1
        if report_each:
            assert asked >= least + 1
        asked -= 1
        ahead.note_taken(nbytes, nbytes)


@given(st.integers(1, 9), sizes, st.booleans(), st.booleans())
def test_of_small_batches_more_are_asked_for_at_a_time_and_of_large_ones_prefetch(
    least: int, nbytes: int, shown: bool, high_latency: bool
) -> None:
    ahead = PrefetchWindow(least, LIMIT, report_each=False, high_latency=high_latency)
    asked, said = ahead.start_pass(), 0
    for done in range(1000):
        count = say(ahead, done)
        said += count is not None
        asked += count or 0
        asked -= 1
        ahead.note_taken(nbytes, nbytes, shown=shown)
    aim = max(least, min(64, (WIDE_WINDOW_BYTES if shown or high_latency else WINDOW_BYTES) // max(1, nbytes)))
    assert asked <= aim
    assert said <= 2 + 1000 / max(1, (aim + 1) // 2)


@given(st.integers(1, 9), sizes, st.booleans(), st.lists(st.booleans(), min_size=50, max_size=300))
def test_who_asks_beside_its_steps_asks_in_no_call_and_has_as_many_batches(
    least: int, nbytes: int, shown: bool, works_long: list[bool]
) -> None:
    """A batch in hand is not reported there: if this process dies, it was not used."""
    ahead = PrefetchWindow(least, LIMIT, report_each=False)
    asked, reported = ahead.start_pass(), 0
    for done, is_long in enumerate(works_long):
        count = say(ahead, done)
        assert count is None or not (done and works_long[done - 1]), "it was asked for beside the step before"
        asked += count or 0
        reported = reported if count is None else done
        asked -= 1
        assert asked >= 0
        ahead.note_taken(nbytes, nbytes, shown)
        if is_long and (more := ahead.request_ahead(done + 1)) is not None:
            assert more or done > reported
            ahead.note_requested(more, done)
            asked, reported = asked + more, done
            assert asked >= least
        assert asked >= least // 2 * is_long
        assert done - reported <= 33


@pytest.mark.parametrize("report_each", [True, False])
def test_who_waits_has_said_what_it_took(report_each: bool) -> None:
    ahead = PrefetchWindow(2, LIMIT, report_each=report_each)
    ahead.start_pass()
    assert say(ahead, 0) == 1
    assert say(ahead, 0, now=True) is None
    ahead.note_taken(10, 10)
    assert say(ahead, 1) == 62 + 1
    ahead.note_taken(10, 10)
    if report_each:
        assert say(ahead, 2) == 1
    else:
        assert say(ahead, 2) is None
        assert say(ahead, 2, now=True) == 1
    assert say(ahead, 2, now=True) is None


@pytest.mark.parametrize("report_each", [True, False])
def test_what_was_not_told_is_still_due(report_each: bool) -> None:
    """An exception may come before it is sent."""
    ahead = PrefetchWindow(2, LIMIT, report_each=report_each)
    ahead.start_pass()
    assert [ahead.next_request(0), ahead.next_request(0)] == [1, 1]
    assert ahead.asks_ahead(0) is not report_each
    ahead.note_requested(1, 0)
    assert ahead.next_request(0) is None


@given(st.sampled_from([2, 100, 100_000]), st.integers(1, 1 << 20), st.integers(0, 1 << 18), st.booleans())
def test_who_asks_for_more_than_it_is_sent_says_what_it_took_before_it_has_to_wait(
    least: int, limit: int, nbytes: int, shown: bool
) -> None:
    """A service that sends no more than ``limit`` bytes, two batches always, is told before all of them are used."""
    ahead = PrefetchWindow(least, limit, report_each=False)
    credit, sent, waits, untold = ahead.start_pass(), 0, 0, 0
    most = max(2, limit // (nbytes + BATCH_COST))
    for step in range(300):
        count = say(ahead, step)
        if count is not None:
            credit, untold = credit + count, 0
        while credit and sent + untold < most:
            credit, sent = credit - 1, sent + 1
        if not sent:
            waits += step > 2 * most
            said = say(ahead, step, now=True)
            assert said is not None, "else it would wait for ever"
            credit, sent, untold = credit + said - 1, 1, 0
        sent, untold = sent - 1, untold + 1
        ahead.note_taken(nbytes, nbytes, shown=shown)
    assert not waits


def test_who_read_what_it_had_left_says_so_before_it_waits() -> None:
    ahead = PrefetchWindow(2, LIMIT, report_each=True)
    ahead.start_pass()
    assert say(ahead, 0) == 1
    assert say(ahead, 0, now=True) is None
    ahead.note_abandoned()
    assert say(ahead, 0) is None
    assert say(ahead, 0, now=True) == 0
    assert say(ahead, 0, now=True) is None


@pytest.mark.parametrize("may_exceed_prefetch", [True, False])
def test_who_must_report_each_batch_says_so_before_the_next_is_taken(may_exceed_prefetch: bool) -> None:
    ahead = PrefetchWindow(2, LIMIT, report_each=True, may_exceed_prefetch=may_exceed_prefetch)
    ahead.start_pass()
    assert say(ahead, 0) == 1
    for done in range(1, 9):
        ahead.note_taken(10, 10)
        assert say(ahead, done) == (1 if done > 1 or not may_exceed_prefetch else 63)
