"""Measure the cost of a sample for the server process, without any other process.

The server is the complete server of pydp2: its loop, its messages, the rows in its pool. Workers are those of
:mod:`benchmarks.many`, in virtual time, in which the server takes its real time, and workers hardly any; the columns
that they send are made once. Rows may stay on a host: then the messages are those of its agent, and trainers get the
numbers of the rows. Trainers take every batch as soon as it comes, and ask for more as clients do. Frames are passed
inside this process, so the figures do not include ZeroMQ. Processor time counts only while the server's loop runs, so a
busy machine changes the figures little.
"""

from __future__ import annotations

import gc
import heapq
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from benchmarks import many
from pydp2 import dense_vector, integer_value_sequence, provider
from pydp2.client.run_protocol import PrefetchWindow
from pydp2.data.columns.columns import Columns
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.provider_schema import Schema
from pydp2.host.engine.base import Exited, Started, StatusPage
from pydp2.host.list_entries import sampled_entries
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import ServiceSpec, SourceTerms, status_rows
from pydp2.options.tables import job_options
from pydp2.options.timing import Timing
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import FILE_ENDED, FILE_OPEN, SAMPLE_COST, FileRange
from pydp2.server.actions import Send
from pydp2.server.hosts.host_gateway import HostGateway
from pydp2.server.loop import Server
from pydp2.system.release import RELEASE
from pydp2.transport.in_process import InProcessHub, InProcessLine
from pydp2.transport.slabs import put_in_slab

KINDS = ("dense", "ragged")
"""Lengths of the samples: 20 floats, 59 ids."""
_ROW_SERVER = f"tcp://replay:7800?key={'0' * 64}"
_ROWS = 8192  # rows of the columns, of which workers send parts
_SLAB = 8 << 20  # bytes of memory into which batches are written, one after the other
_WARM = 0.2  # share of the samples before the measurement
_COLLECT = 10_000  # threshold of the garbage collector, as in a server
_SAMPLE_SECONDS = 1e-7  # virtual time of a worker for a sample; so short that the others wait for the server


@provider(input_types={"x": dense_vector(20)}, pool_size=4096)
def dense(settings: Any, filename: str) -> Any:
    """Declare the samples; nothing runs it."""
    yield {"x": [0.0] * 20}


@provider(input_types={"ids": integer_value_sequence(1 << 20)}, pool_size=4096)
def ragged(settings: Any, filename: str) -> Any:
    """Declare the samples; nothing runs it."""
    yield {"ids": [0]}


@provider(input_types={"row": dense_vector(1024)}, pool_size=4096)
def rows(settings: Any, filename: str) -> Any:
    """Declare the samples; nothing runs it."""
    yield {"row": [0.0] * 1024}


_PROVIDERS = {"dense": dense, "ragged": ragged, "rows": rows}
_WIDTHS = {"dense": 20, "rows": 1024}
_COSTS = {"dense": 80, "ragged": 4 * 59 + 8, "rows": 4096}  # bytes of a sample


@dataclass(frozen=True, kw_only=True)
class Case:
    """Case to replay: ``files`` files of ``length`` samples each; the pass is left after ``samples`` samples for each
    job. ``peers``: trainers of each rank. ``rows_stay``: the workers are on another host, where the rows stay."""

    kind: str = "ragged"
    workers: int = 1
    ranks: int = 1
    peers: int = 1
    jobs: int = 1
    files: int = 64
    length: int = 16384
    samples: int = 400_000
    interleave: int = 16
    batch_size: int = 128
    rows_stay: bool = False


class SimulatedEngine:
    """Engine whose workers are not processes: their events come from :meth:`tell`."""

    out_of_descriptors = False

    def __init__(self, workers: int) -> None:
        self._page = StatusPage(status_rows(workers))
        self._events: list[Started | Exited] = []
        self._readable, self._wake = os.pipe()
        self.started: list[int] = []

    def start(self, worker: int, status_row: int) -> None:
        self.started.append(worker)
        self.tell(Started(worker, os.getpid()))

    def tell(self, event: Started | Exited) -> None:
        self._events.append(event)
        os.write(self._wake, b"+")

    def kill(self, worker: int) -> None:
        raise AssertionError(f"worker {worker} is killed")

    dump = kill

    def is_stopped(self, worker: int) -> bool:
        return False

    def row(self, status_row: int) -> memoryview:
        return self._page.row(status_row)

    def events(self) -> list[Started | Exited]:
        if self._events:
            os.read(self._readable, 1 << 16)
        out, self._events = self._events, []
        return out

    def fileno(self) -> int:
        return self._readable

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._wake)


def simulated_spec(workers: int, folder: Path) -> ServiceSpec:
    """Return the spec of a service whose workers are simulated."""
    return ServiceSpec(
        sources=(SourceTerms(provider="replay.process", args=msgpack.packb({}), is_train=True),),
        input_order=(),
        root=str(folder),
        path=(),
        workers=workers,
        start="auto",
        memory_limit=2 << 30,
        worker_memory=None,
        sample_timeout=None,
        skip_errors=False,
        error_budget=None,
        quarantine=None,
        warn_changed=False,
        client_address="",
        run_dir="",
        worker_address="",
        cache_dir=str(folder),
    )


class _Slab:
    """Memory for a trainer that reads each message before the memory is used again."""

    def __init__(self) -> None:
        self._memory = np.zeros(_SLAB, np.uint8)
        self._at = 0

    def reserve(self, sizes: Sequence[int]) -> tuple[bytes, list[Any]]:
        """Return memory for frames of ``sizes``, as :class:`pydp2.transport.slabs.SlabWriter` does."""
        if self._at + sum(sizes) + 64 * len(sizes) > _SLAB:
            self._at = 0
        into = []
        for size in sizes:
            into.append(self._memory[self._at : self._at + size])
            self._at += -(-size // 64) * 64
        return b"reference", into


class _Offer:
    """Offer of shared memory, which all trainers have accepted."""

    offered: Any = None

    def is_used_by(self, peer: bytes) -> bool:
        """Return True: the trainer gathers its rows by itself."""
        return True


class _ClientHub(InProcessHub):
    """Hub that writes batches into a slab; its lines get the headers, and the number of bytes in the slab."""

    def __init__(self) -> None:
        super().__init__()
        self._slab: Any = _Slab()
        self.fd_offer = _Offer()

    def send(self, peer: bytes, frames: Sequence[Any]) -> None:
        header, *body = frames
        reference, plain = put_in_slab(self._slab, body)
        super().send(peer, [header, *([reference] if reference is not None else plain)])

    def key_of(self, peer: bytes) -> str:
        """Return the key of a trainer, which may fetch rows."""
        return "0" * 64


class _WorkerHub(InProcessHub):
    """Hub of workers, which accept offers of shared memory and do not use it."""

    def __init__(self) -> None:
        super().__init__()
        self.fd_offer = _Offer()


class _HostHub(InProcessHub):
    """Hub whose peers are agents."""

    def role_of(self, peer: bytes) -> str:
        """Return "worker"."""
        return "worker"


class _LocalWorkers:
    """Workers on the machine of the service."""

    def __init__(self, hub: InProcessHub, engine: SimulatedEngine, declared: list[m.Message]) -> None:
        self._hub, self._engine, self._declared = hub, engine, declared
        self._lines: dict[int, InProcessLine] = {}

    def begin(self) -> None:
        """Send the first messages of workers."""
        for number in self._engine.started:
            line = self._lines[number] = InProcessLine(self._hub)
            for message in (m.Hello(m.WIRE_VERSION, number, os.getpid()), *self._declared):
                line.send([m.encode(message)])

    @property
    def numbers(self) -> list[int]:
        """Numbers of the workers."""
        return [*self._lines]

    def say(self, worker: int, frames: list[Any]) -> None:
        """Send a message of ``worker``."""
        self._lines[worker].send(frames)

    def heard(self) -> Iterator[Send]:
        """Yield the messages of the server."""
        for number, line in self._lines.items():
            while (frames := line.receive()) is not None:
                yield Send(number, m.decode(frames)[0])

    def close(self) -> None:
        """End their connections."""
        for line in self._lines.values():
            line.close()


class _HostWorkers:
    """Workers on another host, whose rows stay there."""

    def __init__(self, hub: InProcessHub, workers: int, declared: list[m.Message]) -> None:
        self._declared = declared
        self._control, self._data = InProcessLine(hub), InProcessLine(hub)
        self.numbers: list[int] = []
        self._join = m.Join(m.WIRE_VERSION, RELEASE, "replay", workers, "replay", "", {}, "", _ROW_SERVER)

    def begin(self, sampled: int) -> None:
        """Let the host join; ``sampled``: number of entries of the list that it has looked up."""
        self._control.send([m.encode(self._join)])
        self._data.send([m.encode(m.OpenData("replay"))])
        self._control.send([m.encode(m.Prepared([1] * sampled))])

    def say(self, worker: int, frames: list[Any]) -> None:
        """Send a message of ``worker``."""
        self._data.send([m.encode(m.FromWorker(worker, [])), *frames])

    def heard(self) -> Iterator[Send]:
        """Yield the messages of the server to workers, and start the workers that it requests."""
        while (frames := self._control.receive()) is not None:
            message, body = m.decode(frames)
            match message:
                case m.StartWorker(worker):
                    self._data.send([m.encode(m.WorkerStarted(worker, os.getpid()))])
                    for message in (m.Hello(m.WIRE_VERSION, worker, os.getpid()), *self._declared):
                        self.say(worker, [m.encode(message)])
                    self.numbers.append(worker)
                case m.ToWorker(worker):
                    yield Send(worker, m.decode([*body])[0])
                case m.Refused() | m.Closing():
                    raise AssertionError(message)

    def close(self) -> None:
        """End their connections."""
        self._control.close()
        self._data.close()


class _Trainer:
    """Trainer ``number`` of ``job`` that takes every batch at once."""

    def __init__(self, hub: InProcessHub, case: Case, job: str, number: int, row_bytes: int) -> None:
        self.line = InProcessLine(hub)
        self._case = case
        self._row_bytes = row_bytes
        options = job_options(batch_size=case.batch_size, seed=1, interleave=case.interleave)
        self._window = PrefetchWindow(
            options.prefetch, options.prefetch_bytes, report_each=False, high_latency=case.rows_stay
        )
        self._done = 0
        self._is_shared = False
        self.samples = 0
        self.over = False
        given = {"batch_size": case.batch_size, "seed": 1, "interleave": case.interleave}
        rank, peer = divmod(number, case.peers)
        attach = m.Attach(
            m.WIRE_VERSION,
            job,
            rank,
            case.ranks,
            f"{job} {number}",
            given,
            os.getpid(),
            peer=peer,
            peer_count=case.peers,
        )
        self.line.send([m.encode(attach)])

    def take_batches(self) -> None:
        """Take all batches that have come, and ask for more."""
        while (frames := self.line.receive()) is not None:
            message, _ = m.decode(frames)
            match message:
                case m.Welcome():
                    self._send(m.BeginPass(1, 0, 0, self._window.start_pass(), {}, 0, [], ""))
                case m.BatchHead():
                    self._is_shared = message.shared_rows > 0
                    for rows in [message.rows, *(following[1] for following in message.following)]:
                        self._take(rows)
                case m.PassEnd():
                    self.over = True
                case m.Failed() | m.Refused():
                    raise AssertionError(message)

    def ask_if_waiting(self) -> None:
        """Ask for more batches, because none has come."""
        if not self.over and self._done:
            self._ask(now=True)

    def _take(self, rows: int) -> None:
        self._ask()
        self._done += 1
        self.samples += rows
        self._window.note_taken(rows * self._row_bytes, rows * self._row_bytes, shown=self._is_shared)

    def _ask(self, *, now: bool = False) -> None:
        count = self._window.next_request(self._done, now=now)
        if count is not None:
            self._send(m.Need(1, count, self._done, 0, 0))
            self._window.note_requested(count, self._done)

    def _send(self, message: m.Message) -> None:
        self.line.send([m.encode(message)])


class _Service:
    """Server and its trainers, in place of those of :mod:`benchmarks.many`."""

    def __init__(self, case: Case, folder: Path, measure: Callable[[], Any]) -> None:
        start = _PROVIDERS[case.kind].start()
        self._case, self._measure = case, measure
        self._schema: Schema = start.schema
        self._columns = _columns(self._schema, case.kind)
        self._row_bytes = int(self._columns.sample_bytes().mean())
        self._handed_out = 0  # number of rows that stay on their host and have got numbers
        at_home = 0 if case.rows_stay else case.workers
        engine = SimulatedEngine(case.workers)
        self._hubs: list[Any] = [_WorkerHub(), _ClientHub()]
        self._clients = self._hubs[1]
        self._control, self._held = os.pipe()
        self._wakeup, self._kept = os.pipe()
        spec = replace(simulated_spec(at_home, folder), timing=Timing(host_beat=1e6, host_timeout=1e6))
        files = FileList.of([f"file {number}" for number in range(case.files)])
        hosts: Any = None
        declared: list[m.Message] = [m.Declared(self._schema.to_wire(), "", [])]
        self._workers: Any = _LocalWorkers(self._hubs[0], engine, declared)
        if case.rows_stay:
            hub: Any = _HostHub()
            self._hubs.append(hub)
            hosts = HostGateway(spec, files, hub)
            self._workers = _HostWorkers(hub, case.workers, declared)
        given: Any = (engine, *self._hubs[:2])
        self._server = Server(spec, files, *given, self._control, self._wakeup, hosts)
        self._server.workers.start()
        self._trainers: list[_Trainer] = []
        self._actions: list[Send] = []
        self._round()
        self._workers.begin(*([len(sampled_entries(files))] if case.rows_stay else []))
        self._round()
        self._round()
        self._trainers = [
            _Trainer(self._clients, case, f"job {job}", number, self._row_bytes)
            for job in range(case.jobs)
            for number in range(case.ranks * case.peers)
        ]
        self.workers = self._workers.numbers
        self.on_batches: Callable[[], None] = lambda: None  # called when trainers may have taken batches

    @property
    def samples(self) -> int:
        """Number of samples that trainers have received, those of a rank once."""
        return sum(trainer.samples for trainer in self._trainers) // self._case.peers

    @property
    def over(self) -> bool:
        """True when enough samples came, or all passes have ended."""
        return self.samples >= self._case.samples * self._case.jobs or all(trainer.over for trainer in self._trainers)

    def serve(self, chunks: list[_Chunk]) -> list[Any]:
        """Let the server handle ``chunks`` and all their consequences; return its messages to workers."""
        for chunk in chunks:
            self._workers.say(chunk.sent.worker, self._frames_of(chunk))
        self._round()
        while self._serve_trainers():
            pass
        actions, self._actions = self._actions, []
        return actions

    def _frames_of(self, chunk: _Chunk) -> list[Any]:
        """Return the frames of a message of a worker. The rows are the first rows of the columns, or new numbers of a
        row server."""
        count, header = chunk.rows, chunk.header(2 if self._case.rows_stay else 0)
        if not count:
            return [header]
        if not self._case.rows_stay:
            return [header, *self._columns.slice(0, count).frames()]
        numbers = np.arange(self._handed_out, self._handed_out + count)
        self._handed_out += count
        return [header, numbers, np.full(count, self._row_bytes)]

    def _serve_trainers(self) -> bool:
        """Let trainers take their batches. Return False if they wait although they have asked for more."""
        before = self.samples
        for trainer in self._trainers:
            trainer.take_batches()
        if self.samples == before and not self._clients.pending:
            for trainer in self._trainers:
                trainer.ask_if_waiting()
            self._round()
            for trainer in self._trainers:
                trainer.take_batches()
        self._round()
        self.on_batches()
        return self.samples > before

    def close(self) -> None:
        """End the service."""
        self._workers.close()
        for trainer in self._trainers:
            trainer.line.close()
        self._server.close("the replay is over", None, asked=True)
        for descriptor in (self._control, self._held, self._wakeup, self._kept):
            os.close(descriptor)
        for hub in self._hubs:
            hub.close()

    def _round(self) -> None:
        with self._measure():
            while self._server._round(0.0):
                pass
        self._actions += self._workers.heard()


class _Chunk:
    """Message of a worker."""

    def __init__(self, sent: many.Sent, scene: many.Scene) -> None:
        self.sent = sent

    @property
    def rows(self) -> int:
        """Number of rows in the message."""
        return sum(count for _, _, _, count, _ in self.sent.ranges)

    def header(self, naming_frames: int) -> bytes:
        """Return the first frame of the message."""
        parts = [
            FileRange(
                file, attempt, first, count, count, FILE_ENDED if ended else FILE_OPEN, [first + count], [], {}
            ).to_wire()
            for file, attempt, first, count, ended in self.sent.ranges
        ]
        return m.encode(m.Chunk(self.rows, parts, self.sent.blocked, 0, 0, naming_frames if self.rows else 0))


def _columns(schema: Schema, kind: str) -> Columns:
    packer = Packer(schema.slots, strict=False)
    random = np.random.default_rng(1)
    for _ in range(_ROWS):
        packer.add([random.integers(0, 1 << 20, 59).tolist() if kind == "ragged" else random.random(_WIDTHS[kind])])
    columns: Columns = packer.finish().columns
    return columns


class _World(many.World):
    """Virtual time around a complete server."""

    def __init__(self, case: Case, folder: Path, measure: Callable[[], Any]) -> None:
        cost = SAMPLE_COST + _COSTS[case.kind]
        scene = many.Scene(
            workers=case.workers, sizes=(case.length,) * case.files, budget=1, cost=cost, seconds=_SAMPLE_SECONDS
        )
        super().__init__(scene)
        self._make = lambda: _Service(case, folder, measure)

    def play(self, warm: int, warmed: Callable[[], None]) -> int:
        """Run until enough samples came, and return the number of samples after the first ``warm``."""
        service = self._make()
        began = 0

        def note_warm() -> None:
            nonlocal began
            if not began and service.samples >= warm:
                began = service.samples
                warmed()

        service.on_batches = note_warm
        try:
            workers = {number: many._Worker(self, number) for number in service.workers}
            self._deliver(service.serve([]))
            waiting: list[_Chunk] = []
            busy_until = 0.0
            while not service.over:
                self.now, number, what = heapq.heappop(self._events)
                if isinstance(what, many._Worker):
                    what.step_done(number)
                elif isinstance(what, Send):
                    workers[what.worker].receive(what.message)
                elif isinstance(what, many.Sent):
                    if not waiting:
                        self.at(max(self.now, busy_until), None)
                    waiting.append(_Chunk(what, self.scene))
                else:
                    began_at = time.thread_time()
                    actions = service.serve(waiting)
                    waiting, busy_until = [], self.now + time.thread_time() - began_at
                    self._deliver(actions)
            return service.samples - began
        finally:
            service.close()


def seconds_per_sample(case: Case, around: Callable[[], Any] | None = None) -> float:
    """Return the processor time of the server for a sample of ``case``. ``around``: a context around each turn of its
    loop, for a profiler."""
    spent = 0

    @contextmanager
    def measure() -> Iterator[None]:
        nonlocal spent
        began = time.thread_time_ns()
        if around is None:
            yield
        else:
            with around():
                yield
        spent += time.thread_time_ns() - began

    def warmed() -> None:
        nonlocal spent
        spent = 0

    with tempfile.TemporaryDirectory() as folder:
        gc.collect()
        gc.freeze()
        threshold = gc.get_threshold()
        gc.set_threshold(_COLLECT)
        try:
            samples = _World(case, Path(folder), measure).play(int(case.samples * case.jobs * _WARM), warmed)
        finally:
            gc.set_threshold(*threshold)
            gc.unfreeze()
    return spent / 1e9 / samples


CASES = {
    "workers": [Case(workers=workers) for workers in (1, 8, 64)],
    "ranks": [Case(ranks=ranks) for ranks in (1, 2, 8)],
    "peers": [Case(peers=peers) for peers in (1, 2, 4)],
    "jobs": [Case(jobs=jobs) for jobs in (1, 2, 8)],
    "files": [Case(files=files, length=500) for files in (1_000, 100_000, 1_000_000)],
    "rows_stay": [Case(rows_stay=True)],
}
"""Cases by the name of the parameter that varies."""


def show(rounds: int) -> None:
    """Print the cost of a sample for the server; medians of ``rounds`` rounds."""
    print("varied   value     kind    microseconds of the server for a sample")
    for name, cases in CASES.items():
        for kind in ("rows",) if name == "rows_stay" else KINDS:
            found: dict[Case, list[float]] = {}
            for _ in range(rounds):
                for case in cases:
                    found.setdefault(case, []).append(seconds_per_sample(replace(case, kind=kind)))
            for case, values in found.items():
                print(f"{name:8} {getattr(case, name):<9} {kind:7} {1e6 * statistics.median(values):.2f}", flush=True)
