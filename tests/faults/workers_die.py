"""F1 and F2: workers are killed, crash, leave, or are stopped; the pass is the one without."""

from __future__ import annotations

import os
import signal
import statistics
import time
from random import Random
from typing import Any

import pydp2

from .bench import Bench, Timetable, workers_of
from .case import Event, Fault, Report, Schedule
from .data import Dataset, Judge, expected

BATCH = 128


def poisson(random: Random, what: str, mean: float, seconds: float) -> list[Event]:
    """Events of one kind, on the average every ``mean`` seconds, over so many seconds."""
    events: list[Event] = []
    at = random.expovariate(1 / mean)
    while at < seconds:
        events.append(Event(what, round(at, 4), random.random()))
        at += random.expovariate(1 / mean)
    return events


def read(
    bench: Bench,
    schedule: Schedule,
    data: Dataset,
    disturbed: bool = True,
    ends: tuple[tuple[int, int], ...] = (),
    **options: Any,
) -> dict[str, Any]:
    """One pass, judged, with the workers that the schedule names killed or stopped. Figures of it. ``ends``: (file, y)
    where a file ends early."""
    setup = schedule.setup
    wanted = expected(data.counts, data.pool_size, BATCH, schedule.seed, ends=ends)
    judge = Judge(wanted)
    kills = 0
    replaced: list[float] = []
    with pydp2.launch(
        data.files, data.write(bench.folder), args=data.args(), workers=setup["workers"], **options
    ) as service:

        def strike(event: Event) -> None:
            nonlocal kills
            active = [
                worker["pid"] for worker in workers_of(service) if worker["active"] and worker["samples_per_second"]
            ]
            if not active:
                return
            victim = active[int(event.which * len(active))]
            try:
                os.kill(victim, signal.Signals[event.what])
            except ProcessLookupError:
                return
            kills += 1
            began = time.monotonic()
            while schedule.size == "full" and event.what != "SIGSTOP" and time.monotonic() - began < 5:
                active = [worker["pid"] for worker in workers_of(service) if worker["active"] and worker["pid"]]
                if victim not in active and len(active) >= setup["workers"]:
                    replaced.append(time.monotonic() - began)
                    break
                time.sleep(0.005)

        by_batch = {int(event.at): event for event in schedule.events if disturbed and not setup["by_clock"]}
        timetable = Timetable([event for event in schedule.events if disturbed and setup["by_clock"]], strike)
        with service.connect(batch_size=BATCH, seed=schedule.seed) as client:
            began = time.monotonic()
            timetable.start()
            try:
                for batch in client:
                    judge.take(batch)
                    if batch.index in by_batch:
                        strike(by_batch[batch.index])
            finally:
                timetable.end()
            seconds = time.monotonic() - began
        judge.end()
    return {"kills": kills, "seconds": seconds, "replaced": replaced}


# -- F1 ----------------------------------------------------------------------------------------------------------------
def draw_kills(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Quick: killed at batches. Full: a million samples, killed by the clock."""
    workers = random.choice([1, 2, 3, 4])
    if size == "quick":
        at = sorted(random.sample(range(1, 150), 12))
        return (
            {"workers": workers, "files": 40, "samples": 20_000, "by_clock": False},
            [Event("SIGKILL", n, random.random()) for n in at],
        )
    return (
        {"workers": 2, "files": 200, "samples": 1_000_000, "by_clock": True},
        poisson(random, "SIGKILL", 0.2, 120.0),
    )


def play_kills(bench: Bench, schedule: Schedule) -> Report:
    """The pass with kills is the oracle's; how fast it was against one without, and how soon another worker worked."""
    setup = schedule.setup
    data = Dataset((setup["samples"] // setup["files"],) * setup["files"], pool_size=4096)
    figures: dict[str, float] = {}
    if schedule.size == "full":
        calm = read(bench, schedule, data, disturbed=False)
        figures["undisturbed samples/s"] = data.total / calm["seconds"]
    seen = read(bench, schedule, data, memory_limit="4MiB" if schedule.size == "quick" else None)
    if schedule.size == "full":
        figures["disturbed samples/s"] = data.total / seen["seconds"]
        figures["throughput"] = figures["disturbed samples/s"] / figures["undisturbed samples/s"]
        figures["kills/s"] = seen["kills"] / seen["seconds"]
        if seen["replaced"]:
            figures["replacement s"] = statistics.median(seen["replaced"])
            figures["replacement s, longest"] = max(seen["replaced"])
    return Report(seen["kills"], figures)


# -- F2 ----------------------------------------------------------------------------------------------------------------
OUTSIDE = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTERM", "SIGHUP")
INSIDE = {
    "exit0": "os._exit(0)", "exit3": "os._exit(3)", "abort": "os.abort()",
    "fault": "__import__('ctypes').string_at(0)", "stop": "os.kill(os.getpid(), 19)",
}  # fmt: skip
# Each of these happens once: the file that is left says that it has.
ONCE = (
    "here = settings.more.get(f'{file} {y}')\n"
    "        mark = f'{settings.more[\"folder\"]}/died-{file}-{y}'\n"
    "        if here and not os.path.exists(mark):\n"
    "            open(mark, 'w').close()\n"
    "            exec(here)"
)


def draw_crashes(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Signals from outside at batches, ways to end from inside at samples, and workers that are stopped."""
    files, each = (40, 500) if size == "quick" else (100, 2000)
    batches = files * each // BATCH
    inside = {
        f"{random.randrange(files)} {random.randrange(each)}": INSIDE[how]
        for how in random.sample(sorted(INSIDE), 3 if size == "quick" else 5)
    }
    many = 8 if size == "quick" else 40
    at = random.sample(range(1, batches - 5), many)
    events = [Event(random.choice(OUTSIDE), n, random.random()) for n in sorted(at)]
    events += [Event("SIGSTOP", n, random.random()) for n in random.sample(range(1, batches - 5), 1 + many // 10)]
    setup = {
        "workers": random.choice([1, 2, 3]), "files": files, "samples": files * each, "by_clock": False,
        "inside": inside,
    }  # fmt: skip
    return setup, events


def play_crashes(bench: Bench, schedule: Schedule) -> Report:
    """A stopped worker is replaced, like one that hangs, when ``sample_timeout`` is over."""
    setup = schedule.setup
    data = Dataset(
        (setup["samples"] // setup["files"],) * setup["files"], pool_size=1000, extra=ONCE,
        more={**setup["inside"], "folder": str(bench.folder)},
    )  # fmt: skip
    seen = read(bench, schedule, data, memory_limit="4MiB", sample_timeout=0.5)
    died = len(list(bench.folder.glob("died-*")))
    assert died == len(setup["inside"]), f"{died} of {len(setup['inside'])} samples were reached"
    return Report(seen["kills"] + died, {"seconds": seen["seconds"]})


FAULTS = (
    Fault(
        "F1", "kill -9 of random workers", "exact; 60% of the undisturbed throughput; a replacement works within 0.3 s",
        draw_kills, play_kills, 300.0,
    ),
    Fault("F2", "workers crash, exit, are stopped", "exact; a stopped worker is replaced", draw_crashes, play_crashes),
)  # fmt: skip
