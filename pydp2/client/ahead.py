"""How many batches a trainer asks for before it takes them: ``prefetch``, and of small ones more.

Who shares a job says of each batch at once that it is used, and takes no more than it was told to: what lies at one is
missing to the others. A job of one trainer asks for many small batches at a time, because each message has its price.
"""

from __future__ import annotations

AHEAD_BYTES = 512 * 1024
"""So much may be on its way to a trainer that has a job of its own."""
SHOWN_BYTES = 8 * 1024 * 1024
"""Of rows that stay where the service shows them: a message has their numbers, and nothing is copied before a batch is
taken."""
_MOST = 64


class Ahead:
    """What is asked for and not taken. ``least``: ``prefetch``."""

    def __init__(self, least: int, *, alone: bool) -> None:
        self._least = self._aim = least
        self._alone = alone
        self._asked = 0
        self._unsaid = False  # batches were taken

    def begin(self) -> int:
        """A run begins: so many are asked for with that."""
        self._asked = self._least
        self._unsaid = False
        return self._least

    def due(self, *, now: bool = False) -> int | None:
        """One is taken next: how many to ask for, or None when nothing has to be said. ``now``: what was taken has to
        be said."""
        missing = max(0, self._aim + 1 - self._asked)
        enough = max(1, (self._aim + 1) // 2) if self._alone else 1
        if missing < enough and not (now and self._unsaid):
            return None
        self._unsaid = False
        self._asked += missing
        return missing

    def took(self, nbytes: int, *, shown: bool = False) -> None:
        """A batch of so many bytes was taken; ``shown``: they lay in memory that the service shows."""
        self._asked -= 1
        self._unsaid = True
        if self._alone:
            self._aim = max(self._least, min(_MOST, (SHOWN_BYTES if shown else AHEAD_BYTES) // max(1, nbytes)))
