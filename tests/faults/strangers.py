"""A3 to A5: strangers who flood a service or take all its descriptors; workers that die with what they lent."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import pydp2

from ..runs import Program, processes, wait_until
from ..strangers import FLOODS, SERVICE, Crowd, Flow, descriptors, descriptors_at_rest, resident, silent
from .bench import Bench
from .case import Event, Fault, Report, Schedule
from .data import Dataset, Judge, expected

BATCH = 64
COUNTS = (300,) * 12
POOL = 1000
FLAT = 16 << 20  # bytes that a server may grow by while it is flooded


def served(bench: Bench, schedule: Schedule, bind: str, limit: int, data: Dataset) -> tuple[str, int, Program]:
    """Address, process number and program of a service with at most ``limit`` descriptors."""
    workers, args = str(schedule.setup["workers"]), json.dumps(data.args())
    program = bench.program(SERVICE, str(limit), bind, data.write(bench.folder), workers, args, *data.files)
    _, address, pid = program.said("at ").split()
    return address, int(pid), program


def end(program: Program) -> None:
    """End the service in order."""
    program.signal(signal.SIGINT)
    program.ended()


class Passes:
    """Passes of a trainer one after another, each compared with the oracle."""

    def __init__(self, client: pydp2.Client, seed: int) -> None:
        self._client, self._seed = client, seed
        self.done = 0

    def one(self) -> None:
        """The next pass."""
        Judge(expected(COUNTS, POOL, BATCH, self._seed, pass_id=self.done)).all(self._client)
        self.done += 1


# -- A3 ----------------------------------------------------------------------------------------------------------------
def draw_floods(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Ways to flood, each for some seconds by some strangers."""
    names = random.sample(list(FLOODS), 4) if size == "quick" else [*FLOODS, *random.sample(list(FLOODS), 4)]
    events = [Event(name, 0.4 if size == "quick" else 4.0, random.random()) for name in names]
    return {"workers": random.choice([1, 2]), "keys": random.random() < 0.5}, events


def play_floods(bench: Bench, schedule: Schedule) -> Report:
    """The server stays as large as it was, and the trainer beside gets each batch as the oracle says."""
    data, sent, most = Dataset(COUNTS, POOL), 0, 0
    with pydp2.launch(
        data.files, data.write(bench.folder), args=data.args(), workers=schedule.setup["workers"],
        bind="tcp://127.0.0.1:*", connection=bench.folder / "run.json" if schedule.setup["keys"] else None,
    ) as service:  # fmt: skip
        with service.connect(batch_size=BATCH, seed=schedule.seed) as client:
            passes = Passes(client, schedule.seed)
            for _ in range(3):
                passes.one()
            before = resident(service.pid)
            for event in schedule.events:
                crowd = Crowd(service.address, [event.what] * (1 + int(3 * event.which)))
                try:
                    until = time.monotonic() + event.at
                    while time.monotonic() < until:
                        passes.one()
                        most = max(most, resident(service.pid))
                finally:
                    crowd.end()
                sent += crowd.sent
        assert service.poll() is None
    assert most - before < FLAT, f"{(most - before) >> 20} MB more while {sent >> 20} MB were sent"
    figures: dict[str, float | list[float]] = {
        "server before, MB": before / 1e6, "server at most, MB": most / 1e6, "strangers sent, MB": sent / 1e6,
        "passes bit-equal": passes.done,
    }  # fmt: skip
    return Report(0, figures)


# -- A4 ----------------------------------------------------------------------------------------------------------------
def draw_crowds(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Crowds of so many that say nothing, alone or while others come and go, workers killed meanwhile or not."""
    count = 1 if size == "quick" else 6
    kinds = ["crowd", "crowd and kill", "flow and kill"]
    crowds = [Event(random.choice(kinds), random.choice([100, 200, 400])) for _ in range(count)]
    return {"workers": random.choice([1, 2]), "kind": random.choice(["ipc", "tcp"])}, crowds


@contextlib.contextmanager
def flow(address: str, event: Event) -> Iterator[Flow | None]:
    """Strangers who come again and again, where that is the event."""
    coming = Flow(address, int(event.at)) if event.what == "flow and kill" else None
    try:
        yield coming
    finally:
        if coming is not None:
            coming.end()


def play_crowds(bench: Bench, schedule: Schedule) -> Report:
    """The trainer that was there before goes on, who comes when they are gone is let in, and it is said once."""
    data, limit, kills, strangers, waits = Dataset(COUNTS, POOL), 128, 0, 0.0, []
    bind = "tcp://127.0.0.1:*" if schedule.setup["kind"] == "tcp" else f"ipc://{bench.folder}/s"
    address, pid, program = served(bench, schedule, bind, limit, data)
    with pydp2.connect(address, batch_size=BATCH, seed=schedule.seed) as client:
        passes = Passes(client, schedule.seed)
        passes.one()
        before, own = resident(pid), descriptors_at_rest(pid, schedule.setup["workers"])
        for event in schedule.events:
            with silent(address, int(event.at)), flow(address, event) as coming:
                for _ in range(3):
                    if event.what != "crowd":
                        for worker in processes("pydp2-worker"):
                            bench.signal(worker, signal.SIGKILL)
                            kills += 1
                    passes.one()
            strangers += event.at + (0 if coming is None else coming.count)
            began = time.monotonic()
            with pydp2.connect(address, job="late", batch_size=BATCH) as late:
                assert sum(map(len, late)) == data.total
            waits.append(time.monotonic() - began)
        assert wait_until(lambda: descriptors(pid) <= own + 2), f"{own} before, {descriptors(pid)} after"
        after = resident(pid)
    assert program.screen.count("(RLIMIT_NOFILE)") <= 1, program.screen
    assert "Traceback" not in program.screen, program.screen
    end(program)
    figures: dict[str, float | list[float]] = {
        "server before, MB": before / 1e6, "server after, MB": after / 1e6, "passes bit-equal": passes.done,
        "strangers": strangers, "who came later waited, s": waits,
    }  # fmt: skip
    return Report(kills, figures)


# -- A5 ----------------------------------------------------------------------------------------------------------------
WIDE = """
import numpy as np

@provider(input_types=[dense_vector(4000)])
def process(settings, filename):
    for _ in range(40):
        yield np.full(4000, int(filename), np.float32)
"""


def draw_deaths(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Workers killed one after another, after so many batches of a pass."""
    events = [Event("SIGKILL", random.randint(1, 20), random.random()) for _ in range(16 if size == "quick" else 64)]
    return {"workers": 2}, events


def play_deaths(bench: Bench, schedule: Schedule) -> Report:
    """Afterwards as many descriptors are open as before, and each pass was whole."""
    files = [str(number) for number in range(24)]
    provider, address = bench.write("wide", WIDE), f"ipc://{bench.folder}/s"
    program = bench.program(SERVICE, "66", address, provider, str(schedule.setup["workers"]), "{}", *files)
    pid, kills = int(program.said("at ").split()[2]), 0
    with pydp2.connect(address, batch_size=20) as client:
        assert sum(map(len, client)) == 40 * len(files)
        before, most = descriptors_at_rest(pid, schedule.setup["workers"]), 0
        events = list(schedule.events)
        while events:
            samples = 0
            for batch in client:
                samples += len(batch)
                if events and batch.index >= events[0].at:
                    workers = processes("pydp2-worker")
                    killed = workers[int(events.pop(0).which * len(workers))]
                    bench.signal(killed, signal.SIGKILL)
                    kills += 1
                    assert wait_until(partial(_replaced, killed, schedule.setup["workers"] + 1), 20)
                    most = max(most, descriptors(pid))
            assert samples == 40 * len(files)
        assert wait_until(lambda: descriptors(pid) <= before + 2), f"{before} before, {descriptors(pid)} after"
    assert "Traceback" not in program.screen, program.screen
    end(program)
    return Report(kills, {"descriptors before": before, "descriptors at most": most})


def _replaced(killed: int, count: int) -> bool:
    """Whether there are ``count`` workers and ``killed`` is none of them."""
    workers = processes("pydp2-worker")
    return len(workers) == count and killed not in workers


FAULTS = (
    Fault(
        "A3",
        "floods over TCP without the token or a key",
        "memory flat, the trainer bit-equal",
        draw_floods,
        play_floods,
    ),
    Fault("A4", "strangers take all descriptors", "no place lost, exact, said once", draw_crowds, play_crowds),
    Fault("A5", "workers die with what they lent", "no descriptor is left", draw_deaths, play_deaths),
)
