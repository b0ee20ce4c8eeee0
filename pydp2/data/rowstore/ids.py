"""Number the rows of a memory, and name them so that a process which is late notices that its rows are gone.

**Theory of operation.** Rows come in chunks and go one by one, in any order. The id of a row is its index in arrays, so
ids must stay small: one that was given back is used again, and fresh ids come only where none is left (``high_water``
of them were used at some time). What is used last comes first, because its memory is warm.

Three things must stay true.

* *An id belongs to one row at a time.* ``live`` says which ids have a row. An id is given back once, and only while it
  is live; everything else is a KeyError before anything has changed. To count holders here would hide the error.
* *An id is not used again while something may still be written to it or read from it.* A batch may be given back by
  whoever drops it last, in the middle of another call of the store. So :attr:`released` only notes ids; the store
  applies the notes when it wants room, and settles what hangs on them (stretches of arenas, copies that are under way)
  before it frees them. If an id were free at once, two rows would lie in one place for a while.
* *A reader that was told of a row does not take the next one for it.* A trainer that gathers from shared memory may be
  late: the service has given it up, its rows are gone, and others lie under the same ids. To keep an id from use until
  all who were told of it have answered fails, because a process that is stopped never answers. So a row is named by a
  handle: its id, and how often that id was given back before (its *generation*). The reader copies first and compares
  generations afterwards; the owner counts a generation up first and writes another row afterwards, with a fence
  between. Then a copy that is mixed of two rows always fails the comparison. (What compares before it copies can lose
  the row in between.)

A generation wraps after 2**22 releases of one id; a reader would have to sleep through exactly so many of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Array, Ints
from pydp2.data.rowstore.gather import mark_released
from pydp2.data.rowstore.region import fence

_ID_BITS = 40  # of a handle; the bits above them are the generation
_ID_MASK = (1 << _ID_BITS) - 1
_GENERATION_MASK = (1 << 62 - _ID_BITS) - 1
_FIRST_IDS = 1 << 10


class StaleRows(Exception):
    """Gathered rows are not those that were named: they were given back meanwhile."""


def ids_of(handles: Ints) -> Ints:
    """Return the ids of ``handles``, which may be any numbers: of a negative one, that itself."""
    return np.where(handles < 0, handles, handles & _ID_MASK)


def check_handles(handles: Ints, generations: Ints) -> None:
    """Raise StaleRows if a row of ``handles`` was given back. To be called once the rows are copied."""
    if (generations[handles & _ID_MASK] != handles >> _ID_BITS).any():
        raise StaleRows


def grown(array: Array, entries: int) -> Array:
    """Return ``array`` with zeros behind it, ``entries`` in all."""
    result = np.zeros((entries, *array.shape[1:]), array.dtype)
    result[: len(array)] = array
    return result


class IdAllocator:
    """Allocator of ids from 0 on. ``generations``: memory for the generation of each id that there can be, which others
    see; None: they are kept here."""

    __slots__ = ("_free", "_generations", "_is_shared", "free_count", "high_water", "live", "released")

    def __init__(self, generations: Ints | None = None) -> None:
        self._is_shared = generations is not None
        self._generations: Ints = np.zeros(0, np.int64) if generations is None else generations
        self._forget()

    def _forget(self) -> None:
        self.live: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        """True for each id that has a row; the owner of the ids sets it."""
        self.high_water = 0
        """Number of ids that were used at some time."""
        self._free: Ints = np.empty(0, np.int64)  # a stack of ids that were used before
        self.free_count = 0
        """Number of ids in that stack."""
        self.released: list[Ints] = []
        """Ids that were given back, and that nothing was done about yet: anybody may append to it at any time."""

    def __len__(self) -> int:
        """Return the number of ids in use, without those that were given back."""
        return self.high_water - self.free_count - sum(map(len, self.released))

    def need(self, count: int) -> int:
        """Return how many ids will have been used at some time once ``count`` more are in use."""
        return self.high_water + max(0, count - self.free_count)

    def reserve(self, count: int) -> None:
        """Make room for ``count`` ids in all. Raises MemoryError; then nothing has changed."""
        if count <= len(self.live):
            return
        if not self._is_shared and len(self._generations) < count:
            self._generations = grown(self._generations, count)
        live = grown(self.live, count)
        free = np.empty(count, np.int64)
        free[: self.free_count] = self._free[: self.free_count]
        self.live, self._free = live, free

    def allocate(self, count: int) -> Ints:
        """Return ``count`` ids that nobody uses; they are not live yet."""
        again = min(count, self.free_count)
        need = self.high_water + count - again
        if need > len(self.live):
            self.reserve(max(_FIRST_IDS, need, 2 * len(self.live)))
        self.free_count -= again
        ids = self._free[self.free_count : self.free_count + again][::-1].copy()
        if need > self.high_water:
            ids = np.concatenate([ids, np.arange(self.high_water, need)])
            self.high_water = need
        return ids

    def take_released(self) -> Ints:
        """Return the ids in :attr:`released`, and empty it."""
        released, self.released = self.released, []
        return np.concatenate(released)

    def mark_released(self, ids: Ints) -> None:
        """Note that ``ids`` have no row any more. Raises KeyError if one is not live, or given twice."""
        if not mark_released(self.live, ids):
            raise KeyError(f"rows are given back once, and only live ones; got {ids.tolist()[:20]}")

    def free(self, ids: Ints) -> None:
        """Let ``ids``, which have no row, be used again. Their handles are void from now on."""
        self._generations[ids] = self._generations[ids] + 1 & _GENERATION_MASK
        fence()  # before others are written there
        self._free[self.free_count : self.free_count + len(ids)] = ids
        self.free_count += len(ids)

    def clear(self) -> None:
        """Forget all rows. The handles of those that were there are void."""
        gone = np.flatnonzero(self.live)
        self._generations[gone] = self._generations[gone] + 1 & _GENERATION_MASK
        self._forget()

    # -- handles ---------------------------------------------------------------------------------------------------
    def handles(self, ids: Ints) -> Ints:
        """Return the handles of the rows ``ids``."""
        return ids | self._generations[ids] << _ID_BITS

    def known(self, handles: Ints) -> Ints | None:
        """Return the ids of the rows with these ``handles``, which may be any numbers; None: some are not here."""
        ids = ids_of(handles)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.high_water:
            return None
        return ids if self.live[ids].all() and (self.handles(ids) == handles).all() else None
