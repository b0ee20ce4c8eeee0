"""Give the passes of a job whose rows are mixed or packed (docs/mixing.md): one stream for all ranks.

The stages of the job (:mod:`pydp2.server.jobs.stages`) decide the order; here their batches become those of a job, as
any other has them, so ranks, credit, leases, snapshots and states need no rule of their own. The point of a state is
the mark of the last stage, as bytes in the place of the pool. What was delivered since the point is made again, and
dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pydp2.data.columns.checksum_log import NO_CHECKSUMS, LoggedChecksums
from pydp2.data.columns.columns import Ints
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import Error, OptionError
from pydp2.order.balance import balanced
from pydp2.order.batcher import BatchCut
from pydp2.order.mixture import WeightSchedule
from pydp2.order.snapshot import SnapshotPoint, decode_marks, encode_marks
from pydp2.order.stream_state import StreamState
from pydp2.protocol.early_ends import EarlyEnds
from pydp2.protocol.exact_weights import Shares, shares_of
from pydp2.protocol.stream_identity import check_int, damaged
from pydp2.server.jobs.groups import BatchGroup, CutBatch, GroupedPass, JobPasses, PassBroken, PassEnded, PassShare
from pydp2.server.jobs.plan import JobPlan
from pydp2.server.jobs.stages import FilesStage, RowBlock, RowStage, StageFailed

_LEAST_BETWEEN_POINTS = 1024  # samples


class _Steps(NamedTuple):
    """Count of steps: batch ``batch`` is the first of ``step``, and a step has ``world`` batches."""

    batch: int
    step: int
    world: int

    def of(self, batch: int) -> int:
        """Return the step of ``batch``."""
        return self.step + (batch - self.batch) // self.world


class DerivedJob(JobPasses):
    """Passes over the rows of ``stage``, with ``schema``. ``schedule``: the weights of a mixture, None: it is none."""

    def __init__(
        self,
        plan: JobPlan,
        schema: Schema,
        stage: RowStage[Any],
        memory: PoolMemory,
        schedule: WeightSchedule | None = None,
    ) -> None:
        super().__init__(plan, schema, memory)
        self.stage = stage
        self.schedule = schedule
        self.sources: list[FilesStage] = list(stage.files())
        self.current: DerivedPass | None = None

    def open(self, start: StreamState, world: int = 1) -> DerivedPass:
        follows = not start.batch and start.pass_id == self.pass_id + 1
        self.begin_pass(start)
        self._load_weights(start.buckets.get("weights", []), keep=follows)
        plain = None if start.point is None else decode_marks(start.point.pool)
        try:
            mark = self.stage.first_mark(start.pass_id) if plain is None else self.stage.from_plain(plain["mark"])
            steps = _Steps(0, 0, world) if plain is None else _Steps(*map(check_int, plain["steps"]))
            if steps.world < 1 or steps.batch > start.batch:  # rebuild() begins at any batch of a step
                raise ValueError("its steps and its batch do not agree")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise damaged("point", error) from None
        checksums = start.checksums.by_file()
        for source in self.sources:
            source.learn(start.early_ends, checksums)
        self.stage.open(mark)
        self.current = DerivedPass(self, start, world, steps)
        return self.current

    # -- weights -------------------------------------------------------------------------------------------------------
    def _load_weights(self, changes: Any, *, keep: bool) -> None:
        """Let the weights change as a state says. ``keep``: the pass before has ended, so changes that trainers have
        not been told of hold, too."""
        if self.schedule is None:
            return
        try:
            loaded = {(check_int(pass_id), check_int(step)): shares_of(weights) for pass_id, step, weights in changes}
            if keep:
                loaded |= {(pass_id, step): weights for pass_id, step, weights in self.schedule.changes}
            self.schedule.changes = [(*place, loaded[place]) for place in sorted(loaded)]
            if any(len(weights) != len(self.sources) for *_, weights in self.schedule.changes):
                raise ValueError("its weights are not those of the sources")
        except (TypeError, ValueError) as error:
            raise damaged("weights", error) from None
        self._note_weights()

    def set_weights(self, weights: Shares) -> tuple[int, int]:
        """Let ``weights`` hold from the first step on that is not begun. Return its pass and its number in the pass.
        Raises OptionError if all are 0."""
        assert self.schedule is not None
        if not any(weights):
            raise OptionError("set_weights() needs at least one weight above 0")
        place = (self.pass_id + 1, 0) if self.current is None else (self.pass_id, self.current.next_step)
        self.schedule.change(*place, weights)
        self._note_weights()
        return place

    def _note_weights(self) -> None:
        """Let states contain the changes of the weights."""
        assert self.schedule is not None
        if changes := self.schedule.changes:
            texts = [[pass_id, step, [str(share) for share in shares]] for pass_id, step, shares in changes]
            self.known_buckets = {"weights": texts}
        else:
            self.known_buckets = {}

    # -- figures -------------------------------------------------------------------------------------------------------
    def share(self) -> PassShare | None:
        return self.stage.share()

    def stats(self) -> dict[str, Any]:
        streams = [source.stream.stats() for source in self.sources]

        def total(name: str) -> dict[str, Any]:
            return {key: sum(stats[name][key] for stats in streams) for key in streams[0][name]}

        return {
            **self.totals(),
            **{name: sum(stats[name] for stats in streams) for name in ("dropped", "blocked", "ended_early")},
            **{name: total(name) for name in ("pool", "read_ahead", "run_again")},
            "padding": {},
            "fill": next((stats["fill"] for stats in streams if stats["fill"] and not stats["fill"]["is_full"]), None),
            **self.stage.stats(),
        }


class DerivedPass(GroupedPass):
    """Batches of one pass of ``job``, whose stages are open at the point of ``start``. ``steps``: count of the steps
    from the point on."""

    def __init__(self, job: DerivedJob, start: StreamState, world: int, steps: _Steps) -> None:
        super().__init__(job, start, world, job.plan.last_batch)
        self.job: DerivedJob
        self._stage, self._rows = job.stage, job.plan.batch_size
        self._point = start.point
        self._before, self._steps = steps, _Steps(start.batch, steps.of(start.batch), world)
        self._index = steps.batch  # of the batch that is pulled next
        self._store = job.memory.open_pass()
        self._logged = start.checksums  # of files that were read since the point
        self._costs: list[Ints | None] = []  # of the rows of the batches of the group that is begun
        self._note_point()

    def _note_point(self) -> None:
        """Note the numbers that say when the next point is due."""
        self._taken, self._opened = self._progress()

    def _progress(self) -> tuple[int, int]:
        """Return the number of samples that were taken, and of passes of sources that were begun."""
        return sum(source.taken for source in self.job.sources), sum(source.opened for source in self.job.sources)

    @property
    def next_step(self) -> int:
        """Number of the first step of which nothing was drawn."""
        return self._steps.of(max(self._index, self._steps.batch)) + 1

    # -- batches -------------------------------------------------------------------------------------------------------
    def _pull(self) -> CutBatch | PassEnded | PassBroken | None:
        while True:
            steps = self._before if self._index < self._skip_to else self._steps
            self._stage.begin_step(steps.of(self._index))
            try:
                block = self._stage.pull()
            except StageFailed as failed:
                return failed.broken
            except Error as error:
                return PassBroken(error)
            if block is None:
                return None
            if not isinstance(block, RowBlock):
                return self._check_length(self._index) or self._ended()
            if block.size < self._rows and self._last_batch == "drop":
                continue
            self._index += 1
            if not self._is_used(self._index - 1):
                return self._cut(block)

    def _cut(self, block: RowBlock) -> CutBatch:
        """Return the next batch, which has the rows of ``block``."""
        nbytes = block.columns.nbytes
        ids, rows, origins = self._store.append(block.columns), block.columns.rows, block.origins
        missing = max(0, self._rows - block.size) if self._last_batch == "pad" and rows else 0
        if missing:
            ids = np.resize(ids, rows + missing)
            origins = origins[:, np.arange(rows + missing) % rows] if origins.size else origins
        cut = BatchCut(
            self._index - 1,
            ids,
            block.size,
            block.pool_weight,
            missing,
            nbytes=nbytes,
            origins=np.ascontiguousarray(origins.T) if origins.size else None,
        )
        self._costs.append(block.costs)
        return CutBatch.of(cut, BatchRows(self._store, ids, missing, nbytes), dict(self.job.known_buckets))

    def _ended(self) -> PassEnded:
        batches = max(self._index, self._skip_to)
        dropped = sum(source.dropped_in_pass for source in self.job.sources)
        return PassEnded(batches, self.job.samples, dropped, uniform=False, is_empty=not (batches or dropped))

    def _group_behind(self, batches: list[CutBatch]) -> BatchGroup:
        costs, self._costs = self._costs, []
        if self.job.plan.balance and len(costs) == self._world:
            batches = _dealt(batches, costs)
        behind = batches[-1].cut.index + 1
        records, before = b"".join(source.take_checksums() for source in self.job.sources), NO_CHECKSUMS
        self._logged = self._logged.extended(records)
        if self._is_point_due():
            before, self._logged = self._logged, LoggedChecksums()
            self._take_point()
        after = StreamState(
            self._pass_id,
            behind,
            self._used_from(behind),
            self.early_ends,
            self._point,
            self._logged,
            dict(self.job.known_buckets),
        )
        return BatchGroup(batches, after, before)

    # -- points --------------------------------------------------------------------------------------------------------
    def _is_point_due(self) -> bool:
        taken, opened = self._progress()
        pools = sum(source.pool_samples for source in self.job.sources)
        # A point says how many ranks there were, for the count of steps from it on.
        is_other_world = self._point is None or self._before.world != self._world
        return taken - self._taken >= max(_LEAST_BETWEEN_POINTS, pools // 4) or opened != self._opened or is_other_world

    def _take_point(self) -> None:
        self._note_point()
        self._before = _Steps(self._index, self._steps.of(self._index), self._world)
        plain = {"mark": self._stage.to_plain(self._stage.mark), "steps": list(self._before)}
        self._point = SnapshotPoint(self._index, encode_marks(plain), False, 0, 0, 0, 0, [], 0, 0)

    # -- what is known -------------------------------------------------------------------------------------------------
    @property
    def early_ends(self) -> EarlyEnds:
        return {file: end for source in self.job.sources for file, end in source.early_ends.items()}

    @property
    def byte_limited(self) -> bool:
        return any(
            source.stream.current is not None and source.stream.current.byte_limited for source in self.job.sources
        )

    def describe_start(self) -> str:
        if not self._skip_to:
            return ""
        files = samples = 0
        for source in self.job.sources:
            again = source.stream.stats()["run_again"]
            files, samples = files + again["files"], samples + again["samples"]
        return (
            f"pass {self._pass_id} is taken up at batch {self._skip_to}: {files} files are run again, {samples} "
            "samples of them a second time"
        )

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        super().close()
        self._stage.close()
        self.job.memory.close_pass(self._store)


def _dealt(batches: Sequence[CutBatch], costs: Sequence[Ints | None]) -> list[CutBatch]:
    """Return the batches of one step with their rows dealt so that all cost about the same; as they are if they are not
    all full, or have no costs."""
    rows = len(batches[0].cut.row_ids)
    if any(cost is None or len(cost) != rows for cost in costs) or any(batch.cut.padding for batch in batches):
        return list(batches)
    rank_of = balanced(np.concatenate([cost for cost in costs if cost is not None]), len(batches))
    ids = np.concatenate([batch.cut.row_ids for batch in batches])
    nbytes = sum(batch.rows.nbytes for batch in batches) // len(batches)
    dealt = []
    for rank, batch in enumerate(batches):
        mine = ids[rank_of == rank]
        cut = replace(batch.cut, row_ids=mine, nbytes=nbytes)
        dealt.append(CutBatch.of(cut, BatchRows(batch.rows.store, mine, 0, nbytes), batch.bucket))
    return dealt
