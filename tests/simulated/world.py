"""A service, its hosts, their workers and the trainers of a job: the real server, agents, workers' loops and clients on
a network and a clock that a seed decides, one of them at a time.

What is simulated is the world alone: how long messages are under way, paths that are cut or carry nothing, processes
that start late, stand still or die, hosts that come and go, a server that is started again, a disk that is slow. The
oracle says what the trainers must get.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict
from pathlib import Path
from random import Random
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from pydp2.client import client as client_module
from pydp2.client import connection, look_ahead, row_fetcher
from pydp2.errors import Error, JobTaken, Rewound
from pydp2.host import watchdog
from pydp2.host.agent import agent as agent_module
from pydp2.host.agent import service_link
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import ServiceSpec, SourceTerms
from pydp2.options.tables import job_options
from pydp2.protocol.trainer_numbers import TrainerNumbers
from pydp2.server import loop as server_loop
from pydp2.server.gateway import peers, resources
from pydp2.server.gateway import router as gateway
from pydp2.server.hosts import host_gateway
from pydp2.server.loop import Server
from pydp2.server.snapshots import state_dir
from pydp2.transport import compression, shared_region

from .cases import Case, Outcome, ScriptedWorld
from .disk import Disk
from .hosts import TIMING, Engine, Host, Turns
from .network import ClientLine, Frame, Hub, LastPoller, Line, Network, NoContext, Poller, TaskPoller
from .trainers import LONG, Job, Trainer

STEPS = 2_000_000  # a schedule with long waits has taken 400,000; who stands still is found by PATIENCE
PATIENCE = 120.0  # seconds in which some trainer gets on
LOSE_HOSTS = ("cut", "hold", "crash", "freeze")
OF_HOSTS = (*LOSE_HOSTS, "leave", "kill", "cut rows", "hide rows")
KINDS = (
    *OF_HOSTS, "join", "stop server", "restart server", "crash server", "cut trainer", "hold trainer",
    "freeze trainer", "trainers die", "rank dies",
)  # fmt: skip
"""What may go wrong."""


class Stuck(AssertionError):
    """The trainers do not come to their end."""


class World(ScriptedWorld):
    """All of it, for ``case``; ``folder`` is for files of the server."""

    def __init__(self, case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(case, Random(f"world {case.seed}"))
        self.network = Network(self.random)
        self.faults = self.random.choice([0, 1, 3, 6])
        self.losses = 4  # hosts that may be lost: after five in a row, the file that they read counts as the cause
        self.lease = self.random.choice([1.5, LONG, LONG])
        self.done: Counter[str] = Counter()
        self._is_ended = False
        self.hosts: dict[int, Host] = {}
        self.ended: deque[Host] = deque()
        self.turning: Host | None = None
        self.rows_stay = self.random.random() < 0.9
        self.schema = self.provider(None).schema.to_wire()
        self.log: list[str] = []
        self._patch = monkeypatch.setattr
        self._put_in_place()
        self.folder = folder / "state" if self.random.random() < 0.4 else None
        self.files = FileList.of(self.names)
        self.spec = ServiceSpec(
            sources=(SourceTerms(provider="p.process", args=msgpack.packb({}), is_train=True),), input_order=(),
            root=str(folder), path=(),
            workers=self.random.choice([0, 0, 1]), start="auto", memory_limit=2 << 30, worker_memory=None,
            sample_timeout=None, skip_errors=case.skip, error_budget=case.error_budget, quarantine=None,
            warn_changed=False, client_address="", run_dir="", worker_address="", timing=TIMING,
            blocked=case.block_list.encoded,
            state_dir=None if self.folder is None else str(self.folder),
        )  # fmt: skip
        if self.folder is not None:
            rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
        self.start_server()
        self._numbers = iter(range(1, 1000))
        for _ in range(self.random.choice([1, 1, 2, 3, 8])):
            self.network.at(self.random.choice([0.0, 0.1]), self.add_host)
        self.job = Job(self, TrainerNumbers(case.ranks, case.peers), asdict(job_options(**self._job_options())))

    def _put_in_place(self) -> None:
        """Put clock and network in the place of the real ones."""
        patch = self._patch
        for module in (
            server_loop, gateway, peers, agent_module, watchdog, client_module, connection, look_ahead, row_fetcher,
        ):  # fmt: skip
            patch(module, "time", self.network.clock)
        for module in (server_loop, agent_module):
            patch(module, "write_event", lambda text, event, **about: self.log.append(text))
        patch(connection, "log_event", lambda logger, text, event, **about: self.log.append(text))
        for module in (server_loop, agent_module):
            patch(module, "Poller", Poller)
        patch(gateway, "Poller", LastPoller)
        for module in (service_link, connection, row_fetcher):
            patch(module, "new_context", NoContext)
        patch(row_fetcher, "Poller", lambda: TaskPoller(self.network))
        patch(row_fetcher, "Line", self._connect_row_server)
        patch(row_fetcher, "PIECE_BYTES", 64)  # of a few rows
        patch(service_link, "Line", self._connect_host)
        patch(connection, "Line", lambda *_, **__: ClientLine(self.clients))
        patch(connection, "Frame", Frame)
        patch(client_module, "os", SimpleNamespace(urandom=self.random.randbytes))
        patch(look_ahead, "_LONG_STEP", float("inf"))  # its thread for the next batch would run beside the others
        patch(compression, "MIN_FRAME_BYTES", 1)
        patch(compression, "_WORTH", -1)  # small frames may become twice as large
        patch(resources, "_READ_AHEAD", self.case.budget)
        patch(resources, "_READ_AHEAD_WORKER", 0)
        patch(resources, "create_shared_pool", lambda slots: None)
        patch(shared_region.SharedRegion, "_map_shared", lambda *_: None)  # nobody is on the same machine

    def _connect_host(self, context: Any, address: str, **options: Any) -> Line:
        host = self.turning
        assert host is not None
        return Line(self.far, host.turns.wake)

    def _connect_row_server(self, context: Any, address: str, **options: Any) -> ClientLine:
        servers = [host.rows for host in self.hosts.values() if host.rows is not None and host.rows.address == address]
        if not servers:
            servers = [Hub(self.network, "trainer")]
            servers[0].end()
        return ClientLine(servers[0])

    def _job_options(self) -> dict[str, Any]:
        plan = self.case.plan
        given: dict[str, Any] = {
            "batch_size": plan.batch_size, "seed": plan.seed, "shuffle": plan.shuffle, "order": plan.order,
            "interleave": plan.interleave, "pool_bytes": plan.pool_bytes, "last_batch": plan.last_batch,
            "prefetch": self.random.choice([1, 2, 5]), "lease": self.lease,
        }  # fmt: skip
        if plan.buckets is not None:
            given |= {"bucket_by": "data", "bucket_bounds": plan.buckets.bounds}
            if plan.buckets.bounds is None:
                given |= {"num_buckets": plan.buckets.max_buckets}
        return given

    # -- the server ----------------------------------------------------------------------------------------------------
    def start_server(self) -> None:
        """Its process begins; with a state directory it goes on where it was."""
        self.clients, self.far, near = (Hub(self.network, role) for role in ("trainer", "worker", ""))
        self.disk = Disk(self.network, slow=self.random.random() < 0.3)
        self._patch(state_dir, "threading", self.disk.threading)
        self._patch(state_dir, "os", self.disk.os)
        self.engine = Engine(self, 0, near, self.schema, "the same")
        hosts = host_gateway.HostGateway(self.spec, self.files, self.far)  # type: ignore[arg-type]
        self.digest = hosts._spec.message.digest
        ends: Any = (self.engine, near, self.clients)
        self.server = Server(self.spec, self.files, *ends, -1, -2, hosts)
        self.server.workers.start()
        self.turns = Turns(self, self._serve, TIMING.tick)
        self.clients.wake = self.far.wake = near.wake = self.engine.wake = self.turns.wake

    def stop_server(self, *, in_order: bool) -> None:
        """Its process ends: told to, or killed."""
        self.turns.over = True
        if not in_order:
            self.disk.crash()
            for hub in (self.clients, self.far):
                hub.end()
        self.network.here = 0
        self.server.close("it is to be started again", None)
        if in_order:
            for hub in (self.clients, self.far):
                hub.end_soon()
        self.disk.crash()

    # -- what goes wrong -----------------------------------------------------------------------------------------------
    def add_host(self) -> None:
        """One more machine joins."""
        number = next(self._numbers)
        self.hosts[number] = Host(self, number)

    def fault(self) -> None:
        """Something goes wrong, or somebody comes or goes."""
        if self.is_over or not self.faults:
            return
        self.faults -= 1
        random, hosts = self.random, [*self.hosts.values()]
        kind = random.choice(KINDS)
        if kind in OF_HOSTS and (not hosts or (kind in LOSE_HOSTS and not self.losses)):
            kind = "join"
        if kind in ("restart server", "crash server") and self.folder is None:
            kind = "stop server"
        if kind == "stop server":
            self.losses = max(0, self.losses - len(hosts))
        elif kind in LOSE_HOSTS:
            self.losses -= 1
        self.done[kind] += 1
        seconds = random.choice([0.01, 0.1, 0.4, 1.0, 2.0])
        if kind in OF_HOSTS:
            self._fault_of_host(kind, random.choice(hosts), seconds)
        else:
            self._fault(kind, seconds)
        self.network.at(random.expovariate(30.0), self.fault)

    def _fault_of_host(self, kind: str, host: Host, seconds: float) -> None:
        match kind:
            case "cut":
                self.network.cut(host.number)
            case "hold":
                self.network.hold(host.number, seconds)
            case "crash":
                host.crash()
                self.network.at(seconds, self.add_host)
            case "freeze":
                host.turns.freeze(seconds)
            case "leave":
                host.leave()
                self.network.at(seconds, self.add_host)
            case "cut rows" if host.rows is not None:
                for line in [*host.rows.peers.values()]:
                    line.cut()
            case "hide rows" if host.rows is not None:
                host.rows.end()
                self.network.at(self.random.choice([1.0, 3.0, 10.0]), host.rows.up)
            case "kill" if host.engine.workers:
                host.engine.kill(self.random.choice([*host.engine.workers]))

    def _fault(self, kind: str, seconds: float) -> None:
        trainer = self.random.choice(self.job.trainers)
        match kind:
            case "join":
                self.add_host()
            case "stop server":
                self.turns.freeze(seconds)
            case "restart server" | "crash server" if not self.turns.over:
                self.stop_server(in_order=kind == "restart server")
                self.network.at(seconds, self.start_server)
            case "cut trainer":
                self.network.cut(trainer.machine)
            case "hold trainer":
                self.network.hold(trainer.machine, seconds)
            case "freeze trainer":
                trainer.task.freeze(seconds)
            case "rank dies" if self.case.trainers > 1 and self.lease == LONG and not self.job.has_finished:
                if trainer.state is not None:  # the next one would not know whether that was loaded
                    self.job.restart()
                elif not trainer.task.over:
                    self.job.replace(trainer, seconds)
            case "trainers die" | "rank dies":
                self.job.restart()

    # -- time goes on --------------------------------------------------------------------------------------------------
    @property
    def is_over(self) -> bool:
        """True when the trainers have had all they wanted."""
        return self.job.over

    def _serve(self) -> bool:
        self.network.here = 0
        return self.server._round(0.0)

    def run(self) -> list[list[Outcome]]:
        """All passes; what each trainer saw."""
        self.network.at(self.random.expovariate(30.0), self.fault)
        steps = 0
        try:
            while not self.is_over:
                steps += 1
                late = self.network.clock.now - self.job.progress > PATIENCE
                if late and self.job.is_alone:
                    self.job.late, self.job.progress = 0, self.network.clock.now
                    self.job.restart()
                elif late or steps > STEPS or not self.network.advance():
                    raise Stuck(
                        f"no end after {steps} steps and {self.network.clock.now - 1000:.1f} s; {self.log[-9:]}"
                    )
                while self.ended:
                    self._check_end(self.ended.popleft())
            return self.job.passes
        finally:
            self.end()

    def end(self) -> None:
        """End all processes that are left."""
        if not self._is_ended:
            self._is_ended = True
            self.job.end()
            for host in [*self.hosts.values()]:
                host.crash()
            if not self.turns.over:
                self.server.close("the test is over", None, asked=True)
            self.disk.crash()

    def check_loss(self, trainer: Trainer, error: Error) -> None:
        """A trainer gives up only if it was away for longer than its lease, the service was killed before it had
        written down what several ranks need, a process without a state comes where others have loaded one, or one that
        is not the first to load its state comes so late that others are far."""
        unwritten = isinstance(error, Rewound) and self.case.trainers > 1 and self.done["crash server"]
        stateless = isinstance(error, Rewound) and self.done["rank dies"] and self.job.restarts
        # after a restart the service waits for the one that had the rank
        replaced = isinstance(error, JobTaken) and self.done["rank dies"] and self.folder is not None
        late = isinstance(error, Rewound) and self.job.restarts > 1 and trainer.is_far
        assert self.lease < LONG or unwritten or stateless or replaced or late, error

    def _check_end(self, host: Host) -> None:
        """A host ends only if it is told to, or is not what it must be."""
        if host.alien:
            assert host.error is None or "is another one on" in str(host.error)
            if host.error is not None:
                self.network.at(0.05, self.add_host)
            return
        assert host.error is None, host.error
        assert host.leaving, host.end
