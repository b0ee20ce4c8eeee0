"""Hold what an order depends on besides the samples: one frozen plan per pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

UNBOUNDED = 1 << 62
"""Number that stands for "no bound" where the rules take minima and sums of weights."""


@dataclass(frozen=True)
class BucketPlan:
    """Plan by which samples are kept apart by the length of their sequence in a slot (docs/order.md, "Buckets").

    ``bounds``: the greatest length in each bucket, rising; one more bucket takes longer samples. None: drawn from the
    first fill, for at most ``max_buckets`` buckets. ``automatic``: they are or were drawn so. ``group_size``: number of
    batches in a row from the same bucket, the ones that the ranks of a job get in the same step.
    """

    slot: int
    bounds: tuple[int, ...] | None
    automatic: bool
    max_buckets: int
    group_size: int = 1


@dataclass(frozen=True)
class PassPlan:
    """Options of one pass (docs/order.md). Sizes and levels count weight, not samples.

    ``pool_size`` and ``min_pool_size`` are as the provider gave them (-1: no bound); ``wait_for_all`` makes the pass
    wait for all samples whatever they say, as passes after the first do under CACHE_PASS_IN_MEM. ``origin``: each batch
    says where its samples are from; the order does not depend on it.
    """

    seed: int
    pass_id: int
    files: int
    batch_size: int
    shuffle: bool
    interleave: int = 16
    pool_size: int = -1
    min_pool_size: int = -1
    can_over_batch_size: bool = True
    pool_bytes: int = 1 << 30
    wait_for_all: bool = False
    last_batch: str = "keep"
    relaxed: bool = False
    buckets: BucketPlan | None = None
    origin: bool = False

    @property
    def cycle_length(self) -> int:
        """Number of files that the merge takes turns with."""
        return self.interleave if self.shuffle or self.relaxed else 1

    @cached_property
    def pool_limit(self) -> int:
        """P': the weight above which nothing is added to the pool."""
        if self.wait_for_all or self.pool_size == -1:
            return UNBOUNDED
        return max(self.pool_size, self.batch_size)

    @cached_property
    def pool_minimum(self) -> int:
        """M': the weight that must wait before the first batch is cut."""
        if self.wait_for_all or self.min_pool_size == -1:
            return self.pool_limit
        return min(self.min_pool_size, self.pool_limit)

    def fill_level(self, n: int) -> int:
        """Return T(n): the weight up to which the pool is filled before batch ``n`` is cut."""
        if not self.shuffle and self.pool_size == self.min_pool_size == -1:
            level = self.batch_size  # first in, first out: waiting for more would only delay
        elif self.pool_minimum >= UNBOUNDED:
            return UNBOUNDED
        else:
            level = min(self.pool_limit, max(self.pool_minimum, self.batch_size) + n * self.batch_size)
        if n == 0 and self.buckets is not None and self.buckets.automatic:
            # The bounds are drawn from no less than what the buckets may come to hold.
            return max(level, self.buckets.max_buckets * self.buckets.group_size * self.batch_size)
        return level
