"""Open the client of one rank of a job, either of a given service, or of a service that all ranks share
(docs/frameworks.md, "One service for all ranks").

No rank needs an address. If all run on one machine, rank 0 binds the service to a path that follows from the identity
of the run, and the others connect to it. Otherwise rank 0 hands address and keys over through the store of the run
(:mod:`pydp2.frameworks.hand_over`).
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple, TypeGuard, TypeVar

from pydp2.api.access import Address
from pydp2.api.distributed import distributed_environment
from pydp2.api.rundir import run_directories
from pydp2.api.service import Service, connect, launch, load
from pydp2.api.sources import Files, Source, names_data
from pydp2.client import Client
from pydp2.client.stream import Stream
from pydp2.errors import Error, OptionError
from pydp2.frameworks.hand_over import receive_service, start_service
from pydp2.frameworks.node_workers import start_workers
from pydp2.frameworks.run_store import RunStore, meet
from pydp2.options.tables import LoadChoices, TrainerPlace, place_options, split_options
from pydp2.options.values import integer_from
from pydp2.providers import Provider

L = TypeVar("L")
START_SECONDS = 120.0
"""Seconds that a rank waits for the service that the first rank starts, because its provider may take long to load."""
_END_SECONDS = 30.0
"""Seconds that the rank with the service waits at its end for ranks that still read."""
_END_POLL_SECONDS = 0.05
_NO_POOL = 1 << 16  # bytes
_opened: Counter[tuple[str, str]] = Counter()  # services by run and job: each loader has its own
_names: dict[str, str] = {}  # names on which the ranks of several machines have agreed, by run


class Ranks(NamedTuple):
    """Rank of this process among those that train together: ``rank`` of ``world_size`` ranks, of which
    ``local_world_size`` run on this machine.

    ``run``: name of the run, the same in all its processes on this machine, and different from those of other runs of
    this user on this machine at the same time. ``local_rank``: number of this process among those on this machine.
    ``store``: store that all ranks reach, None if there is none. ``data``: place of this process among the trainers of
    a job, whose job does not count; None: each process is a rank of the job.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    run: str = ""
    local_rank: int = 0
    store: RunStore | None = None
    data: TrainerPlace | None = None

    @property
    def needs_equal_steps(self) -> bool:
        """True if all ranks must take equally many batches, or one process does what those of a mesh do elsewhere."""
        return self.world_size > 1 or self.data is not None

    def place(self, job: str) -> TrainerPlace:
        """Return the place of this process among the trainers of ``job``."""
        return (self.data or TrainerPlace("", self.rank, self.world_size))._replace(job=job)

    @classmethod
    def at(cls, endpoints: Sequence[str], rank: int) -> Ranks:
        """Return rank ``rank`` of processes with ``endpoints``, texts ``host:port``, which together name the run."""
        hosts = [endpoint.rpartition(":")[0] for endpoint in endpoints]
        return cls(rank, len(endpoints), hosts.count(hosts[rank]), ",".join(endpoints))


def chosen_ranks(
    rank: int | None,
    world_size: int | None,
    find: Callable[[], Ranks],
    share_along: tuple[int, int] | None = None,
) -> Ranks:
    """Return the rank that a user has given; without ``rank`` and ``world_size`` the one that ``find`` returns.

    ``world_size=1`` alone lets each process read all samples. Raises OptionError if only one of the two is given, or
    ``share_along`` without them; or if nothing is given, ``find`` returns no other process, and the environment names
    several.
    """
    if share_along is not None:
        return _ranks_with_peers(rank, world_size, find, share_along)
    if rank is None and world_size is None:
        found = find()
        check_others(found.world_size)
        return found
    if world_size == 1:
        return Ranks(rank or 0)
    if rank is None or world_size is None:
        raise OptionError("rank and world_size belong together; pass both, world_size=1 alone, or neither")
    found = find()
    if found.world_size != world_size:
        return Ranks(rank, world_size, 0, found.run)
    return found._replace(rank=rank)


def _ranks_with_peers(
    rank: int | None, world_size: int | None, find: Callable[[], Ranks], share_along: tuple[int, int]
) -> Ranks:
    if rank is None or world_size is None:
        raise OptionError("share_along says which peer of its rank a process is; pass rank and world_size with it")
    data = place_options("default", rank, world_size, share_along)
    ranks = chosen_ranks(data.number, data.numbers.total, find)
    return ranks._replace(data=data)


def check_others(world_size: int) -> None:
    """Raise OptionError if a framework knows of only one process, and the environment names several: each would read
    all samples. ``world_size``: number of processes that the framework knows of."""
    if world_size == 1 and (environment := distributed_environment()) is not None:
        raise OptionError(
            f"{environment}, and the framework knows of no other rank, so each would read all samples; initialize its "
            "processes before, with torch.distributed.init_process_group() or jax.distributed.initialize() for "
            "instance, or pass world_size=1 if each is to read all"
        )


class SharedService:
    """Service that this rank has started for all ranks.

    ``waits``: :meth:`close` waits for the other ranks. ``job``: the job that all ranks join, also late ones.
    """

    def __init__(self, service: Service, *, waits: bool = True, job: str | None = None) -> None:
        self.service = service
        self.waits = waits
        self.job = job
        self._owner = os.getpid()

    def close(self) -> None:
        """End the service, once all ranks have connected and no rank reads from it any more, or after 30 seconds. A
        program that ends with an error does not wait, because the other ranks may be waiting for it."""
        if os.getpid() != self._owner:
            return  # a fork of the program that started it
        deadline = time.monotonic() + _END_SECONDS
        with suppress(Error):  # the service has ended
            while self.waits and not hasattr(sys, "last_value") and time.monotonic() < deadline:
                jobs = self.service.stats()["jobs"]
                if not any(job["attached"] for job in jobs.values()) and not self._ranks_to_come(jobs):
                    break
                time.sleep(_END_POLL_SECONDS)
        self.service.close()

    def _ranks_to_come(self, jobs: Mapping[str, Any]) -> int:
        return 0 if self.job is None or self.job not in jobs else int(jobs[self.job]["ranks_to_come"])


class LoaderKeywords(LoadChoices, total=False):
    """Keywords of loaders of frameworks for type checkers."""

    batch_size: int
    args: Mapping[str, Any] | None
    is_train: bool | None
    root: str | os.PathLike[str] | None
    key: str | os.PathLike[str] | None
    job: str
    rank: int
    world_size: int
    share_along: tuple[int, int]
    reads_ahead: int
    workers_per_node: int


LOADER_OPTIONS = (*LoaderKeywords.__annotations__, "timeout")
"""Names of all keywords of loaders of frameworks; ``timeout`` is for an address."""


def open_service(
    files: Files | Source,
    provider: str | Provider | None,
    ranks: Ranks,
    *,
    job: str = "default",
    workers_per_node: int = 0,
    **options: Any,
) -> tuple[Address, SharedService | None]:
    """Return the address of the service for all ranks, and in the rank that starts it the service.

    All ranks of a run must make the same calls, in the same order: the n-th call of each leads to the same service.
    ``workers_per_node``: number of workers on each machine but that of rank 0. ``options``: those of the service, and
    ``args``, ``is_train``, ``root``. Raises the errors of :func:`open_client`.
    """
    workers = integer_from(0)("workers_per_node", workers_per_node)
    if ranks.world_size > 1:
        _opened[ranks.run, job] += 1
    if ranks.local_world_size != ranks.world_size:
        return _open_on_machines(files, provider, ranks, job, workers, options)
    if ranks.world_size > 1:
        name = blake2b(repr((ranks.run, job, _opened[ranks.run, job])).encode(), digest_size=8).hexdigest()
        options.setdefault("bind", f"ipc://{run_directories() / name}.sock")
    if ranks.rank > 0:
        return str(options["bind"]), None
    service = launch(files, provider, **options)
    return service.address, SharedService(service, waits=ranks.world_size > 1)


def _open_on_machines(
    files: Files | Source,
    provider: str | Provider | None,
    ranks: Ranks,
    job: str,
    workers: int,
    options: Mapping[str, Any],
) -> tuple[Address, SharedService | None]:
    """Return what :func:`open_service` does for ranks on several machines, one of which has ``workers`` workers of its
    own if rank 0 is not there."""
    if ranks.store is None:
        if not ranks.run:
            raise OptionError(
                f"rank={ranks.rank} and world_size={ranks.world_size} were given, and nothing says which ranks run on "
                "this machine, where rank 0 would start a service for all; start one yourself (`pydp2 serve LIST "
                "--provider ADDRESS`), and give each rank its address in place of the list, or leave rank and "
                "world_size out where a launcher has started the ranks"
            )
        raise OptionError(
            f"{ranks.local_world_size} of {ranks.world_size} ranks run on this machine, and rank 0 can hand address "
            "and keys of a service to the others only through the store of torch.distributed or jax.distributed, which "
            "is not there; initialize it before, or start one service for all (`pydp2 serve LIST --provider ADDRESS "
            "--bind tcp://… --connection run.json`), and give each rank that file in place of the list"
        )
    if ranks.run not in _names:
        _names[ranks.run] = meet(ranks.store, ranks.rank, ranks.world_size, START_SECONDS)
    key = f"{_names[ranks.run]}/{job}/{_opened[ranks.run, job]}"
    if ranks.rank == 0:
        connection, service = start_service(files, provider, ranks.store, key, **options)
        return connection, SharedService(service)
    connection = receive_service(ranks.store, key, START_SECONDS)
    if workers and ranks.local_rank == 0:  # rank 0 is the first of its own machine
        start_workers(connection, workers, options.get("root"), START_SECONDS)
    return connection, None


def keep_service(address: Address, ranks: Ranks, *, job: str) -> Client:
    """Return a client that reads nothing, and keeps the service at ``address`` running while it is open. Rank 0 ends
    the service when no rank is connected, and between two passes the workers of a rank are not."""
    name = f"{job} rank {ranks.rank} {os.urandom(4).hex()}"
    return connect(address, job=name, rank=0, world_size=1, timeout=START_SECONDS, batch_size=1, pool_bytes=_NO_POOL)


def open_client(
    files: Files | Source | Stream,
    provider: str | Provider | None,
    ranks: Ranks,
    *,
    job: str = "default",
    **options: Any,
) -> Stream:
    """Return a client for the rank of this process, or the given stream.

    The default of ``last_batch`` for a job of several ranks is ``"pad"``, because all ranks of a framework must take
    equally many batches.

    Args:
        files: as for :func:`pydp2.load`; a list file with a ``provider``; or without a provider the address or the
            connection file of a service, or a stream: a client, a mixture, packed sequences.
        provider: as for :func:`pydp2.load`.
        ranks: rank of this process.
        job: name of the job.
        options: those of the service and of the job, and ``args``, ``is_train``, ``root``; with an address those of
            :func:`pydp2.connect`.

    Raises:
        OptionError, OptionTypeError: the ranks are on several machines without a store, and no service is given; or
            options are given with a stream. Also the errors of :func:`pydp2.load` and :func:`pydp2.connect`; in all
            ranks those with which the service does not start.
        ServiceUnreachable: the ranks of several machines do not make their loaders together.
    """
    if isinstance(files, Stream):
        if options or provider is not None:
            raise OptionError(
                f"a {type(files).__name__} has its provider and its options already, got "
                f"{', '.join(options) or 'a provider'} beside it; give them to the call that makes it"
            )
        return files
    rank_options: dict[str, Any] = ranks.place(job)._asdict()
    if ranks.needs_equal_steps:
        options.setdefault("last_batch", "pad")
    if is_address(files, provider, options.get("root")):
        check_no_workers(options)
        try:
            return connect(files, **rank_options, **options)
        except OptionError as error:
            if "://" in str(files):
                raise
            raise OptionError(
                f"no provider was given, so {files} is read as the connection file of a service; if it is a list of "
                f"files, give the provider behind it, as loader({str(files)!r}, 'my_provider.process', …): {error}"
            ) from None
    if ranks.world_size == 1:
        options.pop("workers_per_node", None)
        return load(files, provider, job=job, rank=0, world_size=1, **options)
    of_job, rest = split_options(options)
    address, service = open_service(files, provider, ranks, job=job, **rest)
    if service is None:
        return connect(address, **rank_options, timeout=START_SECONDS, **of_job)
    service.job = job
    try:
        client = service.service.connect(**rank_options, timeout=START_SECONDS, **of_job)
    except BaseException:
        service.service.close()
        raise
    client.owner = service
    return client


def check_no_workers(options: dict[str, Any]) -> None:
    """Remove ``workers_per_node`` from ``options`` for a given service. Raises OptionError if it is not 0."""
    if options.pop("workers_per_node", 0):
        raise OptionError(
            "workers_per_node is for a service that rank 0 starts, and the address of a service is given; start "
            "workers on other machines with `pydp2 worker --connect run.json`"
        )


def open_loader(
    files: Files | Source | Stream,
    provider: str | Provider | None,
    ranks: Ranks,
    make: Callable[[Stream], L],
    **options: Any,
) -> L:
    """Return ``make(stream)`` for the stream that :func:`open_client` returns. If ``make`` raises, close the stream."""
    client = open_client(files, provider, ranks, **options)
    try:
        return make(client)
    except BaseException:
        if isinstance(client.owner, SharedService):
            client.owner.waits = False  # the other ranks have the same error
        leave(client)
        raise


def leave(client: Stream) -> None:
    """Close ``client``. If this rank has started the service for all, end it once the other ranks have left."""
    client.close()
    if isinstance(client.owner, SharedService):
        client.owner.close()


def is_address(files: Any, provider: Any, root: Any = None) -> TypeGuard[str | os.PathLike[str]]:
    """Return True if ``files``, without a provider, is the address or the connection file of a service, and no data
    below ``root``, whose suffix chooses the provider."""
    return provider is None and isinstance(files, str | os.PathLike) and not names_data(files, root)
