"""Store columns of many files side by side in one memory, where they stay: the cache fills it, and every process that
has the memory gathers rows from it.

Rows are numbered as they come. Each array of the columns has a region of its own, as long as it can become within the
limit; so a row is found by its number alone, in every array, and rows of all files are gathered in one go. A region for
each level of counts says where the entries of a row begin. The nominal size of all this is a multiple of the limit: the
memory must be of the kind that is used when it is first written to.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.gather import EntryRanges, Selection, gather_copy
from pydp2.data.rowstore.region_layout import RegionLayout

_LEAST_WRITTEN = 1 << 16  # bytes: for less a call of the kernel costs more than it saves


class _PageWriter:
    """Writer to parts of ``memory`` that nobody has written to yet. ``descriptor``: of the file that it maps; None: it
    maps none.

    For a copy to such a part the kernel finds a page, fills it with zeros and maps it, one after the other. What is
    written to the file fills its pages at once, in less than half of the time.
    """

    def __init__(self, memory: Any, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._address = 0 if descriptor is None else np.frombuffer(memory, np.uint8, 1).ctypes.data

    def copy(self, values: Array, array: Array) -> None:
        """Copy ``values`` to ``array``, a part of the memory without gaps, of the same shape and dtype."""
        if self._descriptor is None or values.nbytes < _LEAST_WRITTEN or not values.flags.c_contiguous:
            array[...] = values
            return
        rest, offset = values.reshape(-1).view(np.uint8).data, array.ctypes.data - self._address
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, offset)
                rest, offset = rest[written:], offset + written
        except OSError:  # the kernel has no memory for it, say: then a copy may still find some
            array[...] = values


class AppendOnlyStore:
    """Store in ``memory``, of ``layout``: one process appends, processes that only read gather rows by number.

    ``descriptor``: of the file that ``memory`` maps, for the process that appends; None: it maps none.
    """

    def __init__(self, layout: RegionLayout, memory: Any, descriptor: int | None = None) -> None:
        self.layout = layout
        self._pages = _PageWriter(memory, descriptor)
        self._arrays = [[layout.view(memory, region) for region in regions] for regions in layout.arrays]
        self._offsets = [[layout.view(memory, region) for region in regions] for regions in layout.offsets]
        self.sample_indices, self.sizes, self.weights = (layout.view(memory, region) for region in layout.row_info)
        """Sample index, size and weight of each row, int64."""
        self.row_count = 0
        """Number of rows, in the process that appends."""

    held_bytes = 0
    """Number of bytes of rows that wait to be drawn: 0, because the rows here are the cache's."""
    row_cost: int | None = 8
    """Number of bytes that a row holds for a trainer until it is taken: those of its number."""

    def shared_row_count(self, ids: Ints) -> int:
        """Return the number of rows: a trainer can gather all of them by itself."""
        return self.row_count

    def append(self, columns: Columns, sample_indices: Ints, sizes: Ints, weights: Ints | None) -> tuple[int, Columns]:
        """Copy rows in, with what is to be known of each (``weights`` None: all 1). Return the number of the first, and
        the same columns where they lie now."""
        at, end = self.row_count, self.row_count + columns.rows
        views = []
        for slot, arrays in enumerate(columns.arrays):
            where = [slice(at, end)]
            for mine, edges in zip(self._offsets[slot], columns.row_offsets(slot), strict=True):
                begin = int(mine[at])
                np.add(edges[1:], begin, out=mine[at + 1 : end + 1])
                where.append(slice(begin, begin + int(edges[-1])))
            found = [mine[where[min(i, len(where) - 1)]] for i, mine in enumerate(self._arrays[slot])]
            for mine, theirs in zip(found, arrays, strict=True):
                self._pages.copy(theirs, mine)
            views.append(found)
        self.sample_indices[at:end] = sample_indices
        self.sizes[at:end] = sizes
        self.weights[at:end] = 1 if weights is None else weights
        self.row_count = end
        return at, Columns(columns.slots, columns.rows, views)

    def holds(self, columns: Columns) -> bool:
        """Return True if the rows of ``columns`` lie here. Without rows it does not matter."""
        mine, theirs = self._arrays[0][0], columns.arrays[0][0]
        return 0 <= theirs.ctypes.data - mine.ctypes.data < self.row_count * mine.strides[0]

    def row_ids_of(self, columns: Columns) -> Ints:
        """Return the numbers that the rows of ``columns`` have here, ``(rows,)``. The columns are those that
        :meth:`append` returned, or a slice of them. Raises ValueError for columns that lie elsewhere."""
        if not columns.rows:
            return np.empty(0, np.int64)
        mine, theirs = self._arrays[0][0], columns.arrays[0][0]
        first, rest = divmod(theirs.ctypes.data - mine.ctypes.data, mine.strides[0])
        if rest or not 0 <= first <= self.row_count - columns.rows:
            raise ValueError("columns that do not lie on the shelf")
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

    def take(self, ids: Ints) -> Columns:
        """Return the rows ``ids``, in that order, as columns over fresh, writable arrays. Raises IndexError
        for a row that cannot be."""
        taken = iter([gather_copy(array, which) for array, which in self.sources(ids)])
        slots = self.layout.slots
        return Columns(slots, len(ids), [[next(taken) for _ in fields] for fields in slots.fields])

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

    release = release_later
