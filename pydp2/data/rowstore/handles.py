"""Name rows of shared memory so that a process which is late notices that others lie there now: a handle is the row's
id, and how often that id was given to a row before (its generation)."""

from __future__ import annotations

import numpy as np

from pydp2.data.columns.columns import Ints

_ID_BITS = 40  # of a handle; the bits above them are the generation
_ID_MASK = (1 << _ID_BITS) - 1
_GENERATION_MASK = (1 << 62 - _ID_BITS) - 1


class StaleRows(Exception):
    """Gathered rows are not those that were named: they were given back meanwhile."""


def handles_of(ids: Ints, generations: Ints) -> Ints:
    """Return the handles of rows. ``generations``: of all rows, by id."""
    return ids | generations[ids] << _ID_BITS


def ids_of(handles: Ints) -> Ints:
    """Return the ids of ``handles``, which may be any numbers: of a negative one, that itself."""
    return np.where(handles < 0, handles, handles & _ID_MASK)


def check_handles(handles: Ints, generations: Ints) -> None:
    """Raise StaleRows if a row of ``handles`` was given back. To be called once the rows are copied."""
    if (generations[handles & _ID_MASK] != handles >> _ID_BITS).any():
        raise StaleRows


def next_generation(ids: Ints, generations: Ints) -> None:
    """Make the handles of ``ids``, which are given back, void."""
    generations[ids] = generations[ids] + 1 & _GENERATION_MASK
