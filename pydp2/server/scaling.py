"""Advise how many workers a service should have, from the time that its trainers wait (docs/hosts.md, "How many
workers").

Demand is the rate at which trainers would take samples if they never waited: the rate that they got, divided by the
share of their time in which they did not wait. Supply is the number of samples that a worker gives per second of work.
Nothing here reads a clock: times are arguments.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydp2.errors import count_text

WINDOW_SECONDS = 30.0
"""Seconds over which demand and supply are measured."""
UP_SECONDS, DOWN_SECONDS = 10.0, 120.0
"""Seconds for which more workers, or fewer, must be wanted before they are advised."""
_MARGIN = 1.1  # factor on the ratio of demand and supply, so that trainers do not wait
_DOWN_SHARE = 0.8  # share of the present workers that must be enough before fewer are advised
_MAX_WAIT = 0.95  # largest share of waiting from which demand is computed: a larger one says little
_WAITS = 0.05  # share of their time that trainers may wait before more workers are wanted
_IDLE = 0.3  # share of their time that workers may be idle while trainers wait
_SERVER_BUSY = 0.85  # share of the time that the server's loop may be busy before more workers would not help
_KEEP_UP = "trainers and workers keep up with each other"
_COMPUTES = 0.5  # share of its busy time from which a worker needs a core of its own
_LEAST_SECONDS = 3.0  # seconds that must be measured before there is any advice


class Totals(NamedTuple):
    """Totals since the service began.

    ``samples``: samples that trainers got; ``waited``, ``worked``: seconds of trainers; ``read``: samples that workers
    sent; ``busy``, ``idle``: seconds of workers; ``server``: seconds in which the server's loop was busy; ``computed``:
    seconds in which workers of this machine computed or waited for a core."""

    samples: int
    waited: float
    worked: float
    read: int
    busy: float
    idle: float
    server: float
    computed: float = 0.0


class Limits(NamedTuple):
    """Limits of the number of workers that help. ``files``: files that can be read at a time, each by one worker;
    ``cores``: cores for workers; None: there is no limit."""

    files: int | None = None
    cores: int | None = None


@dataclass(frozen=True)
class ScalingAdvice:
    """Advice on the number of workers. ``wanted``: how many there should be; ``reason``: why, as text; ``demand`` and
    ``supply``: samples per second that trainers would take, and that a worker gives; 0.0 if it is not known;
    ``limited_by``: what keeps more workers from helping: "files", "cores", "server" or "turns"; "": nothing."""

    wanted: int
    reason: str
    demand: float = 0.0
    supply: float = 0.0
    limited_by: str = ""

    def to_plain(self, present: int) -> dict[str, Any]:
        """Return the advice as plain data, with ``present``, the number of workers."""
        wanted = self.wanted if self.supply else present  # the advice may be older than the newest host
        return {
            "workers": present,
            "wanted": wanted,
            "reason": self.reason,
            "demand": round(self.demand, 3),
            "supply": round(self.supply, 3),
            "limited_by": self.limited_by,
        }


_UNLIMITED = Limits()


class ScalingAdvisor:
    """Adviser of one service. Call :meth:`add` about once a second."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, Totals]] = deque()
        self._beyond_since: float | None = None  # time since which more workers are wanted than there are
        self._below_since: float | None = None
        self.advice = ScalingAdvice(0, "nothing to say yet")

    def add(self, now: float, totals: Totals, workers: int, *, attached: bool, limits: Limits = _UNLIMITED) -> None:
        """Add the totals at the time ``now``; ``workers``: number of workers that the service runs now; ``attached``: a
        trainer is attached."""
        self._points.append((now, totals))
        while now - self._points[0][0] > WINDOW_SECONDS and len(self._points) > 2:
            self._points.popleft()
        found = self._estimate(workers, limits, attached=attached)
        self._beyond_since = _since(self._beyond_since, now, found.wanted > workers)
        self._below_since = _since(self._below_since, now, found.wanted < _DOWN_SHARE * workers)
        is_early = self._beyond_since is not None and now - self._beyond_since < UP_SECONDS
        is_late = self._below_since is not None and now - self._below_since >= DOWN_SECONDS
        change = (found.wanted > workers and not is_early) or (found.wanted < workers and is_late)
        wanted = found.wanted if change else workers
        limited_by = "" if wanted < found.wanted else found.limited_by  # more than there are would help
        self.advice = replace(found, wanted=wanted, limited_by=limited_by)

    def _estimate(self, workers: int, limits: Limits, *, attached: bool) -> ScalingAdvice:
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
            if waits < _WAITS:
                return ScalingAdvice(workers, _KEEP_UP, demand, supply)
            most, reason, limited_by = self._limit(wanted, spent, seconds, limits)
            if limited_by:
                return ScalingAdvice(max(workers, min(wanted, most)), reason, demand, supply, limited_by)
            return ScalingAdvice(wanted, f"trainers wait for {waits:.0%} of their time", demand, supply)
        why = "workers wait for the trainers" if wanted < workers else _KEEP_UP
        return ScalingAdvice(wanted, why, demand, supply)

    def _limit(self, wanted: int, spent: Totals, seconds: float, limits: Limits) -> tuple[int, str, str]:
        """Return how many workers help at most where the ratio says ``wanted``, the reason as text, and what limits
        them; "" for nothing. 0 workers stand for those that there are."""
        if spent.server / seconds > _SERVER_BUSY:
            busy = f"{spent.server / seconds:.0%}"
            return 0, f"the server is busy for {busy} of the time: more would not help", "server"
        need = spent.computed / spent.busy  # cores that a worker needs while it is busy
        by_cores = wanted if limits.cores is None else _most_on(limits.cores, need, wanted)
        by_files = wanted if limits.files is None else limits.files
        if by_files < wanted and by_files <= by_cores:
            text = f"{count_text(by_files, 'file')} can be read at a time: cut files into parts (?part=1/8)"
            return by_files, text, "files"
        if spent.idle / max(spent.busy + spent.idle, 1e-9) > _IDLE:
            return 0, "workers wait for their turn: a larger interleave would help, more workers would not", "turns"
        if by_cores < wanted:
            text = f"workers compute, and {count_text(limits.cores or 0, 'core')} can run no more of them"
            return by_cores, text, "cores"
        return wanted, "", ""


def _most_on(cores: int, need: float, wanted: int) -> int:
    """Return how many of the ``wanted`` workers run on ``cores``: one on each, unless a worker computes or waits for a
    core (``need``) for less than half of its time."""
    return cores if need >= _COMPUTES else min(wanted, int(cores / max(need, 1e-9)))


def _since(since: float | None, now: float, holds: bool) -> float | None:
    """Return the time since which a condition holds: ``since``, or ``now`` if it began just now; None if it does not
    hold."""
    return (now if since is None else since) if holds else None
