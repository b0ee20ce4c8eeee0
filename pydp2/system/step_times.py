"""Sum up how long a trainer waited in its last steps, and how long it worked. It reads no clock: times are arguments.

A step is a wait for a batch and the work with it. Its *exposed* share is the wait's part of it: what the trainer would
save if batches were always there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

LAST = 128
"""Number of entries that the figures are made of."""


class StepTimes:
    """Times of steps. Quantiles are of the last ``most`` entries. An entry may stand for several steps."""

    def __init__(self, most: int = LAST) -> None:
        self.steps = 0
        """Number of all steps."""
        self.waited = self.worked = 0.0
        """Seconds of all of them."""
        self._last: deque[tuple[float, float, int]] = deque(maxlen=most)

    def add(self, waited: float, worked: float, steps: int = 1) -> None:
        """Add ``steps`` steps that took ``waited`` and ``worked`` seconds together; 0 for a wait that gave no batch."""
        self.steps += steps
        self.waited += waited
        self.worked += worked
        self._last.append((waited, worked, steps))

    def summary(self, waiting: float = 0.0) -> dict[str, float]:
        """Return the shares and times of the last steps, 0 without any: ``exposed`` of the whole time, its quantiles
        over the steps, and the seconds of a step and of its wait. ``waiting``: seconds of a wait under way, which only
        ``exposed`` has."""
        last = [*self._last]  # another thread may add to it
        waited, worked, steps = (sum(column) for column in zip(*last, strict=True)) if last else (0, 0, 0)
        shares = sorted((share_of(waited, worked), steps) for waited, worked, steps in last)
        return {
            "exposed": share_of(waited + waiting, worked),
            "exposed_p50": _quantile(shares, 0.5),
            "exposed_p99": _quantile(shares, 0.99),
            "step_seconds": (waited + worked) / max(1, steps),
            "wait_seconds": waited / max(1, steps),
        }


def share_of(waited: float, worked: float) -> float:
    """Return the exposed share of ``waited`` and ``worked`` seconds, 0.0 without any."""
    total = waited + worked
    return waited / total if total > 0 else 0.0


def _quantile(values: Sequence[tuple[float, int]], part: float) -> float:
    """Return the least value that at least ``part`` of all do not exceed; values are sorted, with their numbers."""
    wanted, seen = part * sum(count for _, count in values), 0
    for value, count in values:
        seen += count
        if seen >= wanted:
            return value
    return 0.0
