"""Rows of a store that make a batch, or several: gathered when, and where, they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.columns.columns import Array, Columns, Ints
from pydp2.rowstore.base import RowReader
from pydp2.rowstore.gather import Selection, entry_count, gather, gather_copy


class RowView:
    """The rows ``ids`` of ``store``. For a transport they are the frames of their columns
    (``pydp2.transport.DeferredFrames``)."""

    __slots__ = ("_row_ids", "_sources", "_store")

    def __init__(self, store: RowReader, ids: Ints) -> None:
        self._store = store
        self._row_ids = ids
        self._sources: list[tuple[Array, Selection]] = []

    def __len__(self) -> int:
        """Rows."""
        return len(self._row_ids)

    @property
    def shared_row_count(self) -> int:
        """They are among the first so many rows that others can gather by :meth:`handles`; 0: others cannot."""
        return self._store.shared_row_count

    def handles(self) -> Ints:
        """What those are told of them."""
        return self._store.handles(self._row_ids)

    def columns(self) -> Columns:
        """The rows, in memory of their own."""
        return self._store.take(self._row_ids)

    def lengths(self, slot: int) -> Ints:
        """How many time steps each row has in ``slot``, a sequence or nested sequence: ``(rows,)``."""
        return self._store.lengths(self._row_ids, slot)

    def frames(self) -> list[Any]:
        """:meth:`Columns.frames` of them, in memory of their own; where :meth:`sizes` was called, right after it."""
        sources, self._sources = self._sources or self._store.sources(self._row_ids), []
        return [gather_copy(array, where).reshape(-1) for array, where in sources]

    def sizes(self) -> list[int]:
        """The bytes of each of these frames."""
        self._sources = self._store.sources(self._row_ids)
        return [entry_count(where) * array.strides[0] for array, where in self._sources]

    def write(self, into: Sequence[NDArray[np.uint8]]) -> None:
        """Gather them into memory of these sizes; right after :meth:`sizes`, before anything moves in the store."""
        sources, self._sources = self._sources, []
        for (array, where), memory in zip(sources, into, strict=True):
            if count := entry_count(where):
                gather(array, where, memory.view(array.dtype).reshape(count, *array.shape[1:]))


class BatchRows(RowView):
    """The rows of a batch, of which the last ``padding`` stand for others a second time; ``nbytes`` without these.

    The store keeps them as long as there is this object; then, and not before, their cells are used again. So a batch
    can be sent a second time, and lies in memory once.
    """

    __slots__ = ("_owned_ids", "nbytes")

    def __init__(self, store: RowReader, ids: Ints, padding: int = 0, nbytes: int = 0) -> None:
        super().__init__(store, ids)
        self._owned_ids = ids[: len(ids) - padding]
        self.nbytes = nbytes

    @property
    def padded_bytes(self) -> int:
        """The same with them, where rows are alike in size."""
        return self.nbytes * len(self) // max(1, len(self._owned_ids))

    def __del__(self) -> None:
        self._store.release_later(self._owned_ids)


def concat_rows(batches: Sequence[BatchRows]) -> RowView:
    """The rows of all, one batch after the other. Only as long as there are these."""
    first = batches[0]
    return first if len(batches) == 1 else RowView(first._store, np.concatenate([each._row_ids for each in batches]))
