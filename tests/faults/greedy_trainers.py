"""A2 and A6: jobs that say that they have far more ranks than come, trainers that ask for far more than they read."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pydp2
from pydp2.options.tables import WORLD_LIMIT
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import BATCH_COST
from pydp2.system.process_memory import resident_bytes

from ..raw_trainer import RawTrainer, raw_trainers
from .bench import Bench
from .case import Event, Fault, Report, Schedule, Skip
from .data import Dataset, Judge, expected
from .trainers_die import BATCH, some_files

PASSES = 3
KEPT = 256 * 1024  # bytes: pool and prefetch of each greedy job, whose batches have one sample
GROWTH = 128 << 20  # bytes of memory that all of them may cost the service: each has a store and a queue


def draw_worlds(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """A2: each of them attaches before a batch of the honest trainer; ``which`` says as one of how many."""
    setup = some_files(random, size) | {"workers": random.choice([1, 2])}
    return setup, [Event("ranks", random.randint(0, 20), random.random()) for _ in range(12)]


def draw_credit(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """A6: each of them attaches, asks for everything and reads nothing; some begin again and again."""
    setup = some_files(random, size) | {"workers": random.choice([1, 2])}
    return setup, [
        Event(random.choice(["grants", "again", "back"]), random.randint(0, 20), random.random()) for _ in range(12)
    ]


def play(bench: Bench, schedule: Schedule) -> Report:
    """An honest trainer reads a few passes while others come; judge its stream, and what is cut for the others."""
    if sys.platform != "linux":
        raise Skip("the memory of a process is read from /proc")
    setup = schedule.setup
    data = Dataset(tuple(setup["counts"]), pool_size=setup["pool_size"])
    address = data.write(bench.folder)
    events = sorted(schedule.events, key=lambda event: event.at)
    refused = step = 0
    with (
        pydp2.launch(data.files, address, args=data.args(), workers=setup["workers"]) as service,
        service.connect(batch_size=BATCH, seed=schedule.seed, job="honest") as client,
        raw_trainers(service.address) as raw,
    ):
        before = resident_bytes(service.pid)
        for pass_id in range(PASSES):
            judge = Judge(expected(data.counts, data.pool_size, BATCH, schedule.seed, pass_id))
            for batch in client:
                judge.take(batch)
                step += 1
                while events and (events[0].at < step):
                    event = events.pop(0)
                    refused += not _greedy(raw(), event, len(events))
            judge.end()
        grown = resident_bytes(service.pid) - before
        jobs = service.stats()["jobs"]
    cut = {name: job["batches_in_pass"] for name, job in jobs.items() if name != "honest"}
    assert all(count <= KEPT // BATCH_COST + 2 for count in cut.values()), f"batches for who reads none: {cut}"
    assert grown < GROWTH, f"greedy trainers cost {grown >> 20} MiB"
    return Report(0, {"greedy": len(cut), "refused": refused, "MiB": grown / (1 << 20)})


def _greedy(trainer: RawTrainer, event: Event, number: int) -> bool:
    """It attaches as ``event`` says and asks for all; whether it was let in."""
    world = 1
    if event.what == "ranks":
        world = [1000, WORLD_LIMIT, WORLD_LIMIT + 1, 10**6, 2**61][int(event.which * 5)]
    options = {"batch_size": 1, "pool_bytes": KEPT, "prefetch_bytes": KEPT, "prefetch": 1 << 31}
    answer = trainer.attach(f"{event.what} {number}", int(event.which * min(world, 1000)), world, **options)
    if world > WORLD_LIMIT:
        assert isinstance(answer, m.Refused), f"world_size={world}: {answer}"
        return False
    assert isinstance(answer, m.Welcome), answer
    for run in range(1, 2 if event.what in ("ranks", "grants") else 60):
        trainer.begin(run, credit=2**61, loaded=f"state {run}" if event.what == "back" else "")
        trainer.say(m.Need(run, 2**62 - 1, 0, 0, 0))
    return True


FAULTS = (
    Fault("A2", "jobs of far more ranks than come", "refused, or cost what comes; others exact", draw_worlds, play),
    Fault("A6", "trainers ask for all and read nothing", "bounded in bytes; others exact", draw_credit, play),
)
