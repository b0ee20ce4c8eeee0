"""Where a round is played: a folder of its own, services and programs in it, a deadline, and a look at what is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydp2
from pydp2.api import rundir
from pydp2.errors import Error

from ..runs import Program, processes, wait_until


class Hangs(AssertionError):
    """A round did not come to its end."""


class Bench:
    """One round's folder and what runs in it. ``seconds``: what lasts longer hangs."""

    def __init__(self, seconds: float) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="f-"))
        self.seconds = seconds
        self._programs: list[Program] = []
        self._screen = open(self.folder / "screen", "w+b")  # noqa: SIM115 - closed with the bench

    @property
    def screen(self) -> str:
        """What services of this process wrote to stderr, and what their workers printed."""
        return (self.folder / "screen").read_text(errors="replace")

    @property
    def screens(self) -> str:
        """The same, and what programs and their services wrote there."""
        return "\n".join([self.screen, *(program.screen for program in self._programs)])

    @contextlib.contextmanager
    def running(self) -> Iterator[Bench]:
        """For the length of a round: stderr of services goes to ``screen``, and a hang becomes an error."""
        before = signal.signal(signal.SIGALRM, self._expired)
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(self._screen.fileno(), 2)
        try:
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
            yield self
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._nothing_left()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            self._clean_up()

    def _expired(self, *_: object) -> None:
        raise Hangs(f"the round did not end within {self.seconds:g} s")

    def _nothing_left(self) -> None:
        """Programs have ended; so has everything that they and services started."""
        for program in self._programs:
            assert program.process.poll() is not None, "a program of the round still runs"
        assert wait_until(lambda: processes("") in ([], [os.getpid()])), f"processes are left: {self._named()}"

    def _named(self) -> list[str]:
        found = []
        for pid in processes(""):
            with contextlib.suppress(OSError):
                found.append(f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}")
        return found

    def _clean_up(self) -> None:
        for pid in processes(""):
            if pid != os.getpid():
                self.signal(pid, signal.SIGKILL)
        for program in self._programs:
            program.process.kill()  # one that has just been started may have no environment yet that tells it is ours
            program.close()
        self._screen.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- what can be started -------------------------------------------------------------------------------------------
    def program(self, code: str, *words: str, beside: Mapping[str, str] | None = None) -> Program:
        """A Python program in a folder of its own, with a session of its own; ``beside``: files by their names."""
        folder = self.folder / f"program-{len(self._programs)}"
        folder.mkdir()
        for name, content in (beside or {}).items():
            (folder / name).write_text(content)
        self._programs.append(Program(code, folder, *words))
        return self._programs[-1]

    def command(
        self, code: str, *words: str, seconds: float = 60.0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program to its end."""
        return self._run(["-c", code, *words], seconds, **options)

    def script(self, path: Path, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        return self._run([str(path)], seconds)

    def _run(self, words: list[str], seconds: float, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=self.folder, capture_output=True, text=True, timeout=seconds, **options
        )

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process that may be gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def write(self, name: str, code: str) -> str:
        """A provider's module; the address of its ``process``."""
        path = self.folder / f"{name}.py"
        path.write_text("from pydp2 import *\n" + code)
        return f"{path}:process"


def caught(act: Callable[[], object]) -> Error | None:
    """The error of pydp2 that ``act()`` ends with, None where it ends well."""
    try:
        act()
    except Error as error:
        return error
    return None


def run_directories() -> list[str]:
    """The run directories that there are."""
    return sorted(entry.name for entry in rundir.run_directories().iterdir())


def sockets() -> set[str]:
    """Unix sockets in the temporary folder that somebody holds; those of a service are in its run directory."""
    paths = (line.rpartition(" ")[2] for line in Path("/proc/net/unix").read_text().splitlines())
    return {path for path in paths if path.startswith(tempfile.gettempdir() + "/")}


def shared_memory() -> set[str]:
    """Named segments of shared memory."""
    return {entry.name for entry in Path("/dev/shm").iterdir() if not entry.name.startswith("sem.")}


def remains(shared: set[str]) -> list[str]:
    """What is left of services: processes, run directories, sockets, and shared memory that is not in ``shared``."""
    left = [f"process {pid}" for name in ("pydp2-", "sleep") for pid in processes(name)]
    left += [f"run directory {name}" for name in run_directories()]
    left += [f"socket {path}" for path in sockets()]
    return left + [f"shared memory {name}" for name in shared_memory() - shared]


def workers_of(service: pydp2.Service) -> list[dict[str, Any]]:
    """The workers that the service knows, as its statistics show them."""
    found: list[dict[str, Any]] = service.stats()["workers"]
    return found


class Timetable(threading.Thread):
    """Does ``act(event)`` for each of ``events`` when its second has come, counted from the start."""

    def __init__(self, events: list[Any], act: Callable[[Any], None]) -> None:
        super().__init__(name="timetable", daemon=True)
        self._events = sorted(events, key=lambda event: event.at)
        self._act = act
        self._over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        began = time.monotonic()
        try:
            for event in self._events:
                if self._over.wait(max(0.0, began + event.at - time.monotonic())):
                    return
                self._act(event)
        except BaseException as error:  # told in the thread that waits for us
            self.error = error

    def end(self) -> None:
        """No more events. Raises what went wrong in one."""
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error


def resident(pid: int) -> int:
    """Bytes of memory that ``pid`` has for itself alone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) * 1024


def memory(pid: int) -> tuple[int, int]:
    """Bytes of memory that ``pid`` sees, and its share of them, each page divided among all who have it."""
    sizes = _rollup(pid)
    return sizes["Rss:"], sizes["Pss:"]


def anonymous(pid: int) -> int:
    """Bytes of memory of ``pid`` that no file stands behind, its share where it has forked."""
    return _rollup(pid).get("Pss_Anon:", 0)


def shared(pids: list[int]) -> int:
    """Bytes of the shared memory that ``pids`` see, counted once."""
    return sum(_rollup(pid).get("Pss_Shmem:", 0) for pid in pids)


def _rollup(pid: int) -> dict[str, int]:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return {}
    return {line.split()[0]: int(line.split()[1]) * 1024 for line in text.splitlines()[1:]}


def cpu(pids: list[int]) -> float:
    """Seconds of processor time that ``pids`` have used."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")
