"""Know the processes that have imported a provider for this program, so that later services need not import it again.

A service whose provider takes long to import leaves such a process behind (:mod:`pydp2.engine.prepared`). It serves the
services of this program that name the same provider and would import it in the same surroundings.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydp2.api.rundir import move_above_standard_streams
from pydp2.server.spec import ServiceSpec

_MOST = 4  # processes that a program has at a time
_ANSWER_SECONDS = 5.0  # for a process that only has to fork
_PACKET = 16
_INHERITED = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "NoNewPrivs", "Seccomp", "Cpus_allowed")
Key = tuple[Any, ...]
"""Everything that the import of a provider may depend on, beside the files that it reads."""


_channels: dict[Key, socket.socket] = {}
"""Sockets to processes that have imported a provider. The one that was asked last comes last."""
_one_at_a_time = threading.RLock()  # a signal handler may start a service, too


def _forget() -> None:
    """Leave the processes to the parent, in a fork of the program."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()
    for channel in _channels.values():
        channel.close()
    _channels.clear()


os.register_at_fork(after_in_child=_forget)


class Preparation:
    """Descriptors for a new server, which lead to a process that has imported the provider of ``spec``, or to one that
    its own zygote may leave behind.

    ``spec``: with their numbers. ``passed``: the descriptors, which are closed in this process by :meth:`hand_over`.
    """

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec, self.passed = spec, list[int]()
        self._channel: socket.socket | None = None
        self._key: Key = ()
        if sys.platform != "linux" or spec.start != "auto" or not spec.workers:
            return
        try:
            self._key = _key_of(spec)
        except OSError:  # there is no /proc
            return
        supervisor = _fork_supervisor(self._key)
        if supervisor is not None:
            self.passed = [supervisor.detach()]
            self.spec = replace(spec, supervisor=self.passed[0])
            return
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel, theirs = (socket.socket(fileno=move_above_standard_streams(end.detach())) for end in pair)
        self.passed = [theirs.detach()]
        self.spec = replace(spec, prepared=self.passed[0])

    def hand_over(self) -> None:
        """Close what the server has by now."""
        passed, self.passed = self.passed, []
        for each in passed:
            os.close(each)

    def keep(self, *, once: bool) -> None:
        """Keep what the service has left behind, now that its first worker is ready. ``once``: its workers come from
        one process; else they import the provider for themselves in each service."""
        channel, self._channel = self._channel, None
        if not once:
            _drop([self._key])
        elif channel is not None:
            channel.settimeout(0.0)
            with contextlib.suppress(OSError):
                if channel.recv(_PACKET):
                    channel.settimeout(_ANSWER_SECONDS)
                    _keep(self._key, channel)
                    return
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Close what is left."""
        self.hand_over()
        if self._channel is not None:
            self._channel.close()


def end_all() -> None:
    """End the processes that have imported a provider for this program. Services that run are not affected."""
    _drop([*_channels])


def _drop(keys: Sequence[Key]) -> None:
    with _one_at_a_time:
        for key in keys:
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
        ours, theirs = (
            socket.socket(fileno=move_above_standard_streams(end.detach())) for end in socket.socketpair(socket.AF_UNIX)
        )
        with theirs, contextlib.suppress(OSError):
            socket.send_fds(channel, [b"fork"], [theirs.fileno()])
            if channel.recv(_PACKET):
                _channels[key] = channel
                return ours
        ours.close()
        channel.close()
        return None


def _key_of(spec: ServiceSpec) -> Key:
    import resource

    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    inherited = [line for line in lines if line.startswith(_INHERITED)]
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    process = (*sorted(os.environ.items()), sys.executable, nice, *limits, *inherited)
    return (spec.provider, spec.root, spec.path, spec.program, *process)
