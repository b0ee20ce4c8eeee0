"""Tell what a worker is doing, and estimate how long it does what, by looking at its status row now and then.

A worker does not measure its stages: that would cost more than many a sample takes. It says in its row whether it asks
the generator for a sample, and whether it waits for a store meanwhile. Whoever looks fifty times a second counts each
look as the time since the one before. So the figures are estimates, which get better with the number of looks. What a
worker does beside (checks, packing, sending, waiting for something to do) is the rest of its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydp2.errors import without_secrets
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.remote import shown_url

LOOK_SECONDS = 0.02
"""Seconds between two looks, unless the loop that looks is asleep."""
_LONGEST = 0.25  # seconds that one look stands for at most, unless the sample is the one of the look before
NO_ACTIVITY: dict[str, Any] = {
    "file": None,
    "sample": None,
    "sample_seconds": 0.0,
    "waits_for_store": False,
    "generator_seconds": 0.0,
    "storage_seconds": 0.0,
}
"""Activity of a worker that nobody looks at: entry and number of the sample that it is asking for (None: none), for how
many seconds, whether it waits for a store, and the estimates."""


@dataclass(slots=True)
class WorkerActivity:
    """Activity of one worker.

    ``longest``: seconds that one look stands for at most, unless the sample is the one of the look before.
    ``generator_seconds``: estimate of the time in which it asked the generator for samples; ``storage_seconds``: of the
    time in which that waited for a store of remote files.
    """

    longest: float = _LONGEST
    generator_seconds: float = 0.0
    storage_seconds: float = 0.0
    _sample: tuple[int, int, int] | None = None  # file, attempt and sample at the last look
    _since: float = 0.0  # first look at which it asked for that sample
    _looked: float = 0.0

    def look(self, status: WorkerStatus, now: float) -> None:
        """Look at the row of the worker."""
        self.note(status.running_sample, now, waits_for_store=status.waits_for_store)

    def note(self, running: tuple[int, int, int] | None, now: float, *, waits_for_store: bool = False) -> None:
        """Note which sample it is asking for: file, attempt and sample index; None: none."""
        passed = now - self._looked if self._looked else 0.0
        self._looked = now
        if running is None:
            self._sample = None
            return
        if running != self._sample:  # else it was at this sample all the time
            self._sample, self._since = running, now
            passed = min(passed, self.longest)
        if waits_for_store:
            self.storage_seconds += passed
        else:
            self.generator_seconds += passed

    def stats(
        self, running: tuple[int, int, int] | None, files: Sequence[str], now: float, *, waits_for_store: bool = False
    ) -> dict[str, Any]:
        """Return what it is doing as plain data; see :data:`NO_ACTIVITY`. ``running``: as for :meth:`note`, now;
        ``files``: the entries of the list."""
        return {
            "file": None if running is None else without_secrets(shown_url(files[running[0]])),
            "sample": None if running is None else running[2],
            "sample_seconds": now - self._since if running is not None and running == self._sample else 0.0,
            "waits_for_store": waits_for_store,
            "generator_seconds": self.generator_seconds,
            "storage_seconds": self.storage_seconds,
        }
