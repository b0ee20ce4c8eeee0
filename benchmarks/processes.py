"""Find the processes of a run in /proc, their memory and processor time, and the processor time of other processes.

A mark in the environment identifies a run: all its processes inherit it, also orphans. Linux only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MARK = "PYDP2_BENCHMARK_RUN"
SERVER, AGENT = "pydp2-server", "pydp2-host"  # names of pydp2's processes in /proc
_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def of(mark: str) -> Iterator[int]:
    """Yield the pids of running processes that have ``mark`` in their environment; zombies have none."""
    wanted = f"{MARK}={mark}".encode()
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)
            except OSError:
                continue  # it has just ended, or belongs to another user


class Spent(NamedTuple):
    """Seconds of user and system time of one process, all its threads together.

    Args:
        children: seconds of its child processes that ended and were waited for.
    """

    pid: int
    name: str
    own: float
    children: float


def spent(mark: str | None = None) -> Iterator[Spent]:
    """Yield the times of the processes of a run. None: the run to which this process belongs, or this process alone.

    Differences within a run are exact to about 10 ms for each process.
    """
    mark = os.environ.get(MARK, "") if mark is None else mark
    for pid in of(mark) if mark else (os.getpid(),):
        try:
            before, _, after = (_PROC / str(pid) / "stat").read_text().rpartition(")")
        except OSError:
            continue
        user, system, *children = (int(text) / _TICK for text in after.split()[11:15])
        yield Spent(pid, before.partition("(")[2], user + system, sum(children))


def cpu(mark: str | None = None) -> float:
    """Return the seconds of user and system time of a run, including processes that ended and were waited for."""
    return _sum(spent(mark))


def busy() -> float:
    """Return the seconds in which the cores of the machine were not idle since its start, including time that a
    hypervisor took (steal)."""
    user, nice, system, _, _, *rest = (
        int(text) for text in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + sum(rest)) / _TICK  # without idle time and waiting for disks


def threads(pid: int) -> dict[int, float]:
    """Return the seconds of user and system time of each thread of a process, by its id; {} if there is no process."""
    found = {}
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            found[int(task.name)] = sum(int(text) for text in (task / "schedstat").read_text().split()[:1]) / 1e9
    except OSError:
        pass
    return found


class Meter:
    """Meter of the cost of a part of a run, which begins when the meter is made."""

    def __init__(self) -> None:
        self._spent, self._own = list(spent()), time.process_time()
        self._threads = {process.pid: threads(process.pid) for process in self._spent if process.name == SERVER}
        self._busy, self._began = busy(), time.perf_counter()

    def stop(self) -> dict[str, float | None]:
        """Return the cost.

        Returns:
            cpu: seconds of all processes of the run; trainer_cpu: those of this process; server_cpu: those of pydp2's
            server, None if there is none, server_thread_cpu: those of its busiest thread; agent_cpu: those of the
            agents of hosts, None if there are none; others: share of all cores that other processes took meanwhile.
        """
        own, now = time.process_time() - self._own, list(spent())
        own_seconds = _sum(now) - _sum(self._spent)
        taken, seconds = busy() - self._busy, time.perf_counter() - self._began
        return {
            "cpu": own_seconds,
            "trainer_cpu": own,
            "server_cpu": self._of(SERVER, now),
            "server_thread_cpu": self._of_busiest_thread(),
            "agent_cpu": self._of(AGENT, now),
            "others": max(0.0, taken - own_seconds) / (seconds * (os.cpu_count() or 1)),
        }

    def _of(self, name: str, now: list[Spent]) -> float | None:
        """Return the seconds of the processes of this name, without children that ended."""
        before = {process.pid: process.own for process in self._spent}
        taken = [process.own - before.get(process.pid, 0.0) for process in now if process.name == name]
        return sum(taken) if taken else None

    def _of_busiest_thread(self) -> float | None:
        """Return the seconds of the busiest thread of a server."""
        taken = [
            seconds - before.get(number, 0.0)
            for pid, before in self._threads.items()
            for number, seconds in threads(pid).items()
        ]
        return max(taken, default=None)


def _sum(times: Iterable[Spent]) -> float:
    return sum(process.own + process.children for process in times)


def pss(mark: str) -> int:
    """Return the bytes of memory of the processes of a run; shared pages are divided among their processes."""
    total = 0
    for pid in of(mark):
        try:
            words = (_PROC / str(pid) / "smaps_rollup").read_bytes().split()
            total += int(words[words.index(b"Pss:") + 1]) * 1024
        except (OSError, ValueError):
            continue
    return total


def end(mark: str, seconds: float = 5.0) -> int:
    """Kill the remaining processes of a run and wait until they have ended; return their number."""
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
