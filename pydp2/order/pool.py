"""Keep the samples that wait to be drawn (docs/order.md, "Pick", "Tail", "Snapshot points").

The pool knows of each sample its weight, its bytes, its name, and its row id in the store, where its values lie and the
pool never looks. Row ids may be any numbers, because several pools share a store. So the pool numbers its samples
itself, from 0: a pool id is used again once its sample was drawn, and what a pool needs does not grow with other pools.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Ints
from pydp2.data.columns.sample_set import SampleSet
from pydp2.data.native import is_active
from pydp2.data.rowstore.base import PoolStore
from pydp2.data.rowstore.gather import gather_copy, put
from pydp2.order.plan import PassPlan
from pydp2.order.random_bits import RandomBits, indices_below, permutation
from pydp2.order.sample_source import ChunkSpan, SampleRun

RowIds = npt.NDArray[np.int64]
PoolIds = npt.NDArray[np.int64]
Origins = npt.NDArray[np.int64]
"""Origins of samples, ``(samples, 2)``: the file of each, as its number in the list, and its sample index there."""
SNAPSHOT_MIN, SNAPSHOT_DIVISOR = 1024, 4
"""A snapshot point comes once so many samples were drawn, and so large a part of the pool."""
_SAMPLES_PER_SNAPSHOT = 4096  # drawn between two snapshots, or as many as the pool has, if these are fewer
_SAMPLES_PER_POSITION = 8  # and at least so many for each file of the cycle

_FIRST_IDS = 1024


class Pool:
    """Pool of samples, with the picking rules. ``pool_ids`` is in pool order, which is part of the order of a pass.

    Samples that lie together go into the store with the first of them; they enter the pool one by one.
    """

    _fact_count = 5
    bounds: tuple[int, ...] | None = None
    """Bounds of the buckets; None without buckets, or as long as the bounds are not known."""
    bucket_number = 0
    """Number of the bucket that the last batch came from, counted from 1; 0: there is none."""
    bucket_bound = 0
    """Bound of that bucket; 0: it has none."""

    def __init__(self, plan: PassPlan, store: PoolStore) -> None:
        self._plan = plan
        self._store = store
        self.pool_ids = array("q")
        self.weight = 0
        self.bytes = 0
        self.is_uniform = True
        """True if every sample so far weighs 1."""
        self._set_facts(np.empty((_FIRST_IDS, self._fact_count), np.int64))
        self._free: PoolIds = np.arange(_FIRST_IDS)  # a stack: the first _free_count ids are free
        self._free_count = _FIRST_IDS
        self._drawn: PoolIds = self._free[:0]  # of the last batch
        self.drawn_since_point = 0
        """Number of samples that were drawn since the last snapshot point."""
        self.points_since_snapshot = 0
        """Number of snapshot points since the last one at which a snapshot was taken."""
        self._tail: PoolIds | None = None
        self._tail_position = 0  # position in _tail
        self._tail_start = 0  # samples of the tail that were consumed before _tail begins

    def __len__(self) -> int:
        if self._tail is not None:
            return len(self._tail) - self._tail_position
        return len(self.pool_ids)

    @property
    def exhausted(self) -> bool:
        """True if the last batch ended because no sample was left to take."""
        return not len(self)

    def add(self, file: int, run: SampleRun) -> None:
        """Put the samples of ``run`` at the end of the pool."""
        self.pool_ids.frombytes(self._add_run(file, run).tobytes())

    def _add_run(self, file: int, run: SampleRun) -> PoolIds:
        """Return the pool ids of the samples of ``run``, which the pool has from now on."""
        ids = self.pool_ids_of(file, run)
        self.bytes += run.nbytes(run.hi - run.lo)
        self.weight += run.hi - run.lo if run.weights is None else int(run.weights[run.lo : run.hi].sum())
        return ids

    def pool_ids_of(self, file: int, run: SampleRun) -> PoolIds:
        """Return the pool ids of the samples of ``run``, which the store has from now on."""
        span = run.span
        if span.pool_ids is None:
            span.pool_ids = self._store_span(file, run, span)
        return span.pool_ids[run.lo - span.first : run.hi - span.first]

    def make_room(self, count: int) -> None:
        """Make ``pool_ids`` at least ``count`` long; what is behind the samples of the pool means nothing until
        :meth:`settle`."""
        self.pool_ids.frombytes(bytes(8 * max(0, count - len(self.pool_ids))))

    def settle(self, weight: int, nbytes: int, drawn: int) -> None:
        """Note what a loop over samples of weight 1 has made of the pool: the first ``weight`` of ``pool_ids`` are in
        it, with ``nbytes`` in all, and ``drawn`` were drawn since the last snapshot point."""
        del self.pool_ids[weight:]
        self.weight, self.bytes, self.drawn_since_point = weight, nbytes, drawn

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each sample, by pool id."""
        return self._size

    def _store_span(self, file: int, run: SampleRun, span: ChunkSpan) -> PoolIds:
        """Store the samples of ``run`` and all that lie together with them, and note what is known of each."""
        lo, hi = span.first, span.end
        rows = self._store.append(run.columns.slice(lo, hi))
        ids = self._new_pool_ids(hi - lo)
        weights: PoolIds | int = 1
        if run.weights is not None:
            weights = run.weights[lo:hi]
            self.is_uniform = self.is_uniform and bool((weights == 1).all())
        facts = np.empty((hi - lo, self._fact_count), np.int64)
        for column, fact in enumerate((rows, file, run.sample_indices[lo:hi], weights, run.sizes[lo:hi])):
            facts[:, column] = fact
        put(facts, ids, self._facts)
        return ids

    def _set_facts(self, facts: npt.NDArray[np.int64]) -> None:
        """Know samples by ``facts``, a row for each pool id: what is asked of a sample lies side by side, because the
        samples that are drawn lie anywhere."""
        self._facts = facts
        columns: list[npt.NDArray[np.int64]] = [*facts.T]
        self._row_id, self._file, self._sample_index, self._weight, self._size = columns[:5]
        self._origin: Origins = facts[:, 1:3]

    def _new_pool_ids(self, count: int) -> PoolIds:
        """Return ``count`` pool ids that are used from now on."""
        if count > self._free_count:
            self._grow(count)
        self._free_count -= count
        return self._free[self._free_count : self._free_count + count].copy()

    def _grow(self, count: int) -> None:
        """Make room for ``count`` more samples at least."""
        before = len(self._free)
        size = max(before + count, 2 * before)
        facts = np.empty((size, self._fact_count), np.int64)
        facts[:before] = self._facts
        self._set_facts(facts)
        free = np.empty(size, np.int64)
        free[: self._free_count] = self._free[: self._free_count]
        free[self._free_count : self._free_count + size - before] = np.arange(before, size)
        self._free, self._free_count = free, self._free_count + size - before

    def remove(self, ids: PoolIds) -> RowIds:
        """Return the row ids of ``ids``, whose samples were drawn: the pool ids are used again."""
        end = self._free_count + len(ids)
        self._free[self._free_count : end] = ids
        self._free_count = end
        return gather_copy(self._row_id, ids)

    def origins_of(self, ids: PoolIds) -> Origins:
        """Return the origins of the samples ``ids``. A sample that was drawn has them until another one is added."""
        return gather_copy(self._origin, ids)

    def drawn_origins(self, padding: int) -> Origins | None:
        """Return the origins of the batch that :meth:`draw` returned last, with ``padding`` rows from its front once
        more; None if the plan does not want them."""
        if not self._plan.origin:
            return None
        ids = self._drawn
        return self.origins_of(np.resize(ids, len(ids) + padding))

    def drawn_weights(self) -> npt.NDArray[np.int64]:
        """Return the weights of the samples of the batch that :meth:`draw` returned last."""
        return self._weight[self._drawn]

    # -- drawing ---------------------------------------------------------------------------------------------------
    def draw(self, n: int) -> tuple[RowIds, int]:
        """Return the rows of batch ``n`` and their weight; they leave the pool (but not the store)."""
        plan = self._plan
        if self._tail is not None:
            drawn = self._draw_from_tail()
        elif not plan.shuffle:
            drawn = self._draw_in_order()
        elif self.is_uniform:
            drawn = self._pick_uniform(n)
        else:
            drawn = self._pick_weighted(n)
        weight = len(drawn) if self.is_uniform else int(self._weight[drawn].sum())
        self.weight -= weight
        self.bytes -= int(self._size[drawn].sum())
        self.drawn_since_point += len(drawn)
        self._drawn = drawn
        return self.remove(drawn), weight

    def _pick_uniform(self, n: int) -> PoolIds:
        plan = self._plan
        count = min(plan.batch_size, len(self.pool_ids))
        return pick(self.pool_ids, RandomBits(plan.seed, plan.pass_id, "pick", n).draw(count))

    def _pick_weighted(self, n: int) -> PoolIds:
        plan, pool, weights = self._plan, self.pool_ids, self._weight
        words = RandomBits(plan.seed, plan.pass_id, "pick", n)
        picked = array("q")
        weight = 0
        while pool and weight < plan.batch_size:
            count = min(len(pool), 256)
            size = len(pool)
            for j in indices_below(words.draw(count), np.arange(size, size - count, -1).astype(np.uint64)).tolist():
                pool_id = pool[j]
                more = int(weights[pool_id])
                if weight + more > plan.batch_size and not plan.can_over_batch_size:
                    return np.array(picked, np.int64)  # the refused sample stays where it was
                picked.append(pool_id)
                last = pool.pop()
                if j != len(pool):
                    pool[j] = last
                weight += more
                if weight >= plan.batch_size:
                    break
        return np.array(picked, np.int64)

    def _draw_in_order(self) -> PoolIds:
        ids = np.frombuffer(self.pool_ids, np.int64)
        taken = ids[: self._batch_length(ids)].copy()
        del ids  # an array with a live view of it cannot shrink
        del self.pool_ids[: len(taken)]
        return taken

    def _draw_from_tail(self) -> PoolIds:
        assert self._tail is not None
        window = self._tail[self._tail_position :]
        taken = window[: self._batch_length(window)]
        self._tail_position += len(taken)
        return taken

    def _batch_length(self, ids: PoolIds) -> int:
        """Return how many of ``ids``, taken in turn, make one batch."""
        target = self._plan.batch_size
        if self.is_uniform:
            return min(target, len(ids))
        span = target
        while True:  # zero weights may make a batch long: look further until the weight is there
            ahead = np.cumsum(self._weight[ids[:span]])
            full = int(np.searchsorted(ahead, target))
            if full < len(ahead) or span >= len(ids):
                break
            span *= 4
        if full >= len(ahead):
            return len(ahead)
        over = int(ahead[full]) > target
        return full if over and not self._plan.can_over_batch_size else full + 1

    # -- between batches -------------------------------------------------------------------------------------------
    @property
    def snapshot_limits(self) -> tuple[int, int]:
        """Number of samples that are drawn between two snapshot points at least, and the part of the pool, as its
        divisor."""
        return SNAPSHOT_MIN, SNAPSHOT_DIVISOR

    def reach_snapshot_point(self, cycle_length: int) -> bool:
        """Pass a batch edge. It is a snapshot point if enough was picked since the last one: then the pool is sorted by
        name, so that a saved pool is a plain set.

        Return True if a snapshot is to be taken there, because enough was drawn since the last one: it has the pool and
        the position of each of the ``cycle_length`` files of the cycle, and every trainer is sent it (docs/order.md,
        "Snapshot points").
        """
        if self._plan.relaxed or self._tail is not None:
            return False
        if self.drawn_since_point < self._samples_per_point:
            return False
        self.drawn_since_point = 0
        self.points_since_snapshot += 1
        if self._plan.shuffle:  # without shuffle, samples go in and out in the order of names
            self._sort()
        drawn = self.points_since_snapshot * self._samples_per_point
        return drawn >= self._samples_per_snapshot(cycle_length)

    @property
    def _samples_per_point(self) -> int:
        least, divisor = self.snapshot_limits
        return max(least, len(self) // divisor)

    def samples_to_snapshot(self, cycle_length: int) -> int:
        """Return about how many samples are to be drawn before a snapshot is due."""
        per_point = self._samples_per_point
        points = -(-self._samples_per_snapshot(cycle_length) // per_point) - self.points_since_snapshot
        return max(1, points) * per_point - self.drawn_since_point

    def _samples_per_snapshot(self, cycle_length: int) -> int:
        return max(min(_SAMPLES_PER_SNAPSHOT, len(self)), _SAMPLES_PER_POSITION * cycle_length)

    def _sort(self) -> None:
        sort_by_name(self.pool_ids, self._file, self._sample_index)

    def encode_samples(self) -> SampleSet:
        """Return the samples of the pool, which must be in the order of names."""
        return SampleSet.of(*self.origins_of(np.frombuffer(self.pool_ids, np.int64)).T)

    @property
    def tail_consumed(self) -> int:
        """Number of samples of the tail that were delivered; 0 before it begins."""
        return self._tail_start + self._tail_position

    def start_tail(self) -> SampleSet:
        """Begin the tail, after the last sample was added: what is left gets one permutation (shuffle on), or keeps its
        order. Return the samples."""
        ids = np.array(self.pool_ids, np.int64)
        if self._plan.shuffle:  # else they are in the order of names already
            ids = self._in_sample_order(ids)
        self._tail = ids[tail_order(self._plan, len(ids))]
        self.pool_ids = array("q")
        return SampleSet.of(*self.origins_of(ids).T)

    def resume_tail(self, tail_consumed: int, total: int) -> None:
        """Resume a tail of ``total`` samples after the first ``tail_consumed``; the pool holds the others, by name."""
        rest = tail_order(self._plan, total)[tail_consumed:]
        self._tail = np.array(self.pool_ids, np.int64)[np.searchsorted(np.sort(rest), rest)]
        self._tail_start = tail_consumed
        self.pool_ids = array("q")

    def _in_sample_order(self, ids: PoolIds) -> PoolIds:
        """Return ``ids`` in the order of names."""
        ordered = array("q", ids.tobytes())
        sort_by_name(ordered, self._file, self._sample_index)
        return np.frombuffer(ordered, np.int64)


def tail_order(plan: PassPlan, count: int) -> npt.NDArray[np.int64]:
    """Return the order in which the ``count`` samples of the tail, taken by name, are delivered."""
    if not plan.shuffle:
        return np.arange(count, dtype=np.int64)
    return permutation(plan.seed, plan.pass_id, "tail", count)


# -- loops over samples, compiled if there was a compiler --------------------------------------------------------------
def pick_in_python(ids: array[int], bits: npt.NDArray[np.uint64]) -> PoolIds:
    """Remove one of ``ids`` for each of ``bits``, as docs/order.md, "Pick", says, and return them, int64 (n,).

    The last one that stays takes the place of the picked one. ``ids`` holds at least as many as there are bits.
    """
    size, count = len(ids), len(bits)
    bounds = np.arange(size, size - count, -1).astype(np.uint64)
    last = size - 1
    for j in indices_below(bits, bounds).tolist():
        ids[last], ids[j] = ids[j], ids[last]
        last -= 1
    picked = np.array(ids[size - count :], np.int64)[::-1].copy()
    del ids[size - count :]
    return picked


def sort_by_name_in_python(ids: array[int], files: Ints, sample_indices: Ints) -> None:
    """Put ``ids`` into the order of (file, sample index), in place. ``files`` and ``sample_indices``: by pool id."""
    rows = np.frombuffer(ids, np.int64)
    rows[:] = rows[np.lexsort((sample_indices[rows], files[rows]))]


pick: Callable[[array[int], npt.NDArray[np.uint64]], PoolIds] = pick_in_python
sort_by_name: Callable[[array[int], Ints, Ints], None] = sort_by_name_in_python

if is_active():
    from pydp2.data.native import _array_kernels, _order_kernels

    def _pick_native(rows: array[int], words: npt.NDArray[np.uint64]) -> PoolIds:
        picked = np.empty(len(words), np.int64)
        _order_kernels.pick(rows, words, picked)
        del rows[len(rows) - len(words) :]
        return picked

    def _sort_by_name_native(ids: array[int], files: Ints, sample_indices: Ints) -> None:
        if not _array_kernels.sort_rows(ids, files, sample_indices):  # numbers too large for one key
            sort_by_name_in_python(ids, files, sample_indices)

    pick, sort_by_name = _pick_native, _sort_by_name_native
