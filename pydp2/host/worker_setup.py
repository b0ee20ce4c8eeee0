"""Set up a process that starts workers, and its workers, in the server of a service and in the agent of a host."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydp2.host.engine.base import StatusPage
from pydp2.host.engine.local import DUMP_SIGNAL, AdoptedSupervisor, LocalEngine, OtherProcess
from pydp2.host.engine.output import OutputPump
from pydp2.host.engine.prepared import PreparedCopy
from pydp2.host.engine.process_control import set_name
from pydp2.host.engine.supervisor import Supervisor
from pydp2.host.output_labels import OutputLabels
from pydp2.host.worker.loop import LoopOptions
from pydp2.host.worker.main import Imported, WorkerSpec, prepare
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import ServiceSpec, WorkerTerms, receive_spec, send_spec, status_rows
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.system.log_writer import write_output

_ADOPT = b"adopt"  # first message between server and supervisor, with descriptors
_FEW_WORKERS = 4  # if there are fewer, each has several open files for which no merge waits yet


def worker_spec(
    terms: WorkerTerms,
    files: FileList,
    *,
    workers: int,
    address: str,
    root: str,
    path: tuple[str, ...],
    fetch_address: str = "",
) -> WorkerSpec:
    """Return the parameters for each of ``workers`` workers under ``terms``, which connect to ``address``, run in the
    working directory ``root``, and read remote files through ``fetch_address``."""
    return WorkerSpec(
        address=address,
        providers=terms.providers,
        sources=terms.sources,
        input_order=terms.input_order,
        files=files,
        source_lists=terms.source_lists(files),
        root=root,
        path=path,
        program=terms.program,
        loop=LoopOptions(
            max_unbound=max(1, _FEW_WORKERS // workers),
            times_samples=terms.sample_timeout is not None,
            allows_changed_samples=terms.warn_changed,
            skips_errors=terms.skip_errors,
        ),
        dump_signal=DUMP_SIGNAL,
        fetch_address=fetch_address,
    )


def service_worker_spec(spec: ServiceSpec, files: FileList) -> WorkerSpec:
    """Return the parameters for the workers of a service on its own machine."""
    return worker_spec(
        spec,
        files,
        workers=spec.workers,
        address=spec.worker_address,
        root=spec.root,
        path=spec.path,
        fetch_address=spec.fetch_address,
    )


def set_up_process(descriptor: int, name: str) -> socket.socket:
    """Set up this process, under ``name``; return the socket to the program that started it, ``descriptor``."""
    for given in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the descriptor with which they were listed is closed
            os.set_inheritable(given, given < 3)  # programs that workers start must not inherit the others
    channel = socket.socket(fileno=descriptor)
    set_name(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the program decides what to do
    return channel


def start_engine(
    terms: WorkerTerms,
    files: FileList,
    spec: WorkerSpec,
    workers: int,
    *,
    first: int = -1,
    adopted: AdoptedSupervisor | None = None,
) -> tuple[LocalEngine, OutputPump]:
    """Return an engine for ``workers`` workers with the parameters ``spec``, and the thread that shows their output.
    The process must have one thread. ``adopted``: a running supervisor. ``first``: a socket to the program for a copy
    of the zygote (:mod:`pydp2.host.engine.prepared`), or -1."""

    def on_output(worker: int, status_row: int | None, output: int) -> None:
        status = None if status_row is None else WorkerStatus(engine.row(status_row))
        pump.add(output, OutputLabels(worker, status, files))

    ready = partial(prepare, spec)
    if first >= 0:
        ready = partial(prepare, spec, watch=PreparedCopy(first, run_supervisor))
    engine = LocalEngine(
        ready, status_rows(workers), on_output, once=terms.start == "auto", first=first, adopted=adopted
    )
    if first >= 0:
        os.close(first)
    pump = new_pump()
    return engine, pump


def adopt_supervisor(descriptor: int, spec: ServiceSpec, files: FileList) -> AdoptedSupervisor | None:
    """Return the supervisor at the other end of ``descriptor``, to which the description of the service was sent; None
    if it has ended. A copy of the zygote of another service of this program has forked it."""
    commands = socket.socket(fileno=descriptor)
    memory = StatusPage.create_memory(status_rows(spec.workers))
    # workers must not get secrets of the service, and have no use for its block list
    known = replace(spec, server_key=None, allowed={}, client_address="", blocked=b"")
    try:
        socket.send_fds(commands, [_ADOPT], [memory, 2])
        send_spec(commands, known, files)
        _, given, _, _ = socket.recv_fds(commands, len(_ADOPT), 1)
        if given:
            page = StatusPage(status_rows(spec.workers), memory)
            return AdoptedSupervisor(commands, page, OtherProcess(given[0]))
    except OSError:
        pass
    finally:
        os.close(memory)
    commands.close()
    return None


def run_supervisor(imported: Imported, commands: socket.socket) -> None:
    """Run the supervisor of a service in a process that has imported its provider; ``commands`` leads to the server."""
    _, given, _, _ = socket.recv_fds(commands, len(_ADOPT), 2)
    if not given:
        return  # the server did not start
    memory, stderr = given
    os.dup2(stderr, 2)
    os.close(stderr)
    spec, files = receive_spec(commands)
    workers = service_worker_spec(spec, files)
    page = StatusPage(status_rows(spec.workers), memory)
    os.close(memory)
    process = os.pidfd_open(os.getpid())
    socket.send_fds(commands, [_ADOPT], [process])
    os.close(process)
    Supervisor(commands, page, partial(prepare, workers, imported=imported), once=True).run()


def new_pump() -> OutputPump:
    """Return a thread that writes the output of workers to stderr."""
    return OutputPump(write_output)


def watch_signals() -> int:
    """Return a descriptor that becomes readable at SIGTERM, which ends this process in order."""
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGTERM, lambda *_: None)
    return wakeup_read
