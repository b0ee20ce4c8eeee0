"""Store the rows of a pass over files of which the cache has some, or takes them as they come: rows that lie in the
cache stay there, and only the others are copied.

The id of a row is its row in the cache, or ~ its row on the heap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.gather import Selection
from pydp2.data.rowstore.heap import HeapStore


class MixedStore:
    """Store of a pool whose rows lie in ``cached``, or are copied to ``heap``."""

    def __init__(self, cached: AppendOnlyStore, heap: HeapStore) -> None:
        self._cached = cached
        self.heap = heap

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows outside of the cache have or had."""
        return self.heap.held_bytes

    def append(self, columns: Columns) -> Ints:
        """Return ids for the rows of ``columns`` ``(rows,)``, valid until released. Rows that do not lie in the cache
        are copied."""
        return self._cached.row_ids_of(columns) if self._cached.holds(columns) else ~self.heap.append(columns)

    def take(self, ids: Any) -> Columns:
        """Return the rows with these ``ids``, in that order, as columns over fresh, writable arrays."""
        rows = np.asarray(ids, np.int64)
        elsewhere = rows < 0
        if not elsewhere.any():
            return self._cached.take(rows)
        if elsewhere.all():
            return self.heap.take(~rows)
        both = Columns.concat([self._cached.take(rows[~elsewhere]), self.heap.take(~rows[elsewhere])])
        return both.take(np.argsort(np.argsort(elsewhere, kind="stable")))

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array of the columns of ``ids`` where its entries lie, as :class:`.heap.HeapStore` does."""
        elsewhere = ids < 0
        if not elsewhere.any():
            return self._cached.sources(ids)
        if elsewhere.all():
            return self.heap.sources(~ids)
        return [(array, np.arange(len(array))) for arrays in self.take(ids).arrays for array in arrays]

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Return the number of time steps of each row in ``slot``, a sequence or nested sequence: ``(rows,)``."""
        elsewhere = ids < 0
        result = np.empty(len(ids), np.int64)
        result[~elsewhere] = self._cached.lengths(ids[~elsewhere], slot)
        result[elsewhere] = self.heap.lengths(~ids[elsewhere], slot)
        return result

    def shared_row_count(self, ids: Ints) -> int:
        """Return the number of rows of the cache, which a trainer can gather by itself; 0: some of ``ids`` do not lie
        there."""
        return 0 if (ids < 0).any() else self._cached.row_count

    def handles(self, ids: Ints) -> Ints:
        """Return the numbers of the rows in the cache."""
        return ids

    def release_later(self, ids: Ints) -> None:
        """Give the rows back, before room is needed; those in the cache stay."""
        elsewhere = ids[ids < 0]
        if len(elsewhere):
            self.heap.release_later(~elsewhere)

    release = release_later
