"""Keep the processes that have imported a provider for this program, so that later services need not import it again.

A service whose provider takes long to import leaves such a process behind (:mod:`pydp2.host.engine.prepared`). It
serves the services of this program that name the same provider and would import it in the same surroundings. A program
can also have a provider imported before its first service (:mod:`pydp2.host.import_ahead`), which then waits for the
rest of the import.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydp2.api.interpreter import await_readable, start_interpreter
from pydp2.api.rundir import move_above_standard_streams
from pydp2.options.service_spec import ServiceSpec, packed, send_blocks
from pydp2.providers.program_state import ProgramState

_MOST = 4  # processes that a program keeps at a time
_ANSWER_SECONDS = 5.0  # for a process that only has to fork
_PACKET = 16
_TEXT = 4096
_INHERITED = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "NoNewPrivs", "Seccomp", "Cpus_allowed")
Key = tuple[Any, ...]
"""Everything that the import of a provider may depend on, except the files that it reads."""


_channels: dict[Key, socket.socket] = {}
"""Sockets to processes that have imported a provider, the most recently used one last."""
_imports: dict[Key, tuple[int, socket.socket]] = {}
"""Processes that import a provider before its first service: process id, and the socket for progress messages. Both
sockets of such a process have the same key."""
_one_at_a_time = threading.RLock()  # a signal handler may start a service, too


def _forget() -> None:
    """Close all sockets: in a fork of the program, which leaves the processes to its parent, and at its end, when they
    end, too."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()
    for channel in (*_channels.values(), *(progress for _, progress in _imports.values())):
        channel.close()
    _channels.clear()
    _imports.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(_forget)  # else Python tells who asks for such warnings that they are still open


class Preparation:
    """Descriptor that a new server inherits. It leads to a process that has imported the provider of ``spec``, or it is
    for the process that the server's own zygote may leave behind.

    ``spec``: the spec with the number of the descriptor. ``passed``: a list with the descriptor, which
    :meth:`hand_over` closes in this process.
    """

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec, self.passed = spec, list[int]()
        self._channel: socket.socket | None = None
        self._key: Key = ()
        if sys.platform != "linux" or spec.start != "auto" or not spec.workers:
            return
        try:
            self._key = _key_of(spec.providers, spec.root, spec.path, spec.program)
        except OSError:  # there is no /proc
            return
        _await_import(self._key)
        supervisor = _fork_supervisor(self._key)
        if supervisor is not None:
            self.passed = [supervisor.detach()]
            self.spec = replace(spec, supervisor=self.passed[0])
            return
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel, prepared_end = (socket.socket(fileno=move_above_standard_streams(end.detach())) for end in pair)
        self.passed = [prepared_end.detach()]
        self.spec = replace(spec, prepared=self.passed[0])

    def hand_over(self) -> None:
        """Close the descriptor in this process, because the server has inherited it."""
        passed, self.passed = self.passed, []
        for descriptor in passed:
            os.close(descriptor)

    def keep(self, *, once: bool) -> None:
        """Keep the process that the service has left behind, now that its first worker is ready. ``once``: the provider
        was imported once for all workers; otherwise each worker imports it, and there is nothing to keep."""
        channel, self._channel = self._channel, None
        if not once:
            _drop([self._key])
        elif channel is not None and _is_imported(channel):
            _keep(self._key, channel)
            return
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Close all descriptors."""
        self.hand_over()
        if self._channel is not None:
            self._channel.close()


def begin_import(providers: tuple[str, ...], root: str, path: tuple[str, ...], program: bytes) -> None:
    """Start a process that imports ``providers`` for services to come, unless there is one. The arguments are those of
    :class:`~pydp2.options.service_spec.ServiceSpec`."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return
    try:
        key = _key_of(providers, root, path, program)
    except OSError:  # there is no /proc
        return
    with _one_at_a_time:
        if _is_open(key):
            return
        own_end, prepared_end = (
            socket.socket(fileno=move_above_standard_streams(end.detach()))
            for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        with prepared_end, contextlib.ExitStack() as unless_started:
            unless_started.callback(own_end.close)
            process, progress = start_interpreter(
                "pydp2.host.import_ahead", "main", passed=[prepared_end.fileno()], prints=True
            )
            unless_started.pop_all()
            process.returncode = 0  # the object is not needed: _end_import waits for the process
            _keep(key, own_end)
            _imports[key] = process.pid, progress
            given = {
                "providers": providers,
                "root": root,
                "path": path,
                "program": program,
                "channel": prepared_end.fileno(),
            }
            with contextlib.suppress(OSError):  # it has been killed
                send_blocks(progress, packed(given))


def _is_open(key: Key) -> bool:
    """Return True if there is a process for ``key``; its import may not have ended yet."""
    if (channel := _channels.get(key)) is None:
        return False
    poll = select.poll()
    poll.register(channel, 0)  # reports only that the connection has ended
    return not poll.poll(0)


def _is_imported(channel: socket.socket) -> bool:
    """Return True if the process at the other end has imported the provider. It sends that once."""
    channel.settimeout(0.0)
    try:
        return channel.recv(_PACKET) != b""
    except OSError:
        return False
    finally:
        channel.settimeout(_ANSWER_SECONDS)


def _await_import(key: Key) -> None:
    """Wait until a process that was started to import the provider of ``key`` has done so, or has ended."""
    with _one_at_a_time:
        if key not in _imports:
            return
        _, progress = _imports[key]
        progress = socket.socket(fileno=move_above_standard_streams(os.dup(progress.fileno())))
    doing = "importing the provider"
    with progress, contextlib.suppress(ConnectionResetError):  # each thread that waits has its own, and sees the end
        while True:
            await_readable(progress, doing)
            if not (text := progress.recv(_TEXT)):
                break
            doing = text.decode(errors="replace").splitlines()[-1]
    with _one_at_a_time:
        if _end_import(key) and not _is_imported(_channels[key]):
            _drop([key])


def _end_import(key: Key) -> bool:
    """End the process that imports the provider of ``key``, and wait for that; return True if there was one."""
    number, progress = _imports.pop(key, (0, None))
    if progress is None:
        return False
    with progress, contextlib.suppress(OSError):  # it has ended
        progress.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(ChildProcessError, ProcessLookupError):  # the program has waited for all of its children
        poll, process = select.poll(), os.pidfd_open(number)
        poll.register(process, select.POLLIN)
        if not poll.poll(_ANSWER_SECONDS * 1000):  # a signal has stopped it
            os.kill(number, signal.SIGKILL)
        os.close(process)
        os.waitpid(number, 0)
    return True


def end_all() -> None:
    """End the processes that have imported a provider for this program. Services that run are not affected."""
    _drop([*_channels])


def _drop(keys: Sequence[Key]) -> None:
    with _one_at_a_time:
        for key in keys:
            _end_import(key)
            if (channel := _channels.pop(key, None)) is not None:
                channel.close()


def _keep(key: Key, channel: socket.socket) -> None:
    with _one_at_a_time:
        _drop([key])
        _drop([*_channels][: max(0, len(_channels) + 1 - _MOST)])
        _channels[key] = channel


def _fork_supervisor(key: Key) -> socket.socket | None:
    """Return the socket of a supervisor that has imported the provider, if there is a process to fork it from."""
    with _one_at_a_time:
        channel = _channels.pop(key, None)
        if channel is None:
            return None
        own_end, prepared_end = (
            socket.socket(fileno=move_above_standard_streams(end.detach())) for end in socket.socketpair(socket.AF_UNIX)
        )
        with prepared_end, contextlib.suppress(OSError):
            socket.send_fds(channel, [b"fork"], [prepared_end.fileno()])
            if channel.recv(_PACKET):
                _channels[key] = channel
                return own_end
        own_end.close()
        channel.close()
        return None


def _key_of(providers: tuple[str, ...], root: str, path: tuple[str, ...], program: bytes) -> Key:
    """Return the key of ``providers`` for the present state of this program. The globals that a program describes are
    not part of it, because each service compares them."""
    import resource

    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    inherited = [line for line in lines if line.startswith(_INHERITED)]
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    process = (*sorted(os.environ.items()), sys.executable, nice, *limits, *inherited)
    state = replace(ProgramState.from_bytes(program), described_globals={}) if program else None
    return (providers, root, path, state and state.to_bytes(), *process)
