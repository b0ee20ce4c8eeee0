"""One pass as a stream of batches: fill, then cut (docs/order.md, "Fill").

``Stream.next()`` never waits: when the merge lacks a sample it says which file it is blocked on, and goes on from the
same point when asked again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pydp2.errors import Error, SampleTooLarge
from pydp2.inputs import names
from pydp2.order.merge import Merge, Relaxed
from pydp2.order.plan import UNBOUNDED, Plan
from pydp2.order.pool import Pool, Rows, Store
from pydp2.order.refill import Refill, recalls_of
from pydp2.order.saved import Saved
from pydp2.order.source import END, WAIT, Failure, Run, Source


@dataclass(frozen=True, slots=True)
class Cut:
    """Batch ``index``: rows of the store, their weight, the pool's weight before the cut, rows that only pad.

    ``gone``: how many samples of the tail are gone after it, 0 before the tail, and with buckets. ``longest``: the
    bound of its bucket, 0 for none. ``nbytes``: of its samples, each once.
    """

    index: int
    rows: Rows
    size: int
    pool_weight: int
    padding: int = 0
    gone: int = 0
    longest: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Blocked:
    """The merge waits for samples of ``file``: with ``need`` of them it goes on to another one, or has enough.

    ``missing``: how many samples of all files it takes until it has.
    """

    file: int
    need: int = 1
    missing: int = 1


@dataclass(frozen=True, slots=True)
class Failed:
    """The pass cannot go on; every batch cut before was complete."""

    error: Error


@dataclass(frozen=True, slots=True)
class Done:
    """The pass is over after ``batches`` batches."""

    batches: int


class Stream:
    """The batches of one pass, pulled one by one. ``order``: what :func:`~pydp2.order.files.file_order` says.

    ``saved``: where to begin instead of at the start. Its pool is read again first, in the order of names.
    """

    def __init__(
        self, plan: Plan, source: Source, store: Store, order: npt.NDArray[np.int64], saved: Saved | None = None
    ) -> None:
        self.plan = plan
        self._source = source
        recalls = {} if saved is None else recalls_of(plan, saved)
        self.merge = (Relaxed if plan.relaxed else Merge)(plan, source, order, saved, recalls)
        self.pool = self._new_pool(store)
        self.index = 0 if saved is None else saved.index
        self.again = (len(recalls), sum(recall.length for recall in recalls.values()))
        """What is run again to take the pass up: files, and how many of their samples were run before."""
        self.saved = saved
        """The latest point of the pass from which it could be taken up again; None: its start."""
        self._refill = Refill(source, plan.lanes, recalls, {lane.file for lane in saved.lanes}) if saved else None
        self._ended = saved is not None and saved.ended
        self._failed: Failed | None = None
        self.byte_limited = False
        """The byte limit stopped a fill before its level was reached (said once to the user)."""

    def _new_pool(self, store: Store) -> Pool:
        return Pool(self.plan, store)

    def next(self) -> Cut | Blocked | Failed | Done:
        """The next batch, or why there is none now."""
        if self._failed is not None:
            return self._failed
        stopped = self._recall() or self._fill()
        if stopped is not None:
            return stopped
        if not len(self.pool):
            return Done(self.index)
        return self._cut()

    def _cut(self) -> Cut | Done:
        plan, before, held = self.plan, self.pool.weight, self.pool.bytes
        rows, size = self.pool.draw(self.index)
        padding, nbytes = 0, held - self.pool.bytes
        if self._ended and size < plan.batch_size and self.pool.exhausted:
            if plan.last_batch == "drop":
                return self._cut() if len(self.pool) else Done(self.index)
            if plan.last_batch == "pad":
                rows, padding = self._pad(rows, size)
        cut = Cut(self.index, rows, size, before, padding, self.pool.gone, self.pool.longest, nbytes)
        self.index += 1
        if self.pool.snapshot_point():
            self._save(self.pool.names(), ended=False)
        return cut

    def _save(self, pool: bytes, *, ended: bool) -> None:
        merge = self.merge
        lanes = [] if ended else merge.positions()
        taken, dropped = self._source.passed
        self.saved = Saved(
            self.index,
            pool,
            ended,
            0,
            merge.next_file,
            merge.current,
            0 if ended else merge.left,
            lanes,
            taken,
            dropped,
            self.pool.turn,
        )

    def _pad(self, rows: Rows, size: int) -> tuple[Rows, int]:
        """``rows`` again from their front until the weight is that of a batch; all-zero weights cannot be padded."""
        weights = self.pool.weights(rows)
        if size == 0:
            return rows, 0
        missing = self.plan.batch_size - size
        cycles = -(-missing // size)
        ahead = np.cumsum(np.tile(weights, cycles))
        extra = int(np.searchsorted(ahead, missing)) + 1
        return np.concatenate([rows, np.tile(rows, cycles)[:extra]]), extra

    def _recall(self) -> Blocked | Failed | None:
        """Read the saved pool again, once."""
        if self._refill is None:
            return None
        while (file := self._refill.file) is not None:
            front = self._refill.front()
            if front is WAIT:
                return Blocked(file)
            if isinstance(front, Failure):
                return self._fail(front.error)
            if isinstance(front, Run):
                self.pool.add(file, front)
                self._refill.take(front.hi - front.lo)
        self._refill = None
        if self._ended and self.saved is not None:
            self.pool.resume_tail(self.saved.offset, len(names.decode(self.saved.pool)[0]))
        return None

    # -- filling ---------------------------------------------------------------------------------------------------
    def _fill(self) -> Blocked | Failed | None:
        """Pull from the merge until the level or the byte limit is reached or it has no more."""
        if self._ended:
            return None
        pool, plan = self.pool, self.plan
        level = plan.level(self.index)
        while pool.weight < level:
            if pool.bytes >= plan.pool_bytes and pool.weight >= plan.batch_size:
                self.byte_limited = True
                return None
            stopped = self._pull(level)
            if stopped is not None or self._ended:
                return stopped
        return None

    def _pull(self, level: int) -> Blocked | Failed | None:
        """Put what is next in the merge into the pool, as far as there is room for it, or begin the tail."""
        front = self.merge.front()
        if front is WAIT:
            missing = max(1, level - self.pool.weight)
            return Blocked(self.merge.file, min(self.merge.left, missing), missing)
        if front is END:
            self._ended = True
            self._save(self.pool.start_tail(), ended=True)
            return None
        if isinstance(front, Failure):
            return self._fail(front.error)
        assert isinstance(front, Run)
        too_large = self._too_large(front)
        if too_large is not None:
            return self._fail(too_large)
        front.hi = front.lo + self._room(front, level)
        self.pool.add(self.merge.file, front)
        self.merge.take(front.hi - front.lo)
        return None

    def _room(self, run: Run, level: int) -> int:
        """How many samples of ``run`` may be pulled before one of the limits is met, at least 1."""
        count = run.hi - run.lo
        pool, plan = self.pool, self.plan
        if run.weights is None:
            weights: npt.NDArray[np.int64] | None = None
            count = min(count, level - pool.weight)
        else:
            # before[i]: what the pool weighs when sample i is considered
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

    def _too_large(self, run: Run) -> Error | None:
        """An error for the first sample of ``run`` that no batch or no pool can hold, if it is the next one."""
        plan = self.plan
        if run.together().largest <= plan.pool_bytes and (run.weights is None or plan.can_over_batch_size):
            return None
        refused = run.sizes[run.lo : run.hi] > plan.pool_bytes
        if run.weights is not None and not plan.can_over_batch_size:
            refused = refused | (run.weights[run.lo : run.hi] > plan.batch_size)
        if not refused.any():
            return None
        first = int(np.argmax(refused))
        if first:  # what stands before it is merged as usual
            run.hi = run.lo + first
            return None
        at = run.lo
        where = f"file {self.merge.label}, sample {int(run.ordinals[at])}"
        if int(run.sizes[at]) > plan.pool_bytes:
            return SampleTooLarge(
                f"{where}: the sample needs {int(run.sizes[at])} bytes, the pool holds {plan.pool_bytes}; "
                "raise pool_bytes or yield smaller samples"
            )
        assert run.weights is not None
        return SampleTooLarge(
            f"{where}: calc_batch_size gave {int(run.weights[at])}, a batch holds {plan.batch_size}; "
            "raise batch_size, or allow the last sample to exceed it with can_over_batch_size=True"
        )

    def _fail(self, error: Error) -> Failed:
        self._failed = Failed(error)
        return self._failed
