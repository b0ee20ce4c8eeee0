"""Compute a rate over the last seconds, from counts with times. It reads no clock: times are arguments."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np

_WINDOW = 5.0  # seconds
_LONGEST_WINDOW = 60.0
_INTERVALS = 4  # the window has so many at least: counts may come seconds apart, or many at once
_BUCKET = 0.25
_LEAST_SPAN = 1.0  # seconds: shorter ones say nothing


class RateCounter:
    """Counter of a rate: what is counted at a time was done in the interval since the count before. A count of 0 says
    that work begins."""

    def __init__(self) -> None:
        self.total = 0
        self._points: deque[tuple[float, int]] = deque()  # times, and the totals then

    def add(self, now: float, count: int) -> None:
        """Count ``count`` more at time ``now`` (seconds, monotonic)."""
        points = self._points
        if not points:
            points.append((now - _LEAST_SPAN if count else now, self.total))
        elif len(points) > 1 and now - points[-2][0] <= _BUCKET:
            points.pop()
        self.total += count
        points.append((now, self.total))
        while len(points) > _INTERVALS + 1 and points[1][0] <= now - _WINDOW:
            points.popleft()

    def per_second(self, now: float) -> float:
        """Return the rate over the last five seconds, or if that is longer over the last few intervals, up to a minute.
        A silence counts once it is longer than these intervals."""
        if not self._points:
            return 0.0
        times = [time for time, _ in self._points]
        last = times[-_INTERVALS - 1 :]
        window = min(max(_WINDOW, last[-1] - last[0]), _LONGEST_WINDOW)
        end = max(last[-1], now - max(later - before for before, later in pairwise(last)))
        begin = max(end - window, times[0])
        done, total = np.interp([begin, end], times, [total for _, total in self._points])
        return float(total - done) / max(end - begin, _LEAST_SPAN)
