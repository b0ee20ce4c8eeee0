"""F8: of four trainers of a job some die and some hang; the others go on, and every batch is used once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pydp2

from .bench import Bench
from .case import Event, Fault, Report, Schedule
from .rank import TAKEN
from .trainers_die import BATCH, PASSES, ROOT, some_files, wanted_lines

WORLD = 4


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Kills and hangs at steps of whichever process is that rank then."""
    setup = some_files(random, size) | {"lease": 4.0, "workers": random.choice([1, 2, 3])}
    kills, hangs = (3, 1) if size == "quick" else (12, 4)
    events = [Event("kill", random.randint(1, 8), random.random()) for _ in range(kills)]
    events += [Event("hang", random.randint(1, 8), random.random()) for _ in range(hangs)]
    random.shuffle(events)
    return setup, events


def play(bench: Bench, schedule: Schedule) -> Report:
    """Run all ranks, each replaced as often as it has events; judge what all of them used together."""
    setup = schedule.setup
    data, lines, _ = wanted_lines(schedule)
    address = data.write(bench.folder)
    job = {"batch_size": BATCH, "seed": schedule.seed, "world_size": WORLD, "lease": setup["lease"]}
    with pydp2.launch(data.files, address, args=data.args(), workers=setup["workers"]) as service:
        ranks = [
            Rank(bench.folder, rank, {"address": service.address, "job": job | {"rank": rank}, "passes": PASSES})
            for rank in range(WORLD)
        ]
        for event in schedule.events:
            ranks[int(event.which * WORLD)].events.append(event)
        with ThreadPoolExecutor(WORLD) as pool:
            met = sum(pool.map(Rank.run, ranks))
    used = [line for rank in ranks for line in rank.used()]
    assert sorted(used) == sorted(lines), differs(used, lines)
    for rank in ranks:
        assert all(int(line.split()[1]) % WORLD == rank.number for line in rank.used()), f"rank {rank.number}"
    return Report(met, {"steps": len(lines)})


class Rank:
    """A rank, whichever process that is: one after another."""

    def __init__(self, folder: Path, number: int, config: dict[str, Any]) -> None:
        self.number = number
        self.events: list[Event] = []
        self._config = config
        self._base = folder / f"rank-{number}"

    def run(self) -> int:
        """To the end of the last pass; how many of its events happened."""
        met = 0
        hung: subprocess.Popen[str] | None = None
        for leg, event in enumerate([*self.events, None]):
            with self._process(leg, event) as process:
                assert process.stdout is not None
                said = process.stdout.readline().strip()
                assert said == "connected", f"rank {self.number}: {said!r}"
                if hung is not None:  # its place is taken now
                    hung.send_signal(signal.SIGCONT)
                    assert hung.wait(30) == TAKEN, f"rank {self.number} hung, woke, and ended with {hung.returncode}"
                    hung = None
                said = process.stdout.readline().strip()
                met += bool(said)
                if said == "hang":
                    hung = process
                else:
                    ended = process.wait(60)
                    assert ended == (-signal.SIGKILL if said == "kill" else 0), f"rank {self.number} ended with {ended}"
                    if not said:  # it came to the end: there, nothing more happens to it
                        break
        return met

    @contextmanager
    def _process(self, leg: int, event: Event | None) -> Iterator[subprocess.Popen[str]]:
        config = self._config | {
            "log": f"{self._base}.log", "at": -1 if event is None else event.at, "what": event.what if event else "",
        }  # fmt: skip
        path = self._base.with_suffix(f".{leg}.json")
        path.write_text(json.dumps(config))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.rank", str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        try:
            yield process
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()

    def used(self) -> list[str]:
        """The batches that it has used, as lines."""
        log = self._base.with_suffix(".log")
        return log.read_text().splitlines() if log.exists() else []


def differs(used: list[str], lines: list[str]) -> str:
    """How what was used differs from what there is to be used."""
    twice = sorted({line for line in used if used.count(line) > 1})
    lost, others = sorted({*lines} - {*used}), sorted({*used} - {*lines})
    return f"used twice: {twice[:5]}; lost: {lost[:5]}; not of this stream: {others[:5]} (pass, index, checksum, pool)"


FAULTS = (
    Fault("F8", "1 of 4 trainers dies or hangs, is replaced", "what it had not used is used once", draw, play, 300.0),
)
