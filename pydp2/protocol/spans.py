"""Define spans: what a process did from when to when, recorded while somebody asks for a trace (docs/watching.md).

Every process that takes part in a trace keeps a :class:`SpanBuffer`, which costs nothing while it is off. Times are
those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.errors import RemoteProtocolError

MIN_SECONDS = 0.001
"""Number of seconds that a trace has at least: a message says it in milliseconds."""
MAX_SECONDS = 300
"""Number of seconds that a trace may have at most."""
_FIELDS = 5
_FRAME = 1600  # spans in one frame: what clients send has frames of at most 64 KiB
_SECONDS = 0.25  # between two messages with spans
_MOST = 100_000  # spans that wait for the next message; more are lost


class SpanKind(IntEnum):
    """Kind of a span: what a process does in it."""

    GENERATOR = 0
    PACK = 1
    SEND = 2
    SEND_MEANWHILE = 3
    IDLE = 4
    STORE = 5
    RECEIVE = 6
    CUT = 7
    DELIVER = 8
    OTHER = 9
    WAIT = 10
    GATHER = 11
    STEP = 12
    GATHER_AHEAD = 13
    UNREPORTED = 14


Spans = npt.NDArray[np.int64]
"""Spans as an array of shape (spans, 5), int64: kind, begin and end in nanoseconds, and two numbers that say of what:
of a worker file and sample index, of a trainer pass and batch; -1: none."""


class SpanBuffer:
    """Spans of one process that wait to be sent. All times are those of ``time.perf_counter``, in seconds.

    Threads may add spans at the same time; one that comes while another thread takes them may be lost.
    """

    __slots__ = ("_is_changed", "_lost", "_sent_at", "_values", "is_on", "is_recording")

    def __init__(self) -> None:
        self.is_on = self._is_changed = False
        self.is_recording = False
        """True if spans are added: this is on, or was until a moment ago."""
        self._values = array("q")
        self._lost = 0
        self._sent_at = 0.0

    def switch(self, on: bool, now: float) -> None:
        """Begin to record, also anew, or end it."""
        self._is_changed = on or self.is_on
        self.is_on = on
        self.is_recording = on or self._is_changed
        self._sent_at = now
        if on:
            self._values, self._lost = array("q"), 0

    def add(self, kind: SpanKind, began: float, ended: float, first: int = -1, second: int = -1) -> None:
        """Add a span, if this records."""
        if not self.is_recording:
            return
        if len(self._values) >= _MOST * _FIELDS:
            self._lost += 1
            return
        self._values.extend((kind, int(began * 1e9), int(ended * 1e9), first, second))

    def is_due(self, now: float, waits_since: float | None = None) -> bool:
        """Return True if spans are to be sent now: a few times a second, and also without any once this was switched,
        as an answer. ``waits_since``: when a wait began that is under way; once it is long, a part of it can be sent.
        """
        if self._is_changed:
            return True
        since = self._sent_at if waits_since is None else max(self._sent_at, waits_since)
        return self.is_on and now - since > _SECONDS and (waits_since is not None or len(self._values) > 0)

    def patience(self, most: float) -> float:
        """Return the seconds that a wait may last before a part of it is due, at most ``most``."""
        return min(_SECONDS, most) if self.is_on else most

    def take(self, now: float) -> tuple[int, list[bytes]]:
        """Return how many spans were lost since the last call, and the frames of those that wait."""
        values, lost = self._values, self._lost
        self._values, self._lost, self._sent_at, self._is_changed = array("q"), 0, now, False
        self.is_recording = self.is_on
        step = _FRAME * _FIELDS
        return lost, [values[at : at + step].tobytes() for at in range(0, len(values), step)]


def decode_spans(what: str, frames: Iterable[Any]) -> Spans:
    """Return the spans of ``frames``. ``what``: the message, for the error. Raises RemoteProtocolError."""
    data = b"".join(map(bytes, frames))
    if len(data) % (8 * _FIELDS):
        raise RemoteProtocolError(f"{what}: {len(data)} bytes of spans, and one has {8 * _FIELDS}")
    spans = np.frombuffer(data, np.int64).reshape(-1, _FIELDS)
    kinds = spans[:, 0]
    if len(spans) and (kinds.min() < 0 or kinds.max() >= len(SpanKind) or spans[:, 1:3].min() < 0):
        raise RemoteProtocolError(f"{what}: a span of a kind or a time that does not exist")
    return spans
