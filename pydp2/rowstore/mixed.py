"""Store the rows of a pass over files of which the cache has some, or takes them as they come: rows that lie in the
cache stay there, and only the others are copied.

A row has an id of this store, so that ids of a pool stay as few as its rows, however many rows the cache has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pydp2.columns.columns import Array, Columns, Ints
from pydp2.rowstore.append_only import AppendOnlyStore
from pydp2.rowstore.gather import Selection
from pydp2.rowstore.heap import HeapStore

_FIRST_IDS = 1 << 12
_NOWHERE = np.iinfo(np.int64).min  # the row of an id that is free


class MixedStore:
    """Store of a pool whose rows lie in ``cached``, or are copied to ``heap``."""

    def __init__(self, cached: AppendOnlyStore, heap: HeapStore) -> None:
        self._cached = cached
        self.heap = heap
        self._rows: Ints = np.empty(0, np.int64)  # by id: the row in the cache, or ~ the row on the heap
        self._free: Ints = np.empty(0, np.int64)  # a stack: the first _free_count ids are free
        self._free_count = 0
        self._released: list[Ints] = []  # given back, and not released yet

    def __len__(self) -> int:
        """Return the number of live rows."""
        return len(self._rows) - self._free_count - sum(map(len, self._released))

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows outside of the cache have or had."""
        return self.heap.held_bytes

    def append(self, columns: Columns) -> Ints:
        """Return ids for the rows of ``columns`` ``(rows,)``, valid until released. Rows that do not lie in the cache
        are copied."""
        self._apply_releases()
        rows = self._cached.row_ids_of(columns) if self._cached.holds(columns) else ~self.heap.append(columns)
        count = len(rows)
        if count > self._free_count:
            self._add_ids(count - self._free_count)
        self._free_count -= count
        ids = self._free[self._free_count : self._free_count + count][::-1].copy()
        self._rows[ids] = rows
        return ids

    def take(self, ids: Any) -> Columns:
        """Return the rows with these ``ids``, in that order, as columns over fresh, writable arrays."""
        rows = self._rows[np.asarray(ids, np.int64)]
        elsewhere = rows < 0
        if not elsewhere.any():
            return self._cached.take(rows)
        if elsewhere.all():
            return self.heap.take(~rows)
        both = Columns.concat([self._cached.take(rows[~elsewhere]), self.heap.take(~rows[elsewhere])])
        return both.take(np.argsort(np.argsort(elsewhere, kind="stable")))

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array of the columns of ``ids`` where its entries lie, as :class:`.heap.HeapStore` does."""
        rows = self._rows[ids]
        elsewhere = rows < 0
        if not elsewhere.any():
            return self._cached.sources(rows)
        if elsewhere.all():
            return self.heap.sources(~rows)
        return [(array, np.arange(len(array))) for arrays in self.take(ids).arrays for array in arrays]

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Return the number of time steps of each row in ``slot``, a sequence or nested sequence: ``(rows,)``."""
        rows = self._rows[ids]
        elsewhere = rows < 0
        result = np.empty(len(rows), np.int64)
        result[~elsewhere] = self._cached.lengths(rows[~elsewhere], slot)
        result[elsewhere] = self.heap.lengths(~rows[elsewhere], slot)
        return result

    def shared_row_count(self, ids: Ints) -> int:
        """Return the number of rows of the cache, which a trainer can gather by itself; 0: some of ``ids`` do not lie
        there."""
        return 0 if (self._rows[ids] < 0).any() else self._cached.row_count

    def handles(self, ids: Ints) -> Ints:
        """Return the numbers of the rows in the cache."""
        return self._rows[ids]

    def release_later(self, ids: Ints) -> None:
        """Give the rows back, before room is needed."""
        self._released.append(ids)

    def release(self, ids: Any) -> None:
        """Give the rows back. Raises KeyError for an id that is not live, or given twice."""
        self._released.append(np.asarray(ids, np.int64))
        self._apply_releases()

    def _apply_releases(self) -> None:
        if not self._released:
            return
        several, self._released = self._released, []
        ids = np.concatenate(several)
        rows = self._rows[ids]
        ordered = np.sort(ids)
        if (rows == _NOWHERE).any() or (ordered[1:] == ordered[:-1]).any():
            raise KeyError(f"rows are released once, and only live ones; got {ids.tolist()[:20]}")
        if len(elsewhere := rows[rows < 0]):
            self.heap.release_later(~elsewhere)
        self._rows[ids] = _NOWHERE
        self._free[self._free_count : self._free_count + len(ids)] = ids
        self._free_count += len(ids)

    def _add_ids(self, missing: int) -> None:
        old = len(self._rows)
        new = max(_FIRST_IDS, 2 * old, old + missing)
        rows = np.full(new, _NOWHERE, np.int64)
        rows[:old] = self._rows
        free = np.empty(new, np.int64)
        # New ids below the free ones of the stack, the highest at the bottom: ids are given out in rising order.
        free[: new - old] = np.arange(new - 1, old - 1, -1)
        free[new - old : new - old + self._free_count] = self._free[: self._free_count]
        self._rows, self._free = rows, free
        self._free_count += new - old
