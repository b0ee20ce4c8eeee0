"""F9: the trainer is a hundred times slower than the workers; nobody grows, and nobody works for nothing."""

from __future__ import annotations

import os
import time
from random import Random
from typing import Any

import pydp2

from ..runs import at_rest, processes, service, wait_until
from .bench import Bench, anonymous, cpu, memory, resident, shared
from .case import Event, Fault, Report, Schedule

MB = 1_000_000
EVERY = 30.0  # seconds between rows of the course; a round that is shorter than ten of them has ten
CODE = """
import numpy as np

@provider(input_types=[integer_value(1 << 40), dense_vector(2500)], pool_size=500)
def process(settings, filename):
    y = 0
    while True:
        yield y, np.full(2500, y % 1000, "f")
        y += 1
"""


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """How long, and whether samples are shuffled. A full round takes as many seconds as ``--slow`` says."""
    seconds = 3.0 if size == "quick" else float(os.environ.get("PYDP2_SLOW_SECONDS", "60"))
    return {"seconds": seconds, "shuffle": random.random() < 0.5, "workers": random.choice([1, 2, 4])}, []


def play(bench: Bench, schedule: Schedule) -> Report:
    """Memory of server and workers after the first third: its spread, and processor time over the same while."""
    setup = schedule.setup
    budget, pool = 32 * MB, 20 * MB
    with pydp2.load(
        [f"endless-{n}" for n in range(6)], bench.write("endless", CODE), batch_size=16, shuffle=setup["shuffle"],
        workers=setup["workers"], memory_limit=budget, pool_bytes=pool, seed=schedule.seed,
    ) as data:  # fmt: skip
        stream = iter(data)
        pids = service(setup["workers"])
        empty = {pid: resident(pid) for pid in pids}
        regions: list[int] = []
        for _ in range(40):
            next(stream)
        # they have read as far ahead as they may: from here on, only what the trainer takes is read
        assert wait_until(lambda: _still(pids), 60), "processes of the service work on, though nobody takes anything"
        every = min(EVERY, setup["seconds"] / 10)
        course = [_row(pids, 0.0, 0)]
        ends = time.monotonic() + setup["seconds"]
        low, high = dict.fromkeys(pids, 1 << 62), dict.fromkeys(pids, 0)
        used, began, batches = cpu(pids), time.monotonic(), 0
        while time.monotonic() < ends:
            next(stream)
            batches += 1
            time.sleep(0.2)
            for pid in pids:
                own = anonymous(pid)  # who else sees a page of shared memory changes all the time
                low[pid], high[pid] = min(low[pid], own), max(high[pid], own)
            if ends - time.monotonic() < setup["seconds"] / 3:  # by then each cell that a worker was granted was in use
                regions.append(shared([*pids, os.getpid()]))
            if time.monotonic() - began >= len(course) * every:
                course.append(_row(pids, time.monotonic() - began, batches))
        used, wall = cpu(pids) - used, time.monotonic() - began
        assert pids == processes("pydp2-"), "a process of the service was replaced"
    for pid in pids:
        # in a few seconds one buffer more or less is all that there is to be seen
        assert high[pid] - low[pid] <= max((8 if setup["seconds"] < 10 else 4) * MB, 0.05 * high[pid]), (
            f"the memory of process {pid} went from {low[pid] / MB:.1f} to {high[pid] / MB:.1f} MB"
        )
    assert max(regions) - min(regions) <= max((8 if setup["seconds"] < 10 else 4) * MB, 0.05 * max(regions)), (
        f"shared memory went from {min(regions) / MB:.1f} to {max(regions) / MB:.1f} MB"
    )
    grown = sum(high[pid] for pid in pids) + max(regions) - sum(empty.values())
    assert grown < budget + pool + len(pids) * 10 * MB, f"the service grew by {grown / MB:.1f} MB, of {budget + pool}"
    spread = max((high[pid] - low[pid]) / high[pid] for pid in pids)
    figures = {
        "memory spread": spread,
        "cpu share": used / wall,
        "batches": batches,
        "service MB": sum(high.values()) / MB,
    }
    return Report(0, figures, course=course)


def _row(pids: list[int], seconds: float, batches: int) -> dict[str, float]:
    """The memory of the service now, in MB: of the server, and of the largest worker and all of them together."""
    server, workers = processes("pydp2-server")[0], processes("pydp2-worker")
    rss, pss = memory(server)
    each = [memory(pid) for pid in workers]
    row = {
        "seconds": seconds, "batches": batches, "server RSS": rss / MB, "server PSS": pss / MB,
        "largest worker RSS": max(rss for rss, _ in each) / MB, "workers PSS": sum(pss for _, pss in each) / MB,
        "processor s": cpu(pids),
    }  # fmt: skip
    return {name: round(value, 1) for name, value in row.items()}


def _still(pids: list[int]) -> bool:
    before = cpu(pids)
    time.sleep(0.2)
    return cpu(pids) - before <= 0.03 and at_rest(pids)


FAULTS = (
    Fault(
        "F9", "trainer 100 times slower", "memory flat within 5%, below its budget; processors near idle", draw, play,
        4000.0,
    ),
)  # fmt: skip
