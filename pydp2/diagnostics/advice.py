"""Explain the bottleneck of a stream of samples and the remedy, in one sentence, from figures of ``pydp2 bench``.

The functions compute texts from figures, without clock or IO. Stages build on each other, so the cost of a stage is the
time that it takes beyond the stage before. Rates are samples per second of all workers together.

Measurements vary, and the stages are measured one after another. If a stage is much faster than one before it, which
does less, they contradict each other, and there is no advice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydp2.data.native import COMPILED, PackingForm
from pydp2.errors import count_text
from pydp2.system.late_rank import LITTLE

_WAITS = 0.5  # share of its time that a generator must wait for waiting to count as the cause
_LARGE = 1 << 20  # bytes of a large sample
_STREAM = 5e8  # bytes per second
_FEW_ROWS = 32  # rows of a small batch
TOLERANCE = 1.5
"""Largest ratio of the rate of a stage to that of one that does less, before the two contradict each other."""
_FED = 0.6  # least share of its samples that a trainer must get; with fewer it would have to wait
STAGES = ("process", "packing", "transport", "pool")
_RATES = ("process() alone", "checks and packing", "transport", "order and pool")
_AGAIN = (
    "something else used the machine meanwhile, or files came from the disk first and from memory later: run it again, "
    "with nothing beside it and for longer (seconds)"
)
_CACHE = "let it be read once (cache=CacheType.CACHE_PASS_IN_MEM)"


@dataclass(frozen=True)
class Slot:
    """Slot that takes longest to pack: its name ("slot pixel"), the form of its values, their dtype if they are arrays
    (otherwise ''), the declared dtype, and the share of values that take the slow path."""

    name: str
    form: str
    given: str
    dtype: str
    unsure: float


@dataclass(frozen=True)
class Measured:
    """Figures of a bench. Rates: of the generator alone (``bare``), with checks and packing (``packed``), of delivery
    in any order (``moved``), of delivery in order from the pool (``pooled``; 0: no batch came).

    ``busy``: share of a core that a worker uses while it has a core; ``waits``: share of the time that its generator
    waits for something other than a core. ``step``: seconds of a training step, None: not stated; ``trainer_waits``:
    share of the time that a trainer with this step waits. ``largest``: share of the largest file in all bytes, None:
    not known. ``cached``: rate of later passes if the provider caches.
    """

    cores: int
    workers: int
    files: int
    bare: float
    packed: float
    moved: float
    pooled: float
    busy: float = 1.0
    waits: float = 0.0
    batch_size: int = 128
    step: float | None = None
    trainer_waits: float | None = None
    sample_bytes: float = 0.0
    slot: Slot | None = None
    packing: PackingForm = COMPILED
    largest: float | None = None
    cached: float | None = None
    filled: int = 0
    seconds: float = 0.0

    @property
    def units(self) -> int:
        """Number of workers that have a file to read."""
        return max(1, min(self.workers, self.files))


@dataclass(frozen=True)
class Advice:
    """Bottleneck and remedy.

    ``cause``: one of "trainer", "uneven", "filling", "files", "waiting", "process", "packing", "transport", "pool", or
    "unclear" if the stages contradict each other; the sentence names them.
    ``workers``: number of workers that would feed the stated step, even if this machine cannot run so many; None: no
    step was stated, or it is fed, or more workers would not help."""

    cause: str
    sentence: str
    workers: int | None = None


def shares(measured: Measured) -> dict[str, float]:
    """Return the share of each stage in the time of a delivered sample; the shares add up to 1.

    Measurements vary, so a stage may seem slower than a later one, which does more. Then it counts with the rate of the
    later one.
    """
    rates = [measured.bare, measured.packed, measured.moved, measured.pooled]
    if rates[-1] <= 0:
        return dict.fromkeys(STAGES, 0.0)
    reached = [rates[-1] / max(rates[i:]) for i in range(len(rates))]  # 1 is the time of a delivered sample
    return {name: now - before for name, now, before in zip(STAGES, reached, [0.0, *reached], strict=False)}


def contradiction(measured: Measured) -> str | None:
    """Return text with the two stages that contradict each other the most; None if none do.

    Two stages contradict each other if the later one, which does more, is more than :data:`TOLERANCE` times as fast.
    A trainer contradicts the stage before it if it hardly waits, and that stage gives far less than the trainer takes.
    """
    rates = list(zip(_RATES, (measured.bare, measured.packed, measured.moved, measured.pooled), strict=True))
    pairs = [(before, after) for i, before in enumerate(rates) for after in rates[i + 1 :] if before[1] > 0]
    (name, less), (later, more) = max(pairs, key=lambda pair: pair[1][1] / pair[0][1], default=(("", 1.0), ("", 0.0)))
    if more > TOLERANCE * less:
        return (
            f"no advice, because the stages contradict each other: {later} gives {_rate(more)}, {more / less:.1f} "
            f"times as many as {name}, which does less; {_AGAIN}"
        )
    step, waits = measured.step, measured.trainer_waits
    if step is None or waits is None or waits > LITTLE or measured.pooled * step >= _FED * measured.batch_size:
        return None
    return (
        f"no advice, because the stages contradict each other: with a {_step(step)} the trainer takes "
        f"{_rate(measured.batch_size / step)} and waits only {_percent(waits)} of its time, but order and pool give "
        f"{_rate(measured.pooled)}; {_AGAIN}"
    )


def workers_for(measured: Measured, step: float) -> int:
    """Return the number of workers that would feed a trainer whose step takes ``step`` seconds, if there were enough
    cores.

    A worker is assumed to deliver as much as one of the present workers; of these, only as many count as the cores can
    run at once.
    """
    at_once = max(1.0, min(measured.units, measured.cores / max(measured.busy, 1e-6)))
    return max(1, math.ceil(measured.batch_size / step / (measured.pooled / at_once) - 1e-9))


def most_workers(measured: Measured) -> int:
    """Return the number of workers, as busy as the present ones, that the cores can run at once."""
    return max(1, math.floor(measured.cores / max(measured.busy, 1e-6) + 1e-9))


def advise(measured: Measured) -> Advice:
    """Return the part that limits the stream, and the option to change."""
    if measured.pooled <= 0:
        return _filling(measured)
    if (why := contradiction(measured)) is not None:
        return Advice("unclear", why)
    step = measured.step
    if step is not None and measured.trainer_waits is not None:
        ahead = measured.pooled * step / measured.batch_size
        if measured.trainer_waits <= LITTLE:
            return Advice("trainer", _trainer(measured, step, ahead))
        if ahead >= 1:
            return Advice("uneven", _uneven(measured, ahead))
    parts = shares(measured)
    cause = max(parts, key=lambda name: parts[name])
    part = f"{parts[cause]:.0%}".replace("%", " %")
    if measured.files < measured.workers and cause in ("process", "pool"):
        cause, sentence, more = "files", _files(measured), True
    elif cause == "process":
        cause = "waiting" if measured.waits > _WAITS else "process"
        sentence, more = (_waiting(measured) if cause == "waiting" else _process(measured, part)), True
        if _one_long(measured):
            sentence += (
                f"; and split the file with {_percent(measured.largest or 0.0)} of all bytes: one worker reads it"
            )
    elif cause == "packing":
        sentence, more = _packing(measured, part), False
    elif cause == "transport":
        sentence, more = _transport(measured, part), False
    else:
        sentence, more = _pool(measured, part), False
    if measured.cached is not None:
        sentence += f"; that is the first pass, later ones come out of the cache with {_rate(measured.cached)}"
    return Advice(cause, sentence, workers_for(measured, step) if more and step is not None else None)


# -- words -------------------------------------------------------------------------------------------------------------
def _rate(rate: float) -> str:
    return f"{rate:,.0f} samples/s"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _step(step: float) -> str:
    return f"{step * 1000:g} ms step"


def _count(number: int, word: str) -> str:
    return count_text(number, word, form=",")


def _trainer(m: Measured, step: float, ahead: float) -> str:
    waits = _percent(m.trainer_waits or 0.0)
    faster = f"samples could come {ahead:.1f} times as fast" if ahead >= 1.05 else "samples come just as fast"
    return f"the trainer is the limit: with a {_step(step)} it waits {waits} of its time, {faster}; nothing to change"


def _uneven(m: Measured, ahead: float) -> str:
    return (
        f"the trainer waits {_percent(m.trainer_waits or 0.0)} of its time although samples come {ahead:.1f} times as "
        "fast as it takes them, because they come unevenly: raise prefetch, or have files of more even length"
    )


def _filling(m: Measured) -> Advice:
    rate = m.packed or m.bare
    had = f"no batch came within {m.seconds:.0f} s, in which {_count(m.filled, 'sample')} of the pool were there"
    return Advice(
        "filling",
        f"{had}: batches are drawn once the pool is full, and the workers give {_rate(rate)}; set a smaller pool_size "
        "in @provider, or measure for longer (seconds)",
    )


def _files(m: Measured) -> str:
    idle = m.workers - m.files
    return (
        f"the list has {_count(m.files, 'file')} for {_count(m.workers, 'worker')}, and a file is read by one worker: "
        f"{idle} {'has' if idle == 1 else 'have'} nothing to read; split the files{_needed(m, ', and ', '')}"
    )


def _needed(m: Measured, before: str, after: str) -> str:
    """Return text with the number of workers that would feed the step; '' if no step is stated."""
    if m.step is None:
        return ""
    need, most = workers_for(m, m.step), most_workers(m)
    if need <= most:
        return f"{before}{_count(need, 'worker')} would feed your {_step(m.step)}{after}"
    of_cores = f"{most} that the " if most > m.cores else ""  # workers that wait share a core
    return (
        f"{before}your {_step(m.step)} would need {_count(need, 'worker')}, more than the {of_cores}"
        f"{_count(m.cores, 'core')} here can run{after}"
    )


def _waiting(m: Measured) -> str:
    begin = (
        f"reading in process() waits for the disk, the network or another process {_percent(m.waits)} of the time: "
        "more workers help, also more than there are cores"
    )
    if m.step is not None:
        return begin + _needed(m, "; ", "")
    return f"{begin}; raise workers from {m.workers}, {_rate(m.pooled)} come now"


def _process(m: Measured, part: str) -> str:
    begin = f"parsing in process() takes {part} of a worker"
    most = most_workers(m)
    if m.step is not None:
        need = workers_for(m, m.step)
        rest = "" if need <= most else f": make process() faster, or {_CACHE}"
        return begin + _needed(m, "; ", rest)
    if most > m.workers:
        return f"{begin}, which gives {_rate(m.pooled)}; more workers help, up to {most} have a core here"
    cores = "the only core is" if m.cores == 1 else f"all {m.cores} cores are"
    return f"{begin}, which gives {_rate(m.pooled)}, and {cores} taken: make process() faster, or {_CACHE}"


def _packing(m: Measured, part: str) -> str:
    begin = f"checks and packing take {part} of a worker"
    slot = m.slot
    if slot is None:
        return f"{begin}: process() itself is so quick that little can be gained"
    what = f"{begin}, most of it {slot.name}, whose values come as {slot.form}"
    if slot.unsure > 0.5:
        better = f"yield lists of plain numbers, or {slot.dtype} arrays"
        return f"{what}, a form that has to be looked at piece by piece: {better}"
    if not m.packing.is_compiled:
        return f"{what}; packing runs {m.packing.text}{m.packing.remedy and f': {m.packing.remedy}'}"
    if slot.given and slot.given != slot.dtype:
        return f"{what}, which have to be converted: yield {slot.dtype} arrays"
    if slot.given:
        return f"{what}: process() is so quick that only many samples in one yield (pydp2.rows) are quicker"
    return f"{what}: yield {slot.dtype} arrays, where you have them, in place of lists"


def _transport(m: Measured, part: str) -> str:
    begin = f"moving samples to the trainer takes {part} of the time"
    if m.sample_bytes >= _LARGE or m.sample_bytes * m.moved >= _STREAM:
        size = f"{m.sample_bytes / 1e6:.1f} MB" if m.sample_bytes >= 1e5 else f"{m.sample_bytes / 1e3:.1f} kB"
        return (
            f'{begin}, with {size} a sample: yield less (dtype="uint8", smaller pictures), and convert in the trainer'
        )
    if m.batch_size < _FEW_ROWS:
        return f"{begin}, in batches of {m.batch_size}: ask for larger ones"
    if m.workers >= m.cores > 1:
        return (
            f"{begin}: {_count(m.workers, 'worker')} on {m.cores} cores leave none for server and trainer; try "
            f"workers={m.cores - 1}, or a larger batch_size than {m.batch_size}"
        )
    return f"{begin}: process() is so quick that the server is the limit; try a larger batch_size than {m.batch_size}"


def _one_long(m: Measured) -> bool:
    """Return True if one file is much longer than a worker's part of the list."""
    return m.largest is not None and m.largest * m.units > 1.5


def _pool(m: Measured, part: str) -> str:
    begin = f"order and pool take {part} of the time"
    if _one_long(m):
        return (
            f"{begin}, because one file has {_percent(m.largest or 0.0)} of all bytes and is read by one worker, while "
            "the others have nothing left: split it"
        )
    if m.files < 4 * m.workers:
        few = f"{_count(m.files, 'file')} keep {_count(m.workers, 'worker')} no longer busy"
        return f"{begin}: at the end of a pass {few}; split the files"
    return (
        f'{begin}: order="relaxed" would give {_rate(m.moved)}, in no promised order; a smaller pool_size, or more '
        "memory_limit for reading ahead, may help as well"
    )
