"""Gather rows of a store that make a batch, or several, when and where they are wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.base import RowReader
from pydp2.data.rowstore.gather import Selection, gather, gather_copy


class RowView:
    """Rows ``ids`` of ``store``. For a transport they are the frames of their columns
    (``pydp2.transport.DeferredFrames``)."""

    __slots__ = ("_sources", "row_ids", "store")

    def __init__(self, store: RowReader, ids: Ints) -> None:
        self.store = store
        self.row_ids = ids
        self._sources: list[tuple[Array, Selection]] = []

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.row_ids)

    @property
    def shared_row_count(self) -> int:
        """Bound of the numbers by which others can gather these rows (:meth:`handles`); 0: others cannot."""
        return self.store.shared_row_count(self.row_ids)

    def handles(self) -> Ints:
        """Return the handles by which others gather the rows."""
        return self.store.handles(self.row_ids)

    def columns(self) -> Columns:
        """Return the rows, in memory of their own."""
        return self.store.take(self.row_ids)

    def lengths(self, slot: int) -> Ints:
        """Return how many time steps each row has in ``slot``, a sequence or nested sequence: ``(rows,)``."""
        return self.store.lengths(self.row_ids, slot)

    def frames(self) -> list[Any]:
        """Return :meth:`Columns.frames` of the rows, in memory of their own; if :meth:`sizes` was
        called, right after it."""
        sources, self._sources = self._sources or self.store.sources(self.row_ids), []
        return [gather_copy(array, where).reshape(-1) for array, where in sources]

    def sizes(self) -> list[int]:
        """Return the bytes of each of these frames."""
        self._sources = self.store.sources(self.row_ids)
        return [len(where) * array.itemsize * math.prod(array.shape[1:]) for array, where in self._sources]

    def write(self, into: Sequence[NDArray[np.uint8]]) -> None:
        """Gather the frames into memory of these sizes, right after :meth:`sizes`, before
        anything moves in the store."""
        sources, self._sources = self._sources, []
        for (array, where), memory in zip(sources, into, strict=True):
            if count := len(where):
                gather(array, where, memory.view(array.dtype).reshape(count, *array.shape[1:]))


class BatchRows(RowView):
    """Rows of a batch, of which the last ``padding`` stand for others a second time; ``nbytes`` without these.

    The store keeps the rows until each of their holders has called :meth:`release`; only then are their cells used
    again. So a batch can be sent a second time, and lies in memory once. The caller is the first holder.
    """

    __slots__ = ("_holders", "_owned_ids", "nbytes")

    def __init__(self, store: RowReader, ids: Ints, padding: int = 0, nbytes: int = 0) -> None:
        super().__init__(store, ids)
        self._owned_ids = ids[: len(ids) - padding] if padding else ids
        self._holders = 1
        self.nbytes = nbytes

    @property
    def padded_bytes(self) -> int:
        """Number of bytes with the padding, if rows are alike in size."""
        if self._owned_ids is self.row_ids:
            return self.nbytes
        return self.nbytes * len(self) // max(1, len(self._owned_ids))

    def retain(self) -> BatchRows:
        """Add a holder, and return these rows."""
        self._holders += 1
        return self

    def release(self) -> None:
        """Remove a holder. The last one gives the rows back to the store. Raises RuntimeError if there is none."""
        if not self._holders:
            raise RuntimeError("the rows of a batch are released once by each of their holders")
        self._holders -= 1
        if not self._holders:
            self.store.release_later(self._owned_ids)


def concat_rows(batches: Sequence[BatchRows]) -> RowView:
    """Return the rows of all batches, one batch after the other, valid only until one of the batches is released."""
    first = batches[0]
    return first if len(batches) == 1 else RowView(first.store, np.concatenate([each.row_ids for each in batches]))
