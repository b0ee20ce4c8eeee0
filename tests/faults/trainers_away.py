"""F37: a trainer is away for longer than its lease while others load a state; it comes back and goes on."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pydp2

from .bench import Bench
from .case import Event, Fault, Report, Schedule
from .data import Dataset
from .job_trainers import Given, JobTrainers, Trainer

BATCH = 32
PASSES = 2
LEASE = 1.0


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Who is away at which step, and who loads a state at which."""
    scale = 1 if size == "quick" else 3
    counts = [random.choice([0, 1, 37, 200, 311]) * scale for _ in range(10)]
    counts[0] = 300 * scale
    share = random.choice(["dynamic", "ranks"])
    setup = {
        "counts": counts, "pool_size": random.choice([-1, 300 * scale]), "share": share,
        "trainers": random.choice([2, 3]), "last_batch": "keep", "shuffle": True, "cached": False, "buckets": 0,
        "raising": [], "every": random.choice([1, 4]), "prefetch": random.choice([1, 2, 8]),
    }  # fmt: skip
    each = sum(counts) // BATCH * PASSES // int(setup["trainers"])
    events = 3 if size == "quick" else 10
    kinds = ["away", "load", *(random.choice(["away", "load"]) for _ in range(events - 2))]
    return setup, [Event(what, random.randint(1, max(2, each // 2)), random.random()) for what in kinds]


def play(bench: Bench, schedule: Schedule) -> Report:
    """Each batch once, as the oracle says, at its trainer; only the batch that a trainer was away with may have gone to
    another one, too. Where the machine holds a trainer up for so long, it is away as well."""
    setup = schedule.setup
    data = Dataset(tuple(setup["counts"]), setup["pool_size"])
    job: dict[str, Any] = {"batch_size": BATCH, "seed": schedule.seed, "prefetch": setup["prefetch"], "lease": LEASE}
    due: dict[int, list[Event]] = {who: [] for who in range(setup["trainers"])}
    for event in sorted(schedule.events, key=lambda one: one.at):
        due[int(event.which * len(due))].append(event)
    met: list[str] = []

    def act(me: Trainer, given: Given) -> bool:
        mine = due[me.who]
        if not mine or me.steps < mine[0].at:
            return False
        event = mine.pop(0)
        met.append(event.what)
        if event.what == "load":
            return True
        time.sleep(LEASE * (1.2 + event.which))
        return False

    with pydp2.launch(data.files, data.write(bench.folder), args=data.args(), workers=2) as service:
        trainers = JobTrainers(
            service.address, job, setup["share"], setup["trainers"], PASSES, setup["every"], pause=0.002, act=act
        )
        trainers.end(90.0)
        if setup["share"] == "dynamic":
            trainers.handed_on |= trainers.held_long
        batches = trainers.judge(data, schedule.seed, setup)
    return Report(0, {"batches": batches, "away": met.count("away"), "loads": met.count("load")}, [setup["share"]])


FAULTS = (
    Fault("F37", "a trainer away for longer than its lease, states loaded", "each batch once", draw, play, 200.0),
)
