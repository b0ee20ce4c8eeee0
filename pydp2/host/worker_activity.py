"""Tell what a worker is doing, and how long it has done what.

A worker tells with each chunk how many seconds it has been busy and idle, in the generator, and waiting for a store. It
reads the clock for that only now and then, as a sample may take less than reading it. A chunk may be long in coming, if
a sample takes long or the worker has nothing to do. So whoever looks at its status row adds what the row says of the
time since the last chunk. The next chunk replaces what was added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydp2.errors import without_secrets
from pydp2.protocol.messages import Chunk
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.remote import shown_url

LOOK_SECONDS = 0.02
"""Seconds between two looks, unless the loop that looks is asleep."""
NO_ACTIVITY: dict[str, Any] = {
    "file": None,
    "sample": None,
    "sample_seconds": 0.0,
    "waits_for_store": False,
    "busy_seconds": 0.0,
    "idle_seconds": 0.0,
    "generator_seconds": 0.0,
    "storage_seconds": 0.0,
}
"""Activity of a worker that nobody looks at: entry and number of the sample that it is asking for (None: none), for how
many seconds, whether it waits for a store, and its :class:`WorkerSeconds`."""


class WorkerSeconds(NamedTuple):
    """Seconds of a worker: ``busy`` with samples, ``idle`` without anything to do. Of those that it was busy:
    ``generator``, in which it asked the generator for samples, and ``storage``, in which that waited for a store of
    remote files; the rest went into checks, packing and sending."""

    busy: float = 0.0
    idle: float = 0.0
    generator: float = 0.0
    storage: float = 0.0

    @classmethod
    def of_chunk(cls, chunk: Chunk) -> WorkerSeconds:
        """Return what a worker says with ``chunk``."""
        generator = max(0, chunk.generator_us - chunk.store_us)
        return cls(chunk.busy_us / 1e6, chunk.idle_us / 1e6, generator / 1e6, chunk.store_us / 1e6)

    def plus(self, other: WorkerSeconds) -> WorkerSeconds:
        """Return the sums."""
        return WorkerSeconds(*(a + b for a, b in zip(self, other, strict=True)))


_NONE = WorkerSeconds()


@dataclass(slots=True)
class WorkerActivity:
    """Activity of one worker. ``seconds``: since it may have files, up to the last look; they never fall. ``ready_at``:
    when it was ready; until it begins, it is a spare one, and its time does not count."""

    seconds: WorkerSeconds = _NONE
    ready_at: float = 0.0
    _told: WorkerSeconds = _NONE  # what its last chunk said
    _since_told: WorkerSeconds = _NONE  # what looks have added
    _spare: float = 0.0  # seconds for which it was a spare one
    _looked: float | None = None  # None: it has not begun

    @property
    def has_begun(self) -> bool:
        """True if it may have files, or had some."""
        return self._looked is not None

    def begin(self, now: float) -> None:
        """Note that the worker may have files: its time counts from here on. Later calls change nothing."""
        if self._looked is None:
            self._looked, self._spare = now, now - self.ready_at

    def report(self, told: WorkerSeconds, now: float) -> None:
        """Note what the worker says about itself."""
        self.begin(now)
        self._told = told._replace(idle=max(0.0, told.idle - self._spare))
        self._since_told, self._looked = _NONE, now
        self._add(_NONE)

    def look(self, status: WorkerStatus, now: float) -> None:
        """Look at the row of the worker."""
        self.note(status.running_sample, now, status.seconds(now), waits_for_store=status.waits_for_store)

    def note(
        self,
        running: tuple[int, int, int] | None,
        now: float,
        seconds: float,
        *,
        waits_for_store: bool = False,
    ) -> None:
        """Note which sample it is asking for (file, attempt and sample index; None: none), for how many ``seconds`` it
        has been in the generator or without anything to do (:meth:`WorkerStatus.seconds`), and whether it waits for a
        store."""
        if self._looked is None:
            return
        passed = max(0.0, now - self._looked)
        self._looked = now
        known = min(passed, seconds)
        if running is None:
            self._add(WorkerSeconds(busy=passed - known, idle=known))
        elif waits_for_store:
            self._add(WorkerSeconds(busy=passed, storage=known))
        else:
            self._add(WorkerSeconds(busy=passed, generator=known))

    def _add(self, more: WorkerSeconds) -> None:
        self._since_told = self._since_told.plus(more)
        found = self._told.plus(self._since_told)
        self.seconds = WorkerSeconds(*map(max, self.seconds, found))

    def stats(
        self,
        running: tuple[int, int, int] | None,
        files: Sequence[str],
        seconds: float,
        *,
        waits_for_store: bool = False,
    ) -> dict[str, Any]:
        """Return what it is doing as plain data; see :data:`NO_ACTIVITY`. ``running`` and ``seconds``: as for
        :meth:`note`, now; ``files``: the entries of the list."""
        return {
            "file": None if running is None else without_secrets(shown_url(files[running[0]])),
            "sample": None if running is None else running[2],
            "sample_seconds": 0.0 if running is None else seconds,
            "waits_for_store": waits_for_store,
            "busy_seconds": self.seconds.busy,
            "idle_seconds": self.seconds.idle,
            "generator_seconds": self.seconds.generator,
            "storage_seconds": self.seconds.storage,
        }
