"""Measure: each function carries out one run and returns plain numbers."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pydp2

ADDRESS = f"{Path(__file__).with_name('providers.py')}:"


def _consume(read: Callable[[str], Iterable[object]], files: list[str]) -> None:
    for file in files:
        for _ in read(file):
            pass


def _bare_main(start: Any, done: Any, make: Callable[[], Callable[[str], Iterable[object]]], files: list[str]) -> None:
    read = make()
    start.wait()
    _consume(read, files)
    done.release()


def bare(make: Callable[[], Callable[[str], Iterable[object]]], files: list[str], processes: int = 2) -> float:
    """Return the seconds of the generators alone, in a loop in ``processes`` processes."""
    forked = get_context("fork")
    start, done = forked.Event(), forked.Semaphore(0)
    children = [
        forked.Process(target=_bare_main, args=(start, done, make, files[i::processes])) for i in range(processes)
    ]
    for child in children:
        child.start()
    time.sleep(0.3)  # the processes have their dictionary then; a late one only makes the limit lower
    began = time.perf_counter()
    start.set()
    for _ in children:
        done.acquire()
    seconds = time.perf_counter() - began
    for child in children:
        child.join()
    return seconds


def drain(client: pydp2.Client) -> dict[str, Any]:
    """Read one pass; return its seconds, samples, seconds to the first batch, and a checksum of all values in order."""
    began = time.perf_counter()
    first = 0.0
    samples = crc = 0
    for batch in client:
        if not first:
            first = time.perf_counter() - began
        samples += len(batch)
        label = batch[len(batch.keys()) - 1] if hasattr(batch, "keys") else batch[0]
        crc = zlib.crc32(memoryview(label).cast("B"), crc)
    return {"seconds": time.perf_counter() - began, "samples": samples, "first": first, "crc": crc}


def served(files: list[str], name: str, passes: int = 1, **options: Any) -> list[dict[str, Any]]:
    """Return the figures of passes over ``files`` with 2 workers on a running service."""
    service_options = {k: options.pop(k) for k in ("args", "memory_limit") if k in options}
    with (
        pydp2.launch(files, ADDRESS + name, workers=2, **service_options) as service,
        service.connect(batch_size=128, **options) as client,
    ):
        return [drain(client) for _ in range(passes)]


def with_processor_time(files: list[str], name: str, **options: Any) -> dict[str, Any]:
    """Return the figures of a pass with 2 workers, and under "processor" the seconds of processor time of server and
    trainer."""
    with (
        pydp2.launch(files, ADDRESS + name, workers=2) as service,
        service.connect(batch_size=128, **options) as client,
    ):
        before = _processor_time(service.pid) + time.process_time()
        result = drain(client)
        return result | {"processor": _processor_time(service.pid) + time.process_time() - before}


def _processor_time(pid: int) -> float:
    """Return the seconds of processor time that all threads of a process have had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> dict[str, float]:
    """Return the memory of a process in MB: resident now, its peak, and its proportional share now."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return {
        "rss": int(status["VmRSS"].split()[0]) / 1024,
        "peak": int(status["VmHWM"].split()[0]) / 1024,
        "pss": int(rollup[rollup.index("Pss:") + 1]) / 1024,
    }


def under_fire(files: list[str], name: str, every: float, **options: Any) -> dict[str, Any]:
    """Read one pass while a random worker is killed about every ``every`` seconds (exponential); return its figures."""
    dice = random.Random(3)
    args = options.pop("args", None)
    with (
        pydp2.launch(files, ADDRESS + name, workers=2, args=args) as service,
        service.connect(batch_size=128, **options) as client,
    ):
        kills = 0
        over = threading.Event()
        delays: list[float] = []

        def shoot() -> None:
            nonlocal kills
            while not over.wait(dice.expovariate(1 / every)):
                before = service.stats()["workers"]
                victim = dice.choice([w for w in before if w["active"]] or before)
                try:
                    os.kill(victim["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    continue
                kills += 1
                began = time.perf_counter()
                while time.perf_counter() - began < 5 and not over.is_set():
                    now = service.stats()["workers"]
                    if victim["pid"] not in [w["pid"] for w in now] and sum(w["active"] for w in now) == 2:
                        delays.append(time.perf_counter() - began)
                        break

        gun = threading.Thread(target=shoot)
        gun.start()
        try:
            result = drain(client)
        finally:
            over.set()
            gun.join()
    delays.sort()
    replaced = delays[len(delays) // 2] if delays else 0.0
    return result | {"kills": kills, "replaced": replaced, "replaced_worst": delays[-1] if delays else 0.0}
