"""Keep rows of one size in cells of memory that several processes see. A row stays in its cell from the worker that
packed it to the trainer that takes it, and in between travels by its number.

**Theory of operation.** Cells are a shared heap (:mod:`.heap`) without arenas, so nothing ever moves. What is new is
that workers write to it. The server alone says who may write to a cell, at each moment one process:

    free -- grant --> a worker's -- chunk with its number --> a row of the server's -- release --> free

A worker gets cells ahead (*grant*), fills them when it has rows, and names them in a chunk; from then on the server
holds them (*accept*) until nothing needs the rows. What can happen besides:

* A worker dies. What it was granted becomes free, but only once its process has ended: before that it may still write.
* Its chunk is late or the file is read by another by then. The cells are the server's all the same, and whoever drops
  the chunk gives back those that no pool has claimed (:class:`CellRows`). If cells were given back by number instead,
  one that a pool has would be free as well.
* A worker names cells that it was not granted, or one twice. That breaks the protocol, before anything has changed.
* There is no cell. Nobody waits: the worker sends columns, and the server copies them to cells, in a thread of its own.
  So whoever reads a row, or gives it back, waits until it is there (:class:`.row_copier.RowCopier`): a late copy must
  not lie where another row is by then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.gather import Selection
from pydp2.data.rowstore.heap import SharedHeap
from pydp2.data.rowstore.region import RegionLayout, RegionViews
from pydp2.data.rowstore.row_copier import RowCopier
from pydp2.errors import RemoteProtocolError


class CellRegion:
    """Cells in ``memory`` of ``layout`` as a worker has them: it writes to those that it was granted."""

    def __init__(self, layout: RegionLayout, memory: Any) -> None:
        self._arrays = [arrays[0] for arrays in RegionViews(layout, memory).arrays]

    def put(self, cells: Ints, columns: Columns) -> None:
        """Copy the rows of ``columns`` to ``cells``. Raises IndexError for cells that are not there."""
        for own, added in zip(self._arrays, columns.arrays, strict=True):
            own[cells] = added[0]


class CellStore(SharedHeap):
    """Cells in ``memory`` of ``layout``, of slots that :func:`suits_cells` takes, for the rows of all passes of a
    service. Raises MemoryError if there is no room for what is to be known of each cell."""

    __slots__ = ("_copier", "_granted_to", "granted")

    def __init__(self, layout: RegionLayout, memory: Any) -> None:
        super().__init__(layout, memory)
        count = layout.max_rows
        # memory is only used for as many of these as there are cells in use
        self._ids.reserve(count)
        self._granted_to = np.zeros(count, np.int32)  # worker + 1; 0: to none
        self._copier = RowCopier(count)
        self.granted: dict[int, int] = {}
        """Number of cells by worker that it has and has not put a row in."""

    def __len__(self) -> int:
        """Return the number of cells that hold a row."""
        return len(self._ids) - sum(self.granted.values())

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the cells that hold a row."""
        return len(self) * self._fixed_bytes

    @property
    def free_count(self) -> int:
        """Number of cells that neither have a row nor are granted."""
        self._apply_releases()
        return self._capacity - self._ids.high_water + self._ids.free_count

    # -- workers ---------------------------------------------------------------------------------------------------
    def grant(self, worker: int, count: int) -> Ints:
        """Grant ``count`` cells, or as many as there are, to ``worker`` to put rows in, and return them."""
        cells = self._ids.allocate(min(count, self.free_count))
        self._granted_to[cells] = worker + 1
        self.granted[worker] = self.granted.get(worker, 0) + len(cells)
        return cells

    def accept_filled(self, worker: int, cells: Ints) -> CellRows:
        """Return the rows that ``worker`` has put in ``cells``. Raises RemoteProtocolError for
        cells that are not its own."""
        known = len(cells) and 0 <= int(cells.min()) <= int(cells.max()) < self._ids.high_water
        if not known or (self._granted_to[cells] != worker + 1).any() or _has_duplicates(cells):
            raise RemoteProtocolError("Chunk: a cell that this worker was not granted, or one cell twice")
        self._granted_to[cells] = 0
        self._ids.live[cells] = True
        self.granted[worker] -= len(cells)
        return CellRows(self, cells)

    def reclaim_worker(self, worker: int) -> None:
        """Free the cells that were granted to ``worker``, whose process has ended."""
        if self.granted.pop(worker, 0):
            cells = np.flatnonzero(self._granted_to[: self._ids.high_water] == worker + 1)
            self._granted_to[cells] = 0
            self._ids.free(cells)

    # -- rows ------------------------------------------------------------------------------------------------------
    def append(self, columns: Columns | CellRows) -> Ints:
        """Take the rows of ``columns`` and return their ids ``(rows,)``, valid until released: their cells. Raises
        MemoryError if there are too few for a copy."""
        if isinstance(columns, CellRows):
            return columns.claim()
        cells = self._new_rows(columns.rows)
        for own, added in zip(self._fixed, columns.arrays, strict=True):
            self._copier.put(added[0], own, cells)
        self._ids.live[cells] = True
        return cells

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array of the columns of ``ids`` where its entries lie, once they are there."""
        self._copier.wait_for(ids)
        return [(array, ids) for array in self._fixed]

    def take(self, ids: Any) -> Columns:
        """Return the rows, once they are there, as columns over fresh, writable arrays."""
        self._copier.wait_for(np.asarray(ids, np.int64))
        return super().take(ids)

    def handles(self, ids: Ints) -> Ints:
        """Return the handles by which a trainer finds the rows, once they are there."""
        self._copier.wait_for(ids)
        return self._ids.handles(ids)

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Raise TypeError: all rows here are of one size, so no slot is a sequence."""
        raise TypeError("rows in cells have no sequences")

    def release(self, rows: Any) -> None:
        """Give the rows back, once they are there: what is copied late must not lie where another row is by then."""
        self._copier.wait_for(rows)
        super().release(rows)


def _has_duplicates(cells: Ints) -> bool:
    ordered = np.sort(cells)
    return bool((ordered[1:] == ordered[:-1]).any())


class CellRows:
    """Rows that a worker has put in ``cells`` of ``store``. A store takes them like columns. Their owner releases those
    that no store is to have; ``claimed`` says which have left its hands."""

    __slots__ = ("_cells", "_claimed", "_store", "rows", "slots")

    def __init__(self, store: CellStore, cells: Ints, claimed: npt.NDArray[np.bool_] | None = None) -> None:
        self._store = store
        self._cells = cells
        self._claimed = np.zeros(len(cells), np.bool_) if claimed is None else claimed
        self.slots = store.slots
        self.rows = len(cells)

    def slice(self, lo: int, hi: int) -> CellRows:
        """Return rows ``lo`` to ``hi``, not included, which are the same rows."""
        return CellRows(self._store, self._cells[lo:hi], self._claimed[lo:hi])

    def take(self, rows: Ints) -> CellRows:
        """Return the given rows, which are the caller's, and those of this object no more."""
        return CellRows(self._store, self._cells[rows], self._claimed[rows])

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
            self._store.release_later(rest)
