"""The recorder of traces: when it begins, ends and answers, and what it makes of the clocks of others."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from pydp2.errors import OptionError
from pydp2.options.file_list import FileList
from pydp2.protocol import messages as m
from pydp2.protocol.plain_data import decode_plain
from pydp2.protocol.spans import SpanKind, Spans, decode_spans
from pydp2.server.tracing import TraceRecorder, TraceState

WORKER = {"kind": "worker", "worker": 1, "pid": 7, "host": "", "is_spare": False}


@pytest.fixture
def recorder() -> TraceRecorder:
    return TraceRecorder(FileList.of(["a.txt", "b.txt"]))


def frames(*spans: tuple[SpanKind, int, int, int, int]) -> list[bytes]:
    return [np.array(spans, np.int64).tobytes()] if spans else []


def answer(recorder: TraceRecorder) -> tuple[dict[str, Any], list[Spans]]:
    about, *spans = recorder.take()
    found = decode_plain(about)
    assert isinstance(found, dict)
    return found, [decode_spans("x", [frame]) for frame in spans]


def recording(recorder: TraceRecorder, label: dict[str, Any] = WORKER, *, seconds: float = 10.0) -> int:
    """Begin a trace with one source, 1, and return when it began, in nanoseconds."""
    recorder.ask(b"peer", seconds)
    recorder.add_source(1, label)
    recorder.start(0.0)
    recorder.begin(0.0)
    return time.monotonic_ns()


def test_it_begins_when_all_have_answered_and_answers_when_all_have_ended(recorder: TraceRecorder) -> None:
    assert not recorder.is_due(0.0)
    recorder.ask(b"peer", 2.0)
    assert recorder.is_due(0.0)
    recorder.add_source(1, WORKER)
    recorder.add_source(2, WORKER)
    recorder.start(0.0)
    recorder.add(1, m.RecordedSpans(0, 0, False), [])
    assert not recorder.is_due(0.1)
    recorder.add(2, m.RecordedSpans(0, 0, False), [])
    assert recorder.is_due(0.1)
    recorder.begin(0.1)
    assert recorder.is_recording
    assert not recorder.is_due(2.0)
    assert recorder.is_due(2.1)
    recorder.end(2.1)
    recorder.add(1, m.RecordedSpans(0, 0, True), [])
    assert not recorder.is_due(2.2)
    recorder.drop_source(2)  # it has died
    assert recorder.is_due(2.2)
    answer(recorder)
    assert recorder.state is TraceState.OFF


def test_it_does_not_wait_for_ever_for_one_that_is_silent(recorder: TraceRecorder) -> None:
    recorder.ask(b"peer", 1.0)
    recorder.add_source(1, WORKER)
    recorder.start(0.0)
    assert not recorder.is_due(0.9)
    assert recorder.is_due(1.0)
    recorder.begin(1.0)
    recorder.end(2.0)
    assert not recorder.is_due(2.9)
    assert recorder.is_due(3.0)
    about, (_, worker) = answer(recorder)
    assert [row[0] for row in worker.tolist()] == [SpanKind.UNREPORTED]
    assert worker[0, 2] - worker[0, 1] == about["ended_ns"] - about["began_ns"]


def test_the_time_behind_the_last_report_has_no_report(recorder: TraceRecorder) -> None:
    began = recording(recorder, seconds=10.0)
    recorder.add(1, m.RecordedSpans(0, 0, False), frames((SpanKind.GENERATOR, began, began + 4_000_000_000, 0, 3)))
    recorder.end(10.0)
    about, (_, worker) = answer(recorder)
    assert worker[:, 0].tolist() == [SpanKind.GENERATOR, SpanKind.UNREPORTED]
    assert worker[1, 1:3].tolist() == [began + 4_000_000_000, about["ended_ns"]]
    assert about["files"] == {"0": "a.txt"}


def test_spans_before_and_after_the_trace_are_left_out(recorder: TraceRecorder) -> None:
    began = recording(recorder, seconds=1.0)
    spans = frames((SpanKind.IDLE, 5, 6, -1, -1), (SpanKind.IDLE, began + 10**10, began + 10**11, -1, -1))
    recorder.end(1.0)
    recorder.add(1, m.RecordedSpans(3, 0, True), spans)
    about, (_, worker) = answer(recorder)
    assert not len(worker)
    assert [source["lost"] for source in about["sources"]] == [0, 3]


def test_the_clock_of_another_host_is_compared_with_ours(recorder: TraceRecorder) -> None:
    began = recording(recorder, WORKER | {"host": "far"})
    now = time.monotonic_ns()
    ahead = 3600 * 10**9
    recorder.end(10.0)
    recorder.add(1, m.RecordedSpans(0, now + ahead, True), frames((SpanKind.IDLE, began + ahead, now + ahead, -1, -1)))
    _, (_, worker) = answer(recorder)
    assert abs(worker[0, 1] - began) < 60 * 10**9


def test_there_is_one_trace_at_a_time_and_none_without_end(recorder: TraceRecorder) -> None:
    for wrong in (0.0, 301.0):
        with pytest.raises(OptionError, match="at most 300 seconds"):
            recorder.ask(b"peer", wrong)
    recorder.ask(b"peer", 1.0)
    with pytest.raises(OptionError, match="for somebody else"):
        recorder.ask(b"other", 1.0)


def test_a_trace_that_nobody_waits_for_is_abandoned(recorder: TraceRecorder) -> None:
    recording(recorder, seconds=10.0)
    recorder.abandon()
    assert recorder.is_due(0.0)
    assert not recorder.is_recording
    recorder.end(0.0)
    assert recorder.state is TraceState.OFF
    assert recorder.peer == b""
    recording(recorder)


def test_another_trace_may_begin_at_once_in_place_of_one_that_nobody_waits_for(recorder: TraceRecorder) -> None:
    recorder.ask(b"peer", 10.0)
    recorder.add_source(1, WORKER)
    recorder.add_source(2, WORKER)
    recorder.start(0.0)
    recorder.abandon()
    recorder.ask(b"other", 1.0)
    assert recorder.peer == b"other"
    recorder.add_source(1, WORKER)
    recorder.start(5.0)
    assert not recorder.is_due(5.0)
    recorder.add(1, m.RecordedSpans(0, 0, False), [])
    assert recorder.is_due(5.0)
    recorder.begin(5.0)
    recorder.end(6.0)
    about, _ = answer(recorder)
    assert len(about["sources"]) == 2


def test_the_last_spans_of_the_trace_before_end_nothing(recorder: TraceRecorder) -> None:
    began = recording(recorder, seconds=1.0)
    late = frames((SpanKind.IDLE, began, began + 5, -1, -1))
    recorder.add(1, m.RecordedSpans(0, 0, True), late)  # the process was in a long call when it was told to stop
    recorder.end(1.0)
    assert not recorder.is_due(1.0)
    recorder.add(1, m.RecordedSpans(0, 0, True), [])
    assert recorder.is_due(1.0)


def test_spans_of_strangers_and_of_a_trace_that_is_over_do_not_count(recorder: TraceRecorder) -> None:
    recorder.add(1, m.RecordedSpans(0, 0, True), frames((SpanKind.IDLE, 1, 2, -1, -1)))
    began = recording(recorder)
    recorder.add(99, m.RecordedSpans(0, 0, True), frames((SpanKind.IDLE, began, began + 5, -1, -1)))
    recorder.end(1.0)
    about, spans = answer(recorder)
    assert [source["kind"] for source in about["sources"]] == ["server", "worker"]
    assert [row[0] for row in spans[1].tolist()] == [SpanKind.UNREPORTED]
