"""A1: the ranks of a short pass come one after another, each when the one before has gone; some are killed and
replaced."""

from __future__ import annotations

from random import Random
from typing import Any

import pydp2

from .bench import Bench
from .case import Event, Fault, Report, Schedule
from .ranks_die import Rank, differs
from .trainers_die import BATCH, wanted_lines

WINDOW = 8  # groups that may wait for a rank, with the default prefetch; and the last group of the pass


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """As many batches as can wait for ranks, or some fewer; kills at steps of whichever rank."""
    world = random.choice([2, 3, 4])
    batches = world * WINDOW + random.choice([1 - world, -1, 0, 1, world - 1, world])
    samples = batches * BATCH - random.randrange(BATCH)
    edges = sorted(random.randint(0, samples) for _ in range(11))
    counts = [high - low for low, high in zip([0, *edges], [*edges, samples], strict=True)]
    order = random.sample(range(world), world)
    setup = {"counts": counts, "pool_size": random.choice([-1, 300, 1000]), "world": world, "order": order}
    kills = 1 if size == "quick" else 6
    return setup, [Event("kill", random.randint(1, WINDOW), random.random()) for _ in range(kills)]


def play(bench: Bench, schedule: Schedule) -> Report:
    """Each rank to the end of the pass before the next one begins; judge what all of them used together."""
    setup = schedule.setup
    world = setup["world"]
    data, lines, _ = wanted_lines(schedule, 1)
    job = {"batch_size": BATCH, "seed": schedule.seed, "world_size": world}
    met = 0
    with pydp2.launch(data.files, data.write(bench.folder), args=data.args(), workers=1) as service:
        ranks = [
            Rank(bench.folder, rank, {"address": service.address, "job": job | {"rank": rank}, "passes": 1})
            for rank in range(world)
        ]
        for event in schedule.events:
            ranks[int(event.which * world)].events.append(event)
        for rank in setup["order"]:
            met += ranks[rank].run()
    used = [line for rank in ranks for line in rank.used()]
    assert sorted(used) == sorted(lines), differs(used, lines)
    for rank in ranks:
        assert all(int(line.split()[1]) % world == rank.number for line in rank.used()), f"rank {rank.number}"
    return Report(met, {"steps": len(lines)})


FAULTS = (Fault("A1", "ranks of a short pass come one by one", "each ends; each batch used once", draw, play, 300.0),)
