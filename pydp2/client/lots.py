"""Batches that came as numbers of rows in memory that the service shows: gathered here, in memory of the trainer's own.

Small ones that came in one message are gathered some at a time, when the first of them is taken; large ones each by
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pydp2.errors import RemoteProtocolError
from pydp2.inputs import Columns, Slots
from pydp2.inputs.columns import Ints, offsets
from pydp2.inputs.placed import NOTED, PlacedRows, suits
from pydp2.inputs.shelf import Layout, Shelf
from pydp2.protocol.packs import PACK_BYTES
from pydp2.transport.lasting import look

Shown = Shelf | PlacedRows
"""The memory of a service that a trainer gathers from: its cache, or the places of its rows."""


def opened(slots: Slots, descriptor: int, note: bytes) -> Shown | None:
    """What a service shows, whose samples have ``slots``, to be read. None: it cannot be had here. Closes
    ``descriptor``."""
    placed = note.startswith(NOTED) and suits(slots)
    layout = Layout.noted(slots, note.removeprefix(NOTED) if placed else note)
    try:
        memory = look(descriptor, layout.size)
        return PlacedRows(layout, memory) if placed else Shelf(layout, memory)
    except (OSError, ValueError, OverflowError):  # no room for so many addresses, or it is something else
        return None


class Lot:
    """The rows ``numbers`` of what is ``shown``, gathered once they are wanted."""

    __slots__ = ("_columns", "_numbers", "_shown")

    def __init__(self, shown: Shown, numbers: Ints) -> None:
        self._shown, self._numbers = shown, numbers
        self._columns: Columns | None = None

    @property
    def row_cost(self) -> int:
        """Bytes that the service keeps for each row until it is taken."""
        return self._shown.row_cost

    def nbytes(self, lo: int, hi: int) -> int:
        """The bytes of some of them as columns, where rows are alike; 0 before they are gathered."""
        return 0 if self._columns is None else self._columns.nbytes * (hi - lo) // max(1, len(self._numbers))

    def columns(self, lo: int, hi: int) -> Columns:
        """Some of them. Raises RemoteProtocolError where they lie nowhere, Moved where they are others by now."""
        if self._columns is None:
            try:
                self._columns = self._shown.take(self._numbers)
            except (IndexError, ValueError) as error:
                raise RemoteProtocolError(f"BatchHead: rows that do not lie in the cache ({error})") from None
        return self._columns if hi - lo == len(self._numbers) else self._columns.slice(lo, hi)


def lots(shown: Shown, numbers: Ints, counts: Sequence[int]) -> Iterator[tuple[Lot, int, int]]:
    """For each of some batches with ``counts`` of the rows ``numbers``: with which lot it is gathered, and its part of
    it."""
    edges = np.cumsum([0, *counts])
    nbytes = offsets(shown.sizes_of(numbers))[edges].tolist()
    edges = edges.tolist()
    begin = 0
    while begin < len(counts):
        end = begin + 1
        while end < len(counts) and nbytes[end + 1] - nbytes[begin] <= PACK_BYTES:
            end += 1
        lot = Lot(shown, numbers[edges[begin] : edges[end]])
        for i in range(begin, end):
            yield lot, edges[i] - edges[begin], edges[i + 1] - edges[begin]
        begin = end
