"""F26: the network between trainers and service: late, cut, silent, then there again; ports and places that are taken.

All of it on the loopback of this machine, through a relay. Lost packets are no fault of their own here: TCP makes them
into delay.
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pydp2
from pydp2.errors import JobTaken, ServiceUnreachable

from .bench import Bench, caught
from .case import Event, Fault, Report, Schedule
from .relay import Relay, free_port
from .server_dies import BATCH, PASSES, Stage, a_stream


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """What the relay does after so many batches, and for how long; some kills of the server in between."""
    setup = a_stream(random, size) | {
        "pause": 0.02 if size == "quick" else 0.01,
        "lease": 10.0 if size == "quick" else 90.0,
    }
    many = 5 if size == "quick" else 12
    each = max(1, sum(setup["counts"]) // BATCH * PASSES // many)
    kinds = ["cut", "cut", "down", "silent", "half-open", "late", "kill", "kill while down"]
    events = [Event(random.choice(kinds), random.randint(0, each), random.random()) for _ in range(many)]
    if size == "full" and random.random() < 0.2:
        events[0] = Event("a minute", events[0].at, 0.0)
    return setup, events


def play(bench: Bench, schedule: Schedule) -> Report:
    """Each batch once, as the oracle says, and nobody has to load a state."""
    port = free_port()
    stage = Stage(bench, schedule, bind=f"tcp://127.0.0.1:{port}")
    relay = Relay(stage.service.address)
    try:
        trainers = stage.trainers(relay.address, lease=schedule.setup["lease"])
        taken = caught(lambda: pydp2.launch(["a"], bench.write("other", "process = 1"), bind=stage.service.address))
        assert isinstance(taken, ServiceUnreachable), f"a port in use gave {taken!r}"
        if schedule.setup["share"] != "dynamic" and trainers.wait(1):
            _second(relay.address, schedule, trainers)
        at = trainers.taken
        for event in schedule.events:
            at += int(event.at)
            if not trainers.wait(at):
                break
            trainers.story.append(f"{event.what} after {trainers.taken} batches")
            _strike(event, relay, stage)
            at = max(at, trainers.taken)
        trainers.end()
        batches = trainers.judge(stage.data, schedule.seed, schedule.setup)
    finally:
        relay.end()
        stage.close()
    assert not trainers.rewound, f"trainers were sent back {trainers.rewound} times: {trainers.story}"
    figures: dict[str, float | list[float]] = {"batches": batches, "connections": relay.connections}
    return Report(stage.kills, figures)


def _second(address: str, schedule: Schedule, trainers: Any) -> None:
    """Another trainer that wants the place of the first is refused, and the first goes on."""
    place = {"rank": 0, "world_size": schedule.setup["trainers"]}
    error = caught(lambda: pydp2.connect(address, **trainers.job, **place).close())
    assert isinstance(error, JobTaken) or not trainers.wait(0), (
        f"a second trainer for a place that is taken got {error!r}"
    )


def _strike(event: Event, relay: Relay, stage: Stage) -> None:
    wait = 2 * event.which
    match event.what:
        case "cut":
            relay.cut()
        case "down":
            relay.cut(down=True)
            time.sleep(wait)
        case "a minute":
            relay.cut(down=True)
            time.sleep(60)
        case "silent":
            relay.held = True
            time.sleep(wait)
        case "half-open":  # nobody is told for a while, then all that was under way is lost
            relay.held = True
            time.sleep(wait)
            relay.cut()
        case "late":
            relay.delay = 0.1 * event.which
        case "kill":
            stage.kill()
            stage.start()
        case "kill while down":
            relay.cut(down=True)
            stage.kill()
            time.sleep(wait / 2)
            stage.start()
    relay.up()


FAULTS = (
    Fault("F26", "network: late, cut, silent, down; places taken", "comes back by itself; exact", draw, play, 400.0),
)
