"""Draws of a mixture: shares of the random words, and passes that end where a plain loop over these words ends."""

from __future__ import annotations

from fractions import Fraction
from itertools import count, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydp2.order.mixture import BLOCK, drawn_before_end, thresholds, words_of_block
from pydp2.order.random_bits import RandomBits

WORDS = 1 << 64
weights = st.lists(st.integers(1, 1000), min_size=1, max_size=6)


def shares_of(numbers: list[int]) -> list[Fraction]:
    return [Fraction(number, sum(numbers)) for number in numbers]


@given(numbers=weights, data=st.data())
def test_the_words_are_divided_among_the_sources_that_have_not_ended_by_their_shares(
    numbers: list[int], data: st.DataObject
) -> None:
    of_each = st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers))
    ended = data.draw(of_each.filter(lambda those: not all(those)))
    sources, edges = thresholds(shares_of(numbers), ended)
    assert sources.tolist() == [i for i, over in enumerate(ended) if not over]
    bounds = [0, *edges.tolist(), WORDS]
    left = sum(numbers[i] for i in sources.tolist())
    for source, (begin, end) in zip(sources.tolist(), pairwise(bounds), strict=True):
        assert abs((end - begin) - WORDS * numbers[source] // left) <= 1


def test_block_after_block_the_words_are_those_of_their_own_keys() -> None:
    for block in (0, 1, 7):
        assert words_of_block(3, 2, block).tolist() == RandomBits(3, 2, "mix", block).draw(BLOCK).tolist()
    assert words_of_block(3, 2, 0).tolist() != words_of_block(3, 2, 1).tolist()


def drawn_one_by_one(seed: int, pass_id: int, shares: list[Fraction], numbers: list[int], until_all: bool) -> int:
    """Draw from sources with so many rows until the pass is over; how many came."""
    left, met_end, came = list(numbers), [False] * len(numbers), 0
    for block in count():
        for word in words_of_block(seed, pass_id, block).tolist():
            reached, source = Fraction(0), len(shares) - 1
            for i, share in enumerate(shares[:-1]):
                reached += share
                if word < int(reached * WORDS):
                    source = i
                    break
            if left[source] == 0:
                met_end[source] = True
                if not until_all or all(met_end):
                    return came
                left[source] = numbers[source]
                continue
            left[source] -= 1
            came += 1
    raise AssertionError("a pass ends")


@given(
    numbers=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    seed=st.integers(0, 2**63 - 1),
    pass_id=st.integers(0, 3),
    until_all=st.booleans(),
    data=st.data(),
)
@example(numbers=[3000, 3000], seed=1, pass_id=0, until_all=True, data=None)  # several blocks
def test_a_pass_ends_where_one_that_draws_row_by_row_does(
    numbers: list[int], seed: int, pass_id: int, until_all: bool, data: st.DataObject | None
) -> None:
    parts = [1] * len(numbers)
    if data is not None:
        parts = data.draw(st.lists(st.integers(1, 9), min_size=len(numbers), max_size=len(numbers)))
    if until_all:
        numbers = [max(1, number) for number in numbers]  # one without rows would begin again for ever
    shares = shares_of(parts)
    expected = drawn_one_by_one(seed, pass_id, shares, numbers, until_all)
    assert drawn_before_end(seed, pass_id, shares, numbers, until_all) == expected


def test_a_pass_that_would_take_too_long_to_draw_has_no_known_length() -> None:
    with pytest.raises(TypeError, match="is not computed for passes of more than 268,435,456 rows"):
        drawn_before_end(0, 0, shares_of([1, 999]), [1 << 20, 5], False)
