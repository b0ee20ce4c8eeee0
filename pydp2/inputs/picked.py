"""Rows of a store that make a batch: gathered when, and where, they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.inputs.columns import Array, Columns, Ints
from pydp2.inputs.moving import Where, entries, gather, gathered
from pydp2.inputs.store import ColumnStore


class Picked:
    """The rows ``ids`` of ``store``, of which the last ``padding`` stand for others a second time.

    The store keeps them as long as there is this object; then, and not before, their places are used again. So a batch
    can be sent a second time, and lies in memory once. For a transport it is the frames of its columns
    (``pydp2.transport.Late``).
    """

    __slots__ = ("_ids", "_kept", "_sources", "_store")

    def __init__(self, store: ColumnStore, ids: Ints, padding: int = 0) -> None:
        self._store = store
        self._ids = ids
        self._kept = ids[: len(ids) - padding]
        self._sources: list[tuple[Array, Where]] = []

    def __del__(self) -> None:
        self._store.release(self._kept)

    def __len__(self) -> int:
        """Rows, with those that only pad."""
        return len(self._ids)

    def columns(self) -> Columns:
        """The rows, in memory of their own."""
        return self._store.take(self._ids)

    def lengths(self, slot: int) -> Ints:
        """How many time steps each row has in ``slot``, a sequence or nested sequence: ``(rows,)``."""
        return self._store.lengths(self._ids, slot)

    def frames(self) -> list[Any]:
        """:meth:`Columns.frames` of them, in memory of their own; where :meth:`sizes` was called, right after it."""
        sources, self._sources = self._sources or self._store.sources(self._ids), []
        return [gathered(array, where).reshape(-1) for array, where in sources]

    def sizes(self) -> list[int]:
        """The bytes of each of these frames."""
        self._sources = self._store.sources(self._ids)
        return [entries(where) * array.strides[0] for array, where in self._sources]

    def write(self, into: Sequence[NDArray[np.uint8]]) -> None:
        """Gather them into memory of these sizes; right after :meth:`sizes`, before anything moves in the store."""
        sources, self._sources = self._sources, []
        for (array, where), memory in zip(sources, into, strict=True):
            if count := entries(where):
                gather(array, where, memory.view(array.dtype).reshape(count, *array.shape[1:]))
