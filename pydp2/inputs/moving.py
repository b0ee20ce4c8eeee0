"""Moving rows about: the inner loops of the store, compiled where there was a compiler.

Each is here in Python too, with the same result; see :mod:`.drawing` for what decides which form runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pydp2.inputs.columns import Array, Ints, spans
from pydp2.inputs.drawing import compiled

_PIECE = 1 << 16  # entries


class Stretches:
    """Entries ``starts[i]`` to ``starts[i] + counts[i]`` of arrays, one stretch after the other; both int64 (n,)."""

    __slots__ = ("_where", "counts", "entries", "starts")

    def __init__(self, starts: Ints, counts: Ints) -> None:
        self.starts, self.counts = starts, counts
        self.entries = int(counts.sum())
        self._where: Ints | None = None

    def where(self) -> Ints:
        """All positions."""
        if self._where is None:  # one serves all arrays of a level
            self._where = spans(self.starts, self.counts)
        return self._where

    def pieces(self) -> Iterator[tuple[int, Ints]]:
        """The positions some at a time, and how many came before them: indices take more room than what they name."""
        ends = np.cumsum(self.counts)
        lo = at = 0
        for cut in np.searchsorted(ends, np.arange(_PIECE, self.entries + _PIECE, _PIECE)).tolist():
            hi = min(cut + 1, len(ends))
            if hi > lo:
                yield at, spans(self.starts[lo:hi], self.counts[lo:hi])
                at = int(ends[hi - 1])
            lo = max(lo, hi)


Where = Stretches | Ints
"""Which entries of an array: stretches of them, or the position of each."""


def entries(where: Where) -> int:
    """How many these are."""
    return where.entries if isinstance(where, Stretches) else len(where)


def gather_in_python(source: Array, which: Where, out: Array) -> None:
    """The entries of ``source`` into ``out``, which has just room for them. Raises IndexError for what lies outside."""
    if entries(which) != len(out):
        raise IndexError("what is gathered does not fill the place for it")
    if not isinstance(which, Stretches):
        _take(source, which, out)
        return
    if len(out) <= _PIECE:
        _take(source, which.where(), out)
        return
    for at, piece in which.pieces():
        _take(source, piece, out[at : at + len(piece)])


def close_up_in_python(array: Array, which: Stretches) -> None:
    """Move stretches of ``array`` to its front, without gaps. They must lie in it in rising order."""
    starts, counts = which.starts, which.counts
    if (starts[1:] < starts[:-1] + counts[:-1]).any():
        raise IndexError("stretches must rise")
    # In place this is safe in rising order: no row moves up, so what is overwritten was moved before.
    for at, piece in which.pieces():
        array[at : at + len(piece)] = gathered(array, piece)


def _take(source: Array, where: Ints, out: Array) -> None:
    if len(where):
        if int(where.min()) < 0 or int(where.max()) >= len(source):
            raise IndexError("an entry lies outside of its array")
        source.take(where, axis=0, out=out, mode="clip")  # with "raise" numpy gathers beside it, and copies


gather: Callable[[Array, Where, Array], None] = gather_in_python
close_up: Callable[[Array, Stretches], None] = close_up_in_python

if compiled():
    from pydp2.inputs import _moving

    def _gather(source: Array, which: Where, out: Array) -> None:
        if not isinstance(which, Stretches):
            if len(which) or len(out):
                _moving.take(source, np.ascontiguousarray(which, np.int64), source.strides[0], out)
        elif which.entries or len(out):
            _moving.gather(source, which.starts, which.counts, source.strides[0], out)

    def _close_up(array: Array, which: Stretches) -> None:
        _moving.close_up(array, which.starts, which.counts, array.strides[0])

    gather, close_up = _gather, _close_up


def gathered(source: Array, which: Where) -> Array:
    """The same entries in an array of their own."""
    out = np.empty((entries(which), *source.shape[1:]), source.dtype)
    gather(source, which, out)
    return out
