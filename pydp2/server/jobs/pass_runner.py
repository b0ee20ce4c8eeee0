"""Run the passes of a job: make the plan of a pass, and pull batches from its stream while there is credit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.data.rowstore.base import RowStore
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import NotRepeatable
from pydp2.order.batcher import BatchCut, Batcher, BlockedOnFile, PassDone, PassFailed
from pydp2.order.bucketing import make_batcher
from pydp2.order.cached_pass import CachedPassBatcher
from pydp2.order.file_order import block_length, files_in_order
from pydp2.order.plan import UNBOUNDED, PassPlan
from pydp2.order.sample_source import FileFailure
from pydp2.order.snapshot import SnapshotPoint
from pydp2.order.stream_state import StreamState
from pydp2.protocol.early_ends import EarlyEnds, by_file
from pydp2.server.dispatch.cached_rows import cached_rows
from pydp2.server.dispatch.file_counts import CountingBatcher
from pydp2.server.dispatch.file_dispatcher import CycleReading, FileDispatcher, ReadContext
from pydp2.server.jobs.batches import BatchGroup, CutBatch, PassBroken, PassEnded
from pydp2.server.jobs.padding import PaddingStats
from pydp2.server.jobs.plan import JobPlan, begin_buckets

_PULLS_PER_CALL = 32  # batches cut in one call


class PassRunner:
    """Passes over the files of the list, one at a time."""

    def __init__(
        self,
        plan: JobPlan,
        schema: Schema,
        context: ReadContext,
        *,
        files: int,
        memory: PoolMemory | None = None,
        counting: str = "",
    ) -> None:
        """Make it. ``memory``: for the rows of its pools; None: its own. ``counting``: its passes only count samples,
        of files that are not counted ("missing"), or of "all"."""
        self.plan = plan
        self.schema = schema
        self._context = context
        self._files = files
        self._cache = context.cache
        self.memory = PoolMemory(schema.slots) if memory is None else memory
        """Where the rows of its pools lie."""
        self._counting = counting
        self.pass_id = -1
        self._skip_to = 0
        self._is_compared = True  # files that were read before are what they were
        self._acknowledged_ahead: frozenset[int] = frozenset()
        self._world = 1
        self._cut_batches: list[CutBatch] = []  # of the next group
        self._cut_bytes = 0
        self._end: PassEnded | None = None
        self._early_ends: EarlyEnds = {}  # those that the merge has met
        self.samples = 0  # delivered in this pass
        self.batches = 0
        self.dropped = 0  # bad samples of the pass that is over
        self.total_samples = 0
        self.total_batches = 0
        self.more = False
        """:meth:`next_group` had nothing because a group of so many ranks is not cut in one call: others have their
        turn."""
        self.pool_over_limit = False
        """It had nothing because there is no room for the rest of the group."""
        self.may_lose_rows = False
        """True if a pass can be taken up again in its middle when rows of it are lost, as far as those who get the
        batches are concerned."""
        self._batcher: Batcher | None = None
        self._store: RowStore | None = None
        self.dispatcher: FileDispatcher | None = None
        self.padding = PaddingStats()
        self.known_buckets: dict[str, Any] = {}
        """Bounds of the buckets of all passes, as "bounds"; {} without buckets, and before they are known. A rank
        without a batch does not know them."""

    def begin(self, start: StreamState, world: int = 1) -> FileDispatcher:
        """Begin a pass at ``start`` for ``world`` ranks and return what is read for it. Raises OptionError when the
        point of ``start`` is no point of this pass."""
        pass_id, point, early_ends = start.pass_id, start.point, start.early_ends
        self.leave()
        self.padding = PaddingStats()
        self._skip_to = start.batch
        self._acknowledged_ahead = frozenset(start.acknowledged_ahead)
        self._world = world
        self._end, self._early_ends = None, {}
        self._is_compared = point is None and not start.checksums.size
        job, provider = self.plan, self.schema
        self.pass_id = pass_id
        self.samples = self.batches = self.dropped = 0
        cached = provider.cached_in_memory
        plan = PassPlan(
            seed=job.seed,
            pass_id=pass_id,
            files=self._files,
            batch_size=job.batch_size,
            shuffle=job.shuffle,
            interleave=job.interleave,
            pool_size=provider.pool_size,
            min_pool_size=provider.min_pool_size,
            can_over_batch_size=provider.can_over_batch_size,
            pool_bytes=job.pool_bytes,
            wait_for_all=cached and job.shuffle and pass_id > 0,
            last_batch=job.last_batch,
            relaxed=job.order == "relaxed",
            buckets=begin_buckets(job.buckets, self.known_buckets | start.buckets, world),
        )
        if plan.buckets is not None and plan.buckets.bounds is not None:
            self.known_buckets = {"bounds": list(plan.buckets.bounds)}  # needed before the next batch, too
        order = files_in_order(plan)
        if self._counting == "missing" and self._context.counts is not None:
            order = self._context.counts.uncounted()
        if point is not None:
            point.validate(order, plan.cycle_length)
        cycle = CycleReading(
            length=min(plan.cycle_length, max(1, self._files)),
            share=partial(block_length, plan) if plan.shuffle and not plan.relaxed else _equal_share,
            ramp=_ramp(plan, order[: plan.cycle_length].tolist()) if point is None else {},
        )
        self.dispatcher = FileDispatcher(
            self._context,
            cycle,
            pass_id=pass_id,
            seed=job.seed,
            order=order,
            saved=point,
            early_ends=early_ends,
            checksums=None if plan.relaxed or self._counting else start.checksums,
        )
        self._begin_batches(plan, order, start)
        self.dispatcher.names_suffice = self.memory.names_suffice
        return self.dispatcher

    def _begin_batches(self, plan: PassPlan, order: npt.NDArray[np.int64], start: StreamState) -> None:
        """Make what cuts the batches of the pass of ``plan``, and the store of their rows."""
        assert self.dispatcher is not None
        point = start.point
        from_start = self._is_compared and not start.early_ends
        there = cached_rows(plan, self._cache) if from_start and not self._counting else None
        if self._counting:
            self._store = self.memory.open_pass()
            self._batcher = CountingBatcher(plan, self.dispatcher, self._store, order)
        elif there is None:
            self._store = self._new_store(plan)
            self._batcher = make_batcher(plan, self.dispatcher, self._store, order, point)
        else:
            self._store, listing = there
            if listing is None:
                self._batcher = make_batcher(plan, self.dispatcher, self._store, order, point)
            else:
                self.dispatcher.losses.taken = len(listing.row_ids)  # there is nothing that it would read
                self._batcher = CachedPassBatcher(plan, self.dispatcher, listing)

    def _new_store(self, plan: PassPlan) -> RowStore:
        """Return a store for rows that do not all lie in the cache."""
        cache = None if self._cache is None else self._cache.memory
        values_needed = self._cache is not None or plan.buckets is not None
        return self.memory.open_pass(
            None if cache is None else cache.row_store,
            values_needed=values_needed or plan.relaxed or not self.may_lose_rows,
        )

    @property
    def buckets(self) -> dict[str, Any]:
        """Buckets of this pass as plain data; {} without buckets, and before they are known."""
        if self._batcher is None or self._batcher.plan.buckets is None or not self.known_buckets:
            return {}
        return {**self.known_buckets, "group": self._batcher.plan.buckets.group_size}

    @property
    def early_ends(self) -> EarlyEnds:
        """Files of this pass that are known to end early, also those whose end no batch has met yet."""
        return {} if self.dispatcher is None else self.dispatcher.losses.early_ends

    def has_early_ends(self, early_ends: EarlyEnds) -> bool:
        """Return True if this pass has all of ``early_ends``."""
        known = self.early_ends
        return all(file in known and known[file][0] == y for file, (y, _) in early_ends.items())

    @property
    def run_again(self) -> tuple[int, int]:
        """Files, and samples of them, that are run again because the pass was taken up in its middle."""
        return (0, 0) if self._batcher is None else self._batcher.reread_counts

    @property
    def running(self) -> bool:
        """True while a pass is under way."""
        return self._batcher is not None

    @property
    def has_lost_rows(self) -> bool:
        """True if rows of this pass may be lost."""
        return self.memory.has_lost_rows

    @property
    def byte_limited(self) -> bool:
        """True if the pool of this pass was stopped by its limit in bytes."""
        return self._batcher is not None and self._batcher.byte_limited

    def leave(self) -> None:
        """End the pass, which is over or not wanted any more."""
        self._drop_cut_batches()
        if self._store is not None:
            self.memory.close_pass(self._store)
        self._batcher = None
        self._store = None
        if self.dispatcher is not None:
            self.dropped = self.dispatcher.losses.dropped
        self.dispatcher = None
        self.more = self.pool_over_limit = False

    def _drop_cut_batches(self) -> None:
        for ready in self._cut_batches:
            ready.rows.release()
        self._cut_batches, self._cut_bytes = [], 0

    def next_group(self, pulls: int = _PULLS_PER_CALL, room: float = inf) -> BatchGroup | PassEnded | PassBroken | None:
        """Return the next batches that go out together; None: nothing now. The order is decided here and nowhere else.

        Cuts ``pulls`` batches at most, and none once those of the group that is begun cost ``room`` bytes.

        With one rank a group is a batch. With ``last_batch`` "drop" or "pad" all ranks get equally many: what is left
        at the end of the pass is dropped, or made up with batches that are padding alone.
        """
        if self._batcher is None or self.dispatcher is None:
            return None
        if self._end is not None:
            return replace(self._end, samples=self.samples)
        self.more = self.pool_over_limit = False
        for pull in range(self._world - len(self._cut_batches)):
            self.more, self.pool_over_limit = pull == pulls, self._cut_bytes >= room
            if self.more or self.pool_over_limit:
                return None
            outcome = self._pull()
            if isinstance(outcome, CutBatch):
                self._cut_batches.append(outcome)
                self._cut_bytes += outcome.cost
                continue
            if isinstance(outcome, PassEnded):
                self._end = self._even_last_group(outcome)
            elif outcome is None or self.plan.last_batch != "keep":
                return outcome
            if not self._cut_batches:
                return outcome if self._end is None else replace(self._end, samples=self.samples)
            break
        batches, self._cut_batches, self._cut_bytes = self._cut_batches, [], 0
        for ready in batches:
            rows = len(ready.cut.row_ids) - ready.cut.padding
            self.samples += rows
            self.total_samples += rows
        self.batches += len(batches)
        self.total_batches += len(batches)
        met = self.dispatcher.losses.met
        if len(self._early_ends) != len(met):
            self._early_ends = by_file(met)
        last = batches[-1].cut
        if self.plan.buckets is not None:
            longest = [each.bucket["longest"] for each in batches]
            greatest = max(longest) if all(longest) else 0
            batches = [each._replace(bucket=each.bucket | {"group_longest": greatest}) for each in batches]
        behind = last.index + 1
        after = StreamState(
            self.pass_id,
            behind,
            [],
            self._early_ends,
            self._point(),
            self.dispatcher.logged_checksums(),
            self.buckets,
            (behind, last.tail_consumed),
        )
        return BatchGroup(batches, after, self.dispatcher.take_checksums_before())

    def _even_last_group(self, over: PassEnded) -> PassEnded:
        """End the pass where the last batches are not one for each rank."""
        missing = self._world - len(self._cut_batches)
        if not self._cut_batches or self.plan.last_batch == "keep":
            return over
        if self.plan.last_batch == "drop":
            missing = -len(self._cut_batches)
            self._drop_cut_batches()
        else:
            first, last = self._cut_batches[0], self._cut_batches[-1].cut
            rows = first.cut.row_ids
            self._cut_batches += [
                CutBatch.of(
                    BatchCut(last.index + 1 + i, rows, 0, 0, len(rows), last.tail_consumed),
                    first.rows.retain(),
                    first.bucket,
                )
                for i in range(missing)
            ]
        return replace(over, batches=over.batches + missing)

    def _pull(self) -> CutBatch | PassEnded | PassBroken | None:
        assert self._batcher is not None
        assert self._store is not None
        assert self.dispatcher is not None
        outcome = self._next_outcome()
        while isinstance(outcome, BatchCut) and (
            outcome.index < self._skip_to or outcome.index in self._acknowledged_ahead
        ):
            # Its batch was used before the state was saved.
            self._store.release_later(outcome.row_ids[: len(outcome.row_ids) - outcome.padding])
            outcome = self._next_outcome()
        match outcome:
            case BlockedOnFile(file, need, missing):
                self.dispatcher.want(file, need, missing)
                return None
            case BatchCut():
                picked = BatchRows(self._store, outcome.row_ids, outcome.padding, outcome.nbytes)
                if self.plan.buckets is not None:
                    self.padding.add(picked.lengths(self.plan.buckets.slot))
                return CutBatch.of(outcome, picked, self._bucket(outcome))
            case PassDone(batches) if batches < self._skip_to and self.plan.last_batch != "pad":
                return PassBroken(
                    NotRepeatable(
                        f"pass {self.pass_id} has {batches} batches, but {self._skip_to} were delivered when the state "
                        "was saved: the files do not give the same samples any more; bring back the files of then, or "
                        f"begin with set_epoch({self.pass_id}) in place of the state"
                    )
                )
            case PassDone(batches):
                counts = self._context.counts
                uniform = not self.schema.weighted or (counts is not None and counts.is_plain)
                batches = max(batches, self._skip_to)  # a state counts batches that were padding alone, too
                losses = self.dispatcher.losses
                # A pass that counts reads only some of the files, or none.
                is_empty = not (self._counting or batches or losses.taken or losses.dropped)
                return PassEnded(batches, self.samples, losses.dropped, uniform, is_empty)
            case PassFailed(error):
                return PassBroken(error)

    def _next_outcome(self) -> BatchCut | BlockedOnFile | PassFailed | PassDone:
        """Return what comes next in the stream. Before the first batch that is delivered, all files are compared of
        which the state has a checksum and that the merge has come to."""
        assert self._batcher is not None
        assert self.dispatcher is not None
        if self._is_compared:
            return self._batcher.next()
        outcome = self._batcher.next() if self._batcher.batch_index < self._skip_to else None
        if isinstance(outcome, BatchCut | BlockedOnFile):
            return outcome
        found = self.dispatcher.next_to_compare()  # its error says more than that of a pass which is another one
        if isinstance(found, FileFailure):
            return PassFailed(found.error)
        if outcome is not None:
            return outcome
        if found is not None:
            return BlockedOnFile(*found)
        self._is_compared = True
        return self._batcher.next()

    def _bucket(self, cut: BatchCut) -> dict[str, Any]:
        """Return where ``cut`` came from, and what the buckets of this pass are; {} without buckets."""
        if self._batcher is None or self._batcher.plan.buckets is None:
            return {}
        bounds = list(self._batcher.pool.bounds or ())
        self.known_buckets = {"bounds": bounds}
        return {"longest": cut.bucket_bound, "bounds": bounds, "group": self._batcher.plan.buckets.group_size}

    def padding_figures(self) -> dict[str, Any]:
        """Return how much padding the batches of this pass would have; {} without buckets."""
        return (
            {} if self.plan.buckets is None else self.padding.figures(self.schema.slots.label(self.plan.buckets.slot))
        )

    def describe_padding(self) -> str:
        """Return the same as a line for the log, at the end of a pass; empty without buckets."""
        if self._batcher is None or self.plan.buckets is None:
            return ""
        padding = self.padding.describe(self.schema.slots.label(self.plan.buckets.slot), self._batcher.pool.bounds)
        return f"pass {self.pass_id}: {padding}"

    def _point(self) -> SnapshotPoint | None:
        return self._batcher.snapshot if self._batcher is not None and self.plan.order == "strict" else None

    def pool_figures(self) -> dict[str, Any]:
        """Return the pool as plain numbers."""
        if self._batcher is None or self._store is None:
            return {"samples": 0, "weight": 0, "bytes": 0, "memory": 0}
        pool = self._batcher.pool
        return {"samples": len(pool), "weight": pool.weight, "bytes": pool.bytes, "memory": self._store.held_bytes}

    def fill_figures(self) -> dict[str, Any] | None:
        """Return what the next batch of the pass under way waits for, as plain data: the weight up to which the pool is
        filled, None for all samples; None if there is no pass."""
        batcher = self._batcher
        if batcher is None:
            return None
        plan, level = batcher.plan, batcher.fill_level
        return {
            "weight": None if level >= UNBOUNDED else level,
            "pool_bytes": plan.pool_bytes,
            "waits_for_all": plan.wait_for_all,
            "is_full": batcher.is_full,
            "file": batcher.merge.current_label if batcher.merge.cycle else "",
        }


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
