"""Keep rows of one size in cells of memory that several processes see. A row stays in its cell from the worker that
packed it to the trainer that takes it, and in between travels by its number.

The server says which process owns a cell (:class:`CellAllocator`): a worker that it is granted to puts a row there and
says so; then the server holds it until nothing needs the row any more. A process that gathers rows and was given up
meanwhile must not take the row that a cell holds now for the one that it held then. So a cell has a generation that
changes when the cell is given back; handles that are sent to a trainer carry it, and it is compared once the rows are
gathered. See docs/architecture.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.gather import Selection, gather_copy
from pydp2.data.rowstore.handles import check_handles, handles_of, ids_of, next_generation
from pydp2.data.rowstore.pass_store import PassStore
from pydp2.data.rowstore.region_layout import RegionLayout
from pydp2.data.rowstore.row_copier import RowCopier
from pydp2.errors import RemoteProtocolError

CELL_NOTE_PREFIX = b"places"
"""Beginning of the note on such memory, before the note of its layout."""
# Owners of a cell: none, the server, worker w: _OWNER_FIRST_WORKER + w.
_OWNER_NONE, _OWNER_SERVER, _OWNER_FIRST_WORKER = 0, 1, 2


class CellRegion:
    """Rows in ``memory`` of ``layout``, of slots that :func:`suits_cells` takes: workers put them there, trainers and
    the server gather them."""

    row_cost: int | None = None
    """None: a row holds its own bytes until it is taken."""

    def __init__(self, layout: RegionLayout, memory: Any) -> None:
        self.layout = layout
        self._arrays = [layout.view(memory, regions[0]) for regions in layout.arrays]
        self.generations: Ints = layout.view(memory, layout.row_info[0])
        """Generation of each cell: how often it was given back, as far as that can be counted. The server writes it."""

    def put(self, cells: Ints, columns: Columns, copier: RowCopier | None = None) -> None:
        """Copy the rows of ``columns`` to ``cells``, now, or soon by ``copier``."""
        for mine, theirs in zip(self._arrays, columns.arrays, strict=True):
            if copier is None:
                mine[cells] = theirs[0]
            else:
                copier.put(theirs[0], mine, cells)

    def sources(self, cells: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array where the entries of ``cells`` lie, as :class:`.heap.HeapStore` does."""
        return [(array, cells) for array in self._arrays]

    def take_cells(self, cells: Ints) -> Columns:
        """Return the rows at ``cells``, in that order, as columns over fresh, writable arrays."""
        return Columns(self.layout.slots, len(cells), [[gather_copy(*source)] for source in self.sources(cells)])

    # -- by numbers that were told -------------------------------------------------------------------------------------
    def handles(self, cells: Ints) -> Ints:
        """Return the handles by which a trainer finds ``cells``."""
        return handles_of(cells, self.generations)

    def resolve(self, handles: Ints) -> Ints:
        """Return the cells of ``handles``, which may be any numbers."""
        return ids_of(handles)

    def row_sizes(self, handles: Ints) -> Ints:
        """Return the bytes of each row."""
        return np.full(len(handles), self.layout.slots.row_bytes)

    def take(self, handles: Ints) -> Columns:
        """Return the rows of ``handles``, as :meth:`take_cells` does. Raises StaleRows if their
        cells hold others by now."""
        columns = self.take_cells(ids_of(handles))
        check_handles(handles, self.generations)
        return columns


class CellAllocator:
    """Allocator of the cells of ``rows``, in the server. It never waits: if there is no cell, rows take another way."""

    def __init__(self, rows: CellRegion) -> None:
        self.region = rows
        count = rows.layout.max_rows
        # memory is only used for as many of these as there are cells in use
        self._owner = np.zeros(count, np.int32)
        self._free: Ints = np.empty(count, np.int64)  # a stack of cells that were used before
        self._free_count = 0
        self._high_water = 0  # cells from here on were never used
        self._released: list[Ints] = []  # given back, and not free yet
        self._copier = RowCopier(count)
        self.granted: dict[int, int] = {}
        """Number of cells by worker that it has and has not put a row in."""

    def __len__(self) -> int:
        """Return the number of cells that hold a row."""
        self._apply_releases()
        return self._high_water - self._free_count - sum(self.granted.values())

    @property
    def free_count(self) -> int:
        """Number of cells without an owner."""
        self._apply_releases()
        return len(self._owner) - self._high_water + self._free_count

    @property
    def high_water(self) -> int:
        """Number of cells that were used at some time."""
        return self._high_water

    def grant(self, worker: int, count: int) -> Ints:
        """Grant ``count`` cells, or as many as there are, to ``worker`` to put rows in, and return them."""
        cells = self._allocate(count)
        self._owner[cells] = _OWNER_FIRST_WORKER + worker
        self.granted[worker] = self.granted.get(worker, 0) + len(cells)
        return cells

    def accept_filled(self, worker: int, cells: Ints) -> CellRows:
        """Return the rows that ``worker`` has put in ``cells``. Raises RemoteProtocolError for
        cells that are not its own."""
        known = len(cells) and 0 <= int(cells.min()) <= int(cells.max()) < self._high_water
        if not known or (self._owner[cells] != _OWNER_FIRST_WORKER + worker).any() or _has_duplicates(cells):
            raise RemoteProtocolError("Chunk: rows in places that were not granted, or twice in one")
        self._owner[cells] = _OWNER_SERVER
        self.granted[worker] -= len(cells)
        return CellRows(self, cells)

    def put(self, columns: Columns) -> Ints:
        """Copy the rows of ``columns`` to cells and return the cells. Raises MemoryError if there are too few."""
        cells = self._allocate(columns.rows)
        if len(cells) < columns.rows:
            self._push_free(cells)
            raise MemoryError(
                f"{columns.rows} cells are needed, {len(cells)} of {self.region.layout.max_rows} are free"
            )
        self.region.put(cells, columns, self._copier)
        self._owner[cells] = _OWNER_SERVER
        return cells

    def wait_for(self, cells: Ints) -> None:
        """Return once the rows that were put in ``cells`` are there."""
        self._copier.wait_for(cells)

    def reclaim_worker(self, worker: int) -> None:
        """Free the cells that were granted to ``worker``, whose process has ended."""
        if self.granted.pop(worker, 0):
            cells = np.flatnonzero(self._owner[: self._high_water] == _OWNER_FIRST_WORKER + worker)
            self._owner[cells] = _OWNER_NONE
            self._push_free(cells)

    def release_later(self, cells: Ints) -> None:
        """Give back ``cells``, whose rows are not needed any more, before cells are needed."""
        self._released.append(cells)  # no more than that: another method may be at work when this is called

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
        self._copier.wait_for(cells)  # what is copied late must not lie where another row is by then
        self._owner[cells] = _OWNER_NONE
        next_generation(cells, self.region.generations)
        self._push_free(cells)


def _has_duplicates(cells: Ints) -> bool:
    ordered = np.sort(cells)
    return bool((ordered[1:] == ordered[:-1]).any())


class CellRows:
    """Rows that a worker has put in ``cells`` of ``allocator``. A store takes them like columns. Their owner releases
    those that no store is to have; ``claimed`` says which have left its hands."""

    __slots__ = ("_allocator", "_cells", "_claimed", "rows", "slots")

    def __init__(self, allocator: CellAllocator, cells: Ints, claimed: npt.NDArray[np.bool_] | None = None) -> None:
        self._allocator = allocator
        self._cells = cells
        self._claimed = np.zeros(len(cells), np.bool_) if claimed is None else claimed
        self.slots = allocator.region.layout.slots
        self.rows = len(cells)

    def slice(self, lo: int, hi: int) -> CellRows:
        """Return rows ``lo`` to ``hi``, not included, which are the same rows."""
        return CellRows(self._allocator, self._cells[lo:hi], self._claimed[lo:hi])

    def sample_bytes(self) -> Ints:
        """Return the bytes of each row, as :class:`Columns` does."""
        return np.full(self.rows, self.slots.row_bytes)

    def claim(self) -> Ints:
        """Return their cells, which are the caller's from now on. Raises ValueError if they were claimed before."""
        if self._claimed.any():
            raise ValueError("cells are claimed once")
        self._claimed[:] = True
        return self._cells

    def release(self) -> None:
        """Give back the cells of these rows that no store has claimed. Releasing twice is fine."""
        if len(rest := self._cells[~self._claimed]):
            self._claimed[:] = True
            self._allocator.release_later(rest)


class CellStore(PassStore):
    """Store of a pool (:class:`.heap.HeapStore`) whose rows have cells: a row that comes in one is not copied."""

    def __init__(self, allocator: CellAllocator) -> None:
        super().__init__(allocator)
        self._allocator = allocator

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows have."""
        return self._count * self._allocator.region.layout.slots.row_bytes

    def shared_row_count(self, ids: Ints) -> int:
        """Return the number of cells that were used: a trainer can gather all rows by itself."""
        return self._allocator.high_water

    def append(self, columns: Columns | CellRows) -> Ints:
        """Take the rows of ``columns`` and return their ids ``(rows,)``, valid until released."""
        self._check_open()
        rows = columns.claim() if isinstance(columns, CellRows) else self._allocator.put(columns)
        self._note_appended(rows)
        return rows

    def take(self, ids: Any) -> Columns:
        """Return the rows with these ``ids``, in that order, as columns over fresh, writable arrays."""
        cells = np.asarray(ids, np.int64)
        self._allocator.wait_for(cells)
        return self._allocator.region.take_cells(cells)

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array of the columns of ``ids`` where its entries lie."""
        self._allocator.wait_for(ids)
        return self._allocator.region.sources(ids)

    def handles(self, ids: Ints) -> Ints:
        """Return the handles by which a trainer finds the rows."""
        self._allocator.wait_for(ids)
        return self._allocator.region.handles(ids)

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Raise TypeError: all rows here are of one size, so no slot is a sequence."""
        raise TypeError("rows in places have no sequences")
