"""Measure each stage between files and trainer, and advise which one limits the others and what to change."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Unpack

from pydp2.api import machine
from pydp2.api.service import require_allowed_process
from pydp2.api.sources import Files, Source, resolve_source
from pydp2.data.native import packing_form
from pydp2.diagnostics.advice import Advice, Measured, Slot, advise, shares
from pydp2.diagnostics.local_provider import provider_spec
from pydp2.diagnostics.provider_bench import ProviderRates, measure_alone
from pydp2.diagnostics.provider_bench_loop import LoopCounts
from pydp2.diagnostics.service_bench import ServiceRates, largest, run_service
from pydp2.errors import Error, OptionError
from pydp2.options.tables import (
    JOB_OPTIONS,
    SERVICE_OPTIONS,
    LoadChoices,
    check_keywords,
    job_options,
    service_options,
    takes,
)
from pydp2.providers import Provider, address_of
from pydp2.providers.program_state import ProgramState

_SECONDS = 15.0
_LEAST = 1.0
_BATCH = 128
OF_OTHERS = ("bind", "state_dir", "quarantine", "connection", "keys", "worker_bind", "advertise", "metrics", "page")
"""Options without effect in a measurement: it leaves no files behind, and nobody else joins it or looks at it."""
_OWN = (*OF_OTHERS, "cache_dir", "cache_size")
_ONE_JOB = ("order", "share")


@dataclass(frozen=True)
class Stage:
    """Rate of one stage. ``rate``: samples per second up to this stage; ``share``: share of the stage in the time of a
    sample, beyond the stage before, None if it has no meaning; ``note``: other observations."""

    name: str
    rate: float
    share: float | None
    note: str = ""


@dataclass(frozen=True)
class Bench:
    """Result of :func:`bench`. ``first_batch``: seconds from the beginning of a pass to its first batch, on a running
    service; ``launched``: seconds from the launch of the service; None: no batch came. ``advice``: the cause, the
    sentence, and the number of workers for the stated step. ``crowded``: share of the time in which the generators
    could have run but other processes had the core (also other generators, if there are more of them than cores)."""

    stages: list[Stage]
    first_batch: float | None
    launched: float | None
    workers: int
    cores: int
    batch_size: int
    crowded: float
    advice: Advice
    measured: Measured

    def plain(self) -> dict[str, Any]:
        """Return the result as dicts, lists and numbers."""
        return {
            "stages": [asdict(stage) for stage in self.stages],
            "first_batch_seconds": self.first_batch,
            "launch_to_first_batch_seconds": self.launched,
            "workers": self.workers,
            "cores": self.cores,
            "batch_size": self.batch_size,
            "crowded": self.crowded,
            "cause": self.advice.cause,
            "sentence": self.advice.sentence,
            "workers_needed": self.advice.workers,
            "measured": asdict(self.measured),
        }


@takes(SERVICE_OPTIONS, JOB_OPTIONS)
def bench(  # noqa: PLR0913 - a public function, all by keyword
    files: Files | Source,
    provider: str | Provider | None = None,
    *,
    args: Mapping[str, Any] | None = None,
    is_train: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    seconds: float = _SECONDS,
    step_ms: float | None = None,
    progress: Callable[[str], None] | None = None,
    batch_size: int = _BATCH,
    **options: Unpack[LoadChoices],
) -> Bench:
    """Measure a provider alone, with checks and packing, with transport, with order and pool, and with a trainer.

    It reads a small list repeatedly, and of a large one only as much as fits the time. It leaves no files behind.

    ``files``, ``provider``, ``args``, ``is_train`` and ``root`` are those of :func:`pydp2.launch`.

    Args:
        seconds: seconds for all measurements together, without import, hook and the start of services.
        step_ms: milliseconds of a step of your trainer; None: there is no stage with a trainer.
        progress: called with the name of the next measurement.
        batch_size: as for :func:`pydp2.connect`.
        options: the other options of :func:`pydp2.load`. Options for files that stay after the end (``state_dir,
            quarantine, cache_dir``), options for other trainers (``bind, connection, keys, …``), ``order`` and
            ``share`` have no effect, and ``workers=0`` means the default.

    Raises:
        OptionError, OptionTypeError, ListError, AddressError: an argument is not valid.
        ProviderError, BadSample: the provider raised, or yielded a value that does not fit its slot.
        Error: there are no samples, or none came in time.
    """
    check_keywords(bench, options)
    require_allowed_process()
    seconds = _number("seconds", seconds, _LEAST)
    step = None if step_ms is None else _number("step_ms", step_ms, 0.001) / 1000
    given: dict[str, Any] = {**options, "batch_size": batch_size}
    service = {name: given[name] for name in SERVICE_OPTIONS if name in given and name not in _OWN}
    job = {name: given[name] for name in JOB_OPTIONS if name in given and name not in _ONE_JOB}
    chosen, batch_size = service_options(**service), job_options(**job).batch_size
    if chosen.workers == 0:  # the option of a service whose workers are on other hosts
        del service["workers"]
    served = resolve_source(files, provider, args, is_train, root)
    if not len(served.files):
        raise Error("the list is empty, so there is nothing to measure")
    cores = machine.cores()
    workers = chosen.workers or cores
    tell = progress or (lambda text: None)
    parts = _parts(seconds, step)

    program = ProgramState.of_this_program({address_of(served.provider): served.provider}).to_bytes()
    spec = provider_spec(served, chosen.input_order, program)
    units = min(workers, len(served.files))
    alone_for = partial(measure_alone, spec, served.files, units=units, seconds=parts[0] / 2)
    tell("process() alone, and with checks and packing")
    alone = alone_for()
    _rates(alone, parts[0] / 2)  # raises if there are no samples
    source = {"files": files, "provider": provider, "args": args, "is_train": is_train, "root": root}

    def served_for(index: int, **how: Any) -> ServiceRates:
        step = how.pop("step", None)
        given = job | how
        return run_service(source, service, given, seconds=parts[index], step=step, caches=alone.caches)

    tell("with transport to a trainer")
    moved = served_for(1, order="relaxed", shuffle=False, bucket_by=None, bucket_bounds=None, num_buckets=None)
    tell("with order and pool")
    pooled = served_for(2)
    trained: ServiceRates | None = None
    if step is not None and pooled.first is not None:
        tell(f"with a trainer whose step takes {step * 1000:g} ms")
        trained = served_for(3, step=step)
    tell("process() alone once more")  # because the load of the machine may have changed meanwhile
    alone += alone_for()
    bare, packed = _rates(alone, parts[0])
    measured = Measured(
        cores=cores,
        workers=workers,
        files=len(served.files),
        bare=bare,
        packed=packed,
        moved=moved.rate,
        pooled=pooled.rate,
        busy=_busy(alone),
        waits=_waits(alone.bare if alone.bare.samples else alone.first),
        batch_size=batch_size,
        step=step,
        trainer_waits=None if trained is None else trained.waited / max(trained.waited + trained.worked, 1e-9),
        sample_bytes=alone.nbytes / max(alone.packed.samples, 1),
        slot=_slowest(alone),
        packing=packing_form(),
        largest=largest(served.files, served.root),
        cached=pooled.cached,
        filled=pooled.filled,
        seconds=pooled.seconds,
    )
    return Bench(
        _stages(measured, trained),
        pooled.first,
        pooled.launched,
        workers,
        cores,
        batch_size,
        alone.is_crowded,
        advise(measured),
        measured,
    )


def _number(name: str, value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        raise OptionError(f"{name} must be a number from {least:g}, got {value!r:.80}")
    return float(value)


def _parts(seconds: float, step: float | None) -> list[float]:
    """Return the seconds for each measurement."""
    weights = (40, 25, 35) if step is None else (30, 20, 25, 25)
    return [seconds * weight / 100 for weight in weights]


def _rates(alone: ProviderRates, seconds: float) -> tuple[float, float]:
    """Return samples per second of all units, bare and packed. For a slow generator, there may be only the first
    samples."""
    bare, packed = alone.bare, alone.packed
    if not bare.samples:
        bare = alone.first + bare
    if not bare.samples:
        raise Error(
            f"process() gave no sample in {seconds:.1f} s: the files are empty, or it takes longer than that; raise "
            "seconds, or look with `pydp2 check`"
        )
    alone_rate = bare.samples / max(bare.wall, 1e-9) * alone.units
    return alone_rate, packed.samples / packed.wall * alone.units if packed.samples else alone_rate


def _busy(alone: ProviderRates) -> float:
    """Return the share of a core that a unit uses while it has a core."""
    total = alone.packed if alone.packed.samples else alone.first + alone.bare
    return max(0.001, min(1.0, total.cpu / max(total.wall - total.queued, total.cpu, 1e-9)))


def _waits(drawn: LoopCounts) -> float:
    """Return the share of the time in which a unit could have run but waited for something else."""
    free = max(drawn.wall - drawn.queued, 1e-9)
    return max(0.0, min(1.0, 1 - drawn.cpu / free))


def _slowest(alone: ProviderRates) -> Slot | None:
    if not alone.slots:
        return None
    slot = max(alone.slots, key=lambda cost: cost.seconds)
    name = slot.slot if slot.slot.startswith("slot ") else f"slot {slot.slot}"  # "slot 0" if there is no name
    return Slot(name, slot.form, slot.given, slot.dtype, slot.unsure)


def _stages(m: Measured, trained: ServiceRates | None) -> list[Stage]:
    parts = shares(m)
    known = m.pooled > 0
    waits = f"waits {m.waits:.0%}".replace("%", " %") if m.waits >= 0.05 else ""
    stages = [
        Stage("process() alone", m.bare, parts["process"] if known else None, waits),
        Stage("with checks and packing", m.packed, parts["packing"] if known else None),
        Stage("with transport", m.moved, parts["transport"] if known else None),
        Stage("with order and pool", m.pooled, parts["pool"] if known else None),
    ]
    if m.cached is not None:
        stages.append(Stage("later passes, cached", m.cached, None))
    if trained is not None and m.step is not None:
        note = f"the trainer waits {m.trainer_waits:.0%}".replace("%", " %")
        stages.append(Stage(f"with a step of {m.step * 1000:g} ms", trained.rate, None, note))
    return stages
