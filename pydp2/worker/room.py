"""A worker's places in the memory of the service's rows: what is sent is put there, as long as there are places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pydp2.errors import RemoteProtocolError
from pydp2.inputs import Columns, Slots
from pydp2.inputs.columns import Ints
from pydp2.inputs.placed import NOTED, PlacedRows, suits
from pydp2.inputs.shelf import Layout
from pydp2.transport import Line
from pydp2.transport.lasting import look


class Room:
    """For rows of ``slots``, over ``line``."""

    def __init__(self, line: Line, slots: Slots) -> None:
        self._line, self._slots = line, slots
        self._rows: PlacedRows | None = None
        self._asked = False
        self._places: Ints = np.empty(0, np.int64)  # granted, not used

    def grant(self, frames: Sequence[memoryview]) -> None:
        """The server has granted places. The memory is asked for with the first of them. Raises RemoteProtocolError."""
        if len(frames) != 1 or frames[0].nbytes % 8 or not suits(self._slots):
            raise RemoteProtocolError("Places: one frame with the number of each is needed, for rows that have some")
        self._places = np.concatenate([self._places, np.frombuffer(frames[0], "<i8")])
        if not self._asked:
            self._asked = True
            self._line.ask()

    def put(self, columns: Columns) -> Ints | None:
        """Put the rows of ``columns`` in places: which. None: there are too few, or the memory is not there."""
        if len(self._places) < columns.rows or not self._seen():
            return None
        assert self._rows is not None
        places, self._places = self._places[: columns.rows], self._places[columns.rows :]
        try:
            self._rows.put(places, columns)
        except IndexError:
            raise RemoteProtocolError("Places: there are none of these numbers") from None
        return places

    def _seen(self) -> bool:
        """Whether the memory is there; it comes a little after it was asked for."""
        if self._rows is None and (wish := self._line.wish) is not None and (given := wish.look()) is not None:
            descriptor, note = given
            layout = Layout.noted(self._slots, note.removeprefix(NOTED))
            try:
                self._rows = PlacedRows(layout, look(descriptor, layout.size, write=True))
            except (OSError, ValueError, OverflowError):  # no room for so many addresses: it goes without
                wish.close()
            else:
                wish.use()
        return self._rows is not None
