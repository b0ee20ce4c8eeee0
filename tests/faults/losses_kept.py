"""F36: what a pass loses is written down once, in order, also when the server is killed and goes on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random
from typing import Any

import pydp2

from .bench import Bench
from .case import Event, Fault, Report, Schedule
from .data import Dataset, sign_batch
from .server_dies import Watched

BATCH = 32
PASSES = 3
LOSES = (
    "how = settings.more.get(f'{file} {y}')\n"
    "        if how == 'bad':\n"
    "            yield {'name': -1, 'words': []}\n"
    "            continue\n"
    "        if how == 'raises':\n"
    "            raise ValueError('at once')"
)


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Kills after so many batches; bad samples in every file, and files that end early."""
    scale = 1 if size == "quick" else 4
    counts = [random.choice([0, 1, 37, 200, 311]) * scale for _ in range(10)]
    counts[0] = 300 * scale
    bad = [
        [file, y, "bad"]
        for file, count in enumerate(counts)
        for y in sorted(random.sample(range(count), min(count // 2, random.choice([0, 1, 5, 20]))))
    ]
    ends = [[file, random.randrange(counts[file]), "raises"] for file in random.sample(range(10), 3) if counts[file]]
    known = {(file, y): how for file, y, how in [*bad, *ends]}
    kills = 4 if size == "quick" else 12
    batches = sum(counts) // BATCH * PASSES
    setup = {
        "counts": counts, "losses": [[file, y, how] for (file, y), how in known.items()],
        "pool_size": random.choice([-1, 200 * scale]), "workers": random.choice([1, 2, 3]),
        "cached": random.random() < 0.3, "pause": random.choice([0.0, 0.003]),
    }  # fmt: skip
    return setup, [Event("kill", random.randint(1, max(1, batches // kills)), random.random()) for _ in range(kills)]


def play(bench: Bench, schedule: Schedule) -> Report:
    """The quarantine, and the batches, are those of a service to which nothing happens."""
    setup = schedule.setup
    lost = {f"{file} {y}": how for file, y, how in setup["losses"]}
    arguments = "check=True, check_fail_continue=True"
    arguments += ", cache=CacheType.CACHE_PASS_IN_MEM" * setup["cached"]
    data = Dataset(tuple(setup["counts"]), setup["pool_size"], arguments, LOSES, lost)
    kept = bench.folder / "kept.jsonl"
    with pydp2.launch(
        data.files, data.write(bench.folder), args=data.args(), workers=2, on_error="skip", quarantine=kept
    ) as service:
        wanted = _batches(service, schedule, ())
    stage = Watched(bench, data, workers=setup["workers"], on_error="skip", quarantine=bench.folder / "went_on.jsonl")
    try:
        seen = _batches(stage.service, schedule, schedule.events, stage)
    finally:
        stage.close()
    assert seen == wanted, f"{len(seen)} batches came, {len(wanted)} without kills"
    right, found = lines(kept), lines(bench.folder / "went_on.jsonl")
    assert len(right) == len(set(right)), "a loss is written down twice without kills"
    twice = sorted({line for line in found if found.count(line) > 1})
    missing, others = sorted({*right} - {*found}), sorted({*found} - {*right})
    assert found == right, f"twice: {twice[:3]}; missing: {missing[:3]}; not lost: {others[:3]}; or another order"
    return Report(stage.kills, {"losses": len(right), "batches": len(seen)})


def lines(quarantine: Path) -> list[str]:
    """What stands in it, each loss with all that is said of it, in its order."""
    return [json.dumps(json.loads(line), sort_keys=True) for line in quarantine.read_text().splitlines()]


def _batches(
    service: pydp2.Service, schedule: Schedule, events: tuple[Event, ...], stage: Watched | None = None
) -> list[str]:
    """All batches of all passes; ``stage`` is killed and started again after so many as ``events`` say."""
    seen: list[str] = []
    due = [*events]
    at = int(due[0].at) if due else -1
    with service.connect(batch_size=BATCH, seed=schedule.seed, lease=20.0) as client:
        for _ in range(PASSES):
            for batch in client:
                seen.append(f"{batch.pass_id} {batch.index} {sign_batch(batch)} {batch.pool_weight}")
                time.sleep(schedule.setup["pause"])
                if stage is not None and due and len(seen) >= at:
                    time.sleep(due.pop(0).which * 0.02)
                    stage.kill()
                    stage.start()
                    at = len(seen) + (int(due[0].at) if due else 0)
    return seen


FAULTS = (
    Fault(
        "F36", "kill -9 of the server while samples and files are lost", "each loss once, in order", draw, play, 200.0
    ),
)
