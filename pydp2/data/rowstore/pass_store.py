"""Count the rows that one pass has in memory which other passes share, so that its end gives them all back."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pydp2.data.columns.columns import Array, Ints
from pydp2.data.rowstore.gather import mark_released

_FIRST_IDS = 1 << 14


def grown(array: Array, entries: int) -> Array:
    """Return ``array`` with zeros behind it, ``entries`` in all."""
    result = np.zeros(entries, array.dtype)
    result[: len(array)] = array
    return result


class SharedMemoryOwner(Protocol):
    """Owner of the memory that passes share."""

    @property
    def high_water(self) -> int:
        """Number of ids that were used at some time."""
        ...

    def release_later(self, ids: Ints) -> None:
        """Give the rows back, before room is needed."""
        ...


class PassStore:
    """Rows of one pass in the memory of ``owner``. Closing it gives back what is left of them."""

    def __init__(self, owner: SharedMemoryOwner) -> None:
        self._owner = owner
        self._live = np.zeros(_FIRST_IDS, np.bool_)
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        """Return the number of live rows."""
        return self._count

    def _check_open(self) -> None:
        """Raise RuntimeError if the pass is over."""
        if self._closed:
            raise RuntimeError("the store is closed: its pass is over")

    def _note_appended(self, ids: Ints) -> None:
        if self._owner.high_water > len(self._live):
            self._live = grown(self._live, 2 * self._owner.high_water)
        self._live[ids] = True
        self._count += len(ids)

    def release_later(self, ids: Ints) -> None:
        """Give the rows back; :meth:`close` has done it for all. Raises KeyError for an id that is not live, or given
        twice."""
        if self._closed or not len(ids):
            return
        if not mark_released(self._live, np.ascontiguousarray(ids, np.int64)):
            raise KeyError(f"rows are given back once, and only live ones; got {ids.tolist()[:20]}")
        self._count -= len(ids)
        self._owner.release_later(ids)

    release = release_later

    def close(self) -> None:
        """Give back all rows that are left: the pass is over, and no batch of it is wanted any more."""
        if not self._closed and self._count:
            self._owner.release_later(np.flatnonzero(self._live[: self._owner.high_water]))
        self._closed = True
        self._count = 0
