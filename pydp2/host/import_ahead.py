"""Import a provider for a program before its first service. It is started as a fresh interpreter, like the server.

This process forks a zygote that belongs to no service. The zygote imports the provider, and may leave a copy of itself
behind (:mod:`pydp2.host.engine.prepared`), which later services of the program use. Then both processes end. This
process runs no code of the user, so that it notices at once when the program ends, or does not need the import any
more. Then it ends the zygote and all processes that the zygote has started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from typing import Any

from pydp2.errors import Error
from pydp2.host.engine.fork_setup import leave_supervisor, run_child
from pydp2.host.engine.local import DUMP_SIGNAL
from pydp2.host.engine.prepared import PreparedCopy
from pydp2.host.worker.main import ImportSpec, import_provider
from pydp2.host.worker_setup import run_supervisor, set_up_process
from pydp2.options.service_spec import receive_block, unpacked


def main(descriptor: int) -> int:
    """Import the provider that the program names. ``descriptor``: a socket to the program, which gets lines of text
    that name the module being imported."""
    control = set_up_process(descriptor, "pydp2-importer")
    try:
        program = os.pidfd_open(os.getppid())
        given = unpacked(receive_block(control))
    except (EOFError, OSError):  # the program has ended, or the kernel has no such descriptors
        return 0
    watcher = os.getpid()
    zygote = os.fork()
    if zygote == 0:
        run_child(lambda: _run_zygote(watcher, control, given))
    with contextlib.suppress(OSError):
        os.setpgid(zygote, zygote)  # both processes set it, because either may be first
    poll = select.poll()
    for source in (program, control, os.pidfd_open(zygote)):
        poll.register(source, select.POLLIN)  # the program sends nothing more: only an end can be read
    poll.poll()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(zygote, signal.SIGKILL)
    os.waitpid(zygote, 0)
    with contextlib.suppress(OSError):  # the program has ended
        control.shutdown(socket.SHUT_RDWR)  # processes of the user's code may still have a descriptor of it
    return 0


def _run_zygote(watcher: int, control: socket.socket, given: dict[str, Any]) -> None:
    """Import the provider in a process just forked from ``watcher``."""
    leave_supervisor(watcher, "pydp2-zygote", 2)

    def show(text: str) -> None:
        with contextlib.suppress(OSError):  # the program has ended, and so does this process
            control.send(text.encode(errors="replace") + b"\n", socket.MSG_DONTWAIT)

    copy = PreparedCopy(given.pop("channel"), run_supervisor)
    given |= {name: tuple(given[name]) for name in ("providers", "path")}
    spec = ImportSpec(**given, dump_signal=DUMP_SIGNAL)
    with contextlib.suppress(Error, OSError):  # the first service imports it again, and reports the error
        import_provider(spec, None, show, copy)
