"""Run libraries, workers and loaders in alternation, and show what came out: ``python -m benchmarks formats``."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import processes
from benchmarks.formats import files
from benchmarks.formats.single_run import LOADERS
from benchmarks.rounds import ROOT, alternating

WORKLOADS = tuple(files.SAMPLES)
OWN = ("worker", "pydp2")
"""What this project does; all else runs in the interpreter of the peers."""
_GOALS = {"processor time": 1.15, "samples/s": 1.2}
Runs = dict[str, dict[str, list[dict[str, Any]]]]


@dataclass(frozen=True)
class Plan:
    """Plan of rounds.

    Args:
        python: interpreter that has the libraries and the peers.
        scale: share of the samples.
        deadline: seconds that one run may take.
    """

    workloads: Sequence[str]
    loaders: Sequence[str]
    rounds: int
    workers: int
    folder: Path
    python: str = sys.executable
    scale: float = 1.0
    deadline: float = 300.0


@dataclass
class Results:
    """Results of a plan: figures of each run by workload and contestant, what was absent, and all versions."""

    runs: Runs = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def median(self, workload: str, what: str, top: str, bottom: str) -> float | None:
        """Return the median over the rounds of the quotient of two figures; None if there is none."""
        found = [run[top] / run[bottom] for run in self.runs[workload].get(what, ()) if run[bottom]]
        return statistics.median(found) if found else None

    def ratio(self, workload: str, over: str, under: str, top: str, bottom: str) -> float | None:
        """Return the median of the ratios of ``over`` to ``under`` within each round."""
        pairs = zip(self.runs[workload].get(over, ()), self.runs[workload].get(under, ()), strict=False)
        found = [a[top] / a[bottom] / (b[top] / b[bottom]) for a, b in pairs]
        return statistics.median(found) if found else None


def run(plan: Plan, what: str, workload: str, names: Sequence[str], samples: int) -> dict[str, Any]:
    """Return the result of one run in a process of its own; ``{"failed": "…"}`` if there is none."""
    mark = uuid.uuid4().hex
    given = {"what": what, "workload": workload, "files": names, "workers": plan.workers, "samples": samples}
    command = [sys.executable if what in OWN else plan.python, "-m", "benchmarks.formats.single_run", json.dumps(given)]
    environment = os.environ | {processes.MARK: mark, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=plan.deadline, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it took longer than {plan.deadline:.0f} s"}
    finally:
        processes.end(mark)
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines and lines[-1].startswith("{"):
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}


def measure(plan: Plan) -> Results:
    """Carry out all rounds of a plan."""
    results = Results()
    for workload in plan.workloads:
        names = [str(path) for path in files.make(workload, plan.folder, plan.scale)]
        samples = files.count(workload, plan.scale)
        contestants = ["library", "worker", *plan.loaders]
        results.runs[workload] = {}
        for number in range(plan.rounds):
            for what in alternating(contestants, number):
                result = run(plan, what, workload, names, samples)
                if reason := result.get("absent") or result.get("failed"):
                    results.absent[f"{workload}, {what}"] = reason
                    contestants.remove(what)
                    results.runs[workload].pop(what, None)
                    continue
                results.runs[workload].setdefault(what, []).append(result)
                results.versions |= result["versions"]
                print(f"{workload}, round {number + 1}: {what}", file=sys.stderr)
    return results


def show(plan: Plan) -> None:
    """Measure, and print both tables."""
    results = measure(plan)
    console = Console(width=None if sys.stdout.isatty() else 132)
    console.print(worker_table(results))
    console.print(loader_table(results))
    print(f"medians of {plan.rounds} alternating rounds, {plan.workers} workers, data at scale {plan.scale:g}")
    print(", ".join(f"{name} {version}" for name, version in sorted(results.versions.items())))
    for what, reason in results.absent.items():
        print(f"left out: {what}: {reason}")


def worker_table(results: Results) -> Table:
    """Return the table of processor time."""
    table = Table("workload", "library us", "worker us", "worker / library", f"goal {_GOALS['processor time']}")
    for workload in results.runs:
        ratio = results.ratio(workload, "worker", "library", "cpu", "samples")
        figures = (results.median(workload, what, "cpu", "samples") for what in ("library", "worker"))
        held = ratio is not None and ratio <= _GOALS["processor time"]
        table.add_row(workload, *(_figure(value and value * 1e6) for value in figures), _figure(ratio), _held(held))
    return table


def loader_table(results: Results) -> Table:
    """Return the table of throughput: for each loader samples/s, and microseconds of all processes for a sample."""
    table = Table("workload", "loader", "samples/s", "CPU us a sample", "pydp2 / it", f"goal {_GOALS['samples/s']}")
    for workload, runs in results.runs.items():
        loaders = [what for what in LOADERS if what in runs]
        rates = {what: results.median(workload, what, "samples", "seconds") or 0.0 for what in loaders}
        best = max((what for what in loaders if what != "pydp2"), key=rates.__getitem__, default="")
        for what in sorted(loaders, key=rates.__getitem__, reverse=True):
            cost = results.median(workload, what, "cpu", "samples")
            ratio = results.ratio(workload, "pydp2", what, "samples", "seconds")
            held = _held(ratio is not None and ratio >= _GOALS["samples/s"]) if what == best else ""
            table.add_row(workload, what, f"{rates[what]:,.0f}", _figure(cost and cost * 1e6), _figure(ratio), held)
    return table


def _held(held: bool) -> str:
    return "yes" if held else "no"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
