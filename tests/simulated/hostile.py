"""Ends of a host's link that lie: a host that has a key and sends mutated frames of a real one, and a service that
sends mutated frames of a real one to an agent. What is mutated was recorded in a world in which nobody lies."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgpack

from pydp2.errors import RemoteProtocolError
from pydp2.host.list_entries import sampled_entries
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import FileRange
from pydp2.protocol.link_states import HOST_LINK, LinkRole, LinkState
from pydp2.system.release import RELEASE

from ..protocol.conftest import EXAMPLES
from ..protocol.test_broken_frames import mutate, mutated_frames
from .hosts import Worker
from .network import Line
from .schedules import hosted, scheduled
from .world import World

Message = list[bytes]
STATES = ("before it joins", "joined", "at work", "draining", "its session is over")
ODD: list[Any] = [
    0, 1, 2, 3, -1, 127, 1023, 1024, 4097, 2**31, 2**32, 2**62 - 1, 2**63, 2**64 - 1, None, True, "",
    "x" * 40_000, "\x1b[2J\n", b"\xff", 1.5, float("nan"), [], [[]], [0] * 5000,
    [[[[[[[[[[[[[[1]]]]]]]]]]]]]], {}, {"a": {"a": {}}}, {"kind": "Error"},
    {"kind": "ProviderError", "builtin": "KeyboardInterrupt"}, msgpack.Timestamp(1, 2), msgpack.ExtType(5, b"abc"),
    b"cos\nsystem\n(S'touch /tmp/pickled'\ntR.", b"\x80\x04\x95",
]  # fmt: skip
"""Values that stand where another one should: too large, of another type, deep, a pickle."""


class Recorded:
    """Frames of real hosts and a real service, by the kind of message."""

    def __init__(self) -> None:
        self.of_hosts: dict[str, list[Message]] = defaultdict(list)
        self.of_service: dict[str, list[Message]] = defaultdict(list)

        for kind in (m.Refused, m.Closing, m.KillWorker):  # those that come seldom
            self.of_service[kind.__name__] += [[m.encode(each)] for each in EXAMPLES if type(each) is kind]
        for example in EXAMPLES:
            if (LinkState.PREPARED, LinkRole.HOST, type(example)) in HOST_LINK or isinstance(example, m.WorkerExited):
                self.of_hosts[type(example).__name__].append([m.encode(example)])

    def add(self, into: dict[str, list[Message]], frames: Sequence[memoryview]) -> None:
        message = [bytes(frame) for frame in frames]
        messages = into[msgpack.unpackb(message[0])[0]]
        if len(messages) < 40:
            messages.append(message)


def record(folder: Path, seeds: Sequence[int]) -> Recorded:
    """The frames of the worlds of ``seeds``."""
    recorded = Recorded()
    for seed in seeds:
        with scheduled(seed) as patch:
            world = World(hosted(seed), folder, patch)
            put, deliver = world.far.put, Line.deliver

            def heard(peer: bytes, frames: list[memoryview], put: Any = put) -> None:
                recorded.add(recorded.of_hosts, frames)
                put(peer, frames)

            def noted(line: Line, frames: list[memoryview], world: World = world, deliver: Any = deliver) -> None:
                if line._hub is world.far:
                    recorded.add(recorded.of_service, frames)
                deliver(line, frames)

            patch.setattr(world.far, "put", heard)
            patch.setattr(Line, "deliver", noted)
            world.run()
    return recorded


def broken(choose: Random, message: Message) -> Message:
    """``message`` with something changed: bytes, frames, or one value in its header."""
    if choose.random() < 0.4:
        return mutated_frames(choose, message)
    head, *body = message
    value = msgpack.unpackb(head)
    _replace(choose, value)
    try:
        head = msgpack.packb(value)
    except (ValueError, OverflowError):
        return [mutate(choose, head), *body]
    return [head, *body]


def _replace(choose: Random, value: Any) -> None:
    """Put an odd value somewhere into ``value``, a list or dict, and not always on top."""
    keys = [*value] if isinstance(value, dict) else [*range(len(value))]
    if not keys:
        return
    at = choose.choice(keys)
    inner = value[at]
    if isinstance(inner, list | dict) and inner and choose.random() < 0.7:
        _replace(choose, inner)
    elif isinstance(value, list) and choose.random() < 0.1:
        choose.choice([value.pop, lambda: value.append(choose.choice(ODD)), lambda: choose.shuffle(value)])()
    elif choose.random() < 0.5:
        value[at] = choose.choice(ODD)
    else:  # what passes the first look
        value[at] = choose.choice([each for each in ODD if type(each) is type(inner)] or ODD)


class LyingHost:
    """Host number ``number`` that joins ``world`` again and again, each time up to one of the states, and sends what is
    broken there. ``is_harmless``: nothing that it sends counts as a sample of it, or blames a file: a host that has a
    key may say such things, and is believed."""

    def __init__(self, world: World, number: int, recorded: Recorded, *, is_harmless: bool = True) -> None:
        self.world, self.number, self.recorded, self._is_harmless = world, number, recorded, is_harmless
        self._choose = Random(f"liar {world.case.seed} {number}")
        self.sent: Counter[str] = Counter()
        """Broken messages that were heard, by state."""
        self.over = False
        self._begin()

    # -- a session -------------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        """Connect, and go on to a state."""
        self._here()
        self._state = self._choose.choice(STATES)
        self._left = self._choose.choice([1, 2, 3, 10] if self._state in STATES[:2] else [3, 30, 100])
        self._own: dict[int, tuple[int, int]] = {}  # attempts that it was given: the file, and where to begin
        self._lines = [Line(self.world.far, self._came) for _ in range(2)]
        self._heard = 0
        if self._state != "before it joins":
            self._session = f"{self._choose.random()}"
            self._join()
        wait = 0.004 if self._state in STATES[:2] else self._choose.choice([0.004, 0.03])  # until workers have files
        self.world.network.at(self._choose.random() * wait, self._act)

    def _join(self) -> None:
        self._say(0, m.Join(m.WIRE_VERSION, RELEASE, "liar", self._choose.choice([1, 2]), self._session, "", {}))

    def _prepare(self) -> None:
        self._say(0, m.Prepared([0] * len(sampled_entries(self.world.files))))
        if self._state == "draining":
            self._say(0, m.Drain())

    def _here(self) -> None:
        self.world.network.here = self.number

    def _say(self, line: int, message: m.Message, frames: Sequence[bytes] = ()) -> None:
        self._here()
        self._lines[line].send([m.encode(message), *frames])

    def _came(self) -> None:
        """Start the workers that it is to start, in words, and note the attempts that they are given."""
        for line in self._lines:
            while (frames := line.receive()) is not None:
                self._heard += 1
                message, body = m.decode(frames)
                if isinstance(message, m.Closing | m.Refused):
                    self._left = 0
                elif isinstance(message, m.Spec) and self._state not in STATES[:2]:
                    self._say(1, m.OpenData(self._session))
                elif isinstance(message, m.DataOpened):
                    self._prepare()
                elif isinstance(message, m.KillWorker):
                    if self._choose.random() < 0.7:
                        self._say(1, m.WorkerExited(message.worker, 9, [], "", False, False))
                elif isinstance(message, m.StartWorker):
                    self._say(1, m.WorkerStarted(message.worker, 77))
                    for words in (
                        m.Hello(m.WIRE_VERSION, message.worker, 77),
                        m.Declared(self.world.schema, "the same", []),
                    ):
                        self._say(1, m.FromWorker(message.worker, []), [m.encode(words)])
                elif isinstance(message, m.ToWorker):
                    inner, _ = m.decode(body)
                    if isinstance(inner, m.Assign):
                        self._own |= {attempt: (file, start) for file, attempt, _, start, *_ in inner.items}

    def _act(self) -> None:
        """Send something broken, or end the session."""
        if self.over or all(line.is_lost for line in self._lines) or not self._left:
            self._end()
            return
        self._left -= 1
        if self._state == "its session is over" and self._choose.random() < 0.5:
            self._say(0, m.Hello(1, 1, 1))  # which no host may say
        message = self._something()
        if self._is_harmless and not self._does_nothing(message):
            message = [mutate(self._choose, b"\xc1" + message[0][:50])]
        self._here()
        of_data = b"Worker" in (message or [b""])[0][:20]  # which it says over the second connection
        line = self._lines[of_data if self._choose.random() < 0.9 else not of_data]
        line.send(message or [b""])
        self.sent[self._state] += line._peer not in self.world.far.ended
        self.world.network.at(self._choose.random() * 0.001, self._act)

    def _end(self) -> None:
        for line in self._lines:
            line.cut()
        if not self.over:
            self.world.network.at(self._choose.random() * 0.002, self._begin)

    # -- what it sends ---------------------------------------------------------------------------------------------
    def _something(self) -> Message:
        """A message of a real host in the wrong place, or broken; what a worker says of one of its own."""
        kinds = self.recorded.of_hosts
        workers = self.world.server.pool.workers_of(self._host())
        of_workers = ("FromWorker", "FromWorker", "WorkerExited", "HostBeat")
        message = self._choose.choice(kinds[self._choose.choice(of_workers if workers else [*kinds])])
        name, *fields = msgpack.unpackb(message[0])
        if name in ("FromWorker", "WorkerStarted", "WorkerExited") and workers and self._choose.random() < 0.9:
            message = [msgpack.packb([name, self._choose.choice(workers), *fields[1:]]), *message[1:]]
        if name == "WorkerExited" and self._is_harmless:
            fields[2] = []  # it blames no file
            message = [msgpack.packb([name, *fields])]
        if name == "FromWorker":
            message = self._of_own_files(message)
            if self._choose.random() < 0.8:
                return [message[0], *broken(self._choose, message[1:])]
        return broken(self._choose, message) if self._choose.random() < 0.9 else message

    def _of_own_files(self, message: Message) -> Message:
        """The same with files in it that it was given, if that may do harm."""
        inner = msgpack.unpackb(message[1])
        if self._is_harmless or inner[0] != "Chunk" or not self._own:
            return message
        for part in inner[2]:
            part[1] = self._choose.choice([*self._own])
            part[0], part[2] = self._own[part[1]]
        return [message[0], msgpack.packb(inner), *message[2:]]

    def _host(self) -> int:
        session = self.world.server._hosts.sessions.at(self._lines[0]._peer)  # type: ignore[union-attr]
        return -1 if session is None else session.host

    def _does_nothing(self, frames: Message) -> bool:
        """True if no sample and no blame can come of ``frames``."""
        try:
            message, body = m.decode(frames)
            match message:
                case m.Join() | m.Prepared():  # it lacks files, or has others
                    return False
                case m.HostBeat(_, running, _) | m.WorkerExited(_, _, running):
                    return not running
                case m.FromWorker():
                    inner, _ = m.decode(body)
                    match inner:
                        case m.Chunk():
                            parts = [FileRange.from_wire(part) for part in inner.parts]
                            return self._own.keys().isdisjoint(part.attempt for part in parts)
                        case m.Declared():
                            return inner.schema != self.world.schema
        except RemoteProtocolError:
            pass
        return True


@contextlib.contextmanager
def quiet_world(seed: int, folder: Path, **changes: Any) -> Iterator[World]:
    """The world of ``seed``, with ``changes`` of its case, in which nothing goes wrong by itself; its end."""
    with scheduled(seed) as patch:
        world = World(replace(hosted(seed), **changes), folder, patch)
        world.faults = 0
        try:
            yield world
        finally:
            world.end()


def lie_in(world: World, liars: Sequence[LyingHost], is_over: Callable[[], bool], steps: int = 2_000_000) -> None:
    """Let time go on in ``world`` until ``is_over()``; then the liars go."""
    for _ in range(steps):
        if is_over():
            break
        assert world.network.advance()
    else:
        raise AssertionError(f"no end after {steps} steps: {world.log[-9:]}")
    for liar in liars:
        liar.over = True


class LyingService:
    """In place of the service of ``world``: it lets hosts join, has them start workers, and says what is broken."""

    def __init__(self, world: World, recorded: Recorded) -> None:
        self.world, self.recorded = world, recorded
        self._choose = Random(f"service {world.case.seed}")
        self.sent = 0
        """Broken messages that were sent."""
        self.started = 0
        """Workers that hosts were told to start, in order."""
        self._control_of: dict[str, bytes] = {}  # of each session
        world.turns.over = True
        world.far.wake = self._came

    def _came(self) -> None:
        while (received := self.world.far.receive()) is not None:
            peer, frames = received
            match m.decode(frames)[0]:
                case m.Join(session=session):
                    self._control_of[session] = peer
                    if self._choose.random() < 0.9:
                        self._say(peer, m.Spec({}, self.world.digest))
                    self._later(peer)
                case m.OpenData(session) if (control := self._control_of[session]) in self.world.far.peers:
                    self._say(control, m.DataOpened())
                case m.Prepared():
                    for row in range(self._choose.randrange(3)):
                        self._say(peer, m.StartWorker(self.started, row))
                        self.started += 1

    def _say(self, peer: bytes, message: m.Message) -> None:
        self.world.far.send(peer, [m.encode(message)])

    def _later(self, peer: bytes) -> None:
        self.world.network.at(self._choose.random() * 0.01, lambda: self._lie(peer))

    def _lie(self, peer: bytes) -> None:
        if peer not in self.world.far.peers:
            return
        kinds = self.recorded.of_service
        message = self._choose.choice(kinds[self._choose.choice([*kinds])])
        name, *fields = msgpack.unpackb(message[0])
        if name in ("ToWorker", "KillWorker", "StartWorker") and self.started:
            worker = self.started - self._choose.randrange(1, 4)  # one that may be there
            message = [msgpack.packb([name, max(0, worker), *fields[1:]]), *message[1:]]
        if name == "ToWorker" and self._choose.random() < 0.7:
            message = [message[0], *broken(self._choose, message[1:])]
        elif self._choose.random() < 0.9:
            message = broken(self._choose, message)
        self.world.far.send(peer, message or [b""])
        self.sent += 1
        self._later(peer)


def hear_nothing(worker: Worker) -> None:
    """A turn of a worker that does not look at what it is told."""
    worker._at_work = False
    worker.inbox.clear()
    if worker.wire.dead:
        worker.engine.buried(worker)
