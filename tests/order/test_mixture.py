"""Draws of a mixture: shares of the random words."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pydp2.order.mixture import BLOCK, thresholds, words_of_block
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
