"""What an engine is, and the page that outlives its workers.

A seat is a place for one worker at a time, with a row in shared memory that survives it. What stands there is a matter
between worker and server; an engine only keeps the memory and clears the row when a worker takes the seat.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

ROW = 8
"""int64 fields in the row of a seat."""
FIRST = 0
"""The number of the first worker; what the process that workers are forked from prints is shown as its."""
TEMPLATE = -1
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
class Note:
    """Something that a user should read once; ``kind`` names its sort where there may be many."""

    text: str
    kind: str


class Page:
    """Shared memory for all seats; anonymous, so it is gone with the last process that has it."""

    def __init__(self, seats: int) -> None:
        self._map = mmap.mmap(-1, seats * ROW * 8)
        self._view = memoryview(self._map).cast("q")
        self._seats = seats

    def row(self, seat: int) -> memoryview:
        """The row of ``seat``, 8 int64."""
        if not 0 <= seat < self._seats:
            raise IndexError(seat)
        return self._view[seat * ROW : (seat + 1) * ROW]


WorkerMain = Callable[[int, memoryview, int], None]
"""The life of a worker: its number, the row of its seat, and a descriptor that its output goes to, whatever becomes of
1 and 2, which go there at first."""


class Prepared(Protocol):
    """What a process is when it can become workers."""

    @property
    def main(self) -> WorkerMain:
        """What a worker does from here on."""
        ...

    @property
    def usable(self) -> bool:
        """False when getting ready failed: all that ``main`` does is tell why."""
        ...


Prepare = Callable[[int | None], Prepared]
"""Gets a process ready to become this worker, or (None) any. It runs the user's code; it may not return."""


class Engine(Protocol):
    """Starts, watches and ends workers. Never blocks."""

    starved: bool
    """There is no descriptor for what :meth:`events` would take next; it is there at a later call."""

    def start(self, worker: int, seat: int) -> None:
        """Begin a worker on a free seat; :class:`Started` follows."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker and what it started, at once; :class:`Exited` follows. ``TEMPLATE``: the process that workers
        are forked from, where there is one; another is made when it is needed."""
        ...

    def dump(self, worker: int) -> None:
        """Have a worker write the stack of its threads to its output."""
        ...

    def stopped(self, worker: int) -> bool:
        """Whether a signal has stopped a worker, or ``TEMPLATE`` (SIGSTOP, not a debugger): it does nothing until
        somebody wakes it."""
        ...

    def row(self, seat: int) -> memoryview:
        """The row of a seat."""
        ...

    def events(self) -> list[Started | Exited | Note]:
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
