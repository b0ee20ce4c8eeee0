"""F10 and F11: samples of any size, and generators that raise or yield what does not fit."""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import Any

import numpy as np

import pydp2
from pydp2.errors import BadSample, ProviderError, SampleTooLarge

from ..provider_code import yields
from ..runs import one_pass
from .bench import Bench, caught
from .case import Event, Fault, Report, Schedule
from .data import Judge, expected, nothing_but

MB = 1_000_000

# -- F10 ---------------------------------------------------------------------------------------------------------------
LARGE = """
import numpy as np

@provider(input_types=[integer_value(1000), dense_vector({dim})], pool_size=2)
def process(settings, filename):
    for y in range({count}):
        yield y, np.full({dim}, y, "f")
"""
TINY = """
@provider(input_types=[integer_value(1 << 40)], pool_size=10_000)
def process(settings, filename):
    first = int(filename) * {count}
    yield from range(first, first + {count})
"""


def draw_sizes(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Full: one sample of a gigabyte, ten million tiny ones, a batch beyond the budget."""
    return {
        "floats": 4_000_000 if size == "quick" else 250_000_000, "tiny": 100_000 if size == "quick" else 10_000_000,
        "workers": random.choice([1, 2, 3]), "shuffle": random.random() < 0.5,
    }, []  # fmt: skip


def play_sizes(bench: Bench, schedule: Schedule) -> Report:
    """Each is served one at a time, or refused by one clear error; none of them stops the pass without a word."""
    setup = schedule.setup
    how: dict[str, Any] = {"workers": setup["workers"], "shuffle": setup["shuffle"], "seed": schedule.seed}
    each = setup["floats"] * 4
    address = bench.write("large", LARGE.format(dim=setup["floats"], count=3))
    # larger than all that may be read ahead: one at a time
    with pydp2.load(["a", "b"], address, batch_size=1, memory_limit=8 * MB, pool_bytes=3 * each, **how) as data:
        seen = sorted((int(batch[0][0]), float(batch[1][0, -1])) for batch in data)
    assert seen == [(y, float(y)) for y in (0, 0, 1, 1, 2, 2)], f"of six large samples came {seen}"
    # larger than the pool: one error that says so
    found = one_pass(["a"], address, memory_limit=8 * MB, pool_bytes=each // 2, **how)
    assert isinstance(found.error, SampleTooLarge), f"too large a sample gave {found.error!r}"
    assert "file a, sample 0" in found.text, found.text
    # a batch larger than everything that may be read ahead
    rows, dim = 256, setup["floats"] // 400
    wide = bench.write("wide", LARGE.format(dim=dim, count=rows))
    with pydp2.load(["a"], wide, batch_size=rows, memory_limit=2 * MB, pool_bytes=1 << 30, **how) as data:
        (batch,) = list(data)
    assert sorted(batch[0].tolist()) == list(range(rows)), "a batch beyond the budget lost samples"
    # a great many tiny ones
    files, count = 10, setup["tiny"] // 10
    times = np.zeros(files * count, np.int8)
    with pydp2.load(
        [*map(str, range(files))], bench.write("tiny", TINY.format(count=count)), batch_size=5000, **how
    ) as data:
        for batch in data:
            np.add.at(times, batch[0], 1)
    assert (times == 1).all(), f"of {files * count} tiny samples {int((times != 1).sum())} did not come once"
    return Report(0, {"MB of the largest sample": each / MB, "tiny samples": files * count})


# -- F11 ---------------------------------------------------------------------------------------------------------------
WRONG = {  # what stands in place of a sample: the error, and what its text must hold
    "raise ValueError('a mistake')": (ProviderError, "ValueError: a mistake"),
    "raise Odd('one', 2, lambda: 3)": (ProviderError, "Odd: "),
    "raise Base('below')": (ProviderError, "Base: below"),
    "raise SystemExit(3)": (ProviderError, "SystemExit: 3"),
    "raise KeyboardInterrupt": (ProviderError, "KeyboardInterrupt"),
    "open('/nowhere/at/all')": (FileNotFoundError, "/nowhere/at/all"),
    "yield {'name': 'a text', 'words': []}": (BadSample, "slot name: expected an int"),
    "yield {'name': -1, 'words': []}": (BadSample, "got -1"),
    "yield {'name': 1.5, 'words': []}": (BadSample, "got 1.5"),
    "yield {'name': 1, 'words': [1000]}": (BadSample, "slot words: expected an int in [0, 1000), got 1000"),
    "yield {'name': 1, 'words': [float('nan')]}": (BadSample, "slot words"),
    "yield {'name': 1, 'words': 7}": (BadSample, "slot words"),
    "yield {'name': 1}": (BadSample, "slot words"),
    "yield None": (BadSample, "got None"),
}
MORE = """
class Odd(Exception):
    def __init__(self, one, two, three):
        super().__init__(one, two)
        self.three = three

class Base(BaseException):
    pass

"""
NAN = yields("dense_vector(2)", "[[float('nan'), float('inf')]]")


def draw_wrong(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Which ways to be wrong, each at a sample of a file."""
    ways = random.sample(list(WRONG), 3) if size == "quick" else list(WRONG)
    return {"workers": random.choice([1, 2, 3])}, [Event(way, random.randrange(200), random.random()) for way in ways]


def play_wrong(bench: Bench, schedule: Schedule) -> Report:
    """The error names file, sample, slot and value and carries the traceback; skipped, the rest is exact."""
    counts, at_once = (200,) * 12, {"workers": schedule.setup["workers"], "batch_size": 64, "seed": schedule.seed}
    for number, event in enumerate(schedule.events):
        file, y = int(event.which * len(counts)), int(event.at)
        data = nothing_but(counts, file, y, event.what)
        address = data.write(bench.folder, f"faulty{number}")  # another module each time: replay imports it here
        module = bench.folder / f"faulty{number}.py"
        module.write_text(module.read_text().replace("def hook", MORE + "def hook", 1))
        kind, text = WRONG[event.what]
        with pydp2.load(data.files, address, args=data.args(), **at_once) as client:
            error = caught(partial(list, client))
        told = str(error)
        assert isinstance(error, kind), f"{event.what} gave {error!r}"
        assert told.startswith(f"file file-{file:05d}, sample {y}"), f"{event.what}: {told[:200]}"
        assert text in told, f"{event.what}: {told}"
        assert isinstance(error, BadSample) or module.name in told, f"{event.what} without a traceback: {told}"
        judge = Judge(expected(counts, data.pool_size, 64, schedule.seed, ends=((file, y),)))
        losses = bench.folder / "losses.jsonl"
        losses.unlink(missing_ok=True)
        with pydp2.load(
            data.files, address, args=data.args(), on_error="skip", quarantine=str(losses), **at_once
        ) as client:
            judge.all(client)
        (line,) = [json.loads(text) for text in losses.read_text().splitlines()]
        assert (line["file"], line["y"]) == (f"file-{file:05d}", y), f"{event.what} in quarantine: {line}"
        if event.what != "raise KeyboardInterrupt":  # in this process it is the user's own
            (verdict,) = pydp2.replay(losses, address, args=data.args()).verdicts
            assert verdict.verdict == "still bad", f"{event.what} when it is run again: {verdict}"
    with pydp2.load(["f"], bench.write("nan", NAN), batch_size=1) as client:
        (batch,) = list(client)
    assert np.isnan(batch[0][0, 0]), "a NaN did not pass"
    return Report(0, {"ways": len(schedule.events)})


FAULTS = (
    Fault(
        "F10", "huge samples, tiny samples, huge batches", "one clear error or one at a time; no deadlock", draw_sizes,
        play_sizes, 900.0,
    ),
    Fault(
        "F11", "generators raise and yield what does not fit", "file, sample, slot, value, traceback; the rest exact",
        draw_wrong, play_wrong, 300.0,
    ),
)  # fmt: skip
