"""Open the client of one rank of a job: of a service that is given, or of one that all ranks of this machine share
(docs/frameworks.md, "One service for all ranks").

No rank has to be told an address: the first rank binds the service to a path that the identity of the run gives, and
the others connect to it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple, TypeGuard

from pydp2.api.rundir import run_directories
from pydp2.api.service import Service, connect, launch, load
from pydp2.api.sources import Files, Source
from pydp2.client import Client
from pydp2.errors import Error, OptionError
from pydp2.options.tables import JOB_OPTIONS, LoadChoices
from pydp2.providers import Provider

START_SECONDS = 120.0
"""Seconds that a rank waits for the service that the first rank starts: its provider may load much."""
_END_SECONDS = 30.0
"""Seconds that the rank which has the service waits at its end for ranks that still read."""
_END_POLL_SECONDS = 0.05
_NO_POOL = 1 << 16  # bytes
_opened: Counter[tuple[str, str]] = Counter()  # services by run and job: each loader of a program has its own


class Ranks(NamedTuple):
    """Place of this process among those that train together: ``rank`` of ``world_size``, of which
    ``local_world_size`` run on this machine.

    ``run``: names the run, the same in all its processes, and no other run of this user on this machine has it at the
    same time.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    run: str = ""


class SharedService:
    """Service that this rank has started for all ranks of the machine. ``waits``: its end waits for the others."""

    def __init__(self, service: Service, *, waits: bool = True) -> None:
        self.service = service
        self.waits = waits
        self._owner = os.getpid()

    def close(self) -> None:
        """End the service, once no rank reads from it any more, or after 30 seconds. A program that ends with an error
        waits for nobody: the other ranks may wait for what it will not do any more."""
        if os.getpid() != self._owner:
            return  # a fork of the program that started it
        deadline = time.monotonic() + _END_SECONDS
        with suppress(Error):  # the service has ended
            while self.waits and not hasattr(sys, "last_value") and time.monotonic() < deadline:
                if not any(job["attached"] for job in self.service.stats()["jobs"].values()):
                    break
                time.sleep(_END_POLL_SECONDS)
        self.service.close()


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
    reads_ahead: int


def open_service(
    files: Files | Source, provider: str | Provider | None, ranks: Ranks, *, job: str = "default", **options: Any
) -> tuple[str, SharedService | None]:
    """Return the address of the service for all ranks of this machine; with it the service, in the rank that starts it.

    All ranks of a run make the same calls, in the same order: the n-th call of each leads to the same service.
    ``options``: of the service, and ``args``, ``is_train``, ``root``. Raises what :func:`open_client` raises.
    """
    if ranks.local_world_size != ranks.world_size:
        raise OptionError(
            f"{ranks.local_world_size} of {ranks.world_size} ranks run on this machine, and the service that rank 0 "
            "would start can be reached from its own machine alone; start one service for all (`pydp2 serve LIST "
            "--provider ADDRESS --bind tcp://… --connection run.json`), and give each rank that file in place of the "
            "list"
        )
    if ranks.world_size > 1:
        _opened[ranks.run, job] += 1
        name = blake2b(repr((ranks.run, job, _opened[ranks.run, job])).encode(), digest_size=8).hexdigest()
        options.setdefault("bind", f"ipc://{run_directories() / name}.sock")
    if ranks.rank > 0:
        return str(options["bind"]), None
    service = launch(files, provider, **options)
    return service.address, SharedService(service, waits=ranks.world_size > 1)


def keep_service(address: str, ranks: Ranks, *, job: str) -> Client:
    """Return a client that reads nothing, as long as which the service at ``address`` is kept: rank 0 ends it when no
    rank is connected, and between two passes the workers of a rank are not."""
    name = f"{job} rank {ranks.rank} {os.urandom(4).hex()}"
    return connect(address, job=name, rank=0, world_size=1, timeout=START_SECONDS, batch_size=1, pool_bytes=_NO_POOL)


def open_client(
    files: Files | Source | Client,
    provider: str | Provider | None,
    ranks: Ranks,
    *,
    job: str = "default",
    **options: Any,
) -> Client:
    """Return a client for the rank of this process.

    A job of several ranks makes up the last batches (``last_batch="pad"``) unless told otherwise, because all ranks of
    a framework take equally many.

    Args:
        files: what :func:`pydp2.load` takes, beside ``provider``; or without a provider the address or the connection
            file of a service, or a client.
        provider: as :func:`pydp2.load` takes it.
        ranks: where this process stands.
        job: name of the stream.
        options: of the service and of the job, and ``args``, ``is_train``, ``root``; with an address those of
            :func:`pydp2.connect`.

    Raises:
        OptionError, OptionTypeError: the ranks are on several machines and no service is given, options beside a
            client, and what :func:`pydp2.load` and :func:`pydp2.connect` raise.
    """
    if isinstance(files, Client):
        if options or provider is not None:
            raise OptionError(
                f"a client has its provider and its options already, got {', '.join(options) or 'a provider'} beside "
                "it; give them to the call that makes the client"
            )
        return files
    place: dict[str, Any] = {"job": job, "rank": ranks.rank, "world_size": ranks.world_size}
    if ranks.world_size > 1:
        options.setdefault("last_batch", "pad")
    if is_address(files, provider):
        try:
            return connect(files, **place, **options)
        except OptionError as error:
            if "://" in str(files):
                raise
            raise OptionError(
                f"no provider was given, so {files} is read as the connection file of a service: {error}"
            ) from None
    if ranks.world_size == 1:
        return load(files, provider, job=job, rank=0, world_size=1, **options)
    of_job: dict[str, Any] = {key: value for key, value in options.items() if key in JOB_OPTIONS}
    rest: dict[str, Any] = {key: value for key, value in options.items() if key not in JOB_OPTIONS}
    address, service = open_service(files, provider, ranks, job=job, **rest)
    if service is None:
        return connect(address, **place, timeout=START_SECONDS, **of_job)
    try:
        client = service.service.connect(**place, **of_job)
    except BaseException:
        service.service.close()
        raise
    client.owner = service
    return client


def is_address(files: Any, provider: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Return True if ``files``, without a provider, say where a service is."""
    return provider is None and isinstance(files, str | os.PathLike)
