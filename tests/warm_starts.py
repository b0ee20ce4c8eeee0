"""Start the servers of tests by a fork of one process that has imported all that a server needs.

A server of a user is a fresh interpreter, which takes 0.3 seconds of processor time for its imports; hundreds of tests
start one. So one process per run of the tests imports the server, and is forked for each ``launch`` and ``load`` of
the test process. From there on the same code runs: :func:`pydp2.server.main.main` with its end of a socket pair, in a
session, a working directory and an environment of its own, with the descriptors that it is given and no others.

Fresh interpreters are used by programs that tests start, by ``pydp2 serve``, by the tests of ``REAL_STARTS``, and
where the test process has anything special that a fresh interpreter would inherit (limits, ignored signals, a variable
that Python or the C library reads).
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydp2.api import interpreter
from pydp2.api.rundir import is_open, move_above_standard_streams
from pydp2.engine.fork_setup import flush_output

REAL_STARTS = frozenset(
    {"endings", "faults", "api", "benchmarks", "cli", "metrics", "test_memory.py", "test_address_space.py"}
)
"""Folders and files of tests in which each server is a fresh interpreter: they measure processes, or are about how
these start and end."""
TEMPLATE = "warm-start"
"""The name of the process that is forked. It is no leftover of a test."""
_SERVER = ("pydp2.server.main", "main")
_MOST = 1 << 16  # bytes of a request
_HIGH = 200  # descriptors from here on are nobody's while those of a request are put in their places
_RLIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OPENBLAS_", "OMP_", "MKL_", "LC_", "LANG")


def _inherited() -> dict[str, Any]:
    """Return what a fresh interpreter would inherit from this process and a fork of another one does not."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "limits": [resource.getrlimit(each) for each in _RLIMITS],
        "status": [status.get(name) for name in ("Umask", "SigBlk", "SigIgn", "Cpus_allowed", "CapEff", "Uid", "Gid")],
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "read": {key: value for key, value in os.environ.items() if key.startswith(_READ_AT_START)},
    }


class WarmServer:
    """A server process that was forked; as :class:`subprocess.Popen` for those that started it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status  # a pipe: the exit status comes when the process has ended

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises subprocess.TimeoutExpired."""
        if (status := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired("pydp2-server", timeout or 0.0)
        return status

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            answer = os.read(self._status, 16)
            assert answer, "the process that is forked has ended"
            self.returncode = int(answer)
            os.close(self._status)
        return self.returncode


class WarmStarts:
    """The process that is forked for each server. It ends with this one."""

    def __init__(self) -> None:
        self._inherited = _inherited()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests = ours
        code = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r}); "
            f"from tests.warm_starts import template; template({theirs.fileno()})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | interpreter._ONE_THREAD,
        )  # fmt: skip
        theirs.close()
        self._owner = os.getpid()
        assert ours.recv(16) == b"ready"

    def start(
        self,
        module: str,
        function: str,
        *,
        passed: Sequence[int] = (),
        prints: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[Any, socket.socket]:
        """Start what :func:`pydp2.api.interpreter.start_interpreter` does: a server by a fork, all else as ever."""
        special = prints or environment or os.getpid() != self._owner or (module, function) != _SERVER
        if special or _inherited() != self._inherited:
            return interpreter.start_interpreter(
                module, function, passed=passed, prints=prints, environment=environment
            )
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours, theirs = (socket.socket(fileno=move_above_standard_streams(end.detach())) for end in pair)
        read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            targets = [theirs.fileno(), *passed]
            request = {"cwd": str(Path.cwd()), "environment": dict(os.environ), "targets": targets}
            given = array.array("i", [write, 2 if is_open(2) else null, *targets])
            self._requests.sendmsg(
                [json.dumps(request).encode(errors="surrogateescape")],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)],
            )
            pid = int(self._requests.recv(16))
        except BaseException:
            ours.close()
            os.close(read)
            raise
        finally:
            theirs.close()
            os.close(write)
            os.close(null)
        return WarmServer(pid, read), ours

    def close(self) -> None:
        """End the process."""
        self._requests.close()
        self._process.wait(10)


def template(descriptor: int) -> None:
    """Import a server, then fork one for each request that comes by ``descriptor``, until that is closed."""
    gc.disable()
    from pydp2.engine.process_control import set_name
    from pydp2.server.main import main

    importlib.import_module("pydp2.server.serving")  # a server imports it later than that
    gc.freeze()
    set_name(TEMPLATE)
    requests = socket.socket(fileno=descriptor)
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    running: dict[int, int] = {}
    requests.send(b"ready")
    while True:
        ready = select.select([requests, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
            _report_ended(running)
        if requests not in ready:
            continue
        text, given, _, _ = socket.recv_fds(requests, _MOST, 64)
        if not text:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            requests.detach()  # closed with all others: the number may be another's when this object goes
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            first = _become(json.loads(text), given[1:])
            gc.enable()
            _run_as_program(main, first)
        running[pid] = given[0]
        for each in given[1:]:
            os.close(each)
        requests.send(str(pid).encode())


def _run_as_program(main: Callable[[int], int], argument: int) -> NoReturn:
    """Run ``main(argument)`` and end the process as :func:`sys.exit` does, but leave its memory to the kernel: taking
    the modules apart, most of whose pages are still shared with the process that was forked, costs 20 ms."""
    status = 1
    try:
        status = main(argument)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        flush_output()
        os._exit(status)


def _report_ended(running: dict[int, int]) -> None:
    """Write the exit status of each process that has ended to the pipe of its starter."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(pipe)


def _become(request: dict[str, Any], given: list[int]) -> int:
    """Be the process that ``request`` asks for, with the descriptors ``given``: stderr, then those that it has under
    the same numbers as its starter. Return the first of these numbers."""
    import fcntl

    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"] | interpreter._ONE_THREAD)
    os.chdir(request["cwd"])
    above = max(_HIGH, *request["targets"]) + 1
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in given]
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(high[0], 2)
    for target, each in zip(request["targets"], high[1:], strict=True):
        os.dup2(each, target)
    keep = {0, 1, 2, *request["targets"]}
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number not in keep:
            with contextlib.suppress(OSError):
                os.close(number)
    return int(request["targets"][0])


__all__ = ["REAL_STARTS", "WarmStarts"]
