"""Check what a trainer asks of a service: the plan of its job, and what its stream depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import OptionError
from pydp2.options.job_options import JobOptions
from pydp2.options.service_spec import ServiceSpec
from pydp2.options.tables import job_options, place_options
from pydp2.protocol import messages as m
from pydp2.server.available_memory import POOL_OVERHEAD, SERVER_BASE_BYTES, AvailableMemory

_TRAINER_OPTIONS = ("prefetch", "lease")  # what each trainer of a job may say for itself
_BATCHES_IN_FLIGHT = 4  # batches at a trainer and the service beside those that it has asked for ahead
_SESSION_BYTES = 64  # characters
_HOST_CHARACTERS = 255
_MAX_JOBS = 16  # at a time: what is told of all of them fits into one message


def requested_options(attach: m.Attach, spec: ServiceSpec) -> JobOptions:
    """Return the options of ``attach``. Raises OptionError or OptionTypeError for what cannot be."""
    if attach.version != m.WIRE_VERSION:
        raise OptionError(
            f"the service speaks wire version {m.WIRE_VERSION}, the client {attach.version}; "
            "use the same release of pydp2 on both sides"
        )
    place_options(attach.job, attach.rank, attach.world_size, (attach.peer, attach.peer_count))
    if len(attach.session) > _SESSION_BYTES:
        raise OptionError(f"a session must be a text of at most {_SESSION_BYTES} characters, got {len(attach.session)}")
    if len(attach.host) > _HOST_CHARACTERS or not attach.host.isprintable():
        raise OptionError(f"a host must have a name of at most {_HOST_CHARACTERS} characters that can be printed")
    trainers = attach.world_size * attach.peer_count
    if attach.counting not in ("", "missing", "all") or (attach.counting and trainers != 1):
        raise OptionError(f"a job of one rank may count missing or all files, got {attach.counting!r:.40}")
    given = job_options(**attach.options)
    if given.share == "dynamic" and trainers != 1:
        name = "world_size" if attach.world_size != 1 else "share_along"
        raise OptionError(
            f'share="dynamic" gives each batch to the trainer that asks first, without ranks: leave {name} out'
        )
    return given


def check_memory(
    job: str,
    given: JobOptions,
    others: Mapping[str, JobOptions],
    spec: ServiceSpec,
    have: AvailableMemory,
    schema: Schema,
) -> None:
    """Raise OptionError unless ``job`` fits into what there is beside the ``others``: each has a pool of its own.
    ``have``: what there was before the first of them; ``schema`` says what a sample takes at least."""
    if len(others) >= _MAX_JOBS:
        raise OptionError(
            f"the service has {len(others)} jobs, and the limit is {_MAX_JOBS}; wait until one of them is over, "
            f"or start a second service for {job!r}"
        )
    beside = sum(_in_flight_bytes(job, schema) for job in (given, *others.values()))
    beside += SERVER_BASE_BYTES * spec.workers
    beside += int((POOL_OVERHEAD - 1) * sum(job.pool_bytes for job in (given, *others.values())))
    need = spec.memory_limit + given.pool_bytes + beside
    rest = f"with {beside} bytes for workers={spec.workers}, batches under way and room in pools, "
    remedy = f", or {have.remedy}" if have.remedy else ""
    if need > have.bytes:
        raise OptionError(
            f"pool_bytes={given.pool_bytes} and memory_limit={spec.memory_limit}, {rest}together exceed the "
            f"{have.describe()}; lower one of them (pool_bytes can change the order){remedy}"
        )
    if given.prefetch_bytes + given.pool_bytes + spec.memory_limit > have.bytes:
        raise OptionError(
            f"prefetch_bytes={given.prefetch_bytes}, pool_bytes={given.pool_bytes} and memory_limit="
            f"{spec.memory_limit} together exceed the {have.describe()}; lower prefetch_bytes{remedy}"
        )
    need += sum(other.pool_bytes for other in others.values())
    if need > have.bytes:
        pools = ", ".join(f"{other.pool_bytes} of job {name!r}" for name, other in others.items())
        raise OptionError(
            f"pool_bytes={given.pool_bytes} of job {job!r}, pool_bytes={pools} and memory_limit={spec.memory_limit}, "
            f"{rest}are {need} bytes together, more than the {have.describe()}; lower one of them (pool_bytes is "
            f"part of the order){remedy}, or wait until a job is over"
        )


def _in_flight_bytes(job: JobOptions, schema: Schema) -> int:
    """Bytes of batches that a trainer of ``job`` has, and of those that are on their way to it. Rows that have no cells
    are copied into their batch, and the service keeps them until it is used."""
    batch = min(job.batch_size * schema.slots.row_bytes, job.pool_bytes)
    batches = _BATCHES_IN_FLIGHT * batch + min(job.prefetch * batch, max(job.prefetch_bytes, batch))
    return batches if schema.uses_cells else 2 * batches


def check_same_options(job: str, first: JobOptions, given: JobOptions, ending: str = "") -> None:
    """Raise OptionError unless trainers with these options can share ``job``; ``ending``: when that is over."""
    one, other = asdict(first), asdict(given)
    wrong = [
        f"{name} is {one[name]!r} there, {other[name]!r} here"
        for name in one
        if one[name] != other[name] and name not in _TRAINER_OPTIONS
    ]
    if wrong:
        raise OptionError(
            f"job {job!r} runs with other options: {'; '.join(wrong)}; all ranks must give the same ones{ending}"
        )
