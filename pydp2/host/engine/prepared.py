"""Keep a copy of the process that has imported the user's code, for later services of the same program.

The zygote of a service imports the user's code, and then runs its hook. If the import took long, the zygote forks
between the two, and the copy waits for requests of the program, over a socket of packets:

    program → copy    a packet with a descriptor: the socket over which an engine will command a supervisor
    copy → program    any packet: the supervisor is there

The copy ends instead, without an answer, if a file that was imported has changed.

For each request the copy forks a supervisor, which forks the zygote of that service: the zygote has the imported
modules, and no effect of a hook. The copy starts no thread and runs no code of the user. It ends with the program, and
when no service has used it for a while. Services do not depend on it.

A copy must be equivalent to a process that has imported the code itself. If the import has left something that a fork
would share, or lose, there is no copy (:func:`_copy_obstacle`), and later services import the code themselves, as the
first did.
"""

from __future__ import annotations

import contextlib
import resource
import select
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydp2.host.engine.fork_setup import flush_output, fork_obstacle, run_child
from pydp2.host.engine.open_files import Held, open_descriptors
from pydp2.host.engine.process_control import flush_c_output, set_name
from pydp2.system.stdlib import gc, os, signal, socket, struct, time

NAME: Final = "pydp2-prepared"
_SLOW_IMPORT = 0.5  # seconds that an import must take to be worth a copy
_IDLE_SECONDS = 60.0  # seconds without a service after which the copy ends
_PACKET = 16
_DONE = b"done"
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of the process that made a pair of sockets
_OURS = [
    sys.modules[name] for name in ("os", "select", "signal", "socket")
]  # modules whose functions a supervisor calls
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


class _ProcessState(NamedTuple):
    """State of a process that a fork would share or lose: open descriptors, shared memory, signal handlers and mask,
    limits, the timeout of new sockets, and the functions of the modules that a supervisor uses."""

    descriptors: Held
    shared_memory: list[str]
    handlers: list[Any]
    settings: list[Any]
    functions: list[dict[str, Any]]

    @classmethod
    def now(cls) -> _ProcessState:
        """Return the state of this process. Raises OSError if there is no /proc."""
        maps = (line.partition(" ") for line in Path("/proc/self/maps").read_text().splitlines())
        return cls(
            open_descriptors(),
            [addresses for addresses, _, rest in maps if rest.startswith(("rw-s", "rwxs"))],
            [signal.getsignal(number) for number in signal.valid_signals()],
            [
                signal.pthread_sigmask(signal.SIG_BLOCK, ()),
                socket.getdefaulttimeout(),
                *(resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")),
            ],
            [dict(vars(module)) for module in _OURS],
        )


class PreparedCopy:
    """Copy of this process, which is made between the import of the user's code and its hook.

    ``program``: descriptor of the socket to the program, which only the first zygote inherits. ``run``: called in a
    supervisor, with the argument of :meth:`end_import` and the socket of the engine.
    """

    def __init__(self, program: int, run: Callable[[Any, socket.socket], None]) -> None:
        self._descriptor = program
        self._known = os.fstat(program).st_ino
        self._run = run
        self._began = 0.0
        self._began_at = 0
        self._before: _ProcessState | None = None

    def begin_import(self) -> None:
        """Note the state before the user's code is imported."""
        with contextlib.suppress(OSError):  # the descriptor is closed, because this is not the first zygote
            if os.fstat(self._descriptor).st_ino == self._known:
                self._before = _ProcessState.now()
        self._began, self._began_at = time.monotonic(), time.time_ns()

    def end_import(self, imported: Any) -> None:
        """Leave a copy behind, if the import took long and a copy is equivalent; tell the program."""
        if self._before is None:
            return
        with socket.socket(fileno=self._descriptor) as program:  # from here on only the copy has it
            if time.monotonic() - self._began < _SLOW_IMPORT or not _has_pidfd():
                return
            files = _module_files()
            if _copy_obstacle(self._before) or any(changed >= self._began_at for changed, _ in files.values()):
                return
            with contextlib.suppress(OSError):
                if self._fork(program, imported, files):
                    program.send(_DONE)

    def _fork(self, channel: socket.socket, imported: Any, files: dict[str, tuple[int, int]]) -> bool:
        """Fork the copy, which becomes a child of the supervisor; return True if there is one."""
        peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        program, supervisor = os.pidfd_open(_CREDENTIALS.unpack(peer)[0]), os.pidfd_open(os.getppid())
        flush_output()
        flush_c_output()
        between = os.fork()
        if between == 0:
            try:
                os.setsid()  # leaves the zygote's process group, which may be killed
                if os.fork():
                    os._exit(0)
            except BaseException:
                os._exit(1)
            run_child(partial(self._live, channel, program, supervisor, imported, files))
        _, status = os.waitpid(between, 0)
        os.close(program)
        os.close(supervisor)
        return status == 0

    # -- in the copy -----------------------------------------------------------------------------------------------
    def _live(
        self, channel: socket.socket, program: int, supervisor: int, imported: Any, files: dict[str, tuple[int, int]]
    ) -> None:
        """Fork a supervisor for each request. ``program``: descriptor of the program; ``supervisor``: descriptor of the
        supervisor of the first service."""
        set_name(NAME)
        requests = channel.fileno()
        _keep_open({requests, program, supervisor})
        gc.collect()
        gc.freeze()
        users: dict[int, int] = {supervisor: 0}  # descriptors of supervisors, and the pids of those that are children
        poll = select.poll()
        for descriptor in (requests, program, supervisor):
            poll.register(descriptor, select.POLLIN)
        while ready := dict(poll.poll(None if users else _IDLE_SECONDS * 1000)):
            if program in ready:
                return
            for ended in users.keys() & ready.keys():
                poll.unregister(ended)
                os.close(ended)
                if number := users.pop(ended):
                    os.waitpid(number, 0)
            if requests not in ready:
                continue
            _, given, _, _ = socket.recv_fds(channel, _PACKET, 1)
            if not given:
                return
            if _module_files(files) != files:
                return
            number = self._fork_supervisor(given[0], [requests, program, *users], imported)
            os.close(given[0])
            user = os.pidfd_open(number)
            users[user] = number
            poll.register(user, select.POLLIN)
            channel.send(_DONE)

    def _fork_supervisor(self, engine: int, others: list[int], imported: Any) -> int:
        """Fork a supervisor that gets its commands over ``engine``, and return its pid. ``others``: descriptors that it
        must not have."""
        number = os.fork()
        if number == 0:

            def life() -> None:
                os.setsid()
                for descriptor in others:
                    os.close(descriptor)
                self._run(imported, socket.socket(fileno=engine))

            run_child(life)
        return number


def _has_pidfd() -> bool:
    return hasattr(os, "pidfd_open") and sys.platform == "linux"


def _copy_obstacle(before: _ProcessState) -> str:
    """Return the reason why a copy of this process is not equivalent to one with an import of its own, or ''."""
    if reason := fork_obstacle(before.descriptors):
        return reason
    now = _ProcessState.now()
    if now.descriptors != before.descriptors:
        return "it opened files, and a copy would share their positions"
    if now.shared_memory != before.shared_memory:
        return "it has memory that a copy would share"
    if now.handlers != before.handlers or any(signal.getitimer(timer)[0] for timer in _TIMERS):
        return "it set signal handlers or timers, which a supervisor changes"
    if now.settings != before.settings:
        return "it changed the signal mask, a limit, or the timeout of new sockets, which a supervisor would have too"
    for known, functions in zip(before.functions, now.functions, strict=True):
        if any(functions.get(name) is not known[name] for name in known):
            return "it replaced functions that a supervisor calls"
    return ""


def _module_files(known: dict[str, tuple[int, int]] | None = None) -> dict[str, tuple[int, int]]:
    """Return the files of all imported modules, or those in ``known``, each with its modification time (in ns) and its
    size."""
    names = known if known is not None else {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    found = {}
    for name in names:
        if isinstance(name, str):
            with contextlib.suppress(OSError, ValueError):
                status = Path(name).stat()
                found[name] = (status.st_mtime_ns, status.st_size)
    return found


def _keep_open(descriptors: set[int]) -> None:
    """Close all descriptors but these. Output to stdout and stderr is lost."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    for number in open_descriptors():
        if number > 2 and number not in descriptors:
            with contextlib.suppress(OSError):
                os.close(number)
