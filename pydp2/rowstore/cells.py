"""Rows of one size in memory that several processes see: each has a cell, from the worker that packed it to the
trainer that takes it, and in between goes by its number.

The server says whose a cell is (:class:`CellAllocator`): granted to a worker, who puts a row there and says so; then
held until nobody needs the row any more. Who gathers rows and was given up meanwhile must not take what lies there now
for what lay there then: a cell has a mark that changes when it is given back, numbers that are sent to a trainer carry
it, and it is compared once the rows are gathered. See docs/architecture.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pydp2.columns.columns import Array, Columns, Ints
from pydp2.errors import RemoteProtocolError
from pydp2.rowstore.gather import Selection, gather_copy
from pydp2.rowstore.region_layout import RegionLayout

CELL_NOTE_PREFIX = b"places"
"""What begins the note on such memory, before that of its layout."""
_CELL_BITS = 40  # of a number are the cell, those above it the mark
_CELL_MASK = (1 << _CELL_BITS) - 1
_GENERATION_MASK = (1 << 62 - _CELL_BITS) - 1
# Whose a cell is: nobody's, the server's, of worker w: _OWNER_FIRST_WORKER + w.
_OWNER_NONE, _OWNER_SERVER, _OWNER_FIRST_WORKER = 0, 1, 2


class StaleCells(Exception):
    """Rows that were gathered are not those that were named: their cells were given back meanwhile."""


class CellRegion:
    """The rows in ``memory`` of ``layout``, of slots that :func:`suits_cells` takes: workers put them there, trainers
    and the server gather them."""

    def __init__(self, layout: RegionLayout, memory: Any) -> None:
        self.layout = layout
        self._arrays = [layout.view(memory, regions[0]) for regions in layout.arrays]
        self.generations: Ints = layout.view(memory, layout.row_info[0])
        """Of each cell, how often it was given back, as far as that can be counted; the server's to write."""
        self.row_cost = layout.slots.row_bytes
        """Bytes that a row holds here until it is taken."""

    def put(self, cells: Ints, columns: Columns) -> None:
        """Copy the rows of ``columns`` to ``cells``."""
        for mine, theirs in zip(self._arrays, columns.arrays, strict=True):
            mine[cells] = theirs[0]

    def sources(self, cells: Ints) -> list[tuple[Array, Selection]]:
        """As of a :class:`.heap.HeapStore`."""
        return [(array, cells) for array in self._arrays]

    def take_cells(self, cells: Ints) -> Columns:
        """The rows at ``cells``, in that order, as columns over fresh, writable arrays."""
        return Columns(self.layout.slots, len(cells), [[gather_copy(*source)] for source in self.sources(cells)])

    # -- by numbers that were told -------------------------------------------------------------------------------------
    def handles(self, cells: Ints) -> Ints:
        """What a trainer is told of ``cells``."""
        return cells | self.generations[cells] << _CELL_BITS

    def resolve(self, handles: Ints) -> Ints:
        """The cells of ``handles``, which may be anything."""
        return np.where(handles < 0, handles, handles & _CELL_MASK)

    def row_sizes(self, handles: Ints) -> Ints:
        """The bytes of each row."""
        return np.full(len(handles), self.row_cost)

    def take(self, handles: Ints) -> Columns:
        """The rows of ``handles``, as :meth:`take_cells`. Raises StaleCells when they are others by now."""
        cells = handles & _CELL_MASK
        columns = self.take_cells(cells)
        if (self.generations[cells] != handles >> _CELL_BITS).any():  # looked at last: what was there is copied now
            raise StaleCells
        return columns


class CellAllocator:
    """The server's side: whose each cell of ``rows`` is. Nothing waits: where there is no cell, rows take another
    way."""

    def __init__(self, rows: CellRegion) -> None:
        self.region = rows
        count = rows.layout.max_rows
        # of the addresses of these, as much is ever used as there are cells in use
        self._owner = np.zeros(count, np.int32)
        self._free: Ints = np.empty(count, np.int64)  # a stack, of cells that were used before
        self._free_count = 0
        self._high_water = 0  # from here on no cell was ever used
        self._released: list[Ints] = []  # given back, and not free yet
        self.granted: dict[int, int] = {}
        """By worker, how many it has and has not put a row in."""

    def __len__(self) -> int:
        """Cells that hold a row."""
        self._apply_releases()
        return self._high_water - self._free_count - sum(self.granted.values())

    @property
    def free_count(self) -> int:
        """Cells that are nobody's."""
        self._apply_releases()
        return len(self._owner) - self._high_water + self._free_count

    @property
    def high_water(self) -> int:
        """Cells that were used at some time."""
        return self._high_water

    def grant(self, worker: int, count: int) -> Ints:
        """``count`` cells, or as many as there are, for ``worker`` to put rows in."""
        cells = self._allocate(count)
        self._owner[cells] = _OWNER_FIRST_WORKER + worker
        self.granted[worker] = self.granted.get(worker, 0) + len(cells)
        return cells

    def accept_filled(self, worker: int, cells: Ints) -> CellRows:
        """``worker`` has put rows in ``cells``: these. Raises RemoteProtocolError for cells that are not its own."""
        known = len(cells) and 0 <= int(cells.min()) <= int(cells.max()) < self._high_water
        if not known or (self._owner[cells] != _OWNER_FIRST_WORKER + worker).any() or _has_duplicates(cells):
            raise RemoteProtocolError("Chunk: rows in places that were not granted, or twice in one")
        self._owner[cells] = _OWNER_SERVER
        self.granted[worker] -= len(cells)
        return CellRows(self, cells)

    def put(self, columns: Columns) -> Ints:
        """Copy the rows of ``columns`` to cells. Raises MemoryError when there are too few."""
        cells = self._allocate(columns.rows)
        if len(cells) < columns.rows:
            self._push_free(cells)
            raise MemoryError(
                f"{columns.rows} cells are needed, {len(cells)} of {self.region.layout.max_rows} are free"
            )
        self.region.put(cells, columns)
        self._owner[cells] = _OWNER_SERVER
        return cells

    def reclaim_worker(self, worker: int) -> None:
        """The process of ``worker`` has ended: what it was granted is free."""
        if self.granted.pop(worker, 0):
            cells = np.flatnonzero(self._owner[: self._high_water] == _OWNER_FIRST_WORKER + worker)
            self._owner[cells] = _OWNER_NONE
            self._push_free(cells)

    def release_later(self, cells: Ints) -> None:
        """Nobody needs the rows in ``cells``, which hold some, any more."""
        self._released.append(cells)  # no more than that: it may be said while another method is at work

    def _allocate(self, count: int) -> Ints:
        self._apply_releases()
        again = min(count, self._free_count)
        self._free_count -= again
        cells = self._free[self._free_count : self._free_count + again][::-1].copy()
        fresh = min(count - again, len(self._owner) - self._high_water)
        if fresh:
            cells = np.concatenate([cells, np.arange(self._high_water, self._high_water + fresh)])
            self._high_water += fresh
        return cells

    def _push_free(self, cells: Ints) -> None:
        self._free[self._free_count : self._free_count + len(cells)] = cells
        self._free_count += len(cells)

    def _apply_releases(self) -> None:
        if not self._released:
            return
        several, self._released = self._released, []
        cells = np.concatenate(several)
        if (self._owner[cells] != _OWNER_SERVER).any() or _has_duplicates(cells):
            raise KeyError(f"cells are given back once, and only such that hold a row; got {cells.tolist()[:20]}")
        self._owner[cells] = _OWNER_NONE
        self.region.generations[cells] = self.region.generations[cells] + 1 & _GENERATION_MASK
        self._push_free(cells)


def _has_duplicates(cells: Ints) -> bool:
    ordered = np.sort(cells)
    return bool((ordered[1:] == ordered[:-1]).any())


class CellRows:
    """Rows that a worker has put in ``allocator``, some of ``rows`` of them. They are as columns are for a store; cells
    that no store has claimed are given back when there is nothing left of these."""

    __slots__ = ("_cells", "_first", "rows", "slots")

    def __init__(self, allocator: CellAllocator, cells: Ints) -> None:
        self._cells = _FilledCells(allocator, cells)
        self.slots = allocator.region.layout.slots
        self._first = 0
        self.rows = len(cells)

    def slice(self, lo: int, hi: int) -> CellRows:
        """Rows ``lo`` to ``hi``, not included."""
        some = object.__new__(CellRows)
        some._cells, some.slots = self._cells, self.slots
        some._first, some.rows = self._first + lo, hi - lo
        return some

    def sample_bytes(self) -> Ints:
        """As of :class:`Columns`."""
        return np.full(self.rows, self.slots.row_bytes)

    def claim(self) -> Ints:
        """Their cells, which are the caller's from now on. Raises ValueError when they were claimed before."""
        held, end = self._cells, self._first + self.rows
        if held.claimed[self._first : end].any():
            raise ValueError("places are claimed once")
        held.claimed[self._first : end] = True
        return held.cells[self._first : end]


class _FilledCells:
    """Cells that hold rows, until they are ``claimed``."""

    __slots__ = ("allocator", "cells", "claimed")

    def __init__(self, allocator: CellAllocator, cells: Ints) -> None:
        self.allocator, self.cells = allocator, cells
        self.claimed = np.zeros(len(cells), np.bool_)

    def __del__(self) -> None:
        if len(rest := self.cells[~self.claimed]):
            self.allocator.release_later(rest)


class CellStore:
    """A pool's memory (:class:`.heap.HeapStore`) where rows have cells: what comes in one is not copied. What is
    left in it when nobody has it any more is given back."""

    def __init__(self, allocator: CellAllocator) -> None:
        self._allocator = allocator
        self._live = np.zeros(allocator.region.layout.max_rows, np.bool_)
        self._count = 0
        self._abandoned = False  # nobody has it any more, but batches that went with it are still to say so

    def __len__(self) -> int:
        """Live rows."""
        return self._count

    @property
    def held_bytes(self) -> int:
        """Bytes of the memory that rows have."""
        return self._count * self._allocator.region.row_cost

    @property
    def shared_row_count(self) -> int:
        """Rows are among the first so many that a trainer can gather by itself."""
        return self._allocator.high_water

    def append(self, columns: Columns | CellRows) -> Ints:
        """Have the rows of ``columns``; their ids ``(rows,)``, valid until released."""
        rows = columns.claim() if isinstance(columns, CellRows) else self._allocator.put(columns)
        self._live[rows] = True
        self._count += len(rows)
        return rows

    def take(self, ids: Any) -> Columns:
        """The rows with these ``ids``, in that order, as columns over fresh, writable arrays."""
        return self._allocator.region.take_cells(np.asarray(ids, np.int64))

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """For each array of the columns of ``ids`` where its entries lie."""
        return self._allocator.region.sources(ids)

    def handles(self, ids: Ints) -> Ints:
        """What a trainer that can gather them is told of them."""
        return self._allocator.region.handles(ids)

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Of no slot: all of them are of one size."""
        raise TypeError("rows in places have no sequences")

    def release_later(self, ids: Ints) -> None:
        """Give the rows back. Raises KeyError for an id that is not live, or given twice."""
        if self._abandoned:
            return
        if not self._live[ids].all():
            raise KeyError(f"rows are given back once, and only live ones; got {ids.tolist()[:20]}")
        self._live[ids] = False
        self._count -= len(ids)
        self._allocator.release_later(ids)

    release = release_later

    def __del__(self) -> None:
        # where a ring of objects is collected, this may come before the end of a batch that is in it too
        self._abandoned = True
        if len(rest := np.flatnonzero(self._live[: self._allocator.high_water])):
            self._allocator.release_later(rest)
