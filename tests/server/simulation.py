"""A service in one thread: the real coordinator, job, reading, ledger, stream and the real workers' loop, between them
messages that a seeded scheduler delivers when it likes.

What is simulated is the world alone: processes that start late, clocks, messages under way, kills at any moment,
trainers that take batches when they want, or never again. Every message is encoded and decoded as on the wire.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from pydp2 import CacheType, provider
from pydp2.data.columns.columns import Columns
from pydp2.data.rowstore.cells import CellRows, CellStore
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.rowstore.region import RegionLayout
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import BudgetExceeded, Error, FileCondemned, SampleTooLarge
from pydp2.host.worker import chunk_builder
from pydp2.host.worker.loop import LoopOptions, WorkerLoop
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import BUCKET_OF_BATCH
from pydp2.protocol.file_ranges import DROPPED_COST, SAMPLE_COST
from pydp2.protocol.link_states import LinkRole, LinkState, worker_link
from pydp2.protocol.worker_status import FILE, WorkerStatus
from pydp2.server.actions import Fatal, Log, Loss, Send, Spawn, WorkerGone, WorkerReady
from pydp2.server.cache.memory import MemoryCache
from pydp2.server.dispatch.cache_fill import CacheFill
from pydp2.server.dispatch.file_dispatcher import ReadContext
from pydp2.server.jobs.pass_stream import BatchGroup, CutBatch, JobStream, PassBroken, PassEnded, PassStream
from pydp2.server.jobs.plan import JobPlan
from pydp2.server.workers.chunk_decoder import decode_chunk
from pydp2.server.workers.worker_pool import WorkerPool

from .cases import TYPES, Bad, Case, Sample, Script, sample_bytes, weight
from .states import check_file_states, check_worker_states

STEPS = 400_000
CHANGED = 1 << 15
"""What is added to a sample that changes."""


class Stuck(AssertionError):
    """Nobody can move, or for too long nobody came to an end."""


@dataclass(frozen=True)
class Change:
    """Change of a ``file``, from sample ``y`` on. ``merged``: the merge had met this at the state that is loaded."""

    file: int
    y: int
    merged: bool


@dataclass
class Outcome:
    """What the trainer saw of one pass."""

    pass_id: int
    batches: list[list[tuple[int, int]]] = field(default_factory=list)
    pool_weights: list[int] = field(default_factory=list)
    padding: int = 0
    error: Error | None = None
    dropped: int = 0
    early_ends: list[tuple[int, int, str]] = field(default_factory=list)
    losses: list[tuple[int, int]] = field(default_factory=list)  # each when it was first told
    whole: bool = False  # it came to its end
    cached: frozenset[int] = frozenset()  # files that the cache had when it began
    bounds: tuple[int, ...] | None = None  # of buckets, known when it began


class _Pause(BaseException):
    """The scheduler takes over. No Exception, so that nobody on the way mistakes it for one."""


class _Wire:
    """A worker's end of the line; what a dead worker sends goes nowhere."""

    def __init__(self) -> None:
        self.sent: deque[list[bytes]] = deque()
        self.dead = False

    def send(self, frames: list[Any]) -> None:
        if not self.dead:
            self.sent.append([bytes(f) if isinstance(f, bytes) else np.ascontiguousarray(f).tobytes() for f in frames])


class _NoProcessState:
    """No process, so nothing to put back."""

    def __init__(self, row: array[int]) -> None:
        self._row = row

    def switch_file(self, file: int) -> None:
        self._row[FILE] = file

    def restore(self) -> None:
        pass

    def flush_output(self) -> None:
        pass


class Worker(WorkerLoop):
    """The real loop of a worker, stopped and resumed by the scheduler wherever it looks for messages."""

    def __init__(self, world: World, number: int, status_row: int) -> None:
        self.world, self.number, self.status_row = world, number, status_row
        self.wire = _Wire()
        self.inbox: deque[list[Any]] = deque()
        self.fuel = 0
        self.idle = False
        self.killed_while: tuple[int, int, int] | None = None
        self.row = array("q", bytes(64))
        link = worker_link(LinkRole.WORKER)
        link.state = LinkState.READY
        super().__init__(
            self.wire,  # type: ignore[arg-type]
            link,
            world.provider(self),
            world.names,
            WorkerStatus(memoryview(self.row)),
            _NoProcessState(self.row),  # type: ignore[arg-type]
            LoopOptions(max_unbound=max(1, max(world.case.workers, 4) // world.case.workers), times_samples=False),
        )

    def close(self) -> None:
        self._close_tasks(self._tasks.end_all_dispatches())

    @property
    def open(self) -> int:
        """Its generators of the pass that is read now."""
        said = [m.decode(message)[0] for message in self.inbox]
        over = [message.dispatch_id for message in said if isinstance(message, m.EndDispatch)]
        return sum(task.is_open and task.dispatch_id not in over for task in self._tasks)

    def die(self) -> None:
        self.wire.dead = True
        self.killed_while = WorkerStatus(memoryview(self.row)).running_sample

    def step(self, fuel: int) -> None:
        """Run until the fuel is spent or there is nothing to do."""
        self.fuel = fuel
        with suppress(_Pause):
            self.run()

    def send_now(self) -> None:
        """As the other thread does, while the loop is in the user's code; after 20 ms or not."""
        assert self._drawer.in_user_code
        self._drawer.collect_from_outside()
        self._flush()

    def _receive(self, timeout_ms: int) -> None:
        random = self.world.random
        if self.wire.dead:
            raise _Pause
        count = min(len(self.inbox), random.choice([0, 1, 1, 2, 9]) + (timeout_ms < 0))
        for _ in range(count):
            message, body = m.decode(self.inbox.popleft())
            self._link.check_received(message)
            self._handle(message, body)
        self.idle = timeout_ms < 0 and not count
        self.fuel -= 1
        if self.idle or self.fuel < 0:
            raise _Pause
        if random.random() < 0.1:
            self._flush()  # as when about 20 ms have passed


class Trainer:
    """One job and who reads it: it takes batches when the scheduler lets it, leaves passes, goes back, sleeps, ends."""

    def __init__(self, world: World, number: int, plan: JobPlan) -> None:
        self.world, self.number, self.plan = world, number, plan
        case = world.case
        self.leaves = case.leaves
        self.rewinds = case.rewinds
        self.credit = self.delivered = 0
        self.points: list[tuple[StreamState, int]] = []  # the state behind each batch, and the rows of padding so far
        self.merged: list[dict[int, int]] = []  # before each batch, how far the merge had come in each file
        self.told: dict[int, set[int]] = {}  # files that ended early before a batch, when it was cut first
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
            ),
            files=len(case.files), memory=PoolMemory(world.declaration.slots, world.places),
        )  # fmt: skip

    @property
    def outcome(self) -> Outcome:
        return self.outcomes[-1]

    def begin(self, pass_id: int) -> None:
        """Pass ``pass_id``, from its start."""
        world = self.world
        files = range(len(world.names))
        cache = None if world.cache is None else world.cache.memory
        kept = frozenset(file for file in files if cache is not None and cache.has(file))
        outcome = Outcome(pass_id, cached=kept)
        self.outcomes.append(outcome)
        if self.plan.buckets is not None:
            self.buckets = {**self.buckets, "group": self.plan.buckets.group_size}
        self.points, self.told = [(StreamState(pass_id, buckets=dict(self.buckets)), 0)], {}
        self.merged = [{}]
        outcome.bounds = tuple(self.buckets["bounds"]) if "bounds" in self.buckets else None
        self._read(self.job.open(self.points[0][0]))

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
        state, outcome.padding = self.points[batch]
        self.buckets = state.buckets
        state = StreamState.from_dict(state.to_dict(), files=len(self.world.case.files))
        if self.world.random.random() < 0.5:
            state.early_ends = self.points[-1][0].early_ends
        self.told |= {index: {*at.early_ends} for index, (at, _) in enumerate(self.points)}
        if self.world.case.change:
            self._change(batch)
        del self.merged[batch + 1 :]
        del self.points[batch + 1 :], outcome.batches[batch:], outcome.pool_weights[batch:]
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
        return far | {each.file: self.reading.ledgers[each.file].next_index for each in merge.cycle}

    def take(self) -> None:
        """It uses batches and asks for as many more."""
        count = self.world.random.randint(1, self.delivered)
        self.delivered -= count
        self.credit += count

    def rounds(self) -> None:
        """It is sent what it has asked for, and a pass that is over is followed by the next."""
        outcome = self.outcome
        while not self.over and not outcome.whole and self.credit:
            match self.stream.next_group():
                case None:
                    return
                case BatchGroup([CutBatch(cut, picked, bucket)], after, _):
                    self.credit -= 1
                    sample = picked.columns().arrays
                    picked.release()
                    files, ys = sample[0][0].tolist(), sample[1][0].tolist()
                    outcome.batches.append(list(zip(files, ys, strict=True)))
                    outcome.pool_weights.append(cut.pool_weight)
                    outcome.padding += cut.padding
                    self.delivered += 1
                    self.buckets = {k: v for k, v in bucket.items() if k not in BUCKET_OF_BATCH}
                    assert after.buckets == self.buckets
                    self._keep(after, outcome.padding)
                    self.world.check()
                case PassEnded(_, _, dropped, _):
                    outcome.dropped = dropped
                    outcome.whole = True
                case PassBroken(error):
                    outcome.error = error
                    outcome.whole = True
        if outcome.whole and not self.over:
            self.leave()
            outcome.early_ends = [(file, *early_end) for file, early_end in self.reading.losses.early_ends.items()]
            self.over = sum(outcome.whole for outcome in self.outcomes) >= self.passes
            if not self.over:
                self.begin(outcome.pass_id + 1)

    def _keep(self, state: StreamState, padding: int) -> None:
        """What the trainer's state would be after this batch."""
        self.points.append((state, padding))
        self.merged.append(self._reached() if self.world.case.change else {})
        index = len(self.points) - 1
        if self.world.change is not None and not self.world.change.merged:
            return
        assert self.told.get(index, state.early_ends.keys()) == state.early_ends.keys(), "as when it was cut first"


class _Cells(CellStore):
    """Cells for rows of any size: a dict says which row lies where."""

    def __init__(self, schema: Schema) -> None:
        layout = RegionLayout(Slots((integer_value(9),)), 68 << 16, movable=True)
        super().__init__(layout, bytearray(layout.size))
        self.slots = schema.slots
        self._lie: dict[int, Columns] = {}

    def put(self, cells: Any, columns: Columns) -> None:
        self._lie |= {cell: columns.take([row]) for row, cell in enumerate(cells.tolist())}

    def append(self, columns: Any) -> Any:
        if isinstance(columns, CellRows):
            return columns.claim()
        cells = self._new_rows(columns.rows)
        self.put(cells, columns)
        self._ids.live[cells] = True
        return cells

    def take(self, ids: Any) -> Columns:
        return Columns.concat([Columns.empty(self.slots), *(self._lie[cell] for cell in ids.tolist())])

    def sources(self, ids: Any) -> Any:
        return [(array, np.arange(len(array))) for arrays in self.take(ids).arrays for array in arrays]


class World:
    """Everything around the pure core. In some worlds rows have places, as far as the server is concerned."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.random = Random(case.seed)
        self.names = [str(i) for i in range(len(case.files))]
        self.coordinator = WorkerPool(case.workers)
        self.workers: dict[int, Worker] = {}
        self.starting: list[tuple[int, int]] = []
        self.change: Change | None = None
        self.late: deque[tuple[int, list[bytes]]] = deque()  # what killed workers had sent
        self.kills = case.kills
        self.deaths: Counter[tuple[int, int]] = Counter()
        self.opened: Counter[tuple[int, int]] = Counter()  # runs of process by number of the pass begun, and file
        self.logs: list[Log] = []
        self.steps = 0
        self.most_open = 0
        largest = max((item.values for s in case.files for item in s.items if isinstance(item, Sample)), default=0)
        self.largest = sample_bytes(largest) + SAMPLE_COST
        self.declaration = self.provider(None).schema
        self.cache = None if case.cache_limit is None else CacheFill(MemoryCache(case.cache_limit))
        plans = (case.plan, *case.others)
        placed = self.cache is None and not any(plan.buckets for plan in plans) and Random(case.seed).random() < 0.5
        self.places = _Cells(self.declaration) if placed else None
        self.trainers = [Trainer(self, number, plan) for number, plan in enumerate(plans)]

    # -- the user's code -----------------------------------------------------------------------------------------------
    def provider(self, worker: Worker | None) -> Any:
        case = self.case

        def process(settings: Any, filename: str) -> Iterator[Any]:
            number = int(filename)
            script, change = case.files[number], self.change
            items, at = script.items, change.y if change is not None and change.file == number else -1
            if at >= 0 and case.change != "value":
                items = (*items, Sample()) if case.change == "longer" else items[:at]
            self.opened[len(self.trainers[0].outcomes) - 1, number] += 1
            for y, item in enumerate((*items, None)):
                self._ask(worker, script, number, y)
                if isinstance(item, Sample):
                    shown = y + CHANGED * (y == at and case.change == "value")
                    yield {"file": number, "y": shown, "weight": item.weight, "data": [1] * item.values}
                elif isinstance(item, Bad):
                    yield {"file": number, "y": 1 << 30 if item.late else None, "weight": 0, "data": []}
            if script.raises:
                raise LookupError("as the script says")

        made = provider(
            input_types=TYPES, pool_size=case.pool_size, min_pool_size=case.min_pool_size, should_shuffle=True,
            can_over_batch_size=case.can_over, calc_batch_size=weight, check=True, check_fail_continue=True,
            cache=CacheType.NO_CACHE if case.cache_limit is None else CacheType.CACHE_PASS_IN_MEM,
        )(process)  # fmt: skip
        return made.start()

    def _ask(self, worker: Worker | None, script: Script, file: int, y: int) -> None:
        """``next()`` runs: the one moment in which a death has somebody to blame."""
        assert worker is not None
        if self.random.random() < 0.1:
            worker.send_now()  # as its other thread does when this takes long
        killed = script.poison == y
        if not killed and self.kills and self.deaths[file, y] < 2 and self.random.random() < 0.01:
            self.kills -= 1
            killed = True
        if killed and not worker.wire.dead:
            self.deaths[file, y] += 1
            worker.die()

    # -- the scheduler -------------------------------------------------------------------------------------------------
    def run(self) -> list[Outcome]:
        """All passes; what came of each of the first trainer's."""
        try:
            self.do(self.coordinator.start())
            for trainer in self.trainers:
                trainer.begin(0)
            while not all(trainer.over for trainer in self.trainers):
                self._turn()
            if self.places is not None:
                assert len(self.places) == 0  # every row that came is given back
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
        self.do(self.coordinator.dispatch())
        self._event()
        for trainer in self.trainers:
            trainer.rounds()
        self.do(self.coordinator.dispatch())
        self.check()

    def _event(self) -> None:
        """One thing happens."""
        random = self.random
        able: list[Any] = [(self._deliver, w) for w in self.workers.values() if w.wire.sent]
        able += [(self._work, w) for w in self.workers.values() if w.inbox or not w.idle]
        able += [(Trainer.take, each) for each in self.trainers if each.delivered and not each.asleep and not each.over]
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
        self._chunk(worker.number, worker.wire.sent.popleft())

    def _started(self, _: None) -> None:
        number, status_row = self.starting.pop(0)
        if 1 <= number <= self.case.hung_starts:
            return
        self.workers[number] = Worker(self, number, status_row)
        self.do(self.coordinator.handle(WorkerReady(number, self.declaration.to_wire())))

    def _bury(self, worker: Worker) -> None:
        """``worker`` is dead. Of what it had sent, some comes before the news, the rest after."""
        if not worker.wire.dead:
            worker.die()
        del self.workers[worker.number]
        sent = worker.wire.sent
        for _ in range(self.random.choice([0, len(sent), self.random.randint(0, len(sent))])):
            self._chunk(worker.number, sent.popleft())
        self.late.extend((worker.number, frames) for frames in sent)
        self.do(self.coordinator.handle(WorkerGone(worker.number, worker.killed_while, "was killed")))
        worker.close()

    # -- what the server's loop does -----------------------------------------------------------------------------------
    def _chunk(self, number: int, frames: list[bytes]) -> None:
        message, body = m.decode(frames)
        assert isinstance(message, m.Chunk)
        worker_pool = self.coordinator
        placed: CellRows | None = None
        for part, run in decode_chunk(
            message, [memoryview(f) for f in body], self.declaration, worker_pool.wanted_samples
        ):
            if self.places is not None and run is not None:
                if placed is None:
                    granted = self.places.grant(number, run.columns.rows)
                    self.places.put(granted, run.columns)
                    placed = self.places.accept_filled(number, granted)
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
            each = chunk_builder.MAX_ROWS * (1 + 2 + case.kills)  # once for every attempt
            if jobs == 1 and reading is not None:
                assert all(DROPPED_COST * (len(e.dropped) - each) <= reading.credit.share for e in entries)
            over = self.largest * (
                many if trainer.plan.order == "relaxed" else 1
            )  # relaxed waits for all files of the cycle at once
            if reading is not None:
                assert reading.credit.used <= case.budget + over + slack, f"{reading.credit.used} bytes are in use"
            # what was read before another job came is not thrown away
            allowed += max(case.budget / number, 2 * many) + over + slack
        used = sum(trainer.reading.credit.used for trainer in self.trainers if trainer.job.current is not None)
        assert used <= allowed, f"{used} bytes are in use by all jobs"


def where(error: Error) -> tuple[str, int, int]:
    """An error of the stream in the oracle's words: what, file, sample index."""
    said = str(error).rpartition("The last one: ")[2]
    words = said.replace(",", "").replace(":", "").split()
    assert (words[0], words[2]) == ("file", "sample"), error
    if isinstance(error, BudgetExceeded):
        return "budget", int(words[1].partition("@")[0]), int(words[3])
    kind = "too large" if isinstance(error, SampleTooLarge) else "raised"
    assert isinstance(error, FileCondemned) or kind == "too large" or "as the script says" in str(error), error
    return kind, int(words[1].partition("@")[0]), int(words[3])
