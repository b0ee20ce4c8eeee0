"""The life of a worker process: get the provider ready, connect, run.

The first of these may have been done in the process that the worker is forked from, for all workers at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import os
import random
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pydp2.errors import Error, LocalProtocolError, from_user, provider_error, sendable, shorten, to_wire
from pydp2.files import FileList
from pydp2.protocol import messages as m
from pydp2.protocol.moves import Role, worker_link
from pydp2.protocol.seat import Seat
from pydp2.providers.running import Running
from pydp2.providers.starting import enter, start_at
from pydp2.transport import Line
from pydp2.transport.sockets import context
from pydp2.worker import IN_WORKER
from pydp2.worker.late import sending_late
from pydp2.worker.runner import Runner
from pydp2.worker.surroundings import Surroundings

IN_TEMPLATE = "template"
"""What stands there in the process that workers are forked from; in a worker it is its number."""


@dataclass(frozen=True)
class WorkerSpec:
    """What every worker of a service is told; inherited through the fork, never sent."""

    address: str
    provider: str
    args: Mapping[str, Any]
    is_train: bool
    input_order: tuple[str, ...]
    files: FileList = field(repr=False)
    root: str
    path: tuple[str, ...]
    ahead: int
    timed: bool
    lenient: bool
    dump_signal: int


@dataclass(frozen=True)
class Ready:
    """What a worker does once it is prepared. ``usable``: False if it can only tell an error."""

    main: Callable[[int, memoryview, int], None]
    usable: bool


@dataclass(frozen=True)
class _Provided:
    """The provider with its hook run, what the server is told of it, the working directory and process it has."""

    running: Running
    declared: m.Declared
    home: str
    pid: int


def prepare(spec: WorkerSpec, worker: int | None) -> Ready:
    """Import the provider and run its hook, for ``worker`` or, None, for all that will be forked from this process.

    What goes wrong in it is told by the worker, once it is one.
    """
    os.environ[IN_WORKER] = IN_TEMPLATE if worker is None else str(worker)
    faulthandler.enable(all_threads=False)
    faulthandler.register(spec.dump_signal, all_threads=True)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # forked: it is the interpreter's own stream
    _seed()
    try:
        enter(spec.root, spec.path)
        home = str(Path.cwd())
        running, declared = _start(spec)
    except Error as error:
        return Ready(partial(_tell, spec, to_wire(error)), usable=False)
    except OSError as error:
        told = from_user(f"the working directory {spec.root} cannot be used", error)
        return Ready(partial(_tell, spec, to_wire(told)), usable=False)
    return Ready(partial(_work, spec, _Provided(running, declared, home, os.getpid())), usable=True)


def _seed() -> None:
    random.seed()
    if "numpy.random" in sys.modules:  # else it draws its own seed when somebody imports it
        np.random.seed(int.from_bytes(os.urandom(4), "little"))


def _start(spec: WorkerSpec) -> tuple[Running, m.Declared]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        running = start_at(
            spec.provider, args=spec.args, is_train=spec.is_train, input_order=spec.input_order, file_list=spec.files
        )
    return running, _declared(running, caught)


class _Speaker:
    """A worker's line to the server, on which it has said who it is."""

    def __init__(self, spec: WorkerSpec, worker: int) -> None:
        self.line = Line(context(), spec.address, lends=True)
        self.link = worker_link(Role.WORKER)
        self.send(m.Hello(m.WIRE_VERSION, worker, os.getpid()))

    def send(self, message: m.Message) -> None:
        self.link.sending(message)
        self.line.send([m.encode(message)])


def _tell(spec: WorkerSpec, error: dict[str, Any], worker: int, row: memoryview, output: int) -> None:
    """All there is to do where the provider cannot be had."""
    speaker = _Speaker(spec, worker)
    speaker.send(m.Broken(error))
    speaker.line.close(linger_ms=2000)


def _work(spec: WorkerSpec, provided: _Provided, worker: int, row: memoryview, output: int) -> None:
    """Run worker number ``worker`` until the server ends it."""
    os.environ[IN_WORKER] = str(worker)
    if os.getpid() != provided.pid:
        _seed()  # workers forked from one process must not all draw the same
    surroundings = Surroundings(worker, row, output, provided.home)
    speaker = _Speaker(spec, worker)
    speaker.send(provided.declared)
    gc.collect()
    gc.freeze()  # what is here now stays: no later collection needs to look at it, and no page of it is copied
    runner = Runner(
        speaker.line, speaker.link, provided.running, spec.files, Seat(row), surroundings,
        ahead=spec.ahead, timed=spec.timed, lenient=spec.lenient,
    )  # fmt: skip
    try:
        with sending_late(runner):
            runner.run()
    except MemoryError as error:
        runner.starve(error)
    finally:
        with contextlib.suppress(Exception):
            speaker.line.close(linger_ms=200)


def _declared(running: Running, caught: list[warnings.WarningMessage]) -> m.Declared:
    """What the server is told of the provider, with the first warnings on the way. Raises when it cannot be told."""
    declaration = running.declaration.to_wire()
    try:
        size = len(m.encode(m.Declared(declaration, "", [])))
    except (LocalProtocolError, UnicodeEncodeError):
        size = m.HEADER_LIMIT
    if size > m.HEADER_LIMIT // 2:
        raise provider_error(
            f"types and names of {len(running.declaration.slots)} slots cannot be told to the trainer: they must be "
            f"text and take at most {m.HEADER_LIMIT // 2} bytes; declare fewer and wider slots, with shorter names",
            "ValueError",
        )
    notes = [str(w.message) for w in caught if issubclass(w.category, UserWarning | DeprecationWarning)]
    return m.Declared(
        declaration, source_of(running.settings.generator), [sendable(shorten(note, 500)) for note in notes[:8]]
    )


def source_of(function: object) -> str:
    """A fingerprint of the file that ``function`` is defined in, or ''. One that only calls another names that one as
    its ``source_function``."""
    code = getattr(getattr(function, "source_function", function), "__code__", None)
    try:
        text = Path(code.co_filename).read_bytes() if code is not None else b""
    except OSError:
        return ""
    return hashlib.blake2b(text, digest_size=8).hexdigest()
