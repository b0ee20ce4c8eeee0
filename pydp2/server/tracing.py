"""Record a trace of a service: what its workers, its server and its trainers do, from when to when.

Somebody asks for a trace of some seconds (``AskTrace``). The server tells all workers and trainers to record, and those
that come meanwhile; they answer, and send their spans four times a second. A trainer reads what it is told only behind
the batches that came before, so the trace begins a moment later. After its time is over, the server tells all to stop,
waits a moment for their last spans, and answers with all of them. A process that does not answer in time, because it is
in a long call of the user's code, gets a span that says so. If the peer that asked is gone, nobody waits for the trace:
it is abandoned, all are told to stop, and the next one may begin.

All processes of a machine have the same monotonic clock. The clock of another host is compared with ours by the time
at which its messages arrive: the least difference is that of the clocks, and of the fastest way of a message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

import numpy as np

from pydp2.errors import OptionError, without_secrets
from pydp2.options.file_list import FileList
from pydp2.protocol import messages as m
from pydp2.protocol.plain_data import pack_unchecked
from pydp2.protocol.spans import MAX_SECONDS, SpanBuffer, SpanKind, Spans, decode_spans
from pydp2.protocol.state_table import next_state
from pydp2.remote import shown_url

_MOST_SPANS = 1_000_000  # of all sources; more are lost
_MOST_NAMES = 20_000  # files whose names are in the answer
_SHORT = 20e-6  # seconds of the server that are not worth a span
_ANSWERS = 1.0  # seconds that answers of workers and trainers are waited for


class TraceState(Enum):
    """State of the recorder."""

    OFF = "off"
    ASKED = "asked"
    STARTING = "starting"
    RECORDING = "recording"
    ABANDONED = "abandoned"
    ENDING = "ending"


class TraceEvent(Enum):
    """Event of the recorder."""

    ASK = "ask"
    TELL = "tell all to record"
    BEGIN = "begin"
    ABANDON = "abandon"
    END = "end"
    ANSWER = "answer"


TRACE_TRANSITIONS: dict[tuple[TraceState, TraceEvent], TraceState] = {
    (TraceState.OFF, TraceEvent.ASK): TraceState.ASKED,
    (TraceState.ASKED, TraceEvent.TELL): TraceState.STARTING,
    (TraceState.STARTING, TraceEvent.BEGIN): TraceState.RECORDING,
    (TraceState.STARTING, TraceEvent.ABANDON): TraceState.ABANDONED,
    (TraceState.RECORDING, TraceEvent.ABANDON): TraceState.ABANDONED,
    (TraceState.ABANDONED, TraceEvent.ASK): TraceState.ASKED,
    (TraceState.ABANDONED, TraceEvent.END): TraceState.OFF,
    (TraceState.RECORDING, TraceEvent.END): TraceState.ENDING,
    (TraceState.ENDING, TraceEvent.ANSWER): TraceState.OFF,
}
"""State and event, mapped to the state after the event."""


class ServerSpans(SpanBuffer):
    """Spans of the server's loop, whose turn has one phase after the other."""

    __slots__ = ("_marked",)

    def __init__(self) -> None:
        super().__init__()
        self._marked = 0.0

    def mark(self, kind: SpanKind | None) -> None:
        """Note that the phase that began with the last call ends now, and was ``kind``; None: nothing to note."""
        if not self.is_on:
            return
        now, began = time.perf_counter(), self._marked
        self._marked = now
        if kind is not None and now - began > _SHORT:
            self.add(kind, began, now)


class _Source:
    """Process that records: ``label`` says which. ``same_clock``: its clock is ours."""

    def __init__(self, label: dict[str, Any], *, same_clock: bool) -> None:
        self.label, self.lost, self.has_begun, self.is_over = label, 0, False, False
        self._spans: list[Spans] = []
        self._same_clock = same_clock
        self._offset_ns: int | None = None

    def add(self, spans: Spans, sent_ns: int, now_ns: int) -> None:
        """Add spans of a message that says when it was sent."""
        self._spans.append(spans)
        difference = now_ns - sent_ns
        self._offset_ns = difference if self._offset_ns is None else min(self._offset_ns, difference)

    def between(self, began_ns: int, ended_ns: int) -> Spans:
        """Return its spans within the trace, by our clock."""
        spans = np.concatenate([np.empty((0, 5), np.int64), *self._spans])
        if not self._same_clock and self._offset_ns is not None:
            spans[:, 1:3] += self._offset_ns
        spans = spans[(spans[:, 2] > began_ns) & (spans[:, 1] < ended_ns)]
        if not self.is_over:
            since = max(began_ns, int(spans[:, 2].max()) if len(spans) else began_ns)
            if since < ended_ns:
                spans = np.concatenate([spans, np.array([[SpanKind.UNREPORTED, since, ended_ns, -1, -1]], np.int64)])
        return spans


class TraceRecorder:
    """Recorder of the traces of a service, one at a time. ``files``: the entries of its list."""

    def __init__(self, files: FileList) -> None:
        self._files = files
        self.own = ServerSpans()
        """Spans of the server itself."""
        self.state: TraceState = TraceState.OFF  # only move() changes it
        self.peer = b""
        """Peer that asked for the trace."""
        self._seconds = self._until = self._answer_by = 0.0
        self._began_ns = 0
        self._spans = 0
        self._sources: dict[object, _Source] = {}

    def move(self, event: TraceEvent) -> None:
        """Change the state according to ``event``. Raises IllegalTransition if the present state does not allow it."""
        self.state = next_state(TRACE_TRANSITIONS, self.state, event)

    @property
    def is_recording(self) -> bool:
        """True while workers and trainers are to record."""
        return self.state in (TraceState.STARTING, TraceState.RECORDING)

    def ask(self, peer: bytes, seconds: float) -> None:
        """Begin with a trace of ``seconds`` for ``peer``. Raises OptionError while there is another one, and for a
        time that is too long."""
        if self.state not in (TraceState.OFF, TraceState.ABANDONED):
            raise OptionError("a trace of this service is being recorded for somebody else; ask again when it is done")
        if not 0 < seconds <= MAX_SECONDS:
            raise OptionError(f"a trace needs more than 0 and at most {MAX_SECONDS} seconds, got {seconds:g}")
        self.move(TraceEvent.ASK)
        self.peer, self._seconds = peer, seconds

    def add_source(self, key: object, label: dict[str, Any]) -> None:
        """Note that a process is told to record. ``label``: which one, as plain data; "host" is "" on this machine."""
        self._sources[key] = _Source(label, same_clock=not label["host"])

    def add(self, key: object, message: m.RecordedSpans, body: Sequence[Any]) -> None:
        """Add the spans of a process. Raises RemoteProtocolError if they are none."""
        spans, source = decode_spans("RecordedSpans", body), self._sources.get(key)
        if source is None or self.state is TraceState.OFF or (message.is_last and self.state is not TraceState.ENDING):
            return  # of a trace that is over; nobody was told to stop in this one
        source.lost += message.lost
        source.has_begun, source.is_over = True, source.is_over or message.is_last
        room = max(0, _MOST_SPANS - self._spans)
        source.lost += max(0, len(spans) - room)
        self._spans += min(len(spans), room)
        source.add(spans[:room], message.sent_ns, time.monotonic_ns())

    def drop_source(self, key: object) -> None:
        """Note that a process is not there any more: nothing comes from it."""
        if (source := self._sources.get(key)) is not None:
            source.is_over = True

    def start(self, now: float) -> None:
        """Note that all were told to record. The trace begins once all have answered, or a second later."""
        self.move(TraceEvent.TELL)
        self._answer_by, self._spans = now + _ANSWERS, 0
        self.own.switch(True, now)
        self.own.mark(None)

    def drop_trainers(self, present: Collection[bytes]) -> None:
        """Note that trainers whose peers are not among ``present`` have left: nothing comes from them."""
        for key, source in self._sources.items():
            if source.label["kind"] == "trainer" and key not in present:
                source.is_over = True

    def begin(self, now: float) -> None:
        """Note that the trace begins."""
        self.move(TraceEvent.BEGIN)
        self._until = now + self._seconds
        self._began_ns = time.monotonic_ns()

    def abandon(self) -> None:
        """Note that the peer that asked for the trace is gone."""
        self.move(TraceEvent.ABANDON)
        self.peer, self._sources = b"", {}

    def end(self, now: float) -> None:
        """Note that all are told to stop."""
        self.move(TraceEvent.END)
        self._answer_by = now + _ANSWERS
        self.own.switch(False, now)

    def is_due(self, now: float) -> bool:
        """Return True if the next step is due: to begin, to end, or to answer."""
        match self.state:
            case TraceState.OFF:
                return False
            case TraceState.ASKED | TraceState.ABANDONED:
                return True
            case TraceState.STARTING:
                return now >= self._answer_by or all(source.has_begun for source in self._sources.values())
            case TraceState.RECORDING:
                return now >= self._until
            case TraceState.ENDING:
                return now >= self._answer_by or all(source.is_over for source in self._sources.values())

    def take(self) -> list[bytes]:
        """Return the frames of the answer, and be ready for the next trace."""
        began, ended = self._began_ns, self._began_ns + int(self._seconds * 1e9)
        server = _Source({"kind": "server", "pid": os.getpid()}, same_clock=True)
        server.lost, own = self.own.take(0.0)
        server.is_over = True
        server.add(decode_spans("RecordedSpans", own), 0, 0)
        sources = [server, *self._sources.values()]
        found = [source.between(began, ended) for source in sources]
        labels = [source.label | {"lost": source.lost} for source in sources]
        about = {"began_ns": began, "ended_ns": ended, "sources": labels, "files": self._names(labels, found)}
        self.move(TraceEvent.ANSWER)
        self.peer, self._sources = b"", {}
        return [pack_unchecked(about), *(spans.tobytes() for spans in found)]

    def _names(self, labels: Sequence[dict[str, Any]], found: Sequence[Spans]) -> dict[str, str]:
        """Return the names of the files that workers read, by their numbers."""
        read = [spans[:, 3] for label, spans in zip(labels, found, strict=True) if label["kind"] == "worker"]
        numbers = np.unique(np.concatenate([np.empty(0, np.int64), *read]))
        known = numbers[(numbers >= 0) & (numbers < len(self._files))][:_MOST_NAMES]
        return {str(number): without_secrets(shown_url(self._files[number])) for number in known.tolist()}
