"""Draw the sources of a mixture (docs/mixing.md).

Word k of ("mix", k // BLOCK) of :mod:`pydp2.order.random_bits` chooses the source of a row, or of a batch, among the
sources that have not ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pydp2.order.random_bits import RandomBits

BLOCK = 4096
"""Number of random words under one key."""
_MOST_WORDS = 1 << 28  # words that are drawn to compute the length of a pass; they take some seconds


def thresholds(shares: Sequence[Fraction], ended: Sequence[bool]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the sources that have not ended, and for each of them, but the first, the least word that chooses it."""
    alive = [i for i, over in enumerate(ended) if not over]
    total = sum(shares[i] for i in alive)
    edges, reached = [], Fraction(0)
    for i in alive[:-1]:
        reached += shares[i]
        edges.append(int(reached / total * (1 << 64)))  # below 1 << 64, because the last source has a share too
    return np.array(alive, np.int64), np.array(edges, np.uint64)


def drawn_before_end(
    seed: int, pass_id: int, shares: Sequence[Fraction], numbers: Sequence[int], until_all: bool
) -> int:
    """Return the number of rows, or batches, that are drawn in a pass whose sources have ``numbers`` of them.

    The pass ends when a source is drawn that has no more rows. With ``until_all``, such a source begins again, and the
    pass ends when this has happened to all sources. Raises TypeError if the computation would take too long.
    """
    turns = np.array(numbers) + 1  # the last turn finds the end of the source
    if max(turn / float(share) for turn, share in zip(turns.tolist(), shares, strict=True)) > _MOST_WORDS:
        raise TypeError(f"the number of batches is not computed for passes of more than {_MOST_WORDS:,} rows")
    sources, edges = thresholds(shares, (False,) * len(shares))
    drawn, ends = np.zeros_like(turns), np.full(len(turns), -1)
    block = 0
    while True:
        chosen = sources[np.searchsorted(edges, words_of_block(seed, pass_id, block), side="right")]
        found = np.bincount(chosen, minlength=len(turns))
        for source in np.flatnonzero((ends < 0) & (drawn + found >= turns)).tolist():
            ends[source] = block * BLOCK + np.flatnonzero(chosen == source)[turns[source] - drawn[source] - 1]
        if not until_all and (ends >= 0).any():
            return int(ends[ends >= 0].min())  # each word before it drew one row
        if (ends >= 0).all():
            last = int(ends.max())
            drawn += np.bincount(chosen[: last - block * BLOCK + 1], minlength=len(turns))
            return last + 1 - int((drawn // turns).sum())  # all words but those that found the end of a source
        drawn += found
        block += 1


def words_of_block(seed: int, pass_id: int, block: int) -> NDArray[np.uint64]:
    """Return the random words of a block, which choose the sources."""
    return RandomBits(seed, pass_id, "mix", block).draw(BLOCK)
