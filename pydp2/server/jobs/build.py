"""Make the passes of a job from its options: over files, or over rows that are mixed or packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.schema.input_types import DataType, InputType, SequenceType, Slots
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import OptionError
from pydp2.options.job_options import JobOptions
from pydp2.order.mixture import MixPlan, WeightSchedule
from pydp2.order.packing import PackPlan
from pydp2.protocol.exact_weights import shares_of
from pydp2.server.dispatch.file_dispatcher import ReadContext
from pydp2.server.jobs.derived import DerivedJob
from pydp2.server.jobs.groups import JobPasses
from pydp2.server.jobs.mixing import MixStage
from pydp2.server.jobs.packing import PackStage
from pydp2.server.jobs.pass_stream import JobStream, OnReading
from pydp2.server.jobs.plan import JobPlan
from pydp2.server.jobs.stages import FilesStage, RowStage

_LEAST_POOL = 1 << 16  # bytes of a source


class JobSources(NamedTuple):
    """What a job reads: ``sources`` by name, the numbers of their files, with what all share. ``memory`` makes memory
    for rows of the provider's slots."""

    sources: Mapping[str, range]
    schema: Schema
    context: ReadContext
    memory: Callable[[], PoolMemory]
    on_reading: OnReading

    @property
    def files(self) -> range:
        """Numbers of all files."""
        return range(sum(map(len, self.sources.values())))


def job_passes(given: JobOptions, plan: JobPlan, job: JobSources, *, counting: str = "") -> JobPasses:
    """Return the passes of a job with the options ``given``, whose plan is ``plan``. Raises OptionError if the options
    do not suit the sources or their slots."""
    if given.mix is None and given.pack is None:
        return JobStream(
            plan,
            job.schema,
            job.context,
            files=job.files,
            memory=job.memory(),
            counting=counting,
            may_lose_rows=given.share != "dynamic",
            on_reading=job.on_reading,
        )
    if job.schema.weighted:
        raise OptionError(
            "rows are mixed and packed one by one, and calc_batch_size gives the samples of this provider weights; "
            "leave calc_batch_size out"
        )
    rows = plan.batch_size if given.pack is None else given.pack["draw"]
    schedule: WeightSchedule | None = None
    if given.mix is None:
        stage: RowStage[Any] = _files_stage(plan, job, job.files, rows, 1)
    else:
        stage, schedule = _mix_stage(given.mix, plan, job, rows)
    if given.pack is None:
        return DerivedJob(plan, job.schema, stage, job.memory(), schedule)
    packed = PackStage(stage, _pack_plan(given.pack, plan, job.schema.slots))
    schema = replace(job.schema, slots=packed.slots, cache=0)
    plan = replace(plan, balance=given.pack["balance"])
    return DerivedJob(plan, schema, packed, PoolMemory(packed.slots), schedule)


def _files_stage(
    plan: JobPlan, job: JobSources, files: range, rows: int, sources: int, last_batch: str = "keep"
) -> FilesStage:
    """Return the stage of the source with ``files``, one of ``sources``, which draws ``rows`` rows at a time."""
    pool = max(_LEAST_POOL, plan.pool_bytes // sources)
    own = replace(plan, batch_size=rows, last_batch=last_batch, origin=True, pool_bytes=pool)
    stream = JobStream(
        own,
        job.schema,
        job.context,
        files=files,
        memory=job.memory(),
        on_reading=job.on_reading,
    )
    return FilesStage(stream)


def _mix_stage(mix: Mapping[str, Any], plan: JobPlan, job: JobSources, rows: int) -> tuple[MixStage, WeightSchedule]:
    """Return the stage that mixes the sources, and its weights."""
    names = [*job.sources]
    points = mix["points"]
    if len(names) == 1 and len(points[0][1]) == 1:  # a service of one list has no name for it
        points = [[step, dict.fromkeys(names, *weights.values())] for step, weights in points]
    for _, weights in points:
        if {*weights} != {*names}:
            raise OptionError(
                f"the weights of a mixture must name the sources of the service: {', '.join(names)}; got "
                f"{', '.join(weights)}"
            )
    per_stream = mix["batching_method"] == "per_stream"
    # A source whose batches are all dropped has no row, and cannot be repeated for ever.
    ends = "drop" if per_stream and plan.last_batch == "drop" else "keep"
    sources = [_files_stage(plan, job, files, rows, len(names), ends) for files in job.sources.values()]
    schedule = WeightSchedule(
        tuple((step, shares_of([weights[name] for name in names])) for step, weights in points), mix["linear"]
    )
    max_passes = tuple(mix["max_passes"].get(name, 0) for name in names)
    by = mix["weight_by"]
    weight_by = None if by is None else _slot_number(job.schema.slots, by, "weight_by", _is_sequence, "a sequence")
    mixing = MixPlan(plan.seed, rows, mix["stopping_strategy"], per_stream, max_passes, weight_by)
    return MixStage(sources, names, mixing, schedule), schedule


def _pack_plan(pack: Mapping[str, Any], plan: JobPlan, slots: Slots) -> PackPlan:
    what = "a sequence of numbers, declared as integer_value_sequence(…) or dense_vector_sequence(…)"
    numbers = [_slot_number(slots, slot, "slot", _is_packable, what) for slot in pack["slots"]]
    ragged = [_slot_number(slots, slot, "ragged", _is_packable, what) for slot in pack["ragged"]]
    if len({*numbers, *ragged}) < len(numbers) + len(ragged):
        raise OptionError(f"slot and ragged must name each slot once, got {[*pack['slots'], *pack['ragged']]!r:.80}")
    dtypes = [np.dtype(slots.types[number].element_dtype) for number in numbers]
    widest = min((np.iinfo(dtype).max for dtype in dtypes if dtype.kind in "iu"), default=pack["pad_token"])
    if pack["pad_token"] > widest:
        raise OptionError(f"pad_token must be at most {widest}, which the slots can hold, got {pack['pad_token']}")
    return PackPlan(
        tuple(numbers), pack["length"], pack["strategy"], pack["last_row"], pack["pad_token"], plan.batch_size,
        pack["balance"],
        tuple(ragged),
    )  # fmt: skip


def _is_sequence(declared: InputType) -> bool:
    return declared.seq_type != SequenceType.NO_SEQUENCE


def _is_packable(declared: InputType) -> bool:
    return declared.seq_type == SequenceType.SEQUENCE and declared.type in (DataType.Index, DataType.Dense)


def _slot_number(slots: Slots, slot: str | int, name: str, suits: Callable[[InputType], bool], what: str) -> int:
    """Return the number of ``slot``, the value of the option ``name``. Raises OptionError if it does not suit."""
    try:
        number = slots.index(slot) if isinstance(slot, str) else range(len(slots))[slot]
    except (KeyError, IndexError) as error:
        raise OptionError(f"{name} must be a name or number of a slot of the stream, got {slot!r:.80}") from error
    if not suits(slots.types[number]):
        raise OptionError(f"{name} must be {what}, and {slots.label(number)} is {slots.types[number]!r}")
    return number
