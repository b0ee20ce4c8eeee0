"""Summarise the stats of a service in one line, for ``serve`` and ``demo``. It prints nothing itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from pydp2_cli.output import count_text, size_text

_WAIT_WINDOW = 5.0  # seconds over which waits are measured
_SHOWN_WAIT = 2.0  # seconds of a wait for a store before it is shown
_HIGH_SHARE, _LOW_SHARE = 0.3, 0.1  # shares of their time that trainer or workers wait
Stats = Mapping[str, Any]

BOTTLENECK_TEXTS = {
    "workers": "the trainer waits for the workers",
    "trainer": "the workers wait for the trainer",
    "balanced": "neither waits much",
    "": "nothing to say yet",
}
"""Text for each value of the stats' ``bottleneck`` of one rank."""


class StatsLine:
    """Summary of the last few stats of a service."""

    def __init__(self) -> None:
        self._history: deque[Stats] = deque()

    def add_stats(self, stats: Stats) -> None:
        """Add the latest stats."""
        if self._history and _sample_count(stats) < _sample_count(self._history[-1]):
            self._history.clear()  # there is another trainer, and counting began again
        self._history.append(stats)
        while len(self._history) > 2 and stats["uptime_seconds"] - self._history[1]["uptime_seconds"] >= _WAIT_WINDOW:
            self._history.popleft()

    @property
    def progress(self) -> tuple[bool, int, int]:
        """Progress of the service: True if a trainer is attached, the pass, and the number of samples. If it changes, a
        new line should be written."""
        last = self._history[-1]
        return last["attached"], last["pass"], _sample_count(last)

    def parts(self) -> list[str]:
        """Return the parts of the line."""
        now = self._history[-1]
        workers = [worker for worker in now["workers"] if worker["active"]]
        memory = f"memory {size_text(now['memory'] + sum(worker['memory'] for worker in workers))}"
        hosts = now.get("hosts", ())
        at_work = count_text(len(workers), "worker")
        if hosts:
            at_work += f" on {count_text(len({worker['host'] for worker in workers}), 'host')}"
        waits = _store_text(now.get("remote"))
        if not now["attached"]:
            return [*waits, "no trainer is attached", at_work, memory]
        pool, jobs = now["pool"], now.get("jobs", {})
        parts = [
            *waits,
            *([_job_text(name, job) for name, job in jobs.items()] if len(jobs) > 1 else [_pass_text(now)]),
            f"{now['samples_per_second']:,.0f} samples/s",
            f"{now['batches_per_second']:,.1f} batches/s",
            f"pool {pool.get('samples', 0):,} ({size_text(pool.get('bytes', 0))})",
            *([at_work] if hosts else []),
            memory,
        ]
        trainer, workers_share = self._trainer_wait_share(), self._workers_wait_share()
        if trainer is not None:
            parts.append(f"trainer waits {trainer:.0%}")
        if workers_share is not None:
            parts.append(f"workers wait {workers_share:.0%}")
        if trainer is not None:
            parts.append(_bottleneck_text(trainer, workers_share or 0.0, jobs))
        return parts

    def _trainer_wait_share(self) -> float | None:
        """Return the share of the time in which the trainer has waited."""
        first, last = self._history[0]["trainer"], self._history[-1]["trainer"]
        return _wait_share(
            last["waited_seconds"] - first["waited_seconds"], last["worked_seconds"] - first["worked_seconds"]
        )

    def _workers_wait_share(self) -> float | None:
        """Return the share of the time in which workers have waited."""
        before = {worker["worker"]: worker for worker in self._history[0]["workers"]}
        idle = busy = 0.0
        for worker in self._history[-1]["workers"]:
            known = before.get(worker["worker"], {"idle_seconds": 0.0, "busy_seconds": 0.0})
            idle += worker["idle_seconds"] - known["idle_seconds"]
            busy += worker["busy_seconds"] - known["busy_seconds"]
        return _wait_share(idle, busy)


def _pass_text(stats: Stats) -> str:
    return f"pass {max(0, stats['pass'])}"


def _job_text(name: str, job: Stats) -> str:
    """Return the text for one of several jobs."""
    how = f"{job['samples_per_second']:,.0f} samples/s" if job["attached"] else "no trainer"
    return f"{name}: {_pass_text(job)}, {how}"


def _store_text(remote: Stats | None) -> list[str]:
    """Return a text if the service waits for a store of remote files, and has for a while."""
    if remote is None or not remote["waits_for"] or remote["waiting_seconds"] < _SHOWN_WAIT:
        return []
    return [f"waits for {remote['waits_for']}: {remote['reason']}, {remote['waiting_seconds']:.0f} s"]


def _sample_count(stats: Stats) -> int:
    return int(stats["samples"])


def _bottleneck_text(trainer: float, workers: float, jobs: Mapping[str, Stats]) -> str:
    """Return text with the bottleneck, from the shares of the time in which trainer and workers wait, and the ranks of
    ``jobs``."""
    from pydp2.system.late_rank import late_rank_name  # imported late: completion imports this module at every key

    if trainer > _LOW_SHARE and (late := late_rank_name(jobs.values())):
        return f"bottleneck: {late}"
    if trainer > _HIGH_SHARE:
        # If workers wait too, the trainer does not wait for them.
        return (
            "both wait: for short passes, or for the pool to fill" if workers > _HIGH_SHARE else "bottleneck: workers"
        )
    return "bottleneck: trainer" if trainer < _LOW_SHARE < workers else "no bottleneck"


def _wait_share(waited: float, worked: float) -> float | None:
    total = waited + worked
    return waited / total if total > 0 else None
