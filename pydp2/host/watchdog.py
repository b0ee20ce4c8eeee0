"""Watch the processes of workers: end those that take too long for a sample, are stopped, or have too much memory.

The states are in a table, because there may be several reasons to end a process: its messages are still read while it
is being ended, and one of them may break the protocol.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pydp2.errors import OptionError, ProtocolError, shorten
from pydp2.host.engine import ZYGOTE, Engine
from pydp2.host.worker_activity import WorkerActivity
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import WorkerTerms
from pydp2.protocol.link_states import Link, LinkRole, LinkState, worker_link
from pydp2.protocol.state_table import next_state
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.system.log_events import LogEvent, WriteLog
from pydp2.system.process_memory import private_bytes
from pydp2.system.rates import RateCounter

_TIMED_PARTS = 16  # samples are checked 16 times within sample_timeout, and not in every turn
_SHOWN = 200  # characters of an error about a message


class WatchState(Enum):
    """State of the watchdog for the process of a worker."""

    RUNNING = "running"
    DUMPING = "dumping"
    KILLED = "killed"
    OVER_MEMORY = "over memory"
    BROKE_PROTOCOL = "broke protocol"


class WatchEvent(Enum):
    """Event that leads to the end of a worker's process."""

    SAMPLE_TIMEOUT = "sample timeout"
    """A sample takes too long: the process writes its stack, and is killed afterwards."""
    STACK_DUMPED = "stack dumped"
    """The time for writing the stack is over."""
    FOUND_STOPPED = "found stopped"
    """A signal had stopped the process for too long."""
    EXCEED_MEMORY = "exceed memory"
    """The process has more memory than it may."""
    BREAK_PROTOCOL = "break protocol"
    """A message of the worker broke the protocol."""


# The loop compares with these in every turn, and in Python 3.11 the access to a member of an Enum is a call.
RUNNING, DUMPING = WatchState.RUNNING, WatchState.DUMPING

WATCH_TRANSITIONS: dict[tuple[WatchState, WatchEvent], WatchState] = {
    (WatchState.RUNNING, WatchEvent.SAMPLE_TIMEOUT): WatchState.DUMPING,
    (WatchState.RUNNING, WatchEvent.FOUND_STOPPED): WatchState.KILLED,
    (WatchState.RUNNING, WatchEvent.EXCEED_MEMORY): WatchState.OVER_MEMORY,
    (WatchState.DUMPING, WatchEvent.STACK_DUMPED): WatchState.KILLED,
    # Messages of a worker may still be read while its process is being ended.
    (WatchState.RUNNING, WatchEvent.BREAK_PROTOCOL): WatchState.BROKE_PROTOCOL,
    (WatchState.BROKE_PROTOCOL, WatchEvent.BREAK_PROTOCOL): WatchState.BROKE_PROTOCOL,
    (WatchState.DUMPING, WatchEvent.BREAK_PROTOCOL): WatchState.KILLED,
    (WatchState.KILLED, WatchEvent.BREAK_PROTOCOL): WatchState.KILLED,
    (WatchState.OVER_MEMORY, WatchEvent.BREAK_PROTOCOL): WatchState.OVER_MEMORY,
}
"""State and event, mapped to the state after the event."""


@dataclass(slots=True)
class WorkerConnection:
    """Connection to a worker, with the state of its process."""

    peer: bytes = b""  # empty until the first message of its process
    link: Link = field(default_factory=lambda: worker_link(LinkRole.SERVER))
    pid: int = 0
    host: int = 0
    """Host of the worker, which has its own watchdog; 0: this one."""
    status_row: int = 0
    """Row of the status page, for a worker of this host."""
    state: WatchState = RUNNING  # only move() changes it
    kill_reason: str = ""  # why it is being killed
    timed_out: bool = False  # True if one of its samples exceeded sample_timeout
    kill_at: float = 0.0  # time at which its stack must be written
    computed: float = 0.0  # seconds in which it computed or waited for a core
    rates: RateCounter = field(default_factory=RateCounter)
    activity: WorkerActivity = field(default_factory=WorkerActivity)

    def move(self, event: WatchEvent) -> None:
        """Change the state according to ``event``. Raises IllegalTransition if the present state does not allow it."""
        self.state = next_state(WATCH_TRANSITIONS, self.state, event)

    def begin_end(self, event: WatchEvent, reason: str) -> None:
        """Note that ``event`` ends the process. ``reason``: verb phrase for the log, after "worker N"."""
        self.move(event)
        self.kill_reason = reason

    def break_protocol(self, error: ProtocolError) -> None:
        """Note that a message, which raised ``error``, ends the process."""
        self.begin_end(WatchEvent.BREAK_PROTOCOL, f"broke the protocol: {shorten(str(error), _SHOWN)}")

    @property
    def over_memory(self) -> bool:
        """True if the worker is ended because it had too much memory."""
        return self.state is WatchState.OVER_MEMORY

    @property
    def broke_protocol(self) -> bool:
        """True if the worker is ended because it broke the protocol."""
        return self.state is WatchState.BROKE_PROTOCOL


class Watchdog:
    """Watchdog of the workers on ``connections``."""

    def __init__(
        self,
        terms: WorkerTerms,
        files: FileList,
        engine: Engine,
        connections: Mapping[int, WorkerConnection],
        log: WriteLog,
    ) -> None:
        self._terms = terms
        self._files = files
        self._engine = engine
        self._connections = connections
        self._log = log
        self._looked = self._weighed = 0.0
        self._stopped: dict[int, float] = {}  # workers that a signal has stopped, and when that was noticed

    def check_first_worker(self, pid: int) -> None:
        """Check the memory of process ``pid``, the first worker that is ready. Raises OptionError if it is too much."""
        limit, needs = self._terms.worker_memory, private_bytes(pid)
        if limit is not None and needs >= limit:
            raise OptionError(
                f"worker_memory={limit} must be above what a worker has before it reads anything, which is {needs} "
                "bytes here (shared libraries included); raise it, or leave it out"
            )

    @property
    def interval(self) -> float:
        """Seconds between two calls of :meth:`check`."""
        timing, limit = self._terms.timing, self._terms.sample_timeout
        due = [timing.tick]
        if limit is not None:
            due.append(limit / _TIMED_PARTS)
        if self._terms.worker_memory is not None:
            due.append(timing.memory_check)
        return min(due)

    def check(self, now: float) -> None:
        """End the workers that break a limit."""
        limit = self._terms.sample_timeout
        if limit is not None:
            self._watch_samples(limit, now)
        stopped = self._terms.timing.stopped_worker if limit is None else limit
        if now - self._looked >= stopped / 4:
            self._looked = now
            self._watch_stopped(stopped, now)
        if self._terms.worker_memory is not None and now - self._weighed >= self._terms.timing.memory_check:
            self._weighed = now
            self._check_memory(self._terms.worker_memory)

    def _watch_samples(self, limit: float, now: float) -> None:
        """Kill workers whose sample takes longer than ``limit`` seconds, after they have written their stacks."""
        for worker, connection in self._connections.items():
            if connection.state is not RUNNING:
                if connection.state is DUMPING and now >= connection.kill_at:
                    connection.move(WatchEvent.STACK_DUMPED)
                    self._engine.kill(worker)
                continue
            status_row = WorkerStatus(self._engine.row(connection.status_row))
            running = status_row.running_sample
            if (
                running is not None
                and not status_row.waits_for_store
                and time.monotonic_ns() - status_row.started_ns > limit * 1e9
                and status_row.running_sample == running
            ):
                connection.begin_end(
                    WatchEvent.SAMPLE_TIMEOUT,
                    f"was killed because one sample took longer than sample_timeout={limit:g} s",
                )
                connection.timed_out = True
                connection.kill_at = now + self._terms.timing.stack_dump
                file = self._files[running[0]]
                text = f"file {file}, sample {running[2]} takes longer than {limit:g} s; the stack:"
                self._log(text, LogEvent.SAMPLE_TIMEOUT, worker=worker, file=file, sample=running[2])
                self._engine.dump(worker)

    def _watch_stopped(self, limit: float, now: float) -> None:
        """Kill processes that a signal stopped for ``limit`` seconds, also between two samples."""
        watched = [*(worker for worker, connection in self._connections.items() if connection.state is RUNNING), ZYGOTE]
        self._stopped = {
            process: self._stopped.get(process, now) for process in watched if self._engine.is_stopped(process)
        }
        for process, since in list(self._stopped.items()):
            if now - since <= limit:
                continue
            why = f"killed because a signal had stopped it for longer than {limit:g} s"
            if process == ZYGOTE:
                self._log(f"the process that workers are forked from is {why}", LogEvent.ZYGOTE_LOST)
            else:
                self._connections[process].begin_end(WatchEvent.FOUND_STOPPED, f"was {why}")
            del self._stopped[process]
            self._engine.kill(process)

    def _check_memory(self, limit: int) -> None:
        """Kill workers that are ready and have more than ``limit`` bytes of memory; others continue their files."""
        for worker, connection in self._connections.items():
            if connection.state is not RUNNING or connection.link.state is not LinkState.READY:
                continue
            if (has := private_bytes(connection.pid)) > limit:
                connection.begin_end(
                    WatchEvent.EXCEED_MEMORY,
                    f"was replaced because it had {has >> 20} MB, more than worker_memory={limit}",
                )
                self._engine.kill(worker)
