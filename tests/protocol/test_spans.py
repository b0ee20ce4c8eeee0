"""Spans of a trace: kept while they are wanted, sent in frames that a client may send, checked when they come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import RemoteProtocolError
from pydp2.protocol.messages import HEADER_LIMIT
from pydp2.protocol.spans import SpanBuffer, SpanKind, decode_spans

SPANS = st.lists(
    st.tuples(
        st.sampled_from(SpanKind), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(-1, 1 << 40), st.integers(-1, 9)
    )
)


@given(SPANS)
def test_what_was_added_comes_out(spans: list[tuple[SpanKind, float, float, int, int]]) -> None:
    buffer = SpanBuffer()
    buffer.switch(True, 0.0)
    for span in spans:
        buffer.add(*span)
    lost, frames = buffer.take(0.0)
    assert not lost
    expected = [[kind, int(began * 1e9), int(ended * 1e9), a, b] for kind, began, ended, a, b in spans]
    assert decode_spans("x", frames).tolist() == expected
    assert buffer.take(0.0) == (0, [])


def test_nothing_is_kept_that_nobody_asked_for() -> None:
    buffer = SpanBuffer()
    buffer.add(SpanKind.STEP, 1.0, 2.0)
    assert not buffer.is_due(100.0)
    assert buffer.take(0.0) == (0, [])


def test_spans_are_due_as_an_answer_and_then_four_times_a_second() -> None:
    buffer = SpanBuffer()
    buffer.switch(True, 10.0)
    assert buffer.is_due(10.0)
    buffer.take(10.0)
    buffer.add(SpanKind.STEP, 10.0, 10.1)
    assert not buffer.is_due(10.2)
    assert buffer.is_due(10.3)
    buffer.take(10.3)
    assert not buffer.is_due(20.0)  # there is nothing
    buffer.switch(False, 20.0)
    buffer.add(SpanKind.WAIT, 19.0, 21.0)  # began while it was on
    assert buffer.is_due(20.0)
    assert len(decode_spans("x", buffer.take(21.0)[1])) == 1
    buffer.switch(False, 30.0)
    assert not buffer.is_due(30.0)  # it was off
    buffer.add(SpanKind.WAIT, 21.0, 22.0)
    assert not buffer.is_due(99.0)
    assert buffer.take(99.0) == (0, [])


def test_a_trace_that_takes_the_place_of_another_is_answered_too() -> None:
    buffer = SpanBuffer()
    buffer.switch(True, 10.0)
    buffer.take(10.0)
    buffer.add(SpanKind.STEP, 10.0, 10.1)
    buffer.switch(True, 10.2)
    assert buffer.is_due(10.2)
    assert buffer.take(10.2) == (0, [])


def test_a_part_of_a_wait_is_due_as_an_answer_and_then_four_times_a_second_if_it_is_long() -> None:
    buffer = SpanBuffer()
    assert buffer.patience(7.0) == 7.0
    assert not buffer.is_due(10.0, 5.0)
    buffer.switch(True, 10.0)
    assert buffer.is_due(10.0, 5.0)
    buffer.take(10.0)
    assert buffer.patience(7.0) == 0.25
    assert buffer.patience(0.1) == 0.1
    assert not buffer.is_due(10.2, 5.0)
    assert buffer.is_due(10.3, 5.0)
    assert not buffer.is_due(10.3, 10.1)
    assert not buffer.is_due(10.3)
    buffer.switch(False, 10.3)
    assert buffer.is_due(10.3, 10.3)
    buffer.take(10.3)
    assert not buffer.is_due(99.0, 5.0)


def test_frames_are_such_as_a_client_may_send_and_the_rest_is_counted_as_lost() -> None:
    buffer = SpanBuffer()
    buffer.switch(True, 0.0)
    for _ in range(100_007):
        buffer.add(SpanKind.STEP, 1.0, 2.0)
    lost, frames = buffer.take(0.0)
    assert lost == 7
    assert max(map(len, frames)) <= HEADER_LIMIT
    assert len(decode_spans("x", frames)) == 100_000


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 39,
        np.array([99, 0, 0, 0, 0], np.int64).tobytes(),
        np.array([-1, 0, 0, 0, 0], np.int64).tobytes(),
        np.array([0, -5, 0, 0, 0], np.int64).tobytes(),
    ],
)
def test_what_is_no_span_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="RecordedSpans"):
        decode_spans("RecordedSpans", [data])
