"""Make batches of samples alike in length: choose the bucket of a sample, and the bucket that comes next
(docs/order.md, "Buckets").

The pool keeps its samples in buckets, and draws a batch from one of them as a pool without buckets draws it
from all. The stream pulls from the merge until some bucket can fill the batches that come next. Nothing here
runs in a pass without buckets.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.sample_set import SampleSet
from pydp2.data.rowstore.base import PoolStore
from pydp2.errors import OptionError
from pydp2.order.batcher import Batcher, BlockedOnFile, PassFailed
from pydp2.order.plan import BucketPlan, PassPlan
from pydp2.order.pool import Pool, PoolIds, RowIds, sort_by_name
from pydp2.order.random_bits import RandomBits, permutation
from pydp2.order.sample_source import ChunkSpan, SampleRun, SampleSource
from pydp2.order.snapshot import SnapshotPoint

_UNTIL_GROUP = 0
"""Level that stands for "until a bucket can fill the group"."""


def automatic_bounds(lengths: npt.NDArray[np.int64], weights: npt.NDArray[np.int64], count: int) -> tuple[int, ...]:
    """Return bounds that cut samples of these ``lengths`` into ``count`` buckets of about equal weight; fewer if many
    are equally long. Bound i is the least length up to which i of ``count`` parts of the weight are."""
    order = np.argsort(lengths, kind="stable")
    running = np.cumsum(weights[order])
    total = int(running[-1]) if len(running) else 0
    if not total:
        return ()
    parts = [-(-i * total // count) for i in range(1, count)]
    found = lengths[order][np.searchsorted(running, parts)]
    return tuple(sorted({max(1, int(length)) for length in found}))


@dataclass(slots=True, eq=False)
class _Bucket:
    """Samples of one bucket: their pool ids in pool order, or in the order of the tail from ``tail_position`` on."""

    pool_ids: array[int] = field(default_factory=lambda: array("q"))
    weight: int = 0
    tail: PoolIds | None = None
    tail_position: int = 0

    @property
    def count(self) -> int:
        return len(self.pool_ids) if self.tail is None else len(self.tail) - self.tail_position

    @property
    def first_id(self) -> int:
        return self.pool_ids[0] if self.tail is None else int(self.tail[self.tail_position])

    @property
    def waiting(self) -> PoolIds:
        return np.array(self.pool_ids, np.int64) if self.tail is None else self.tail[self.tail_position :]


class BucketPool(Pool):
    """Pool whose batches are drawn from one bucket each. To draw a batch, :meth:`draw` puts the pool ids of its
    bucket into ``pool_ids``, where :class:`Pool` picks from."""

    _fact_count = Pool._fact_count + 1

    def __init__(self, plan: PassPlan, store: PoolStore, buckets: BucketPlan) -> None:
        super().__init__(plan, store)
        self._buckets = buckets
        self._sample_count = 0
        self._max_weight = 1  # weight of the heaviest sample so far, at least 1
        self._by_bucket = [_Bucket()]  # one bucket for all, until there are bounds
        if buckets.bounds is not None:
            self._set_bounds(buckets.bounds)

    def __len__(self) -> int:
        return self._sample_count

    @property
    def exhausted(self) -> bool:
        """True if the bucket that the last batch came from has nothing left."""
        return not self._by_bucket[self.bucket_number - 1].count

    # -- what waits ------------------------------------------------------------------------------------------------
    def add(self, file: int, run: SampleRun) -> None:
        """Put the samples of ``run`` at the ends of their buckets."""
        ids = self._add_run(file, run)
        self._sample_count += len(ids)
        if not self.is_uniform:
            self._max_weight = max(self._max_weight, int(self._weight[ids].max()))
        self._sort_into_buckets(ids)

    def _store_span(self, file: int, run: SampleRun, span: ChunkSpan) -> PoolIds:
        ids = super()._store_span(file, run, span)
        self._length[ids] = run.columns.lengths(self._buckets.slot)[span.first : span.end]
        return ids

    def _set_facts(self, facts: npt.NDArray[np.int64]) -> None:
        super()._set_facts(facts)
        self._length = facts[:, -1]

    def _sort_into_buckets(self, ids: PoolIds) -> None:
        """Put ``ids`` into their buckets, in this order."""
        buckets = self._by_bucket
        indices = self._indices_for(self._length[ids]).tolist()
        # Runs are short: a loop costs less here than a few numpy calls for each bucket.
        for k, pool_id, weight in zip(indices, ids.tolist(), self._weight[ids].tolist(), strict=True):
            bucket = buckets[k]
            bucket.pool_ids.append(pool_id)
            bucket.weight += weight

    def bucket_indices(self, run: SampleRun) -> npt.NDArray[np.int64]:
        """Return the index of the bucket of each sample of ``run``, from 0."""
        span = run.span
        if span.pool_ids is not None:
            return self._indices_for(self._length[span.pool_ids[run.lo - span.first : run.hi - span.first]])
        return self._indices_for(run.columns.lengths(self._buckets.slot)[run.lo : run.hi])

    def _indices_for(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(np.array(self.bounds or (), np.int64), lengths)

    def fix_bounds(self) -> None:
        """Fix the bounds, after the first fill."""
        if self.bounds is not None:
            return
        ids = self._by_bucket[0].waiting
        self._set_bounds(automatic_bounds(self._length[ids], self._weight[ids], self._buckets.max_buckets))
        self._sort_into_buckets(ids)

    def _set_bounds(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self._by_bucket = [_Bucket() for _ in range(len(bounds) + 1)]

    # -- which bucket -------------------------------------------------------------------------------------------------
    def group_left(self, n: int) -> int:
        """Return how many batches the group of batch ``n`` has from there on."""
        return self._buckets.group_size - n % self._buckets.group_size

    def needed_weights(self, n: int) -> list[int]:
        """Return for each bucket the weight below which it certainly cannot fill what comes from batch ``n`` on."""
        needs = [self.group_left(n) * self._plan.batch_size] * len(self._by_bucket)
        if self._in_same_group(n):
            needs[self.bucket_number - 1] = self._plan.batch_size
        return needs

    def bucket_weights(self) -> list[int]:
        """Return the weight that waits in each bucket."""
        return [bucket.weight for bucket in self._by_bucket]

    def can_fill_group(self, n: int) -> bool:
        """Return True if a bucket can fill what comes from batch ``n`` on: the rest of its group."""
        return self._continues_group(n) or any(self._can_fill(bucket, self.group_left(n)) for bucket in self._by_bucket)

    def _continues_group(self, n: int) -> bool:
        """Return True if batch ``n`` comes from the bucket of the one before: it is of the same
        group, and there is enough."""
        return self._in_same_group(n) and self._by_bucket[self.bucket_number - 1].weight >= self._plan.batch_size

    def _in_same_group(self, n: int) -> bool:
        return n % self._buckets.group_size != 0 and self.bucket_number > 0

    def _can_fill(self, bucket: _Bucket, batches: int) -> bool:
        """Return True if ``bucket`` is sure to give so many batches, none for lack of samples below its size."""
        need = batches * self._plan.batch_size
        if bucket.weight < need:
            return False
        over = batches - 1  # so many batches may take more than they need, each by its last sample
        if not over or self.is_uniform or not self._plan.can_over_batch_size:
            return True
        if bucket.weight - over * self._max_weight >= need - over:
            return True  # no need to look for the heaviest sample that is there
        weights = self._weight[bucket.waiting]
        heaviest = np.partition(weights, max(0, len(weights) - over))[-over:]
        return bucket.weight - int(heaviest.sum()) >= need - over

    def _next_bucket_index(self, n: int) -> int:
        """Return the index, from 0, of the bucket that batch ``n`` and the rest of its group come from."""
        not_empty = {k: bucket for k, bucket in enumerate(self._by_bucket) if bucket.count}

        def that_can_fill(batches: int) -> dict[int, _Bucket]:
            return {k: bucket for k, bucket in not_empty.items() if self._can_fill(bucket, batches)}

        buckets = that_can_fill(self.group_left(n)) or that_can_fill(1) or not_empty
        if not self._plan.shuffle:
            return min(buckets, key=lambda k: self._sample_of(buckets[k].first_id))
        total = sum(bucket.weight for bucket in buckets.values())
        at = int(RandomBits(self._plan.seed, self._plan.pass_id, "bucket", n).draw(1)[0]) * total >> 64
        for k, bucket in buckets.items():
            at -= bucket.weight
            if at < 0:
                return k
        return next(iter(buckets))  # no sample weighs anything

    def _sample_of(self, pool_id: int) -> tuple[int, int]:
        return int(self._file[pool_id]), int(self._sample_index[pool_id])

    def draw(self, n: int) -> tuple[RowIds, int]:
        """Return the rows of batch ``n`` and their weight; they leave the pool (but not the store)."""
        if not self._continues_group(n):
            self.bucket_number = self._next_bucket_index(n) + 1
        bucket = self._by_bucket[self.bucket_number - 1]
        self.bucket_bound = (*(self.bounds or ()), 0)[self.bucket_number - 1]
        self.pool_ids, self._tail, self._tail_position = bucket.pool_ids, bucket.tail, bucket.tail_position
        rows, weight = super().draw(n)
        bucket.tail_position = self._tail_position
        bucket.weight -= weight
        self._sample_count -= len(rows)
        return rows, weight

    # -- between batches -------------------------------------------------------------------------------------------
    def _sort(self) -> None:
        for bucket in self._by_bucket:
            sort_by_name(bucket.pool_ids, self._file, self._sample_index)

    def _all_in_sample_order(self) -> PoolIds:
        """Return the pool ids of all samples that wait, by name."""
        return self._in_sample_order(np.concatenate([bucket.waiting for bucket in self._by_bucket]))

    def encode_samples(self) -> SampleSet:
        """Return the samples of the pool."""
        ids = self._all_in_sample_order()
        return SampleSet.of(*self.origins_of(ids).T)

    @property
    def tail_consumed(self) -> int:
        """Always 0: which samples of the tail are gone can only be computed from their lengths."""
        return 0

    def start_tail(self) -> SampleSet:
        """Begin the tail, after the last sample was added: what is left in each bucket gets one permutation (shuffle
        on), or keeps its order. Return the samples."""
        self.fix_bounds()
        plan, ids = self._plan, self._all_in_sample_order()
        indices = self._indices_for(self._length[ids])
        for k, bucket in enumerate(self._by_bucket):
            bucket.tail = ids[indices == k]
            if plan.shuffle:
                bucket.tail = bucket.tail[permutation(plan.seed, plan.pass_id, "tail", len(bucket.tail), k)]
            bucket.pool_ids = array("q")
        return SampleSet.of(*self.origins_of(ids).T)

    def resume_tail(self, tail_consumed: int, total: int) -> None:
        """Begin the tail again; the batches that are gone of it are cut once more."""
        self.start_tail()


def make_batcher(
    plan: PassPlan,
    source: SampleSource,
    store: PoolStore,
    file_order: npt.NDArray[np.int64],
    snapshot: SnapshotPoint | None = None,
) -> Batcher:
    """Return the stream of a pass, with or without buckets. Raises OptionError if ``snapshot`` is no point of it."""
    kind = Batcher if plan.buckets is None else BucketBatcher
    return kind(plan, source, store, file_order, snapshot)


class BucketBatcher(Batcher):
    """Stream of the batches of a pass with buckets."""

    pool: BucketPool

    def __init__(
        self,
        plan: PassPlan,
        source: SampleSource,
        store: PoolStore,
        file_order: npt.NDArray[np.int64],
        snapshot: SnapshotPoint | None = None,
    ) -> None:
        super().__init__(plan, source, store, file_order, snapshot)
        if snapshot is not None:
            if self.pool.bounds is None or snapshot.bucket_number > len(self.pool.bounds) + 1 or snapshot.tail_consumed:
                raise OptionError("the state does not say where its buckets stood: it is damaged")
            self.pool.bucket_number = snapshot.bucket_number

    def _new_pool(self, store: PoolStore) -> Pool:
        assert self.plan.buckets is not None
        return BucketPool(self.plan, store, self.plan.buckets)

    def _fill(self) -> BlockedOnFile | PassFailed | None:
        """Fill as without buckets; then go on until a bucket can fill the group, or at least a batch
        if bytes are the limit."""
        stopped = super()._fill()
        if stopped is not None or self._in_tail:
            return stopped
        pool = self.pool
        pool.fix_bounds()
        while not self._in_tail and not pool.can_fill_group(self.batch_index):
            if pool.bytes >= self.plan.pool_bytes and max(pool.bucket_weights()) >= self.plan.batch_size:
                self.byte_limited = True
                return None
            stopped = self._pull(_UNTIL_GROUP)
            if stopped is not None:
                return stopped
        return None

    def _pull_limit(self, run: SampleRun, level: int) -> int:
        if level != _UNTIL_GROUP:
            return super()._pull_limit(run, level)
        plan, pool = self.plan, self.pool
        needs = pool.needed_weights(self.batch_index)
        waiting, size = pool.bucket_weights(), pool.bytes
        indices = pool.bucket_indices(run).tolist()
        sizes = run.sizes[run.lo : run.hi].tolist()
        weights = [1] * len(sizes) if run.weights is None else run.weights[run.lo : run.hi].tolist()
        full = max(waiting) >= plan.batch_size
        for i, k in enumerate(indices):
            if i and full and size >= plan.pool_bytes:
                return i
            waiting[k] += weights[i]
            size += sizes[i]
            full = full or waiting[k] >= plan.batch_size
            if waiting[k] >= needs[k]:  # only with the sample in the pool is it known whether that is enough
                return i + 1
        return len(indices)
