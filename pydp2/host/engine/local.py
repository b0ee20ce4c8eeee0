"""Run workers as local processes, under a supervisor.

The supervisor is a single-threaded process that has imported the modules that workers need. It only starts, watches and
ends workers: a fork takes milliseconds and inherits no thread, no socket and no lock. It exchanges lines of text with
the engine over a socket pair. When one of the processes ends, the others end too. When the engine's process has ended,
the supervisor's socket closes, and it kills its workers and the processes that they have started. When the supervisor
has ended, workers get the kernel's parent-death signal (Linux) or notice it by a pipe, and the engine kills the
processes that they have started.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pydp2.host.engine.base import (
    STATUS_FIELDS,
    ZYGOTE,
    EngineLost,
    EngineNote,
    Exited,
    PrepareWorker,
    Started,
    StatusPage,
)
from pydp2.host.engine.fork_setup import flush_output, open_standard_streams, require_single_threaded
from pydp2.host.engine.supervisor import Supervisor
from pydp2.system.log_events import LogEvent

# This signal asks a worker for its stack; the other SIGUSR signal is left to the user's code.
DUMP_SIGNAL: Final = signal.SIGUSR2
_CLOSE_DEADLINE = 2.0  # seconds, fewer than a program waits for its service
_INT = 4  # bytes of a descriptor in a message
_LOST = "the process that forks workers is gone; no worker can be replaced any more"


class SupervisorProcess(Protocol):
    """Process of a supervisor."""

    def kill(self) -> None:
        """End it at once."""
        ...

    def wait(self) -> None:
        """Wait until it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class AdoptedSupervisor:
    """Running supervisor: the socket for its commands, and its status page."""

    commands: socket.socket
    page: StatusPage
    process: SupervisorProcess


class _Child:
    """Child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class OtherProcess:
    """Process that is not a child of this one, by its ``descriptor`` (``os.pidfd_open``)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def kill(self) -> None:
        """End it at once."""
        if sys.platform == "linux":
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it has ended."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.poll()
        os.close(self._descriptor)


def _fork_supervisor(page: StatusPage, prepare: PrepareWorker, *, once: bool, first: int) -> AdoptedSupervisor:
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    flush_output()
    pid = os.fork()
    if pid == 0:
        parent_end.close()
        try:
            Supervisor(child_end, page, prepare, once=once, first=first).run()
        except BaseException:  # print the traceback, and never continue in the parent's code
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    child_end.close()
    return AdoptedSupervisor(parent_end, page, _Child(pid))


class LocalEngine:
    """Engine of local processes. Make it while the process is still single-threaded: it forks the supervisor at once.

    ``prepare`` prepares a process to become workers. With ``once`` it runs in one process for all workers, if that is
    possible (on Linux, if it leaves that process with one thread, no child, and no open file that workers would read
    from one position), otherwise in every worker. An :class:`EngineNote` says which, and why. ``on_output(worker,
    status_row, descriptor)`` is called in this process with the read end of a pipe for stdout and stderr of the
    worker's process; ``status_row`` is None for the process that is prepared for all. ``first``: see
    :class:`~pydp2.host.engine.supervisor.Supervisor`.

    ``adopted``: running supervisor to use, instead of one that this process forks.
    """

    def __init__(
        self,
        prepare: PrepareWorker,
        status_rows: int,
        on_output: Callable[[int, int | None, int], None],
        *,
        once: bool = True,
        first: int = -1,
        adopted: AdoptedSupervisor | None = None,
    ) -> None:
        require_single_threaded()
        open_standard_streams()
        self._on_output = on_output
        self._closed = False
        self.once = once
        if adopted is None:
            adopted = _fork_supervisor(StatusPage(status_rows), prepare, once=once, first=first)
        self._page, self._socket, self._supervisor = adopted.page, adopted.commands, adopted.process
        self._socket.setblocking(False)
        self.out_of_descriptors = False
        self._text = b""
        self._descriptors: list[int] = []
        self._status_row_of: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._zygote = 0  # pid of the zygote, 0 for none

    def start(self, worker: int, status_row: int) -> None:
        """Start worker number ``worker`` on status row ``status_row``."""
        self._status_row_of[worker] = status_row
        self._page.row(status_row)[:] = memoryview(bytes(8 * STATUS_FIELDS)).cast("q")
        self._command(f"start {worker} {status_row}")

    def kill(self, worker: int) -> None:
        """Send SIGKILL to the process group of the worker, or of the process from which workers are forked."""
        self._command(f"kill {worker} {int(signal.SIGKILL)}")

    def dump(self, worker: int) -> None:
        """Ask for the worker's stacks, through :mod:`faulthandler`; this works while C code holds
        the interpreter's lock."""
        self._command(f"kill {worker} {int(DUMP_SIGNAL)}")

    def is_stopped(self, worker: int) -> bool:
        """Return True if a signal has stopped the worker's process, or the process from which workers are forked.
        Without /proc, return False."""
        pid = self._zygote if worker == ZYGOTE else self._pids.get(worker, 0)
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return text.rpartition(")")[2].split()[0] == "T"

    def row(self, status_row: int) -> memoryview:
        """Return the fields of ``status_row``."""
        return self._page.row(status_row)

    @property
    def progress(self) -> str:
        """Text that says what the user's code is doing before the first worker is ready."""
        return self._page.progress

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`events` has events."""
        return self._socket.fileno()

    def events(self) -> list[Started | Exited | EngineNote]:
        """Return the events since the last call. If there is no free descriptor for an event, set
        ``out_of_descriptors``, and return the event at a later call."""
        self.out_of_descriptors = False
        out: list[Started | Exited | EngineNote] = []
        while True:
            try:
                data, descriptors = self._receive()
            except BlockingIOError:
                break
            except OSError as error:
                self.out_of_descriptors = error.errno == errno.EMFILE
                if self.out_of_descriptors:
                    break
                data, descriptors = b"", []
            self._descriptors += descriptors
            if not data:
                if self._closed:
                    break
                self._kill_orphans()
                raise EngineLost(_LOST)
            self._text += data
            *lines, self._text = self._text.split(b"\n")
            for line in lines:
                if (event := self._parse_event(*line.decode().split(" ", 1))) is not None:
                    out.append(event)
        return out

    def _receive(self) -> tuple[bytes, list[int]]:
        """Return the data that the supervisor sent, and the descriptors with them. Raises OSError: with EMFILE there
        was no free descriptor for one of them, and nothing was removed from the socket."""
        peek = socket.MSG_PEEK if sys.platform == "linux" else 0  # on other systems, peeking returns no descriptors
        data, ancillary, flags, _ = self._socket.recvmsg(1 << 16, socket.CMSG_SPACE(16 * _INT), peek)
        descriptors = [
            number
            for level, kind, given in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for number in memoryview(given[: len(given) // _INT * _INT]).cast("i")
        ]
        if flags & socket.MSG_CTRUNC:
            for descriptor in descriptors:
                os.close(descriptor)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if peek and data:
            self._socket.recv(len(data))  # removes the same bytes, because descriptors end a message
        return data, descriptors

    def _parse_event(self, word: str, rest: str) -> Started | Exited | EngineNote | None:
        """Return the event in a line of the supervisor."""
        if word == "each":
            self.once = False
            text = f"each worker imports the provider and runs its init_hook for itself: {rest}"
            return EngineNote(text, LogEvent.NO_ZYGOTE)
        worker, *numbers = map(int, rest.split())
        match word:
            case "output":
                self._on_output(worker, self._status_row_of[worker], self._descriptors.pop(0))
            case "zygote":
                self._zygote = numbers[0]
                self._on_output(worker, None, self._descriptors.pop(0))
            case "started":
                if self._zygote == numbers[0]:  # the zygote has become that worker
                    self._zygote = 0
                self._pids[worker] = numbers[0]
                return Started(worker, numbers[0])
            case "exited":
                self._status_row_of.pop(worker, None)
                self._pids.pop(worker, None)
                return Exited(worker, numbers[0], numbers[1])
            case "lost":
                self._zygote = 0
                code = os.waitstatus_to_exitcode(numbers[1])
                how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
                return EngineNote(
                    f"process {numbers[0]}, which workers are forked from, {how}; another is made",
                    LogEvent.ZYGOTE_LOST,
                )
        return None

    def close(self) -> None:
        """End the supervisor, and with it all workers."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _CLOSE_DEADLINE
        self._socket.setblocking(True)
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(self._socket, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            readable = poll.poll(left * 1000)
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 16, 16) if readable else (b"", [], 0, None)
            except OSError:
                data, descriptors = b"", []
            for descriptor in descriptors:
                os.close(descriptor)
            if not data:
                break
        else:
            self._supervisor.kill()
        self._socket.close()
        self._supervisor.wait()

    def _command(self, text: str) -> None:
        try:
            self._socket.sendall(text.encode() + b"\n")  # does not block: the supervisor always reads the 200 kB buffer
        except OSError:
            if not self._closed:
                self._kill_orphans()
                raise EngineLost(_LOST) from None

    def _kill_orphans(self) -> None:
        """End the processes that workers had started, after the supervisor and its workers have ended."""
        pids, self._pids = [*self._pids.values(), self._zygote], {}
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
