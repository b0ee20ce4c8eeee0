"""Find the rank that the others of its job wait for, in the statistics of a service. Server and diagnostics call the
bottleneck by the same rule. Pure: no clock, no IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

LITTLE = 0.1
"""Share of its time that a trainer may wait and still count as fed."""
STALLED_SECONDS = 1.0
"""Seconds that a rank waits before something holds it up."""
_GONE = 1.0  # seconds without a sign of life after which a rank without a connection counts as gone
_SLOWER = 1.5  # ratio of the work with a batch from which a rank is slower than the others
_FEW_STEPS = 8  # steps before a rank is compared with others

Rank = Mapping[str, Any]
"""Statistics of a rank."""


class Lateness(Enum):
    """Reason for which others wait for a rank."""

    GONE = "it is gone in the middle of a pass"
    SLOW = "it works much longer with a batch than the others, and has batches ready"
    STALLED = "it asks for nothing, although another rank waits"


def late_rank(ranks: Sequence[Rank]) -> tuple[Rank, Lateness] | None:
    """Return the one of ``ranks`` that the others wait for, and why; None: there is none."""
    for rank in ranks:
        if not rank["connected"] and rank["state"] == "in" and rank["silent_seconds"] > _GONE:
            return rank, Lateness.GONE
    if (slow := _slow_rank(ranks)) is not None:
        return slow, Lateness.SLOW
    if longest_wait(ranks) <= STALLED_SECONDS:
        return None
    silent = [rank for rank in ranks if not rank["waiting_seconds"] and rank["silent_seconds"] > STALLED_SECONDS]
    return (max(silent, key=lambda rank: rank["silent_seconds"]), Lateness.STALLED) if silent else None


def late_rank_name(jobs: Iterable[Mapping[str, Any]]) -> str:
    """Return the name of the first late rank of ``jobs``, by their statistics; "" if there is none."""
    found = (late_rank(job["ranks"]) for job in jobs)
    return next((str(late[0]["name"]) for late in found if late is not None), "")


def _slow_rank(ranks: Sequence[Rank]) -> Rank | None:
    if len(ranks) < 2 or min(rank["steps"] for rank in ranks) < _FEW_STEPS:
        return None
    *_, others, slow = sorted(ranks, key=seconds_of_work)
    is_slower = seconds_of_work(slow) > _SLOWER * seconds_of_work(others)
    is_waited_for = any(rank["exposed"] > LITTLE for rank in ranks)
    return slow if is_waited_for and is_slower and slow["exposed"] <= LITTLE and slow["batches_ahead"] else None


def longest_wait(ranks: Sequence[Rank]) -> float:
    """Return the seconds of the longest wait under way of ``ranks``, 0.0 if none waits."""
    return float(max((rank["waiting_seconds"] for rank in ranks), default=0.0))


def seconds_of_work(rank: Rank) -> float:
    """Return how long ``rank`` works with a batch."""
    return float(rank["step_seconds"] - rank["wait_seconds"])
