"""Draw the sources of a mixture, by weights that may change from step to step (docs/mixing.md).

Word k of ("mix", k // BLOCK) of :mod:`pydp2.order.random_bits` chooses the source of a row, or of a batch, among the
sources that have not ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from pydp2.order.random_bits import RandomBits
from pydp2.protocol.exact_weights import Shares

BLOCK = 4096
"""Number of random words under one key."""


@dataclass(frozen=True, slots=True)
class MixPlan:
    """Options of a mixture that the order depends on, but for its weights. ``rows``: number of rows of a batch;
    ``max_passes``: how often each source is read in a pass at most, 0: no bound; ``weight_by``: number of the slot
    whose time steps the weights count; None: they count rows."""

    seed: int
    rows: int
    stopping_strategy: str
    per_stream: bool
    max_passes: tuple[int, ...]
    weight_by: int | None = None

    @property
    def repeats(self) -> bool:
        """True if a source begins again at its end."""
        return self.stopping_strategy in ("all_exhausted", "cycle_forever")


@dataclass(slots=True)
class WeightSchedule:
    """Weights of the sources from step to step. A step is a batch of every rank, and is counted in its pass.

    ``points``: steps and the weights from there on, of every pass, by step; the first step is 0. ``linear``: between
    two points the weights lie on a line. ``changes``: pass, step and weights that hold from there on, in place of
    ``points``, in the order of their places.
    """

    points: tuple[tuple[int, Shares], ...]
    linear: bool = False
    changes: list[tuple[int, int, Shares]] = field(default_factory=list)

    def at(self, pass_id: int, step: int) -> Shares:
        """Return the weights in ``step`` of pass ``pass_id``."""
        changed = bisect_right(self.changes, (pass_id, step), key=lambda change: change[:2])
        if changed:
            return self.changes[changed - 1][2]
        found = bisect_right(self.points, step, key=lambda point: point[0]) - 1
        begin, before = self.points[found]
        if not self.linear or found + 1 == len(self.points):
            return before
        end, after = self.points[found + 1]
        part = Fraction(step - begin, end - begin)
        return tuple(a + (b - a) * part for a, b in zip(before, after, strict=True))

    def change(self, pass_id: int, step: int, weights: Shares) -> None:
        """Let ``weights`` hold from ``step`` of pass ``pass_id`` on; what was to change behind that does not."""
        self.changes = [kept for kept in self.changes if kept[:2] < (pass_id, step)]
        self.changes.append((pass_id, step, weights))


def thresholds(shares: Sequence[Fraction], ended: Sequence[bool]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the sources that have not ended and a weight above 0, and for each of them, but the first, the least word
    that chooses it."""
    alive = [i for i, over in enumerate(ended) if not over and shares[i]]
    total = sum(shares[i] for i in alive)
    edges, reached = [], Fraction(0)
    for i in alive[:-1]:
        reached += shares[i]
        edges.append(int(reached / total * (1 << 64)))  # below 1 << 64, because the last source has a share too
    return np.array(alive, np.int64), np.array(edges, np.uint64)


def whole_weights(shares: Sequence[Fraction]) -> list[int]:
    """Return whole numbers with the ratios of ``shares``."""
    common = lcm(*(share.denominator for share in shares))
    return [int(share * common) for share in shares]


def furthest_behind(weights: Sequence[int], alive: Sequence[int], steps: Sequence[int]) -> int:
    """Return the source among ``alive`` whose share of ``steps`` is furthest below its share of the ``weights``; of
    equal ones the first."""
    total = sum([steps[i] for i in alive]) + 1
    weight = sum([weights[i] for i in alive])
    behind = [weights[i] * total - steps[i] * weight for i in alive]
    return alive[behind.index(max(behind))]


def words_of_block(seed: int, pass_id: int, block: int) -> NDArray[np.uint64]:
    """Return the random words of a block, which choose the sources."""
    return RandomBits(seed, pass_id, "mix", block).draw(BLOCK)
