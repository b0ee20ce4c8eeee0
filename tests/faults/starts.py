"""F28 and F29: programs in which a service starts: with threads, forked, with heavy libraries, under tight limits."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from random import Random
from typing import Any

from .bench import Bench
from .case import Event, Fault, Report, Schedule, Skip

ROOT = Path(__file__).resolve().parents[2]
PROVIDER = """
from pydp2 import *

@provider(input_types=[integer_value(1 << 40), dense_vector(100)], pool_size=200)
def process(settings, filename):
    for y in range(300):
        yield 1000 * int(filename) + y, [float(y)] * 100
"""
TOTAL = sum(1000 * f + y for f in range(6) for y in range(300))

PASS = """
def one_pass(**options):
    import pydp2
    options = {"workers": 2, "batch_size": 64} | options
    with pydp2.load([str(n) for n in range(6)], "plain.process", **options) as data:
        return sum(int(batch[0].sum()) for batch in data)
"""

# -- F28 ---------------------------------------------------------------------------------------------------------------
WAYS = {
    "threads": """
import threading, time
stop = threading.Event()
def busy():
    while not stop.is_set():
        sum(range(1000))
        time.sleep(0)  # lets the others have the interpreter's lock
threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
[thread.start() for thread in threads]
print(one_pass())
stop.set()
""",
    "BLAS": """
import numpy as np
a = np.random.default_rng(0).normal(size=(600, 600)); a @ a  # its threads run now
print(one_pass())
a @ a
""",
    "torch": """
import torch
a = torch.randn(600, 600); a @ a
print(one_pass())
""",
    "CUDA": """
import torch
a = torch.randn(600, 600, device="cuda"); a @ a
print(one_pass())
""",
    "in a thread": """
import threading
thread = threading.Thread(target=lambda: print(one_pass()))
thread.start(); thread.join()
""",
    "two at once": """
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    assert len(set(pool.map(lambda _: one_pass(), range(2)))) == 1
print(one_pass())
""",
    "fork": """
import multiprocessing, warnings
warnings.simplefilter("ignore")  # Python's own, about threads
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert len(set(pool.map(child, range(2)))) == 1
    print(one_pass())
""",
    "spawn": """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(child, [0])[0])
""",
    "forkserver": """
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        print(pool.map(child, [0])[0])
""",
    "forked client": """
import os, pydp2
with pydp2.load([str(n) for n in range(6)], "plain.process", workers=1, batch_size=64) as data:
    stream = iter(data)
    total = int(next(stream)[0].sum())
    child = os.fork()
    if child == 0:
        try:
            next(stream)
        except pydp2.errors.ClientUseError as error:
            os._exit(17 if "made before a fork" in str(error) else 18)
        os._exit(19)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    print(total + sum(int(batch[0].sum()) for batch in stream))
""",
}


def draw_starts(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Ways to start."""
    ways = (
        random.sample(sorted(set(WAYS) - {"torch", "CUDA"}), 3)
        if size == "quick"
        else [*WAYS, *random.choices([*WAYS], k=20)]
    )
    return {}, [Event(way) for way in ways]


def play_starts(bench: Bench, schedule: Schedule) -> Report:
    """Every start gives an exact pass, or the clear error that it should."""
    (bench.folder / "plain.py").write_text(PROVIDER)
    notes, started = [], 0
    for event in schedule.events:
        if event.what in {"torch", "CUDA"}:
            try:
                _needs_torch(event.what)
            except Skip as skip:
                notes.append(str(skip))
                continue
        script = bench.folder / "script.py"
        script.write_text(PASS + "\ndef child(_):\n    return one_pass()\n" + WAYS[event.what])
        done = bench.script(script)
        assert done.returncode == 0, f"{event.what}: {done.stderr[-3000:]}"
        assert done.stdout.split() == [str(TOTAL)], f"{event.what}: {done.stdout} {done.stderr[-2000:]}"
        started += 1
    return Report(0, {"starts": started}, sorted(set(notes)))


def _needs_torch(what: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise Skip(f"{what}: torch is not installed")
    if what == "CUDA":
        import torch

        if not torch.cuda.is_available():
            raise Skip("CUDA: no such device")


# -- F29 ---------------------------------------------------------------------------------------------------------------
LIMITS: dict[str, tuple[str, list[int]]] = {
    "descriptors": ("RLIMIT_NOFILE", [64, 40, 24, 16, 10]),
    "address space": ("RLIMIT_AS", [2_000_000_000, 700_000_000, 300_000_000]),
    "data": ("RLIMIT_DATA", [500_000_000, 150_000_000, 60_000_000]),
    "file size": ("RLIMIT_FSIZE", [1_000_000, 0]),
    "stack": ("RLIMIT_STACK", [1_000_000, 256_000]),
    "locked memory": ("RLIMIT_MEMLOCK", [0]),
    "processes": ("RLIMIT_NPROC", [20, 4]),
}
UNDER = "import resource, sys\n" + PASS + """
which, value = getattr(resource, sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(which)[1]
resource.setrlimit(which, (value, value if hard == resource.RLIM_INFINITY else min(value, hard)))
print(one_pass())
"""  # fmt: skip


def draw_limits(random: Random, size: str) -> tuple[dict[str, Any], list[Event]]:
    """Which limits, each with a value that may be too small."""
    pairs = [(name, value) for name, (_, values) in LIMITS.items() for value in values]
    if size == "quick":
        pairs = [("descriptors", 64), ("descriptors", 24), random.choice(pairs[5:])]
    return {}, [Event(name, value) for name, value in pairs]


def play_limits(bench: Bench, schedule: Schedule) -> Report:
    """Under each limit a pass is exact, or one error says what is missing; nobody hangs, nothing is left."""
    (bench.folder / "plain.py").write_text(PROVIDER)
    exact, notes = 0, []
    for event in schedule.events:
        name, value = LIMITS[event.what][0], int(event.at)
        if name == "RLIMIT_NPROC" and os.geteuid() == 0:
            notes.append("the number of processes does not limit root")
            continue
        done = bench.command(UNDER, name, str(value))
        if done.returncode == 0:
            assert done.stdout.split() == [str(TOTAL)], f"{name} {value}: {done.stdout} {done.stderr[-2000:]}"
            exact += 1
            continue
        assert done.returncode in (1, -6, -9, -11) or "MemoryError" in done.stderr, f"{name} {value}: {done.returncode}"
        if name == "RLIMIT_NOFILE":
            assert "RLIMIT_NOFILE" in done.stderr, f"{value} open files: {done.stderr[-2000:]}"
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
        notes.append(f"{event.what} {value}: {last[:160] or 'ended without a word'}")
    return Report(0, {"limits": len(schedule.events), "exact": exact}, notes)


FAULTS = (
    Fault(
        "F28",
        "threads, fork, spawn, torch, BLAS",
        "no deadlock; a forked client is told",
        draw_starts,
        play_starts,
        400.0,
    ),
    Fault("F29", "tight limits", "exact, or a clear message that names the limit", draw_limits, play_limits, 400.0),
)
