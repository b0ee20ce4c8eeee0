"""The server's loop: joins coordinator and job to sockets, processes, clock and terminal. Decides nothing by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from pydp2.engine.base import Engine, EngineLost, Exited, Note, Started
from pydp2.errors import Error, ProtocolError, RemoteProtocolError, ServiceLost, from_wire
from pydp2.files import FileList
from pydp2.inputs.declaration import Declaration
from pydp2.logwriter import say
from pydp2.metrics import resident
from pydp2.protocol import messages as m
from pydp2.protocol.moves import Role, State, worker_link
from pydp2.protocol.seat import Seat
from pydp2.server.actions import (
    Action,
    Fatal,
    Kill,
    Log,
    Loss,
    Send,
    Spawn,
    WorkerBroken,
    WorkerGone,
    WorkerReady,
)
from pydp2.server.chunks import ranges
from pydp2.server.coordinator import Coordinator
from pydp2.server.front import Front
from pydp2.server.keeper import Keeper
from pydp2.server.overseer import WEIGHED, Overseer, Wire
from pydp2.server.placing import Placing, placing
from pydp2.server.quarantine import Quarantine
from pydp2.server.spec import ServiceSpec
from pydp2.transport import Gone, Hub, Poll
from pydp2.transport.sockets import LACKING

_TICK = 0.5  # seconds between looks at what no message announces
_SHOWN = 5  # of each kind of log line, so many are shown in full
_LAST_WORDS = 2.0  # seconds in which what a worker said before it ended arrives
_ACCEPT = 0.25  # seconds between looks how many descriptors are left
_ARRIVING = 1.0  # seconds in which a worker that was let in is connected
_QUIET = 60.0  # seconds after which it is said again that descriptors lack
_BURST = 32  # batches sent before messages are looked for again


class Stop(Exception):
    """The service ends; the text says why. ``asked``: whoever asked knows, nobody has to be told."""

    def __init__(self, reason: str, *, asked: bool = False) -> None:
        super().__init__(reason)
        self.asked = asked


class Server:
    """One service. ``control`` is a descriptor that ends the service when it can be read or its other end is gone."""

    def __init__(
        self,
        spec: ServiceSpec,
        files: FileList,
        engine: Engine,
        workers: Hub,
        clients: Hub,
        control: int,
        wakeup: int,
    ) -> None:
        self._spec = spec
        self._files = files
        self._engine = engine
        self._hub = workers
        self._wires: dict[int, Wire] = {}
        self._number: dict[bytes, int] = {}
        self._coordinator = Coordinator(spec.workers)
        self._overseer = Overseer(spec, files, engine, self._wires, self._coordinator.seat_of, self.log)
        self._keeper = Keeper(spec.state_dir, self.log, spec.timing.snapshots)
        self._front = Front(spec, files, clients, self._coordinator, self.log, self._keeper)
        self._front.server_stats = self.stats
        self._quarantine = Quarantine(spec.quarantine, self.log)
        self._control = control
        self._parent = os.getppid()
        self._wakeup = wakeup
        self._cached = -1  # can be read when the cache on disk has something to say
        self._unheard: dict[int, float] = {}  # workers that ended, and until when their last words may come
        self._logged: Counter[str] = Counter()
        self._declaration: Declaration | None = None
        self._placing: Placing | None = None
        self._poll = Poll()
        self._clients = clients
        workers.tell = clients.tell = self._not_let_in
        self._lacked = -_QUIET
        for handle in (workers.handle, clients.handle, control, wakeup, *workers.listeners, *clients.listeners):
            self._poll.add(handle)
        self._listeners = {*workers.listeners, *clients.listeners}
        self._accepted = 0.0
        self._starved = False  # the engine waits for a descriptor: nobody need tell that it has something
        self._poll.add(engine.fileno())
        self._began = time.monotonic()

    # -- running ---------------------------------------------------------------------------------------------------
    def started(self) -> Declaration:
        """Start the workers and wait for the first that is ready. Raises what keeps the service from starting."""
        self._do(self._coordinator.start())
        while self._declaration is None:
            self._round(_TICK)
        return self._declaration

    def run(self) -> None:
        """Serve until Stop or an error that the service cannot survive."""
        timeout = 0.0
        while True:
            timeout = 0.0 if self._round(timeout) else self._patience()

    def _patience(self) -> float:
        limit = self._spec.sample_timeout
        tick = _TICK if self._spec.worker_memory is None else WEIGHED
        return tick if limit is None else min(tick, limit / 4)

    def _round(self, timeout: float) -> bool:
        """One turn: take what came, do what follows, send what can be sent. True: more can be done at once."""
        ready = self._poll.wait(int(timeout * 1000))
        now = time.monotonic()
        if self._control in ready and self._asked():
            raise Stop("its program closed it", asked=True)
        if self._control in ready or os.getppid() != self._parent:
            # the second look is for a program that forked: its children hold the other end of the control channel too
            raise Stop(f"the program that started it (pid {self._parent}) is gone")
        if self._wakeup in ready:
            number = os.read(self._wakeup, 1)
            raise Stop(f"it received {signal.Signals(number[0]).name}")
        if self._cached in ready:
            self._front.disk_answered()
        if self._engine.fileno() in ready or self._starved:
            self._engine_events()
        if not ready.isdisjoint(self._listeners) or now - self._accepted > _ACCEPT:
            self._accept(ready, now)
        self._worker_messages(now)
        more = self._front.receive(now)
        self._do_rest()
        more = self._front.serve(_BURST, now) or more
        self._do_rest()
        self._front.watch(now)
        self._overseer.look(now)
        for worker in [worker for worker, until in self._unheard.items() if now > until]:
            del self._unheard[worker]
            self._exited(worker, 0)
        return more

    def _accept(self, ready: set[Any], now: float) -> None:
        """Let workers and trainers in."""
        self._accepted = now
        if not ready.isdisjoint(self._hub.listeners):
            self._clients.hold(_ARRIVING)
        self._hub.accept(now)
        self._clients.accept(now)

    def _not_let_in(self, text: str, kind: str) -> None:
        """Tell why somebody was not let in; of descriptors that lack once, until they have not lacked for a while."""
        if kind != LACKING:
            self.log(text, kind)
            return
        now = time.monotonic()
        if now - self._lacked > _QUIET:
            self.log(text, "")
        self._lacked = now

    def _asked(self) -> bool:
        """Whether the program asked for the end; without a word it is gone."""
        try:
            return bool(os.read(self._control, 16))
        except OSError:
            return False

    # -- workers ---------------------------------------------------------------------------------------------------
    def _engine_events(self) -> None:
        try:
            events = self._engine.events()
        except EngineLost as lost:
            raise ServiceLost(str(lost)) from None
        for event in events:
            match event:
                case Started(worker, pid):
                    self._wires.setdefault(worker, Wire(b"", worker_link(Role.SERVER))).pid = pid
                case Exited(worker, _, status):
                    self._worker_messages(time.monotonic())
                    wire = self._wires.get(worker)
                    if status == 0 and (wire is None or wire.link.state in (State.NEW, State.STARTING)):
                        # it ended in order before it was ready: why, it has said, and that is still under way
                        self._unheard[worker] = time.monotonic() + _LAST_WORDS
                    else:
                        self._exited(worker, status)
                case Note(text, kind):
                    self.log(text, kind)
        if self._engine.starved != self._starved:  # what cannot be taken now must not wake us until it can be
            self._starved = self._engine.starved
            (self._poll.remove if self._starved else self._poll.add)(self._engine.fileno())

    def _exited(self, worker: int, status: int) -> None:
        wire = self._wires.pop(worker, None)
        seat = self._coordinator.seat_of(worker)
        if wire is not None:
            self._number.pop(wire.peer, None)
            self._hub.drop(wire.peer)
        running = None if seat is None else Seat(self._engine.row(seat)).running
        how = wire.doomed if wire is not None and wire.doomed else _how(status)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        hungry, timeout = (False, None) if wire is None else (wire.hungry, wire.sample_timeout)
        if self._placing is not None:
            self._placing.gone(worker)
        self._do(self._coordinator.handle(WorkerGone(worker, running, how, not killed, hungry, timeout)))

    def _worker_messages(self, now: float) -> None:
        while (received := self._hub.receive()) is not None:
            peer, frames = received
            try:
                self._worker_message(peer, frames, now)
            except ProtocolError as error:
                worker = self._number.get(peer)
                self.log(f"worker {worker} broke the protocol: {error}", "protocol")
                if worker is not None:
                    self._wires[worker].doomed = "broke the protocol"
                    self._engine.kill(worker)

    def _worker_message(self, peer: bytes, frames: list[memoryview], now: float) -> None:
        worker = self._number.get(peer)
        if worker is None and len(frames) > 1:
            return  # a worker that is gone, and its memory is let go of; its files are with others
        message, body = m.decode(self._hub.open(peer, frames))
        if isinstance(message, m.Hello):
            self._hello(peer, message)
            return
        if worker is None:
            return
        wire = self._wires[worker]
        wire.link.received(message)
        match message:
            case m.Declared(declaration, source, notes):
                if self._declaration is None:
                    for note in notes:
                        self.log(str(note), "")
                    self._overseer.begin(wire.pid)
                    self._declaration = Declaration.from_wire(declaration)
                    self._placing = placing(self._declaration, self._spec.memory_limit)
                    if self._placing is not None:
                        self._hub.gifts.gift = self._placing.for_workers
                    self._front.declared(self._declaration, source, self._placing)
                    if self._front.disk is not None:
                        self._cached = self._front.disk.handle
                        self._poll.add(self._cached)
                self._do(self._coordinator.handle(WorkerReady(worker, declaration)))
            case m.Broken(error):
                self._do(self._coordinator.handle(WorkerBroken(worker, from_wire(error))))
            case m.Chunk():
                self._chunk(worker, wire, message, body, now)

    def _hello(self, peer: bytes, hello: m.Hello) -> None:
        if self._coordinator.seat_of(hello.worker) is None or peer in self._number:
            raise RemoteProtocolError(f"Hello from worker {hello.worker}, who was not started")
        wire = self._wires.setdefault(hello.worker, Wire(b"", worker_link(Role.SERVER)))
        if wire.pid not in (0, hello.pid):  # 0: the engine has not told yet that it started
            raise RemoteProtocolError(f"Hello from worker {hello.worker} in process {hello.pid}, it is in {wire.pid}")
        wire.link.received(hello)
        wire.peer, wire.pid = peer, hello.pid
        self._number[peer] = hello.worker

    def _chunk(self, worker: int, wire: Wire, chunk: m.Chunk, body: Sequence[memoryview], now: float) -> None:
        wire.busy, wire.idle = chunk.busy, chunk.idle
        if self._declaration is None:
            return
        coordinator = self._coordinator
        keep, places = self._front.caching, self._placing
        taken = None if places is None else partial(places.taken, worker)
        for part, run in ranges(chunk, body, self._declaration, coordinator.recalled, keep=keep, taken=taken):
            coordinator.commit(worker, part, run)
        self._grant(worker)
        wire.rates.add(now, chunk.rows)
        for item in chunk.blocked:
            if not (isinstance(item, list) and len(item) == 4 and all(type(v) is int and v >= 0 for v in item)):
                raise RemoteProtocolError("Chunk: malformed blocked entry")
            coordinator.blocked(worker, *item)

    # -- doing what the pure part decided --------------------------------------------------------------------------
    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(worker, message, frames):
                    self._send(worker, message, frames)
                case Spawn(worker, seat):
                    self._engine.start(worker, seat)
                case Kill(worker):
                    self._engine.kill(worker)
                case Log(text, kind):
                    self.log(text, kind)
                case Loss():
                    self._quarantine.add(action)
                case Fatal(error):
                    raise error

    def _do_rest(self) -> None:
        actions, self._front.outbox = self._front.outbox, []
        self._do(actions)
        self._do(self._coordinator.dispatch())

    def _send(self, worker: int, message: m.Message, frames: Sequence[Any] = ()) -> None:
        wire = self._wires.get(worker)
        if wire is None or wire.link.state is not State.READY:
            return
        if isinstance(message, m.Assign):
            self._grant(worker)
        wire.link.sending(message)
        with contextlib.suppress(Gone):  # its exit is on the way, and its files go to another
            self._hub.send(wire.peer, [m.encode(message), *frames])

    def _grant(self, worker: int) -> None:
        """See that ``worker`` has places for what it sends next."""
        if self._placing is not None and (places := self._placing.due(worker)) is not None:
            self._send(worker, m.Places(), [places])

    def log(self, text: str, kind: str) -> None:
        """A line on stderr. Of each kind (but '') the first few in full, then by count at every power of two."""
        if kind:
            self._logged[kind] += 1
            count = self._logged[kind]
            if count > _SHOWN:
                if count & (count - 1) == 0:
                    say(f"pydp2: {kind}: {count} so far")
                return
            text = f"{kind}: {text}"
        say(f"pydp2: {text}")

    def close(self, reason: str, error: Error | None = None, *, asked: bool = False) -> None:
        """Tell everybody, of ``error`` too if that is why, and end the workers. ``asked``: its program wanted that."""
        self._coordinator.close()
        self._front.close(reason, error, asked=asked)
        if self._front.disk is not None:
            self._front.disk.end()
        self._keeper.close()
        self._engine.close()
        self._quarantine.close()
        if self._front.disk is not None:
            self._front.disk.close()
        if self._placing is not None:
            self._placing.close()

    def stats(self) -> dict[str, Any]:
        """The workers as plain data."""
        now = time.monotonic()
        return {
            "workers": [
                {
                    "worker": number, "pid": wire.pid, "active": number in self._coordinator.active,
                    "files": self._coordinator.files_of(number),
                    "samples_per_second": wire.rates.per_second(now),
                    "busy_seconds": wire.busy / 1e6, "idle_seconds": wire.idle / 1e6, "memory": resident(wire.pid),
                }
                for number, wire in sorted(self._wires.items())
            ],
            "memory": resident(os.getpid()),
            "workers_lost": self._coordinator.lost,
            "uptime_seconds": now - self._began,
        }  # fmt: skip


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = number in {int(each) for each in signal.Signals}  # real-time signals have no names
        return f"was killed by {signal.Signals(number).name if known else f'signal {number}'}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
