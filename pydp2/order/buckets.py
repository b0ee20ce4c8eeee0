"""Batches of samples alike in length: which bucket a sample belongs to, and which one comes next (docs/order.md,
"Buckets").

A pool that keeps its samples in lots, one for each bucket, and draws a batch from one of them as a pool without buckets
draws it from all; and a stream that pulls from the merge until some lot can fill the batches that come next. Nothing
here runs in a pass without buckets.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pydp2.errors import OptionError
from pydp2.inputs.names import encode
from pydp2.order.plan import Buckets, Plan
from pydp2.order.pool import Pool, Rows, Store
from pydp2.order.saved import Saved
from pydp2.order.source import Block, Run, Source
from pydp2.order.stream import Blocked, Failed, Stream
from pydp2.order.words import Words, permutation

_GATHER = 0
"""The level that stands for "until a lot can fill the group"."""


def automatic_bounds(lengths: npt.NDArray[np.int64], weights: npt.NDArray[np.int64], count: int) -> tuple[int, ...]:
    """Bounds that cut samples of these ``lengths`` into ``count`` buckets of about equal weight; fewer where many are
    equally long. Bound i is the least length up to which i of ``count`` parts of the weight are."""
    order = np.argsort(lengths, kind="stable")
    running = np.cumsum(weights[order])
    total = int(running[-1]) if len(running) else 0
    if not total:
        return ()
    parts = [-(-i * total // count) for i in range(1, count)]
    found = lengths[order][np.searchsorted(running, parts)]
    return tuple(sorted({max(1, int(length)) for length in found}))


@dataclass(slots=True, eq=False)
class _Lot:
    """The samples of one bucket: their rows in pool order, or in the order of the tail from ``offset`` on."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    weight: int = 0
    tail: Rows | None = None
    offset: int = 0

    @property
    def count(self) -> int:
        return len(self.rows) if self.tail is None else len(self.tail) - self.offset

    @property
    def first(self) -> int:
        return self.rows[0] if self.tail is None else int(self.tail[self.offset])

    @property
    def waiting(self) -> Rows:
        return np.array(self.rows, np.int64) if self.tail is None else self.tail[self.offset :]


class BucketPool(Pool):
    """A pool whose batches are drawn from one bucket each. ``rows`` is the lot that the last batch came from."""

    _tables = (*Pool._tables, "_length")

    def __init__(self, plan: Plan, store: Store, buckets: Buckets) -> None:
        super().__init__(plan, store)
        self._buckets = buckets
        self._length = np.empty(len(self._file), np.int64)
        self._count = 0
        self._heaviest = 1  # of all samples so far, at least 1
        self._lots = [_Lot()]  # one for all, until there are bounds
        if buckets.bounds is not None:
            self._set_bounds(buckets.bounds)

    def __len__(self) -> int:
        return self._count

    @property
    def exhausted(self) -> bool:
        """The lot that the last batch came from has nothing left."""
        return not self._lots[self.turn - 1].count

    # -- what waits ------------------------------------------------------------------------------------------------
    def add(self, file: int, run: Run) -> None:
        """Put the samples of ``run`` at the ends of their lots."""
        rows = self._enter(file, run)
        self._count += len(rows)
        if not self._uniform:
            self._heaviest = max(self._heaviest, int(self._weight[rows].max()))
        self._deal(rows)

    def _keep(self, file: int, run: Run, block: Block) -> Rows:
        rows = super()._keep(file, run, block)
        self._length[rows] = run.columns.lengths(self._buckets.slot)[block.first : block.until]
        return rows

    def _deal(self, rows: Rows) -> None:
        """Put ``rows`` into their lots, in this order."""
        lots = self._lots
        numbers = self._number(self._length[rows]).tolist()
        # Runs are short: a loop costs less here than a few numpy calls for each bucket.
        for k, row, weight in zip(numbers, rows.tolist(), self._weight[rows].tolist(), strict=True):
            lot = lots[k]
            lot.rows.append(row)
            lot.weight += weight

    def numbers(self, run: Run) -> npt.NDArray[np.int64]:
        """The buckets of the samples of ``run``, by number."""
        block = run.together()
        if block.rows is not None:
            return self._number(self._length[block.rows[run.lo - block.first : run.hi - block.first]])
        return self._number(run.columns.lengths(self._buckets.slot)[run.lo : run.hi])

    def _number(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(np.array(self.bounds or (), np.int64), lengths)

    def settle(self) -> None:
        """The first fill is over: there are bounds from now on."""
        if self.bounds is not None:
            return
        rows = self._lots[0].waiting
        self._set_bounds(automatic_bounds(self._length[rows], self._weight[rows], self._buckets.count))
        self._deal(rows)

    def _set_bounds(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self._lots = [_Lot() for _ in range(len(bounds) + 1)]

    # -- which lot -------------------------------------------------------------------------------------------------
    def left(self, n: int) -> int:
        """How many batches the group of batch ``n`` has from there on."""
        return self._buckets.group - n % self._buckets.group

    def needs(self, n: int) -> list[int]:
        """Below what weight of each lot it is no use to ask whether they are able."""
        needs = [self.left(n) * self._plan.batch_size] * len(self._lots)
        if self._same(n):
            needs[self.turn - 1] = self._plan.batch_size
        return needs

    def weights_of_lots(self) -> list[int]:
        """What waits in each."""
        return [lot.weight for lot in self._lots]

    def able(self, n: int) -> bool:
        """Whether a lot can fill what comes from batch ``n`` on: the rest of its group."""
        return self._goes_on(n) or any(self._fills(lot, self.left(n)) for lot in self._lots)

    def _goes_on(self, n: int) -> bool:
        """Batch ``n`` comes from the bucket of the one before: it is of the same group, and there is enough."""
        return self._same(n) and self._lots[self.turn - 1].weight >= self._plan.batch_size

    def _same(self, n: int) -> bool:
        return n % self._buckets.group != 0 and self.turn > 0

    def _fills(self, lot: _Lot, batches: int) -> bool:
        """Whether ``lot`` is sure to give so many batches, none for lack of samples below its size."""
        need = batches * self._plan.batch_size
        if lot.weight < need:
            return False
        over = batches - 1  # so many batches may take more than they need, each by its last sample
        if not over or self._uniform or not self._plan.can_over_batch_size:
            return True
        if lot.weight - over * self._heaviest >= need - over:
            return True  # no need to look for the heaviest that are there
        weights = self._weight[lot.waiting]
        heaviest = np.partition(weights, max(0, len(weights) - over))[-over:]
        return lot.weight - int(heaviest.sum()) >= need - over

    def _choose(self, n: int) -> int:
        """The number of the lot that batch ``n`` and the rest of its group come from."""
        lots = {k: lot for k, lot in enumerate(self._lots) if lot.count}
        able = {k: lot for k, lot in lots.items() if self._fills(lot, self.left(n))}
        lots = able or {k: lot for k, lot in lots.items() if self._fills(lot, 1)} or lots
        if not self._plan.shuffle:
            return min(lots, key=lambda k: self._name(lots[k].first))
        total = sum(lot.weight for lot in lots.values())
        at = int(Words(self._plan.seed, self._plan.pass_id, "bucket", n).take(1)[0]) * total >> 64
        for k, lot in lots.items():
            at -= lot.weight
            if at < 0:
                return k
        return next(iter(lots))  # nothing weighs anything

    def _name(self, row: int) -> tuple[int, int]:
        return int(self._file[row]), int(self._ordinal[row])

    def draw(self, n: int) -> tuple[Rows, int]:
        """The rows of batch ``n`` and their weight; they leave the pool (but not the store)."""
        if not self._goes_on(n):
            self.turn = self._choose(n) + 1
        lot = self._lots[self.turn - 1]
        self.longest = (*(self.bounds or ()), 0)[self.turn - 1]
        self.rows, self._tail, self._offset = lot.rows, lot.tail, lot.offset
        rows, weight = super().draw(n)
        lot.offset = self._offset
        lot.weight -= weight
        self._count -= len(rows)
        return rows, weight

    # -- between batches -------------------------------------------------------------------------------------------
    def _sort(self) -> None:
        for lot in self._lots:
            lot.rows = self._sorted(lot.rows)

    def _all(self) -> Rows:
        """All rows that wait, by name."""
        return self._by_name(np.concatenate([lot.waiting for lot in self._lots]))

    def names(self) -> bytes:
        """The samples of the pool as a set."""
        rows = self._all()
        return encode(self._file[rows], self._ordinal[rows])

    @property
    def gone(self) -> int:
        """Always 0: which samples of the tail are gone is known only to who knows their lengths."""
        return 0

    def start_tail(self) -> bytes:
        """No sample will be added any more: what is left in each lot gets one permutation (shuffle on), or keeps its
        order. The samples, as a set."""
        self.settle()
        plan, rows = self._plan, self._all()
        numbers = self._number(self._length[rows])
        for k, lot in enumerate(self._lots):
            lot.tail = rows[numbers == k]
            if plan.shuffle:
                lot.tail = lot.tail[permutation(plan.seed, plan.pass_id, "tail", len(lot.tail), k)]
            lot.rows = array("q")
        return encode(self._file[rows], self._ordinal[rows])

    def resume_tail(self, gone: int, total: int) -> None:
        """The tail begins again; what is gone of it is cut once more."""
        self.start_tail()


def stream_of(
    plan: Plan, source: Source, store: Store, order: npt.NDArray[np.int64], saved: Saved | None = None
) -> Stream:
    """The stream of a pass, with or without buckets. Raises OptionError when ``saved`` is no point of it."""
    kind = Stream if plan.buckets is None else BucketStream
    return kind(plan, source, store, order, saved)


class BucketStream(Stream):
    """The batches of a pass with buckets."""

    pool: BucketPool

    def __init__(
        self, plan: Plan, source: Source, store: Store, order: npt.NDArray[np.int64], saved: Saved | None = None
    ) -> None:
        super().__init__(plan, source, store, order, saved)
        if saved is not None:
            if self.pool.bounds is None or saved.bucket > len(self.pool.bounds) + 1 or saved.offset:
                raise OptionError("the state does not say where its buckets stood: it is damaged")
            self.pool.turn = saved.bucket

    def _new_pool(self, store: Store) -> Pool:
        assert self.plan.buckets is not None
        return BucketPool(self.plan, store, self.plan.buckets)

    def _fill(self) -> Blocked | Failed | None:
        """As without buckets; then on until a lot can fill the group, or a batch at least where bytes are the limit."""
        stopped = super()._fill()
        if stopped is not None or self._ended:
            return stopped
        pool = self.pool
        pool.settle()
        while not self._ended and not pool.able(self.index):
            if pool.bytes >= self.plan.pool_bytes and max(pool.weights_of_lots()) >= self.plan.batch_size:
                self.byte_limited = True
                return None
            stopped = self._pull(_GATHER)
            if stopped is not None:
                return stopped
        return None

    def _room(self, run: Run, level: int) -> int:
        if level != _GATHER:
            return super()._room(run, level)
        plan, pool = self.plan, self.pool
        needs = pool.needs(self.index)
        waiting, size = pool.weights_of_lots(), pool.bytes
        numbers = pool.numbers(run).tolist()
        sizes = run.sizes[run.lo : run.hi].tolist()
        weights = [1] * len(sizes) if run.weights is None else run.weights[run.lo : run.hi].tolist()
        full = max(waiting) >= plan.batch_size
        for i, k in enumerate(numbers):
            if i and full and size >= plan.pool_bytes:
                return i
            waiting[k] += weights[i]
            size += sizes[i]
            full = full or waiting[k] >= plan.batch_size
            if waiting[k] >= needs[k]:  # whether that is enough is seen once the sample is there
                return i + 1
        return len(numbers)
