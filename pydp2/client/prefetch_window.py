"""Decide how many batches a trainer asks for before it takes them: ``prefetch``, more if they are small, as many as
``prefetch_bytes`` hold if they are large.

A trainer asks for many small batches at a time, because each message has its price, and says then which it has used.
Where the service cannot see otherwise what a rank has used, it sends a message for each batch. So does a trainer of
``share="dynamic"``, which has no more than ``prefetch`` of them: batches that lie at one trainer are missing to the
others.
"""

from __future__ import annotations

from pydp2.protocol.batch_packing import BATCH_COST

WINDOW_BYTES = 512 * 1024
"""Number of bytes that may be on their way to a trainer that asks for many batches at a time."""
WIDE_WINDOW_BYTES = 8 * 1024 * 1024
"""The same number for rows that stay where the service shows them, because a message has their numbers, and nothing is
copied before a batch is taken; and for a service that may be on another host, because a round trip takes long."""
_MAX_BATCHES = 64


class PrefetchWindow:
    """Window of batches asked for and not taken. ``least``: ``prefetch``; ``limit``: ``prefetch_bytes``, beyond which
    the service sends nothing before it is told what was used. ``grows``: there may be more than ``prefetch`` if they
    are small. ``remote``: the service may be on another host. ``done``: how many batches of the run were taken."""

    def __init__(self, least: int, limit: int, *, prompt: bool, grows: bool = True, remote: bool = False) -> None:
        self._prefetch = self._aim = least
        self._limit = limit
        self._grows, self._remote = grows, remote
        self.prompt = prompt
        """True if a message says of each batch at once that it is used."""
        self._requested = self._reported = 0  # batches of the run: asked for, and reported as taken
        self._abandoned_count = False  # batches of a run that was left were read, and the service was not told

    def start_pass(self) -> int:
        """Begin a run and return how many batches are asked for with that."""
        self._requested, self._reported = self._prefetch, 0
        return self._prefetch

    def next_request(self, done: int, *, now: bool = False) -> int | None:
        """Return how many batches to ask for before one is taken, or None when nothing has to be sent. ``now``: what
        was taken has to be reported."""
        missing = max(0, self._aim + 1 - (self._requested - done))
        enough = 1 if self.prompt else max(1, (self._aim + 1) // 2)
        unsaid = done - self._reported
        if max(missing, unsaid) < enough and not (now and (unsaid or self._abandoned_count)):
            return None
        return missing

    def note_requested(self, count: int, done: int) -> None:
        """Note that ``count`` more were asked for, and that the service was told that the first ``done`` were taken."""
        self._requested, self._reported, self._abandoned_count = self._requested + count, done, False

    def note_taken(self, nbytes: int, columns: int, *, shown: bool = False) -> None:
        """Note that a batch was taken: ``nbytes`` of it lay here or were held for it, and its columns have ``columns``
        bytes; ``shown``: they lie in memory that the service shows."""
        if not self._grows:
            return
        window = WIDE_WINDOW_BYTES if shown or self._remote else WINDOW_BYTES
        more = max(self._prefetch, min(_MAX_BATCHES, window // max(1, nbytes)))
        self._aim = max(1, min(more, self._limit // (columns + BATCH_COST) - 1))  # one is in use

    def note_abandoned(self) -> None:
        """Note that a batch of a run that was left was read: the service counts it until it is told."""
        self._abandoned_count = True
