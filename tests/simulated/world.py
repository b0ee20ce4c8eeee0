"""A service, its hosts, their workers and a trainer in one thread: the real server, agents and workers' loops, on a
network and a clock that a seed decides.

What is simulated is the world alone: how long messages are under way, paths that are cut or carry nothing, processes
that start late, stand still or die, hosts that come and go. The oracle says what the trainer must get.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from pydp2 import provider
from pydp2.client.received import parse_batches
from pydp2.engine import Exited, Started
from pydp2.errors import Error, from_wire
from pydp2.file_list import FileList
from pydp2.host import agent as agent_module
from pydp2.host import service_link, watchdog
from pydp2.host.agent import Agent, AgentEnd
from pydp2.host.setup import AgentSetup
from pydp2.protocol import messages as m
from pydp2.schema.provider_schema import Schema
from pydp2.server import host_gateway
from pydp2.server import loop as server_loop
from pydp2.server.loop import Server
from pydp2.server.sessions import gateway
from pydp2.server.spec import ServiceSpec
from pydp2.server.timing import Timing

from ..server.cases import TYPES, Bad, Case, Sample, weight
from ..server.simulation import Worker as PausedWorker
from .network import ENGINE, HEARTBEAT_TIMEOUT, Hub, Line, Network, NoContext, Poller

TIMING = Timing(host_beat=0.05, host_timeout=HEARTBEAT_TIMEOUT, host_drain=1.0, tick=0.1, worker_last_words=0.05)
STEPS = 200_000
ROWS = 100  # that the shared memory of a host has
_SIGTERM = b"\x0f"


class Stuck(AssertionError):
    """The trainer does not come to its end."""


@dataclass
class Seen:
    """What the trainer got of one pass."""

    pass_id: int
    batches: list[list[tuple[int, int]]] = field(default_factory=list)
    pool_weights: list[int] = field(default_factory=list)
    padding: int = 0
    dropped: int = 0
    error: Error | None = None
    whole: bool = False


class _Wire:
    """A worker's end of its connection to the hub of its host."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.dead = False

    def send(self, frames: list[Any]) -> None:
        if not self.dead:
            self._line.send(frames)


class Worker(PausedWorker):
    """A worker of one host, which runs when the clock lets it."""

    def __init__(self, world: World, engine: Engine, number: int, status_row: int) -> None:
        super().__init__(world, number, status_row)  # type: ignore[arg-type]
        self.engine = engine
        self._at_work = False
        self.line = Line(engine.hub, self._came)
        self.wire = self._line = _Wire(self.line)  # type: ignore[assignment]
        self.line.send([m.encode(m.Hello(m.WIRE_VERSION, number, 10_000 + number))])
        self.line.send([m.encode(m.Declared(engine.schema, engine.source, []))])

    def _came(self) -> None:
        while (frames := self.line.receive()) is not None:
            self.inbox.append(frames)
        self.idle = False
        self.wake()

    def die(self) -> None:
        """Its row says for ever what it was asking for."""
        if not self.wire.dead:
            self.engine.keep_row(self.status_row, array("q", self.row))
        super().die()

    def wake(self) -> None:
        if not self._at_work and not self.wire.dead:
            self._at_work = True
            self.world.network.at(self.world.random.random() * 0.002, self._turn)

    def _turn(self) -> None:
        self._at_work = False
        network = self.world.network
        network.here = self.line.host
        if not self.wire.dead:
            self.step(self.world.random.choice([1, 1, 2, 5, 30]))
        if self.wire.dead:
            self.engine.buried(self)
        elif self.inbox or not self.idle:
            self.wake()


class Engine:
    """As :class:`pydp2.engine.Engine`, of the host number ``host``: processes are objects that take turns."""

    out_of_descriptors = False

    def __init__(self, world: World, host: int, hub: Hub, schema: dict[str, Any], source: str) -> None:
        self.world, self.host, self.hub = world, host, hub
        self.schema, self.source = schema, source
        self.workers: dict[int, Worker] = {}
        self._rows: dict[int, array[int]] = {}
        self._doomed: set[int] = set()
        self._events: list[Any] = []
        self.wake: Callable[[], object] = lambda: None
        self.gone = False

    def start(self, worker: int, status_row: int) -> None:
        if not 0 <= status_row < ROWS:
            raise IndexError(status_row)
        self._rows[status_row] = array("q", bytes(64))
        slow = self.world.random.random() < 0.1
        delay = self.world.random.random() * (0.3 if slow else 0.02)
        self.world.network.at(delay, lambda: self._started(worker, status_row))

    def _started(self, worker: int, status_row: int) -> None:
        if self.gone:
            return
        self._tell(Started(worker, 10_000 + worker))
        if worker in self._doomed:
            self._tell(Exited(worker, 10_000 + worker, 9))
            return
        self.world.network.here = self.host
        made = self.workers[worker] = Worker(self.world, self, worker, status_row)
        self._rows[status_row] = made.row
        made.wake()

    def kill(self, worker: int) -> None:
        self._doomed.add(worker)
        if worker in self.workers:
            self.workers[worker].die()
            self.world.network.at(self.world.network.delay(), lambda: self._bury_if_there(worker))

    def _bury_if_there(self, worker: int) -> None:
        if worker in self.workers:
            self.buried(self.workers[worker])

    def buried(self, worker: Worker) -> None:
        """The process of ``worker`` has ended."""
        if self.workers.pop(worker.number, None) is None:
            return
        worker.close()
        worker.line.cut()
        if not self.gone:
            self._tell(Exited(worker.number, 10_000 + worker.number, 9))

    def crash(self) -> None:
        """The whole machine is gone."""
        self.gone = True
        for worker in [*self.workers.values()]:
            worker.die()
            self.buried(worker)

    def _tell(self, event: Any) -> None:
        self._events.append(event)
        self.wake()

    def dump(self, worker: int) -> None:
        pass

    def is_stopped(self, worker: int) -> bool:
        return False

    def keep_row(self, status_row: int, row: array[int]) -> None:
        """Have the row of a worker that dies stay as it is."""
        self._rows[status_row] = row

    def row(self, status_row: int) -> memoryview:
        return memoryview(self._rows[status_row])

    def events(self) -> list[Any]:
        out, self._events = self._events, []
        return out

    def fileno(self) -> str:
        return ENGINE

    def close(self) -> None:
        self.crash()


class Turns:
    """A loop that takes a turn when something has come for it, and every now and then; unless it stands still."""

    def __init__(self, world: World, turn: Callable[[], bool | None], every: float) -> None:
        self._world, self._turn, self._every = world, turn, every
        self._due = float("inf")
        self._number = 0  # of the turn that is due: a later one takes its place
        self._frozen_until = 0.0
        self.over = False
        self.wake()

    def wake(self, delay: float | None = None) -> None:
        now = self._world.network.clock.now
        if delay is None:
            delay = self._world.random.random() * 0.0005
        self._plan(max(now + delay, self._frozen_until))

    def _plan(self, when: float) -> None:
        if when < self._due and not self.over:
            self._due = when
            self._number += 1
            number = self._number
            self._world.network.at(when - self._world.network.clock.now, lambda: self._run(number))

    def freeze(self, seconds: float) -> None:
        self._frozen_until = self._world.network.clock.now + seconds
        self._due = float("inf")
        self._plan(self._frozen_until)

    def _run(self, number: int) -> None:
        if self.over or number != self._number:
            return
        self._due = float("inf")
        more = self._turn()
        self.wake(0.0001 if more else self._every)


class Host:
    """A machine with an agent and its workers."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        network = world.network
        network.here = number
        self.hub = Hub(network, "")
        known = world.server._schema is not None and world.spec.workers  # else it says itself what the code is
        self.alien = bool(known) and world.random.random() < 0.2
        self.engine = Engine(world, number, self.hub, world.schema, "another" if self.alien else "the same")
        setup = AgentSetup(
            address="tcp://head:7701?key=" + "a" * 64, public_key="", secret_key="", name=f"host {number}",
            places=world.random.choice([1, 1, 2, 3]), root="/", path=(), worker_address="", digest=world.digest,
            patience=1e9,
        )  # fmt: skip
        engine: Any = self.engine
        hub: Any = self.hub
        self.agent = Agent(setup, world.spec, world.files, engine, hub, -1, -2)
        self.turns = Turns(world, self._turn, TIMING.host_beat / 2)
        self.hub.wake = self.engine.wake = self.turns.wake
        self.leaving = False
        self.end: AgentEnd | None = None
        self.error: Error | None = None

    def _turn(self) -> None:
        self.world.network.here = self.number
        self.world.turning = self
        try:
            self.agent._round()
            self.end = self.agent._end
        except Error as error:
            self.error = error
        finally:
            self.world.turning = None
        if self.end is not None or self.error is not None:
            self.stop()

    def crash(self) -> None:
        """The machine loses its power: nothing of it says another word."""
        self.turns.over = True
        self.engine.crash()
        self.world.network.cut(self.number)
        self.world.hosts.pop(self.number, None)

    def stop(self) -> None:
        """The agent has ended, and its engine with it."""
        self.turns.over = True
        self.engine.close()
        self.agent.close()
        self.world.network.cut(self.number)
        self.world.hosts.pop(self.number, None)
        self.world.ended.append(self)

    def leave(self) -> None:
        """It gets SIGTERM."""
        self.leaving = True
        self.world.network.here = self.number
        self.agent._signalled(_SIGTERM)
        self.turns.wake()


class Trainer:
    """One that reads all passes, at a pace of its own."""

    def __init__(self, world: World, options: dict[str, Any]) -> None:
        self.world = world
        self.line = Line(world.clients, self._came)
        self.line.send([m.encode(m.Attach(m.WIRE_VERSION, "default", 0, 1, "s", options, 1))])
        self.passes = [Seen(0)]
        self.over = False
        self._used = 0
        self._schema: Any = None

    def _say(self, message: m.Message) -> None:
        self.line.send([m.encode(message)])

    def _begin(self) -> None:
        self._used = 0
        run, number = len(self.passes), self.passes[-1].pass_id
        self._say(m.BeginPass(run, number, 0, self.world.random.randint(1, 3), {}, 0, [], ""))

    def _came(self) -> None:
        while (frames := self.line.receive()) is not None:
            message, body = m.decode(frames)
            self._handle(message, body)

    def _handle(self, message: m.Message, body: Any) -> None:
        seen = self.passes[-1]
        match message:
            case m.Welcome(schema):
                self._schema = Schema.from_wire(schema)
                self._begin()
            case m.BatchHead():
                for received in parse_batches(self._schema.slots, message, body, None, self._used):
                    batch = received.to_batch(seen.pass_id)
                    seen.batches.append(list(zip(batch[0].tolist(), batch[1].tolist(), strict=True)))
                    seen.pool_weights.append(batch.pool_weight)
                    seen.padding += batch.padding
                    self._used += 1
                    self.world.network.at(self.world.random.choice([0.0, 0.001, 0.02]), self._need)
            case m.PassEnd():
                seen.whole, seen.dropped = True, message.dropped
                self._after_pass()
            case m.Failed(_, error):
                seen.whole, seen.error = True, from_wire(error)
                self._after_pass()
            case m.Refused(error):
                raise from_wire(error)

    def _need(self) -> None:
        if not self.passes[-1].whole and self._used:
            self._say(m.Need(len(self.passes), 1, self._used, 0, 0))

    def _after_pass(self) -> None:
        if len(self.passes) == self.world.case.passes:
            self.over = True
        else:
            self.passes.append(Seen(len(self.passes)))
            self._begin()


class World:
    """All of it, for ``case``; ``folder`` is for files of the server."""

    def __init__(self, case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.case, self.random = case, Random(f"world {case.seed}")
        self.network = Network(self.random)
        self.names = [str(i) for i in range(len(case.files))]
        self.kills = case.kills
        self.deaths: Counter[tuple[int, int]] = Counter()
        self.faults = self.random.choice([0, 1, 3, 6])
        self.losses = 4  # hosts that may be lost: after five in a row, the file that they read counts as the cause
        self.done: Counter[str] = Counter()
        self.hosts: dict[int, Host] = {}
        self.ended: deque[Host] = deque()
        self.turning: Host | None = None
        self.schema = self.provider(None).schema.to_wire()
        self.clients, self.far = Hub(self.network, "trainer"), Hub(self.network, "worker")
        near = Hub(self.network, "")
        self._patch(monkeypatch)
        local = self.random.choice([0, 0, 1])
        self.files = FileList.of(self.names)
        self.spec = ServiceSpec(
            provider="p.process", args=msgpack.packb({}), is_train=True, input_order=(), root=str(folder), path=(),
            workers=local, start="auto", memory_limit=2 << 30, worker_memory=None, sample_timeout=None,
            skip_errors=case.skip, error_budget=case.error_budget, quarantine=None, warn_changed=False,
            client_address="", run_dir="", worker_address="", cache_dir=str(folder), timing=TIMING,
        )  # fmt: skip
        self.engine = Engine(self, 0, near, self.schema, "the same")
        hosts = host_gateway.HostGateway(self.spec, self.files, self.far)  # type: ignore[arg-type]
        self.digest = hosts._digest
        self.log: list[str] = []
        monkeypatch.setattr(server_loop, "write_stderr", self.log.append)
        monkeypatch.setattr(agent_module, "write_stderr", self.log.append)
        ends: Any = (self.engine, near, self.clients)
        self.server = Server(self.spec, self.files, *ends, -1, -2, hosts)
        self.server._apply(self.server._worker_pool.start())
        self.turns = Turns(self, self._serve, TIMING.tick)
        self.clients.wake = self.far.wake = near.wake = self.engine.wake = self.turns.wake
        self._numbers = iter(range(1, 1000))
        for _ in range(self.random.choice([1, 2, 3])):
            self.network.at(self.random.choice([0.0, 0.1]), self.add_host)
        plan = case.plan
        self.trainer = Trainer(
            self,
            {
                "batch_size": plan.batch_size, "seed": plan.seed, "shuffle": plan.shuffle, "order": plan.order,
                "interleave": plan.interleave, "pool_bytes": plan.pool_bytes, "last_batch": plan.last_batch,
            },
        )  # fmt: skip

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put clock and network in the place of the real ones."""
        for module in (server_loop, gateway, agent_module, watchdog):
            monkeypatch.setattr(module, "time", self.network.clock)
        for module in (server_loop, agent_module):
            monkeypatch.setattr(module, "Poller", Poller)
        monkeypatch.setattr(service_link, "new_context", NoContext)
        monkeypatch.setattr(service_link, "Line", self._connect)
        monkeypatch.setattr(gateway, "_READ_AHEAD", self.case.budget)
        monkeypatch.setattr(gateway, "_READ_AHEAD_WORKER", 0)
        monkeypatch.setattr(gateway, "create_shared_pool", lambda slots: None)

    def _connect(self, context: Any, address: str, **options: Any) -> Line:
        host = self.turning
        assert host is not None
        return Line(self.far, host.turns.wake)

    # -- the user's code -----------------------------------------------------------------------------------------------
    def provider(self, worker: Any) -> Any:
        case = self.case

        def process(settings: Any, filename: str) -> Iterator[Any]:
            number = int(filename)
            script = case.files[number]
            for y, item in enumerate((*script.items, None)):
                self._ask(worker, script, number, y)
                if isinstance(item, Sample):
                    yield {"file": number, "y": y, "weight": item.weight, "data": [1] * item.values}
                elif isinstance(item, Bad):
                    yield {"file": number, "y": 1 << 30 if item.late else None, "weight": 0, "data": []}
            if script.raises:
                raise LookupError("as the script says")

        return provider(
            input_types=TYPES, pool_size=case.pool_size, min_pool_size=case.min_pool_size, should_shuffle=True,
            can_over_batch_size=case.can_over, calc_batch_size=weight, check=True, check_fail_continue=True,
        )(process).start()  # fmt: skip

    def _ask(self, worker: Any, script: Any, file: int, y: int) -> None:
        """``next()`` runs: the one moment in which a death has somebody to blame."""
        if self.random.random() < 0.1:
            worker.send_now()
        killed = script.poison == y
        if not killed and self.kills and self.deaths[file, y] < 2 and self.random.random() < 0.01:
            self.kills -= 1
            killed = True
        if killed and not worker.wire.dead:
            self.deaths[file, y] += 1
            worker.die()

    # -- what goes wrong -----------------------------------------------------------------------------------------------
    def add_host(self) -> None:
        """One more machine joins."""
        number = next(self._numbers)
        self.hosts[number] = Host(self, number)

    def fault(self) -> None:
        """Something goes wrong, or somebody comes or goes."""
        if self.trainer.over or not self.faults:
            return
        self.faults -= 1
        random, hosts = self.random, [*self.hosts.values()]
        kind = random.choice(["cut", "hold", "crash", "freeze", "stop server", "leave", "join", "kill"])
        if not hosts or (kind in ("cut", "hold", "crash", "freeze", "stop server") and not self.losses):
            kind = "join"
        self.done[kind] += 1
        seconds = random.choice([0.01, 0.1, 0.4, 1.0, 2.0])
        host = random.choice(hosts) if hosts else None
        if host is not None and kind in ("cut", "hold", "crash", "freeze"):
            self.losses -= 1
        match kind, host:
            case "join", _:
                self.add_host()
            case "stop server", _:
                self.losses = max(0, self.losses - len(hosts))
                self.turns.freeze(seconds)
            case "cut", Host():
                self.network.cut(host.number)
            case "hold", Host():
                self.network.hold(host.number, seconds)
            case "crash", Host():
                host.crash()
                self.network.at(seconds, self.add_host)
            case "freeze", Host():
                host.turns.freeze(seconds)
            case "leave", Host():
                host.leave()
                self.network.at(seconds, self.add_host)
            case "kill", Host() if host.engine.workers:
                host.engine.kill(random.choice([*host.engine.workers]))
        self.network.at(random.expovariate(30.0), self.fault)

    # -- time goes on --------------------------------------------------------------------------------------------------
    def _serve(self) -> bool:
        self.network.here = 0
        return self.server._round(0.0)

    def run(self) -> list[Seen]:
        """All passes; what the trainer saw."""
        self.network.at(self.random.expovariate(30.0), self.fault)
        steps = 0
        try:
            while not self.trainer.over:
                steps += 1
                if steps > STEPS or not self.network.advance():
                    raise Stuck(
                        f"no end after {steps} steps and {self.network.clock.now - 1000:.1f} s; {self.log[-9:]}"
                    )
                while self.ended:
                    self._check_end(self.ended.popleft())
            return self.trainer.passes
        finally:
            for host in [*self.hosts.values()]:
                host.crash()
            self.server.close("the test is over", None, asked=True)

    def _check_end(self, host: Host) -> None:
        """A host ends only if it is told to, or is not what it must be."""
        if host.alien:
            assert host.error is None or "is another one on" in str(host.error)
            if host.error is not None:
                self.network.at(0.05, self.add_host)
            return
        assert host.error is None, host.error
        assert host.leaving, host.end
