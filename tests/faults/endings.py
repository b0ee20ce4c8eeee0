"""F18 and F19: programs end by signals, at any moment; nothing of them stays behind, and the next start works."""

from __future__ import annotations

import os
import signal
import time
from random import Random
from typing import Any

import pydp2

from ..endings import programs
from ..endings.conftest import PROVIDER
from ..provider_code import one
from ..runs import Program, is_dead, processes, wait_until
from .bench import Bench, remains, run_directories, shared_memory, sockets
from .case import Event, Fault, Report, Schedule
from .data import Dataset, Judge, expected

CODE = {"load": programs.LOAD, "launch": programs.LAUNCH}
WAYS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGINT twice", "SIGKILL", "server SIGTERM", "server SIGKILL", "SIGQUIT")


def start(bench: Bench, kind: str) -> Program:
    """A program that trains without end, beside its provider."""
    return bench.program(CODE[kind], beside={"endless.py": PROVIDER})


def gone() -> bool:
    """Nothing runs any more of what a program had started."""
    return processes("pydp2-") == [] and processes("sleep") == []


def others() -> list[int]:
    """All processes of the round but this one, also those that have no name of their own yet."""
    return [pid for pid in processes("") if pid != os.getpid()]


# -- F18 ---------------------------------------------------------------------------------------------------------------
def draw_signals(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Which way each program ends, and how long after it trains."""
    ways = random.sample(WAYS, 3) if size == "quick" else [random.choice(WAYS) for _ in range(20)]
    kinds = [random.choice(sorted(CODE)) for _ in ways]
    return {"kinds": kinds}, [Event(way, round(random.random() * 0.3, 3)) for way in ways]


def play_signals(bench: Bench, schedule: Schedule) -> Report:
    """All is gone within 5 s, without a word of the workers."""
    longest, twice, before = 0.0, 0.0, shared_memory()
    for number, event in enumerate(schedule.events):
        kinds = schedule.setup["kinds"]
        program = start(bench, kinds[number % len(kinds)])
        program.said("ready")
        time.sleep(event.at)  # no hope in it: wherever the program is then is where it is met
        shared, began = shared_memory(), time.monotonic()
        who, _, name = event.what.rpartition(" ") if event.what.startswith("server") else ("", "", event.what)
        if who:
            os.kill(processes("pydp2-server")[0], signal.Signals[name])
        elif name == "SIGINT twice":
            os.killpg(program.pid, signal.SIGINT)
            time.sleep(0.02)
            if program.process.poll() is None:
                os.killpg(program.pid, signal.SIGINT)
        else:
            (os.killpg if name == "SIGINT" else os.kill)(program.pid, signal.Signals[name])
        program.wait()
        assert wait_until(gone), f"{event.what}: {processes('pydp2-')} still run after 5 s"
        took = time.monotonic() - began
        longest = max(longest, took)
        twice = max(twice, took if name == "SIGINT twice" else 0)
        program.ended()
        assert "[worker" not in program.screen, f"{event.what}: a worker spoke: {program.screen}"
        assert program.screen.count("Traceback") <= 1 + (name == "SIGINT twice"), program.screen  # Python's own
        if event.what not in {"SIGKILL", "SIGQUIT", "server SIGKILL", "SIGINT twice"}:
            assert wait_until(lambda: run_directories() == []), f"{event.what} left {run_directories()}"
        assert wait_until(lambda: shared_memory() <= shared), f"{event.what} left shared memory"  # noqa: B023
        assert sockets() == set(), f"{event.what} left {sockets()}"
    with pydp2.load(["a"], bench.write("one", ONE), batch_size=1, workers=1) as client:  # sweeps what was killed
        assert len(list(client)) == 1
    left = remains(before)
    assert left == [], f"after the next start: {left}"
    figures = {"ends": float(len(schedule.events)), "left behind": len(left), "longest end, s": longest}
    figures |= {"second Ctrl-C, s": twice} if twice else {}
    return Report(len(schedule.events), figures)


ONE = one()


# -- F19 ---------------------------------------------------------------------------------------------------------------
def draw_groups(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """How long after its start a program is killed with all that it started: also while it starts."""
    many = 4 if size == "quick" else 40
    return {}, [Event(random.choice(sorted(CODE)), round(random.random() * 1.2, 3)) for _ in range(many)]


def play_groups(bench: Bench, schedule: Schedule) -> Report:
    """Everybody is killed at once; then a normal start works, is exact, and leaves nothing of the dead."""
    killed, before = 0, shared_memory()
    for event in schedule.events:
        program = start(bench, event.what)
        time.sleep(event.at)
        everybody = [program.pid, *others()]
        for pid in everybody:  # so that none has the time to clean up after another
            bench.signal(pid, signal.SIGSTOP)
        for pid in {*everybody, *others(), program.pid}:
            bench.signal(pid, signal.SIGKILL)
            killed += 1
        program.wait()
        assert wait_until(lambda: all(map(is_dead, everybody)) and not others()), "somebody lives on"  # noqa: B023 - called here
    data = Dataset((100,) * 6, pool_size=100)
    judge = Judge(expected(data.counts, data.pool_size, 16, schedule.seed))
    with pydp2.load(
        data.files, data.write(bench.folder), args=data.args(), workers=2, batch_size=16, seed=schedule.seed
    ) as client:
        for batch in client:
            judge.take(batch)
        directories = run_directories()
    judge.end()
    assert len(directories) <= 1, f"run directories of the dead are left: {directories}"
    left = remains(before)
    assert left == [], f"after the next start: {left}"
    return Report(
        killed, {"groups": len(schedule.events), "left behind": len(left)}, ["two users on one host: not tried here"]
    )


FAULTS = (
    Fault(
        "F18", "signals, parent death", "all gone within 5 s, nothing left, no spray", draw_signals, play_signals, 300.0
    ),
    Fault(
        "F19", "kill -9 of everybody, then a start", "starts every time, nothing left", draw_groups, play_groups, 300.0
    ),
)
