"""Advise how many workers a service should have, from what its trainers wait for (docs/hosts.md, "How many workers").

Trainers that wait for a share of their time would take that much more: demand is the rate of samples that they got,
divided by the share of their time that they did not wait. Supply is what a worker gives in a second of work. Nothing
here reads a clock: times are arguments.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

WINDOW_SECONDS = 30.0
"""Seconds that demand and supply are taken over."""
UP_SECONDS, DOWN_SECONDS = 10.0, 120.0
"""More workers are advised once they are wanted for so long, fewer once so."""
_MARGIN = 1.1  # workers more than the ratio says, so that trainers do not wait
_DOWN_SHARE = 0.8  # fewer are advised if so many of those that there are would do
_MAX_WAIT = 0.95  # share of waiting that demand is computed from: above that it says little
_WAITS = 0.05  # share of their time that trainers may wait before more workers could help
_IDLE = 0.3  # share of their time that workers may have nothing to do while trainers wait
_SERVER_BUSY = 0.85
_LEAST_SECONDS = 3.0  # before that there is nothing to say


class Totals(NamedTuple):
    """What was counted since the service began. ``samples`` that trainers got; seconds that trainers ``waited`` and
    ``worked``; ``read``: samples that workers sent; seconds that these were ``busy`` and ``idle``; seconds that the
    server's loop was at work."""

    samples: int
    waited: float
    worked: float
    read: int
    busy: float
    idle: float
    server: float


@dataclass(frozen=True)
class ScalingAdvice:
    """Advice on the number of workers. ``wanted``: how many there should be; ``reason``: why, in words; ``demand`` and
    ``supply``: samples a second that trainers would take, and that a worker gives, 0.0 where it is not known."""

    wanted: int
    reason: str
    demand: float = 0.0
    supply: float = 0.0

    def to_plain(self, present: int) -> dict[str, Any]:
        """Return it as plain data, beside the number of workers that there are."""
        wanted = self.wanted if self.supply else present  # it may be older than the last host
        return {
            "workers": present,
            "wanted": wanted,
            "reason": self.reason,
            "demand": round(self.demand, 3),
            "supply": round(self.supply, 3),
        }


class ScalingAdvisor:
    """Adviser of one service. Give it totals about once a second."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, Totals]] = deque()
        self._beyond_since: float | None = None  # since when more are wanted than there are
        self._below_since: float | None = None
        self.advice = ScalingAdvice(0, "nothing to say yet")

    def add(self, now: float, totals: Totals, workers: int, *, attached: bool) -> None:
        """Add what was counted until ``now``; ``workers``: how many there are to be now; ``attached``: a trainer
        reads."""
        self._points.append((now, totals))
        while now - self._points[0][0] > WINDOW_SECONDS and len(self._points) > 2:
            self._points.popleft()
        found = self._estimate(workers, attached=attached)
        self._beyond_since = _since(self._beyond_since, now, found.wanted > workers)
        self._below_since = _since(self._below_since, now, found.wanted < _DOWN_SHARE * workers)
        is_early = self._beyond_since is not None and now - self._beyond_since < UP_SECONDS
        is_late = self._below_since is not None and now - self._below_since >= DOWN_SECONDS
        change = (found.wanted > workers and not is_early) or (found.wanted < workers and is_late)
        held = found.wanted if change else workers
        self.advice = ScalingAdvice(held, found.reason, found.demand, found.supply)

    def _estimate(self, workers: int, *, attached: bool) -> ScalingAdvice:
        (began, first), (ended, last) = self._points[0], self._points[-1]
        seconds = ended - began
        spent = Totals(*(max(0, b - a) for a, b in zip(first, last, strict=True)))  # type: ignore[arg-type]
        if not attached:
            return ScalingAdvice(workers, "no trainer is attached")
        if seconds < _LEAST_SECONDS or not spent.samples:
            return ScalingAdvice(workers, "nothing to say yet")
        waits = spent.waited / max(spent.waited + spent.worked, 1e-9)
        demand = spent.samples / seconds / (1 - min(waits, _MAX_WAIT))
        if not spent.read or spent.busy <= 0:
            return ScalingAdvice(workers, "samples come from the cache", demand)
        supply = spent.read / spent.busy
        wanted = max(1, math.ceil(_MARGIN * demand / supply))
        if wanted > workers:
            return ScalingAdvice(*self._limited(workers, wanted, waits, spent, seconds), demand, supply)
        why = "workers wait for the trainers" if wanted < workers else "trainers and workers keep up with each other"
        return ScalingAdvice(wanted, why, demand, supply)

    def _limited(self, workers: int, wanted: int, waits: float, spent: Totals, seconds: float) -> tuple[int, str]:
        """Return how many workers would help where ``wanted`` are, and why."""
        if waits < _WAITS:
            return workers, "trainers and workers keep up with each other"
        if spent.server / seconds > _SERVER_BUSY:
            return workers, f"the server is busy for {spent.server / seconds:.0%} of the time: more would not help"
        if spent.idle / max(spent.busy + spent.idle, 1e-9) > _IDLE:
            return (
                workers,
                "workers wait for their turn: a larger interleave would help, more workers would not",
            )
        return wanted, f"trainers wait for {waits:.0%} of their time"


def _since(since: float | None, now: float, holds: bool) -> float | None:
    """Return since when something holds that held since ``since``."""
    return (now if since is None else since) if holds else None
