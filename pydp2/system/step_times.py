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
    """Times of the last steps, at most ``most`` entries. An entry may stand for several steps."""

    def __init__(self, most: int = LAST) -> None:
        self.steps = 0
        """Number of all steps."""
        self._last: deque[tuple[float, float, int]] = deque(maxlen=most)

    def add(self, waited: float, worked: float, steps: int = 1) -> None:
        """Add ``steps`` steps, at least one, that took ``waited`` and ``worked`` seconds together."""
        self.steps += steps
        self._last.append((waited, worked, steps))

    def clear(self) -> None:
        """Forget all steps but their number."""
        self._last.clear()

    def summary(self) -> dict[str, float]:
        """Return the shares and times of the last steps, 0 without any: ``exposed`` of the whole time, its quantiles
        over the steps, and the seconds of a step and of its wait."""
        waited, worked, steps = (sum(column) for column in zip(*self._last, strict=True)) if self._last else (0, 0, 0)
        shares = sorted((_share(waited, worked), steps) for waited, worked, steps in self._last)
        return {
            "exposed": _share(waited, worked),
            "exposed_p50": _quantile(shares, 0.5),
            "exposed_p99": _quantile(shares, 0.99),
            "step_seconds": (waited + worked) / max(1, steps),
            "wait_seconds": waited / max(1, steps),
        }


def _share(waited: float, worked: float) -> float:
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
