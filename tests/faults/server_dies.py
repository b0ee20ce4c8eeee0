"""F3: the server is killed at random points and started again with its state directory; its trainers go on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from random import Random
from typing import Any

import pydp2
from pydp2.errors import Error
from pydp2.server.snapshots.state_dir import BEFORE, LAST, NEW

from ..runs import processes
from .bench import Bench
from .case import Event, Fault, Report, Schedule
from .data import Dataset
from .job_trainers import JobTrainers

BATCH = 32
PASSES = 3
RAISES = (
    "how = settings.more.get(f'{file} {y}')\n"
    "        mark = f'{settings.more[\"folder\"]}/raised-{file}-{y}'\n"
    "        if how == 'always' or (how == 'once' and not os.path.exists(mark)):\n"
    "            open(mark, 'w').close()\n"
    "            raise ValueError(how)"
)


def a_stream(random: Random, size: str, count: int | None = None) -> dict[str, Any]:
    """What is read, by whom, with which options."""
    share = random.choice(["one", "one", "ranks", "ranks", "dynamic"])
    buckets = random.choice([0, 0, 0, 3])
    scale = 1 if size == "quick" else 1 if buckets else 4
    counts = [random.choice([0, 1, 37, 200, 200, 311]) * scale for _ in range(12)]
    counts[0] = 300 * scale
    raising = []
    if random.random() < 0.4:
        for file in random.sample([n for n, each in enumerate(counts) if each > 30 or n == 0], 1):
            raising.append([file, random.randrange(counts[file]), random.choice(["always", "once"])])
    shuffle = random.random() < 0.85
    if not shuffle:  # what is met after the last batch is in no state
        raising = [[file, y, "always"] for file, y, _ in raising]
    return {
        "counts": counts, "pool_size": random.choice([-1, 300 * scale, 1000 * scale]), "share": share,
        "trainers": {"one": 1, "ranks": random.choice([2, 3]), "dynamic": random.choice([1, 2, 3])}[share],
        "last_batch": random.choice(["keep", "keep", "drop"] + ["pad"] * (share != "ranks")), "shuffle": shuffle,
        "cached": random.random() < 0.3, "buckets": buckets, "raising": raising, "workers": random.choice([1, 2, 3]),
        "every": random.choice([1, 5, 20]), "prefetch": random.choice([1, 2, 8]), "pause": random.choice([0.0, 0.003]),
    }  # fmt: skip


class Watched:
    """A service with a state directory that is watched over: it is started again with what it was started with."""

    def __init__(self, bench: Bench, data: Dataset, **options: Any) -> None:
        self.bench, self.data = bench, data
        self._address = data.write(bench.folder)
        self.folder = bench.folder / "state"
        self.options: dict[str, Any] = {"args": data.args(), "state_dir": self.folder} | options
        self._services: list[pydp2.Service] = []
        self.starts: list[tuple[float, float]] = []
        """When each start but the first began, and when it had returned."""
        self.kills = 0
        self.launch()

    def launch(self) -> None:
        """Start it."""
        self._services.append(pydp2.launch(self.data.files, self._address, **self.options))

    @property
    def service(self) -> pydp2.Service:
        return self._services[-1]

    def kill(self) -> None:
        """Kill the server, and wait until it is dead."""
        os.kill(self.service.pid, signal.SIGKILL)
        self.service._process.wait(60)
        self.kills += 1

    def start(self, early: float | None = None) -> None:
        """Start it again. ``early``: it is killed so many seconds after the start began, and started once more."""
        began = time.monotonic()
        if early is not None:
            killer = threading.Timer(early, self._kill_young)
            killer.start()
            try:
                with contextlib.suppress(Error):
                    self.launch()
            finally:
                killer.join()
            if self.service.poll() is None:
                self.kill()
            began = time.monotonic()
        self.launch()
        self.starts.append((began, time.monotonic()))

    def _kill_young(self) -> None:
        for pid in processes("pydp2-server"):
            if all(pid != service.pid for service in self._services):
                self.bench.signal(pid, signal.SIGKILL)
                self.kills += 1

    def tear(self, name: str, part: float) -> None:
        """Cut a snapshot off at a part of its bytes."""
        path = self.folder / name
        with contextlib.suppress(FileNotFoundError):
            os.truncate(path, int(part * path.stat().st_size))

    def close(self) -> None:
        """End all services."""
        for service in self._services:
            service.close()


class Stage(Watched):
    """A stream of ``schedule``, its service, and its trainers."""

    def __init__(self, bench: Bench, schedule: Schedule, **options: Any) -> None:
        setup = self.setup = schedule.setup
        self.seed = schedule.seed
        more = {f"{file} {y}": how for file, y, how in setup["raising"]} | {"folder": str(bench.folder)}
        cache = "cache=CacheType.CACHE_PASS_IN_MEM" if setup["cached"] else ""
        data = Dataset(tuple(setup["counts"]), setup["pool_size"], cache, RAISES if setup["raising"] else "pass", more)
        super().__init__(bench, data, workers=setup["workers"], on_error="skip", **options)

    def trainers(self, address: str | None = None, passes: int = PASSES, lease: float = 10.0) -> JobTrainers:
        """The trainers of the stream."""
        setup = self.setup
        job: dict[str, Any] = {
            "batch_size": BATCH, "seed": self.seed, "shuffle": setup["shuffle"], "last_batch": setup["last_batch"],
            "prefetch": setup["prefetch"], "lease": lease,
        }  # fmt: skip
        if setup["buckets"]:
            job |= {"bucket_by": "words", "num_buckets": setup["buckets"]}
        return JobTrainers(
            address or self.service.address,
            job,
            setup["share"],
            setup["trainers"],
            passes,
            setup["every"],
            setup["pause"],
        )

    def figures(self, trainers: JobTrainers) -> dict[str, float | list[float]]:
        """How long a start took, and how long after it began the first batch was there."""
        first = []
        ends = [began for began, _ in self.starts[1:]] + [float("inf")]
        for (began, _), end in zip(self.starts, ends, strict=bool(self.starts)):
            first += [at - began for at in trainers.renewed if began < at < end][:1]
        return {"launch s": [back - began for began, back in self.starts], "restart to first batch s": first}


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Kills after so many batches, some of them again while the service starts, some with snapshots that are torn."""
    setup = a_stream(random, size)
    kills = 4 if size == "quick" else 12
    batches = sum(setup["counts"]) // BATCH * PASSES
    torn = random.random() < 0.5
    kinds = ["kill"] * 4 + ["early"] + ["torn"] * (2 * torn) + ["both torn"] * torn
    return setup, [
        Event(random.choice(kinds), random.randint(0, max(1, batches // kills)), random.random()) for _ in range(kills)
    ]


def play(bench: Bench, schedule: Schedule) -> Report:
    """Each batch once, as the oracle says. Only where a snapshot was torn or a job is dynamic may several trainers be
    told that they have to load a state."""
    stage = Stage(bench, schedule)
    torn = False
    try:
        trainers = stage.trainers()
        at = 0
        for event in schedule.events:
            at += int(event.at)
            if not trainers.wait(at):
                break
            time.sleep(event.which * 0.02)
            trainers.story.append(f"{event.what} after {trainers.taken} batches")
            stage.kill()
            if "torn" in event.what:
                torn = True
                stage.tear(LAST, event.which)
            if event.what == "both torn":
                stage.tear(BEFORE, 1 - event.which)
                (stage.folder / NEW).unlink(missing_ok=True)
            stage.start(early=event.which * 0.6 if event.what == "early" else None)
            at = max(at, trainers.taken)
        trainers.end()
        batches = trainers.judge(stage.data, schedule.seed, schedule.setup)
    finally:
        stage.close()
    share = schedule.setup["share"]
    may_rewind = share == "dynamic" or (torn and share != "one")
    assert may_rewind or not trainers.rewound, f"trainers ({share}) were sent back {trainers.rewound} times"
    notes = [f"{share}: held"] + [f"{share}: Rewound, went on from a state"] * bool(trainers.rewound)
    return Report(stage.kills, stage.figures(trainers) | {"batches": batches}, notes)


FAULTS = (
    Fault(
        "F3", "kill -9 of the server, restart with its state", "exact; the first batch within 3 s", draw, play, 200.0
    ),
)
