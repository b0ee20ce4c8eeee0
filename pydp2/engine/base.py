"""What an engine is, and the page that outlives its workers.

A status row is a place for one worker at a time, with a row in shared memory that survives it. What stands there is a
matter between worker and server; an engine only keeps the memory and clears the row when a worker takes the status row.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

STATUS_FIELDS = 8
"""int64 fields in the row of a status row."""
FIRST_WORKER = 0
"""The number of the first worker; what the process that workers are forked from prints is shown as its."""
ZYGOTE = -1
"""In place of a worker's number: the process that workers are forked from, where there is one."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker process exists."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker process is gone; ``status`` as ``os.waitpid`` gives it."""

    worker: int
    pid: int
    status: int


@dataclass(frozen=True, slots=True)
class EngineNote:
    """Something that a user should read once; ``kind`` names its sort where there may be many."""

    text: str
    kind: str


class StatusPage:
    """Shared memory for all status rows; anonymous, so it is gone with the last process that has it."""

    def __init__(self, status_rows: int) -> None:
        self._map = mmap.mmap(-1, status_rows * STATUS_FIELDS * 8)
        self._view = memoryview(self._map).cast("q")
        self._slot_count = status_rows

    def row(self, status_row: int) -> memoryview:
        """The row of ``status_row``, 8 int64."""
        if not 0 <= status_row < self._slot_count:
            raise IndexError(status_row)
        return self._view[status_row * STATUS_FIELDS : (status_row + 1) * STATUS_FIELDS]


WorkerMain = Callable[[int, memoryview, int], None]
"""The life of a worker: its number, the row of its status row, and a descriptor that its output goes to, whatever
becomes of 1 and 2, which go there at first."""


class PreparedWorker(Protocol):
    """What a process is when it can become workers."""

    @property
    def main(self) -> WorkerMain:
        """What a worker does from here on."""
        ...

    @property
    def is_usable(self) -> bool:
        """False when getting ready failed: all that ``main`` does is tell why."""
        ...


PrepareWorker = Callable[[int | None], PreparedWorker]
"""Gets a process ready to become this worker, or (None) any. It runs the user's code; it may not return."""


class Engine(Protocol):
    """Starts, watches and ends workers. Never blocks."""

    out_of_descriptors: bool
    """There is no descriptor for what :meth:`events` would take next; it is there at a later call."""

    def start(self, worker: int, status_row: int) -> None:
        """Begin a worker on a free status row; :class:`Started` follows."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker and what it started, at once; :class:`Exited` follows. ``TEMPLATE``: the process that workers
        are forked from, where there is one; another is made when it is needed."""
        ...

    def dump(self, worker: int) -> None:
        """Have a worker write the stack of its threads to its output."""
        ...

    def is_stopped(self, worker: int) -> bool:
        """Whether a signal has stopped a worker, or ``TEMPLATE`` (SIGSTOP, not a debugger): it does nothing until
        somebody wakes it."""
        ...

    def row(self, status_row: int) -> memoryview:
        """The row of a status row."""
        ...

    def events(self) -> list[Started | Exited | EngineNote]:
        """What happened since the last call. Raises ``EngineLost`` when no worker can be had any more."""
        ...

    def fileno(self) -> int:
        """Readable when :meth:`events` has something."""
        ...

    def close(self) -> None:
        """End every worker; returns when none is left."""
        ...


class EngineLost(Exception):
    """The engine itself is gone."""
