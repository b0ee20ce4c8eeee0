"""Turn one pass into a stream of batches: fill, then cut (docs/order.md, "Fill").

:meth:`Batcher.next` never waits: when the merge lacks a sample it says which file it is blocked on, and goes on from
the same point when called again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.sample_set import SampleSet
from pydp2.data.rowstore.base import PoolStore
from pydp2.errors import Error, OptionError, SampleTooLarge
from pydp2.order.bulk_cut import BulkCutter, PlainCut
from pydp2.order.merge import Merge, RelaxedMerge
from pydp2.order.plan import UNBOUNDED, PassPlan
from pydp2.order.pool import Origins, Pool, RowIds
from pydp2.order.restore import PoolRestore, rereads_of
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun, SampleSource
from pydp2.order.snapshot import SnapshotPoint, decode_samples, encode_pool

_MAX_PADDING_BYTES = 1 << 32


@dataclass(slots=True)  # not frozen: one is made for each batch
class BatchCut:
    """Cut of batch ``index``: rows of the store, their weight, the pool's weight before the cut, rows that only pad.

    ``tail_consumed``: how many samples of the tail are gone after it, 0 before the tail, and with buckets.
    ``bucket_bound``: the bound of its bucket, 0 for none. ``nbytes``: of its samples, each once.
    ``origins``: of its rows, if the plan wants them.
    """

    index: int
    row_ids: RowIds
    size: int
    pool_weight: int
    padding: int = 0
    tail_consumed: int = 0
    bucket_bound: int = 0
    nbytes: int = 0
    origins: Origins | None = None


@dataclass(frozen=True, slots=True)
class BlockedOnFile:
    """The merge waits for samples of ``file``: with ``need`` of them it goes on to another one, or has enough.

    ``missing``: how many samples of all files it takes until the merge has enough.
    """

    file: int
    need: int = 1
    missing: int = 1


@dataclass(frozen=True, slots=True)
class PassFailed:
    """The pass cannot go on; every batch cut before was complete. ``file`` and ``sample``: where it stops, None: not
    known."""

    error: Error
    file: int | None = None
    sample: int | None = None


@dataclass(frozen=True, slots=True)
class PassDone:
    """The pass is over after ``batches`` batches."""

    batches: int


class Batcher:
    """Stream of the batches of one pass, pulled one by one. ``file_order``: the result of
    :func:`~pydp2.order.file_order.files_in_order`.

    ``snapshot``: where to begin instead of at the start. Its pool is read again first, in the order of names.
    """

    def __init__(
        self,
        plan: PassPlan,
        source: SampleSource,
        store: PoolStore,
        file_order: npt.NDArray[np.int64],
        snapshot: SnapshotPoint | None = None,
    ) -> None:
        self.plan = plan
        self._source = source
        rereads = {} if snapshot is None else rereads_of(plan, snapshot)
        self.merge = (RelaxedMerge if plan.relaxed else Merge)(plan, source, file_order, snapshot, rereads)
        self.pool = self._new_pool(store)
        self.batch_index = 0 if snapshot is None else snapshot.batch_index
        self.reread_counts = (len(rereads), sum(reread.rerun_count for reread in rereads.values()))
        """Number of files that are run again to take the pass up, and of their samples that were run before."""
        self.snapshot = snapshot
        """Latest point of the pass from which it could be taken up again; None: its start."""
        self._restore = (
            PoolRestore(source, plan.cycle_length, rereads, {cycle_file.file for cycle_file in snapshot.cycle})
            if snapshot
            else None
        )
        self._in_tail = snapshot is not None and snapshot.in_tail
        self._bulk = BulkCutter(plan, source, self.merge, self.pool) if BulkCutter.suits(plan) else None
        self._failure: PassFailed | None = None
        self.byte_limited = False
        """True if the byte limit stopped a fill before its level was reached (told once to the user)."""

    def _new_pool(self, store: PoolStore) -> Pool:
        return Pool(self.plan, store)

    @property
    def fill_level(self) -> int:
        """Weight up to which the pool is filled before the next batch is cut."""
        return self.plan.fill_level(self.batch_index)

    @property
    def is_full(self) -> bool:
        """True if the pool has what the next batch waits for, or all that is left of the pass."""
        pool, plan = self.pool, self.plan
        full = pool.weight >= self.fill_level or (pool.bytes >= plan.pool_bytes and pool.weight >= plan.batch_size)
        return self._in_tail or full

    def next(self) -> BatchCut | BlockedOnFile | PassFailed | PassDone:
        """Return the next batch, or why there is none now."""
        if self._failure is not None:
            return self._failure
        if self._restore is not None and (stopped := self._restore_pool()) is not None:
            return stopped
        while self._bulk is not None and not self._in_tail:
            if (ahead := self._bulk.next_cut(self.batch_index)) is not None:
                return self._finish_bulk_cut(ahead)
            if not self.pool.is_uniform:
                self._bulk = None
            elif (stopped := self._pull(self.fill_level)) is not None:
                return stopped
        stopped = self._fill()
        if stopped is not None:
            return stopped
        if not len(self.pool):
            return PassDone(self.batch_index)
        return self._cut()

    def _finish_bulk_cut(self, ahead: PlainCut) -> BatchCut:
        assert self._bulk is not None
        self.byte_limited = self.byte_limited or self._bulk.byte_limited
        rows = ahead.row_ids
        cut = BatchCut(self.batch_index, rows, len(rows), ahead.pool_weight, nbytes=ahead.nbytes, origins=ahead.origins)
        self.batch_index += 1
        if self._bulk.snapshot_due and not self._bulk:  # else the pool stands behind a later batch
            self._take_snapshot(self.pool.encode_samples(), ended=False)
        return cut

    def _cut(self) -> BatchCut | PassDone | PassFailed:
        plan, before, bytes_before = self.plan, self.pool.weight, self.pool.bytes
        rows, size = self.pool.draw(self.batch_index)
        padding, nbytes = 0, bytes_before - self.pool.bytes
        if self._in_tail and size < plan.batch_size and self.pool.exhausted:
            if plan.last_batch == "drop":
                return self._cut() if len(self.pool) else PassDone(self.batch_index)
            if plan.last_batch == "pad" and size:  # without a weight it cannot be padded
                missing = plan.batch_size - size
                if (nbytes + rows.nbytes) * missing // size > _MAX_PADDING_BYTES:
                    return self._fail(_too_much_padding(size, plan.batch_size))
                padding = self._padding_rows(missing, -(-missing // size))
                rows = np.resize(rows, len(rows) + padding)  # the rows again, from the first one on
        pool = self.pool
        cut = BatchCut(
            self.batch_index,
            rows,
            size,
            before,
            padding,
            pool.tail_consumed,
            pool.bucket_bound,
            nbytes,
            pool.drawn_origins(padding),
        )
        self.batch_index += 1
        if self.pool.reach_snapshot_point(len(self.merge.cycle)):
            self._take_snapshot(self.pool.encode_samples(), ended=False)
        return cut

    def _take_snapshot(self, samples: SampleSet, *, ended: bool) -> None:
        """Take a snapshot with the pool ``samples``. ``ended``: the tail begins."""
        if self.plan.relaxed:  # its pool is in the order of arrival, so it is no set, and the pass has no state
            return
        self.pool.points_since_snapshot = 0
        pool = encode_pool(samples.data, self._source.pool_checks(samples))
        merge = self.merge
        cycle_files = [] if ended else merge.positions()
        taken, dropped = self._source.merged_counts
        self.snapshot = SnapshotPoint(
            self.batch_index,
            pool,
            ended,
            0,
            merge.next_file,
            merge.cycle_index,
            0 if ended else merge.block_left,
            cycle_files,
            taken,
            dropped,
            self.pool.bucket_number,
        )
        self._source.note_snapshot()

    def _padding_rows(self, missing: int, cycles: int) -> int:
        """Return how many rows of the batch, repeated from its front, ``cycles`` times at most, make the weight
        ``missing`` more."""
        ahead = np.cumsum(np.tile(self.pool.drawn_weights(), cycles))
        return int(np.searchsorted(ahead, missing)) + 1

    def _restore_pool(self) -> BlockedOnFile | PassFailed | None:
        """Read the saved pool again, once."""
        assert self._restore is not None
        while (file := self._restore.current_file) is not None:
            run = self._restore.next_run()
            if run is WAIT:
                return BlockedOnFile(file)
            if isinstance(run, FileFailure):
                return self._fail(run.error, run.file, run.sample)
            if isinstance(run, SampleRun):
                self.pool.add(file, run)
                self._restore.consume(run.hi - run.lo)
            else:
                self._restore.end_file()
        self._restore = None
        if self._in_tail and self.snapshot is not None:
            self.pool.resume_tail(self.snapshot.tail_consumed, len(decode_samples(self.snapshot.pool)[0]))
        return None

    # -- filling ---------------------------------------------------------------------------------------------------
    def _fill(self) -> BlockedOnFile | PassFailed | None:
        """Pull from the merge until the level or the byte limit is reached or the merge has no more."""
        if self._in_tail:
            return None
        pool, plan = self.pool, self.plan
        level = self.fill_level
        while pool.weight < level:
            if pool.bytes >= plan.pool_bytes and pool.weight >= plan.batch_size:
                self.byte_limited = True
                return None
            stopped = self._pull(level)
            if stopped is not None or self._in_tail:
                return stopped
        return None

    def _pull(self, level: int) -> BlockedOnFile | PassFailed | None:
        """Put what is next in the merge into the pool, as far as there is room for it, or begin the tail."""
        run = self.merge.next_run()
        if run is WAIT:
            missing = max(1, level - self.pool.weight)
            return BlockedOnFile(self.merge.current_file, min(self.merge.block_left, missing), missing)
        if run is END:
            self._in_tail = True
            self._take_snapshot(self.pool.start_tail(), ended=True)
            return None
        if isinstance(run, FileFailure):
            return self._fail(run.error, run.file, run.sample)
        assert isinstance(run, SampleRun)
        too_large = too_large_text(self.plan, run)
        if too_large:
            error = SampleTooLarge(f"file {self.merge.current_label}, {too_large}")
            return self._fail(error, self.merge.current_file, int(run.sample_indices[run.lo]))
        run.hi = run.lo + self._pull_limit(run, level)
        self.pool.add(self.merge.current_file, run)
        self.merge.consume(run.hi - run.lo)
        return None

    def _pull_limit(self, run: SampleRun, level: int) -> int:
        """Return how many samples of ``run`` may be pulled before one of the limits is met, at least 1."""
        count = run.hi - run.lo
        pool, plan = self.pool, self.plan
        if run.weights is None:
            weights: npt.NDArray[np.int64] | None = None
            count = min(count, level - pool.weight)
        else:
            # before[i]: the weight of the pool when sample i is considered
            weights = run.weights[run.lo : run.hi]
            before = np.cumsum(weights) - weights + pool.weight
            count = int(np.searchsorted(before, level)) if level < UNBOUNDED else count
        if pool.bytes + run.nbytes(count) < plan.pool_bytes:
            return count
        sizes = run.sizes[run.lo : run.lo + count]
        full = np.cumsum(sizes) - sizes + pool.bytes >= plan.pool_bytes
        if weights is None:
            heavy = np.arange(pool.weight, pool.weight + count) >= plan.batch_size
        else:
            heavy = np.cumsum(weights[:count]) - weights[:count] + pool.weight >= plan.batch_size
        stop = full & heavy
        return int(np.argmax(stop)) if stop.any() else count

    def _fail(self, error: Error, file: int | None = None, sample: int | None = None) -> PassFailed:
        self._failure = PassFailed(error, file, sample)
        return self._failure


def too_large_text(plan: PassPlan, run: SampleRun) -> str:
    """Return why no batch or no pool can hold the next sample of ``run``, or ''. One that is not the next one ends
    ``run`` before it."""
    if run.span.largest <= plan.pool_bytes and (run.weights is None or plan.can_over_batch_size):
        return ""
    refused = run.sizes[run.lo : run.hi] > plan.pool_bytes
    if run.weights is not None and not plan.can_over_batch_size:
        refused = refused | (run.weights[run.lo : run.hi] > plan.batch_size)
    if not refused.any():
        return ""
    first = int(np.argmax(refused))
    if first:  # the samples before it are merged as usual
        run.hi = run.lo + first
        return ""
    at = run.lo
    where = f"sample {int(run.sample_indices[at])}"
    if int(run.sizes[at]) > plan.pool_bytes:
        return (
            f"{where}: the sample needs {int(run.sizes[at])} bytes, the pool holds {plan.pool_bytes}; "
            "raise pool_bytes or yield smaller samples"
        )
    assert run.weights is not None
    return (
        f"{where}: calc_batch_size gave {int(run.weights[at])}, a batch holds {plan.batch_size}; "
        "raise batch_size, or allow the last sample to exceed it with can_over_batch_size=True"
    )


def _too_much_padding(size: int, batch_size: int) -> OptionError:
    return OptionError(
        f'last_batch="pad" would fill the last batch, which has {size:,} of batch_size={batch_size:,}, up with more '
        f'than {_MAX_PADDING_BYTES >> 30} GiB; lower batch_size, or pass last_batch="keep" or "drop"'
    )
