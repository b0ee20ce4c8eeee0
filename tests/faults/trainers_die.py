"""F4, F6 and F7: trainers are killed and go on from their last checkpoint; what they get is what would have come."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pydp2

from .bench import Bench
from .case import Event, Fault, Report, Schedule
from .data import Dataset, expected, sign_expected
from .trainer import learn

BATCH = 64
PASSES = 2
ROOT = Path(__file__).resolve().parents[2]


def some_files(random: Random, size: str) -> dict[str, Any]:
    """A set of files, some of them empty or tiny."""
    scale = 1 if size == "quick" else 8
    counts = [random.choice([0, 1, 37, 300, 300, 411]) * scale for _ in range(16)]
    counts[0] = 300 * scale
    return {"counts": counts, "pool_size": random.choice([-1, 300 * scale, 1000 * scale])}


def batches_in_a_pass(setup: dict[str, Any]) -> int:
    """How many batches its dataset makes."""
    return -(-sum(setup["counts"]) // BATCH)


def draw_kills(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """F4: at random steps, before and after saving; the service goes with the trainer, or stays."""
    setup = some_files(random, size)
    setup |= {
        "every": 7 if size == "quick" else 50,
        "own": random.random() < 0.6,
        "workers": [random.choice([1, 2, 3])],
    }
    steps = batches_in_a_pass(setup) * PASSES
    kills, last = (4, max(2, steps // 3)) if size == "quick" else (25, 80)  # what is killed before it saves is lost
    return setup, [Event("kill", random.randint(1, last), random.random()) for _ in range(kills)]


def draw_counts(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """F6: each leg has another number of workers."""
    setup = some_files(random, size)
    workers = [1, 2, 3, 8]
    random.shuffle(workers)
    setup |= {"every": 3, "own": True, "workers": workers}
    steps = batches_in_a_pass(setup) * PASSES
    return setup, [
        Event("kill", random.randint(3, max(4, steps // 5)), 1.0) for _ in range(4 if size == "quick" else 12)
    ]


def draw_edges(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """F7: two resumes in a row, at the first batch, at the last, at the edge of a pass; loaded twice each time."""
    setup = some_files(random, size)
    setup |= {"every": 1, "own": random.random() < 0.5, "workers": [2], "loads": 2}
    last = batches_in_a_pass(setup)
    legs = [(1, 1.0), (0, 1.0), (last - 2, 1.0), (1, 0.0), (1, 1.0), (0, 0.0), (1, 0.0), (1, 1.0)]
    return setup, [Event("kill", at, which) for at, which in legs]


def wanted_lines(schedule: Schedule) -> tuple[Dataset, list[str], int]:
    """The dataset of a round, all its batches as trainers write them down, and how many of them are in pass 0."""
    setup = schedule.setup
    data = Dataset(tuple(setup["counts"]), pool_size=setup["pool_size"])
    wanted = [expected(data.counts, data.pool_size, BATCH, schedule.seed, pass_id) for pass_id in range(PASSES)]
    lines = [
        f"{pass_id} {index} {sign_expected(one.batch(index))} {one.pool_weights[index]}"
        for pass_id, one in enumerate(wanted)
        for index in range(one.batches)
    ]
    return data, lines, wanted[0].batches


def play(bench: Bench, schedule: Schedule) -> Report:
    """Run the trainer, killed as often as there are events, then once to its end; judge every batch of every leg."""
    setup = schedule.setup
    data, lines, first = wanted_lines(schedule)
    edges = [0, first]
    address = data.write(bench.folder)
    job = {"batch_size": BATCH, "seed": schedule.seed}
    checkpoint = bench.folder / "checkpoint.json"
    kills = repeated = 0
    with contextlib.ExitStack() as stack:
        service = None
        if not setup["own"]:
            service = stack.enter_context(
                pydp2.launch(data.files, address, args=data.args(), workers=setup["workers"][0])
            )
        for leg, event in enumerate([*schedule.events, None]):
            config = {
                "address": service.address if service else None, "files": data.files, "provider": address,
                "service": {"args": data.args(), "workers": setup["workers"][leg % len(setup["workers"])]}, "job": job,
                "checkpoint": str(checkpoint), "log": str(bench.folder / f"log-{leg}"), "passes": PASSES,
                "every": setup["every"], "loads": setup.get("loads", 1), "die_at": -1 if event is None else event.at,
                "before_saving": event is not None and event.which < 0.5,
            }  # fmt: skip
            start = 0
            if checkpoint.exists():
                state = json.loads(checkpoint.read_text())["data"]
                start = edges[state["pass"]] + state["batch"] if state["pass"] < PASSES else len(lines)
            ended = _run(bench, config)
            seen = Path(config["log"]).read_text().splitlines()
            assert seen == lines[start : start + len(seen)], _differs(leg, start, seen, lines)
            if event is not None and ended == -signal.SIGKILL:
                kills += 1
                repeated += len(seen)
            else:
                assert start + len(seen) == len(lines), f"leg {leg} ended at batch {start + len(seen)} of {len(lines)}"
    model = 0
    for line in lines:
        model = learn(model, *map(int, line.split()[:3]))
    assert json.loads(checkpoint.read_text())["model"] == model, "the model is another one than without kills"
    return Report(kills, {"steps in all legs": repeated + len(lines) - start})


def _run(bench: Bench, config: dict[str, Any]) -> int:
    path = bench.folder / "config.json"
    path.write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.trainer", str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (0, -signal.SIGKILL), f"the trainer ended with {done.returncode}: {done.stderr[-2000:]}"
    return done.returncode


def _differs(leg: int, start: int, seen: list[str], lines: list[str]) -> str:
    for k, line in enumerate(seen):
        if start + k >= len(lines) or line != lines[start + k]:
            wanted = lines[start + k] if start + k < len(lines) else "nothing any more"
            return (
                f"leg {leg}, resumed at {start}: batch {k} was {line!r}, not {wanted!r} (pass, index, checksum, pool)"
            )
    return ""


FAULTS = (
    Fault(
        "F4", "kill -9 of the trainer, reload", "bit-equal to a run without; no data skipped", draw_kills, play, 300.0
    ),
    Fault("F6", "resume with 1, 2, 3, 8 workers", "the same sequence", draw_counts, play, 300.0),
    Fault("F7", "two resumes in a row, at the edges", "no pass skipped, state advances", draw_edges, play, 300.0),
)
