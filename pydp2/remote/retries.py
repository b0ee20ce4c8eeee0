"""Decide when a request that has failed is made again. Pure: time and chance are arguments."""

from __future__ import annotations

FIRST_SECONDS = 0.2
TIMEOUT_SECONDS = 900.0
_LONGEST = 128  # times the first delay


class Retries:
    """Retries of one request, until ``timeout`` seconds have passed since its first failure.

    The delays double, from ``first`` seconds to 128 times as many. Each is shortened by up to a half by chance, so that
    processes which were refused together do not come back together.
    """

    def __init__(self, timeout: float, first: float = FIRST_SECONDS) -> None:
        self._timeout, self._first = timeout, first
        self._since: float | None = None  # time of the first failure
        self.failures = 0
        """Number of failures."""

    def delay(self, now: float, chance: float) -> float | None:
        """Return the seconds to wait after a failure at ``now``; None: give up. ``chance``: a random number in
        [0, 1)."""
        if self._since is None:
            self._since = now
        left = self._since + self._timeout - now
        if left <= 0:
            return None
        longest = self._first * min(_LONGEST, 1 << min(self.failures, 30))
        self.failures += 1
        return min(left, longest * (1 - chance / 2))

    def seconds(self, now: float) -> float:
        """Return the seconds since the first failure."""
        return 0.0 if self._since is None else now - self._since
