"""Pick samples, and sort them by name: loops that run for each sample, compiled if there was a compiler."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pydp2.native import is_active
from pydp2.order.random_bits import indices_below

RowIds = npt.NDArray[np.int64]


def pick_in_python(row_ids: array[int], bits: npt.NDArray[np.uint64]) -> RowIds:
    """Remove one of ``row_ids`` for each of ``bits``, as docs/order.md, "Pick", says, and return them, int64 (n,).

    The last id that stays takes the place of the picked one. ``row_ids`` holds at least as many ids as there are bits.
    """
    size, count = len(row_ids), len(bits)
    bounds = np.arange(size, size - count, -1).astype(np.uint64)
    last = size - 1
    for j in indices_below(bits, bounds).tolist():
        row_ids[last], row_ids[j] = row_ids[j], row_ids[last]
        last -= 1
    picked = np.array(row_ids[size - count :], np.int64)[::-1].copy()
    del row_ids[size - count :]
    return picked


def sort_by_name_in_python(row_ids: array[int], files: RowIds, sample_indices: RowIds) -> None:
    """Put ``row_ids`` into the order of (file, sample index), in place. ``files`` and ``sample_indices``: by row id."""
    rows = np.frombuffer(row_ids, np.int64)
    rows[:] = rows[np.lexsort((sample_indices[rows], files[rows]))]


pick: Callable[[array[int], npt.NDArray[np.uint64]], RowIds] = pick_in_python
sort_by_name: Callable[[array[int], RowIds, RowIds], None] = sort_by_name_in_python

if is_active():
    from pydp2.native import _array_kernels, _order_kernels

    def _pick_native(rows: array[int], words: npt.NDArray[np.uint64]) -> RowIds:
        picked = np.empty(len(words), np.int64)
        _order_kernels.pick(rows, words, picked)
        del rows[len(rows) - len(words) :]
        return picked

    def _sort_by_name_native(row_ids: array[int], files: RowIds, sample_indices: RowIds) -> None:
        if not _array_kernels.sort_rows(row_ids, files, sample_indices):  # numbers too large for one key
            sort_by_name_in_python(row_ids, files, sample_indices)

    pick, sort_by_name = _pick_native, _sort_by_name_native
