"""The processes of a run, read from /proc: which there are, what memory and processor time they have, and others took.

A run is told by a mark in its environment, which all its processes inherit, also those that nobody's child is any more.
Linux only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "PYDP2_BENCHMARK_RUN"
_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def of(mark: str) -> Iterator[int]:
    """Processes that live and carry ``mark``, as they are found; zombies are not."""
    wanted = f"{MARK}={mark}".encode()
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)
            except OSError:
                continue  # it ended while we looked, or is another user's


def cpu(mark: str | None = None) -> float:
    """Seconds of user and system time of a run, with those of its processes that ended and were waited for.

    Differences within a run are exact to about 10 ms for each process.
    """
    mark = os.environ.get(MARK, "") if mark is None else mark
    ticks = 0
    for pid in of(mark) if mark else (os.getpid(),):
        try:
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of children
    return ticks / _TICK


def busy() -> float:
    """Seconds that the machine's cores were not idle since it started, those included that its host kept from it."""
    user, nice, system, _, _, *rest = (
        int(text) for text in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + sum(rest)) / _TICK  # idle and waiting for disks are left out


class Meter:
    """What a stretch of a run costs, from when this is made."""

    def __init__(self) -> None:
        self._cpu, self._busy, self._began = cpu(), busy(), time.perf_counter()

    def stop(self) -> dict[str, float]:
        """cpu: seconds of the run's processes; others: the share of all cores that anybody else took meanwhile."""
        mine, taken, seconds = cpu() - self._cpu, busy() - self._busy, time.perf_counter() - self._began
        return {"cpu": mine, "others": max(0.0, taken - mine) / (seconds * (os.cpu_count() or 1))}


def pss(mark: str) -> int:
    """Bytes that the processes of a run have in memory: shared pages are divided among those who share them."""
    total = 0
    for pid in of(mark):
        try:
            words = (_PROC / str(pid) / "smaps_rollup").read_bytes().split()
            total += int(words[words.index(b"Pss:") + 1]) * 1024
        except (OSError, ValueError):
            continue
    return total


def end(mark: str, seconds: float = 5.0) -> int:
    """Kill what is left of a run and wait until it is gone; how many there were."""
    left = list(of(mark))
    deadline = time.monotonic() + seconds
    pids = left
    while pids and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
        pids = list(of(mark))
    return len(left)
