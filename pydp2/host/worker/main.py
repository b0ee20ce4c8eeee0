"""Run a worker process: get the provider ready, connect, run the loop.

The provider may have been made ready in the process that the worker is forked from, for all workers at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from pydp2.errors import Error, LocalProtocolError, from_user, provider_error, sendable, shorten, to_wire
from pydp2.host.worker import IN_WORKER
from pydp2.host.worker.background_flush import background_flush
from pydp2.host.worker.loop import LoopOptions, WorkerLoop
from pydp2.host.worker.process_state import ProcessState
from pydp2.host.worker.worker_spans import WorkerSpans
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import SourceTerms
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import LinkRole, worker_link
from pydp2.protocol.plain_data import decode_plain
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.providers.import_progress import is_installed
from pydp2.providers.process_setup import import_by_address, set_up_process, start_by_address
from pydp2.providers.program_state import ProgramState
from pydp2.providers.source_providers import SourceProviders, naming_source
from pydp2.providers.started_provider import StartedProvider
from pydp2.remote.remote_file import report_waits, use_fetch_process
from pydp2.system.freed_memory import keep_freed_memory
from pydp2.system.stdlib import gc, hashlib, os, time
from pydp2.transport import Line
from pydp2.transport.sockets import new_context

_MODULES_BYTES = m.HEADER_LIMIT // 4  # for the fingerprints of modules in a message
_ENTRY_BYTES = 24  # of one of them, beside its name
IN_ZYGOTE = "zygote"
"""Value of the variable in the process that workers are forked from; in a worker it is the worker's number."""


@dataclass(frozen=True, kw_only=True)
class ImportSpec:
    """Parameters of the import of ``providers``, given by their addresses. ``program`` is the encoded state of the
    program that serves them, b"" for none; ``dump_signal`` makes the process write its stacks."""

    providers: tuple[str, ...]
    root: str
    path: tuple[str, ...]
    program: bytes = field(repr=False)
    dump_signal: int

    @property
    def program_state(self) -> ProgramState | None:
        """State of the program. Raises RemoteProtocolError."""
        return ProgramState.from_bytes(self.program) if self.program else None


@dataclass(frozen=True, kw_only=True)
class WorkerSpec(ImportSpec):
    """Parameters of every worker of a service; inherited through the fork, never sent. ``files`` are those of all
    ``sources``; ``source_lists`` those of each."""

    address: str
    sources: tuple[SourceTerms, ...]
    input_order: tuple[str, ...]
    files: FileList = field(repr=False)
    source_lists: list[FileList] = field(repr=False)
    loop: LoopOptions
    fetch_address: str = ""
    """Address of the fetch process of this machine; "": no entry is a remote file."""


@dataclass(frozen=True)
class ReadyWorker:
    """Worker that is prepared, with its ``main``. ``is_usable``: False if it can only tell an error."""

    main: Callable[[int, memoryview, int], None]
    is_usable: bool


@dataclass(frozen=True)
class _PreparedProviders:
    """Providers whose hooks have run, the message that declares them, and the working directory that they ran
    in."""

    providers: SourceProviders
    message: m.Declared
    working_directory: str


class ImportWatch(Protocol):
    """Object that is told when the provider is imported."""

    def begin_import(self) -> None:
        """The import begins."""

    def end_import(self, imported: Imported) -> None:
        """The import is done, and the hook has not run."""


@dataclass(frozen=True)
class Imported:
    """Import of a provider in this process, or in the one that it is a copy of.

    ``home``: the working directory before it. ``last_module``: the module that was imported last before it.
    ``warnings`` are recorded as long as ``context`` is open.
    """

    home: str
    last_module: str
    warnings: list[warnings.WarningMessage]
    context: contextlib.ExitStack


def prepare(
    spec: WorkerSpec,
    worker: int | None,
    show: Callable[[str], None],
    *,
    watch: ImportWatch | None = None,
    imported: Imported | None = None,
) -> ReadyWorker:
    """Import the provider and run its hook, for ``worker`` or, None, for all that will be forked from this process.
    ``show`` is called with what the user's code does now. ``imported``: what this process was copied with, if it has
    imported the provider.

    If that fails, the worker tells the error once it is one.
    """
    use_fetch_process(spec.fetch_address)
    try:
        if imported is None:
            imported = import_provider(spec, worker, show, watch)
        else:  # its streams and handlers may be what the user's code put there
            _name_process(worker)
        home = imported.home
        running, declared = _start_providers(spec, imported, show)
    except Error as error:
        return ReadyWorker(partial(_report_broken, spec, to_wire(error)), is_usable=False)
    except OSError as error:
        wrapped = from_user(f"the working directory {spec.root} cannot be used", error)
        return ReadyWorker(partial(_report_broken, spec, to_wire(wrapped)), is_usable=False)
    return ReadyWorker(partial(_run_worker, spec, _PreparedProviders(running, declared, home)), is_usable=True)


def _name_process(worker: int | None) -> None:
    os.environ[IN_WORKER] = IN_ZYGOTE if worker is None else str(worker)


def _set_up(spec: ImportSpec, worker: int | None) -> None:
    """Set this process up for ``worker``, or for all, before code of the user runs in it."""
    _name_process(worker)
    faulthandler.enable(all_threads=False)
    faulthandler.register(spec.dump_signal, all_threads=True)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # forked: it is the interpreter's own stream


def import_provider(
    spec: ImportSpec, worker: int | None, show: Callable[[str], None], watch: ImportWatch | None
) -> Imported:
    """Import the module of the provider. The arguments are those of :func:`prepare`. Raises Error, and OSError for the
    working directory."""
    _set_up(spec, worker)
    set_up_process(spec.root, spec.path, spec.program_state)
    home, last_module = str(Path.cwd()), next(reversed(sys.modules))
    if watch is not None:
        watch.begin_import()
    context = contextlib.ExitStack()
    caught = context.enter_context(_recorded_warnings())
    try:
        for provider in spec.providers:
            import_by_address(provider, show)
        imported = Imported(home, last_module, caught, context)
        if watch is not None:
            watch.end_import(imported)
    except BaseException:
        context.close()
        raise
    return imported


def _start_providers(
    spec: WorkerSpec, imported: Imported, show: Callable[[str], None]
) -> tuple[SourceProviders, m.Declared]:
    started: list[StartedProvider] = []
    compared: set[str] = set()  # providers whose globals were compared with those of the program
    with imported.context:
        for source, files in zip(spec.sources, spec.source_lists, strict=True):
            show(f"running the init_hook of source {source.name}" if source.name else "running the init_hook")
            args = decode_plain(source.args)
            assert isinstance(args, dict)
            with naming_source(source.name):
                started.append(
                    start_by_address(
                        source.provider,
                        args=args,
                        is_train=source.is_train,
                        input_order=spec.input_order,
                        file_list=files,
                        program=None if source.provider in compared else spec.program_state,
                    )
                )
            compared.add(source.provider)
        names, starts = zip(*((source.name, source.first_file) for source in spec.sources), strict=True)
        providers = SourceProviders(started, starts, names)
    return providers, _declared_message(
        providers, imported.warnings, _module_fingerprints(Path(spec.root), imported.last_module)
    )


@contextlib.contextmanager
def _recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Record the warnings in the block. Filters and ``showwarning`` stay as the user's code sets them there."""
    with warnings.catch_warnings(record=True) as caught:
        shown_by = warnings.showwarning
        warnings.filterwarnings("always", "(?:)", UserWarning)  # with a pattern, unlike any that the user's code sets
        own = warnings.filters[0]
        yield caught
        filters, showwarning = [each for each in warnings.filters if each != own], warnings.showwarning
    warnings.resetwarnings()
    warnings.filters[:] = filters  # type: ignore[index]  # it is a list
    if showwarning is not shown_by:
        warnings.showwarning = showwarning


class _ServerLink:
    """Line of a worker to the server, on which the worker has introduced itself."""

    def __init__(self, spec: WorkerSpec, worker: int) -> None:
        self.line = Line(new_context(), spec.address, share_send_slab=True)
        self.link = worker_link(LinkRole.WORKER)
        self.send(m.Hello(m.WIRE_VERSION, worker, os.getpid()))

    def send(self, message: m.Message) -> None:
        self.link.check_sending(message)
        self.line.send([m.encode(message)])


def _report_broken(spec: WorkerSpec, error: dict[str, Any], worker: int, row: memoryview, output: int) -> None:
    """Tell the server why the provider cannot be had."""
    speaker = _ServerLink(spec, worker)
    speaker.send(m.Broken(error))
    speaker.line.close(linger_ms=2000)


def _run_worker(spec: WorkerSpec, prepared: _PreparedProviders, worker: int, row: memoryview, output: int) -> None:
    """Run worker number ``worker`` until the server ends it."""
    os.environ[IN_WORKER] = str(worker)
    keep_freed_memory()
    status = WorkerStatus(row)
    process_state = ProcessState(worker, row, output, prepared.working_directory)
    speaker = _ServerLink(spec, worker)
    speaker.send(prepared.message)
    gc.collect()
    gc.freeze()  # what is here now stays: no later collection needs to look at it, and no page of it is copied
    runner = WorkerLoop(speaker.line, speaker.link, prepared.providers, spec.files, status, process_state, spec.loop)
    report_waits(partial(_note_wait, status, runner.spans))
    try:
        with background_flush(runner):
            runner.run()
    except MemoryError as error:
        runner.report_no_memory(error)
    finally:
        with contextlib.suppress(Exception):
            speaker.line.close(linger_ms=200)


def _note_wait(status: WorkerStatus, spans: WorkerSpans, begins: bool) -> None:
    """Note that a wait for a store of remote files begins or is over."""
    status.note_wait(begins, time.monotonic_ns())
    spans.note_store(begins, time.perf_counter())


def _declared_message(
    providers: SourceProviders, caught: list[warnings.WarningMessage], modules: dict[str, str]
) -> m.Declared:
    """Return the message that declares the providers, with their first warnings. Raises if it cannot be sent."""
    schema = providers.schema.to_wire()
    try:
        size = len(m.encode(m.Declared(schema, "", [])))
    except (LocalProtocolError, UnicodeEncodeError):
        size = m.HEADER_LIMIT
    if size > m.HEADER_LIMIT // 2:
        raise provider_error(
            f"types and names of {len(providers.schema.slots)} slots cannot be sent to the trainer: they must be "
            f"text of at most {m.HEADER_LIMIT // 2} bytes together; declare fewer and wider slots, with shorter names",
            "ValueError",
        )
    notes = [str(w.message) for w in caught if issubclass(w.category, UserWarning | DeprecationWarning)]
    return m.Declared(
        schema,
        ",".join(source_fingerprint(started.settings.generator) for started in providers.started),
        [sendable(shorten(note, 500)) for note in notes[:8]],
        modules,
    )


def _module_fingerprints(root: Path, last: str) -> dict[str, str]:
    """Return a fingerprint of each module below ``root`` that was imported after the module ``last``, by the path of
    its file there. Many have one together, under ``*``. What is installed does not count, nor does pydp2, of which
    hosts compare the release."""
    found: dict[str, str] = {}
    below = tuple({f"{folder}{os.sep}" for folder in (root, root.resolve())})
    # Newest first, and not all: in a fork, a look at a module copies the memory page that it lies in.
    for name in [*takewhile(lambda name: name != last, reversed(sys.modules))]:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.startswith(below) or name.partition(".")[0] == "pydp2":
            continue
        path = Path(file)
        if not is_installed(file):
            place = next(file.removeprefix(each) for each in below if file.startswith(each))
            with contextlib.suppress(OSError):  # it cannot be read any more
                found[sendable(place)] = _fingerprint(path.read_bytes())
    if sum(len(name) + _ENTRY_BYTES for name in found) > _MODULES_BYTES:
        text = "".join(f"{name}={known};" for name, known in sorted(found.items()))
        return {"*": _fingerprint(text.encode())}
    return dict(sorted(found.items()))


def source_fingerprint(function: object) -> str:
    """Return a fingerprint of the file that ``function`` is defined in, or ''. A function that only calls another names
    that one as its ``source_function``."""
    code = getattr(getattr(function, "source_function", function), "__code__", None)
    try:
        text = Path(code.co_filename).read_bytes() if code is not None else b""
    except OSError:
        return ""
    return _fingerprint(text)


def _fingerprint(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=8).hexdigest()
