"""Start a fresh interpreter that runs one function of pydp2, connected by a socket pair, and wait for its answer."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

from pydp2.api.rundir import is_open, move_above_standard_streams
from pydp2.client.wait_notice import notice_seconds, write_notice

# The order of a set of texts depends on their hashes, and Python draws these anew for each interpreter. A provider that
# goes through a set would yield something else in each run, and on each host.
_HASHES = {"PYTHONHASHSEED": "0"}
# It forks, so it must have one thread: numpy's BLAS would start more, and pyarrow one of its allocator (jemalloc).
# What it forks shares the cores anyway.
_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_FLAGS = {
    "optimize": "O",
    "bytes_warning": "b",
    "dont_write_bytecode": "B",
    "ignore_environment": "E",
    "no_user_site": "s",
}
"""Flags of an interpreter that change what code does or where it is found, with their letters."""
_X_OPTIONS = ("dev", "frozen_modules", "no_debug_ranges", "pycache_prefix", "utf8", "warn_default_encoding")


def start_interpreter(
    module: str,
    function: str,
    *,
    passed: Sequence[int] = (),
    prints: bool = False,
    environment: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that calls ``function`` of ``module`` with the descriptor of its end of a socket pair; return the
    process and our end.

    It runs in a session of its own: Ctrl-C reaches this program, which ends it. ``passed``: other descriptors that it
    inherits. ``prints``: its stdout leads to stderr, else it is discarded. ``environment``: variables that it gets
    beside ours. Hashes of texts are the same in all of these processes, unless the program has a ``PYTHONHASHSEED``.
    """
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    own_end, child_end = (socket.socket(fileno=move_above_standard_streams(end.detach())) for end in pair)
    package = str(Path(__file__).resolve().parents[2])
    code = (  # what is imported stays: no collection need look for garbage in it, here or in what is forked from here
        f"import gc, sys; gc.disable(); p = {package!r}; p in sys.path or sys.path.insert(0, p); "
        f"from {module} import {function}; gc.freeze(); gc.enable(); sys.exit({function}({child_end.fileno()}))"
    )
    stderr = 2 if is_open(2) else subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", *_flags(), "-c", code],
            pass_fds=[child_end.fileno(), *passed],
            stdin=subprocess.DEVNULL,
            stdout=stderr if prints else subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            env=_HASHES | os.environ | _ONE_THREAD | dict(environment or {}),
        )
    except BaseException:
        own_end.close()
        raise
    finally:
        child_end.close()
    return process, own_end


def await_readable(channel: socket.socket, doing: str) -> None:
    """Wait until ``channel`` can be read. If that takes long, write one line with ``doing``, the present step of the
    start."""
    poll = select.poll()  # select() knows no descriptor above 1023
    poll.register(channel, select.POLLIN)
    patience = notice_seconds()
    if patience < inf and not poll.poll(patience * 1000):
        write_notice(f"the service starts: {doing}")
    poll.poll()


def _flags() -> list[str]:
    """Return the options of this interpreter's command line that another process needs too. Options for warnings are
    not among them, because workers get these by :mod:`pydp2.providers.program_state`."""
    letters = ["-" + letter * count for name, letter in _FLAGS.items() if (count := int(getattr(sys.flags, name)))]
    given = {name: value for name, value in sys._xoptions.items() if name in _X_OPTIONS}
    return letters + [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in given.items()]
