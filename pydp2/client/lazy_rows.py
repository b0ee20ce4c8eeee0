"""Gather batches that came as numbers of rows in memory that the service shows, into memory of the trainer's own.

Small batches that came in one message are gathered some at a time, when the first of them is taken;
large ones each by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pydp2.data.columns.columns import Columns, Ints, offsets
from pydp2.data.rowstore.reader import SharedRows, shared_rows_of
from pydp2.data.schema.input_types import Slots
from pydp2.errors import RemoteProtocolError
from pydp2.protocol.batch_packing import MAX_PACK_BYTES
from pydp2.transport.shared_region import map_region


def open_shared_rows(slots: Slots, descriptor: int, note: bytes) -> SharedRows | None:
    """Map the memory that a service shows, of samples with ``slots``, to be read. Return None if it cannot be had
    here."""
    try:
        return shared_rows_of(slots, note, lambda size: map_region(descriptor, size))
    except (OSError, ValueError, OverflowError):  # no room for so many addresses, or it is something else
        return None


class LazyRows:
    """Rows ``numbers`` of the memory ``shared_rows``, of ``nbytes`` bytes, gathered once they are wanted."""

    __slots__ = ("_columns", "_nbytes", "_numbers", "_shared_rows")

    def __init__(self, shared_rows: SharedRows, numbers: Ints, nbytes: int) -> None:
        self._shared_rows, self._numbers, self._nbytes = shared_rows, numbers, nbytes
        self._columns: Columns | None = None

    @property
    def is_gathered(self) -> bool:
        """True once the rows are here."""
        return self._columns is not None

    def held_bytes(self, lo: int, hi: int) -> int:
        """Return the bytes that the service keeps for rows ``lo`` to ``hi`` until they are taken, if rows are alike."""
        if self._shared_rows.row_cost is not None:
            return self._shared_rows.row_cost * (hi - lo)
        return self._nbytes * (hi - lo) // max(1, len(self._numbers))

    def nbytes(self, lo: int, hi: int) -> int:
        """Return the bytes of rows ``lo`` to ``hi`` as columns, if rows are alike; 0 before they are gathered."""
        return 0 if self._columns is None else self._columns.nbytes * (hi - lo) // max(1, len(self._numbers))

    def columns(self, lo: int, hi: int) -> Columns:
        """Return rows ``lo`` to ``hi``. Raises RemoteProtocolError if they lie nowhere, StaleRows if their
        cells hold others by now."""
        if self._columns is None:
            try:
                self._columns = self._shared_rows.take(self._numbers)
            except (IndexError, ValueError) as error:
                raise RemoteProtocolError(f"BatchHead: rows that do not lie in the cache ({error})") from None
        return self._columns if hi - lo == len(self._numbers) else self._columns.slice(lo, hi)


def split_rows(shared_rows: SharedRows, numbers: Ints, counts: Sequence[int]) -> Iterator[tuple[LazyRows, int, int]]:
    """Yield for each of some batches, with ``counts`` of the rows ``numbers``, the rows that it is gathered with,
    and its part of them."""
    edges = np.cumsum([0, *counts])
    nbytes = offsets(shared_rows.row_sizes(numbers))[edges].tolist()
    edges = edges.tolist()
    begin = 0
    while begin < len(counts):
        end = begin + 1
        while end < len(counts) and nbytes[end + 1] - nbytes[begin] <= MAX_PACK_BYTES:
            end += 1
        rows = LazyRows(shared_rows, numbers[edges[begin] : edges[end]], nbytes[end] - nbytes[begin])
        for i in range(begin, end):
            yield rows, edges[i] - edges[begin], edges[i + 1] - edges[begin]
        begin = end
