"""The life of a worker process: connect, get the provider ready, run. Entered after a fork from the nursery."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import logging
import os
import random
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pydp2.errors import Error, LocalProtocolError, from_user, provider_error, sendable, shorten, to_wire
from pydp2.files import FileList
from pydp2.protocol import messages as m
from pydp2.protocol.moves import Role, worker_link
from pydp2.protocol.seat import Seat
from pydp2.providers.address import resolve
from pydp2.providers.running import Running
from pydp2.providers.where import own_frames
from pydp2.transport import Line
from pydp2.transport.sockets import context
from pydp2.worker.late import sending_late
from pydp2.worker.runner import Runner
from pydp2.worker.surroundings import Surroundings

IN_WORKER = "PYDP2_WORKER"
"""Set in the environment of workers, and so of what they start: there, no service is started."""


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


def worker_main(spec: WorkerSpec, worker: int, row: memoryview) -> None:
    """Run worker number ``worker`` until the server ends it."""
    os.environ[IN_WORKER] = str(worker)
    faulthandler.enable(all_threads=False)
    faulthandler.register(spec.dump_signal, all_threads=True)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # forked: it is the interpreter's own stream
    line = Line(context(), spec.address)
    link = worker_link(Role.WORKER)

    def send(message: m.Message) -> None:
        link.sending(message)
        line.send([m.encode(message)])

    send(m.Hello(m.WIRE_VERSION, worker, os.getpid()))
    try:
        os.chdir(spec.root)
        surroundings = Surroundings(worker, row)
        sys.path[:] = [spec.root, *(p for p in spec.path if p != spec.root)]
        random.seed()
        np.random.seed(int.from_bytes(os.urandom(4), "little"))
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                running = resolve(spec.provider).start(
                    args=dict(spec.args),
                    is_train=spec.is_train,
                    input_order=list(spec.input_order) or None,
                    file_list=spec.files,
                )
            except Error:
                raise
            except BaseException as error:
                raise from_user(f"provider {spec.provider} cannot be started", error, own_frames(error)) from None
        declared = _declared(running, caught)
    except Error as error:
        send(m.Broken(to_wire(error)))
        line.close(linger_ms=2000)
        return
    except OSError as error:
        send(m.Broken(to_wire(from_user(f"the working directory {spec.root} cannot be used", error))))
        line.close(linger_ms=2000)
        return
    send(declared)
    gc.collect()
    gc.freeze()  # what is here now stays: no later collection needs to look at it, and no page of it is copied
    runner = Runner(
        line, link, running, spec.files, Seat(row), surroundings,
        ahead=spec.ahead, timed=spec.timed, lenient=spec.lenient,
    )  # fmt: skip
    try:
        with sending_late(runner):
            runner.run()
    finally:
        with contextlib.suppress(Exception):
            line.close(linger_ms=200)


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
    """A fingerprint of the file that ``function`` is defined in, or ''."""
    code = getattr(function, "__code__", None)
    try:
        text = Path(code.co_filename).read_bytes() if code is not None else b""
    except OSError:
        return ""
    return hashlib.blake2b(text, digest_size=8).hexdigest()
