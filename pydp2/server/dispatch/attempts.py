"""Numbers for attempts: one count for all dispatches of a service, and whose each one is.

So late output of a dispatch, of a worker or of an attempt that was given up never passes for that of another.
"""

from __future__ import annotations

from typing import Generic, TypeVar

R = TypeVar("R")


class Attempts(Generic[R]):
    """Attempts that are under way, each with the dispatcher that it belongs to."""

    def __init__(self) -> None:
        self._last = 0
        self._of: dict[int, R] = {}

    def begin(self, dispatcher: R) -> int:
        """Begin an attempt and return its number."""
        self._last += 1
        self._of[self._last] = dispatcher
        return self._last

    def dispatcher_of(self, attempt: int) -> R | None:
        """Return the dispatcher whose ``attempt`` is under way; None when it is over."""
        return self._of.get(attempt)

    def end(self, attempt: int) -> None:
        """Note that ``attempt`` ended or was given up."""
        self._of.pop(attempt, None)
