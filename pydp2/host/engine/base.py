"""Define the interface of an engine, and the status page that survives its workers.

A status row in shared memory belongs to one worker at a time, and survives it. Worker and server agree on its content;
an engine only keeps the memory, and clears a row when it gives the row to a worker.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydp2.system.log_events import LogEvent

STATUS_FIELDS = 8
"""Number of int64 fields in a status row."""
FIRST_WORKER = 0
"""Number of the first worker. Output of the process from which workers are forked is shown under this number."""
ZYGOTE = -1
"""Number that stands for the process from which workers are forked, if there is one."""


@dataclass(frozen=True, slots=True)
class Started:
    """A worker process has started."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker process has ended; ``status`` as ``os.waitpid`` returns it."""

    worker: int
    pid: int
    status: int


@dataclass(frozen=True, slots=True)
class EngineNote:
    """Note for the user."""

    text: str
    event: LogEvent


_PROGRESS_BYTES = 128  # bytes of the progress text; the first byte has its length


class StatusPage:
    """Shared memory for all status rows. It is anonymous, so the system frees it with the last process that has it. It
    also has a text that says what the user's code is doing before the first worker is ready.

    ``descriptor``: descriptor of memory from :meth:`create_memory`, to use instead.
    """

    def __init__(self, status_rows: int, descriptor: int = -1) -> None:
        size = status_rows * STATUS_FIELDS * 8
        self._map = mmap.mmap(descriptor, size + _PROGRESS_BYTES)
        self._view = memoryview(self._map)[:size].cast("q")
        self._progress = memoryview(self._map)[size:]
        self._slot_count = status_rows

    @staticmethod
    def create_memory(status_rows: int) -> int:
        """Return a descriptor of memory for a page, which can be passed to another process. Linux only."""
        descriptor = os.memfd_create("pydp2-status")
        os.truncate(descriptor, status_rows * STATUS_FIELDS * 8 + _PROGRESS_BYTES)
        return descriptor

    def show_progress(self, text: str) -> None:
        """Make ``text`` the value of :attr:`progress` in every process. A long text is cut off at its end."""
        data = text.encode(errors="replace")[: _PROGRESS_BYTES - 1]
        self._progress[0] = 0  # a concurrent reader sees no text
        self._progress[1 : 1 + len(data)] = data
        self._progress[0] = len(data)

    @property
    def progress(self) -> str:
        """Text of the last call of :meth:`show_progress` in any process."""
        return bytes(self._progress[1 : 1 + self._progress[0]]).decode(errors="replace")

    def row(self, status_row: int) -> memoryview:
        """Return the fields of ``status_row``, 8 int64."""
        if not 0 <= status_row < self._slot_count:
            raise IndexError(status_row)
        return self._view[status_row * STATUS_FIELDS : (status_row + 1) * STATUS_FIELDS]


WorkerMain = Callable[[int, memoryview, int], None]
"""Function that a worker process runs. Arguments: the worker's number, its status row, and a descriptor for its output.
Descriptors 1 and 2 lead there too, but the user's code may close them."""


class PreparedWorker(Protocol):
    """Process that is ready to become workers."""

    @property
    def main(self) -> WorkerMain:
        """Function that runs the worker."""
        ...

    @property
    def is_usable(self) -> bool:
        """False if the preparation failed: then ``main`` only reports the error."""
        ...


PrepareWorker = Callable[[int | None, Callable[[str], None]], PreparedWorker]
"""Function that prepares a process to become this worker, or any worker (None). It runs the user's code, and may never
return. It calls the second argument with texts that say what the user's code is doing."""


class Engine(Protocol):
    """Engine that starts, watches and ends workers. It never blocks."""

    once: bool
    """False if each worker prepares the user's code for itself."""
    out_of_descriptors: bool
    """True if there was no free descriptor for the next event; a later call of :meth:`events` returns it."""

    def start(self, worker: int, status_row: int) -> None:
        """Start a worker on a free status row; :class:`Started` follows."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker and the processes that it has started, at once; :class:`Exited` follows. ``ZYGOTE`` stands for
        the process from which workers are forked, if there is one; it is replaced when it is needed."""
        ...

    def dump(self, worker: int) -> None:
        """Make a worker write the stacks of its threads to its output."""
        ...

    def is_stopped(self, worker: int) -> bool:
        """Return True if a signal such as SIGSTOP, not a debugger, has stopped a worker or ``ZYGOTE``."""
        ...

    def row(self, status_row: int) -> memoryview:
        """Return the fields of a status row."""
        ...

    @property
    def progress(self) -> str:
        """Text that says what the user's code is doing before the first worker is ready; "" if it is not known."""
        ...

    def events(self) -> list[Started | Exited | EngineNote]:
        """Return the events since the last call. Raises ``EngineLost`` if no worker can start any more."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`events` has events."""
        ...

    def close(self) -> None:
        """End every worker; return when all have ended."""
        ...


class EngineLost(Exception):
    """The engine itself has ended."""


class NoEngine:
    """Engine without workers, of a service whose workers all run on other hosts."""

    once = True
    out_of_descriptors = False
    progress = ""

    def __init__(self) -> None:
        self._silent, self._other = os.pipe()

    def start(self, worker: int, status_row: int) -> None:
        """Raise EngineLost: this engine has no workers."""
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
