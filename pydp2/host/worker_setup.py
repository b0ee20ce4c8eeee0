"""Set up a process that starts workers, and its workers: the server does so for those of its machine, the agent for
those of another host."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from functools import partial
from pathlib import Path

from pydp2.engine.local import DUMP_SIGNAL, LocalEngine
from pydp2.engine.output import OutputPump
from pydp2.engine.process_control import set_name
from pydp2.file_list import FileList
from pydp2.host.output_labels import OutputLabels
from pydp2.log_writer import write_stderr
from pydp2.protocol import plain_data
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.server.spec import WorkerTerms, status_rows
from pydp2.worker.loop import LoopOptions
from pydp2.worker.main import WorkerSpec, prepare

_FEW_WORKERS = 4  # fewer have several files open each that no merge waits for yet


def worker_spec(
    terms: WorkerTerms, files: FileList, *, workers: int, address: str, root: str, path: tuple[str, ...]
) -> WorkerSpec:
    """Return the parameters of each of ``workers`` workers under ``terms``, which connect to ``address`` and run in
    the working directory ``root``."""
    args = plain_data.decode_plain(terms.args)
    assert isinstance(args, dict)
    return WorkerSpec(
        address=address,
        provider=terms.provider,
        args=args,
        is_train=terms.is_train,
        input_order=terms.input_order,
        files=files,
        root=root,
        path=path,
        loop=LoopOptions(
            max_unbound=max(1, _FEW_WORKERS // workers),
            times_samples=terms.sample_timeout is not None,
            allows_changed_samples=terms.warn_changed,
            skips_errors=terms.skip_errors,
        ),
        dump_signal=DUMP_SIGNAL,
    )


def set_up_process(descriptor: int, name: str) -> socket.socket:
    """Set up this process, under ``name``; return the socket to the program that started it, ``descriptor``."""
    for given in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the one that listed them
            os.set_inheritable(given, given < 3)  # what we were given is not for programs that workers start
    channel = socket.socket(fileno=descriptor)
    set_name(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to the whole terminal; the program decides what follows
    return channel


def start_engine(terms: WorkerTerms, files: FileList, spec: WorkerSpec, workers: int) -> tuple[LocalEngine, OutputPump]:
    """Return an engine for ``workers`` workers with the parameters ``spec``, and what shows their output. The process
    must have one thread."""

    def on_output(worker: int, status_row: int | None, output: int) -> None:
        status = None if status_row is None else WorkerStatus(engine.row(status_row))
        pump.add(output, OutputLabels(worker, status, files))

    engine = LocalEngine(partial(prepare, spec), status_rows(workers), on_output, once=terms.start == "auto")
    pump = new_pump()
    return engine, pump


def new_pump() -> OutputPump:
    """Return what shows the output of workers on stderr. It is a thread."""
    return OutputPump(partial(write_stderr, end=""))


def watch_signals() -> int:
    """Return a descriptor that is readable when SIGTERM has come: it ends this process in order."""
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGTERM, lambda *_: None)
    return wakeup_read
