"""Pieces of sequences in rows: where best fit puts them, and that nothing is lost where rows are cut and joined."""

from __future__ import annotations

from bisect import insort
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pydp2.order.packing import LaidRows, Pieces, best_fit_decreasing, cut_into_rows, join_rows, select_rows

lengths_of_pieces = st.lists(st.integers(1, 12), max_size=30)


def naive_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Rows of entries, by going through all rows for each entry."""
    rows: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rooms = [(capacity - sum(lengths[j] for j in row), n) for n, row in enumerate(rows)]
        fitting = sorted((room, n) for room, n in rooms if room >= lengths[i])
        if fitting:
            insort(rows[fitting[0][1]], i)
        else:
            rows.append([i])
    return sorted(rows)


@given(st.lists(st.integers(1, 12), max_size=50), st.integers(12, 30))
def test_best_fit_decreasing_is_what_a_search_through_all_rows_gives(lengths: list[int], capacity: int) -> None:
    row = best_fit_decreasing(np.array(lengths, np.int64), capacity)
    rows = [np.flatnonzero(row == n).tolist() for n in range(len({*row.tolist()}))]
    assert rows == naive_fit(lengths, capacity)


def pieces_of(lengths: list[int]) -> Pieces:
    sizes = np.array(lengths, np.int64)
    tokens = np.arange(sizes.sum())
    numbers = np.arange(len(sizes))
    return Pieces((tokens, tokens + 1), numbers, 3 * numbers, sizes, numbers * [[7], [8], [9]])


def as_lists(pieces: Pieces) -> list[list[int]]:
    return [*(each.tolist() for each in pieces.tokens), *(each.tolist() for each in pieces[1:-1])]


@given(lengths_of_pieces, st.data())
def test_pieces_that_are_split_and_put_together_are_the_same_tokens(lengths: list[int], data: st.DataObject) -> None:
    uninterrupted = pieces_of(lengths)
    at = data.draw(st.integers(0, uninterrupted.total))
    before, behind = uninterrupted.split(at)
    assert (before.total, behind.total) == (at, uninterrupted.total - at)
    for part in (before, behind):
        assert part.length.sum() == part.total
        assert (part.length > 0).all()
    together = Pieces.concat([before, behind])
    assert [each.tolist() for each in together.tokens] == [each.tolist() for each in uninterrupted.tokens]
    origins = dict(zip(together.document.tolist(), together.origins.T.tolist(), strict=True))
    assert all(origins[d] == uninterrupted.origins[:, d].tolist() for d in origins)
    where = {(d, o + i) for d, o, n in zip(*as_lists(uninterrupted)[2:], strict=True) for i in range(n)}
    parts = [(d, o + i) for d, o, n in zip(*as_lists(together)[2:], strict=True) for i in range(n)]
    assert sorted(parts) == sorted(where), "each token is said to be where it is, once"


@given(lengths_of_pieces, st.integers(1, 9), st.lists(st.integers(0, 60), max_size=4))
def test_rows_that_are_selected_and_joined_are_the_same_rows(lengths: list[int], length: int, cuts: list[int]) -> None:
    pieces = pieces_of(lengths)
    rows = -(-pieces.total // length)
    laid = LaidRows(rows, pieces.tokens, *cut_into_rows(pieces, length))
    edges = sorted({0, rows, *(min(cut, rows) for cut in cuts)})
    joined = join_rows([select_rows(laid, low, high, low) for low, high in pairwise(edges)] or [laid])
    assert joined.rows == rows
    assert [each.tolist() for each in joined.tokens] == [each.tolist() for each in laid.tokens]
    assert [each.tolist() for each in joined.segments] == [each.tolist() for each in laid.segments]
    assert (
        joined.origins.tolist() == laid.origins.tolist() == [[k * d for d in laid.segments.document] for k in (7, 8, 9)]
    )
    ends = (laid.segments.start + laid.segments.length).tolist()
    assert all(end <= length for end in ends)
    assert sum(laid.segments.length.tolist()) == pieces.total
