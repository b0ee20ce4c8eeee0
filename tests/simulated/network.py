"""A network and a clock that a seed decides: connections with delays, that are cut, or carry nothing for a while.

Everything runs in one thread, in the order of virtual time. What two connections carry has no order between them; each
direction of one keeps its own.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

from pydp2.transport.refusals import Refusals
from pydp2.transport.slabs import plain_frames
from pydp2.transport.sockets import PeerGone

from .tasks import Task

LAST_WORDS = 0.05
"""Seconds between the end of a peer and that of its connection."""
HEARTBEAT_TIMEOUT = 0.5
"""Seconds without a byte after which both ends of a connection take it for cut."""


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return 0.0  # work takes no time here

    def sleep(self, seconds: float) -> None:
        assert self._network.running is not None, "a loop sleeps"
        self._network.running.wait(seconds)


class Network:
    """What happens when. ``path``: of each host, until when it carries nothing."""

    def __init__(self, random: Random) -> None:
        self.random, self.clock = random, Clock(self)
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()
        self.here = 0
        """Machine whose code runs now; 0: that of the service, below: one of a trainer."""
        self.running: Task | None = None
        """Task that runs now; None: a loop does."""
        self.held_until: dict[int, float] = {}
        self.lines: list[Line] = []

    def at(self, delay: float, what: Callable[[], object]) -> None:
        """Have ``what`` happen ``delay`` seconds from now."""
        heappush(self._events, (self.clock.now + delay, next(self._count), what))

    def advance(self) -> bool:
        """Let the next thing happen. False: there is none."""
        if not self._events:
            return False
        when, _, what = heappop(self._events)
        self.clock.now = max(self.clock.now, when)
        what()
        return True

    def delay(self) -> float:
        """How long a message is under way."""
        return self.random.choice([0.0, 0.0001, 0.0005, self.random.random() * 0.005])

    def cut(self, host: int) -> None:
        """Reset the connections of ``host``. One end may take notice later than the other."""
        for line in [line for line in self.lines if host in line.machines]:
            line.cut(*(self.random.choice([0.0, 0.0, HEARTBEAT_TIMEOUT]) for _ in "12"))

    def hold(self, host: int, seconds: float) -> None:
        """Let the path of ``host`` carry nothing for a while. If that is long, its connections are cut."""
        self.held_until[host] = self.clock.now + seconds
        if seconds > HEARTBEAT_TIMEOUT:
            for line in [line for line in self.lines if host in line.machines]:
                self.at(HEARTBEAT_TIMEOUT, line.cut)


class Hub:
    """As :class:`pydp2.transport.Hub`; ``wake`` is called when something has come."""

    listeners: tuple[()] = ()

    def __init__(self, network: Network, role: str, machine: int = 0) -> None:
        self.network, self._role, self.machine = network, role, machine
        self.address = f"tcp://machine{machine}:7800?key=" + "b" * 64
        self.wake: Callable[[], object] = lambda: None
        self.on_refusal: Any = None
        self.fd_offer = _NoOffer()
        self.handle = object()
        self.box: deque[tuple[bytes, list[memoryview]]] = deque()
        self.peers: dict[bytes, Any] = {}
        self.ended: set[bytes] = set()
        self.refusals = Refusals()
        self.is_down = False
        """True once the process is gone that had it."""
        self._count = itertools.count(1)

    def end(self) -> None:
        """Reset all connections, and take no more: the process has ended."""
        self.is_down = True
        for line in [*self.peers.values()]:
            line.cut()

    def up(self) -> None:
        """Take connections again."""
        self.is_down = False

    def end_soon(self) -> None:
        """Take no more, and reset all connections behind the last words that were sent."""
        self.is_down = True
        for line in [*self.peers.values()]:
            line.cut_behind()

    def join(self, line: Any) -> bytes:
        peer = next(self._count).to_bytes(5, "big")
        self.peers[peer] = line
        return peer

    def put(self, peer: bytes, frames: list[memoryview]) -> None:
        if peer in self.peers:
            self.box.append((peer, frames))
            self.wake()

    def send(self, peer: bytes, frames: Sequence[Any]) -> None:
        line = self.peers.get(peer)
        if line is None:
            raise PeerGone
        line.deliver(copied(frames))

    def receive(self) -> tuple[bytes, list[memoryview]] | None:
        while self.box:
            peer, frames = self.box.popleft()
            if peer not in self.ended:
                return peer, frames
        return None

    def open_message(self, peer: bytes, frames: list[memoryview]) -> list[memoryview]:
        return frames

    def accept(self, now: float) -> None:
        pass

    def note_connected(self, process: int) -> None:
        pass

    def pause_accepting(self, seconds: float) -> None:
        pass

    def role_of(self, peer: bytes) -> str:
        return self._role

    def key_of(self, peer: bytes) -> str:
        return "a key"

    def take_dropped(self) -> list[bytes]:
        return []

    def note_refusal(self, peer: bytes, reason: str, now: float) -> None:
        self.refusals.add("", reason, now)

    def end_peer(self, peer: bytes) -> None:
        self.ended.add(peer)
        if (line := self.peers.get(peer)) is not None:
            self.network.at(LAST_WORDS, line.cut)

    def progress_of(self, peer: bytes) -> int:
        return 0

    def forget_peer(self, peer: bytes) -> None:
        pass

    def close(self, linger_ms: int = 0) -> None:
        pass


class _NoOffer:
    offered: Any = None

    def is_used_by(self, peer: bytes) -> bool:
        return False


class Line:
    """As :class:`pydp2.transport.Line`: the end of a peer on the machine whose code makes it. If nobody listens at
    ``hub``, that is noticed soon."""

    def __init__(self, hub: Hub, wake: Callable[[], object]) -> None:
        self._hub, self._network, self._wake = hub, hub.network, wake
        self.host = self._network.here
        self.machines = (self.host, hub.machine) if hub.machine else (self.host,)
        self.handle = object()
        self._inbox: deque[list[memoryview]] = deque()
        self._free_at = [0.0, 0.0]  # of each direction: a message does not overtake another
        self.is_lost = self._is_cut = False
        self.read_refusal = False
        self._peer = b""
        if hub.is_down:
            self._is_cut = True
            self._network.at(self._network.delay(), self._notice)
        else:
            self._peer = hub.join(self)
            self._network.lines.append(self)

    def _later(self, direction: int, what: Callable[[], object]) -> None:
        now = self._network.clock.now
        held = max(self._network.held_until.get(machine, 0.0) for machine in self.machines)
        when = max(now + self._network.delay(), self._free_at[direction], held)
        self._free_at[direction] = when
        self._network.at(when - now, what)

    def send(self, frames: Sequence[Any]) -> None:
        if not self._is_cut:
            message = copied(frames)
            self._later(0, lambda: None if self._is_cut else self._hub.put(self._peer, message))

    def deliver(self, frames: list[memoryview]) -> None:
        if not self._is_cut:
            self._later(1, lambda: None if self._is_cut else self._came(frames))

    def _came(self, frames: list[memoryview]) -> None:
        self._inbox.append(frames)
        self._wake()

    def receive(self, timeout_ms: int = 0) -> list[memoryview] | None:
        return self._inbox.popleft() if self._inbox else None

    def cut(self, notice: float = 0.0, hub_notice: float = 0.0) -> None:
        """The connection is gone, and what was under way is lost; each end notices after so many seconds."""
        if not self._is_cut:
            self._is_cut = True
            self._network.lines.remove(self)
            self._after(notice, self._notice)
            self._after(hub_notice, lambda: self._hub.peers.pop(self._peer, None))

    def cut_behind(self) -> None:
        """Be cut when what was sent to this end has come."""
        self._later(1, self.cut)

    def _after(self, seconds: float, what: Callable[[], object]) -> None:
        if seconds:
            self._network.at(seconds, what)
        else:
            what()

    def _notice(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._wake()

    def close(self, linger_ms: int = 0) -> None:
        self._later(0, self.cut)


class ClientLine(Line):
    """As :class:`pydp2.transport.Line`, with what a client asks of it: it waits for messages in its task."""

    fd_request = None
    is_interrupted = False

    def __init__(self, hub: Hub) -> None:
        task = hub.network.running
        assert task is not None
        self._task = task
        super().__init__(hub, task.wake)

    def receive_frames(self, into: list[Any]) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            into.extend(Frame(frame, at < len(message)) for at, frame in enumerate(message, 1))

    @staticmethod
    def message_length(frames: Sequence[Any], at: int) -> int:
        return next((end + 1 - at for end in range(at, len(frames)) if not frames[end].more), 0)

    @staticmethod
    def is_in_slab(frames: Sequence[Any]) -> bool:
        return False

    def open_message(self, frames: Sequence[Any]) -> list[memoryview]:
        return [frame.buffer for frame in frames]

    def wait(self, timeout_ms: int, wake_descriptor: int | None = None) -> bool:
        return bool(self._inbox) or self.is_lost or self._task.wait(timeout_ms / 1000)

    def share_receive_slab(self) -> None:
        pass

    def request_fd(self) -> None:
        pass

    def write_progress(self, number: int) -> bool:
        return False


class Frame:
    """As a frame of ZeroMQ."""

    def __init__(self, buffer: memoryview, more: bool) -> None:
        self.buffer, self.more = buffer, more


class Poller:
    """As :class:`pydp2.transport.Poller`: nobody waits here. Everything may have something, but what ends a loop."""

    ready: frozenset[Any] = frozenset()

    def add(self, handle: Any) -> None:
        pass

    def remove(self, handle: Any) -> None:
        pass

    def wait(self, timeout_ms: int) -> set[Any]:
        return {ENGINE}


class LastPoller(Poller):
    """The same for a service that ends: nothing more comes."""

    def wait(self, timeout_ms: int) -> set[Any]:
        return set()


class TaskPoller:
    """The same for code that runs in a task, which has taken all that was there."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def add(self, handle: Any) -> None:
        pass

    def wait(self, timeout_ms: int) -> set[Any]:
        assert self._network.running is not None, "a loop waits"
        self._network.running.wait(timeout_ms / 1000)
        return set()


ENGINE = "the engine"
"""Stands for its descriptor."""


class NoContext:
    """As the context of ZeroMQ."""

    def term(self) -> None:
        pass

    def destroy(self, linger: int | None = None) -> None:
        pass


def copied(frames: Sequence[Any]) -> list[memoryview]:
    return [memoryview(bytearray(memoryview(frame).cast("B"))) for frame in plain_frames(frames)]
