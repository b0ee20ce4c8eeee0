"""Keep the rows of pools: they come in chunks, leave one by one, in any order, and are gathered into batches. Nothing
is done for a single sample in Python.

**Theory of operation.** Arrays with one entry per row are indexed by the row's id (:mod:`.ids`). Sequences and sparse
slots have more entries, so they lie in arenas: a row is a stretch of an arena, found by its start and its count. What
rows leave is used again by rows of about the same length (:mod:`.stretches`); where these do not come, a sweep moves
all rows of the arena together. (Lists of free stretches alone fail: lengths differ a thousand times, and what is free
is in pieces that fit nothing. Sweeping alone fails, too: it copies everything again and again.)

The same store lies in private memory (:class:`HeapStore`), whose arrays grow and are copied as they do, or in a region
that trainers map (:class:`SharedHeap`). The region has so many addresses that its arrays never move or grow, and a page
takes memory only once it was written to; a trainer gathers its batches there by itself. Then two things can go wrong
under its hands, and it must notice both (:mod:`.reader`).

* Rows were given back and others lie there: their handles tell it.
* A sweep moves rows meanwhile. A lock that trainers hold fails, because one that is stopped would stop the service. So
  a sweep counts itself in the header of the region, when it begins and when it ends: while rows move, the count is odd.
  A reader compares the count before and after, and gathers again if it is another one (a sequence lock). Appending
  needs no mark: it writes only where no row is that anybody was told of.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.base import LocalRows
from pydp2.data.rowstore.gather import EntryRanges, Selection, compact, gather, gather_copy, sort_by_start
from pydp2.data.rowstore.ids import IdAllocator
from pydp2.data.rowstore.region import (
    SWEEPS,
    RecordLayout,
    RegionLayout,
    RegionViews,
    fence,
    give_back_bytes,
    give_back_pages,
)
from pydp2.data.rowstore.stretches import ROUNDING_DIVISOR, Stretches, rounded_lengths, scatter
from pydp2.data.schema.input_types import Field, Slots

# Or as many as _MAX_SPARE_BYTES hold, if rows are large: small pools never move, large ones seldom.
_FIRST_ROWS = 1 << 14
_SLACK = 1 << 20  # bytes of garbage per arena that are not worth a sweep
_MAX_SPARE_BYTES = 256 << 20  # bytes of room that is not needed yet
_TIGHT_DIVISOR = 8  # where memory is short, spare room is one such part of what is needed
_EMPTY = np.empty(0, np.uint8)
_GARBAGE_DIVISOR = 6  # a sweep is due when garbage is one such part of what is live
_SPARE_BYTES = 16 << 20  # bytes of all arenas of a region together that are kept for use again


def _roomy_capacity(need: int, size: int) -> int:
    """Return how many entries of ``size`` bytes to make room for when ``need`` are needed. Moving to a larger place
    costs more than room that is never used."""
    return max(need + need * 3 // 4, min(4 * need, need + _MAX_SPARE_BYTES // max(size, 1)))


def _tight_capacity(need: int) -> int:
    """Return the same where memory is short."""
    return need + need // _TIGHT_DIVISOR


def _grown_copy(array: Array, used: int, entries: int) -> Array:
    """Return a copy of the first ``used`` of ``array`` with room for ``entries``. What is never
    written costs no memory."""
    result = np.empty((entries, *array.shape[1:]), array.dtype)
    result[:used] = array[:used]
    return result


def _extend_in_place(arrays: list[Array], entries: int) -> None:
    """Make ``arrays`` as long as ``entries``, where they lie: that takes room for the longer ones alone. Raises
    MemoryError; then some may have become longer."""
    for i in range(len(arrays)):
        array, arrays[i] = arrays[i], _EMPTY  # numpy moves an array only if nothing else refers to it
        shape = (entries, *array.shape[1:])
        try:
            array.resize(shape)
        except (ValueError, MemoryError):  # ValueError: something else refers to it
            size = entries * array.itemsize * math.prod(shape[1:])
            raise MemoryError(f"Unable to allocate {size} bytes for an array that grows") from None
        finally:
            arrays[i] = array


class Arena:
    """Arrays of one level below the rows; a row has the entries ``start`` to ``start + count`` of each.

    Room that was never used costs no memory: arrays have plenty, and sweeping keeps low how much of it is ever used.
    """

    __slots__ = (
        "_bytes",
        "_garbage_allowed",
        "_high_water",
        "_stretches",
        "arrays",
        "counts",
        "live_entries",
        "starts",
    )

    def __init__(self, fields: Sequence[Field]) -> None:
        self.arrays = [np.empty((0, *f.shape), f.dtype) for f in fields]
        self.starts: Ints = np.empty(0, np.int64)
        self.counts: Ints = np.empty(0, np.int64)
        self._bytes = sum(f.entry_bytes for f in fields)
        self._garbage_allowed = _SLACK // max(self._bytes, 1)
        self._high_water = 0  # entries that were used at some time
        self._stretches = Stretches()
        self.live_entries = 0  # entries in use

    @property
    def capacity(self) -> int:
        return len(self.arrays[0])

    @property
    def live_bytes(self) -> int:
        return self.live_entries * self._bytes

    @property
    def held_bytes(self) -> int:
        return self._high_water * self._bytes

    def grown_rows(self, rows: int, capacity: int) -> tuple[Ints, Ints]:
        return _grown_copy(self.starts, rows, capacity), _grown_copy(self.counts, rows, capacity)

    def append(self, rows: Ints, edges: Ints, arrays: Sequence[Array], live: Array) -> None:
        """Copy rows in. Those that have no place yet must not be swept: their counts are 0 until then."""
        counts = edges[1:] - edges[:-1]
        starts = np.empty(len(rows), np.int64)
        self.counts[rows] = 0
        self.starts[rows] = 0
        done = 0
        while True:
            missing = int(edges[-1] - edges[done])
            need = self._stretches.room + missing + missing // ROUNDING_DIVISOR + len(rows)
            fits = min(self.capacity, need + need // _GARBAGE_DIVISOR + self._garbage_allowed)
            there = done + self._stretches.place(counts[done:], starts[done:], fits)
            these = slice(done, there)
            self._fill(rows[these], starts[these], counts[these], [each[edges[done] : edges[there]] for each in arrays])
            done = there
            if done == len(rows):
                return
            # Sweeping in place pays as long as it leaves a third of the room free; else it is time to grow.
            if self._stretches.end > self._stretches.room and need * 3 <= self.capacity * 2:
                self._compact(live, self.capacity)
            else:
                self._grow(live, need)

    def _fill(self, rows: Ints, starts: Ints, counts: Ints, arrays: Sequence[Array]) -> None:
        for own, added in zip(self.arrays, arrays, strict=True):
            scatter(added, starts, counts, own)
        self.starts[rows], self.counts[rows] = starts, counts
        self.live_entries += int(counts.sum())
        self._high_water = max(self._high_water, self._stretches.end)

    def _grow(self, live: Array, need: int) -> None:
        with contextlib.suppress(MemoryError):
            self._compact(live, _roomy_capacity(need, self._bytes))
            return
        if self._stretches.end > self._stretches.room:  # not while the error is there: it holds on to the arrays
            self._compact(live, self.capacity)
        _extend_in_place(self.arrays, max(self.capacity, _tight_capacity(need)))

    def sources(self, rows: Ints) -> list[tuple[Array, Selection]]:
        which = EntryRanges(self.starts[rows], self.counts[rows])
        return [(a, which) for a in self.arrays]

    def release(self, rows: Ints, live: Array) -> None:
        counts = self.counts[rows]
        self.live_entries -= int(counts.sum())
        self._stretches.release(self.starts[rows], counts)
        if self._high_water > 2 * self._stretches.room + self._garbage_allowed:
            self._shrink(live)

    def forget_high_water(self) -> None:
        """Note that no memory is held, because no row is here."""
        self._high_water = 0

    def _shrink(self, live: Array) -> None:
        """Give memory back: most of it is not in use."""
        room = self._stretches.room
        with contextlib.suppress(MemoryError):  # there is no room to sweep in
            self._compact(live, room + room // 2)

    def _compact(self, live: Array, capacity: int) -> None:
        """Move the rows that are ``live`` together, into arrays of ``capacity`` entries. Raises MemoryError;
        then nothing has changed."""
        room = self._stretches.room
        if self._stretches.end == room:  # nothing to sweep, only to grow
            self.arrays = [_grown_copy(a, room, capacity) for a in self.arrays]
            self._high_water = room
            return
        rows = np.flatnonzero(live)
        rows = rows[self.counts[rows] > 0]
        sort_by_start(rows, self.starts)
        which = EntryRanges(self.starts[rows], rounded_lengths(self.counts[rows]))
        starts = np.cumsum(which.counts) - which.counts
        if capacity == self.capacity:
            for array in self.arrays:
                compact(array, which)
        else:
            moved = [_grown_copy(a, 0, capacity) for a in self.arrays]
            for old, new in zip(self.arrays, moved, strict=True):
                gather(old, which, new[:room])
            self.arrays = moved
            self._high_water = room
        self.starts[rows] = starts
        self._stretches.reset(room)


class _SharedArena(Arena):
    """Arena whose arrays lie in a region, where they never move."""

    __slots__ = ("_header", "_memory", "_spare")

    def __init__(self, fields: Sequence[Field], views: RegionViews, slot: int, level: int, memory: Any) -> None:
        super().__init__(fields)
        self.arrays = views.level(slot, level)
        self.starts, self.counts = views.starts[slot][level], views.counts[slot][level]
        self._header, self._memory = views.header, memory
        arenas = sum(map(len, views.starts))
        self._spare = max(self._garbage_allowed, _SPARE_BYTES // arenas // max(1, self._bytes))

    def _grow(self, live: Array, need: int) -> None:
        raise MemoryError(f"{need} entries are needed, shared memory has room for {self.capacity}")

    def _compact(self, live: Array, capacity: int) -> None:
        self._header[SWEEPS] += 1
        fence()
        try:
            super()._compact(live, self.capacity)
        finally:
            fence()
            self._header[SWEEPS] += 1

    def _shrink(self, live: Array) -> None:
        if self._high_water <= 2 * self._stretches.room + self._spare:
            return  # batches that trainers used come back many at a time: their memory is needed again at once
        if self._stretches.end > self._stretches.room:
            self._compact(live, self.capacity)
        for array in self.arrays:
            give_back_pages(self._memory, array, self._stretches.end, self._high_water)
        self._high_water = self._stretches.end


class HeapStore(LocalRows):
    """Store of rows of columns that can be taken and released in any order, in private memory.

    It holds less than 1.25 times the most that was live at once, and for sequences and sparse slots less than twice
    what is live now, plus 1 MiB for each array; it keeps that for use again. See docs/internals/bytes.md.
    """

    __slots__ = ("_arenas", "_capacity", "_fixed", "_fixed_bytes", "_ids", "_record_arrays", "_records", "slots")

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        """Slots of the rows."""
        self._records = RecordLayout(slots)
        self._fixed_bytes = sum(fields[0].entry_bytes for fields in slots.fields)
        self._ids = IdAllocator()
        self._make_arrays()

    def _make_arrays(self) -> None:
        self._record_arrays = [np.empty((0, *shape), dtype) for dtype, shape in self._records.parts()]
        self._fixed = self._records.columns(self._record_arrays)
        self._arenas: list[list[Arena]] = [[Arena(level) for level in levels] for levels in self._arena_fields()]
        self._capacity = 0  # rows for which the arrays have room

    def clear(self) -> None:
        """Forget all rows and give all memory back. Handles of rows that were there are void."""
        self._ids.clear()
        self._make_arrays()

    def _arena_fields(self) -> list[list[list[Field]]]:
        """Return for each slot the fields of each level below the rows."""
        return [
            [[f for i, f in enumerate(each[1:], 1) if min(i, depth) == level + 1] for level in range(depth)]
            for each, depth in zip(self.slots.fields, self.slots.depths, strict=True)
        ]

    def __len__(self) -> int:
        """Return the number of live rows."""
        return len(self._ids)

    @property
    def live_bytes(self) -> int:
        """Number of bytes of the live rows, as :meth:`Columns.sample_bytes` counts them."""
        self._apply_releases()
        return len(self) * self._fixed_bytes + sum(a.live_bytes for arenas in self._arenas for a in arenas)

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows have or had."""
        return self.high_water * self._fixed_bytes + sum(a.held_bytes for arenas in self._arenas for a in arenas)

    @property
    def high_water(self) -> int:
        """Number of ids that were used at some time."""
        return self._ids.high_water

    def append(self, columns: Columns) -> Ints:
        """Copy the rows of ``columns`` in and return their ids ``(rows,)``, valid until released. Raises
        MemoryError."""
        rows = self._new_rows(columns.rows)
        live = self._ids.live
        live[rows] = True
        self._records.put([arrays[0] for arrays in columns.arrays], rows, self._record_arrays)
        for slot, arrays in enumerate(columns.arrays):
            depth = len(self._arenas[slot])
            if not depth:
                continue
            for level, (arena, edges) in enumerate(zip(self._arenas[slot], columns.row_offsets(slot), strict=True), 1):
                added = arrays[level:] if level == depth else arrays[level : level + 1]
                arena.append(rows, edges, added, live)
        return rows

    def _new_rows(self, count: int) -> Ints:
        """Return ``count`` ids of no row, for which there is room."""
        ids = self._ids
        if ids.released:
            self._apply_releases()
        if (need := ids.need(count)) > self._capacity:
            self._add_rows(need)
        return ids.allocate(count)

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array of the columns of ``ids``, in the order of :meth:`Columns.frames`, where its entries
        lie: an array and what to gather of it. Valid until rows are appended or released."""
        result: list[tuple[Array, Selection]] = []
        for fixed, arenas in zip(self._fixed, self._arenas, strict=True):
            result.append((fixed, ids))
            for arena in arenas:
                result += arena.sources(ids)
        return result

    def take(self, ids: Any) -> Columns:
        """Return the rows with these ``ids``, in that order, as columns over fresh, writable arrays."""
        ids = np.asarray(ids, np.int64)
        arrays = [
            [fixed, *(gather_copy(array, which) for arena in arenas for array, which in arena.sources(ids))]
            for fixed, arenas in zip(self._records.take(ids, self._record_arrays), self._arenas, strict=True)
        ]
        return Columns(self.slots, len(ids), arrays)

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Return the length of each of the rows ``ids`` in ``slot`` (:meth:`Columns.lengths`): ``(rows,)``."""
        return self._arenas[slot][self.slots.types[slot].length_level].counts[ids]

    def shared_row_count(self, ids: Ints) -> int:
        """Return 0: other processes can gather none of the rows."""
        return 0

    def handles(self, ids: Ints) -> Ints:
        """Return the handles by which others name the rows."""
        return self._ids.handles(ids)

    def known(self, handles: Ints) -> Ints | None:
        """Return the ids of the rows with these ``handles``, which may be any numbers; None: some are not here."""
        return self._ids.known(handles)

    def release_later(self, ids: Ints) -> None:
        """Release ``ids`` together with others, before room is needed."""
        self._ids.released.append(ids)  # no more than that: another method may be at work when this is called

    def _apply_releases(self) -> None:
        if self._ids.released:
            self.release(self._ids.take_released())

    def release(self, rows: Any) -> None:
        """Give the rows back; their ids are used again, and their handles are void. Raises KeyError for an id that is
        not live, or given twice."""
        ids = np.ascontiguousarray(rows, np.int64)
        if not len(ids):
            return
        self._ids.mark_released(ids)
        for arenas in self._arenas:
            for arena in arenas:
                arena.release(ids, self._ids.live)
        self._ids.free(ids)

    def _add_rows(self, need: int) -> None:
        """Make room for ``need`` rows in all. Raises MemoryError."""
        first = min(_FIRST_ROWS, _MAX_SPARE_BYTES // max(1, self._fixed_bytes))
        with contextlib.suppress(MemoryError):
            self._grow_rows(max(first, _roomy_capacity(need, self._fixed_bytes)))
            return
        self._grow_rows(_tight_capacity(need), in_place=True)

    def _grow_rows(self, new: int, *, in_place: bool = False) -> None:
        """Make room for ``new`` rows in all; ``in_place``: without moving them. Raises MemoryError."""
        used = self.high_water
        arenas = [arena for arenas in self._arenas for arena in arenas]
        where = [arena.grown_rows(used, new) for arena in arenas]
        copies = [] if in_place else [_grown_copy(a, used, new) for a in self._record_arrays]
        self._ids.reserve(new)
        if in_place:
            self._fixed = []  # nothing else refers to what is extended
            try:
                _extend_in_place(self._record_arrays, new)
            finally:
                self._fixed = self._records.columns(self._record_arrays)
        else:
            self._record_arrays, self._fixed = copies, self._records.columns(copies)
        for arena, (starts, counts) in zip(arenas, where, strict=True):
            arena.starts, arena.counts = starts, counts
        self._capacity = new


class SharedHeap(HeapStore):
    """Heap store in ``memory`` of ``layout``, for the pools of all passes of a service."""

    __slots__ = ("_layout", "_memory", "_views")

    def __init__(self, layout: RegionLayout, memory: Any) -> None:
        self._layout, self._memory = layout, memory
        self._views = RegionViews(layout, memory)
        super().__init__(layout.slots)
        self._ids = IdAllocator(self._views.generations)

    def _make_arrays(self) -> None:
        self._record_arrays = self._views.rows
        self._fixed = [arrays[0] for arrays in self._views.arrays]
        self._arenas = [
            [_SharedArena(fields, self._views, slot, level, self._memory) for level, fields in enumerate(levels)]
            for slot, levels in enumerate(self._arena_fields())
        ]
        self._capacity = self._layout.max_rows

    def _add_rows(self, need: int) -> None:
        raise MemoryError(f"{need} rows are needed, shared memory has room for {self._capacity}")

    def shared_row_count(self, ids: Ints) -> int:
        """Return the number of ids that were used: a trainer can gather all rows by itself."""
        return self._ids.high_water

    def release_memory(self) -> None:
        """Give the memory back, if no row is there. Handles of rows that were there stay void."""
        self._apply_releases()
        if not len(self):
            give_back_bytes(self._memory, 0, self._layout.row_info[0].offset)
            for arenas in self._arenas:
                for arena in arenas:
                    arena.forget_high_water()
