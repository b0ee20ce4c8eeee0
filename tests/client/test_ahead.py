"""How many batches are asked for: never so few that a trainer waits for ever, never more than it may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.client.ahead import AHEAD_BYTES, SHOWN_BYTES, Ahead

sizes = st.one_of(st.integers(0, 5000), st.integers(0, 2 * AHEAD_BYTES))


@given(st.integers(1, 9), st.booleans(), st.lists(st.tuples(sizes, st.booleans()), max_size=200))
def test_a_batch_is_asked_for_before_it_is_taken(least: int, alone: bool, taken: list[tuple[int, bool]]) -> None:
    ahead = Ahead(least, alone=alone)
    asked = ahead.begin()
    assert asked == least
    for nbytes, waits in taken:
        asked += ahead.due() or 0
        if waits:
            asked += ahead.due(now=True) or 0
        assert 1 <= asked <= 65
        if not alone:
            assert asked == least + 1
        asked -= 1
        ahead.took(nbytes)


@given(st.integers(1, 9), sizes, st.booleans())
def test_of_small_batches_more_are_asked_for_at_a_time_and_of_large_ones_prefetch(
    least: int, nbytes: int, shown: bool
) -> None:
    ahead = Ahead(least, alone=True)
    asked, said = ahead.begin(), 0
    for _ in range(1000):
        count = ahead.due()
        said += count is not None
        asked += count or 0
        asked -= 1
        ahead.took(nbytes, shown=shown)
    aim = max(least, min(64, (SHOWN_BYTES if shown else AHEAD_BYTES) // max(1, nbytes)))
    assert asked <= aim
    assert said <= 2 + 1000 / max(1, (aim + 1) // 2)


@pytest.mark.parametrize("alone", [True, False])
def test_who_waits_has_said_what_it_took(alone: bool) -> None:
    ahead = Ahead(2, alone=alone)
    ahead.begin()
    assert ahead.due() == 1
    assert ahead.due(now=True) is None
    ahead.took(10)
    assert ahead.due() == (62 + 1 if alone else 1)
    ahead.took(10)
    if not alone:
        assert ahead.due() == 1
    else:
        assert ahead.due() is None
        assert ahead.due(now=True) == 1
    assert ahead.due(now=True) is None
