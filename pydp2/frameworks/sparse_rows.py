"""Sort the columns of sparse rows, which a provider may yield in any order, for frameworks that need them ascending."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pydp2.data.columns.batch import Csr
from pydp2.data.columns.columns import Array


def sorted_rows(rows: Csr) -> Csr:
    """Return ``rows`` with ascending columns in each row, or ``rows`` itself if they are ascending already, as most
    are."""
    if ascends(rows.indptr, rows.indices):
        return rows
    order = np.lexsort((rows.indices, np.repeat(np.arange(len(rows)), np.diff(rows.indptr))))
    return replace(rows, indices=rows.indices[order], values=None if rows.values is None else rows.values[order])


def ascends(edges: Array, indices: Array) -> bool:
    """Return True if ``indices[edges[i]:edges[i + 1]]`` ascends for each i."""
    result = np.ones(len(indices) + 1, np.bool_)
    np.greater(indices[1:], indices[:-1], out=result[1:-1])
    result[edges] = True  # from the last entry of a row to the first of the next
    return int(np.count_nonzero(result)) == len(result)
