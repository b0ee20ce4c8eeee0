"""Keep rows of any kind in memory that trainers see: the server copies a row there once, and deals in its number; a
trainer gathers its batches by itself.

It is a heap store (:mod:`.heap`) whose arrays lie in a region so large that they never move. Only a sweep moves rows,
and counts itself: while it goes on the count is odd. A trainer that gathers compares the count before and after, and
gathers again if rows moved meanwhile; handles tell it if a row was given back (:mod:`.handles`). See
docs/architecture.md.
"""

from __future__ import annotations

import contextlib
import mmap
import platform
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.native import is_active
from pydp2.data.rowstore.gather import EntryRanges, Selection, gather_copy
from pydp2.data.rowstore.handles import StaleRows, check_handles, handles_of, ids_of, next_generation
from pydp2.data.rowstore.heap import Arena, HeapStore
from pydp2.data.rowstore.pass_store import PassStore, grown
from pydp2.data.rowstore.region_layout import RegionLayout
from pydp2.data.schema.input_types import Field

HEAP_NOTE_PREFIX = b"heap"
"""Beginning of the note on such memory, before the note of its layout."""
_SWEEPS = 0  # of the header: how often rows began or ceased to move
_PATIENCE = 1.0  # seconds that a sweep may take
_RETRY_SECONDS = 0.0001
_FIRST_IDS = 1 << 14
_SPARE_BYTES = 16 << 20  # bytes of all arenas together that are kept for use again


if is_active():
    from pydp2.data.native._array_kernels import fence
else:

    def fence() -> None:
        """Do nothing: see :func:`is_usable`."""


def is_usable() -> bool:
    """Return True if processes see what others write in the order in which it was written: the compiled form sees to
    it, and so do some processors."""
    return is_active() or platform.machine() in ("x86_64", "AMD64")


class _RegionViews:
    """Arrays of a region in ``memory``, by slot."""

    def __init__(self, layout: RegionLayout, memory: Any) -> None:
        self.fixed: list[Array] = [layout.view(memory, extents[0]) for extents in layout.arrays]
        self.entries: list[list[Array]] = [[layout.view(memory, e) for e in extents[1:]] for extents in layout.arrays]
        self.starts: list[list[Ints]] = [[layout.view(memory, e) for e in extents] for extents in layout.offsets]
        self.counts: list[list[Ints]] = [[layout.view(memory, e) for e in extents] for extents in layout.counts]
        self.generations: Ints = layout.view(memory, layout.row_info[0])
        self.header: Ints = layout.view(memory, layout.header)

    def level(self, slot: int, level: int) -> list[Array]:
        """Return the arrays of one level below the rows of ``slot``, counted from 0."""
        deepest = level == len(self.starts[slot]) - 1
        return self.entries[slot][level:] if deepest else self.entries[slot][level : level + 1]


class SharedHeapReader:
    """Rows in ``memory`` of ``layout`` that another process keeps there."""

    row_cost: int | None = None
    """None: a row holds its own bytes until it is taken."""

    def __init__(self, layout: RegionLayout, memory: Any) -> None:
        self.layout = layout
        self._views = _RegionViews(layout, memory)

    def resolve(self, handles: Ints) -> Ints:
        """Return the ids of ``handles``, which may be any numbers."""
        return ids_of(handles)

    def row_sizes(self, handles: Ints) -> Ints:
        """Return the bytes of each row. Of rows that were given back the numbers mean nothing."""
        ids = ids_of(handles)
        sizes = np.full(len(ids), sum(fields[0].entry_bytes for fields in self.layout.slots.fields), np.int64)
        for slot, levels in enumerate(self._views.counts):
            for level, counts in enumerate(levels):
                entry_bytes = sum(array.strides[0] for array in self._views.level(slot, level))
                sizes += np.maximum(counts[ids], 0) * entry_bytes
        return sizes

    def take(self, handles: Ints) -> Columns:
        """Return the rows of ``handles``, in that order, as columns over fresh, writable arrays. Raises StaleRows if
        one of them was given back, or if rows move for longer than a second: their process ended in the middle of it,
        say."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            before = int(self._views.header[_SWEEPS])
            fence()
            if before % 2 == 0:
                columns = self._gather(ids_of(handles))
                fence()
                if int(self._views.header[_SWEEPS]) == before:
                    break
            if time.monotonic() > deadline:
                raise StaleRows
            if before % 2:
                time.sleep(_RETRY_SECONDS)
        check_handles(handles, self._views.generations)
        if columns is None:
            raise IndexError("a row without an end")
        return columns

    def _gather(self, ids: Ints) -> Columns | None:
        """Return the rows ``ids``. None: a row is not where it should be."""
        taken: list[list[Array]] = []
        with contextlib.suppress(IndexError):
            for slot, fixed in enumerate(self._views.fixed):
                arrays = [gather_copy(fixed, ids)]
                for level, starts in enumerate(self._views.starts[slot]):
                    counts = self._views.counts[slot][level][ids]
                    which = EntryRanges(starts[ids], counts)
                    sources = self._views.level(slot, level)
                    if len(ids) and not 0 <= int(counts.min()) <= which.entry_count <= len(sources[0]):
                        return None  # before room is made for it
                    arrays += [gather_copy(source, which) for source in sources]
                taken.append(arrays)
            return Columns(self.layout.slots, len(ids), taken)
        return None


class _SharedArena(Arena):
    """Arena whose arrays lie in a region, where they never move."""

    __slots__ = ("_header", "_memory", "_spare")

    def __init__(self, fields: Sequence[Field], views: _RegionViews, slot: int, level: int, memory: Any) -> None:
        super().__init__(fields)
        self.arrays = views.level(slot, level)
        self.starts, self.counts = views.starts[slot][level], views.counts[slot][level]
        self._header, self._memory = views.header, memory
        arenas = sum(map(len, views.starts))
        self._spare = max(self._garbage_allowed, _SPARE_BYTES // arenas // max(1, self._bytes))

    def _grow(self, live: Array, need: int) -> None:
        raise MemoryError(f"{need} entries are needed, shared memory has room for {self.capacity}")

    def _compact(self, live: Array, capacity: int) -> None:
        self._header[_SWEEPS] += 1
        fence()
        try:
            super()._compact(live, self.capacity)
        finally:
            fence()
            self._header[_SWEEPS] += 1

    def _shrink(self, live: Array) -> None:
        if self._high_water <= 2 * self._stretches.room + self._spare:
            return  # batches that trainers used come back many at a time: their memory is needed again at once
        if self._stretches.end > self._stretches.room:
            self._compact(live, self.capacity)
        for array in self.arrays:
            _give_back(self._memory, array, self._stretches.end, self._high_water)
        self._high_water = self._stretches.end


def _give_back(memory: Any, array: Array, begin: int, end: int) -> None:
    """Give back the pages of entries ``begin`` to ``end`` of ``array``, which lies in ``memory``."""
    page = mmap.PAGESIZE
    base = array.ctypes.data - np.frombuffer(memory, np.uint8, 1).ctypes.data
    first = -(-(base + begin * array.strides[0]) // page) * page
    length = (base + end * array.strides[0]) // page * page - first
    if length > 0:
        with contextlib.suppress(OSError, AttributeError, ValueError):  # it can be used again all the same
            memory.madvise(mmap.MADV_REMOVE, first, length)


class SharedHeap(HeapStore):
    """Heap store in ``memory`` of ``layout``, for the pools of all passes of a service."""

    __slots__ = ("_layout", "_memory", "_views")

    def __init__(self, layout: RegionLayout, memory: Any) -> None:
        self._layout, self._memory = layout, memory
        self._views = _RegionViews(layout, memory)
        super().__init__(layout.slots)

    def clear(self) -> None:
        """Forget all rows."""
        self._fixed = self._views.fixed
        self._arenas = [
            [_SharedArena(fields, self._views, slot, level, self._memory) for level, fields in enumerate(levels)]
            for slot, levels in enumerate(self._arena_fields())
        ]
        self._live, self._free = np.zeros(_FIRST_IDS, np.bool_), np.empty(_FIRST_IDS, np.int64)
        self._free_count = self._high_water = 0
        self._released = []

    def __len__(self) -> int:
        """Return the number of live rows."""
        return self._high_water - self._free_count - sum(map(len, self._released))

    @property
    def high_water(self) -> int:
        """Number of ids that were used at some time."""
        return self._high_water

    def _take_ids(self, count: int) -> Ints:
        again = min(count, self._free_count)
        fresh = count - again
        need = self._high_water + fresh
        if need > self._layout.max_rows:
            raise MemoryError(f"{need} rows are needed, shared memory has room for {self._layout.max_rows}")
        if need > len(self._free):
            self._live, self._free = (grown(array, max(need, 2 * len(array))) for array in (self._live, self._free))
        self._free_count -= again
        rows = self._free[self._free_count : self._free_count + again][::-1].copy()
        if fresh:
            rows = np.concatenate([rows, np.arange(self._high_water, self._high_water + fresh)])
            self._high_water += fresh
        return rows

    def release(self, rows: Any) -> None:
        """Give the rows back, as :class:`.heap.HeapStore` does; their handles are void from now on."""
        super().release(rows)
        next_generation(np.asarray(rows, np.int64), self._views.generations)
        fence()  # before others are written there

    def shared_row_count(self, ids: Ints) -> int:
        """Return the number of ids that were used: a trainer can gather all rows by itself."""
        return self._high_water

    def handles(self, ids: Ints) -> Ints:
        """Return the handles by which a trainer finds the rows."""
        return handles_of(ids, self._views.generations)

    def release_memory(self) -> None:
        """Give the memory back, if no row is there. Handles of rows that were there stay void."""
        self._apply_releases()
        if not len(self):
            with contextlib.suppress(OSError, AttributeError):  # it can be used again all the same
                self._memory.madvise(mmap.MADV_REMOVE, 0, self._layout.row_info[0].offset)
            for arenas in self._arenas:
                for arena in arenas:
                    arena.forget_high_water()


class PassRows(PassStore):
    """Rows of one pass in ``heap``, which other passes share. Closing it gives back what is left of them."""

    def __init__(self, heap: SharedHeap) -> None:
        super().__init__(heap)
        self._heap = heap

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows of all passes have or had."""
        return self._heap.held_bytes

    def append(self, columns: Columns) -> Ints:
        """Copy the rows of ``columns`` in and return their ids ``(rows,)``, valid until released."""
        self._check_open()
        ids = self._heap.append(columns)
        self._note_appended(ids)
        return ids

    def take(self, ids: Any) -> Columns:
        """Return the rows with these ``ids``, in that order, as columns over fresh, writable arrays."""
        return self._heap.take(ids)

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array of the columns of ``ids`` where its entries lie, as :class:`.heap.HeapStore` does."""
        return self._heap.sources(ids)

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Return the number of time steps of each row in ``slot``, a sequence or nested sequence: ``(rows,)``."""
        return self._heap.lengths(ids, slot)

    def shared_row_count(self, ids: Ints) -> int:
        """Return the number of ids that were used: a trainer can gather all rows by itself."""
        return self._heap.shared_row_count(ids)

    def handles(self, ids: Ints) -> Ints:
        """Return the handles by which a trainer finds the rows."""
        return self._heap.handles(ids)
