"""A service in one thread: the real coordinator, job, reading, ledger, stream and the real workers' loop, between them
messages that a seeded scheduler delivers when it likes.

What is simulated is the world alone: processes that start late, clocks, messages under way, kills at any moment,
trainers that take batches when they want, or never again. Every message is encoded and decoded as on the wire.
"""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

import numpy as np

from pydp2.data.columns.columns import Columns
from pydp2.data.rowstore.cells import CellRows, CellStore
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.rowstore.region import RegionLayout
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.data.schema.provider_schema import Schema
from pydp2.host.worker import chunk_builder
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import BUCKET_OF_BATCH
from pydp2.protocol.file_ranges import DROPPED_COST, SAMPLE_COST
from pydp2.server.actions import Fatal, Log, Loss, Send, Spawn, WorkerGone, WorkerReady
from pydp2.server.cache.memory import MemoryCache
from pydp2.server.dispatch.blocked_samples import BlockedSamples
from pydp2.server.dispatch.cache_fill import CacheFill
from pydp2.server.dispatch.file_dispatcher import ReadContext
from pydp2.server.jobs.groups import BatchGroup, CutBatch, PassBroken, PassEnded
from pydp2.server.jobs.pass_stream import JobStream, PassStream
from pydp2.server.jobs.plan import JobPlan
from pydp2.server.workers.chunk_decoder import decode_chunk
from pydp2.server.workers.worker_pool import WorkerPool

from .cases import CHANGED, Case, Change, Outcome, Sample, ScriptedWorld, sample_bytes
from .states import check_file_states, check_worker_states
from .workers import Worker

STEPS = 400_000


class Stuck(AssertionError):
    """Nobody can move, or for too long nobody came to an end."""


class Trainer:
    """One job and who reads it: it takes batches when the scheduler lets it, leaves passes, goes back, sleeps, ends."""

    def __init__(self, world: World, number: int, plan: JobPlan) -> None:
        self.world, self.number, self.plan = world, number, plan
        case = world.case
        self.leaves = case.leaves
        self.rewinds = case.rewinds
        self.credit = self.delivered = 0
        self.points: list[StreamState] = []  # the state behind each batch
        self.merged: list[dict[int, int]] = []  # before each batch, how far the merge had come in each file
        self.early_ends: dict[int, set[int]] = {}  # files that ended early before a batch, when it was cut first
        self.buckets: dict[str, Any] = {}  # what the trainer knows of them
        self.outcomes: list[Outcome] = []
        self.passes = case.passes
        self.over = False
        self.asleep = False
        self.sleeps_after = world.random.randint(0, 40) if number in case.sleepers else None  # batches
        self.ends_after = world.random.randint(0, 40) if number in case.quitters else None
        self.job = self._new_job()

    def _new_job(self) -> JobStream:
        world, case = self.world, self.world.case
        return JobStream(
            self.plan, Schema.from_wire(world.declaration.to_wire()),
            ReadContext(
                label=lambda file: f"{file}@{self.number}", budget=case.budget, workers=case.workers,
                skip_errors=case.skip, cache=world.cache, error_budget=case.error_budget,
                blocked=BlockedSamples(case.block_list, str) if case.blocked else None,
            ),
            files=range(len(case.files)), memory=PoolMemory(world.declaration.slots, world.cells),
        )  # fmt: skip

    @property
    def outcome(self) -> Outcome:
        return self.outcomes[-1]

    def begin(self, pass_id: int) -> None:
        """Pass ``pass_id``, from its start."""
        world = self.world
        files = range(len(world.names))
        cache = None if world.cache is None else world.cache.memory
        cached = frozenset(file for file in files if cache is not None and cache.has(file))
        outcome = Outcome(pass_id, cached=cached)
        self.outcomes.append(outcome)
        if self.plan.buckets is not None:
            self.buckets = {**self.buckets, "group": self.plan.buckets.group_size}
        self.points, self.early_ends = [StreamState(pass_id, buckets=dict(self.buckets))], {}
        self.merged = [{}]
        outcome.bounds = tuple(self.buckets["bounds"]) if "bounds" in self.buckets else None
        self._read(self.job.open(self.points[0]))

    def _read(self, stream: PassStream) -> None:
        self.stream, self.reading = stream, stream.dispatcher
        self.credit, self.delivered = self.world.random.randint(1, 3), 0
        self.world.coordinator.begin_pass(self.reading, f"job {self.number}")

    def leave(self) -> None:
        self.job.close()
        self.world.do(self.world.coordinator.end_pass(self.reading))

    def act(self) -> None:
        """What a trainer does at times beside reading."""
        random, done = self.world.random, len(self.outcome.batches)
        if self.over:
            return
        if self.ends_after is not None and done >= self.ends_after:
            self.leave()
            self.over = True
        elif self.sleeps_after is not None and done >= self.sleeps_after:
            self.asleep, self.sleeps_after = True, None
        elif self.leaves and random.random() < 0.002:
            self.leaves -= 1
            self.leave()
            pass_id = self.outcome.pass_id + 1
            if random.random() < 0.5:
                self.job = self._new_job()  # another trainer: its passes have the same numbers again
                self.buckets = {}
                pass_id = 0
            self.begin(pass_id)
        elif self.rewinds and random.random() < (0.05 if self.world.case.change and done else 0.01):
            self.rewinds -= 1
            self._rewind()

    def _rewind(self) -> None:
        """Back to where some batch was delivered, as a trainer's checkpoint may want it, with a new trainer.
        The service may know more early ends than those before that batch: other ranks were told."""
        outcome = self.outcome
        batch = self.world.random.randrange(len(self.points))
        state = self.points[batch]
        self.buckets = state.buckets
        state = StreamState.from_dict(state.to_dict(), files=len(self.world.case.files))
        if self.world.random.random() < 0.5:
            state.early_ends = self.points[-1].early_ends
        self.early_ends |= {index: {*at.early_ends} for index, at in enumerate(self.points)}
        if self.world.case.change:
            self._change(batch)
        del self.merged[batch + 1 :]
        del self.points[batch + 1 :]
        outcome.cut(batch)
        self.leave()
        self.job = self._new_job()
        self._read(self.job.open(state))

    def _change(self, batch: int) -> None:
        """Change a file, mostly one of which the merge had taken samples before ``batch``."""
        world, merged = self.world, self.merged[batch]
        random, files = world.random, world.case.files
        file = random.choice([*merged]) if merged and random.random() < 0.9 else random.randrange(len(files))
        count, reached = len(files[file].items), merged.get(file, -1)
        y = random.randint(0, count)
        if reached > 0 and random.random() < 0.8:
            y = random.randrange(min(reached, count + 1))
        if world.case.change == "longer":
            y = count
        self.world.change = Change(file, y, y < reached)

    def _reached(self) -> dict[int, int]:
        """How far the merge has come in each file; beyond its end in one that it has left."""
        merge = self.stream._batcher.merge
        far = dict.fromkeys(merge.file_order[: merge.next_file].tolist(), 1 << 30)
        return far | {file.file: self.reading.ledgers[file.file].next_index for file in merge.cycle}

    def take(self) -> None:
        """It uses batches and asks for as many more."""
        count = self.world.random.randint(1, self.delivered)
        self.delivered -= count
        self.credit += count

    def rounds(self) -> None:
        """It is sent what it has asked for, and a pass that is over is followed by the next."""
        outcome = self.outcome
        while not self.over and not outcome.is_complete and self.credit:
            match self.stream.next_group():
                case None:
                    return
                case BatchGroup([CutBatch(cut, picked, bucket)], after, _):
                    self.credit -= 1
                    sample = picked.columns().arrays
                    picked.release()
                    files, ys = sample[0][0].tolist(), sample[1][0].tolist()
                    assert cut.origins is not None
                    assert cut.origins.T.tolist() == [[*files], [y % CHANGED for y in ys]]
                    outcome.batches.append(list(zip(files, ys, strict=True)))
                    outcome.pool_weights.append(cut.pool_weight)
                    outcome.paddings.append(cut.padding)
                    self.delivered += 1
                    self.buckets = {k: v for k, v in bucket.items() if k not in BUCKET_OF_BATCH}
                    assert after.buckets == self.buckets
                    self._keep(after)
                    self.world.check()
                case PassEnded(_, _, dropped, _):
                    outcome.dropped = dropped
                    outcome.is_complete = True
                case PassBroken(error):
                    outcome.error = error
                    outcome.is_complete = True
        if outcome.is_complete and not self.over:
            self.leave()
            outcome.early_ends = [(file, *early_end) for file, early_end in self.stream.losses.early_ends.items()]
            self.over = sum(outcome.is_complete for outcome in self.outcomes) >= self.passes
            if not self.over:
                self.begin(outcome.pass_id + 1)

    def _keep(self, state: StreamState) -> None:
        """What the trainer's state would be after this batch."""
        self.points.append(state)
        self.merged.append(self._reached() if self.world.case.change else {})
        index = len(self.points) - 1
        if self.world.change is not None and not self.world.change.merged:
            return
        assert self.early_ends.get(index, state.early_ends.keys()) == state.early_ends.keys(), (
            "as when it was cut first"
        )


def encoded(frames: list[Any]) -> list[bytes]:
    return [bytes(f) if isinstance(f, bytes) else np.ascontiguousarray(f).tobytes() for f in frames]


class _Cells(CellStore):
    """Cells for rows of any size: a dict says which row lies where."""

    def __init__(self, schema: Schema) -> None:
        layout = RegionLayout(Slots((integer_value(9),)), 68 << 16, movable=True)
        super().__init__(layout, bytearray(layout.size))
        self.slots = schema.slots
        self._columns_of: dict[int, Columns] = {}

    def put(self, cells: Any, columns: Columns) -> None:
        self._columns_of |= {cell: columns.take([row]) for row, cell in enumerate(cells.tolist())}

    def append(self, columns: Any) -> Any:
        if isinstance(columns, CellRows):
            return columns.claim()
        cells = self._new_rows(columns.rows)
        self.put(cells, columns)
        self._ids.live[cells] = True
        return cells

    def take(self, ids: Any) -> Columns:
        return Columns.concat([Columns.empty(self.slots), *(self._columns_of[cell] for cell in ids.tolist())])

    def sources(self, ids: Any) -> Any:
        return [(array, np.arange(len(array))) for arrays in self.take(ids).arrays for array in arrays]


class World(ScriptedWorld):
    """Everything around the pure core. In some worlds rows lie in cells, as far as the server is concerned."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, Random(case.seed))
        self.coordinator = WorkerPool(case.workers)
        self.workers: dict[int, Worker] = {}
        self.starting: list[tuple[int, int]] = []
        self.sent: dict[int, deque[list[bytes]]] = {}  # by workers, and not delivered
        self.late: deque[tuple[int, list[bytes]]] = deque()  # what killed workers had sent
        self.opened: Counter[tuple[int, int]] = Counter()  # runs of process by number of the pass begun, and file
        self.logs: list[Log] = []
        self.steps = 0
        self.most_open = 0
        largest = max((item.values for s in case.files for item in s.items if isinstance(item, Sample)), default=0)
        self.largest = sample_bytes(largest) + SAMPLE_COST
        self.declaration = self.provider(None).schema
        self.cache = (
            None if case.cache_limit is None else CacheFill(MemoryCache(case.cache_limit, block_list=case.block_list))
        )
        plans = (case.plan, *case.others)
        placed = self.cache is None and not any(plan.buckets for plan in plans) and Random(case.seed).random() < 0.5
        self.cells = _Cells(self.declaration) if placed else None
        self.trainers = [Trainer(self, number, plan) for number, plan in enumerate(plans)]

    def note_opened(self, file: int) -> None:
        self.opened[len(self.trainers[0].outcomes) - 1, file] += 1

    # -- the scheduler -------------------------------------------------------------------------------------------------
    def run(self) -> list[Outcome]:
        """All passes; what came of each of the first trainer's."""
        try:
            self.do(self.coordinator.start())
            for trainer in self.trainers:
                trainer.begin(0)
            while not all(trainer.over for trainer in self.trainers):
                self._turn()
            if self.cells is not None:
                assert len(self.cells) == 0  # every row that came is given back
            return self.trainers[0].outcomes
        finally:
            for worker in self.workers.values():
                worker.close()

    def _turn(self) -> None:
        self.steps += 1
        if self.steps > STEPS:
            raise Stuck(f"no end after {STEPS} steps")
        for trainer in self.trainers:
            trainer.act()
        if all(trainer.over or trainer.asleep for trainer in self.trainers):
            for trainer in self.trainers:  # all others are through, whatever those who sleep have kept: they wake up
                trainer.asleep = False
        self.do(self.coordinator.dispatch(self.steps / 100))
        self._event()
        for trainer in self.trainers:
            trainer.rounds()
        self.do(self.coordinator.dispatch(self.steps / 100))
        self.check()

    def _event(self) -> None:
        """One thing happens."""
        random = self.random
        able: list[Any] = [(self._deliver, w) for w in self.workers.values() if self.sent[w.number]]
        able += [(self._work, w) for w in self.workers.values() if w.inbox or not w.idle]
        able += [(Trainer.take, t) for t in self.trainers if t.delivered and not t.asleep and not t.over]
        if self.starting and (not self.case.slow_starts or random.random() < 0.05 or not able):
            able.append((self._started, None))
        if not able:
            if all(trainer.over for trainer in self.trainers):
                return
            raise Stuck("nobody can move")
        if self.late and random.random() < 0.2:
            self._chunk(*self.late.popleft())
        if self.kills and self.workers and random.random() < 0.01:
            self.kills -= 1
            self._bury(random.choice(list(self.workers.values())))
            return
        act, argument = random.choice(able)
        act(argument)

    def _work(self, worker: Worker) -> None:
        worker.step(self.random.choice([1, 1, 2, 5, 30]))
        self.most_open = max(self.most_open, sum(w.open for w in self.workers.values()))
        if worker.wire.dead:
            self._bury(worker)

    def _deliver(self, worker: Worker) -> None:
        self._chunk(worker.number, self.sent[worker.number].popleft())

    def _started(self, _: None) -> None:
        number, status_row = self.starting.pop(0)
        if 1 <= number <= self.case.hung_starts:
            return
        sent = self.sent[number] = deque()
        self.workers[number] = Worker(self, number, status_row, lambda frames: sent.append(encoded(frames)))
        self.do(self.coordinator.handle(WorkerReady(number, self.declaration.to_wire())))

    def _bury(self, worker: Worker) -> None:
        """``worker`` is dead. Of what it had sent, some comes before the news, the rest after."""
        if not worker.wire.dead:
            worker.die()
        del self.workers[worker.number]
        sent = self.sent.pop(worker.number)
        for _ in range(self.random.choice([0, len(sent), self.random.randint(0, len(sent))])):
            self._chunk(worker.number, sent.popleft())
        self.late.extend((worker.number, frames) for frames in sent)
        self.do(self.coordinator.handle(WorkerGone(worker.number, worker.killed_while, "was killed")))
        worker.close()

    # -- what the server's loop does -----------------------------------------------------------------------------------
    def _chunk(self, number: int, frames: list[bytes]) -> None:
        message, body = m.decode(frames)
        worker_pool = self.coordinator
        if isinstance(message, m.ReturnFiles):
            worker_pool.return_files(number, message.attempts)
            return
        assert isinstance(message, m.Chunk)
        placed: CellRows | None = None
        for part, run in decode_chunk(
            message, [memoryview(f) for f in body], self.declaration, worker_pool.wanted_samples
        ):
            if self.cells is not None and run is not None:
                if placed is None:
                    granted = self.cells.grant(number, run.columns.rows)
                    self.cells.put(granted, run.columns)
                    placed = self.cells.accept_filled(number, granted)
                run.columns = placed
            worker_pool.commit(number, part, run)
        for item in message.blocked:
            worker_pool.worker_blocked(number, *item)

    def do(self, actions: Any) -> None:
        for action in actions:
            match action:
                case Send(number, message, frames):
                    worker = self.workers.get(number)
                    if worker is not None:
                        worker.inbox.append([m.encode(message), *(memoryview(f).cast("B") for f in frames)])
                case Spawn(number, status_row):
                    self.starting.append((number, status_row))
                case Log():
                    self.logs.append(action)
                case Loss():
                    file, _, trainer = action.file.partition("@")
                    losses = self.trainers[int(trainer)].outcome.losses
                    if (found := (int(file), action.y)) not in losses:
                        losses.append(found)
                case Fatal(error):
                    raise error

    def check(self) -> None:
        """What holds at every moment."""
        case, jobs = self.case, len(self.trainers)
        twice = 2 if case.rewinds else 1  # what brings back a pool is bound too
        cycle_length = [trainer.plan.interleave * twice for trainer in self.trainers]
        # each merge may ask for one file beyond that which is another one's, over a cache
        most = (
            sum(cycle_length) + jobs * max(case.workers, 4) + (jobs - 1) * sum(cycle_length) * (self.cache is not None)
        )
        assert self.most_open <= most, f"{self.most_open} generators are open"
        allowed = 0.0
        check_worker_states(self.coordinator)
        for number, (trainer, many) in enumerate(zip(self.trainers, cycle_length, strict=True), 1):
            reading = trainer.reading if trainer.job.current is not None else None
            if reading is not None:
                check_file_states(reading)
            # A dropped sample is known to be one only when it is there, at worst when its chunk is judged.
            entries = [] if reading is None else [entry for entry in reading.ledgers.values() if not entry.in_cache]
            slack = DROPPED_COST * sum(len(entry.dropped) for entry in entries)
            most_rows = chunk_builder.MAX_ROWS * (1 + 2 + case.kills)  # once for every attempt
            if jobs == 1 and reading is not None:
                assert all(DROPPED_COST * (len(e.dropped) - most_rows) <= reading.credit.share for e in entries)
            over = self.largest * (
                many if trainer.plan.order == "relaxed" else 1
            )  # relaxed waits for all files of the cycle at once
            if reading is not None:
                assert reading.credit.used <= case.budget + over + slack, f"{reading.credit.used} bytes are in use"
            # what was read before another job came is not thrown away
            allowed += max(case.budget / number, 2 * many) + over + slack
        used = sum(trainer.reading.credit.used for trainer in self.trainers if trainer.job.current is not None)
        assert used <= allowed, f"{used} bytes are in use by all jobs"
