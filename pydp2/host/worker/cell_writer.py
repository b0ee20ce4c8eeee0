"""Put the rows that a worker sends into its cells of the service's memory, as long as it has cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pydp2.data.columns.columns import Columns, Ints
from pydp2.data.rowstore.cells import CellRegion
from pydp2.data.rowstore.region import HEAP_NOTE_PREFIX, RegionLayout
from pydp2.data.schema.input_types import Slots, suits_cells
from pydp2.errors import RemoteProtocolError
from pydp2.transport import Line
from pydp2.transport.shared_region import map_region


class CellWriter:
    """Writer of rows of ``slots`` into cells that the server grants over ``line``."""

    def __init__(self, line: Line, slots: Slots) -> None:
        self._line, self._slots = line, slots
        self._region: CellRegion | None = None
        self._region_requested = False
        self._free_cells: Ints = np.empty(0, np.int64)  # granted, not used

    def add_cells(self, frames: Sequence[memoryview]) -> None:
        """Add cells that the server has granted. The memory is asked for with the first of them.
        Raises RemoteProtocolError."""
        if len(frames) != 1 or frames[0].nbytes % 8 or not suits_cells(self._slots):
            raise RemoteProtocolError(
                "GrantCells: one frame with the number of each cell is needed, for rows that have cells"
            )
        self._free_cells = np.concatenate([self._free_cells, np.frombuffer(frames[0], "<i8")])
        if not self._region_requested:
            self._region_requested = True
            self._line.request_fd()

    def write(self, columns: Columns) -> Ints | None:
        """Put the rows of ``columns`` into cells and return the cells' numbers. None: there are too few, or
        the memory is not there."""
        if len(self._free_cells) < columns.rows or not self._has_region():
            return None
        assert self._region is not None
        cells, self._free_cells = self._free_cells[: columns.rows], self._free_cells[columns.rows :]
        try:
            self._region.put(cells, columns)
        except IndexError:
            raise RemoteProtocolError("GrantCells: there are no cells with these numbers") from None
        return cells

    def _has_region(self) -> bool:
        """Return True if the memory is there; it comes a little after it was asked for."""
        if (
            self._region is None
            and (request := self._line.fd_request) is not None
            and (given := request.poll()) is not None
        ):
            descriptor, note = given
            layout = RegionLayout.from_note(self._slots, note.removeprefix(HEAP_NOTE_PREFIX), movable=True)
            try:
                self._region = CellRegion(layout, map_region(descriptor, layout.size, writable=True))
            except (OSError, ValueError, OverflowError):  # no room for so many addresses: it goes on without
                request.close()
            else:
                request.accept()
        return self._region is not None
