"""The page row that outlives a worker: which sample it is asking its generator for.

The worker writes it before every ``next()``; when the worker is gone, the row still says what was running. That is how
blame falls on one file and on no other (docs/architecture.md, "Deaths"). A row is shared memory of 8 int64.
"""

from __future__ import annotations

FIELDS = 8
FILE, ATTEMPT, ORDINAL, RUNNING, SINCE, PASS = range(6)


class Seat:
    """One row. Written by the worker that sits there, read by the server."""

    __slots__ = ("row",)

    def __init__(self, row: memoryview) -> None:
        self.row = row

    @property
    def running(self) -> tuple[int, int, int, int] | None:
        """(pass, file, attempt, ordinal) of the sample that the worker is asking for, or None between samples."""
        row = self.row
        return (row[PASS], row[FILE], row[ATTEMPT], row[ORDINAL]) if row[RUNNING] else None

    @property
    def since(self) -> int:
        """``time.monotonic_ns()`` when that began; kept only when the worker was told to."""
        return int(self.row[SINCE])
