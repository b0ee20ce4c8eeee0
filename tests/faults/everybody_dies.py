"""F5: workers, the server and the trainer are killed by the clock, all in the same minute; F1, F3 and F4 at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from random import Random
from typing import Any

from pydp2.errors import Error

from .bench import Bench, workers_of
from .case import Event, Fault, Report, Schedule
from .server_dies import Watched
from .trainers_die import BATCH, Legs, a_trainer, batches_in_a_pass, some_files, wanted_lines
from .workers_die import poisson

PAUSE = 0.005
SLOWER = 3  # times that a step takes where everybody is killed


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Kills by the clock: often workers, seldom the server, now and then the trainer."""
    seconds = 5.0 if size == "quick" else 60.0
    setup = some_files(random, size)
    steps = seconds / PAUSE / SLOWER
    setup |= {"workers": random.choice([1, 2, 3]), "every": 10}
    setup["passes"] = 1 + int(steps / batches_in_a_pass(setup))
    means = (
        {"worker": 0.4, "server": 2.0, "trainer": 2.5}
        if size == "quick"
        else {"worker": 0.5, "server": 3.0, "trainer": 5.0}
    )
    return setup, [event for what, mean in means.items() for event in poisson(random, what, mean, seconds)]


def play(bench: Bench, schedule: Schedule) -> Report:
    """Each process of the trainer gets what follows its checkpoint, bit by bit, to the end of the last pass."""
    setup = schedule.setup
    data, lines, first = wanted_lines(schedule, setup["passes"])
    legs = Legs(bench.folder, lines, first, setup["passes"])
    watched = Watched(bench, data, workers=setup["workers"])
    config = {
        "address": watched.service.address, "job": {"batch_size": BATCH, "seed": schedule.seed}, "loads": 1,
        "every": setup["every"], "die_at": -1, "before_saving": False, "pause": PAUSE,
    }  # fmt: skip
    kills = {"worker": 0, "server": 0, "trainer": 0}
    events = sorted(schedule.events, key=lambda event: event.at)
    began = time.monotonic()
    try:
        while True:
            with a_trainer(legs.begin(config)) as process:
                killed = False
                while events and not killed and process.poll() is None:
                    event = events.pop(0)
                    while process.poll() is None and time.monotonic() < began + event.at:
                        time.sleep(0.002)
                    if process.poll() is not None:
                        break
                    if event.what == "trainer":
                        process.kill()
                        killed = True
                        kills["trainer"] += 1
                    elif event.what == "server":
                        watched.kill()
                        watched.start()
                        kills["server"] += 1
                    else:
                        kills["worker"] += _kill_a_worker(watched, event.which)
                _, said = process.communicate(timeout=120)
            killed = killed and process.returncode != 0  # it may have come to its end just before
            assert process.returncode == (-signal.SIGKILL if killed else 0), f"{process.returncode}: {said[-3000:]}"
            legs.end(killed=killed)
            if not killed:
                break
    finally:
        watched.close()
    figures: dict[str, float | list[float]] = {f"kills of the {what}": float(count) for what, count in kills.items()}
    return Report(sum(kills.values()), figures | {"steps": legs.steps, "seconds of kills": time.monotonic() - began})


def _kill_a_worker(watched: Watched, which: float) -> bool:
    with contextlib.suppress(Error, ProcessLookupError):
        active = [worker["pid"] for worker in workers_of(watched.service) if worker["active"] and worker["pid"]]
        if active:
            os.kill(active[int(which * len(active))], signal.SIGKILL)
            return True
    return False


FAULTS = (Fault("F5", "kill -9 of workers, server, trainer at once", "exact", draw, play, 400.0),)
