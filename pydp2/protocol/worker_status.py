"""Define the status row of a worker, which survives the worker: it has the sample that the worker is asking its
generator for.

The worker writes it before every ``next()``; after the death of the worker, the row still has the sample that was
running. So exactly that file is blamed (docs/internals/deaths.md). A row is shared memory of 8 int64.
"""

from __future__ import annotations

FIELD_COUNT = 8
FILE, ATTEMPT, SAMPLE_INDEX, RUNNING, STARTED_NS, WORKER, WAITS_SINCE_NS, SINCE_NS = range(8)
NO_FILE = -1


class WorkerStatus:
    """Status row of one worker, which writes it; the server reads it."""

    __slots__ = ("_waited_ns", "row")

    def __init__(self, row: memoryview) -> None:
        self.row = row
        self._waited_ns = 0

    @property
    def running_sample(self) -> tuple[int, int, int] | None:
        """File, attempt and sample index of the sample that the worker is asking for, or None between samples.

        Attempts are numbered through all dispatches, so an attempt also tells the pass.
        """
        return self.last_sample if self.row[RUNNING] else None

    @property
    def last_sample(self) -> tuple[int, int, int] | None:
        """File, attempt and sample index of the last sample that the worker asked for; None: it has asked for none."""
        row = self.row
        return (row[FILE], row[ATTEMPT], row[SAMPLE_INDEX]) if row[FILE] != NO_FILE else None

    def file_of_worker(self, worker: int) -> int:
        """Return the file that ``worker`` is reading, or read last; NO_FILE before its first file, and if the row now
        belongs to another worker."""
        row = self.row
        return int(row[FILE]) if row[WORKER] == worker + 1 else NO_FILE  # + 1: a cleared row belongs to no worker

    @property
    def started_ns(self) -> int:
        """``time.monotonic_ns()`` at which that sample began, later by the time that it waited for a store; only if the
        worker was told to write it."""
        return int(self.row[STARTED_NS])

    @property
    def waits_for_store(self) -> bool:
        """True if the worker waits for blocks of a remote file."""
        return self.row[WAITS_SINCE_NS] != 0

    def seconds(self, now: float) -> float:
        """Return for how many seconds the worker has been in the generator, or, without a sample, has had nothing to
        do; 0.0 if it does something else. ``now``: ``time.monotonic()``."""
        since = self.row[SINCE_NS]
        return max(0.0, now - since / 1e9) if since else 0.0

    def store_seconds(self, now_ns: int) -> float:
        """Return, in the worker, how many seconds it has waited for a store so far."""
        since = self.row[WAITS_SINCE_NS]
        return (self._waited_ns + (now_ns - since if since else 0)) / 1e9

    def note_wait(self, begins: bool, now_ns: int) -> None:
        """Note, in the worker, that a wait for a store begins or is over. Waits of several threads count as one."""
        row = self.row
        if begins:
            row[WAITS_SINCE_NS] = row[WAITS_SINCE_NS] or now_ns
        elif since := row[WAITS_SINCE_NS]:  # 0: another thread has noted the end
            row[STARTED_NS] += now_ns - since
            self._waited_ns += now_ns - since
            row[WAITS_SINCE_NS] = 0
