"""Start a service: resolve the user's arguments, start the server process, and own it until it ends."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Never, Unpack

from pydp2.api import machine
from pydp2.api.access import Address, ServiceKeys, find_target, service_keys, worker_address
from pydp2.api.connection_claim import ConnectionClaim
from pydp2.api.distributed import DistributedEnvironment, distributed_environment
from pydp2.api.interpreter import await_readable, start_interpreter
from pydp2.api.page_process import PageProcess
from pydp2.api.preparation import Preparation, begin_import
from pydp2.api.rundir import RunDir, keep_token, take_path, take_state
from pydp2.api.sources import Sources, resolve_block_list, resolve_root, resolve_sources
from pydp2.client import Client, Target, ask_stats
from pydp2.data.columns.html_table import html_table
from pydp2.errors import Error, GuardError, JobTaken, OptionError, ServiceLost, ServiceUnreachable, from_wire
from pydp2.host.fetching import fetch_address
from pydp2.host.worker import IN_WORKER
from pydp2.host.worker.gil import require_gil
from pydp2.options import timing
from pydp2.options.file_list import FileList
from pydp2.options.job_options import JobKeywords, JobOptions
from pydp2.options.service_options import ServiceKeywords, ServiceOptions
from pydp2.options.service_spec import ServiceSpec, receive_plain, send_spec
from pydp2.options.tables import (
    JOB_OPTIONS,
    SERVICE_OPTIONS,
    LoadKeywords,
    TrainerPlace,
    check_keywords,
    job_options,
    place_options,
    service_options,
    split_options,
    takes,
)
from pydp2.options.values import bind_address, names_text, seconds
from pydp2.providers import Provider, address_of
from pydp2.providers.program_state import ProgramState
from pydp2.remote.remote_file import fetch_options
from pydp2.server.cache.folder import default_folder
from pydp2.system.log_events import LogEvent
from pydp2.system.log_writer import LOG_FORMAT, LOG_FORMATS, write_secret
from pydp2.transport import address_space
from pydp2.transport.service_address import ipc_path, split_token, with_token, without_token

_END_SECONDS = 4.0  # seconds that a service has to end in order
_END_POLL_SECONDS = 0.01  # seconds between two checks whether it has ended
_CONNECT_TIMEOUT = 10.0  # seconds to wait for an answer
_LOOK_SECONDS = 0.5  # seconds that a notebook waits for the statistics that it shows
_LEAST_MEMORY = 1 << 20


class Service:
    """Running service that this program started. It ends with the program at the latest.

    ``address``: the address for ``connect``. ``host_address``: where workers on other hosts connect, "" if there can be
    none. ``pid``: the process id of the server. ``page_url``: URL of the page that shows the service, with its token;
    None without the option ``page``.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        target: Target,
        rundir: RunDir,
        host_address: str = "",
        page: PageProcess | None = None,
    ) -> None:
        self.page_url = None if page is None else page.url
        self._end_page = None if page is None else weakref.finalize(self, page.close)
        self.address = target.address
        self.host_address = host_address
        self._target = target
        self.pid = process.pid
        self._process = process
        self._control = control
        self._end = weakref.finalize(self, _end, process, control, rundir, os.getpid())

    @takes(JOB_OPTIONS)
    def connect(
        self,
        *,
        job: str = "default",
        rank: int | None = None,
        world_size: int | None = None,
        share_along: tuple[int, int] | None = None,
        timeout: float = _CONNECT_TIMEOUT,
        **options: Unpack[JobKeywords],
    ) -> Client:
        """Return a client of this service. The arguments, but for the address, and the errors are those of
        :func:`pydp2.connect`."""
        check_keywords(self.connect, options)
        require_allowed_process()
        says_who = rank is not None or world_size is not None
        of_several = None if says_who or options.get("share") == "dynamic" else distributed_environment()
        place = _place(job, rank, world_size, share_along)
        client = self._client(job_options(**options), place, timeout, None)
        if of_several is not None:
            warnings.warn(
                f"{of_several}, and reads all samples of its service alone: if others do the same, each sees all; "
                f"{of_several.right_call}; world_size=1 says that it is meant so",
                UserWarning,
                stacklevel=2,
            )
        client.owner = self  # launch(...).connect(...) in one line must not lose the service
        return client

    def _client(
        self, options: JobOptions, place: TrainerPlace, timeout: float, on_close: Callable[[], None] | None
    ) -> Client:
        def has_ended() -> bool:
            return self.poll() is not None

        try:
            return Client(
                self._target,
                asdict(options),
                **_client_place(place),
                timeout=seconds("timeout", timeout),
                on_close=on_close,
                gone=has_ended,
            )
        except (ServiceLost, ServiceUnreachable):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            failure = self.failure()
            if failure is not None:  # for example that of a worker that was started after the first one
                raise failure from None
            raise

    def stats(self, timeout: float = 5.0) -> dict[str, Any]:
        """Return statistics as plain data: workers (pid, rate, waits), pool, memory, and the bottleneck of each job."""
        return ask_stats(self._target, seconds("timeout", timeout))

    def poll(self) -> int | None:
        """Return the exit status of the server process, None while it runs."""
        return self._process.poll()

    def failure(self) -> Error | None:
        """Return the error with which the server process ended by itself, once :meth:`poll` returns a number; None if
        it left none."""
        if self.poll() is None or self._control.fileno() < 0:
            return None
        self._control.settimeout(1.0)
        try:
            return from_wire(receive_plain(self._control)["error"])
        except (EOFError, OSError, KeyError):
            return None

    def close(self) -> None:
        """End the service and wait until all its processes are gone. Closing twice is allowed."""
        if self._end_page is not None:
            self._end_page()
        self._end()

    def _repr_html_(self) -> str:
        table = partial(html_table, f"pydp2.Service at {without_token(self.address)}, process {self.pid}", ())
        status = self.poll()
        if status is not None:
            return table([("state", f"ended, exit status {status}")])
        try:
            return table(_stats_rows(self.stats(_LOOK_SECONDS)))
        except Error:  # a notebook must not wait for the server
            return table([("state", f"it does not answer within {_LOOK_SECONDS:g} s; it is busy, stopped, or ending")])

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def prepare(provider: str | Provider, *, root: str | os.PathLike[str] | None = None) -> None:
    """Start to import the module of ``provider`` in a process of its own, and return at once.

    Call it at the top of a script whose provider takes long to import. The first :func:`load` or :func:`launch` that
    names the same ``provider`` and ``root`` waits only for the rest of the import. If the import fails, that call
    imports the module itself, and raises what it raises without this function. See docs/workers.md. Other systems than
    Linux do nothing.

    Args:
        provider: the decorated function, or its address, as for :func:`launch`.
        root: working directory of the workers, where the provider is looked up first; default: the present one.

    Raises:
        OptionError, OptionTypeError: ``provider`` or ``root`` is not valid.
        GuardError: called inside a worker, as :func:`launch` raises it.
    """
    require_allowed_process()
    home, address = resolve_root(root), address_of(provider)
    program = ProgramState.of_this_program({address: provider}).to_bytes()
    begin_import((address,), str(home), tuple(search_path()), program)


@takes(SERVICE_OPTIONS)
def launch(
    files: Sources,
    provider: str | Provider | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    is_train: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    **options: Unpack[ServiceKeywords],
) -> Service:
    """Start a service of this program over a file list.

    Args:
        files: path of the list (``train.list``), the entries themselves, or a :class:`Source`; or a dict of these by
            the names of several sources, each with its own provider (docs/providers.md).
        provider: the decorated function, or its address: ``"module.process"``, ``"module:process"``,
            ``"file.py:process"``.
        args: keywords for the ``init_hook``, plain data.
        is_train: passed to the hook; decides whether samples are shuffled if the provider does not say so; default
            True.
        root: working directory of the workers, where the provider is looked up first; default: the present one.
        options: ``workers, start, memory_limit, worker_memory, sample_timeout, on_error, error_budget, quarantine,
            on_changed, block_list, state_dir, cache_dir, cache_size, remember_counts, remote_cache, remote_cache_size,
            remote_timeout, bind, connection, keys, worker_bind, advertise, metrics, page, page_samples,
            input_order``. See docs/options.md.

    Raises:
        OptionError, OptionTypeError, ListError, AddressError: an argument is not valid.
        ProviderError: the provider's module or its ``init_hook`` raised.
        ServiceUnreachable: the address is taken.
        GuardError: called inside a worker, usually for lack of an ``if __name__ == "__main__"`` guard, or in an
            interpreter that runs without its global lock.
    """
    check_keywords(launch, options)
    require_allowed_process()
    chosen = service_options(**options)
    if chosen.page_samples and chosen.page is None:
        raise OptionError("page_samples shows samples on the page, and there is none: set page, as in 127.0.0.1:0")
    served = resolve_sources(files, provider, args, is_train, root)
    sources = served.to_terms()
    providers = {terms.provider: served.by_name[terms.name].provider for terms in sources}
    resolved = {
        "sources": sources,
        "program": ProgramState.of_this_program(providers).to_bytes(),
        "root": str(served.root),
        "path": tuple(search_path()),
        "blocked": resolve_block_list(chosen.block_list, served.files).encoded,
        **_machine_shares(chosen),
    }
    state_dir = _state_dir(chosen)
    with _Locks() as locks:
        if state_dir is not None:
            locks.descriptors += take_state(state_dir)
        keys = service_keys(chosen, state_dir)
        claim = None
        if chosen.connection is not None:
            claim = ConnectionClaim(Path(chosen.connection).absolute())
            locks.hold(claim.lock, claim.discard)
        rundir = RunDir(of=state_dir)
        locks.hold(rundir.lock, rundir.remove)
        bind = _bound_address(chosen, state_dir, keys, rundir, locks)
        spec = ServiceSpec.from_options(
            chosen,
            **resolved,
            **({} if keys is None else keys.spec_fields(rundir)),
            client_address=bind,
            worker_address=rundir.address("workers"),
            host_address=None if keys is None else worker_address(bind, chosen.worker_bind),
            run_dir=str(rundir.path),
            program_pid=os.getpid(),
            connection=None if claim is None else str(claim.path),
            state_dir=None if state_dir is None else str(state_dir),
            cache_dir=_cache_dir(chosen.cache_dir),
            fetch_address=fetch_address(served.files, str(rundir.path)) if resolved["workers"] else "",
            remote_cache=_remote_cache(chosen.remote_cache),
            timing=timing.DEFAULT_TIMING,
        )
        return _start(spec, served.files, rundir, locks.descriptors, keys, claim, chosen)


@takes(JOB_OPTIONS)
def connect(
    address: Address | None = None,
    *,
    key: str | os.PathLike[str] | None = None,
    job: str = "default",
    rank: int | None = None,
    world_size: int | None = None,
    share_along: tuple[int, int] | None = None,
    timeout: float = _CONNECT_TIMEOUT,
    **options: Unpack[JobKeywords],
) -> Client:
    """Attach to the service at ``address`` as a trainer.

    Args:
        address: the address that the service printed, ``ipc://…`` or ``tcp://…``, or the path or the content of its
            connection file; default: the file that the environment variable ``PYDP2_CONNECTION`` names.
        key: folder with the keys of this trainer, for an address with ``?key=…``; see docs/security.md.
        job: name of the job; trainers that name the same job share its stream.
        rank: which of the ``world_size`` ranks of the job this trainer is; batch n of a pass goes to rank n mod
            ``world_size``; default 0.
        world_size: number of ranks that share the job; all trainers must pass the same number and the same options;
            default 1.
        share_along: ``(k, K)``: this trainer is number k of the K peers of its rank, which all get the same batches,
            as trainers along the tensor, pipeline and context dimensions of a mesh need it; default ``(0, 1)``.
        timeout: seconds to wait for an answer.
        options: ``batch_size`` (needed), ``seed=0, shuffle, order="strict", interleave=16, pool_bytes``,
            ``last_batch="keep", prefetch=2, prefetch_bytes="64MiB", bucket_by, bucket_bounds, num_buckets``,
            ``share="ranks", origin=False, lease=30.0``; ``mix`` and ``pack`` are made by :func:`mix` and
            :func:`pack_sequences`. See docs/options.md.

    Raises:
        OptionError, OptionTypeError: an option is not valid, belongs to the service, or differs from that of another
            trainer of the job.
        ServiceUnreachable: no service answers.
        JobTaken: another trainer has this rank.
    """
    check_keywords(connect, options)
    require_allowed_process()
    place = _place(job, rank, world_size, share_along)
    of_several = distributed_environment() if rank is None and world_size is None else None
    chosen = job_options(**options)
    try:
        target = find_target(address, key, "trainer")
        return Client(target, asdict(chosen), **_client_place(place), timeout=seconds("timeout", timeout))
    except JobTaken as taken:
        if of_several is None:
            raise
        raise JobTaken(
            f"{taken}; {of_several}: if that is how the job is shared, pass rank={of_several.rank}, "
            f"world_size={of_several.world_size} in each"
        ) from None


@takes()
def stats(
    address: str | os.PathLike[str] | None = None,
    *,
    key: str | os.PathLike[str] | None = None,
    timeout: float = 5.0,
    **others: Never,
) -> dict[str, Any]:
    """Return the statistics of the service at ``address`` as plain data, without attaching a trainer; see
    :meth:`Service.stats`.

    Args:
        address: the address that the service printed, or the path of its connection file; default: the file that the
            environment variable ``PYDP2_CONNECTION`` names.
        key: folder with the keys of this process, for an address with ``?key=…``. The role ``observer`` is enough.
        timeout: seconds to wait for an answer.

    Raises:
        OptionError: the address or the keys are not valid.
        ServiceUnreachable: no service answers.
    """
    check_keywords(stats, others)
    require_allowed_process()
    return ask_stats(find_target(address, key, "observer", "trainer"), seconds("timeout", timeout))


@takes(SERVICE_OPTIONS, JOB_OPTIONS, also=("share_along",))
def load(
    files: Sources,
    provider: str | Provider | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    is_train: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    job: str = "default",
    rank: int | None = None,
    world_size: int | None = None,
    **options: Unpack[LoadKeywords],
) -> Client:
    """Start a service and attach to it: ``for batch in pydp2.load("train.list", "my.process", batch_size=128)``.

    The arguments are those of :func:`launch` and :func:`connect`. The service ends with the client: at
    :meth:`Client.close`, when the client is not used any more, or with the program.

    Raises:
        OptionError: ``world_size`` is above 1, or a launcher of distributed training (``torchrun``, ``mpirun``) has
            started several of this process: each would have a service of its own, and see all samples. Pass
            ``world_size=1`` if that is what you want. Also what :func:`launch` and :func:`connect` raise.
    """
    check_keywords(load, options)
    if "share_along" in options:
        raise OptionError(
            "load() starts a service for this process alone, which has no peers: leave share_along out, or start one "
            "service for all, and give it to connect(address, …) in each"
        )
    explicit = rank is not None or world_size is not None
    place = _place(job, rank, world_size)
    _check_single_process(place, None if explicit else distributed_environment())
    of_job, rest = split_options(options)
    chosen = job_options(**of_job)
    service = launch(files, provider, args=args, is_train=is_train, root=root, **rest)
    try:
        return service._client(chosen, place, _CONNECT_TIMEOUT, service.close)
    except BaseException:
        service.close()
        raise


# -- inside ------------------------------------------------------------------------------------------------------------
def _stats_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the table that a notebook shows of a service: one for its workers, and one for each job."""
    rates = [worker["samples_per_second"] for worker in found["workers"] if worker["active"]]
    rows = [("workers", f"{len(rates)}, {sum(rates):,.0f} samples/s together")]
    for name, job in found["jobs"].items():
        progress = job["progress"]
        about = "about " if progress["is_estimate"] else ""
        texts = [
            f"pass {max(0, job['pass'])}",
            f"batch {progress['batch']:,}",
            *([] if progress["share"] is None else [f"{about}{100 * progress['share']:.0f} % done"]),
            f"{job['samples_per_second']:,.0f} samples/s",
            f"pool {job['pool'].get('samples', 0):,}",
            *([f"bottleneck: {job['bottleneck']}"] if job["bottleneck"] not in ("", "balanced") else []),
        ]
        rows.append((f"job {name}", ", ".join(texts) if job["attached"] else "no trainer is attached"))
    return rows


def _check_single_process(place: TrainerPlace, of_several: DistributedEnvironment | None) -> None:
    """Raise OptionError if a service of this process alone would give wrong results."""
    if place.world_size > 1:
        raise OptionError(
            f"load() starts a service for this process alone, so world_size must be 1, got rank={place.rank}, "
            f"world_size={place.world_size}; {DistributedEnvironment(place.rank, place.world_size, '').right_call}"
        )
    if of_several is not None:
        raise OptionError(
            f"load() needs a process that reads for itself, and {of_several}: each would start a service and see all "
            f"samples; {of_several.right_call}, or pass world_size=1 where each is to see all"
        )


def _place(
    job: str, rank: int | None, world_size: int | None, share_along: tuple[int, int] | None = None
) -> TrainerPlace:
    """Return the place of a trainer. Raise what :func:`place_options` raises."""
    return place_options(job, 0 if rank is None else rank, 1 if world_size is None else world_size, share_along)


def _client_place(place: TrainerPlace) -> dict[str, Any]:
    """Return ``place`` as keywords of :class:`Client`."""
    return {"job": place.job, "number": place.number, "numbers": place.numbers}


def require_allowed_process() -> None:
    """Raise GuardError in a worker, in a process that a worker started, and in an interpreter without its global
    lock."""
    require_gil()
    if IN_WORKER in os.environ:
        raise GuardError(
            "a worker process cannot start or read a service; the module of the provider does so when it is imported: "
            'put that code under `if __name__ == "__main__":`'
        )


def search_path() -> list[str]:
    """Return ``sys.path`` with absolute entries; the working directory replaces ''."""
    return [str(Path(entry).resolve()) if entry else str(Path.cwd()) for entry in sys.path]


def _machine_shares(chosen: ServiceOptions) -> dict[str, int]:
    """Return the number of workers, and the bytes of memory for cache and reading ahead. Raises OptionError if this
    machine cannot hold them."""
    available = machine.memory()
    limit = chosen.memory_limit if chosen.memory_limit is not None else max(_LEAST_MEMORY, available.bytes // 4)
    if limit < _LEAST_MEMORY:
        raise OptionError(f"memory_limit must be at least {_LEAST_MEMORY} bytes, got {limit}")
    workers = machine.cores() if chosen.workers is None else chosen.workers
    machine.check_memory(workers, limit, available)
    machine.check_open_files(workers)
    return {"workers": workers, "memory_limit": limit}


def _state_dir(chosen: ServiceOptions) -> Path | None:
    bind = chosen.bind or ""
    if chosen.state_dir is None:
        return None
    if bind.startswith("tcp://") and without_token(bind).endswith((":0", ":*")):
        raise OptionError(
            f"bind={without_token(bind)!r} takes any port, and with state_dir trainers must find the service again at "
            "the same one; name a port"
        )
    return Path(chosen.state_dir).resolve()


class _Locks:
    """Locks of the files that belong to one service, held within a context until its server has inherited them. If an
    exception leaves the context, the files that were made under them are removed."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self._removals: list[Callable[[], None]] = []

    def hold(self, lock: int, remove: Callable[[], None]) -> None:
        """Hold ``lock``. ``remove`` removes the files that were made under it."""
        self.descriptors.append(lock)
        self._removals.append(remove)

    def __enter__(self) -> _Locks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for remove in self._removals if kind is not None else ():
            remove()


def _bound_address(
    chosen: ServiceOptions, state_dir: Path | None, keys: ServiceKeys | None, rundir: RunDir, locks: _Locks
) -> str:
    """Return the address that the server binds for trainers. If it has a path, lock that first."""
    bind = chosen.bind or (rundir.address("clients") if keys is None else "tcp://127.0.0.1:*")
    if keys is None and state_dir is not None and bind.startswith("tcp://") and not split_token(bind)[1]:
        bind = with_token(bind, keep_token(state_dir))
    if chosen.bind is not None and (given := ipc_path(bind)) is not None:
        path = str(Path(given).absolute())  # the address must be valid in every working directory
        bind = bind_address("bind", f"ipc://{path}")
        locks.descriptors.append(take_path(path))
    return bind


def _remote_cache(given: str | None) -> str:
    """Return the directory of the copies of remote files, "" where :func:`_cache_dir` does."""
    with contextlib.suppress(OptionError):
        return str(Path(fetch_options(given).folder).absolute())
    return ""


def _cache_dir(given: str | None) -> str:
    """Return the directory of the cache on disk; "" if none is given and this user has no home folder, which is an
    error only once something is to be cached."""
    with contextlib.suppress(OptionError):
        return str(Path(given or default_folder()).absolute())
    return ""


def _start(
    spec: ServiceSpec,
    files: FileList,
    rundir: RunDir,
    locks: list[int],
    keys: ServiceKeys | None,
    claim: ConnectionClaim | None,
    chosen: ServiceOptions,
) -> Service:
    if (form := os.environ.get(LOG_FORMAT, "")) not in ("", *LOG_FORMATS):
        expected = names_text(LOG_FORMATS)
        warnings.warn(f"{LOG_FORMAT} must be {expected}, got {form!r:.80}; the log is text", UserWarning, stacklevel=3)
    preparation = Preparation(spec)
    try:
        process, channel = start_interpreter("pydp2.server.main", "main", passed=[*locks, *preparation.passed])
        preparation.hand_over()
    except BaseException:
        preparation.close()
        raise
    try:
        send_spec(channel, preparation.spec, files)
        answer = _await_answer(channel)
        preparation.keep(once=answer.get("once", True))
    except (EOFError, ConnectionError):  # no other OSError: a TimeoutError may be one of the program's signal handlers
        status = process.wait(_END_SECONDS)
        channel.close()
        preparation.close()
        lack = (
            ""
            if (most := address_space.address_limit()) is None
            else f"; it may have {most} bytes of addresses (RLIMIT_AS)"
        )
        raise ServiceLost(f"the server process ended while it started (exit status {status}){lack}") from None
    except BaseException:
        preparation.close()
        _end(process, channel, rundir, os.getpid())
        raise
    if "error" in answer:
        _end(process, channel, rundir, os.getpid())
        raise from_wire(answer["error"])
    address = str(answer["address"])
    try:
        if keys is not None and claim is not None:
            claim.write(keys.connection(address, str(answer["host_address"]), spec.local_address))
    except BaseException:
        _end(process, channel, rundir, os.getpid())
        raise
    target = Target(address, None if keys is None else keys.of_run["trainer"], spec.local_address)
    try:
        listen, samples = chosen.page, chosen.page_samples
        page = None if listen is None else PageProcess(target, listen, spec.state_dir, samples=samples)
    except BaseException:
        _end(process, channel, rundir, os.getpid())
        raise
    if page is not None:
        write_secret(f"page: {page.url}", LogEvent.PAGE_READY)
    return Service(process, channel, target, rundir, str(answer["host_address"]), page)


def _await_answer(channel: socket.socket) -> dict[str, Any]:
    """Return the answer of the server, which comes when its first worker is ready or has failed. If one step of the
    start takes long, write a line that names it."""
    doing = "waiting for its server process"
    while True:
        await_readable(channel, doing)
        answer = receive_plain(channel)
        if (progress := answer.get("progress")) is None:
            return answer
        doing = str(progress) or doing


def _end(process: subprocess.Popen[bytes], control: socket.socket, rundir: RunDir, owner: int) -> None:
    """Ask the server to end, and wait; kill it if that takes too long, or if the user interrupts."""
    if os.getpid() != owner:
        return  # a fork of the program that started it
    with contextlib.suppress(OSError):  # the server has ended
        control.send(b"end")
    control.close()
    deadline = time.monotonic() + _END_SECONDS
    try:
        while not _has_ended(process, os.WNOHANG):
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(_END_POLL_SECONDS)
    finally:
        process.kill()  # does nothing if it has ended
        _has_ended(process, 0)
        if process.poll() is None:
            with contextlib.suppress(ChildProcessError):
                process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        rundir.remove()


def _has_ended(process: subprocess.Popen[bytes], options: int) -> bool:
    """Return True if ``process`` has ended; wait for that unless ``options`` is WNOHANG. It can be polled afterwards.

    Popen.wait() could wait for ever, and poll() might never see the end: if a signal handler raises just after Popen
    has taken its lock, the lock stays taken.
    """
    with contextlib.suppress(ChildProcessError, AttributeError):  # of another process; macOS has no waitid
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | options) is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_POLL_SECONDS if options else None)
    return process.poll() is not None


__all__ = ["Service", "ServiceUnreachable", "connect", "launch", "load", "prepare", "stats"]
