"""Grant workers the cells of the memory in which rows of one size lie (docs/internals/bytes.md). The memory is made
when the provider is known, shown to workers and trainers, and granted to workers ahead of what they send."""

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

_AHEAD = 16 << 20  # bytes of rows that a worker may put in cells before it is granted more, at most
_AHEAD_SHARE = 4  # and all workers together one of so many parts of the memory that a service may use
_LEAST_AHEAD = 8 << 20  # bytes: two full chunks of a worker, because one without a cell for each row uses none
_MIN_CELLS = 8  # cells
_FREE_SHARE = 4  # one grant takes at most one of so many free cells: rows that come as columns need some as well
_ROOM = 4  # times the memory that a service may use: of these addresses, more than the machine has are never used


class CellGrants:
    """Cells of a service: for workers, which are granted ``ahead`` bytes of them each; for trainers; and for the pools
    of jobs."""

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
        """Return the cells that ``worker`` is to be granted now; None: it has enough, or there are none."""
        has = self.rows.granted.get(worker, 0)
        if 2 * has > self._ahead:
            return None
        cells = self.rows.grant(worker, min(self._ahead - has, self.rows.free_count // _FREE_SHARE))
        return cells if len(cells) else None

    def claim(self, worker: int, rows: int, frames: Sequence[npt.NDArray[np.uint8]]) -> CellRows:
        """Take over the ``rows`` that ``worker`` has put in the cells that its one frame names. Raises
        RemoteProtocolError for cells that are not its own."""
        if len(frames) != 1 or frames[0].nbytes != 8 * rows:
            raise RemoteProtocolError("Chunk: one cell for each row is needed, of those that were granted")
        return self.rows.accept_filled(worker, frames[0].view(np.int64))

    def worker_gone(self, worker: int) -> None:
        """Take back what ``worker``, whose process has ended, was granted."""
        self.rows.reclaim_worker(worker)

    def release_memory(self) -> None:
        """There is no job: give the memory back."""
        self.rows.release_memory()

    def close(self) -> None:
        """Close the descriptors: no process is shown the memory any more."""
        self._lasting.close()


def create_cell_grants(schema: Schema, limit: int, workers: int) -> CellGrants | None:
    """Return cells for samples of ``schema`` in a service of so many ``workers`` that may use ``limit`` bytes. None:
    the samples are small or of several sizes, they are kept in a cache, or memory cannot be shared here."""
    if not schema.uses_cells:
        return None
    room = max(_ROOM * limit, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    layout = RegionLayout(schema.slots, room, movable=True)
    if not layout.max_rows:  # not even one would fit
        return None
    try:
        lasting = SharedRegion(layout.size)
    except OSError:  # so many addresses are not to be had
        return None
    if lasting.read_only_descriptor is None:
        return None
    try:
        share = max(_LEAST_AHEAD, limit // (_AHEAD_SHARE * max(1, workers)))
        return CellGrants(lasting, layout, min(_AHEAD, share))
    except MemoryError:  # nor is there any for what is kept of each cell
        lasting.close()
        return None
