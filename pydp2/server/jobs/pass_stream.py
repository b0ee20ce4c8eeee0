"""Cut the batches of a job: open its passes, and pull from each the groups of batches that go out together.

A :class:`JobStream` lives as long as its job, a :class:`PassStream` as long as its pass: it owns the store of its rows,
the batcher and what is read for it, and gives them back when it is closed. The order is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.data.rowstore.base import RowStore
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.schema.provider_schema import Schema
from pydp2.order.batcher import BatchCut, Batcher, BlockedOnFile, PassDone, PassFailed
from pydp2.order.bucketing import make_batcher
from pydp2.order.cached_pass import CachedPassBatcher
from pydp2.order.file_order import block_length, files_in_order
from pydp2.order.plan import UNBOUNDED, BucketPlan, PassPlan
from pydp2.order.sample_source import FileFailure
from pydp2.order.stream_state import StreamState
from pydp2.protocol.early_ends import EarlyEnds, by_file
from pydp2.server.dispatch.cached_rows import cached_rows
from pydp2.server.dispatch.file_counts import CountingBatcher
from pydp2.server.dispatch.file_dispatcher import CycleReading, FileDispatcher, ReadContext
from pydp2.server.dispatch.ledger_source import LedgerSource
from pydp2.server.dispatch.losses import Losses
from pydp2.server.dispatch.pass_checksums import PassChecksums
from pydp2.server.jobs.groups import BatchGroup, CutBatch, GroupedPass, JobPasses, PassBroken, PassEnded, PassShare
from pydp2.server.jobs.plan import JobPlan, begin_buckets

OnReading = Callable[[FileDispatcher, bool], None]
"""Called with what is read for a pass: True as it begins, False as it ends."""


class PaddingStats:
    """Share of the delivered batches that would be padding if each were padded to its longest sequence."""

    def __init__(self) -> None:
        self.steps = 0
        self.padded = 0

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        """Count a batch that was delivered, with sequences of these ``lengths``."""
        self.steps += int(lengths.sum())
        self.padded += len(lengths) * int(lengths.max(initial=0))

    @property
    def share(self) -> float:
        """Part of all steps that would be padding, from 0 to 1."""
        return 1 - self.steps / self.padded if self.padded else 0.0

    def figures(self, slot: str) -> dict[str, Any]:
        """Return the statistics of the slot named ``slot`` as plain data."""
        return {"slot": slot, "steps": self.steps, "places": self.padded, "share": self.share}

    def describe(self, slot: str, bounds: Sequence[int] | None) -> str:
        """Return one line about the slot named ``slot`` for the end of a pass."""
        listed = ", ".join(map(str, bounds or ())) or "none"
        return (
            f"{slot} padded to the longest of each batch is {self.share:.1%} padding "
            f"({self.steps} steps in {self.padded} places; bounds of the buckets: {listed})"
        )


_NO_PASS: dict[str, Any] = {
    "pool": {"samples": 0, "weight": 0, "bytes": 0, "memory": 0},
    "fill": None,
    "read_ahead": {"budget": 0, "used": 0},
    "run_again": {"files": 0, "samples": 0},
}


class JobStream(JobPasses):
    """Passes over ``files``, the numbers of some files of the list in a row.

    ``memory``: for the rows of its pools; None: its own. ``counting``: its passes only count samples, of files that are
    not counted ("missing"), or of "all". ``may_lose_rows``: a pass can be taken up again in its middle when rows of it
    are lost, as far as those who get the batches are concerned. ``on_reading``: called with what is read.
    """

    def __init__(
        self,
        plan: JobPlan,
        schema: Schema,
        context: ReadContext,
        *,
        files: range,
        memory: PoolMemory | None = None,
        counting: str = "",
        may_lose_rows: bool = False,
        on_reading: OnReading | None = None,
    ) -> None:
        super().__init__(plan, schema, PoolMemory(schema.slots) if memory is None else memory)
        self.context = context
        self.counting = counting
        self.on_reading = on_reading
        self._files = files
        self._may_lose_rows = may_lose_rows
        self.current: PassStream | None = None
        self.padding = PaddingStats()
        """Padding of its batches."""

    def open(self, start: StreamState, world: int = 1) -> PassStream:
        self.begin_pass(start)
        self.padding = PaddingStats()
        plan = self._plan_of(start, world)
        if plan.buckets is not None and plan.buckets.bounds is not None:
            self.known_buckets = {"bounds": list(plan.buckets.bounds)}  # needed before the next batch, too
        order = files_in_order(plan) + self._files.start
        if self.counting == "missing" and self.context.counts is not None:
            order = self.context.counts.uncounted()
        if start.point is not None:
            start.point.validate(order, plan.cycle_length)
        self.current = PassStream(self, plan, order, start, world)
        if self.on_reading is not None:
            self.on_reading(self.current.dispatcher, True)
        return self.current

    @property
    def file_limit(self) -> int:
        """Number above that of each of its files."""
        return self._files.stop

    def has_file(self, file: int) -> bool:
        """Return True if ``file`` is one of its files."""
        return file in self._files

    @property
    def is_whole_list(self) -> bool:
        """True if it reads all files of the list."""
        counts = self.context.counts
        return counts is None or counts.files == len(self._files)

    def _plan_of(self, start: StreamState, world: int) -> PassPlan:
        job, provider, pass_id = self.plan, self.schema, start.pass_id
        return PassPlan(
            seed=job.seed,
            pass_id=pass_id,
            files=len(self._files),
            batch_size=job.batch_size,
            shuffle=job.shuffle,
            interleave=job.interleave,
            pool_size=provider.pool_size,
            min_pool_size=provider.min_pool_size,
            can_over_batch_size=provider.can_over_batch_size,
            pool_bytes=job.pool_bytes,
            wait_for_all=provider.cached_in_memory and job.shuffle and pass_id > 0,
            last_batch=job.last_batch,
            relaxed=job.order == "relaxed",
            buckets=begin_buckets(job.buckets, self.known_buckets | start.buckets, world),
            origin=job.origin,
        )

    def open_store(self, plan: PassPlan) -> RowStore:
        """Return a store for rows of a pass that do not all lie in the cache."""
        cache = self.context.cache
        values_needed = cache is not None or plan.buckets is not None or plan.relaxed or not self._may_lose_rows
        row_store = None if cache is None or cache.memory is None else cache.memory.row_store
        return self.memory.open_pass(row_store, values_needed=values_needed)

    def share(self) -> PassShare | None:
        counts = self.context.counts
        found = None if counts is None or self.counting else counts.weight_of(self._files)
        if found is None:
            return None
        weight, is_estimate = found
        done = (self.batches_before + self.batches) * self.plan.batch_size
        return PassShare(min(done, weight), weight, is_estimate or self.plan.buckets is not None)

    def stats(self) -> dict[str, Any]:
        current, buckets = self.current, self.plan.buckets
        return {
            **self.totals(),
            # Also those of the pass before: a short pass has none for most of its time.
            "dropped": max(self.dropped, 0 if current is None else current.losses.dropped),
            "blocked": max(self.blocked, 0 if current is None else current.dispatcher.samples_blocked),
            "ended_early": max(self.ended_early, 0 if current is None else current.losses.ended),
            "padding": {} if buckets is None else self.padding.figures(self._bucket_slot(buckets)),
            **(_NO_PASS if current is None else current.stats()),
        }

    def describe_padding(self) -> str:
        if self.plan.buckets is None:
            return ""
        bounds = self.known_buckets.get("bounds")
        return f"pass {self.pass_id}: {self.padding.describe(self._bucket_slot(self.plan.buckets), bounds)}"

    def _bucket_slot(self, buckets: BucketPlan) -> str:
        """Return the name of the slot by whose lengths ``buckets`` are made."""
        return self.schema.slots.label(buckets.slot)


class PassStream(GroupedPass):
    """Batches of one pass of ``job`` with the plan ``plan``, from ``start`` on, in groups of ``world``. ``order``: the
    files that it reads."""

    def __init__(
        self, job: JobStream, plan: PassPlan, order: npt.NDArray[np.int64], start: StreamState, world: int
    ) -> None:
        super().__init__(job, start, world, plan.last_batch)
        self.job: JobStream
        self._plan = plan
        self._begins_at_point = start.point is not None
        self._is_compared = start.point is None and not start.checksums.size  # files read before are what they were
        self._early_ends: EarlyEnds = {}  # those that the merge has met
        cycle = CycleReading(
            length=min(plan.cycle_length, max(1, plan.files)),
            share=partial(block_length, plan) if plan.shuffle and not plan.relaxed else _equal_share,
            ramp=_ramp(plan, order[: plan.cycle_length].tolist()) if start.point is None else {},
        )
        context, checksums = job.context, None if plan.relaxed or job.counting else start.checksums
        self.dispatcher = FileDispatcher(
            context,
            cycle,
            pass_id=plan.pass_id,
            seed=plan.seed,
            order=order,
            saved=start.point,
            early_ends=start.early_ends,
            checksums=checksums,
        )
        self.losses = Losses(plan.pass_id, context.label, context.error_budget, start.early_ends, start.point, order)
        self._checksums = PassChecksums(checksums)
        self._source = LedgerSource(self.dispatcher, self.losses, self._checksums)
        self._store, self._batcher = self._begin_batches(order, start)
        self.dispatcher.names_suffice = job.memory.names_suffice

    def _begin_batches(self, order: npt.NDArray[np.int64], start: StreamState) -> tuple[RowStore, Batcher]:
        """Return the store of the rows of the pass, and what cuts its batches."""
        job, plan = self.job, self._plan
        if job.counting:
            store = job.memory.open_pass()
            return store, CountingBatcher(plan, self._source, store, order)
        from_start = self._is_compared and not start.early_ends
        there = cached_rows(plan, job.context.cache) if from_start and job.is_whole_list else None
        if there is not None and (listing := there[1]) is not None:
            self.losses.taken = len(listing.row_ids)  # there is nothing that it would read
            self.dispatcher.samples_blocked = listing.blocked
            return there[0], CachedPassBatcher(plan, self._source, listing)
        store = job.open_store(plan) if there is None else there[0]
        try:
            return store, make_batcher(plan, self._source, store, order, start.point)
        except BaseException:
            job.memory.close_pass(store)
            raise

    # -- what is known of it ---------------------------------------------------------------------------------------
    @property
    def buckets(self) -> dict[str, Any]:
        known, plan = self.job.known_buckets, self._plan.buckets
        return {} if plan is None or not known else {**known, "group": plan.group_size}

    @property
    def pool_samples(self) -> int:
        """Number of samples in the pool."""
        return len(self._batcher.pool)

    @property
    def early_ends(self) -> EarlyEnds:
        return self.losses.early_ends

    def describe_start(self) -> str:
        if not self._skip_to:
            return ""
        again = "all that came before is read again"
        if self._begins_at_point:
            files, samples = self._batcher.reread_counts
            again = f"{files} files are run again, {samples} samples of them a second time"
        return f"pass {self._plan.pass_id} is taken up at batch {self._skip_to}: {again}"

    @property
    def byte_limited(self) -> bool:
        return self._batcher.byte_limited

    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data. "fill" says what the next batch waits for: the weight up to which the pool
        is filled, None for all samples."""
        batcher, credit = self._batcher, self.dispatcher.credit
        pool, plan, level = batcher.pool, self._plan, batcher.fill_level
        return {
            "pool": {
                "samples": len(pool),
                "weight": pool.weight,
                "bytes": pool.bytes,
                "memory": self._store.held_bytes,
            },
            "fill": {
                "weight": None if level >= UNBOUNDED else level,
                "pool_bytes": plan.pool_bytes,
                "waits_for_all": plan.wait_for_all,
                "is_full": batcher.is_full,
                "file": batcher.merge.current_label if batcher.merge.cycle else "",
            },
            "read_ahead": {"budget": credit.budget, "used": credit.used},
            "run_again": dict(zip(("files", "samples"), batcher.reread_counts, strict=True)),
        }

    # -- its batches -----------------------------------------------------------------------------------------------
    def _group_behind(self, batches: list[CutBatch]) -> BatchGroup:
        met = self.losses.met
        if len(self._early_ends) != len(met):
            self._early_ends = by_file(met)
        if self._plan.buckets is not None:
            longest = [batch.bucket["longest"] for batch in batches]
            greatest = max(longest) if all(longest) else 0
            batches = [batch._replace(bucket=batch.bucket | {"group_longest": greatest}) for batch in batches]
        last = batches[-1].cut
        behind = last.index + 1
        after = StreamState(
            self._plan.pass_id,
            behind,
            self._used_from(behind),
            self._early_ends,
            None if self._plan.relaxed else self._batcher.snapshot,
            self._checksums.logged_checksums(),
            self.buckets,
            (behind, last.tail_consumed),
        )
        return BatchGroup(batches, after, self._checksums.take_checksums_before())

    def _pull(self) -> CutBatch | PassEnded | PassBroken | None:
        outcome = self._next_outcome()
        while isinstance(outcome, BatchCut) and self._is_used(outcome.index):
            self._store.release_later(outcome.row_ids[: len(outcome.row_ids) - outcome.padding])
            outcome = self._next_outcome()
        match outcome:
            case BlockedOnFile(file, need, missing):
                self.dispatcher.want(file, need, missing)
                return None
            case BatchCut():
                return self._batch_of(outcome)
            case PassDone(batches):
                return self._check_length(batches) or self._end_after(batches)
            case PassFailed(error, file, sample):
                label = None if file is None else self.dispatcher.label(file)
                return PassBroken(error, label, sample)

    def _next_outcome(self) -> BatchCut | BlockedOnFile | PassFailed | PassDone:
        """Return what comes next in the stream. Before the first batch that is delivered, all files are compared of
        which the state has a checksum and that the merge has come to."""
        if self._is_compared:
            return self._batcher.next()
        outcome = self._batcher.next() if self._batcher.batch_index < self._skip_to else None
        if isinstance(outcome, BatchCut | BlockedOnFile):
            return outcome
        found = self._checksums.next_to_compare()  # its error says more than that of a pass which is another one
        if isinstance(found, FileFailure):
            return PassFailed(found.error, found.file, found.sample)
        if outcome is not None:
            return outcome
        if found is not None:
            return BlockedOnFile(*found)
        self._is_compared = True
        return self._batcher.next()

    def _batch_of(self, cut: BatchCut) -> CutBatch:
        """Return the batch of ``cut``, with where it came from and what the buckets of this pass are."""
        rows, bucket = BatchRows(self._store, cut.row_ids, cut.padding, cut.nbytes), {}
        if (plan := self._plan.buckets) is not None:
            self.job.padding.add(rows.lengths(plan.slot))
            bounds = list(self._batcher.pool.bounds or ())
            self.job.known_buckets = {"bounds": bounds}
            bucket = {"longest": cut.bucket_bound, "bounds": bounds, "group": plan.group_size}
        return CutBatch.of(cut, rows, bucket)

    def _end_after(self, batches: int) -> PassEnded:
        """Return the end of the pass after ``batches`` batches."""
        counts, losses = self.job.context.counts, self.losses
        uniform = not self.job.schema.weighted or (counts is not None and counts.is_plain)
        batches = max(batches, self._skip_to)  # a state counts batches that were padding alone, too
        # A pass that counts reads only some of the files, or none.
        found = batches or losses.taken or losses.dropped or self.dispatcher.samples_blocked
        is_empty = not (self.job.counting or found)
        return PassEnded(batches, self.job.samples, losses.dropped, uniform, is_empty)

    def close(self) -> None:
        super().close()
        if self.job.on_reading is not None:
            self.job.on_reading(self.dispatcher, False)
        self.job.memory.close_pass(self._store)
        self.job.dropped, self.job.blocked = self.losses.dropped, self.dispatcher.samples_blocked
        self.job.ended_early = self.losses.ended


def _equal_share(file: int) -> int:
    """Return what the merge takes of a file, compared with others, where it does not take turns with several."""
    return 1


def _ramp(plan: PassPlan, first: list[int]) -> dict[int, int]:
    """Return how far each of the ``first`` files of the cycle is read turn by turn: what the first two batches will
    take of it.

    Without this a worker would finish its first file before it looked at its second, and the merge, which takes
    turns with all, would wait. Speed only: nothing to win where the pool wants everything first, with one file of the
    cycle, or where there are no turns.
    """
    level = plan.fill_level(0)
    if level >= UNBOUNDED or len(first) < 2 or plan.relaxed:
        return {}
    turns = {file: block_length(plan, file) for file in first}
    rounds = -(-(level + plan.batch_size) // sum(turns.values()))
    return {file: rounds * turn for file, turn in turns.items()}
