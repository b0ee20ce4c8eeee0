"""Machines with an agent and its workers: the real loops, which take turns when the clock lets them."""

from __future__ import annotations

import importlib.util
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydp2.errors import Error
from pydp2.host.agent.agent import Agent, AgentEnd
from pydp2.host.agent.row_server import RowServer, TrainerKeys
from pydp2.host.agent.setup import AgentSetup
from pydp2.host.engine import Exited, Started
from pydp2.options.timing import Timing
from pydp2.protocol import messages as m
from pydp2.transport.keys import KeyPair

from .network import ENGINE, HEARTBEAT_TIMEOUT, Hub, Line
from .workers import Worker as PausedWorker

if TYPE_CHECKING:
    from .world import World

TIMING = Timing(
    host_beat=0.05, host_timeout=HEARTBEAT_TIMEOUT, host_drain=1.0, tick=0.1, worker_last_words=0.05,
    snapshot_interval=0.1, trainer_probe=0.2, trainer_last_words=0.05,
)  # fmt: skip
COMPRESSES = importlib.util.find_spec("zstandard") is not None
"""Every other host compresses what its workers send, if that can be."""
ROWS = 100  # that the shared memory of a host has
_SIGTERM = b"\x0f"


def pid_of(worker: int) -> int:
    """Return the process number of a worker; a service that lies may give its worker any number."""
    return 10_000 + worker % (1 << 22)


class Worker(PausedWorker):
    """A worker of one host, which runs when the clock lets it."""

    world: World

    def __init__(self, world: World, engine: Engine, number: int, status_row: int) -> None:
        self.engine = engine
        self._at_work = False
        self.line = Line(engine.hub, self._came)
        super().__init__(world, number, status_row, self.line.send)
        self.line.send([m.encode(m.Hello(m.WIRE_VERSION, number, pid_of(number)))])
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
    """As :class:`pydp2.host.engine.Engine`, of the host number ``host``: processes are objects that take turns."""

    out_of_descriptors = False

    def __init__(self, world: World, host: int, hub: Hub, schema: dict[str, Any], source: str) -> None:
        self.world, self.host, self.hub = world, host, hub
        self.schema, self.source = schema, source
        self.workers: dict[int, Worker] = {}
        self._rows: dict[int, array[int]] = {}
        self._doomed: set[int] = set()
        self._events: list[Any] = []
        self.wake: Callable[[], object] = lambda: None
        self.is_gone = False

    def start(self, worker: int, status_row: int) -> None:
        if not 0 <= status_row < ROWS:
            raise IndexError(status_row)
        self._rows[status_row] = array("q", bytes(64))
        slow = self.world.random.random() < 0.1
        delay = self.world.random.random() * (0.3 if slow else 0.02)
        self.world.network.at(delay, lambda: self._started(worker, status_row))

    def _started(self, worker: int, status_row: int) -> None:
        if self.is_gone:
            return
        self._tell(Started(worker, pid_of(worker)))
        if worker in self._doomed:
            self._tell(Exited(worker, pid_of(worker), 9))
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
        if not self.is_gone:
            self._tell(Exited(worker.number, pid_of(worker.number), 9))

    def crash(self) -> None:
        """The whole machine is gone."""
        self.is_gone = True
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
        known = world.server.workers.schema is not None and world.spec.workers  # else it says itself what the code is
        self.alien = bool(known) and world.random.random() < 0.2
        self.engine = Engine(world, number, self.hub, world.schema, "another" if self.alien else "the same")
        setup = AgentSetup(
            address="tcp://head:7701?key=" + "a" * 64, public_key="", secret_key="", name=f"host {number}",
            worker_slots=world.random.choice([1, 1, 2, 3]), root="/", path=(), worker_address="", digest=world.digest,
            patience=1e9, compress="zstd" if COMPRESSES and number % 2 else "", data_connections=1 + number % 3,
        )  # fmt: skip
        engine: Any = self.engine
        hub: Any = self.hub
        self.rows: Hub | None = None
        if world.rows_stay and number % 4:
            self.rows = Hub(network, "trainer", number)
        rows: Any = self.rows
        server = None if rows is None else RowServer(rows, TrainerKeys(KeyPair("", "")))
        self.agent = Agent(setup, world.spec, world.files, engine, hub, -1, -2, server)
        self.turns = Turns(world, self._turn, TIMING.host_beat / 2)
        self.hub.wake = self.engine.wake = self.turns.wake
        if self.rows is not None:
            self.rows.wake = self.turns.wake
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
        self._end_rows()
        self.engine.crash()
        self.world.network.cut(self.number)
        self.world.hosts.pop(self.number, None)

    def stop(self) -> None:
        """The agent has ended, and its engine with it."""
        self.turns.over = True
        self._end_rows()
        self.engine.close()
        self.agent.close()
        self.world.network.cut(self.number)
        self.world.hosts.pop(self.number, None)
        self.world.ended.append(self)

    def _end_rows(self) -> None:
        if self.rows is not None:
            self.rows.end()

    def leave(self) -> None:
        """It gets SIGTERM."""
        self.leaving = True
        self.world.network.here = self.number
        self.agent._signalled(_SIGTERM)
        self.turns.wake()
