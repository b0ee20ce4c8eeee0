"""Memory that is used again: never while anything refers to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.mx import ImageRecordIter, image_iter
from pydp2.mx.reused_arrays import ReusedArrays

from .conftest import Write, drawing


@given(
    st.lists(st.tuples(st.sampled_from(["keep", "view", "drop"]), st.integers(0, 5)), max_size=60), st.integers(0, 4)
)
def test_what_is_held_is_never_given_out_again(moves: list[tuple[str, int]], most: int) -> None:
    memory, held = ReusedArrays((3, 2), most), []
    for number, (move, which) in enumerate(moves):
        if move == "drop" and held:
            del held[which % len(held)]
            continue
        array = memory.unused_array()
        array[:] = number
        held.append((number, array[1:] if move == "view" else array))
        del array
        assert all((other == n).all() for n, other in held)


HOLDERS: list[Callable[[Any], Any]] = [
    lambda array: array,
    lambda array: array[1:],
    lambda array: array.reshape(-1),
    lambda array: array.T[0],
    lambda array: memoryview(array),
    lambda array: np.frombuffer(array, np.float32),
    lambda array: np.from_dlpack(array),
    lambda array: iter(array),
]


@pytest.mark.parametrize("hold", HOLDERS)
def test_whatever_looks_at_an_array_holds_it(hold: Callable[[Any], Any]) -> None:
    memory = ReusedArrays((4, 4), 3)
    first = memory.unused_array()
    holder = hold(first)
    del first
    other = memory.unused_array()
    assert memory.allocated_count == 2
    del holder
    memory.unused_array()
    assert memory.allocated_count == 2, "the first one is free again"
    assert other is not None


def test_batches_of_pictures_that_are_kept_stay_as_they_are(write_records: Write) -> None:
    path = write_records([drawing() // (i + 1) for i in range(24)])
    provider = ImageRecordIter(path_imgrec=path, data_shape=(3, 64, 64), batch_size=1, prefetch_buffer=1)
    kept = [batch.data[0] for batch in provider]
    seen = [batch.data[0].tobytes() for batch in provider]
    assert [array.tobytes() for array in kept] == seen
    assert len(set(seen)) == 24


def test_batches_of_pictures_that_are_dropped_give_their_memory(
    write_records: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories: list[ReusedArrays] = []

    class Watched(ReusedArrays):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            memories.append(self)

    monkeypatch.setattr(image_iter, "ReusedArrays", Watched)
    path = write_records([drawing()] * 60)
    provider = ImageRecordIter(path_imgrec=path, data_shape=(3, 64, 64), batch_size=1, prefetch_buffer=1)
    assert sum(batch.count for batch in provider) == 60
    assert memories[-1].allocated_count <= 1 + image_iter.MORE
