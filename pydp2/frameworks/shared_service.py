"""Open the client of one rank of a job: of a service that is given, or of one that all ranks of this machine share
(docs/frameworks.md, "One service for all ranks").

No rank has to be told an address: the first rank binds the service to a path that the identity of the run gives, and
the others connect to it.
"""

from __future__ import annotations

import os
from collections import Counter
from hashlib import blake2b
from typing import Any, NamedTuple

from pydp2.api.rundir import run_directories
from pydp2.api.service import Service, connect, launch, load
from pydp2.api.sources import Files, Source
from pydp2.client import Client
from pydp2.errors import OptionError
from pydp2.options.tables import JOB_OPTIONS
from pydp2.providers import Provider

CONNECT_SECONDS = 10.0
"""Seconds to wait for a service that runs already."""
START_SECONDS = 120.0
"""Seconds that a rank waits for the service that the first rank starts: its provider may load much."""
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


class StartedService(NamedTuple):
    """Owner of a client for whose ranks :func:`open_client` started ``service``: whoever closes that client ends it."""

    service: Service


def open_client(
    files: Files | Source | Client,
    provider: str | Provider | None,
    ranks: Ranks,
    *,
    job: str = "default",
    **options: Any,
) -> Client:
    """Return a client for the rank of this process.

    ``files``: what :func:`pydp2.load` takes, beside ``provider``; or without a provider the address or the connection
    file of a service, or a client. ``options``: of the service and of the job. A job of several ranks makes up the
    last batches (``last_batch="pad"``) unless told otherwise, because all ranks of a framework take equally many.

    Raises OptionError where the ranks are on several machines and no service is given, and what :func:`pydp2.load` and
    :func:`pydp2.connect` raise.
    """
    if isinstance(files, Client):
        if options or provider is not None:
            raise OptionError("a client has its provider and its options already; give them where it is made")
        return files
    place: dict[str, Any] = {"job": job, "rank": ranks.rank, "world_size": ranks.world_size}
    if ranks.world_size > 1:
        options.setdefault("last_batch", "pad")
    if provider is None and isinstance(files, str | os.PathLike):
        return connect(files, **place, **options)
    if ranks.world_size == 1:
        return load(files, provider, job=job, rank=0, world_size=1, **options)
    of_job: dict[str, Any] = {key: value for key, value in options.items() if key in JOB_OPTIONS}
    rest: dict[str, Any] = {key: value for key, value in options.items() if key not in JOB_OPTIONS}
    address, service = open_service(files, provider, ranks, job=job, **rest)
    if service is None:
        return connect(address, **place, timeout=START_SECONDS, **of_job)
    try:
        client = service.connect(**place, **of_job)
        client.owner = StartedService(service)  # which the client keeps
        return client
    except BaseException:
        service.close()
        raise


def open_service(
    files: Files | Source,
    provider: str | Provider | None,
    ranks: Ranks,
    *,
    job: str = "default",
    **options: Any,
) -> tuple[str, Service | None]:
    """Return the address of a service for the ranks of this machine, and the service where this rank starts it.

    Raises OptionError where the ranks are on several machines, and what :func:`pydp2.launch` raises.
    """
    if ranks.local_world_size != ranks.world_size:
        raise OptionError(
            f"{ranks.local_world_size} of {ranks.world_size} ranks run on this machine, and the service that rank 0 "
            "would start can be reached from its own machine alone; start one service for all (`pydp2 serve LIST "
            "--provider ADDRESS --bind tcp://… --connection run.json`), and give each rank that file in place of the "
            "list"
        )
    if ranks.world_size == 1:
        service = launch(files, provider, **options)
        return service.address, service
    _opened[ranks.run, job] += 1
    name = blake2b(repr((ranks.run, job, _opened[ranks.run, job])).encode(), digest_size=8).hexdigest()
    address = f"ipc://{run_directories() / name}.sock"
    return address, launch(files, provider, bind=address, **options) if ranks.rank == 0 else None
