"""Record what a worker does: asking its generator, packing, sending, waiting.

Generator and packing take turns for each sample, a few hundred thousand times a second. A span of each would cost more
than the work itself, so they are summed up over about a millisecond: the time of the generator comes first in the
trace, then that of packing.
"""

from __future__ import annotations

from pydp2.protocol.spans import SpanBuffer, SpanKind

_LONG = 0.001  # seconds that are summed up
_PAUSE = 0.0001  # seconds between two draws that belong together at most


class WorkerSpans(SpanBuffer):
    """Spans of one worker."""

    __slots__ = ("_began", "_ended", "_file", "_packing", "_sample", "_store_waits")

    def __init__(self) -> None:
        super().__init__()
        self._file = self._sample = -1
        self._began = self._ended = self._packing = 0.0
        self._store_waits: float | None = None

    def note_draw(self, file: int, sample: int, began: float, ended: float, packing: float) -> None:
        """Note that samples of ``file`` from ``sample`` on were drawn; ``packing`` seconds of that for checking and
        packing them."""
        if file != self._file or ended - self._began > _LONG or began - self._ended > _PAUSE:
            self.end_draws()
            self._file, self._sample, self._began = file, sample, began
        self._ended = ended
        self._packing += packing

    def end_draws(self) -> None:
        """Add the spans of what was drawn."""
        if self._ended > self._began:
            middle = max(self._began, self._ended - self._packing)
            self.add(SpanKind.GENERATOR, self._began, middle, self._file, self._sample)
            self.add(SpanKind.PACK, middle, self._ended, self._file, self._sample)
        self._began = self._ended = self._packing = 0.0
        self._file = -1

    def note_store(self, begins: bool, now: float) -> None:
        """Note that a wait for a store of remote files begins or is over."""
        if begins:
            self._store_waits = now
        elif (since := self._store_waits) is not None:
            self._store_waits = None
            self.add(SpanKind.STORE, since, now)
