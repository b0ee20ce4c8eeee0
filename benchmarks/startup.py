"""``python -m benchmarks.startup [--rounds 3] [--megabytes 500]``: memory of workers, and the time to replace one.

Memory is PSS, in which a page that n processes share counts 1/n in each. It is the sum over all workers and the process
from which they are forked.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pydp2
from benchmarks.figures import measure
from pydp2 import integer_value, provider

FILES = [str(n) for n in range(100_000)]
KINDS = ("array", "dict")
_WORD = 130  # approximate bytes of a word and its number in a dict


def hook(settings: Any, kind: str, megabytes: int, seconds: float, **kwargs: object) -> None:
    """Make a large dictionary: an array of vectors, or a dict of words."""
    import numpy as np

    until = time.monotonic() + seconds
    if kind == "array":
        settings.table = np.ones((megabytes << 20) // 1024, dtype="V1024")
    else:
        settings.table = {f"word number {n}": 1_000_000 + n for n in range((megabytes << 20) // _WORD)}
    settings.kind = kind
    time.sleep(max(0.0, until - time.monotonic()))


@provider(input_types=[integer_value(1 << 30)], init_hook=hook, should_shuffle=False)
def process(settings: Any, filename: str) -> Any:
    """Yield a thousand values from the dictionary."""
    size = len(settings.table)
    for i in range(1000):
        index = (int(filename) * 1000 + i) * 7919 % size
        value = settings.table[f"word number {index}" if settings.kind == "dict" else index]
        yield i if value is None else index


def _family(service: pydp2.Service) -> list[int]:
    """Return the pids of all workers, and of the process from which they are forked."""
    own = {service.pid}
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    for _ in range(3):
        own |= {pid for pid, parent in parents.items() if parent in own}
    names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in own if Path(f"/proc/{pid}").exists()}
    return [pid for pid, name in names.items() if name.startswith(("pydp2-worker", "pydp2-zygote"))]


def _ready(service: pydp2.Service, workers: int, without: set[int], seconds: float = 60.0) -> None:
    """Wait until ``workers`` workers read and a spare one is there, none of them in ``without``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        workers_now = service.stats()["workers"]
        if (
            sum(w["active"] for w in workers_now) == workers
            and len(workers_now) == workers + 1
            and not without & {w["pid"] for w in workers_now}
        ):
            return
        time.sleep(0.002)
    raise SystemExit("the workers did not become ready")


def memory(kind: str, workers: int, start: str, megabytes: int, batches: int = 500) -> dict[str, float]:
    """Return the MB of all workers together: when they are ready, and after ``batches`` batches of 1000 values."""
    args = {"kind": kind, "megabytes": megabytes, "seconds": 0.0}
    with pydp2.launch(FILES, f"{__file__}:process", workers=workers, start=start, args=args) as service:
        _ready(service, workers, set())
        time.sleep(0.3)
        ready = sum(measure.memory(pid)["pss"] for pid in _family(service))
        with service.connect(batch_size=1000) as data:
            for batch in data:
                if batch.index == batches:
                    break
            looked = sum(measure.memory(pid)["pss"] for pid in _family(service))
    return {"ready_mb": ready, "looked_mb": looked}


def replacement(start: str, megabytes: int, seconds: float = 2.0, workers: int = 2) -> dict[str, float]:
    """Return the seconds from SIGKILL of all workers, also the spare one, to the first chunk of a new worker."""
    args = {"kind": "array", "megabytes": megabytes, "seconds": seconds}
    with pydp2.launch(FILES, f"{__file__}:process", workers=workers, start=start, args=args) as service:
        _ready(service, workers, set())
        with service.connect(batch_size=1000, prefetch=1) as data:
            stream = iter(data)
            next(stream)
            old = {w["pid"] for w in service.stats()["workers"]}
            began = time.perf_counter()
            for pid in old:
                os.kill(pid, signal.SIGKILL)
            while True:  # a new worker gets files as soon as it is ready
                workers_now = service.stats()["workers"]
                if any(w["active"] and w["pid"] not in old and w["busy_seconds"] > 0 for w in workers_now):
                    return {"first_chunk": time.perf_counter() - began}
                if time.perf_counter() - began > 60:
                    raise SystemExit("no worker came")
                next(stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.startup")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=500)
    given = parser.parse_args()
    for start in ("auto", "spawn"):
        for kind in KINDS:
            for workers in (1, 4):
                rows = [memory(kind, workers, start, given.megabytes) for _ in range(given.rounds)]
                _show({"start": start, "dictionary": kind, "workers": workers}, rows)
        rows = [replacement(start, given.megabytes) for _ in range(given.rounds)]
        _show({"start": start, "killed": "all workers, hook of 2 s"}, rows)


def _show(what: dict[str, Any], rows: list[dict[str, float]]) -> None:
    figures = {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}
    worst = {f"{name}_worst": round(max(row[name] for row in rows), 3) for name in rows[0]}
    sys.stdout.write(json.dumps(what | figures | worst | {"n": len(rows)}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
