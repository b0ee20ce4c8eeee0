"""F4, F6 and F7: trainers are killed and go on from their last checkpoint; what they get is what would have come."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from .bench import Bench
from .case import Event, Fault, Report, Schedule
from .data import Dataset, expected
from .server_dies import Watched
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
    """F4: at random steps, before and after saving; the service goes with the trainer, or is another program's and
    stays, or is killed now and then as well and started again."""
    setup = some_files(random, size)
    setup |= {
        "every": 7 if size == "quick" else 50,
        "own": random.random() < 0.4,
        "restarted": random.random() < 0.5,
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


def wanted_lines(schedule: Schedule, passes: int = PASSES) -> tuple[Dataset, list[str], int]:
    """The dataset of a round, all its batches as trainers write them down, and how many of them are in a pass."""
    setup = schedule.setup
    data = Dataset(tuple(setup["counts"]), pool_size=setup["pool_size"])
    wanted = [expected(data.counts, data.pool_size, BATCH, schedule.seed, pass_id) for pass_id in range(passes)]
    return data, [line for pass_id, one in enumerate(wanted) for line in one.lines(pass_id)], wanted[0].batches


class Legs:
    """A trainer's life, from checkpoint to checkpoint: each of its processes must be given ``lines``, from where the
    checkpoint stood on. ``first``: how many of them are in a pass."""

    def __init__(self, folder: Path, lines: list[str], first: int, passes: int = PASSES) -> None:
        self.checkpoint = folder / "checkpoint.json"
        self.steps = 0
        self._folder, self._lines, self._first, self._passes = folder, lines, first, passes
        self._number = -1
        self._start = 0

    def begin(self, config: dict[str, Any]) -> Path:
        """The next process begins; its configuration."""
        self._number += 1
        if self.checkpoint.exists():
            state = json.loads(self.checkpoint.read_text())["data"]
            self._start = self._first * state["pass"] + state["batch"]
        files = {"checkpoint": str(self.checkpoint), "log": str(self._folder / f"log-{self._number}")}
        path = self._folder / f"config-{self._number}.json"
        path.write_text(json.dumps(config | files | {"passes": self._passes}))
        return path

    def end(self, *, killed: bool) -> None:
        """It ended, at the end of the last pass or ``killed``."""
        log = self._folder / f"log-{self._number}"
        seen = log.read_text().splitlines() if log.exists() else []
        start, lines = self._start, self._lines
        assert seen == lines[start : start + len(seen)], _differs(self._number, start, seen, lines)
        self.steps += len(seen)
        if not killed:
            assert start + len(seen) == len(lines), f"it ended at batch {start + len(seen)} of {len(lines)}"
            model = 0
            for line in lines:
                model = learn(model, *map(int, line.split()[:3]))
            learnt = json.loads(self.checkpoint.read_text())["model"]
            assert learnt == model, "the model is another one than without kills"


def play(bench: Bench, schedule: Schedule) -> Report:
    """Run the trainer, killed as often as there are events, then once to its end; judge every batch of every leg."""
    setup = schedule.setup
    data, lines, first = wanted_lines(schedule)
    address, workers = data.write(bench.folder), setup["workers"]  # written once: workers may begin at any time
    legs, kills = Legs(bench.folder, lines, first), 0
    with contextlib.ExitStack() as stack:
        watched = None
        if not setup["own"]:
            kept = {} if setup.get("restarted") else {"state_dir": None}
            watched = Watched(bench, data, workers=workers[0], **kept)
            stack.callback(watched.close)
        for leg, event in enumerate([*schedule.events, None]):
            path = legs.begin({
                "address": watched.service.address if watched else None, "files": data.files,
                "provider": address, "job": {"batch_size": BATCH, "seed": schedule.seed},
                "service": {"args": data.args(), "workers": workers[leg % len(workers)]}, "every": setup["every"],
                "loads": setup.get("loads", 1), "die_at": -1 if event is None else event.at,
                "before_saving": event is not None and event.which < 0.5,
            })  # fmt: skip
            with a_trainer(path) as process:
                if watched and setup.get("restarted") and leg % 2:
                    time.sleep(0 if event is None else event.which)  # where in its start or its work that meets it
                    watched.kill()
                    watched.start()
                _, said = process.communicate(timeout=60)
            ended = process.returncode
            assert ended in (0, -signal.SIGKILL), f"the trainer ended with {ended}: {said[-2000:]}"
            legs.end(killed=ended != 0)
            kills += ended != 0
    return Report(
        kills + (watched.kills if watched else 0),
        {"steps in all legs": legs.steps, "kills of the service": watched.kills if watched else 0},
    )


@contextlib.contextmanager
def a_trainer(config: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.trainer", str(config)], cwd=ROOT, text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        except BaseException:
            process.kill()
            raise


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
