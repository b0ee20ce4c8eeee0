"""What workers may not do: take too long for a sample, stand still, have too much memory. Whoever does is ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydp2.engine import TEMPLATE, Engine
from pydp2.errors import OptionError
from pydp2.files import FileList
from pydp2.metrics import Rates, without_shared_memory
from pydp2.protocol.moves import Link, State
from pydp2.protocol.seat import Seat
from pydp2.server.spec import ServiceSpec

WEIGHED = 0.1
"""Seconds between looks at how much memory workers have."""


@dataclass(slots=True)
class Wire:
    """A worker as the wire knows it."""

    peer: bytes
    link: Link
    pid: int = 0
    busy: int = 0
    idle: int = 0
    doomed: str = ""  # why it is being killed
    hungry: bool = False  # it had too much memory
    sample_timeout: float | None = None  # seconds that its sample exceeded
    kill_at: float = 0.0
    rates: Rates = field(default_factory=Rates)


class Overseer:
    """Looks after the workers on ``wires``."""

    def __init__(
        self,
        spec: ServiceSpec,
        files: FileList,
        engine: Engine,
        wires: Mapping[int, Wire],
        seat_of: Callable[[int], int | None],
        log: Callable[[str, str], None],
    ) -> None:
        self._spec = spec
        self._files = files
        self._engine = engine
        self._wires = wires
        self._seat_of = seat_of
        self._log = log
        self._looked = self._weighed = 0.0
        self._stopped: dict[int, float] = {}  # who was found stopped by a signal, and since when

    def begin(self, pid: int) -> None:
        """The first worker, process ``pid``, is ready. Raises OptionError when it has more memory than it may."""
        limit, needs = self._spec.worker_memory, without_shared_memory(pid)
        if limit is not None and needs >= limit:
            raise OptionError(
                f"worker_memory={limit} must be above what a worker has before it reads anything, which is {needs} "
                "bytes here (shared libraries included); raise it, or leave it out"
            )

    def look(self, now: float) -> None:
        """End those who do what they may not."""
        limit = self._spec.sample_timeout
        if limit is not None:
            self._watch_samples(limit, now)
        stopped = self._spec.timing.stopped if limit is None else limit
        if now - self._looked >= stopped / 4:
            self._looked = now
            self._watch_stopped(stopped, now)
        if self._spec.worker_memory is not None and now - self._weighed >= WEIGHED:
            self._weighed = now
            self._weigh(self._spec.worker_memory)

    def _watch_samples(self, limit: float, now: float) -> None:
        """Kill what takes longer than ``limit``: first its stack, then the process."""
        for worker, wire in self._wires.items():
            if wire.doomed:
                if wire.kill_at and now >= wire.kill_at:
                    wire.kill_at = 0.0
                    self._engine.kill(worker)
                continue
            number = self._seat_of(worker)
            if number is None:
                continue
            seat = Seat(self._engine.row(number))
            running = seat.running
            if running is not None and time.monotonic_ns() - seat.since > limit * 1e9 and seat.running == running:
                wire.doomed = f"was killed because one sample took longer than sample_timeout={limit:g} s"
                wire.sample_timeout = limit
                wire.kill_at = now + self._spec.timing.stack
                file = self._files[running[0]]
                self._log(f"file {file}, sample {running[2]} takes longer than {limit:g} s; the stack:", "timeout")
                self._engine.dump(worker)

    def _watch_stopped(self, limit: float, now: float) -> None:
        """Kill what a signal stopped for so long; between two samples, say, where none takes too long."""
        watched = [*(worker for worker, wire in self._wires.items() if not wire.doomed), TEMPLATE]
        self._stopped = {each: self._stopped.get(each, now) for each in watched if self._engine.stopped(each)}
        for each, since in list(self._stopped.items()):
            if now - since <= limit:
                continue
            why = f"killed because a signal had stopped it for longer than {limit:g} s"
            if each == TEMPLATE:
                self._log(f"the process that workers are forked from is {why}", "template")
            else:
                self._wires[each].doomed = f"was {why}"
            del self._stopped[each]
            self._engine.kill(each)

    def _weigh(self, limit: int) -> None:
        """Kill what is ready and has more memory than ``limit``: another reads its files on."""
        for worker, wire in self._wires.items():
            if wire.doomed or wire.link.state is not State.READY:
                continue
            if (has := without_shared_memory(wire.pid)) > limit:
                wire.doomed = f"was replaced because it had {has >> 20} MB, more than worker_memory={limit}"
                wire.hungry = True
                self._engine.kill(worker)
