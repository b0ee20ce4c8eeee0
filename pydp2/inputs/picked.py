"""Rows of a store that make a batch, or several: gathered when, and where, they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pydp2.inputs.columns import Array, Columns, Ints
from pydp2.inputs.moving import Where, entries, gather, gathered


class Store(Protocol):
    """Where rows lie: as :class:`.store.ColumnStore`, :class:`.shelf.Shelf` and :class:`.placed.PlacedStore` do it."""

    @property
    def shown(self) -> int: ...

    def take(self, ids: Ints) -> Columns: ...
    def sources(self, ids: Ints) -> list[tuple[Array, Where]]: ...
    def lengths(self, ids: Ints, slot: int) -> Ints: ...
    def numbers(self, ids: Ints) -> Ints: ...
    def give_back(self, ids: Ints) -> None: ...


class Gathered:
    """The rows ``ids`` of ``store``. For a transport they are the frames of their columns
    (``pydp2.transport.Late``)."""

    __slots__ = ("_ids", "_sources", "_store")

    def __init__(self, store: Store, ids: Ints) -> None:
        self._store = store
        self._ids = ids
        self._sources: list[tuple[Array, Where]] = []

    def __len__(self) -> int:
        """Rows."""
        return len(self._ids)

    @property
    def shown(self) -> int:
        """They are among the first so many rows that others can gather by :meth:`numbers`; 0: others cannot."""
        return self._store.shown

    def numbers(self) -> Ints:
        """What those are told of them."""
        return self._store.numbers(self._ids)

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


class Picked(Gathered):
    """The rows of a batch, of which the last ``padding`` stand for others a second time; ``nbytes`` without these.

    The store keeps them as long as there is this object; then, and not before, their places are used again. So a batch
    can be sent a second time, and lies in memory once.
    """

    __slots__ = ("_kept", "nbytes")

    def __init__(self, store: Store, ids: Ints, padding: int = 0, nbytes: int = 0) -> None:
        super().__init__(store, ids)
        self._kept = ids[: len(ids) - padding]
        self.nbytes = nbytes

    @property
    def padded_bytes(self) -> int:
        """The same with them, where rows are alike in size."""
        return self.nbytes * len(self) // max(1, len(self._kept))

    def __del__(self) -> None:
        self._store.give_back(self._kept)


def together(several: Sequence[Picked]) -> Gathered:
    """The rows of all, one batch after the other. Only as long as there are these."""
    first = several[0]
    return first if len(several) == 1 else Gathered(first._store, np.concatenate([each._ids for each in several]))
