"""F27: the clock of the wall jumps by a day, either way; nothing waits for it, and nothing times out by it.

Without root and without a library that lies about the time, the clock is moved where Python reads it: in every process
of a service ``time.time`` and its relatives jump at each call. libzmq uses the monotonic clock by itself.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from random import Random
from typing import Any

from .bench import Bench
from .case import Event, Fault, Report, Schedule, Skip, nothing

ROOT = Path(__file__).resolve().parents[2]
WALL = {
    "time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "datetime.now", "datetime.utcnow",
    "datetime.today", "date.today", "datetime.datetime.now", "datetime.date.today", "time.clock_gettime",
}  # fmt: skip
ALLOWED = {
    "pydp2/api/rundir.py": 1,
    "pydp2/server/cache/counts.py": 1,
    "pydp2/server/cache/disk.py": 3,
    "pydp2/server/cache/entry_names.py": 2,
    "pydp2/providers/notebook.py": 1,
    "cli/cache.py": 2,
    "pydp2/page/watch.py": 1,
    "pydp2/host/engine/prepared.py": 1,
    "pydp2/system/log_writer.py": 2,
}
"""Where the wall's clock is right: it is compared with the age of a file, or shown to the user at a line of the log."""

JUMPING = """
import datetime, random, time
_time, _ns = time.time, time.time_ns
def _days():
    return 86_400 * random.choice((-400, -1, 0, 1, 400))
time.time = lambda: _time() + _days()
time.time_ns = lambda: _ns() + 10**9 * _days()
"""

PROGRAM = """
import sys, time
assert len({int(time.time()) // 40_000 for _ in range(50)}) > 1
import pydp2
for n in range(2):
    with pydp2.load([f"{i}" for i in range(8)], "jumpy.process", batch_size=50, workers=2, sample_timeout=20) as data:
        for p in range(2):
            print(sum(int(batch[0].sum()) for batch in data))
        data.stats()
"""
PROVIDER = """
from pydp2 import *
import os, time

@provider(input_types=[integer_value(1 << 40)], pool_size=200)
def process(settings, filename):
    assert len({int(time.time()) // 40_000 for _ in range(50)}) > 1
    for y in range(500):
        if y == 250 and filename == "3" and not os.path.exists("died"):
            open("died", "w").close()
            os._exit(1)
        yield 1000 * int(filename) + y
"""


def wall_clocks(root: Path) -> dict[str, list[int]]:
    """Lines of the code that read the clock of the wall, by file."""
    found: dict[str, list[int]] = {}
    for file in sorted((*(root / "pydp2").rglob("*.py"), *(root / "cli").rglob("*.py"))):
        tree = ast.parse(file.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in WALL:
                found.setdefault(str(file.relative_to(root)), []).append(node.lineno)
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                found.setdefault(str(file.relative_to(root)), []).extend(
                    node.lineno for alias in node.names if f"time.{alias.name}" in WALL
                )
    return {name: lines for name, lines in found.items() if lines}


def play(bench: Bench, schedule: Schedule) -> Report:
    """Two services, with a death in each, while every process sees a clock that jumps by days."""
    if not (ROOT / "pydp2").is_dir():
        raise Skip("no source to look into")
    wrong = {name: lines for name, lines in wall_clocks(ROOT).items() if len(lines) != ALLOWED.get(name, 0)}
    assert wrong == {}, f"the clock of the wall is read in {wrong}: use time.monotonic()"
    site = bench.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(JUMPING)
    (bench.folder / "jumpy.py").write_text(PROVIDER)
    done = bench.command(PROGRAM, env=os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"})
    assert done.returncode == 0, done.stderr[-3000:]
    total = sum(1000 * f + y for f in range(8) for y in range(500))
    assert done.stdout.split() == [str(total)] * 4, f"{done.stdout} {done.stderr[-2000:]}"
    assert "timeout" not in done.stderr, done.stderr[-2000:]
    return Report(1)


def draw(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Nothing to choose."""
    return nothing(random, size)


FAULTS = (Fault("F27", "the clock jumps by days", "no timeout fires", draw, play),)
