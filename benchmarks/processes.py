"""The processes of a run, read from /proc: which there are, what memory and processor time they have, and others took.

A run is told by a mark in its environment, which all its processes inherit, also those that nobody's child is any more.
Linux only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MARK = "PYDP2_BENCHMARK_RUN"
SERVER, AGENT = "pydp2-server", "pydp2-host"  # what pydp2 names its processes in /proc
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


class Spent(NamedTuple):
    """Seconds of user and system time of one process, all its threads together.

    Args:
        children: of its processes that ended and were waited for.
    """

    pid: int
    name: str
    own: float
    children: float


def spent(mark: str | None = None) -> Iterator[Spent]:
    """What the processes of a run have taken; None: of the run that this process belongs to, or of this one alone.

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
    """Seconds of user and system time of a run, with those of its processes that ended and were waited for."""
    return _sum(spent(mark))


def busy() -> float:
    """Seconds that the machine's cores were not idle since it started, those included that its host kept from it."""
    user, nice, system, _, _, *rest = (
        int(text) for text in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + sum(rest)) / _TICK  # idle and waiting for disks are left out


def threads(pid: int) -> dict[int, float]:
    """Seconds of user and system time of each thread of a process, by its number; none if the process is gone."""
    found = {}
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            found[int(task.name)] = sum(int(text) for text in (task / "schedstat").read_text().split()[:1]) / 1e9
    except OSError:
        pass
    return found


class Meter:
    """What a stretch of a run costs, from when this is made."""

    def __init__(self) -> None:
        self._spent, self._own = list(spent()), time.process_time()
        self._threads = {one.pid: threads(one.pid) for one in self._spent if one.name == SERVER}
        self._busy, self._began = busy(), time.perf_counter()

    def stop(self) -> dict[str, float | None]:
        """Say what it cost.

        Returns:
            cpu: seconds of all processes of the run; trainer_cpu: of this process alone; server_cpu: of pydp2's
            server, None where there is none, server_thread_cpu: of its busiest thread; agent_cpu: of the agents of
            hosts, None where there is none; others: the share of all cores that anybody else took meanwhile.
        """
        own, now = time.process_time() - self._own, list(spent())
        mine = _sum(now) - _sum(self._spent)
        taken, seconds = busy() - self._busy, time.perf_counter() - self._began
        return {
            "cpu": mine,
            "trainer_cpu": own,
            "server_cpu": self._of(SERVER, now),
            "server_thread_cpu": self._of_busiest_thread(),
            "agent_cpu": self._of(AGENT, now),
            "others": max(0.0, taken - mine) / (seconds * (os.cpu_count() or 1)),
        }

    def _of(self, name: str, now: list[Spent]) -> float | None:
        """Seconds of the processes of this name, without those of their children that ended."""
        before = {one.pid: one.own for one in self._spent}
        taken = [one.own - before.get(one.pid, 0.0) for one in now if one.name == name]
        return sum(taken) if taken else None

    def _of_busiest_thread(self) -> float | None:
        """Seconds of the thread of a server that took most."""
        taken = [
            seconds - before.get(number, 0.0)
            for pid, before in self._threads.items()
            for number, seconds in threads(pid).items()
        ]
        return max(taken, default=None)


def _sum(times: Iterable[Spent]) -> float:
    return sum(one.own + one.children for one in times)


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
