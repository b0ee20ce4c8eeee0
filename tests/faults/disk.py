"""F16: a disk that is full, or that cannot be written. What is written so far is the quarantine; caches and journals of
later releases belong here too.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pydp2
from pydp2.errors import OptionError

from .bench import Bench, caught
from .case import Event, Fault, Report, Schedule

PROVIDER = """
from pydp2 import *

@provider(input_types=[integer_value(1000)], check=True, check_fail_continue=True, should_shuffle=False)
def process(settings, filename):
    for y in range(1000):
        yield y if y % 5 else 10_000
"""
GOOD = [y for y in range(1000) if y % 5]

# The limit is set before the service starts: the server, which writes, has it too. SIGXFSZ is ignored by Python.
FULL = """
import resource, sys
import pydp2
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
with pydp2.load(["a", "b"], "dropping.process", batch_size=50, workers=2, quarantine=sys.argv[2]) as data:
    print(sum(int(batch[0].sum()) for batch in data))
"""


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """After how many bytes the disk is full."""
    return {}, [Event("full", random.randint(2000, 30_000)) for _ in range(2 if size == "quick" else 10)]


def play(bench: Bench, schedule: Schedule) -> Report:
    """The pass is exact, the disk is complained of once, and the lines that were written are whole but for the last."""
    (bench.folder / "dropping.py").write_text(PROVIDER)
    written = []
    for number, event in enumerate(schedule.events):
        path = bench.folder / f"losses-{number}.jsonl"
        done = bench.command(FULL, str(int(event.at)), str(path))
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.split() == [str(2 * sum(GOOD))], f"{done.stdout} {done.stderr[-2000:]}"
        assert done.stderr.count("cannot be written any more") == 1, done.stderr[-3000:]
        *lines, _ = path.read_bytes().split(b"\n")
        written.append(len([json.loads(line) for line in lines]))
    nowhere = Path("/dev/full")
    for path in (nowhere, bench.folder / "no" / "folder", bench.folder):
        error = caught(lambda path=path: _start(bench, path))  # type: ignore[misc]
        assert isinstance(error, OptionError), f"a quarantine in {path} gave {error!r}"
    return Report(0, {"lines before the disk was full": sum(written) / len(written)}, ["no cache, no journal yet"])


def _start(bench: Bench, path: Path) -> None:
    with pydp2.launch(["a"], f"{bench.folder}/dropping.py:process", workers=1, quarantine=str(path)):
        pass


FAULTS = (Fault("F16", "full and broken disks", "one warning; the pass is exact", draw, play),)
