"""F35: process() draws from the global random generators, and everybody is killed and goes on."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from random import Random
from typing import Any

import pydp2

from .bench import Bench, workers_of
from .case import Event, Fault, Report, Schedule
from .data import sign_batch
from .trainers_die import BATCH, PASSES, Legs, a_trainer

CODE = """
import random
import numpy as np
from pydp2 import *
IMPORT_TORCH

def hook(settings, counts, **kwargs):
    settings.counts = counts

@provider(
    input_types={"name": integer_value(1 << 62), "words": integer_value_sequence(1 << 40)}, init_hook=hook,
    pool_size=POOL,
)
def process(settings, filename):
    file = int(filename)
    for y in range(settings.counts[file]):
        words = [random.getrandbits(39) for _ in range(random.randrange(3))]
        words += (np.random.normal(size=np.random.randint(3)) ** 2 * (1 << 20)).astype(int).tolist()
        words += [int(random.gauss(1 << 30, 1000)), int(np.random.normal(1 << 30, 1000))]
        DRAW_FROM_TORCH
        yield {"name": file << 32 | y, "words": words}
"""
TORCH = "words += torch.randint(1 << 39, (int(torch.randint(3, ())),)).tolist()"


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """The trainer is killed at some steps, and its service with it, each time with another number of workers; in a pass
    after that, workers are killed at some batches."""
    scale = 1 if size == "quick" else 8
    counts = [random.choice([0, 1, 37, 300, 411]) * scale for _ in range(16)]
    counts[0] = 300 * scale
    workers = [1, 2, 3, 8]
    random.shuffle(workers)
    batches = -(-sum(counts) // BATCH)
    legs, kills = (3, 3) if size == "quick" else (12, 20)
    events = [Event("trainer", random.randint(3, max(4, batches // 2)), random.random()) for _ in range(legs)]
    at = sorted(random.sample(range(1, batches - 1), min(kills, batches - 2)))
    events += [Event("worker", n, random.random()) for n in at]
    return {
        "counts": counts,
        "pool_size": random.choice([-1, 300 * scale]),
        "workers": workers,
    }, events


def play(bench: Bench, schedule: Schedule) -> Report:
    """Every batch is that of one worker that nobody disturbs."""
    setup = schedule.setup
    has_torch = importlib.util.find_spec("torch") is not None
    code = CODE.replace("IMPORT_TORCH", "import torch" if has_torch else "")
    code = code.replace("DRAW_FROM_TORCH", TORCH if has_torch else "").replace("POOL", str(setup["pool_size"]))
    provider = bench.folder / "draws.py"
    provider.write_text(code)
    files, address = [str(n) for n in range(len(setup["counts"]))], f"{provider}:process"
    job = {"batch_size": BATCH, "seed": schedule.seed}
    args = {"counts": setup["counts"]}

    lines: list[str] = []
    with pydp2.load(files, address, args=args, workers=1, **job) as data:  # type: ignore[arg-type]
        for _ in range(PASSES):
            lines += [_line(batch) for batch in data]
    batches = sum(line.startswith("0 ") for line in lines)

    legs, kills = Legs(bench.folder, lines, batches), 0
    for leg, event in enumerate([*(event for event in schedule.events if event.what == "trainer"), None]):
        workers = setup["workers"][leg % 4]  # many that import torch for themselves take minutes
        service = {"args": args, "workers": workers, "start": "spawn" if workers == 2 else "auto"}
        path = legs.begin({
            "address": None, "files": files, "provider": address, "job": job, "service": service, "every": 3,
            "loads": 1, "die_at": -1 if event is None else event.at,
            "before_saving": event is not None and event.which < 0.5,
        })  # fmt: skip
        kills += _leg(legs, path)
    kills += _killed_workers(bench, schedule, files, address, lines[:batches])
    notes = [] if has_torch else ["torch is not installed: nothing was drawn from it"]
    return Report(kills, {"steps in all legs": legs.steps}, notes)


def _line(batch: pydp2.Batch) -> str:
    return f"{batch.pass_id} {batch.index} {sign_batch(batch)} {batch.pool_weight}"


def _leg(legs: Legs, path: Path) -> bool:
    """One process of the trainer; True if it was killed."""
    with a_trainer(path) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), f"the trainer ended with {process.returncode}: {said[-2000:]}"
    legs.end(killed=process.returncode != 0)
    return process.returncode != 0


def _killed_workers(bench: Bench, schedule: Schedule, files: list[str], address: str, wanted: list[str]) -> int:
    """A pass in which workers are killed; how many."""
    at = {int(event.at): event.which for event in schedule.events if event.what == "worker"}
    kills = 0
    args = {"counts": schedule.setup["counts"]}
    with (
        pydp2.launch(files, address, args=args, workers=3) as service,
        service.connect(batch_size=BATCH, seed=schedule.seed) as data,
    ):
        for batch in data:
            assert _line(batch) == wanted[batch.index], f"batch {batch.index} is another one after {kills} kills"
            active = [worker["pid"] for worker in workers_of(service) if worker["active"]]
            if batch.index in at and active:
                try:
                    os.kill(active[int(at[batch.index] * len(active))], signal.SIGKILL)
                except ProcessLookupError:
                    continue
                kills += 1
    return kills


FAULTS = (
    Fault(
        "F35", "process() draws from random, numpy and torch; trainer and workers are killed",
        "bit-equal for every number of workers", draw, play, 300.0,
    ),
)  # fmt: skip
