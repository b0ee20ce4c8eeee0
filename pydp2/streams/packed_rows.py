"""Place pieces of sequences in rows of a fixed length: pure functions of their lengths (docs/mixing.md, "Packing")."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.columns import Array, offsets
from pydp2.streams.cursor import Origins

Ints = NDArray[np.int64]


class Segments(NamedTuple):
    """Segments of the rows of a batch, by row and start, as int64 arrays with one entry per segment.

    ``row``, ``start``: row, and first token in the row; ``length``: number of tokens; ``document``: number of the
    sequence in the pass, from 0 (negative: at the end of the pass before); ``offset``: number of tokens of the sequence
    before the segment.
    """

    row: Ints
    start: Ints
    length: Ints
    document: Ints
    offset: Ints

    def select(self, which: Any) -> Segments:
        """Return the segments at the index ``which``, a slice, mask or array of numbers."""
        return Segments(*(array[which] for array in self))


class Pieces(NamedTuple):
    """Consecutive pieces of sequences: their tokens per slot, and for each piece the number of its sequence, its offset
    in the sequence, its length and the origin of the sequence, ``(3, pieces)``; ``(0, pieces)`` if there are none."""

    tokens: tuple[Array, ...]
    document: Ints
    offset: Ints
    length: Ints
    origins: Origins

    @property
    def total(self) -> int:
        """Number of tokens."""
        return len(self.tokens[0])

    def split(self, at: int) -> tuple[Pieces, Pieces]:
        """Return the first ``at`` tokens, and the others."""
        edges = offsets(self.length)
        inside = np.clip(at - edges[:-1], 0, self.length)
        before, behind = inside > 0, inside < self.length
        return (
            Pieces(
                tuple(t[:at] for t in self.tokens),
                self.document[before],
                self.offset[before],
                inside[before],
                self.origins[:, before],
            ),
            Pieces(
                tuple(t[at:] for t in self.tokens),
                self.document[behind],
                (self.offset + inside)[behind],
                (self.length - inside)[behind],
                self.origins[:, behind],
            ),
        )

    @staticmethod
    def concat(parts: Sequence[Pieces]) -> Pieces:
        tokens = tuple(np.concatenate(slot) for slot in zip(*(part.tokens for part in parts), strict=True))
        arrays = zip(*(part[1:] for part in parts), strict=True)
        return Pieces(tokens, *(np.concatenate(each, axis=-1) for each in arrays))


class LaidRows(NamedTuple):
    """Number of rows and their segments; ``tokens``: those of the segments, one segment after the other, per slot.
    ``origins``: of the sequence of each segment, as in :class:`Pieces`."""

    rows: int
    tokens: tuple[Array, ...]
    segments: Segments
    origins: Origins


def join_rows(parts: Sequence[LaidRows]) -> LaidRows:
    """Return the rows of all parts, whose segments have their final row numbers already."""
    tokens = tuple(np.concatenate(slot) for slot in zip(*(part.tokens for part in parts), strict=True))
    arrays = zip(*(part.segments for part in parts), strict=True)
    segments = Segments(*map(np.concatenate, arrays))
    origins = np.concatenate([part.origins for part in parts], axis=1)
    return LaidRows(sum(part.rows for part in parts), tokens, segments, origins)


def select_rows(laid: LaidRows, low: int, high: int, to: int) -> LaidRows:
    """Return the rows from ``low`` to below ``high``, numbered from ``to``."""
    first, last = np.searchsorted(laid.segments.row, [low, high])
    ends = offsets(laid.segments.length)
    some = laid.segments.select(slice(first, last))
    tokens = tuple(array[ends[first] : ends[last]] for array in laid.tokens)
    return LaidRows(high - low, tokens, some._replace(row=some.row - low + to), laid.origins[:, first:last])


def cut_into_rows(pieces: Pieces, length: int) -> tuple[Segments, Origins]:
    """Return the segments of pieces that fill rows one after the other, and the origins of their sequences."""
    begins = offsets(pieces.length)[:-1]
    edges = np.union1d(begins, np.arange(0, pieces.total, length))
    piece = np.searchsorted(begins, edges, side="right") - 1
    segments = Segments(
        edges // length,
        edges % length,
        np.diff(edges, append=pieces.total),
        pieces.document[piece],
        pieces.offset[piece] + edges - begins[piece],
    )
    return segments, pieces.origins[:, piece]


def best_fit_decreasing(lengths: Ints, capacity: int) -> Ints:
    """Return a row number for each of ``lengths``, which are from 1 to ``capacity``. The longest one (of equal ones the
    first) is placed next, in the row with the least room that is enough (of equal ones the row opened first). Rows are
    numbered in the order of their first entries."""
    row = np.empty(len(lengths), np.int64)
    free: list[tuple[int, int]] = []  # (room, row)
    opened = 0
    values = lengths.tolist()
    for i in np.argsort(-lengths, kind="stable").tolist():
        need = values[i]
        found = bisect_left(free, (need, -1))
        if found < len(free):
            room, which = free.pop(found)
        else:
            room, which, opened = capacity, opened, opened + 1
        row[i] = which
        if room > need:
            insort(free, (room - need, which))
    _, first = np.unique(row, return_index=True)
    rank = np.empty(opened, np.int64)
    rank[np.argsort(first)] = np.arange(opened)
    return rank[row]
