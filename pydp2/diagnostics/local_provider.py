"""Start a provider as a worker would start it: in this process, for ``check``, ``peek`` and pdb, or in a fresh
interpreter, for ``bench`` and the repetition of ``check``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydp2.api.interpreter import start_interpreter
from pydp2.api.service import search_path
from pydp2.api.sources import Files, ResolvedSource, Source, resolve_source
from pydp2.host.worker import IN_WORKER
from pydp2.host.worker.gil import require_gil
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import receive_block, receive_plain, send_blocks, send_plain
from pydp2.protocol import plain_data
from pydp2.providers import Provider, StartedProvider, address_of, resolve
from pydp2.providers.global_random import prepared_random, running
from pydp2.providers.process_setup import set_up_process, start_by_address
from pydp2.providers.program_state import ProgramState


@contextlib.contextmanager
def foreground(
    files: Files | Source,
    provider: str | Provider | None,
    *,
    args: Mapping[str, Any] | None,
    is_train: bool | None,
    root: str | os.PathLike[str] | None,
    input_order: Sequence[str] | None,
) -> Iterator[tuple[ResolvedSource, StartedProvider]]:
    """Return a context with the source and the started provider, in which working directory and ``sys.path`` are those
    of a worker.

    Raises the errors of ``launch`` for an invalid list, provider or args.
    """
    require_gil()
    served = resolve_source(files, provider, args, is_train, root)
    # Encode and decode the arguments, so that values are refused that could not be sent to a worker.
    keywords = plain_data.decode_plain(plain_data.encode_plain(served.args))
    path = list(sys.path)
    with contextlib.chdir(served.root):
        home = str(served.root)
        sys.path[:] = [home, *(entry for entry in path if entry != home)]
        try:
            with running(prepared_random()):  # as in a worker
                found = served.provider if isinstance(served.provider, Provider) else resolve(served.provider)
            started = found.start(
                args=keywords, is_train=served.is_train, input_order=input_order, file_list=served.files
            )
            yield served, started
        finally:
            sys.path[:] = path


def provider_spec(source: ResolvedSource, input_order: Sequence[str] | None, program: bytes = b"") -> dict[str, Any]:
    """Return the provider of ``source`` as plain values, from which :func:`load_provider` starts it in another process.
    ``program``: encoded state of this program. Raises AddressError if the provider has no address."""
    return {
        "provider": address_of(source.provider),
        "args": plain_data.encode_plain(source.args),
        "program": program,
        "is_train": source.is_train,
        "input_order": tuple(input_order or ()),
        "root": str(source.root),
        "path": search_path(),
    }


@contextlib.contextmanager
def provider_process(
    module: str, function: str, task: Mapping[str, Any], files: FileList, *, purpose: str, prints: bool = False
) -> Iterator[socket.socket]:
    """Return a context with a socket to a fresh interpreter, which runs ``function`` of ``module``, a function that
    calls :func:`receive_task`. At its end the interpreter is killed, with all processes that it has started.

    ``task``: a provider (:func:`provider_spec`), and other plain values. ``purpose``: a word for the user's code, in
    the environment. ``prints``: as for :func:`~pydp2.api.interpreter.start_interpreter`.
    """
    process, channel = start_interpreter(module, function, prints=prints, environment={IN_WORKER: purpose})
    with channel:
        try:
            with contextlib.suppress(OSError):  # it has ended, and the missing answer shows that
                blob, offsets = files.to_buffers()
                send_plain(channel, {**task, "source": files.source})
                send_blocks(channel, blob, offsets)
            yield channel
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # before the wait, so that no other process has its pid
            process.wait()


# -- in the process ----------------------------------------------------------------------------------------------------
def receive_task(descriptor: int) -> tuple[socket.socket, dict[str, Any], FileList]:
    """Return the socket to the program, and the task and files of :func:`provider_process`."""
    channel = socket.socket(fileno=descriptor)
    task = receive_plain(channel)
    blob, offsets = receive_block(channel), receive_block(channel)
    return channel, task, FileList.from_buffers(blob, offsets, task["source"])


def load_provider(spec: dict[str, Any], files: FileList) -> StartedProvider:
    """Start the provider as a worker does."""
    program = ProgramState.from_bytes(spec["program"]) if spec["program"] else None
    set_up_process(spec["root"], spec["path"], program)
    return start_by_address(
        spec["provider"],
        args=plain_data.decode_plain(spec["args"]),
        is_train=spec["is_train"],
        input_order=spec["input_order"],
        file_list=files,
        program=program,
    )
