"""Make the plan of a job from its options, and tell what its stream depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from pydp2.data.columns.block_list import BlockList
from pydp2.data.schema.input_types import Slots
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import OptionError, OptionTypeError, StateMismatch
from pydp2.options.file_list import FileList
from pydp2.options.job_options import JobOptions
from pydp2.options.service_spec import ServiceSpec
from pydp2.options.values import bucket_bounds
from pydp2.order.plan import BucketPlan
from pydp2.order.random_bits import ORDER_VERSION

_PLAN_OPTIONS = ("batch_size", "seed", "order", "interleave", "pool_bytes", "last_batch")
_SERVICE_FIELDS = ("order_version", "sources", "list", "args", "is_train", "on_error", "block_list", *_PLAN_OPTIONS)
_MAX_NAMED_SOURCES = 16  # a state says what belongs to which source if there are at most so many
_DEFAULT_BUCKETS = 8  # buckets, where neither they nor their bounds were given


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Options of a job that its passes depend on, and all but ``origin`` the order."""

    batch_size: int
    seed: int
    shuffle: bool
    order: str
    interleave: int
    pool_bytes: int
    last_batch: str
    buckets: BucketPlan | None = None
    origin: bool = False
    balance: str | None = None


def job_plan(given: JobOptions, schema: Schema) -> JobPlan:
    """Return the plan of a job with the options ``given``."""
    shuffle = schema.shuffle if given.shuffle is None else given.shuffle
    buckets = parse_bucket_options(given, schema.slots)
    return JobPlan(
        shuffle=shuffle, buckets=buckets, origin=given.origin, **{name: getattr(given, name) for name in _PLAN_OPTIONS}
    )


def stream_identity(plan: JobPlan, schema: Schema, spec: ServiceSpec, files: FileList, source: str) -> dict[str, Any]:
    """Return what the stream of a job depends on, by name: a state is only good where all of it is the same."""
    declared = schema.to_wire()
    return {
        "order_version": ORDER_VERSION,
        **source_identity(spec, files, source),
        "on_error": "skip" if spec.skip_errors else "raise",
        **{name: getattr(plan, name) for name in ("shuffle", *_PLAN_OPTIONS)},
        **{name: declared[name] for name in declared if name not in ("shuffle", "slots")},
        "slots": blake2b(repr(declared["slots"]).encode(), digest_size=8).hexdigest(),
        **({"block_list": BlockList(spec.blocked).fingerprint} if spec.blocked else {}),
        **bucket_identity(plan.buckets, schema.slots),
    }


def derived_identity(given: JobOptions) -> dict[str, Any]:
    """Return that part of the identity that follows from how rows are mixed and packed. The weights are apart, because
    a state may be loaded with other ones."""
    identity: dict[str, Any] = {}
    if given.mix is not None:
        weights = ("points", "linear")
        identity["mix"] = {name: value for name, value in given.mix.items() if name not in weights}
        identity["weights"] = {name: given.mix[name] for name in weights}
    if given.pack is not None:
        identity["pack"] = {name: value for name, value in given.pack.items() if name != "balance"}
    return identity


def source_files(spec: ServiceSpec, files: int) -> dict[str, range]:
    """Return the numbers of the files of each source of the service, by name; one without a name if it has one list."""
    edges = [*(source.first_file for source in spec.sources), files]
    return {source.name: range(*ends) for source, ends in zip(spec.sources, pairwise(edges), strict=True)}


def source_identity(spec: ServiceSpec, files: FileList, source: str) -> dict[str, Any]:
    """Return what the samples of the sources depend on, by name. Each value is a dict by source if the sources have
    names, and a digest of it if they are many."""
    of_sources: dict[str, Iterable[Any]] = {
        "list": (part.fingerprint() for part in spec.source_lists(files)),
        "provider_source": source.split(","),
        "args": (blake2b(each.args, digest_size=8).hexdigest() for each in spec.sources),
        "is_train": (each.is_train for each in spec.sources),
    }
    names = spec.source_names
    if not names:
        return {name: next(iter(values)) for name, values in of_sources.items()}
    named = {name: dict(zip(names, values, strict=True)) for name, values in of_sources.items()}
    identity: dict[str, Any] = {"sources": list(names), **named}  # equal dicts may differ in their order
    if len(names) > _MAX_NAMED_SOURCES:
        return {name: blake2b(repr(value).encode(), digest_size=8).hexdigest() for name, value in identity.items()}
    return identity


def provider_identity(
    given: JobOptions, schema: Schema, spec: ServiceSpec, files: FileList, source: str
) -> dict[str, Any]:
    """Return that part of the identity of a job's stream that follows from its provider. Raises OptionError if the
    options do not suit the slots."""
    identity = stream_identity(job_plan(given, schema), schema, spec, files, source)
    return {name: value for name, value in identity.items() if name not in _SERVICE_FIELDS}


def parse_bucket_options(options: JobOptions, slots: Slots) -> BucketPlan | None:
    """Return what ``options`` ask for. Raises OptionError where the slot is not there, or has no lengths."""
    by, bounds = options.bucket_by, options.bucket_bounds
    if by is None:
        return None
    labels = [slots.label(i) for i, declared in enumerate(slots.types) if declared.has_lengths]
    known = f"such slots here: {', '.join(labels)}" if labels else "no slot here is one"
    if isinstance(by, int):
        slot = by
    else:
        slot = slots.names.index(by) if slots.names is not None and by in slots.names else len(slots)
    if slot >= len(slots):
        raise OptionError(
            f"bucket_by={by!r} must be the name or number of a slot of sequences, text or bytes, but there is no such "
            f"slot; {known}"
        )
    if not slots.types[slot].has_lengths:
        raise OptionError(
            f"bucket_by={by!r} must be a slot of sequences, text or bytes, but this slot is none of them; {known}"
        )
    return BucketPlan(
        slot, bounds, bounds is None, len(bounds) + 1 if bounds else options.num_buckets or _DEFAULT_BUCKETS
    )


def bucket_identity(buckets: BucketPlan | None, slots: Slots) -> dict[str, Any]:
    """Return what a state must agree with, by option."""
    if buckets is None:
        return {}
    return {
        "bucket_by": buckets.slot if slots.names is None else slots.names[buckets.slot],
        "bucket_bounds": None if buckets.automatic else list(buckets.bounds or ()),
        "num_buckets": buckets.max_buckets if buckets.automatic else None,
    }


def small_pool_warning(buckets: BucketPlan | None, pool_size: int, batch_size: int) -> str:
    """Return a warning about a pool that may have to grow beyond its size for its buckets; empty if it need not."""
    if buckets is None or pool_size == -1 or pool_size >= buckets.max_buckets * batch_size:
        return ""
    return (
        f"pool_size={pool_size} may be too small for {buckets.max_buckets} buckets with batches of {batch_size}; "
        "the pool holds more where no bucket could fill a batch otherwise, and mixes little; raise pool_size, or take "
        "fewer buckets"
    )


def begin_buckets(buckets: BucketPlan | None, point: Mapping[str, Any], ranks: int) -> BucketPlan | None:
    """Return the buckets that a pass for so many ``ranks`` begins with. ``point``: what is known of an earlier pass, or
    of this one.

    Raises StateMismatch for bounds and groups that cannot be, or that do not suit the ranks.
    """
    if buckets is None:
        return None
    bounds, group = buckets.bounds, point.get("group", ranks)
    try:
        if "bounds" in point and list(point["bounds"]):
            bounds = bucket_bounds("bounds", point["bounds"])
        elif "bounds" in point:
            bounds = ()
        if (buckets.bounds or bounds) != bounds or len(bounds or ()) >= buckets.max_buckets:
            raise ValueError("bounds that differ from bucket_bounds")
        if type(group) is not int or not 0 < group < 1 << 20:
            raise ValueError("an invalid group of batches")
    except (OptionError, OptionTypeError, TypeError, ValueError) as error:
        raise StateMismatch(f"the buckets in the state cannot be read ({error}): it is damaged") from None
    if group % ranks:
        raise StateMismatch(
            f"the state is in the middle of a pass that gives {group} batches in a row from one bucket, but the job "
            f"has {ranks} ranks; use a number of ranks that divides {group}, or go on at the next pass"
        )
    return replace(buckets, bounds=bounds, group_size=group)
