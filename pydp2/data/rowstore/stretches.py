"""Find places for rows of many lengths in an arena: what a row leaves is taken by the next one of about its length.

Lengths are rounded up to one of sixteen steps for each power of two, at most 1/16 more, and the stretches that rows
have left are kept by their rounded length. Where rows of other lengths come than went, stretches stay free: sweeping,
which the arena decides on, makes one of them all. Where nothing was compiled, every row gets new room, and sweeping
finds the rest.
"""

from __future__ import annotations

import numpy as np

from pydp2.data.columns.columns import Array, Ints, expand_ranges
from pydp2.data.native import is_active

_STEP_BITS = 4  # as in pydp2/data/native/_array_kernels.pyx
ROUNDING_DIVISOR = 1 << _STEP_BITS
"""Rounding adds at most one such part to a length."""
_LENGTHS = 64 << _STEP_BITS
_END, _ROOM, _FREE_NODE, _NODE_COUNT = range(4)

if is_active():
    from pydp2.data.native import _array_kernels
else:
    _array_kernels = None  # type: ignore[assignment]


def rounded_lengths(lengths: Ints) -> Ints:
    """Return what ``lengths`` are rounded up to, int64."""
    shift = np.maximum(np.frexp(lengths.astype(np.float64))[1].astype(np.int64) - (_STEP_BITS + 1), 0)
    return (lengths + (1 << shift) - 1) >> shift << shift


class Stretches:
    """Stretches of an arena: those in use, those that were released, and the room behind them."""

    __slots__ = ("_heads", "_nodes", "_state")

    def __init__(self) -> None:
        self._heads = np.full(_LENGTHS, -1, np.int64)  # the first free stretch of each rounded length: its node
        self._nodes: Array = np.empty((0, 2), np.int64)  # of a free stretch: where it begins, and the node of the next
        self._state = np.array([0, 0, -1, 0], np.int64)

    @property
    def end(self) -> int:
        """End of what is in use or was: the rest of the arena is free."""
        return int(self._state[_END])

    @property
    def room(self) -> int:
        """Number of entries that the stretches in use have."""
        return int(self._state[_ROOM])

    def place(self, lengths: Ints, starts: Ints, limit: int) -> int:
        """Write into ``starts`` where rows of ``lengths`` entries go. Return how many got a place: for the next one
        there is none below ``limit``."""
        if _array_kernels is not None:
            return _array_kernels.place(lengths, starts, limit, self._heads, self._nodes, self._state)
        rounded = rounded_lengths(lengths)
        ends = np.cumsum(rounded) + self.end
        count = int(np.searchsorted(ends, limit, "right"))
        starts[:count] = ends[:count] - rounded[:count]
        if count:
            self._state[_ROOM] += ends[count - 1] - self._state[_END]
            self._state[_END] = ends[count - 1]
        return count

    def release(self, starts: Ints, lengths: Ints) -> None:
        """Take back the stretches of rows of ``lengths`` entries that begin at ``starts``."""
        if _array_kernels is not None:
            if self._nodes.shape[0] < self._state[_NODE_COUNT] + len(starts):
                nodes = np.empty((2 * len(self._nodes) + len(starts), 2), np.int64)
                nodes[: len(self._nodes)] = self._nodes
                self._nodes = nodes
            _array_kernels.release_stretches(starts, lengths, self._heads, self._nodes, self._state)
        else:
            self._state[_ROOM] -= rounded_lengths(lengths).sum()
        if not self._state[_ROOM]:
            self.reset(0)

    def reset(self, end: int) -> None:
        """Note that all stretches in use lie together before ``end``."""
        self._heads[:] = -1
        self._state[:] = [end, end, -1, 0]


def scatter(source: Array, starts: Ints, lengths: Ints, out: Array) -> None:
    """Copy stretches of ``source``, which lie one after the other, to ``starts`` in ``out``. Raises IndexError for what
    lies outside."""
    if not len(source):
        return
    if _array_kernels is not None:
        _array_kernels.scatter(np.ascontiguousarray(source), starts, lengths, out.strides[0], out)
        return
    if len(starts) and (int(starts.min()) < 0 or int((starts + lengths).max()) > len(out)):
        raise IndexError("a stretch lies outside of its array")
    out[expand_ranges(starts, lengths)] = source
