"""Define the interface of an engine, and the status page that outlives its workers.

A status row is a place for one worker at a time, with a row in shared memory that survives it. Worker and server agree
on what stands there; an engine only keeps the memory and clears the row when a worker takes the status row.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

STATUS_FIELDS = 8
"""Number of int64 fields in a status row."""
FIRST_WORKER = 0
"""Number of the first worker. Output of the process that workers are forked from is shown under this number."""
ZYGOTE = -1
"""Number that stands for the process that workers are forked from, where there is one."""


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
    """Note that a user should read once; ``kind`` names its sort where there may be many."""

    text: str
    kind: str


_PROGRESS_BYTES = 128  # for the text that says what the first preparation does; the first byte has its length


class StatusPage:
    """Shared memory for all status rows; anonymous, so it is gone with the last process that has it. It also has a text
    that says what the user's code does before the first worker is ready.

    ``descriptor``: memory to use instead, which :meth:`create_memory` made.
    """

    def __init__(self, status_rows: int, descriptor: int = -1) -> None:
        size = status_rows * STATUS_FIELDS * 8
        self._map = mmap.mmap(descriptor, size + _PROGRESS_BYTES)
        self._view = memoryview(self._map)[:size].cast("q")
        self._progress = memoryview(self._map)[size:]
        self._slot_count = status_rows

    @staticmethod
    def create_memory(status_rows: int) -> int:
        """Return a descriptor of memory for a page, which another process can have, too. Linux only."""
        descriptor = os.memfd_create("pydp2-status")
        os.truncate(descriptor, status_rows * STATUS_FIELDS * 8 + _PROGRESS_BYTES)
        return descriptor

    def show_progress(self, text: str) -> None:
        """Have ``text`` be what :attr:`progress` returns in every process; its end is cut off if it is long."""
        data = text.encode(errors="replace")[: _PROGRESS_BYTES - 1]
        self._progress[0] = 0  # a reader that comes meanwhile sees no text
        self._progress[1 : 1 + len(data)] = data
        self._progress[0] = len(data)

    @property
    def progress(self) -> str:
        """Text that a process showed last."""
        return bytes(self._progress[1 : 1 + self._progress[0]]).decode(errors="replace")

    def row(self, status_row: int) -> memoryview:
        """Return the fields of ``status_row``, 8 int64."""
        if not 0 <= status_row < self._slot_count:
            raise IndexError(status_row)
        return self._view[status_row * STATUS_FIELDS : (status_row + 1) * STATUS_FIELDS]


WorkerMain = Callable[[int, memoryview, int], None]
"""Function that a worker process runs. Arguments: the worker's number, its status row, and a descriptor for its output
that stays valid whatever becomes of 1 and 2, which lead there at first."""


class PreparedWorker(Protocol):
    """Process that is ready to become workers."""

    @property
    def main(self) -> WorkerMain:
        """Function that a worker runs from here on."""
        ...

    @property
    def is_usable(self) -> bool:
        """False if getting ready failed: then ``main`` only tells why."""
        ...


PrepareWorker = Callable[[int | None, Callable[[str], None]], PreparedWorker]
"""Function that gets a process ready to become this worker, or (None) any. It runs the user's code; it may not return.
It calls the second argument with what the user's code does now."""


class Engine(Protocol):
    """Engine that starts, watches and ends workers. It never blocks."""

    once: bool
    """False if each worker prepares the user's code for itself."""
    out_of_descriptors: bool
    """True if no descriptor was left for what :meth:`events` would take next; a later call returns that."""

    def start(self, worker: int, status_row: int) -> None:
        """Start a worker on a free status row; :class:`Started` follows."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker and what it started, at once; :class:`Exited` follows. ``ZYGOTE``: the process that workers are
        forked from, where there is one; another is made when it is needed."""
        ...

    def dump(self, worker: int) -> None:
        """Have a worker write the stack of its threads to its output."""
        ...

    def is_stopped(self, worker: int) -> bool:
        """Return True if a signal has stopped a worker or ``ZYGOTE`` (SIGSTOP, not a debugger): it does nothing
        until it is continued."""
        ...

    def row(self, status_row: int) -> memoryview:
        """Return the fields of a status row."""
        ...

    @property
    def progress(self) -> str:
        """Text that says what the user's code does, before the first worker is ready; empty if it is not known."""
        ...

    def events(self) -> list[Started | Exited | EngineNote]:
        """Return the events since the last call. Raises ``EngineLost`` if no worker can start any more."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`events` has something."""
        ...

    def close(self) -> None:
        """End every worker; return when none is left."""
        ...


class EngineLost(Exception):
    """The engine itself is gone."""


class NoEngine:
    """Engine without workers, of a service whose workers all run on other hosts."""

    once = True
    out_of_descriptors = False
    progress = ""

    def __init__(self) -> None:
        self._silent, self._other = os.pipe()

    def start(self, worker: int, status_row: int) -> None:
        """Raise EngineLost: there can be no workers here."""
        raise EngineLost("this service runs no workers of its own")

    def kill(self, worker: int) -> None:
        """Do nothing."""

    def dump(self, worker: int) -> None:
        """Do nothing."""

    def is_stopped(self, worker: int) -> bool:
        """Return False."""
        return False

    def row(self, status_row: int) -> memoryview:
        """Raise IndexError: there is no status row."""
        raise IndexError(status_row)

    def events(self) -> list[Started | Exited | EngineNote]:
        """Return nothing."""
        return []

    def fileno(self) -> int:
        """Return a descriptor that is never readable."""
        return self._silent

    def close(self) -> None:
        """Close the descriptor."""
        if self._silent >= 0:
            os.close(self._silent)
            os.close(self._other)
            self._silent = -1
