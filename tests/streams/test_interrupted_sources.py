"""Streams that are made of other streams: an exception inside them loses nothing, and asks nothing of the sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pydp2
from pydp2.client.stream import Stream
from pydp2.streams import sequence_packing
from tests.interruptions import (
    Injector,
    interrupted_pass,
    with_its_own_exception_state,
)
from tests.list_stream import ListStream

STOPPING = ("all_exhausted_without_replacement", "first_exhausted", "all_exhausted")


def mixture(**options: Any) -> tuple[Stream, list[ListStream]]:
    sources = [ListStream([[100 * n + i] for i in range(size)], 3) for n, size in enumerate((19, 7, 12))]
    return pydp2.mix(list(zip(sources, (3, 1, 2), strict=True)), batch_size=8, **options), sources


def packed(**options: Any) -> tuple[Stream, list[ListStream]]:
    source = ListStream([[100 * i + j for j in range(i * 7 % 23)] for i in range(40)], 3)
    return pydp2.pack_sequences(source, slot="tokens", batch_size=3, length=16, **options), [source]


KINDS: dict[str, tuple[Callable[..., tuple[Stream, list[ListStream]]], dict[str, Any]]] = {
    **{f"mixture, {each}": (mixture, {"stopping_strategy": each}) for each in STOPPING},
    "mixture, per_stream": (mixture, {"batching_method": "per_stream"}),
    "wrapped": (packed, {"strategy": "wrapped"}),
    "wrapped, carry": (packed, {"strategy": "wrapped", "last_row": "carry"}),
    "best fit": (packed, {"strategy": "bfd"}),
    "best fit, split": (packed, {"strategy": "bfd_split"}),
}


LIKE_OTHERS = ("mixture, first_exhausted", "mixture, all_exhausted", "wrapped", "best fit")
"""Kinds whose steps another kind has, too."""


def sign(batch: pydp2.Batch) -> Any:
    columns = batch._columns.arrays
    return batch.pass_id, batch.index, [each.tolist() for arrays in columns for each in arrays]


def read(stream: Stream, injector: Injector, seen: list[Any], states: list[Any]) -> list[Any]:
    """The batches of three passes, each call interrupted at all instructions that are new to ``injector``."""
    found: list[Any] = []

    def check() -> None:
        if found and (state := stream.state_dict())["batch"]:
            assert state == states[len(found) - 1]

    for _ in range(3):
        for batch in interrupted_pass(injector, stream, check):
            found.append(sign(batch))
    return found


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in LIKE_OTHERS else ()) for kind in KINDS]
)
@with_its_own_exception_state
def test_interrupted_at_any_instruction_it_goes_on_without_a_question_to_its_sources(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Ranks of a job cannot load a state one by one, and a relaxed source has none to go back to."""
    monkeypatch.setattr(sequence_packing, "WINDOW_ROWS", 4)
    make, options = KINDS[kind]
    with make(**options)[0] as stream:
        seen, states = [], []
        for _ in range(3):
            for batch in stream:
                seen.append(sign(batch))
                states.append(stream.state_dict())
    injector = Injector()
    before = -1
    while before < len(injector):  # until a whole run was not interrupted
        before = len(injector)
        stream, sources = make(**options)
        with stream:
            assert read(stream, injector, seen, states) == seen
            assert [source.loads for source in sources] == [0] * len(sources)
    assert {
        "Cursor.fetch",
        "History.rewind_to",
        "History.commit",
        "History.next_batch",
        "DerivedStream._take",
    } <= injector.names
    assert len(injector) > 1000
