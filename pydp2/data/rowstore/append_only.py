"""Store columns of many files side by side in one memory, where they stay: the cache fills it, and every process that
has the memory gathers rows from it.

Rows are numbered as they come. Each array of the columns has a region of its own; so a row is found by its number
alone, in every array, and rows of all files are gathered in one go. A region for each level of counts says where the
entries of a row begin. Nothing moves and no number is used again, so a reader needs neither marks nor handles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.base import LocalRows
from pydp2.data.rowstore.gather import EntryRanges, Selection
from pydp2.data.rowstore.region import PageWriter, RegionLayout, RegionViews


class AppendOnlyStore(LocalRows):
    """Store in ``memory``, of ``layout``: one process appends, processes that only read gather rows by number.

    ``descriptor``: of the file that ``memory`` maps, for the process that appends; None: it maps none.
    """

    def __init__(self, layout: RegionLayout, memory: Any, descriptor: int | None = None) -> None:
        self.layout, self.slots = layout, layout.slots
        self._pages = PageWriter(memory, descriptor)
        views = RegionViews(layout, memory)
        self._arrays, self._offsets = views.arrays, views.starts
        self.sample_indices, self.sizes, self.weights = views.row_info
        """Sample index, size and weight of each row, int64."""
        self.row_count = 0
        """Number of rows, in the process that appends."""

    row_cost: int | None = 8
    """Number of bytes that a row holds for a trainer until it is taken: those of its number."""

    @property
    def held_bytes(self) -> int:
        """Number of bytes of rows that wait to be drawn: 0, because the rows here are the cache's."""
        return 0

    def shared_row_count(self, ids: Ints) -> int:
        """Return the number of rows: a trainer can gather all of them by itself."""
        return self.row_count

    def add(self, columns: Columns, sample_indices: Ints, sizes: Ints, weights: Ints | None) -> tuple[int, Columns]:
        """Copy rows in, with what is to be known of each (``weights`` None: all 1). Return the number of the first, and
        the same columns where they lie now."""
        at, end = self.row_count, self.row_count + columns.rows
        views = []
        for slot, arrays in enumerate(columns.arrays):
            where = [slice(at, end)]
            for own, edges in zip(self._offsets[slot], columns.row_offsets(slot), strict=True):
                begin = int(own[at])
                np.add(edges[1:], begin, out=own[at + 1 : end + 1])
                where.append(slice(begin, begin + int(edges[-1])))
            found = [own[where[min(i, len(where) - 1)]] for i, own in enumerate(self._arrays[slot])]
            for own, added in zip(found, arrays, strict=True):
                self._pages.copy(added, own)
            views.append(found)
        self.sample_indices[at:end] = sample_indices
        self.sizes[at:end] = sizes
        self.weights[at:end] = 1 if weights is None else weights
        self.row_count = end
        return at, Columns(columns.slots, columns.rows, views)

    def holds(self, rows: Any) -> bool:
        """Return True if the rows of the columns ``rows`` lie here. Without rows it does not matter."""
        own, added = self._arrays[0][0], rows.arrays[0][0]
        return bool(0 <= added.ctypes.data - own.ctypes.data < self.row_count * own.strides[0])

    def append(self, columns: Columns) -> Ints:
        """Return the numbers that the rows of ``columns`` have here, ``(rows,)``. The columns are those that
        :meth:`add` returned, or a slice of them. Raises ValueError for columns that lie elsewhere."""
        if not columns.rows:
            return np.empty(0, np.int64)
        own, added = self._arrays[0][0], columns.arrays[0][0]
        first, rest = divmod(added.ctypes.data - own.ctypes.data, own.strides[0])
        if rest or not 0 <= first <= self.row_count - columns.rows:
            raise ValueError("these columns are not in the append-only store")
        return np.arange(first, first + columns.rows)

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array of the columns of ``ids`` where its entries lie, as :class:`.heap.HeapStore` does.
        Raises IndexError for a row that cannot be."""
        result: list[tuple[Array, Selection]] = []
        for arrays, levels in zip(self._arrays, self._offsets, strict=True):
            result.append((arrays[0], ids))
            for level, edges in enumerate(levels, 1):
                starts = edges[ids]
                counts = edges[ids + 1] - starts
                if len(ids) and not 0 <= int(counts.min()) <= int(counts.max()) <= len(arrays[level]):
                    raise IndexError("a row without an end")  # before room is made for it
                which = EntryRanges(starts, counts)
                result += [(a, which) for a in (arrays[level:] if level == len(levels) else arrays[level : level + 1])]
        return result

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Return the length of each of the rows ``ids`` in ``slot`` (:meth:`Columns.lengths`): ``(rows,)``."""
        edges = self._offsets[slot][self.layout.slots.types[slot].length_level]
        return edges[ids + 1] - edges[ids]

    def handles(self, ids: Ints) -> Ints:
        """Return the handles by which a trainer finds the rows: their ids, because a row stays where it is."""
        return ids

    resolve = handles

    def row_sizes(self, handles: Ints) -> Ints:
        """Return the bytes of each of the rows ``handles``."""
        return self.sizes[handles]

    def release_later(self, ids: Ints) -> None:
        """Do nothing: rows stay when they are released."""

    def close(self) -> int:
        """Return 0: a pass has nothing here that its end gives back."""
        return 0
