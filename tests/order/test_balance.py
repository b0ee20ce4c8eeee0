"""Rows that are dealt over ranks: equally many for each, none twice, and about the same cost."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.order.balance import balanced


@given(st.integers(1, 6), st.integers(0, 6), st.data())
def test_each_rank_gets_equally_many_rows_and_no_more_than_in_their_order(
    ranks: int, rows: int, data: st.DataObject
) -> None:
    costs = np.array(
        data.draw(st.lists(st.integers(0, 1 << 40), min_size=ranks * rows, max_size=ranks * rows)), np.int64
    )
    rank_of = balanced(costs, ranks)
    assert np.bincount(rank_of, minlength=ranks).tolist() == [rows] * ranks
    assert rank_of.tolist() == balanced(costs.copy(), ranks).tolist()


@given(st.lists(st.integers(0, 50), min_size=6, max_size=6))
def test_two_ranks_are_within_reach_of_the_best_deal(costs: list[int]) -> None:
    array = np.array(costs, np.int64)
    rank_of = balanced(array, 2)
    largest = max(int(array[rank_of == rank].sum()) for rank in range(2))
    total = sum(costs)
    best = min(max(sum(some), total - sum(some)) for some in combinations(costs, 3))
    assert 100 * largest * 2 <= 103 * total or largest <= best + max(costs) // 2


def test_rows_that_cannot_be_dealt_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="5 rows cannot be dealt to 2 ranks"):
        balanced(np.arange(5), 2)
