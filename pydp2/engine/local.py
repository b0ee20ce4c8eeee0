"""Workers as local processes, forked from a nursery.

The nursery is a single-threaded process that has imported what workers need and does nothing but fork, watch and end
them: a fork from it takes milliseconds and inherits no thread, no socket and no lock. It talks to the engine over a
socket pair in lines of text. Whoever dies first takes the rest along: when the engine's process is gone the nursery's
socket closes, and it kills its workers and what they started; when the nursery is gone workers get the kernel's
parent-death signal (Linux) or see it by a pipe, and the engine kills what they started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydp2.engine.base import ROW, EngineLost, Exited, Page, Started, WorkerMain
from pydp2.engine.names import die_with_parent, line_buffer_c, set_name

# A second SIGUSR signal is left to the user's code; this one asks a worker for its stack.
DUMP_SIGNAL: Final = signal.SIGUSR2
_CLOSE_DEADLINE = 2.0  # less than a program waits for its service
_LOST = "the process that forks workers is gone; no worker can be replaced any more"


class LocalEngine:
    """Make it while the process is still single-threaded: it forks the nursery at once.

    ``main(worker, row)`` runs in each worker. ``on_output(worker, seat, descriptor)`` is called in this process with
    the read end of a pipe that carries what the worker's process writes to its stdout and stderr.
    """

    def __init__(self, main: WorkerMain, seats: int, on_output: Callable[[int, int, int], None]) -> None:
        _single_threaded()
        _standard_streams()
        self._page = Page(seats)
        self._on_output = on_output
        self._closed = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        sys.stdout.flush()
        sys.stderr.flush()
        self._nursery = os.fork()
        if self._nursery == 0:
            ours.close()
            try:
                _Nursery(theirs, self._page, main).run()
            except BaseException:  # a traceback of the nursery helps; falling through into the parent's code would not
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(0)
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._text = b""
        self._descriptors: list[int] = []
        self._seat_of: dict[int, int] = {}
        self._pids: dict[int, int] = {}

    def start(self, worker: int, seat: int) -> None:
        """Begin worker number ``worker`` on seat ``seat``."""
        self._seat_of[worker] = seat
        self._page.row(seat)[:] = memoryview(bytes(8 * ROW)).cast("q")
        self._command(f"start {worker} {seat}")

    def kill(self, worker: int) -> None:
        """SIGKILL to the worker's process group."""
        self._command(f"kill {worker} {int(signal.SIGKILL)}")

    def dump(self, worker: int) -> None:
        """Ask for the worker's stacks, through :mod:`faulthandler`: works while C code holds the interpreter's lock."""
        self._command(f"kill {worker} {int(DUMP_SIGNAL)}")

    def stopped(self, worker: int) -> bool:
        """Whether a signal has stopped the worker's process. Never where there is no /proc to tell it."""
        try:
            text = Path(f"/proc/{self._pids[worker]}/stat").read_text()
        except (KeyError, OSError):
            return False
        return text.rpartition(")")[2].split()[0] == "T"

    def row(self, seat: int) -> memoryview:
        """The row of ``seat``."""
        return self._page.row(seat)

    def fileno(self) -> int:
        """Readable when :meth:`events` has something."""
        return self._socket.fileno()

    def events(self) -> list[Started | Exited]:
        """What happened since the last call."""
        out: list[Started | Exited] = []
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 16, 16)
            except BlockingIOError:
                break
            except OSError:
                data, descriptors = b"", []
            self._descriptors += descriptors
            if not data:
                if self._closed:
                    break
                self._orphaned()
                raise EngineLost(_LOST)
            self._text += data
            *lines, self._text = self._text.split(b"\n")
            for line in lines:
                word, worker, pid, *status = line.decode().split()
                if word == "started":
                    self._on_output(int(worker), self._seat_of[int(worker)], self._descriptors.pop(0))
                    self._pids[int(worker)] = int(pid)
                    out.append(Started(int(worker), int(pid)))
                else:
                    self._seat_of.pop(int(worker), None)
                    self._pids.pop(int(worker), None)
                    out.append(Exited(int(worker), int(pid), int(status[0])))
        return out

    def close(self) -> None:
        """End the nursery and with it every worker."""
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
            os.kill(self._nursery, signal.SIGKILL)
        self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._nursery, 0)

    def _command(self, text: str) -> None:
        try:
            self._socket.sendall(text.encode() + b"\n")  # a few bytes into a buffer of 200 kB that is always being read
        except OSError:
            if not self._closed:
                self._orphaned()
                raise EngineLost(_LOST) from None

    def _orphaned(self) -> None:
        """The nursery is gone and its workers with it: end what those had started."""
        pids, self._pids = self._pids, {}
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


class _Nursery:
    """The process that forks. Single-threaded by construction: it starts no thread and opens no ZeroMQ context."""

    def __init__(self, commands: socket.socket, page: Page, main: WorkerMain) -> None:
        self._commands = commands
        self._page = page
        self._main = main
        self._pid = os.getpid()
        self._pids: dict[int, int] = {}
        self._lifeline = os.pipe()  # workers hold the read end; it ends with us
        self._wakeup = os.pipe()

    def run(self) -> None:
        # No parent-death signal here: it would leave no time to end what workers have started.
        set_name("pydp2-nursery")
        for end in self._wakeup:
            os.set_blocking(end, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._commands, select.POLLIN)
        poll.register(self._wakeup[0], select.POLLIN)
        text = b""
        while True:
            ready = dict(poll.poll())
            if self._wakeup[0] in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakeup[0], 4096)
                self._reap()
            if self._commands.fileno() in ready:
                try:
                    data = self._commands.recv(1 << 16)
                except OSError:
                    data = b""
                if not data:
                    break
                *lines, text = (text + data).split(b"\n")
                for line in lines:
                    self._obey(line.decode().split())
        self._end_all()

    def _obey(self, words: list[str]) -> None:
        worker = int(words[1])
        if words[0] == "start":
            self._fork(worker, int(words[2]))
        elif worker in self._pids:
            pid, number = self._pids[worker], int(words[2])
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if number == signal.SIGKILL:
                    os.killpg(pid, number)
                else:
                    os.kill(pid, number)

    def _fork(self, worker: int, seat: int) -> None:
        output, their_output = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(output)
                self._become_worker(worker, their_output)
                self._main(worker, self._page.row(seat))
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)
        os.close(their_output)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # both sides set it: neither may come too late
        self._pids[worker] = pid
        self._tell(f"started {worker} {pid}", [output])
        os.close(output)

    def _become_worker(self, worker: int, output: int) -> None:
        os.setpgid(0, 0)
        die_with_parent(self._pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Ctrl-C belongs to the program that started the service: workers end with it, not by themselves
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._commands.close()
        for end in (*self._wakeup, self._lifeline[1]):
            os.close(end)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(null)
        os.close(output)
        line_buffer_c()
        set_name(f"pydp2-worker-{worker}")
        if sys.platform != "linux":
            _watch(self._lifeline[0])

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # what the user's code started goes with its worker
            worker = next((w for w, p in self._pids.items() if p == pid), None)
            if worker is not None:
                del self._pids[worker]
                self._tell(f"exited {worker} {pid} {status}", [])

    def _tell(self, text: str, descriptors: list[int]) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more: the next read of commands ends us
            socket.send_fds(self._commands, [text.encode() + b"\n"], descriptors)

    def _end_all(self) -> None:
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        for pid in self._pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _single_threaded() -> None:
    """A fork copies only the thread that forks: locks that others hold would stay locked for ever."""
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
    if threads != 1:
        raise RuntimeError(f"workers are forked from a process with one thread, this one has {threads}")


def _standard_streams() -> None:
    """Have something open at 0, 1 and 2, so that no pipe of ours gets a number that workers use for their output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _watch(lifeline: int) -> None:
    """End this process when the nursery ends: the way out where the kernel offers no parent-death signal."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, name="pydp2-lifeline", daemon=True).start()
