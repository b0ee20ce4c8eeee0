"""Spans of a worker: generator and packing, summed up over a millisecond."""

from __future__ import annotations

from pydp2.host.worker.worker_spans import WorkerSpans
from pydp2.protocol.spans import SpanKind, decode_spans


def recorded(spans: WorkerSpans) -> list[tuple[SpanKind, int, int, int, int]]:
    found = decode_spans("x", spans.take(0.0)[1]).tolist()
    return [(SpanKind(kind), round(a / 1e4), round(b / 1e4), file, sample) for kind, a, b, file, sample in found]


def test_draws_of_one_file_are_summed_up_and_those_of_another_are_not() -> None:
    spans = WorkerSpans()
    spans.switch(True, 0.0)
    spans.note_draw(3, 0, 1.0, 1.0002, 0.00005)
    spans.note_draw(3, 5, 1.0002, 1.0004, 0.00005)
    spans.note_draw(4, 0, 1.0004, 1.0006, 0.0)
    spans.note_draw(4, 9, 1.0020, 1.0021, 0.0001)  # after a pause
    spans.end_draws()
    assert recorded(spans) == [
        (SpanKind.GENERATOR, 100000, 100030, 3, 0),
        (SpanKind.PACK, 100030, 100040, 3, 0),
        (SpanKind.GENERATOR, 100040, 100060, 4, 0),
        (SpanKind.PACK, 100060, 100060, 4, 0),
        (SpanKind.GENERATOR, 100200, 100200, 4, 9),
        (SpanKind.PACK, 100200, 100210, 4, 9),
    ]


def test_a_long_draw_is_not_joined_with_the_next_one() -> None:
    spans = WorkerSpans()
    spans.switch(True, 0.0)
    spans.note_draw(0, 0, 1.0, 1.5, 0.0)
    spans.note_draw(0, 1, 1.5, 2.0, 0.5)
    spans.end_draws()
    assert [(kind, a, b) for kind, a, b, _, _ in recorded(spans)] == [
        (SpanKind.GENERATOR, 100000, 150000), (SpanKind.PACK, 150000, 150000),
        (SpanKind.GENERATOR, 150000, 150000), (SpanKind.PACK, 150000, 200000),
    ]  # fmt: skip


def test_a_wait_for_a_store_is_a_span_and_a_second_end_of_it_is_not() -> None:
    spans = WorkerSpans()
    spans.switch(True, 0.0)
    spans.note_store(True, 1.0)
    spans.note_store(False, 1.5)
    spans.note_store(False, 1.7)
    assert recorded(spans) == [(SpanKind.STORE, 100000, 150000, -1, -1)]
