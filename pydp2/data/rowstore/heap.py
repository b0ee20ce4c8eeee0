"""Store the rows of a pool: they come in chunks, leave one by one, in any order, and are gathered into batches.

The store does not decide the order: it gives out row ids and takes them back. Arrays with one entry per row are indexed
by the id and their places used again; all others lie in arenas, where a row is a stretch that moves when garbage is
swept out. Nothing is done per sample in Python.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.gather import (
    EntryRanges,
    Selection,
    compact,
    gather,
    gather_copy,
    mark_released,
    sort_by_start,
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
        for mine, theirs in zip(self.arrays, arrays, strict=True):
            scatter(theirs, starts, counts, mine)
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


class HeapStore:
    """Store of rows of columns that can be taken and released in any order.

    It holds less than 1.25 times the most that was live at once, and for sequences and sparse slots less than twice
    what is live now, plus 1 MiB for each array; it keeps that for use again. See docs/architecture.md.
    """

    __slots__ = (
        "_arenas",
        "_fixed",
        "_fixed_bytes",
        "_free",
        "_free_count",
        "_high_water",
        "_live",
        "_released",
        "_slots",
    )

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._fixed_bytes = sum(fields[0].entry_bytes for fields in slots.fields)
        self.clear()

    def clear(self) -> None:
        """Forget all rows and give all memory back."""
        self._fixed = [np.empty((0, *f[0].shape), f[0].dtype) for f in self._slots.fields]
        self._arenas: list[list[Arena]] = [[Arena(level) for level in levels] for levels in self._arena_fields()]
        self._live = np.empty(0, np.bool_)
        self._high_water = 0  # rows that were used at some time
        self._free: Ints = np.empty(0, np.int64)  # a stack: the first _free_count ids are free
        self._free_count = 0
        self._released: list[Ints] = []  # given back, and not released yet

    def _arena_fields(self) -> list[list[list[Field]]]:
        """Return for each slot the fields of each level below the rows."""
        return [
            [[f for i, f in enumerate(each[1:], 1) if min(i, depth) == level + 1] for level in range(depth)]
            for each, depth in zip(self._slots.fields, self._slots.depths, strict=True)
        ]

    def __len__(self) -> int:
        """Return the number of live rows."""
        return len(self._live) - self._free_count - sum(map(len, self._released))

    @property
    def live_bytes(self) -> int:
        """Number of bytes of the live rows, as :meth:`Columns.sample_bytes` counts them."""
        self._apply_releases()
        return len(self) * self._fixed_bytes + sum(a.live_bytes for arenas in self._arenas for a in arenas)

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows have or had."""
        return self._high_water * self._fixed_bytes + sum(a.held_bytes for arenas in self._arenas for a in arenas)

    def append(self, columns: Columns) -> Ints:
        """Copy the rows of ``columns`` in and return their ids ``(rows,)``, valid until released."""
        self._apply_releases()
        count = columns.rows
        rows = self._take_ids(count)
        self._live[rows] = True
        if count:
            self._high_water = max(self._high_water, int(rows.max()) + 1)
        for slot, arrays in enumerate(columns.arrays):
            self._fixed[slot][rows] = arrays[0]
            depth = len(self._arenas[slot])
            if not depth:
                continue
            for level, (arena, edges) in enumerate(zip(self._arenas[slot], columns.row_offsets(slot), strict=True), 1):
                theirs = arrays[level:] if level == depth else arrays[level : level + 1]
                arena.append(rows, edges, theirs, self._live)
        return rows

    def _take_ids(self, count: int) -> Ints:
        """Return ``count`` ids of no row, and make room for the rows."""
        if count > self._free_count:
            self._add_rows(count - self._free_count)
        self._free_count -= count
        return self._free[self._free_count : self._free_count + count][::-1].copy()

    def take(self, ids: Any) -> Columns:
        """Return the rows with these ``ids``, in that order, as columns over fresh, writable arrays."""
        ids = np.asarray(ids, np.int64)
        taken = iter([gather_copy(array, which) for array, which in self.sources(ids)])
        return Columns(self._slots, len(ids), [[next(taken) for _ in fields] for fields in self._slots.fields])

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array of the columns of ``ids``, in the order of :meth:`Columns.frames`, where its entries
        lie: an array and what to gather of it. Valid until rows are appended or released."""
        result: list[tuple[Array, Selection]] = []
        for fixed, arenas in zip(self._fixed, self._arenas, strict=True):
            result.append((fixed, ids))
            for arena in arenas:
                result += arena.sources(ids)
        return result

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Return the length of each of the rows ``ids`` in ``slot`` (:meth:`Columns.lengths`): ``(rows,)``."""
        return self._arenas[slot][self._slots.types[slot].length_level].counts[ids]

    def shared_row_count(self, ids: Ints) -> int:
        """Return 0: other processes can gather none of the rows."""
        return 0

    def handles(self, ids: Ints) -> Ints:
        """Return the ids themselves; other processes cannot gather rows here."""
        return ids

    def release_later(self, ids: Ints) -> None:
        """Release ``ids`` together with others, before room is needed."""
        self._released.append(ids)

    def _apply_releases(self) -> None:
        if self._released:
            back, self._released = self._released, []
            self.release(np.concatenate(back))

    def release(self, rows: Any) -> None:
        """Give the rows back; their ids are used again. Raises KeyError for an id that is not live, or given twice."""
        ids = np.ascontiguousarray(rows, np.int64)
        if not len(ids):
            return
        if not mark_released(self._live, ids):
            raise KeyError(f"rows are released once, and only live ones; got {ids.tolist()[:20]}")
        for arenas in self._arenas:
            for arena in arenas:
                arena.release(ids, self._live)
        self._free[self._free_count : self._free_count + len(ids)] = ids
        self._free_count += len(ids)

    def _add_rows(self, missing: int) -> None:
        need = len(self._live) + missing
        first = min(_FIRST_ROWS, _MAX_SPARE_BYTES // max(1, self._fixed_bytes))
        with contextlib.suppress(MemoryError):
            self._grow_rows(max(first, _roomy_capacity(need, self._fixed_bytes)))
            return
        self._grow_rows(_tight_capacity(need), in_place=True)

    def _grow_rows(self, new: int, *, in_place: bool = False) -> None:
        """Make room for ``new`` rows in all; ``in_place``: without moving them. Raises MemoryError."""
        old = len(self._live)
        arenas = [arena for arenas in self._arenas for arena in arenas]
        where = [arena.grown_rows(old, new) for arena in arenas]
        fixed = self._fixed
        if in_place:
            _extend_in_place(fixed, new)
        else:
            fixed = [_grown_copy(a, self._high_water, new) for a in fixed]
        live = np.zeros(new, np.bool_)
        live[:old] = self._live
        free = np.empty(new, np.int64)
        # New ids below the free ones of the stack, the highest at the bottom: ids are given out in rising order.
        free[: new - old] = np.arange(new - 1, old - 1, -1)
        free[new - old : new - old + self._free_count] = self._free[: self._free_count]
        for arena, (starts, counts) in zip(arenas, where, strict=True):
            arena.starts, arena.counts = starts, counts
        self._fixed, self._live, self._free = fixed, live, free
        self._free_count += new - old
