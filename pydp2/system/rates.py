"""Compute a rate over the last seconds, from counts with times. It reads no clock: times are arguments."""

from __future__ import annotations

from collections import deque

_WINDOW = 5.0
_BUCKET = 0.25


class RateCounter:
    """Counter of a rate, in small buckets of time."""

    def __init__(self) -> None:
        self.total = 0
        self._buckets: deque[list[float]] = deque()  # [begin, count]

    def add(self, now: float, count: int) -> None:
        """Count ``count`` more at time ``now`` (seconds, monotonic)."""
        self.total += count
        if not self._buckets or now - self._buckets[-1][0] > _BUCKET:
            self._buckets.append([now, 0])
            self._trim(now)
        self._buckets[-1][1] += count

    def per_second(self, now: float) -> float:
        """Return the rate over the last five seconds, or since the first count if that is less."""
        self._trim(now)
        if not self._buckets:
            return 0.0
        span = max(now - self._buckets[0][0], _BUCKET)
        return sum(count for _, count in self._buckets) / span

    def _trim(self, now: float) -> None:
        while self._buckets and now - self._buckets[0][0] > _WINDOW:
            self._buckets.popleft()
