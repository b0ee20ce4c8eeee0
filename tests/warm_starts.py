"""Start the servers and the programs of tests by a fork of one process that has imported all that they need.

A server of a user is a fresh interpreter, which takes 0.3 seconds of processor time for its imports; hundreds of tests
start one. So one process per run of the tests imports the server, and is forked for each ``launch`` and ``load`` of
the test process, and for each provider that ``check`` reads again or ``bench`` measures. From there on the same code
runs: :func:`pydp2.server.main.main` with its end of a socket pair, in a session, a working directory and an environment
of its own, with the descriptors that it is given and no others.

A program that is started by :func:`start_program` is forked too, with the servers that it starts. It runs as
``__main__``, with a folder and a session of its own, and ends as an interpreter does; a module of pydp2 is there for it
once it has imported it, and not before.

Fresh interpreters are used by other programs that tests start, by ``pydp2 serve``, by the tests of ``REAL_STARTS``, and
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
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import IO, Any, NoReturn

from pydp2.api import interpreter
from pydp2.api.rundir import is_open, move_above_standard_streams
from pydp2.host.engine.fork_setup import flush_output
from pydp2.options.service_spec import ServiceSpec
from pydp2.protocol.plain_records import field_types

REAL_STARTS = frozenset({"endings", "benchmarks", "test_machine.py", "test_memory.py"})
"""Folders and files of tests in which each server is a fresh interpreter, as in tests with the mark ``real_starts``:
they measure processes, or are about how these start and end."""
TEMPLATE = "warm-start"
"""The name of the process that is forked. It is no leftover of a test."""
_FUNCTIONS = {
    "pydp2.server.main": "main",
    "pydp2.host.agent.main": "main",
    "pydp2.diagnostics.provider_bench": "supervise",
    "pydp2.diagnostics.repeat_check": "run_again",
}
"""What runs in a fork: a server, the agent of a host, a provider that is measured, and one that is read again."""
_LATE = ("pydp2.server.serving", "pydp2.host.agent.agent", "zmq.utils.garbage")  # what these import later than that
_MOST = 1 << 16  # bytes of a request
_HIGH = 200  # descriptors from here on are nobody's while those of a request are put in their places
_RLIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}  # as all programs are
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
        self._one_reads = threading.Lock()  # a thread may wait while another one sends a signal

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

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _look(self, seconds: float | None) -> int | None:
        with contextlib.suppress(OSError):  # another thread has read it, and closed the pipe
            if self.returncode is None and not select.select([self._status], [], [], seconds)[0]:
                return None
        with self._one_reads:
            if self.returncode is None:
                answer = os.read(self._status, 16)
                assert answer, "the process that is forked has ended"
                self.returncode = int(answer)
                os.close(self._status)
        return self.returncode


class WarmProgram(WarmServer):
    """A program that was forked, and what it writes."""

    def __init__(self, pid: int, status: int, stdout: int, stderr: int) -> None:
        super().__init__(pid, status)
        self.stdout: IO[str] = os.fdopen(stdout, encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(stderr, encoding="utf-8")


class Forks:
    """Asks the process that is forked, by a socket, for servers. A program that was forked has one of its own."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._inherited = _inherited()
        self._owner = os.getpid()
        self._one_at_a_time = threading.Lock()

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
        if os.getpid() != self._owner or _FUNCTIONS.get(module) != function or _inherited() != self._inherited:
            return interpreter.start_interpreter(
                module, function, passed=passed, prints=prints, environment=environment
            )
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours, theirs = (socket.socket(fileno=move_above_standard_streams(end.detach())) for end in pair)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            stderr = 2 if is_open(2) else null
            streams = [null, stderr if prints else null, stderr]
            request = {
                "module": module, "cwd": str(Path.cwd()), "environment": {**os.environ, **(environment or {})},
                "targets": [theirs.fileno(), *passed],
            }  # fmt: skip
            return WarmServer(*self._ask(request, streams)), ours
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(null)

    def _ask(self, request: dict[str, Any], streams: Sequence[int]) -> tuple[int, int]:
        """Have a process forked that has ``streams`` and the targets of ``request``; its number, and the pipe that
        tells its exit status."""
        read, write = os.pipe()
        try:
            given = array.array("i", [write, *streams, *request["targets"]])
            with self._one_at_a_time:
                self._requests.sendmsg(
                    [json.dumps(request).encode(errors="surrogateescape")],
                    [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)],
                )
                return int(self._requests.recv(16)), read
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)


class WarmStarts(Forks):
    """The process that is forked for each server and program. It ends with this one."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
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
        assert ours.recv(16) == b"ready"

    def start_program(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Program:
        """Start what :func:`start_program` does, by a fork where nothing is special."""
        read = {key: value for key, value in environment.items() if key.startswith(_READ_AT_START)}
        now = _inherited()
        if now != self._inherited or read | _UNBUFFERED != now["read"] | _UNBUFFERED:
            return _start_interpreter(words, folder, environment)
        null = os.open(os.devnull, os.O_RDWR)
        out, err = os.pipe(), os.pipe()
        request = {"cwd": str(folder), "environment": dict(environment), "targets": [], "words": list(words)}
        try:
            return WarmProgram(*self._ask(request, [null, out[1], err[1]]), out[0], err[0])
        finally:
            for each in (null, out[1], err[1]):
                os.close(each)

    def close(self) -> None:
        """End the process."""
        self._requests.close()
        self._process.wait(10)


Program = subprocess.Popen[str] | WarmProgram
_warm: WarmStarts | None = None  # what start_program uses, where the tests of a folder want that


def start_program(words: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Program:
    """Start a Python program, ``[script, …]`` or ``["-c", code, …]``, in ``folder`` and in a session of its own. It
    has pipes for what it writes, which it does at once, and nothing to read."""
    start = _start_interpreter if _warm is None else _warm.start_program
    return start(words, folder, os.environ if environment is None else environment)


def run_program(words: Sequence[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as :func:`start_program` starts it, until nobody has its output open any more."""
    process = start_program(words, folder)
    written: dict[str, str] = {}
    streams = {"stdout": process.stdout, "stderr": process.stderr}
    readers = [
        threading.Thread(target=lambda name=name, stream=stream: written.update({name: stream.read()}))
        for name, stream in streams.items()
    ]
    for reader in readers:
        reader.start()
    try:
        status = process.wait(seconds)
    finally:
        process.kill()
        process.wait()
        for reader, stream in zip(readers, streams.values(), strict=True):
            reader.join()
            stream.close()
    return subprocess.CompletedProcess(list(words), status, **written)


def _start_interpreter(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", *words], cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def template(descriptor: int) -> None:
    """Import a server, then fork one, or a program, for each request that comes by ``descriptor`` or from a program,
    until ``descriptor`` is closed. In a program that was forked, return, or raise what it raises."""
    gc.disable()
    from pydp2.api import service, worker_host
    from pydp2.diagnostics import local_provider
    from pydp2.host.engine.process_control import set_name

    mains = {module: getattr(importlib.import_module(module), function) for module, function in _FUNCTIONS.items()}
    for module in _LATE:
        importlib.import_module(module)
    field_types(ServiceSpec)  # which keeps them
    gc.freeze()
    set_name(TEMPLATE)
    requests = [socket.socket(fileno=descriptor)]  # the others are of programs
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    running: dict[int, int] = {}
    requests[0].send(b"ready")
    while True:
        ready = select.select([*requests, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
            _report_ended(running)
        for asking in [each for each in requests if each in ready]:
            text, given, _, _ = socket.recv_fds(asking, _MOST, 64)
            if not text:
                if asking is requests[0]:
                    os._exit(0)
                requests.remove(asking)
                asking.close()
                continue
            request = json.loads(text)
            if "words" in request:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                requests.append(ours)
                given.append(theirs.detach())
                request["targets"] = [given[-1]]
            pid = os.fork()
            if pid == 0:
                for each in requests:
                    each.detach()  # closed with all others: the number may be another's when this object goes
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                first = _become(request, given[1:])
                gc.enable()
                if "words" not in request:
                    _run_as_program(mains[request["module"]], first)
                set_name("python")
                start = Forks(socket.socket(fileno=first)).start
                service.start_interpreter = worker_host.start_interpreter = local_provider.start_interpreter = start
                _run_words(request["words"])
                return
            running[pid] = given[0]
            for each in given[1:]:
                os.close(each)
            asking.send(str(pid).encode())


class _KeptModules(MetaPathFinder, Loader):
    """Gives a program the modules of pydp2 that the process that was forked has imported, when it imports them."""

    def __init__(self) -> None:
        names = [name for name in sys.modules if name.partition(".")[0] == "pydp2"]
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._specs = {name: module.__spec__ for name, module in self._modules.items()}
        for name in names:
            vars(self._modules["pydp2"]).pop(name.removeprefix("pydp2."), None)  # a program has not imported it yet

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        known = self._specs.pop(name, None)
        if known is None:
            return None
        spec = ModuleSpec(name, self, origin=known.origin, loader_state=known)
        spec.submodule_search_locations = known.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self._modules.pop(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def _run_words(words: list[str]) -> None:
    """Run the program ``words`` as ``__main__``."""
    sys.meta_path.insert(0, _KeptModules())
    main = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.path[0], sys.argv, file, text = "", ["-c", *words[2:]], "<string>", words[1]
    else:
        file = words[0]
        sys.path[0], sys.argv, text = str(Path(file).resolve().parent), words, Path(file).read_text("utf-8")
        main.__file__ = file
    sys.modules["__main__"] = main
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)
    usual, names = sys.excepthook, id(vars(main))  # no reference: at the end, modules are taken apart without one

    def without_this_file(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        while trace is not None and id(trace.tb_frame.f_globals) != names:
            trace = trace.tb_next
        usual(kind, error.with_traceback(trace), trace)

    sys.excepthook = without_this_file
    exec(compile(text, file, "exec", dont_inherit=True), vars(main))


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
    """Be the process that ``request`` asks for, with the descriptors ``given``: standard streams, then those that it
    has under the same numbers as its starter. Return the first of these numbers."""
    import fcntl

    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"] | ({} if "words" in request else interpreter._ONE_THREAD))
    os.chdir(request["cwd"])
    above = max(_HIGH, *request["targets"]) + 1
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in given]
    for target, each in zip([0, 1, 2, *request["targets"]], high, strict=True):
        os.dup2(each, target)
    keep = {0, 1, 2, *request["targets"]}
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if number not in keep:
            with contextlib.suppress(OSError):
                os.close(number)
    return int(request["targets"][0])


__all__ = ["REAL_STARTS", "WarmStarts", "run_program", "start_program"]
