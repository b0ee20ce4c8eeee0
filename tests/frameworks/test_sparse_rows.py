"""Sparse rows whose columns come in any order, and those that ascend already."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import pydp2
from pydp2.frameworks.sparse_rows import ascends, sorted_rows


def csr(rows: Sequence[Sequence[int]], *, binary: bool = False) -> pydp2.Csr:
    """Rows with these columns, each value ten times its column."""
    indices = np.array([column for row in rows for column in row], np.int32)
    edges = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return pydp2.Csr(edges, indices, None if binary else indices.astype(np.float32) * 10, (len(rows), 20))


def test_columns_are_sorted_in_each_row_and_values_go_with_them() -> None:
    rows = sorted_rows(csr([[7, 2], [], [3], [9, 0, 4]]))
    assert rows.indices.tolist() == [2, 7, 3, 0, 4, 9]
    assert rows.values is not None
    assert rows.values.tolist() == [20, 70, 30, 0, 40, 90]
    assert sorted_rows(csr([[7, 2]], binary=True)).values is None


@pytest.mark.parametrize("rows", [[], [[]], [[2, 7], [0, 9]], [[], [5], [], [1]]])
def test_columns_that_ascend_are_not_copied(rows: list[list[int]]) -> None:
    made = csr(rows)
    assert ascends(made.indptr, made.indices)
    assert sorted_rows(made) is made
