"""End workers that take too long for a sample, stand still, or have too much memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydp2.errors import OptionError
from pydp2.host.engine import ZYGOTE, Engine
from pydp2.host.watch_state import DUMPING, RUNNING, WATCH_TRANSITIONS, WatchEvent, WatchState
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import WorkerTerms
from pydp2.protocol.link_states import Link, LinkState
from pydp2.protocol.state_table import next_state
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.system.process_memory import private_bytes
from pydp2.system.rates import RateCounter

_TIMED_PARTS = 16  # samples are looked at after this part of the time that one may take, not in every round


@dataclass(slots=True)
class WorkerConnection:
    """Connection to a worker, and what is known of the process behind it."""

    peer: bytes
    link: Link
    pid: int = 0
    host: int = 0
    """Host that it runs on, where a watchdog of its own looks after it; 0: this one."""
    last_busy: int = 0
    idle: int = 0
    state: WatchState = RUNNING  # changed by move() alone
    kill_reason: str = ""  # why it is being killed
    sample_timeout: float | None = None  # seconds that its sample exceeded
    kill_at: float = 0.0  # when its stack has been written
    rates: RateCounter = field(default_factory=RateCounter)

    def move(self, event: WatchEvent) -> None:
        """Change the state as ``event`` says. Raises IllegalTransition when the present state does not allow it."""
        self.state = next_state(WATCH_TRANSITIONS, self.state, event)

    def begin_end(self, event: WatchEvent, reason: str) -> None:
        """Note that ``event`` ends the process; the worker is then said to be one that ``reason``."""
        self.move(event)
        self.kill_reason = reason

    @property
    def over_memory(self) -> bool:
        """True if it is ended because it had too much memory."""
        return self.state is WatchState.OVER_MEMORY

    @property
    def broke_protocol(self) -> bool:
        """True if it is ended because a message of it could not be accepted."""
        return self.state is WatchState.BROKE_PROTOCOL


class Watchdog:
    """Looks after the workers on ``connections``."""

    def __init__(
        self,
        terms: WorkerTerms,
        files: FileList,
        engine: Engine,
        connections: Mapping[int, WorkerConnection],
        status_row_of: Callable[[int], int | None],
        log: Callable[[str, str], None],
    ) -> None:
        self._terms = terms
        self._files = files
        self._engine = engine
        self._connections = connections
        self._status_row_of = status_row_of
        self._log = log
        self._looked = self._weighed = self._timed = 0.0
        self._stopped: dict[int, float] = {}  # workers that a signal has stopped, and since when

    def check_first_worker(self, pid: int) -> None:
        """Check process ``pid``, the first worker that is ready. Raises OptionError when it has more memory than it
        may."""
        limit, needs = self._terms.worker_memory, private_bytes(pid)
        if limit is not None and needs >= limit:
            raise OptionError(
                f"worker_memory={limit} must be above what a worker has before it reads anything, which is {needs} "
                "bytes here (shared libraries included); raise it, or leave it out"
            )

    def check(self, now: float) -> None:
        """End the workers that break a limit."""
        limit = self._terms.sample_timeout
        if limit is not None and now - self._timed >= min(limit / _TIMED_PARTS, self._terms.timing.tick):
            self._timed = now
            self._watch_samples(limit, now)
        stopped = self._terms.timing.stopped_worker if limit is None else limit
        if now - self._looked >= stopped / 4:
            self._looked = now
            self._watch_stopped(stopped, now)
        if self._terms.worker_memory is not None and now - self._weighed >= self._terms.timing.memory_check:
            self._weighed = now
            self._check_memory(self._terms.worker_memory)

    def _watched(self) -> list[tuple[int, WorkerConnection]]:
        """Return the workers of this host."""
        return [(worker, each) for worker, each in self._connections.items() if not each.host]

    def _watch_samples(self, limit: float, now: float) -> None:
        """Kill what takes longer than ``limit``: first its stack, then the process."""
        for worker, connection in self._watched():
            if connection.state is not RUNNING:
                if connection.state is DUMPING and now >= connection.kill_at:
                    connection.move(WatchEvent.STACK_DUMPED)
                    self._engine.kill(worker)
                continue
            number = self._status_row_of(worker)
            if number is None:
                continue
            status_row = WorkerStatus(self._engine.row(number))
            running = status_row.running_sample
            if (
                running is not None
                and time.monotonic_ns() - status_row.started_ns > limit * 1e9
                and status_row.running_sample == running
            ):
                connection.begin_end(
                    WatchEvent.SAMPLE_TIMEOUT,
                    f"was killed because one sample took longer than sample_timeout={limit:g} s",
                )
                connection.sample_timeout = limit
                connection.kill_at = now + self._terms.timing.stack_dump
                file = self._files[running[0]]
                self._log(f"file {file}, sample {running[2]} takes longer than {limit:g} s; the stack:", "timeout")
                self._engine.dump(worker)

    def _watch_stopped(self, limit: float, now: float) -> None:
        """Kill what a signal stopped for so long; between two samples, say, where none takes too long."""
        watched = [*(worker for worker, connection in self._watched() if connection.state is RUNNING), ZYGOTE]
        self._stopped = {each: self._stopped.get(each, now) for each in watched if self._engine.is_stopped(each)}
        for each, since in list(self._stopped.items()):
            if now - since <= limit:
                continue
            why = f"killed because a signal had stopped it for longer than {limit:g} s"
            if each == ZYGOTE:
                self._log(f"the process that workers are forked from is {why}", "zygote")
            else:
                self._connections[each].begin_end(WatchEvent.FOUND_STOPPED, f"was {why}")
            del self._stopped[each]
            self._engine.kill(each)

    def _check_memory(self, limit: int) -> None:
        """Kill what is ready and has more memory than ``limit``: another reads its files on."""
        for worker, connection in self._watched():
            if connection.state is not RUNNING or connection.link.state is not LinkState.READY:
                continue
            if (has := private_bytes(connection.pid)) > limit:
                connection.begin_end(
                    WatchEvent.EXCEED_MEMORY,
                    f"was replaced because it had {has >> 20} MB, more than worker_memory={limit}",
                )
                self._engine.kill(worker)
