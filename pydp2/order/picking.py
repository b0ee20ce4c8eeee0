"""Pick samples, and sort them by name: loops that run for each sample, compiled if there was a compiler."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Ints
from pydp2.data.native import is_active
from pydp2.order.random_bits import indices_below

PoolIds = npt.NDArray[np.int64]


def pick_in_python(ids: array[int], bits: npt.NDArray[np.uint64]) -> PoolIds:
    """Remove one of ``ids`` for each of ``bits``, as docs/order.md, "Pick", says, and return them, int64 (n,).

    The last one that stays takes the place of the picked one. ``ids`` holds at least as many as there are bits.
    """
    size, count = len(ids), len(bits)
    bounds = np.arange(size, size - count, -1).astype(np.uint64)
    last = size - 1
    for j in indices_below(bits, bounds).tolist():
        ids[last], ids[j] = ids[j], ids[last]
        last -= 1
    picked = np.array(ids[size - count :], np.int64)[::-1].copy()
    del ids[size - count :]
    return picked


def sort_by_name_in_python(ids: array[int], files: Ints, sample_indices: Ints) -> None:
    """Put ``ids`` into the order of (file, sample index), in place. ``files`` and ``sample_indices``: by pool id."""
    rows = np.frombuffer(ids, np.int64)
    rows[:] = rows[np.lexsort((sample_indices[rows], files[rows]))]


pick: Callable[[array[int], npt.NDArray[np.uint64]], PoolIds] = pick_in_python
sort_by_name: Callable[[array[int], Ints, Ints], None] = sort_by_name_in_python

if is_active():
    from pydp2.data.native import _array_kernels, _order_kernels

    def _pick_native(rows: array[int], words: npt.NDArray[np.uint64]) -> PoolIds:
        picked = np.empty(len(words), np.int64)
        _order_kernels.pick(rows, words, picked)
        del rows[len(rows) - len(words) :]
        return picked

    def _sort_by_name_native(ids: array[int], files: Ints, sample_indices: Ints) -> None:
        if not _array_kernels.sort_rows(ids, files, sample_indices):  # numbers too large for one key
            sort_by_name_in_python(ids, files, sample_indices)

    pick, sort_by_name = _pick_native, _sort_by_name_native
