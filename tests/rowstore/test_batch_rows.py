"""Rows that were picked: the same wherever they are gathered, and kept as long as somebody has them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.columns import Columns
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.schema.input_types import Slots, integer_value, integer_value_sequence

data = st.data()


@given(data=data)
def test_they_are_the_same_in_memory_of_their_own_and_in_any_other(some, data):
    slots = data.draw(some.slots)
    sample = st.tuples(*map(some.good_values, slots.types)).map(list)
    store = HeapStore(slots)
    ids = store.append(some.columns_of(slots, data.draw(st.lists(sample, min_size=1, max_size=6))))
    chosen = np.array(data.draw(st.lists(st.sampled_from(ids.tolist()), unique=True)), np.int64)
    padded = np.concatenate([chosen, chosen[: data.draw(st.integers(0, len(chosen)))]])
    expected = store.take(padded)
    picked = BatchRows(store, padded, len(padded) - len(chosen))
    assert len(picked) == len(padded)
    frames = [frame.tobytes() for frame in expected.frames()]
    assert [frame.tobytes() for frame in picked.frames()] == frames
    sizes = picked.sizes()
    assert [frame.tobytes() for frame in picked.frames()] == frames
    store.append(some.columns_of(slots, [data.draw(sample)] * 9))  # everything may have moved
    assert [frame.tobytes() for frame in picked.frames()] == frames
    assert picked.sizes() == sizes
    assert sizes == [len(frame) for frame in frames]
    memory = [np.full(size + 128, 0xEE, np.uint8) for size in sizes]
    starts = [-each.ctypes.data % 64 for each in memory]
    picked.write([each[at : at + size] for each, at, size in zip(memory, starts, sizes, strict=True)])
    for each, at, frame in zip(memory, starts, frames, strict=True):
        assert each[at : at + len(frame)].tobytes() == frame
        assert (each[:at] == 0xEE).all()
        assert (each[at + len(frame) :] == 0xEE).all()
    for slot, declared in enumerate(slots.types):
        if declared.seq_type:
            assert picked.lengths(slot).tolist() == expected.lengths(slot).tolist()
    assert picked.retain() is picked
    picked.release()
    assert len(store) == len(ids) + 9
    picked.release()
    assert len(store) == len(ids) + 9 - len(chosen)
    with pytest.raises(RuntimeError, match="released once by each"):
        picked.release()


def test_their_rows_are_used_again_when_the_last_holder_has_released_them_and_not_before(some):
    slots = Slots((integer_value(9), integer_value_sequence(9)))
    store = HeapStore(slots)
    first = BatchRows(store, store.append(some.columns_of(slots, [[1, [1]], [2, [2, 2]]])))
    second = first.retain()
    for number in range(3, 9):
        BatchRows(store, store.append(some.columns_of(slots, [[number, [number] * number]]))).release()
    assert len(store) == 2
    first.release()
    assert second.columns().samples() == [[1, [1]], [2, [2, 2]]]
    assert Columns.from_frames(slots, 2, second.frames()).samples() == [[1, [1]], [2, [2, 2]]]
    second.release()
    assert len(store) == 0
