"""Count starts of workers that hang or fail, for libraries that a provider imports at module level, uses in its
``init_hook``, or in ``process`` alone.

Each service has five workers, so it counts as five starts. A program opens some services one after the other; if one of
them does not end in time, the program is killed, and the next program goes on.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import selectors
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pydp2
from benchmarks.fork_provider import LIBRARY, PLACE, USES

WORKERS = 5
_SERVICES = 10  # of one program
_FILES = 40  # more than are assigned to a worker ahead, so that each worker gets some
_GOOD = "good"
_PROVIDER = "benchmarks.fork_provider.process"
_APART = re.compile(r"runs? its init_hook for itself: (.*?), and", re.DOTALL)


@dataclass
class Counted:
    """Starts of one library in one place. ``errors``: last lines of what failed. ``apart``: why workers were not
    forked, or ''."""

    good: int = 0
    hangs: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    apart: str = ""

    @property
    def starts(self) -> int:
        """Number of all starts."""
        return self.good + self.hangs + sum(self.errors.values())


def open_services(path: str, count: int) -> None:
    """Open ``count`` services, read one pass of each, and print a line for each that did what it should."""
    for _ in range(count):
        with tempfile.TemporaryDirectory() as meeting:
            files = [f"{meeting}?part={part}/{_FILES}" for part in range(_FILES)]
            args = {"path": path, "workers": WORKERS}
            with pydp2.load(files, _PROVIDER, args=args, batch_size=WORKERS, workers=WORKERS) as data:
                pids = {int(pid) for batch in data for pid in batch[0]}
            assert len(pids) == WORKERS, pids
        print(_GOOD, flush=True)


def count_starts(library: str, place: str, path: Path, starts: int, deadline: float) -> Counted:
    """Count ``starts`` starts of workers. ``path``: what the library reads. ``deadline``: seconds for a service."""
    counted = Counted()
    while counted.starts < starts:
        count = min(_SERVICES, -(-(starts - counted.starts) // WORKERS))
        words = [sys.executable, "-m", "benchmarks.forks", str(path), str(count)]
        environment = os.environ | {LIBRARY: library, PLACE: place}
        with tempfile.TemporaryFile("w+") as log:
            program = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=log, env=environment, text=True, start_new_session=True
            )
            with program:
                done, in_time = watch(program, deadline)
                if not in_time:
                    program.kill()
            log.seek(0)
            said = log.read()
        counted.good += WORKERS * done
        if found := _APART.search(said):
            counted.apart = " ".join(found[1].split())
        if not in_time:
            counted.hangs += WORKERS
        elif done < count:
            counted.errors[(said.strip().splitlines() or ["no output"])[-1]] += WORKERS
    return counted


def watch(program: subprocess.Popen[str], deadline: float) -> tuple[int, bool]:
    """Return the number of good services, and False if one of them took longer than ``deadline``."""
    assert program.stdout is not None
    done = 0
    with selectors.DefaultSelector() as selector:
        selector.register(program.stdout, selectors.EVENT_READ)
        while selector.select(deadline):
            if not program.stdout.readline():
                return done, True
            done += 1
    return done, False


def show(libraries: Sequence[str], places: Sequence[str], starts: int, deadline: float) -> int:
    """Count and print a line of Markdown for each library and place. Return 1 if a start hung or failed, else 0."""
    wrong = 0
    print("| library | used first in | starts | hangs | errors | workers are not forked because |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for library in libraries:
            try:
                module = importlib.import_module(USES[library].module.partition(".")[0])
            except ImportError as exc:
                print(f"left out: {library}: {exc}", file=sys.stderr)
                continue
            path = Path(folder, library)
            USES[library].write(path)
            name = f"{library} {getattr(module, '__version__', '')}".strip()
            for place in places:
                got = count_starts(library, place, path, starts, deadline)
                errors = sum(got.errors.values())
                wrong += got.hangs + errors
                print(f"| {name} | {place} | {got.starts} | {got.hangs} | {errors} | {got.apart} |", flush=True)
                for text, count in got.errors.items():
                    print(f"{library}, {place}: {count} times: {text}", file=sys.stderr, flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    open_services(given.path, given.count)
