"""Batches that came as numbers of rows in the service's cache: gathered here, in memory of the trainer's own.

Small ones that came in one message are gathered some at a time, when the first of them is taken; large ones each by
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pydp2.errors import RemoteProtocolError
from pydp2.inputs import Columns, Slots
from pydp2.inputs.columns import Ints, offsets
from pydp2.inputs.shelf import Layout, Shelf
from pydp2.protocol.packs import PACK_BYTES
from pydp2.transport.lasting import look


def opened(slots: Slots, descriptor: int, note: bytes) -> Shelf | None:
    """The cache of a service, whose samples have ``slots``, to be read. None: it cannot be had here. Closes
    ``descriptor``."""
    layout = Layout.noted(slots, note)
    try:
        return Shelf(layout, look(descriptor, layout.size))
    except (OSError, ValueError, OverflowError):  # no room for so many addresses, or it is something else
        return None


class Lot:
    """The rows ``ids`` of ``shelf``, gathered once they are wanted."""

    __slots__ = ("_columns", "_ids", "_shelf")

    def __init__(self, shelf: Shelf, ids: Ints) -> None:
        self._shelf, self._ids = shelf, ids
        self._columns: Columns | None = None

    def columns(self, lo: int, hi: int) -> Columns:
        """Some of them. Raises RemoteProtocolError where they lie nowhere."""
        if self._columns is None:
            try:
                self._columns = self._shelf.take(self._ids)
            except (IndexError, ValueError) as error:
                raise RemoteProtocolError(f"BatchHead: rows that do not lie in the cache ({error})") from None
        return self._columns if hi - lo == len(self._ids) else self._columns.slice(lo, hi)


def lots(shelf: Shelf, ids: Ints, counts: Sequence[int]) -> Iterator[tuple[Lot, int, int]]:
    """For each of some batches with ``counts`` of the rows ``ids``: with which lot it is gathered, and its part of
    it."""
    edges = np.cumsum([0, *counts])
    nbytes = offsets(shelf.sizes[ids])[edges].tolist()
    edges = edges.tolist()
    begin = 0
    while begin < len(counts):
        end = begin + 1
        while end < len(counts) and nbytes[end + 1] - nbytes[begin] <= PACK_BYTES:
            end += 1
        lot = Lot(shelf, ids[edges[begin] : edges[end]])
        for i in range(begin, end):
            yield lot, edges[i] - edges[begin], edges[i + 1] - edges[begin]
        begin = end
