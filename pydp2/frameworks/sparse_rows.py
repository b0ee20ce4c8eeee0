"""Sort the columns of sparse rows, which a provider may yield in any order, for frameworks that want them ascending."""

from __future__ import annotations

from typing import Any

import numpy as np

from pydp2.data.columns.batch import Csr
from pydp2.data.columns.columns import Array


def sorted_columns(rows: Csr) -> tuple[Array, Any]:
    """Return indices and values of sparse rows with ascending columns in each row; most rows are so already, and are
    not copied then."""
    indices, values = rows.indices, rows.values
    if ascends(rows.indptr, indices):
        return indices, values
    order = np.lexsort((indices, np.repeat(np.arange(len(rows)), np.diff(rows.indptr))))
    return indices[order], None if values is None else values[order]


def ascends(edges: Array, indices: Array) -> bool:
    """Return True if ``indices[edges[i]:edges[i + 1]]`` ascends for each i."""
    result = np.ones(len(indices) + 1, np.bool_)
    np.greater(indices[1:], indices[:-1], out=result[1:-1])
    result[edges] = True  # from the last entry of a row to the first of the next
    return int(np.count_nonzero(result)) == len(result)
