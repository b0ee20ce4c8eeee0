"""Keep the samples that wait to be drawn, by their row in the store (docs/order.md, "Pick", "Tail", "Snapshot points").

The pool knows weights, bytes and names of its samples; their values lie in the store, which it never looks into.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from pydp2.columns.sample_set import encode_set
from pydp2.order.picking import pick, sort_by_name
from pydp2.order.plan import PassPlan
from pydp2.order.random_bits import RandomBits, indices_below, permutation
from pydp2.order.sample_source import ChunkSpan, SampleRun
from pydp2.rowstore.base import RowStore
from pydp2.rowstore.gather import gather_copy

RowIds = npt.NDArray[np.int64]
SNAPSHOT_MIN, SNAPSHOT_DIVISOR = 1024, 4
"""A snapshot point comes once so many samples were drawn, and so large a part of the pool."""
_SAMPLES_PER_SNAPSHOT = 4096  # drawn between two snapshots, or as many as the pool has, if these are fewer
_SAMPLES_PER_POSITION = 8  # and at least so many for each file of the cycle

_ROW_ARRAYS = ("_file", "_sample_index", "_weight", "_size")


class Pool:
    """Pool of samples by row id, with the picking rules. ``row_ids`` is in pool order, which is
    part of the order of a pass.

    Samples that lie together go into the store with the first of them; they enter the pool one by one.
    """

    _row_arrays: tuple[str, ...] = _ROW_ARRAYS
    bounds: tuple[int, ...] | None = None
    """Bounds of the buckets; None without buckets, or as long as the bounds are not known."""
    bucket_number = 0
    """Number of the bucket that the last batch came from, counted from 1; 0: there is none."""
    bucket_bound = 0
    """Bound of that bucket; 0: it has none."""

    def __init__(self, plan: PassPlan, store: RowStore) -> None:
        self._plan = plan
        self._store = store
        self.row_ids = array("q")
        self.weight = 0
        self.bytes = 0
        self.is_uniform = True
        """True if every sample so far weighs 1."""
        self._file = np.empty(1024, np.int64)
        self._sample_index = np.empty(1024, np.int64)
        self._weight = np.empty(1024, np.int64)
        self._size = np.empty(1024, np.int64)
        self.drawn_since_point = 0
        """Number of samples that were drawn since the last snapshot point."""
        self.points_since_snapshot = 0
        """Number of snapshot points since the last one at which a snapshot was taken."""
        self._tail: RowIds | None = None
        self._tail_position = 0  # position in _tail
        self._tail_start = 0  # samples of the tail that were consumed before _tail begins

    def __len__(self) -> int:
        if self._tail is not None:
            return len(self._tail) - self._tail_position
        return len(self.row_ids)

    @property
    def exhausted(self) -> bool:
        """True if the last batch ended because no sample was left to take."""
        return not len(self)

    def add(self, file: int, run: SampleRun) -> None:
        """Put the samples of ``run`` at the end of the pool."""
        self.row_ids.frombytes(self._store_run(file, run).tobytes())

    def _store_run(self, file: int, run: SampleRun) -> RowIds:
        """Return the rows of the samples of ``run``, which the pool has from now on."""
        rows = self.store_rows(file, run)
        self.bytes += run.chunk_span().nbytes(run.lo, run.hi)
        self.weight += run.hi - run.lo if run.weights is None else int(run.weights[run.lo : run.hi].sum())
        return rows

    def store_rows(self, file: int, run: SampleRun) -> RowIds:
        """Return the rows of the samples of ``run``, which the store has from now on."""
        block = run.chunk_span()
        if block.row_ids is None:
            block.row_ids = self._store_span(file, run, block)
        return block.row_ids[run.lo - block.first : run.hi - block.first]

    def make_room(self, count: int) -> None:
        """Make ``row_ids`` at least ``count`` long; what is behind the samples of the pool means nothing until
        :meth:`settle`."""
        self.row_ids.frombytes(bytes(8 * max(0, count - len(self.row_ids))))

    def settle(self, weight: int, nbytes: int, drawn: int) -> None:
        """Note what a loop over samples of weight 1 has made of the pool: the first ``weight`` of ``row_ids`` are in
        it, with ``nbytes`` in all, and ``drawn`` were drawn since the last snapshot point."""
        del self.row_ids[weight:]
        self.weight, self.bytes, self.drawn_since_point = weight, nbytes, drawn

    @property
    def sizes(self) -> RowIds:
        """Bytes of each sample, by row id."""
        return self._size

    def _store_span(self, file: int, run: SampleRun, block: ChunkSpan) -> RowIds:
        """Store the samples of ``run`` and all that lie together with them, and note weight, size and name of each."""
        lo, hi = block.first, block.end
        rows = self._store.append(run.columns.slice(lo, hi))
        top = int(rows.max()) + 1
        if top > len(self._file):
            self._grow(top)
        self._file[rows] = file
        self._sample_index[rows] = run.sample_indices[lo:hi]
        self._size[rows] = run.sizes[lo:hi]
        if run.weights is None:
            self._weight[rows] = 1
        else:
            weights = run.weights[lo:hi]
            self._weight[rows] = weights
            self.is_uniform = self.is_uniform and bool((weights == 1).all())
        return rows

    def weights(self, rows: RowIds) -> RowIds:
        """Return the weights of samples that are, or just were, in the pool."""
        return self._weight[rows]

    def _grow(self, top: int) -> None:
        size = max(top, 2 * len(self._file))
        for name in self._row_arrays:
            old = getattr(self, name)
            new = np.empty(size, np.int64)
            new[: len(old)] = old
            setattr(self, name, new)

    # -- drawing ---------------------------------------------------------------------------------------------------
    def draw(self, n: int) -> tuple[RowIds, int]:
        """Return the rows of batch ``n`` and their weight; they leave the pool (but not the store)."""
        plan = self._plan
        if self._tail is not None:
            rows = self._draw_from_tail()
        elif not plan.shuffle:
            rows = self._draw_in_order()
        elif self.is_uniform:
            rows = self._pick_uniform(n)
        else:
            rows = self._pick_weighted(n)
        weight = len(rows) if self.is_uniform else int(self._weight[rows].sum())
        self.weight -= weight
        self.bytes -= int(self._size[rows].sum())
        self.drawn_since_point += len(rows)
        return rows, weight

    def _pick_uniform(self, n: int) -> RowIds:
        plan = self._plan
        count = min(plan.batch_size, len(self.row_ids))
        return pick(self.row_ids, RandomBits(plan.seed, plan.pass_id, "pick", n).draw(count))

    def _pick_weighted(self, n: int) -> RowIds:
        plan, pool, weights = self._plan, self.row_ids, self._weight
        words = RandomBits(plan.seed, plan.pass_id, "pick", n)
        picked = array("q")
        weight = 0
        while pool and weight < plan.batch_size:
            count = min(len(pool), 256)
            size = len(pool)
            for j in indices_below(words.draw(count), np.arange(size, size - count, -1).astype(np.uint64)).tolist():
                row = pool[j]
                more = int(weights[row])
                if weight + more > plan.batch_size and not plan.can_over_batch_size:
                    return np.array(picked, np.int64)  # the refused sample stays where it was
                picked.append(row)
                last = pool.pop()
                if j != len(pool):
                    pool[j] = last
                weight += more
                if weight >= plan.batch_size:
                    break
        return np.array(picked, np.int64)

    def _draw_in_order(self) -> RowIds:
        rows = np.frombuffer(self.row_ids, np.int64)
        taken = rows[: self._batch_length(rows)].copy()
        del rows  # an array with a live view of it cannot shrink
        del self.row_ids[: len(taken)]
        return taken

    def _draw_from_tail(self) -> RowIds:
        assert self._tail is not None
        window = self._tail[self._tail_position :]
        rows = window[: self._batch_length(window)]
        self._tail_position += len(rows)
        return rows

    def _batch_length(self, rows: RowIds) -> int:
        """Return how many of ``rows``, taken in turn, make one batch."""
        target = self._plan.batch_size
        if self.is_uniform:
            return min(target, len(rows))
        span = target
        while True:  # zero weights may make a batch long: look further until the weight is there
            ahead = np.cumsum(self._weight[rows[:span]])
            full = int(np.searchsorted(ahead, target))
            if full < len(ahead) or span >= len(rows):
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

    def reach_snapshot_point(self) -> bool:
        """Return True if this batch edge is a snapshot point, because enough was picked since the last one. The pool is
        sorted by name there, so that a saved pool is a plain set."""
        if self._plan.relaxed or self._tail is not None:
            return False
        if self.drawn_since_point < self._samples_per_point:
            return False
        self.drawn_since_point = 0
        self.points_since_snapshot += 1
        if self._plan.shuffle:  # without shuffle, samples go in and out in the order of names
            self._sort()
        return True

    @property
    def _samples_per_point(self) -> int:
        least, divisor = self.snapshot_limits
        return max(least, len(self) // divisor)

    def is_snapshot_due(self, cycle_length: int) -> bool:
        """Return True if so much was drawn since the last snapshot that one is to be taken at the present snapshot
        point: it has the pool and the position of each of the ``cycle_length`` files of the cycle, and every trainer is
        sent it (docs/order.md, "Snapshot points")."""
        return self.points_since_snapshot * self._samples_per_point >= self._samples_per_snapshot(cycle_length)

    def samples_to_snapshot(self, cycle_length: int) -> int:
        """Return about how many samples are to be drawn before a snapshot is due."""
        per_point = self._samples_per_point
        points = -(-self._samples_per_snapshot(cycle_length) // per_point) - self.points_since_snapshot
        return max(1, points) * per_point - self.drawn_since_point

    def _samples_per_snapshot(self, cycle_length: int) -> int:
        return max(min(_SAMPLES_PER_SNAPSHOT, len(self)), _SAMPLES_PER_POSITION * cycle_length)

    def _sort(self) -> None:
        sort_by_name(self.row_ids, self._file, self._sample_index)

    def encode_samples(self) -> bytes:
        """Return the samples of the pool, which must be in the order of names, as a set."""
        rows = np.frombuffer(self.row_ids, np.int64)
        return encode_set(gather_copy(self._file, rows), gather_copy(self._sample_index, rows))

    @property
    def tail_consumed(self) -> int:
        """Number of samples of the tail that were delivered; 0 before it begins."""
        return self._tail_start + self._tail_position

    def start_tail(self) -> bytes:
        """Begin the tail, after the last sample was added: what is left gets one permutation (shuffle on), or keeps its
        order. Return the samples as a set."""
        rows = np.array(self.row_ids, np.int64)
        if self._plan.shuffle:  # else they are in the order of names already
            rows = self._in_sample_order(rows)
        self._tail = rows[tail_order(self._plan, len(rows))]
        self.row_ids = array("q")
        return encode_set(self._file[rows], self._sample_index[rows])

    def resume_tail(self, tail_consumed: int, total: int) -> None:
        """Resume a tail of ``total`` samples after the first ``tail_consumed``; the pool holds the others, by name."""
        rest = tail_order(self._plan, total)[tail_consumed:]
        self._tail = np.array(self.row_ids, np.int64)[np.searchsorted(np.sort(rest), rest)]
        self._tail_start = tail_consumed
        self.row_ids = array("q")

    def _in_sample_order(self, rows: RowIds) -> RowIds:
        """Return ``rows`` in the order of names."""
        ordered = array("q", rows.tobytes())
        sort_by_name(ordered, self._file, self._sample_index)
        return np.frombuffer(ordered, np.int64)


def tail_order(plan: PassPlan, count: int) -> RowIds:
    """Return the order in which the ``count`` samples of the tail, taken by name, are delivered."""
    if not plan.shuffle:
        return np.arange(count, dtype=np.int64)
    return permutation(plan.seed, plan.pass_id, "tail", count)
