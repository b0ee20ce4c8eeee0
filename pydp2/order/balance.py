"""Deal the rows of one global step over the ranks so that all have about the same work (docs/mixing.md, "Balance").

Pure and exact: integers alone, so every machine deals alike.
"""

from __future__ import annotations

import heapq

import numpy as np

from pydp2.data.columns.columns import Ints

_MAX_SWAPS = 64
"""Number of swaps of two rows for one step."""
_TARGET = 103
"""Largest cost of a rank, in percent of the mean, at which no more rows are swapped."""


def balanced(costs: Ints, ranks: int) -> Ints:
    """Return the rank of each row, int64 ``(rows,)``: each of ``ranks`` ranks gets equally many rows, and the largest
    sum of ``costs`` (int64) is small.

    Rows go, the costliest first (of equal ones the first), to the rank with the smallest sum so far that has room for
    a row. Then rows of the costliest rank are swapped with rows of others, as long as that lowers the largest sum and
    it exceeds 1.03 of the mean. Raises ValueError unless ``ranks`` divides the number of rows.
    """
    rows, rest = divmod(len(costs), ranks)
    if rest:
        raise ValueError(f"{len(costs)} rows cannot be dealt to {ranks} ranks")
    rank_of = np.empty(len(costs), np.int64)
    heap = [(0, rank, rows) for rank in range(ranks)]
    for row in np.argsort(-costs, kind="stable").tolist():
        total, rank, room = heapq.heappop(heap)
        rank_of[row] = rank
        if room > 1:
            heapq.heappush(heap, (total + int(costs[row]), rank, room - 1))
    totals = np.zeros(ranks, np.int64)
    np.add.at(totals, rank_of, costs)
    for _ in range(_MAX_SWAPS):
        if 100 * totals.max() * ranks <= _TARGET * totals.sum() or not _swap(costs, rank_of, totals):
            break
    return rank_of


def _swap(costs: Ints, rank_of: Ints, totals: Ints) -> bool:
    """Swap a row of the costliest rank with one of another rank so that the larger of the two sums is as small as can
    be. Return False if no swap lowers it."""
    high = int(np.argmax(totals))
    mine, others = np.flatnonzero(rank_of == high), np.flatnonzero(rank_of != high)
    if not len(others):
        return False
    moved = costs[mine][:, None] - costs[others][None, :]
    larger = np.maximum(totals[high] - moved, totals[rank_of[others]][None, :] + moved)
    best = int(np.argmin(larger))
    i, j = divmod(best, len(others))
    if larger[i, j] >= totals[high]:
        return False
    row, other = mine[i], others[j]
    low, change = rank_of[other], moved[i, j]
    rank_of[row], rank_of[other] = low, high
    totals[high] -= change
    totals[low] += change
    return True
