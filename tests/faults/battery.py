"""Plays rounds of faults, makes what fails smaller, and keeps the account."""

from __future__ import annotations

import os
import shlex
import tempfile
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from shutil import rmtree
from typing import Any

from .bench import Bench
from .case import Fault, Report, Schedule, Skip, shrunk

SHRINK_SECONDS = 90.0


@dataclass
class Failure:
    """A round that failed: what it was, the least that still fails, and what was seen."""

    schedule: Schedule
    smallest: Schedule
    error: str
    screen: str

    @property
    def replay(self) -> str:
        """The command that plays the same round again."""
        one = self.schedule
        return f"python -m tests.faults --only {one.fault} --seed {one.seed} --size {one.size}"

    @property
    def replay_smallest(self) -> str:
        """The command that plays the least that failed."""
        return f"python -m tests.faults --schedule {shlex.quote(self.smallest.to_json())}"

    def told(self) -> str:
        """For a terminal, or for the message of an assertion."""
        lines = [
            f"{self.schedule.fault} failed with seed {self.schedule.seed}: {self.error.strip().splitlines()[-1]}",
            f"again:    {self.replay}", f"schedule: {self.schedule.to_json()}",
        ]  # fmt: skip
        if len(self.smallest.events) < len(self.schedule.events):
            lines.append(f"smallest: {self.replay_smallest}")
        return "\n".join([*lines, self.error.rstrip(), f"screen: …{self.screen[-3000:]}"])


@dataclass
class Account:
    """What is known of one fault after some rounds."""

    fault: Fault
    passed: int = 0
    failures: list[Failure] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    seconds: float = 0.0
    figures: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    courses: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    """Of the rounds that have one, by seed."""

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "fault": self.fault.name, "title": self.fault.title, "goal": self.fault.goal, "passed": self.passed,
            "failed": len(self.failures), "skipped": self.skipped, "kills": self.kills, "seconds": self.seconds,
            "figures": {name: [min(some), sum(some) / len(some), max(some)] for name, some in self.figures.items()},
            "notes": self.notes, "courses": self.courses,
            "failures": [
                {"error": f.error, "replay": f.replay, "smallest": f.replay_smallest} for f in self.failures
            ],
        }  # fmt: skip


def play(fault: Fault, schedule: Schedule) -> tuple[Report | None, str, str]:
    """One round: what it reports, or None, the error and the screen. Skip passes through."""
    bench, screen = Bench(fault.seconds), ""
    try:
        with bench.running():
            try:
                return fault.play(bench, schedule), "", ""
            finally:
                screen = bench.screens
    except (Skip, KeyboardInterrupt):
        raise
    except BaseException:
        return None, traceback.format_exc(), screen


def one_round(account: Account, schedule: Schedule, *, shrink: bool = True) -> None:
    """Play ``schedule`` and enter what came of it."""
    began = time.monotonic()
    try:
        report, error, screen = play(account.fault, schedule)
    except Skip as skip:
        account.skipped[str(skip)] = account.skipped.get(str(skip), 0) + 1
        return
    account.seconds += time.monotonic() - began
    if report is None:
        ends = time.monotonic() + SHRINK_SECONDS

        def fails(smaller: Schedule) -> bool:
            return play(account.fault, smaller)[0] is None

        smallest = shrunk(schedule, fails, lambda: time.monotonic() < ends) if shrink else schedule
        account.failures.append(Failure(schedule, smallest, error, screen))
        return
    account.passed += 1
    account.kills += report.kills
    for name, value in report.figures.items():
        if some := value if isinstance(value, list) else [float(value)]:
            account.figures.setdefault(name, []).extend(some)
    for note in report.notes:
        account.notes[note] = account.notes.get(note, 0) + 1
    if report.course:
        account.courses[schedule.seed] = report.course


@contextmanager
def surroundings() -> Iterator[None]:
    """A mark for every process that rounds start, and a temporary folder with a short path, like tests/conftest.py."""
    folder = tempfile.mkdtemp(prefix="pf-", dir="/tmp")
    before, tempfile.tempdir = tempfile.tempdir, folder
    os.environ |= {"TMPDIR": folder, "PYDP2_TEST_RUN": uuid.uuid4().hex}
    try:
        yield
    finally:
        tempfile.tempdir = before
        rmtree(folder, ignore_errors=True)
