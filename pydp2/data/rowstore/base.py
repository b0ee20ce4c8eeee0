"""State what memory in which rows wait offers: to what gathers rows from it, and to the pool that fills it.

:class:`.heap.HeapStore` keeps rows on the heap of the process, :class:`.cells.CellStore` in cells of one size that
several processes see, :class:`.shared_heap.SharedHeap` all others that trainers see,
:class:`.append_only.AppendOnlyStore` those of the cache; :class:`.mixed.MixedStore` is for a pool whose rows lie partly
in the cache. One test holds all of them to what stands here (``tests/rowstore/test_contract.py``).
"""

from __future__ import annotations

from typing import Any, Protocol

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.gather import Selection


class RowReader(Protocol):
    """Rows that are found by their ids, which are int64."""

    def shared_row_count(self, ids: Ints) -> int:
        """Return a bound of the numbers that :meth:`handles` gives if a trainer that shares the memory can gather all
        of the rows ``ids`` by them; 0: it cannot."""
        ...

    def take(self, ids: Ints) -> Columns:
        """Return the rows ``ids``, in that order, as columns over fresh, writable arrays."""
        ...

    def sources(self, ids: Ints) -> list[tuple[Array, Selection]]:
        """Return for each array of the columns of ``ids``, in the order of :meth:`Columns.frames`, where its entries
        lie: an array and what to gather of it. Valid until rows are appended or released."""
        ...

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """Return the number of time steps of each row in ``slot``, a sequence or nested sequence: ``(rows,)``. Raises
        TypeError where rows have no sequences."""
        ...

    def handles(self, ids: Ints) -> Ints:
        """Return the numbers by which a trainer that shares the memory gathers the rows: ``(rows,)``."""
        ...

    def release_later(self, ids: Ints) -> None:
        """Give the rows back, at the latest before room is needed. A released id may be given to another row."""
        ...


class UnstoredRows(Protocol):
    """Rows that arrived and that no store has yet: :class:`Columns`, or rows in cells."""

    rows: int

    def slice(self, lo: int, hi: int) -> UnstoredRows:
        """Return rows ``lo`` to ``hi``, not included."""
        ...

    def release(self) -> None:
        """Give back the memory of the rows that no store has taken: none is going to."""
        ...


class RowStore(Protocol):
    """Rows of a pool: it appends them, and asks for nothing else."""

    def append(self, columns: Any) -> Ints:
        """Keep all rows of ``columns`` and return their ids: ``(rows,)``. No id of a row that is kept is among them."""
        ...
