"""Place pieces of sequences in rows of a fixed length: pure functions of their lengths (docs/mixing.md, "Packing").

(``packers`` turn samples into columns; the *packing* here is that of language models.) A row consists of segments. A
segment is a sequence, or a piece of one. "wrapped" cuts one long row into rows. "bfd" and "bfd_split" read a window of
sequences and place each sequence whole, the longest first, in the row where it fits best.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pydp2.data.columns.columns import Array, Ints, expand_ranges, offsets
from pydp2.data.columns.packed_batch import Origins, Segments

WINDOW_ROWS = 64
"""Size of a window: sequences with as many tokens as this number of rows. The order depends on it."""


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Options of packed rows that the order depends on. ``slots``: numbers of the packed slots; ``rows``: number of
    rows of a batch; ``ragged``: numbers of slots whose sequences come whole, beside the first segment of each."""

    slots: tuple[int, ...]
    length: int
    strategy: str
    last_row: str
    pad_token: int
    rows: int
    balance: str | None = None
    ragged: tuple[int, ...] = ()


class Pieces(NamedTuple):
    """Consecutive pieces of sequences: their tokens per slot, and for each piece the number of its sequence, its offset
    in the sequence, its length and the origin of the sequence."""

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


def lay_out(sequences: Pieces, plan: PackPlan) -> tuple[LaidRows, int]:
    """Return the rows of whole sequences, each placed where it fits best, in the order of their first sequences; and
    the number of tokens that were cut off."""
    begins, truncated = offsets(sequences.length)[:-1], 0
    if plan.strategy == "bfd":
        lengths = np.minimum(sequences.length, plan.length)
        counts = (lengths > 0).astype(np.int64)
        truncated = int((sequences.length - lengths).sum())
    else:
        counts = -(-sequences.length // plan.length)
    of = np.repeat(np.arange(len(counts)), counts)
    offset = (np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)) * plan.length
    length = np.minimum(sequences.length[of] - offset, plan.length)
    row = best_fit_decreasing(length, plan.length)
    order = np.lexsort((np.arange(len(row)), row))
    row, offset, length, of = row[order], offset[order], length[order], of[order]
    reached = np.cumsum(length) - length
    start = reached - reached[np.searchsorted(row, row)] if len(row) else reached
    where = expand_ranges(begins[of] + offset, length)
    laid = LaidRows(
        int(row[-1]) + 1 if len(row) else 0,
        tuple(array[where] for array in sequences.tokens),
        Segments(row, start, length, sequences.document[of], offset),
        sequences.origins[:, of],
    )
    return laid, truncated


def row_costs(laid: LaidRows, balance: str) -> Ints:
    """Return the cost of each row: its tokens, or with ``balance="attention"`` the sum of the squares of the lengths of
    its segments."""
    row, length = laid.segments.row, laid.segments.length
    costs = np.zeros(laid.rows, np.int64)
    np.add.at(costs, row, length * length if balance == "attention" else length)
    return costs


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
