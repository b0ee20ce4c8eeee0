"""State what memory in which rows wait offers: to what gathers rows from it, and to the pool that fills it.

A *memory* (:class:`RowMemory`) keeps rows for all passes of a job, or of a service: :class:`.heap.HeapStore` on the
heap of the process, :class:`.heap.SharedHeap` where trainers see them, :class:`.cells.CellStore` in cells of one size
to which workers write, too, :class:`.host_rows.RowServers` on other hosts. A *store* (:class:`RowStore`) is what one
pass has: :class:`.pass_view.PassView` of a memory, :class:`.append_only.AppendOnlyStore` of the cache, or
:class:`.composite.CompositeStore` of two stores. Nobody asks of which kind one is. One test holds all compositions to
what stands here (``tests/rowstore/test_contract.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.gather import Selection, gather_copy
from pydp2.data.schema.input_types import Slots


class SplitRows(NamedTuple):
    """Rows of a message, by where they lie: ``here`` are the ids of those that ``store`` has, and ``elsewhere`` says
    where the others are, as ``[address, rows]`` for each.

    ``order``: for each row of the message its position among those here and those elsewhere, in this order;
    ``handles``: of the rows elsewhere. Both int64.
    """

    store: RowReader
    here: Ints
    elsewhere: list[list[Any]]
    order: Ints
    handles: Ints


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

    def carried_bytes(self, ids: Ints, nbytes: int) -> int:
        """Return how many bytes a message has for the rows, which have ``nbytes`` together: it carries those that lie
        in this process, and names the others, which cannot be read here."""
        ...

    def split(self, ids: Ints) -> SplitRows | None:
        """Return which of the rows lie here, and where the others do; None: all of them lie here."""
        ...

    def holds(self, rows: Any) -> bool:
        """Return True if ``rows``, which arrived, belong to this memory and no other can take them."""
        ...

    def release_later(self, ids: Ints) -> None:
        """Give the rows back, at the latest before room is needed. A released id may be given to another row."""
        ...


class UnstoredRows(Protocol):
    """Rows that arrived and that no store has yet: :class:`Columns`, or rows that lie somewhere already."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    def slice(self, lo: int, hi: int) -> UnstoredRows:
        """Return rows ``lo`` to ``hi``, not included."""
        ...

    def take(self, rows: Ints) -> UnstoredRows:
        """Return the given rows, in the given order, as rows of their own."""
        ...

    def sample_bytes(self) -> Ints:
        """Return the bytes of each row: ``(rows,)``."""
        ...

    def release(self) -> None:
        """Give back the memory of the rows that no store has taken: none is going to."""
        ...


ClaimRows = Callable[[int, Sequence[npt.NDArray[np.uint8]]], UnstoredRows]
"""Return so many rows of a chunk that lie somewhere already, by the frames that name them. Raises RemoteProtocolError
for rows that do not belong to the worker."""


class PoolStore(Protocol):
    """Store of a pool: the pool appends rows, and asks for nothing else."""

    def append(self, columns: Any) -> Ints:
        """Keep all rows of ``columns`` and return their ids: ``(rows,)``. No id of a row that is kept is among them."""
        ...


class RowMemory(RowReader, PoolStore, Protocol):
    """Memory of rows of any number of passes."""

    @property
    def high_water(self) -> int:
        """Number of ids that were used at some time."""
        ...

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows have or had."""
        ...


class RowStore(RowReader, PoolStore, Protocol):
    """Rows of one pass."""

    @property
    def held_bytes(self) -> int:
        """Number of bytes of the memory that rows of pools have or had, of this pass and of others that share it."""
        ...

    def close(self) -> int:
        """Give back all rows that are left, and return their number: the pass is over, and no batch of it is wanted any
        more."""
        ...


class LocalRows:
    """Answers of memory in this process, whose ``slots`` are those of the rows and whose ``sources`` say where these
    lie."""

    __slots__ = ()

    slots: Slots
    sources: Callable[[Ints], list[tuple[Array, Selection]]]

    def take(self, ids: Any) -> Columns:
        """Return the rows with these ``ids``, in that order, as columns over fresh, writable arrays."""
        ids = np.asarray(ids, np.int64)
        taken = iter([gather_copy(array, which) for array, which in self.sources(ids)])
        return Columns(self.slots, len(ids), [[next(taken) for _ in fields] for fields in self.slots.fields])

    def holds(self, rows: Any) -> bool:
        """Return False: another memory may take the rows as well."""
        return False

    def carried_bytes(self, ids: Ints, nbytes: int) -> int:
        """Return ``nbytes``: all rows lie here."""
        return nbytes

    def split(self, ids: Ints) -> SplitRows | None:
        """Return None: all rows lie here."""
        return None
