"""Gather and compact rows: the inner loops of the store, compiled if there was a compiler.

Each is here in Python too, with the same result; see :mod:`pydp2.data.native` for what decides which form runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Array, Ints, aligned_empty, expand_ranges
from pydp2.data.native import is_active

_PIECE = 1 << 16  # entries in one piece


class EntryRanges:
    """Entries ``starts[i]`` to ``starts[i] + counts[i]`` of arrays, one stretch after the other; both int64 (n,)."""

    __slots__ = ("_positions", "counts", "entry_count", "starts")

    def __init__(self, starts: Ints, counts: Ints) -> None:
        self.starts, self.counts = starts, counts
        self.entry_count = int(counts.sum())
        self._positions: Ints | None = None

    def __len__(self) -> int:
        """Return the number of entries."""
        return self.entry_count

    def positions(self) -> Ints:
        """Return all positions."""
        if self._positions is None:  # one result serves all arrays of a level
            self._positions = expand_ranges(self.starts, self.counts)
        return self._positions

    def position_pieces(self) -> Iterator[tuple[int, Ints]]:
        """Yield the positions some at a time, each time with how many came before: indices take more
        room than what they name."""
        ends = np.cumsum(self.counts)
        lo = at = 0
        for cut in np.searchsorted(ends, np.arange(_PIECE, self.entry_count + _PIECE, _PIECE)).tolist():
            hi = min(cut + 1, len(ends))
            if hi > lo:
                yield at, expand_ranges(self.starts[lo:hi], self.counts[lo:hi])
                at = int(ends[hi - 1])
            lo = max(lo, hi)


Selection = EntryRanges | Ints
"""Selected entries of an array: stretches of them, or the position of each."""


def gather_in_python(source: Array, selection: Selection, out: Array) -> None:
    """Copy the selected entries of ``source`` into ``out``, which has just room for them. Raises IndexError for
    entries outside ``source``."""
    if len(selection) != len(out):
        raise IndexError("what is gathered does not fill the place for it")
    if not isinstance(selection, EntryRanges):
        _take_checked(source, selection, out)
        return
    if len(out) <= _PIECE:
        _take_checked(source, selection.positions(), out)
        return
    for at, piece in selection.position_pieces():
        _take_checked(source, piece, out[at : at + len(piece)])


def compact_in_python(array: Array, selection: EntryRanges) -> None:
    """Move stretches of ``array`` to its front, without gaps. They must lie in it in rising order."""
    starts, counts = selection.starts, selection.counts
    if (starts[1:] < starts[:-1] + counts[:-1]).any():
        raise IndexError("stretches must rise")
    # In place this is safe in rising order: no row moves up, so what is overwritten was moved before.
    for at, piece in selection.position_pieces():
        array[at : at + len(piece)] = gather_copy(array, piece)


def _take_checked(source: Array, selection: Ints, out: Array) -> None:
    if len(selection):
        if int(selection.min()) < 0 or int(selection.max()) >= len(source):
            raise IndexError("an entry lies outside of its array")
        if source.flags.c_contiguous:
            source.take(selection, axis=0, out=out, mode="clip")  # "raise" gathers into a buffer first, and copies
        else:  # take() would copy the whole of it
            out[...] = source[selection]


def put_in_python(values: Array, positions: Ints, out: Array) -> None:
    """Copy ``values`` to the entries of ``out`` at ``positions``, int64. Raises IndexError for a position outside of
    it."""
    if len(values) != len(positions):
        raise IndexError("each value needs a place")
    if len(positions) and int(positions.min()) < 0:
        raise IndexError("an entry lies outside of its array")
    out[positions] = values


def sort_by_start_in_python(rows: Ints, starts: Ints) -> None:
    """Put ``rows`` into the order of their ``starts``, in place. ``starts``: by row."""
    rows[:] = rows[np.argsort(starts[rows])]


def mark_released_in_python(live: npt.NDArray[np.bool_], ids: Ints) -> bool:
    """Mark the rows ``ids`` as not live. False, and nothing is changed, if one is not live, or given twice."""
    ordered = np.sort(ids)
    known = ordered[0] >= 0 and ordered[-1] < len(live)
    if not known or (ordered[1:] == ordered[:-1]).any() or not live[ids].all():
        return False
    live[ids] = False
    return True


gather: Callable[[Array, Selection, Array], None] = gather_in_python
put: Callable[[Array, Ints, Array], None] = put_in_python
compact: Callable[[Array, EntryRanges], None] = compact_in_python
sort_by_start: Callable[[Ints, Ints], None] = sort_by_start_in_python
mark_released: Callable[[npt.NDArray[np.bool_], Ints], bool] = mark_released_in_python

if is_active():
    from pydp2.data.native import _array_kernels

    def _gather_native(source: Array, which: Selection, out: Array) -> None:
        if not isinstance(which, EntryRanges):
            if len(which) or len(out):
                _array_kernels.take(source, np.ascontiguousarray(which, np.int64), out)
        elif which.entry_count or len(out):
            _array_kernels.gather(source, which.starts, which.counts, source.strides[0], out)

    def _put_native(values: Array, positions: Ints, out: Array) -> None:
        _array_kernels.put(values, positions, out)

    def _compact_native(array: Array, which: EntryRanges) -> None:
        _array_kernels.compact(array, which.starts, which.counts, array.strides[0])

    def _sort_by_start_native(rows: Ints, starts: Ints) -> None:
        if not _array_kernels.sort_rows(rows, None, starts):
            sort_by_start_in_python(rows, starts)

    def _mark_released_native(live: npt.NDArray[np.bool_], ids: Ints) -> bool:
        return _array_kernels.release(live.view(np.uint8), ids)

    gather, put, compact = _gather_native, _put_native, _compact_native
    sort_by_start, mark_released = _sort_by_start_native, _mark_released_native


def gather_copy(source: Array, selection: Selection) -> Array:
    """Return the selected entries in an array of their own, which is aligned."""
    out = aligned_empty((len(selection), *source.shape[1:]), source.dtype)
    gather(source, selection, out)
    return out
