"""Grant cells to workers, in memory for rows of one size (docs/internals/bytes.md). The memory is made when the schema
of the provider is known, and shared with workers and trainers. Workers are granted cells before they need them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Ints
from pydp2.data.rowstore.cells import CellRows, CellStore
from pydp2.data.rowstore.region import HEAP_NOTE_PREFIX, RegionLayout
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import RemoteProtocolError
from pydp2.transport import SharedRegion

_AHEAD = 16 << 20  # most bytes of cells that a worker is granted ahead
_AHEAD_SHARE = 4  # all workers together are granted at most 1/4 of the memory that a service may use
_LEAST_AHEAD = 8 << 20  # least bytes: two full chunks, because a chunk uses no cells unless it has one for each row
_MIN_CELLS = 8
_FREE_SHARE = 4  # one grant takes at most 1/4 of the free cells: rows that come as columns need some as well
_ROOM = 4  # addresses, as a multiple of the memory that a service may use; most of them never get memory


class CellGrants:
    """Cells of a service, which its workers, its trainers and the pools of its jobs use. Each worker is granted
    ``ahead`` bytes of cells."""

    def __init__(self, lasting: SharedRegion, layout: RegionLayout, ahead: int) -> None:
        self._lasting = lasting
        self.rows = CellStore(layout, lasting.memory)
        self._note = HEAP_NOTE_PREFIX + layout.note
        self._ahead = max(_MIN_CELLS, ahead // layout.slots.row_bytes)
        assert lasting.read_only_descriptor is not None
        assert lasting.writable_descriptor is not None
        self.for_trainers = lasting.read_only_descriptor, self._note
        self.for_workers = lasting.writable_descriptor, self._note

    def next_grant(self, worker: int) -> Ints | None:
        """Grant cells to ``worker`` and return them; None if it has enough, or no cells are free."""
        has = self.rows.granted.get(worker, 0)
        if 2 * has > self._ahead:
            return None
        cells = self.rows.grant(worker, min(self._ahead - has, self.rows.free_count // _FREE_SHARE))
        return cells if len(cells) else None

    def claim(self, worker: int, rows: int, frames: Sequence[npt.NDArray[np.uint8]]) -> CellRows:
        """Claim the ``rows`` rows that ``worker`` has written to the cells whose numbers are in the one frame. Raises
        RemoteProtocolError for cells that were not granted to it."""
        if len(frames) != 1 or frames[0].nbytes != 8 * rows:
            raise RemoteProtocolError("Chunk: one cell for each row is needed, of those that were granted")
        return self.rows.accept_filled(worker, frames[0].view(np.int64))

    def worker_gone(self, worker: int) -> None:
        """Take back the cells that were granted to ``worker``, whose process has ended."""
        self.rows.reclaim_worker(worker)

    def release_memory(self) -> None:
        """Return the memory to the system, because there is no job."""
        self.rows.release_memory()

    def close(self) -> None:
        """Close the descriptors, so that no other process can map the memory any more."""
        self._lasting.close()


def create_cell_grants(schema: Schema, limit: int, workers: int) -> CellGrants | None:
    """Return cells for samples of ``schema`` in a service of ``workers`` workers that may use ``limit`` bytes; None if
    the samples are small or differ in size, if they are cached, or if memory cannot be shared here."""
    if not schema.uses_cells:
        return None
    room = max(_ROOM * limit, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    layout = RegionLayout(schema.slots, room, movable=True)
    if not layout.max_rows:  # not even one would fit
        return None
    try:
        lasting = SharedRegion(layout.size)
    except OSError:  # the system has not so many addresses
        return None
    if lasting.read_only_descriptor is None:
        return None
    try:
        share = max(_LEAST_AHEAD, limit // (_AHEAD_SHARE * max(1, workers)))
        return CellGrants(lasting, layout, min(_AHEAD, share))
    except MemoryError:  # there is no memory for the bookkeeping of the cells
        lasting.close()
        return None
