"""Simulate services with many workers: the utilization of workers, and the cost of a sample for the server.

The worker pool, the dispatcher of files, ledger, credit, merge and pool are those of pydp2. Workers are simulated, in
virtual time: each takes the same time for each sample, and a message takes half a round trip. The server takes no
virtual time, and the trainer takes every batch at once. So a worker is idle only if there is no file that it may read.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from pydp2 import dense_vector, provider
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.schema.input_types import Slots
from pydp2.host.worker.chunk_builder import MAX_BYTES, MAX_ROWS
from pydp2.host.worker.loop import FLUSH
from pydp2.host.worker.scheduler import TaskScheduler
from pydp2.host.worker.task import FileTask, UnsentSample
from pydp2.order.sample_source import SampleRun
from pydp2.order.stream_state import StreamState
from pydp2.protocol.file_ranges import FILE_ENDED, FILE_OPEN, SAMPLE_COST, FileAssignment, FileRange
from pydp2.protocol.messages import Assign, BeginDispatch, EndDispatch, Grant, StealFile, Want
from pydp2.server.actions import Send, Spawn, WorkerReady
from pydp2.server.dispatch.file_dispatcher import ReadContext
from pydp2.server.gateway.resources import read_ahead_budget
from pydp2.server.jobs.groups import BatchGroup, PassEnded
from pydp2.server.jobs.pass_stream import JobStream
from pydp2.server.jobs.plan import JobPlan
from pydp2.server.workers.worker_pool import WorkerPool

WORKERS = (2, 8, 32, 64, 128, 256)
"""Numbers of workers whose utilization is measured."""
READY = (64, 256, 512, 1000)
"""Numbers of workers whose start is measured."""
COSTS = ((2, 16), (64, 16), (64, 64), (256, 256), (1000, 1000))
"""Numbers of workers, and of files of the cycle, for which the server's processor time is measured."""
_HALF_TRIP = 0.0005  # seconds


@provider(input_types={"row": dense_vector(1)}, pool_size=4096)
def process(settings: Any, filename: str) -> Any:
    """Declare the samples; nothing runs it."""
    yield {"row": [0.0]}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Parameters of a simulation. ``sizes``: number of samples of each file; ``cost``: credit for a sample, in bytes;
    ``seconds``: time of a worker for a sample; ``budget``: bytes that are read ahead."""

    workers: int
    sizes: tuple[int, ...]
    budget: int
    interleave: int = 16
    cost: int = 5000
    seconds: float = 0.005
    batch_size: int = 128
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Sent:
    """Message of a worker: ranges as (file, attempt, first sample index, count, True if it ended), and files that
    wait; or the attempts that it returns."""

    worker: int
    ranges: list[tuple[int, int, int, int, bool]]
    blocked: list[list[int]]
    returned: list[int] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a pass: the share of the time in which workers were busy, their messages, and the batches."""

    use: float
    sent: list[Sent]
    batches: list[list[tuple[int, int]]]


class _Rows:
    """Samples ``lo`` to ``hi`` of a file, without values."""

    def __init__(self, file: int, lo: int, hi: int) -> None:
        self.file, self.lo, self.hi, self.rows = file, lo, hi, hi - lo

    def slice(self, lo: int, hi: int) -> _Rows:
        return _Rows(self.file, self.lo + lo, self.lo + hi)

    def release(self) -> None:
        pass


class _Chunk:
    """Message of a worker in the form for the server. The merge shortens the runs in it, so it can be used once."""

    def __init__(self, sent: Sent, scene: Scene) -> None:
        self.worker, self.blocked, self.returned = sent.worker, sent.blocked, sent.returned
        self.ranges: list[tuple[FileRange, SampleRun | None]] = []
        for file, attempt, first, count, ended in sent.ranges:
            end = first + count
            part = FileRange(file, attempt, first, count, count, FILE_ENDED if ended else FILE_OPEN, [end], [], {})
            sizes = np.full(count, scene.cost - SAMPLE_COST)
            run = SampleRun(_Rows(file, first, end), 0, count, np.arange(first, end), sizes, None) if count else None
            self.ranges.append((part, run))


class _Memory(HeapStore):
    """Row memory that keeps file and index of each sample, never uses an id twice, and forgets nothing."""

    def __init__(self, slots: Slots, samples: int) -> None:
        super().__init__(slots)
        self._file, self._sample_index = np.empty(samples, np.int64), np.empty(samples, np.int64)
        self._top = 0

    @property
    def high_water(self) -> int:
        return self._top

    def append(self, rows: Any) -> Any:
        ids = np.arange(self._top, self._top + rows.rows)
        self._top += rows.rows
        self._file[ids], self._sample_index[ids] = rows.file, np.arange(rows.lo, rows.hi)
        return ids

    def release_later(self, ids: Any) -> None:
        pass

    def names(self, ids: Any) -> list[tuple[int, int]]:
        return list(zip(self._file[ids].tolist(), self._sample_index[ids].tolist(), strict=True))


class _Worker:
    """Simulated worker: its files and messages are those of a real one, its generators only take time."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.inbox: deque[Any] = deque()
        self.busy = 0.0
        self._tasks = TaskScheduler(max(1, max(world.scene.workers, 4) // world.scene.workers))
        self._task: FileTask | None = None
        self._count = 0  # number of samples of the step that is under way
        self._step_began = self._task_began = 0.0
        self._wake = 0  # number of the event that ends the step
        self._built: list[list[Any]] = []  # [task, first sample index, count, ended]
        self._rows = 0
        self._oldest = float("inf")
        self._blocked: list[list[int]] = []

    # -- messages ------------------------------------------------------------------------------------------------------
    def receive(self, message: Any) -> None:
        """Handle a message at the end of the sample under way, or at once if there is none."""
        self.inbox.append(message)
        now, seconds = self.world.now, self.world.scene.seconds
        if self._task is None:
            self.work()
            return
        done = max(1, -int(-(now - self._step_began + 1e-9) // seconds))
        if done < self._count:
            self._step(self._task, done)

    def _handle(self) -> None:
        while self.inbox:
            match self.inbox.popleft():
                case BeginDispatch(dispatch_id, pass_id, seed):
                    self._tasks.begin_dispatch(dispatch_id, pass_id, seed)
                case EndDispatch(dispatch_id):
                    self._tasks.end_dispatch(dispatch_id)
                case Assign(dispatch_id, items):
                    for item in items:
                        self._tasks.add_task(dispatch_id, FileTask.from_assignment(FileAssignment.from_wire(item), 1))
                case Grant(items):
                    for attempt, limit, _, bound in items:
                        task = self._tasks.task_of(attempt)
                        if task is not None:
                            task.limit, task.bound, task.wait_reported = limit, bool(bound), False
                case StealFile(attempt):
                    returned = self._tasks.take_unopened([attempt])
                    self.world.at(self.world.now + _HALF_TRIP, Sent(self.number, [], [], returned))
                case Want(attempt, until):
                    self._merge_waits(self._tasks.mark_merge_waits(attempt, until))

    def _merge_waits(self, task: FileTask | None) -> None:
        if task is not None and task.is_ramping:
            return  # the end of the step checks this
        if task is None or any(built[0] is task for built in self._built):
            self._flush()

    # -- running -------------------------------------------------------------------------------------------------------
    def work(self) -> None:
        """Choose a file and begin a step of it."""
        self._handle()
        while (task := self._tasks.choose(self._report)) is not None and task.unsent is not None:
            self._built.append([task, task.unsent.sample_index, 1, False])
            task.unsent = None
            self._flush()
        self._task = task
        if task is None:
            self._flush()
            return
        task.iterator = iter(())
        self._task_began = self.world.now
        self._step(task, None)

    def _step(self, task: FileTask, count: int | None) -> None:
        """Run ``task`` for ``count`` samples; None: until its limit, its end, or a full message."""
        world, scene = self.world, self.world.scene
        if count is None:
            self._step_began = world.now
            left = scene.sizes[task.file] - task.next_index
            limit = max(0, task.limit - task.spent_bytes) // scene.cost + 1  # plus the unsent sample
            due = min(self._oldest, world.now) + FLUSH - world.now
            room = min(MAX_ROWS, -(-MAX_BYTES // scene.cost)) - self._rows  # rows until the message is full
            count = min(left, limit, task.block_end - task.next_index, max(1, min(room, int(due / scene.seconds))))
            if task.merge_waits:
                count = min(count, max(1, task.merge_waits_until - task.next_index))
        self._count = count
        self._wake = world.at(self._step_began + count * scene.seconds, self)

    def step_done(self, event: int) -> None:
        """Add the samples of a step that has ended, and continue."""
        task, scene = self._task, self.world.scene
        if event != self._wake or task is None:
            return
        self.busy += self._count * scene.seconds
        first, ramping = task.next_index, task.is_ramping
        task.next_index += self._count
        task.spent_bytes += self._count * scene.cost
        if task.spent_bytes > task.limit:
            task.spent_bytes -= scene.cost
            task.unsent = UnsentSample(None, task.next_index - 1, 1, scene.cost)  # type: ignore[arg-type]
        elif task.next_index == scene.sizes[task.file]:
            task.is_over = True
        sent = self._count - (task.unsent is not None)
        if sent or task.is_over:
            self._build(task, first, sent)
        self._task = None
        self._handle()
        if self._tasks.task_of(task.attempt) is not task:
            self.work()
            return
        self._after(task, ramping)

    def _after(self, task: FileTask, ramping: bool) -> None:
        now = self.world.now
        full = self._rows >= MAX_ROWS or self._rows * self.world.scene.cost >= MAX_BYTES
        if task.unsent is not None:
            self._report(task)
            self._flush()
        elif task.is_over:
            self._tasks.remove_task(task)
            if not self._tasks or task.merge_waits or full:
                self._flush()
        elif task.has_enough_for_merge or full or now - self._oldest > FLUSH - 1e-9:
            self._flush()
        late = now - self._task_began > FLUSH
        gives_way = (late or not task.merge_waits) and self._tasks.merge_waits_for_other(task, any_job=late)
        if ramping and not self._tasks.is_ramping(task.dispatch_id):
            self._flush()
        if (
            task.unsent is not None
            or task.is_over
            or gives_way
            or (ramping and task.next_index % task.block_length == 0)
        ):
            self.work()
        else:
            self._task = task
            self._step(task, None)

    def _build(self, task: FileTask, first: int, count: int) -> None:
        last = self._built[-1] if self._built else None
        if last is not None and last[0] is task:
            last[2] += count
            last[3] = task.is_over
        else:
            self._built.append([task, first, count, task.is_over])
        self._rows += count
        self._oldest = min(self._oldest, self._step_began)

    def _report(self, task: FileTask) -> None:
        need = task.missing_credit
        if need is not None and not task.wait_reported:
            task.wait_reported = True
            y = task.next_index if task.unsent is None else task.unsent.sample_index
            self._blocked.append([task.file, task.attempt, y, need])

    def _flush(self) -> None:
        built, self._built, blocked, self._blocked = self._built, [], self._blocked, []
        self._rows, self._oldest = 0, float("inf")
        if built or blocked:
            for task, *_ in built:
                task.merge_waits = False
            chunk = [(task.file, task.attempt, first, count, ended) for task, first, count, ended in built]
            self.world.at(self.world.now + _HALF_TRIP, Sent(self.number, chunk, blocked))


class _Service:
    """Server without sockets, and a trainer that takes every batch."""

    def __init__(self, scene: Scene) -> None:
        plan = JobPlan(
            batch_size=scene.batch_size,
            seed=scene.seed,
            shuffle=True,
            order="strict",
            interleave=scene.interleave,
            pool_bytes=1 << 30,
            last_batch="keep",
        )
        schema = process.start().schema
        self._memory = _Memory(schema.slots, sum(scene.sizes))
        context = ReadContext(workers=scene.workers, budget=scene.budget, label=str)
        job = JobStream(
            plan, schema, context, files=range(len(scene.sizes)), memory=PoolMemory(schema.slots, self._memory)
        )
        self._taken: list[Any] = []
        self._pool = WorkerPool(scene.workers)
        for action in self._pool.start():
            assert isinstance(action, Spawn)
            self._pool.handle(WorkerReady(action.worker, schema.to_wire()))
        self.workers = self._pool.active
        self._stream = job.open(StreamState())
        self._pool.begin_pass(self._stream.dispatcher)
        self.over = False

    def serve(self, chunks: list[_Chunk]) -> list[Any]:
        """Handle ``chunks``, deliver all batches that can be cut, and return the actions that follow."""
        for chunk in chunks:
            for part, run in chunk.ranges:
                self._pool.commit(chunk.worker, part, run)
            for item in chunk.blocked:
                self._pool.worker_blocked(chunk.worker, *item)
            if chunk.returned is not None:
                self._pool.return_files(chunk.worker, chunk.returned)
        actions = self._pool.dispatch(0.0)
        while isinstance(group := self._stream.next_group(), BatchGroup):
            self._taken += [batch.cut.row_ids for batch in group.batches]
        self.over = isinstance(group, PassEnded)
        return actions + self._pool.dispatch(0.0)

    def batches(self) -> list[list[tuple[int, int]]]:
        """Return the samples of all batches, as file and sample index."""
        return [self._memory.names(ids) for ids in self._taken]


class World:
    """Virtual time, and a service in it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.now = 0.0
        self._events: list[tuple[float, int, Any]] = []
        self._numbers = 0
        self._sent: list[Sent] = []

    def at(self, when: float, what: Any) -> int:
        """Schedule ``what`` for time ``when``; return the number of this event."""
        self._numbers += 1
        heapq.heappush(self._events, (when, self._numbers, what))
        return self._numbers

    def run(self) -> Outcome:
        """Simulate one pass."""
        service = _Service(self.scene)
        workers = {number: _Worker(self, number) for number in service.workers}
        self._deliver(service.serve([]))
        while not service.over:
            self.now, number, what = heapq.heappop(self._events)
            if isinstance(what, _Worker):
                what.step_done(number)
            elif isinstance(what, Send):
                workers[what.worker].receive(what.message)
            else:
                self._sent.append(what)
                self._deliver(service.serve([_Chunk(what, self.scene)]))
        busy = sum(worker.busy for worker in workers.values())
        return Outcome(busy / (self.now * len(workers)), self._sent, service.batches())

    def _deliver(self, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.at(self.now + _HALF_TRIP, action)


def server_seconds(scene: Scene) -> float:
    """Return the processor time of the server for a sample, without sockets and without copying rows."""
    chunks = [_Chunk(sent, scene) for sent in World(scene).run().sent]
    service = _Service(scene)
    began = time.process_time()
    service.serve([])
    for chunk in chunks:
        service.serve([chunk])
    assert service.over
    return (time.process_time() - began) / sum(scene.sizes)


def ready_seconds(workers: int) -> float:
    """Return the processor time in which a server handles ``workers`` workers that become ready during a pass."""
    schema = process.start().schema
    wire = schema.to_wire()
    context = ReadContext(workers=workers, budget=read_ahead_budget(workers, 1 << 40), label=str)
    plan = JobPlan(
        batch_size=128, seed=1, shuffle=True, order="strict", interleave=16, pool_bytes=1 << 30, last_batch="keep"
    )
    pool, job = WorkerPool(workers), JobStream(plan, schema, context, files=range(4 * workers))
    numbers = [action.worker for action in pool.start() if isinstance(action, Spawn)]
    pool.begin_pass(job.open(StreamState()).dispatcher)
    began = time.process_time()
    for number in numbers:
        pool.handle(WorkerReady(number, wire))
        for _ in range(2):  # as in a turn of the loop
            pool.dispatch(0.0)
    return time.process_time() - began


def show() -> None:
    """Print the utilization of workers, the cost of a sample for the server, and the time to handle new workers."""
    print("workers  files that take turns  read-ahead  use")
    for workers in WORKERS:
        scene = Scene(workers=workers, sizes=(100,) * 2000, budget=read_ahead_budget(workers, 1 << 40))
        use = World(scene).run().use
        print(f"{workers:7}  {scene.interleave:21}  {scene.budget >> 20:6} MiB  {use:.3f}", flush=True)
    print("\nworkers  files that take turns  microseconds of the server for a sample")
    for workers, length in COSTS:
        sizes, budget = (500,) * max(1000, 2 * length), read_ahead_budget(workers, 1 << 40)
        scene = Scene(workers=workers, sizes=sizes, budget=budget, interleave=length, cost=1000, seconds=0.0001)
        print(f"{workers:7}  {length:21}  {1e6 * server_seconds(scene):.2f}", flush=True)
    print("\nworkers  seconds until all are ready")
    for workers in READY:
        print(f"{workers:7}  {ready_seconds(workers):.3f}", flush=True)
