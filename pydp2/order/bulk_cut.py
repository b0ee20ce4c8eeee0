"""Fill and cut several batches in one call of a compiled loop, where samples need no look at them one by one.

That is the ordinary case: strict order, shuffled, no buckets, every sample weighs 1, and no sample was dropped. All
else goes turn by turn, as :mod:`pydp2.order.batcher` says it, and so does everything where nothing was compiled.
Batches that were cut ahead are kept here until they are asked for. Cutting ends where a snapshot is due, and what is no
plain run of samples (the end of a file, a failure) is left alone until no batch waits: so both ways give the same
batches, the same snapshots and the same losses, at the same batch.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pydp2.data.native import is_active
from pydp2.order.merge import Merge
from pydp2.order.plan import UNBOUNDED, PassPlan
from pydp2.order.pool import Origins, Pool, RowIds
from pydp2.order.random_bits import keys
from pydp2.order.sample_source import SampleSource

if is_active():
    from pydp2.data.native import _order_kernels

_MAX_BATCHES = 32  # cut in one call
_MAX_BATCH_SIZE = 1 << 20  # larger ones are cut one by one
_AHEAD_BYTES = 1 << 20, 4 << 20  # bytes of batches that are cut and wait here: at least, and at most
_AHEAD_SHARE = 16  # of the bytes that the pool may have, so many parts make one of these
_NEEDS_ROWS, _SNAPSHOT_POINT = 1, 2  # why the loop stopped: pydp2/data/native/_order_kernels.pyx


class PlainCut(NamedTuple):
    """Rows of a batch that was cut, the weight of the pool before it, and bytes and origins of its samples."""

    row_ids: RowIds
    pool_weight: int
    nbytes: int
    origins: Origins | None


class BulkCutter:
    """Cutter of the batches of a pass of ``plan``, from ``pool``, which it fills from the cycle of ``merge``."""

    def __init__(self, plan: PassPlan, source: SampleSource, merge: Merge, pool: Pool) -> None:
        self._plan, self._source, self._merge, self._pool = plan, source, merge, pool
        self._waiting: deque[PlainCut] = deque()
        limit = min(plan.pool_bytes, UNBOUNDED)
        self._limits = np.array([plan.batch_size, limit, *pool.snapshot_limits], np.int64)
        self._batches_per_call = 1
        least, most = _AHEAD_BYTES
        self._ahead_bytes = max(least, min(most, limit // _AHEAD_SHARE))
        self.byte_limited = False
        """True if the byte limit stopped a fill before its level was reached."""
        self.snapshot_due = False
        """True if a snapshot is to be taken after the last of the batches that wait."""

    @staticmethod
    def suits(plan: PassPlan) -> bool:
        """Return True if batches of ``plan`` can be cut here."""
        plain = plan.shuffle and not plan.relaxed and plan.buckets is None
        return is_active() and plain and plan.batch_size <= _MAX_BATCH_SIZE

    def __len__(self) -> int:
        """Return the number of batches that wait."""
        return len(self._waiting)

    def next_cut(self, batch_index: int) -> PlainCut | None:
        """Return batch ``batch_index``. None: the file whose turn it is must be looked at first, or samples have
        weights."""
        if not self._waiting and self._pool.is_uniform:
            self._cut(batch_index)
        return self._waiting.popleft() if self._waiting else None

    def _cut(self, first: int) -> None:
        plan, merge = self._plan, self._merge
        self.snapshot_due = False
        there = merge.cycle_rows.available.copy()  # rows within reach of the loop, of which some are taken below
        if self._lacks_rows(plan.fill_level(first)) and not self._refill_file(there):
            return  # as it is most of the time where the merge waits: no need to run the loop for that
        count = min(self._batches_per_call, self._batches_to_snapshot())
        numbers = range(first, first + count)
        pick_keys = keys(plan.seed, plan.pass_id, "pick", numbers)
        if plan.fill_level(first) == plan.pool_limit:  # as it is from some batch on
            levels = np.full(count, min(plan.pool_limit, UNBOUNDED), np.int64)
        else:
            levels = np.array([min(plan.fill_level(n), UNBOUNDED) for n in numbers], np.int64)
        done = 0
        try:
            while merge.cycle and done < count:
                cut, reason = self._run(pick_keys[done:], levels[done:])
                done += cut
                if reason == _SNAPSHOT_POINT:
                    self.snapshot_due = self._pool.reach_snapshot_point(len(merge.cycle))
                    if self.snapshot_due:
                        break
                elif reason == _NEEDS_ROWS and not self._refill_file(there):
                    break
        finally:
            for index in np.flatnonzero(there != merge.cycle_rows.available).tolist():
                taken = int(there[index] - merge.cycle_rows.available[index])
                self._source.consume(merge.cycle[index].file, taken)
        if done:
            nbytes = sum(cut.nbytes for cut in self._waiting) // done
            self._batches_per_call = max(1, min(_MAX_BATCHES, self._ahead_bytes // max(1, nbytes)))

    def _lacks_rows(self, level: int) -> bool:
        """Return True if the next batch needs rows of the file whose turn it is, and none of these are within reach of
        the loop."""
        merge, pool = self._merge, self._pool
        if not merge.cycle or not merge.block_left or merge.cycle_rows.available[merge.cycle_index]:
            return False
        is_full = pool.bytes >= self._plan.pool_bytes and pool.weight >= self._plan.batch_size
        return pool.weight < level and not is_full

    def _batches_to_snapshot(self) -> int:
        """Return how many batches there are about to the next snapshot, where cutting ends, at least 1."""
        missing = self._pool.samples_to_snapshot(len(self._merge.cycle))
        return max(1, -(-missing // self._plan.batch_size))

    def _refill_file(self, there: npt.NDArray[np.int64]) -> bool:
        """Put the samples that are there of the file whose turn it is within reach of the loop. ``there``: the rows of
        each file that were within reach; the source is told that those of this one were taken. False: there are no
        more, or they need a closer look."""
        merge = self._merge
        file, index = merge.current_file, merge.cycle_index
        if taken := int(there[index]):
            there[index] = 0
            self._source.consume(file, taken)
        run = self._source.plain_run(file)
        if run is None or run.span.largest > self._plan.pool_bytes:
            return False
        merge.cycle_rows.fill(index, self._pool.pool_ids_of(file, run))
        there[index] = merge.cycle_rows.available[index]
        return True

    def _run(self, pick_keys: npt.NDArray[np.uint64], levels: npt.NDArray[np.int64]) -> tuple[int, int]:
        """Cut as many batches as there are ``levels``, or until the loop stops. Return how many, and why it stopped."""
        merge, pool, cycle_rows = self._merge, self._pool, self._merge.cycle_rows
        size, count = self._plan.batch_size, len(levels)
        reach = len(pool.pool_ids) + int(cycle_rows.available.sum())
        pool.make_room(min(int(levels.max()), reach))
        ids, batches = np.empty(min(count * size, reach), np.int64), np.empty((count, 3), np.int64)
        state = np.array(
            [merge.cycle_index, merge.block_left, pool.weight, pool.bytes, pool.drawn_since_point, 0], np.int64
        )
        cut, reason = _order_kernels.cut_batches(
            state,
            self._limits,
            cycle_rows.block_lengths,
            cycle_rows.addresses,
            cycle_rows.available,
            pool.pool_ids,
            pool.sizes,
            pick_keys,
            levels,
            ids,
            batches,
        )
        merge.cycle_index, merge.block_left, weight, nbytes, drawn, limited = state.tolist()
        pool.settle(weight, nbytes, drawn)
        self.byte_limited = self.byte_limited or bool(limited)
        ids = ids[: int(batches[:cut, 0].sum())]
        origins = pool.origins_of(ids) if self._plan.origin else None
        rows = pool.remove(ids)
        at = 0
        for drawn, before, nbytes in batches[:cut].tolist():
            end = at + drawn
            self._waiting.append(PlainCut(rows[at:end], before, nbytes, None if origins is None else origins[at:end]))
            at = end
        return cut, reason
