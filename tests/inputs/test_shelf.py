"""Columns side by side: rows are found by number, whatever they came with and wherever the memory comes from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydp2.inputs import Columns, Slots, dense_vector, integer_value, integer_value_sequence
from pydp2.inputs.picked import Picked, together
from pydp2.inputs.shelf import OVERHEAD, Layout, Shelf

data = st.data()


def shelf_of(slots: Slots, limit: int = 1 << 14) -> Shelf:
    layout = Layout(slots, limit)
    return Shelf(layout, bytearray(layout.size))


def fill(shelf: Shelf, columns: Columns, weights: list[int] | None = None) -> tuple[int, Columns]:
    count = columns.rows
    return shelf.append(
        columns, np.arange(count), columns.sample_bytes(), None if weights is None else np.array(weights, np.int64)
    )


@settings(max_examples=60, deadline=None)
@given(data=data)
def test_rows_of_all_that_was_put_there_are_gathered_by_number(some, data):
    slots = data.draw(some.slots)
    sample = st.tuples(*map(some.good_values, slots.types)).map(list)
    shelf = shelf_of(slots)
    parts, looks, first = [], [], 0
    for _ in range(data.draw(st.integers(1, 4))):
        columns = some.columns_of(slots, data.draw(st.lists(sample, max_size=5)))
        at, look = fill(shelf, columns)
        assert at == first
        first += columns.rows
        parts.append(columns)
        looks.append(look)
    for part, look in zip(parts, looks, strict=True):
        assert [f.tobytes() for f in look.frames()] == [f.tobytes() for f in part.frames()]
    everything = Columns.concat(parts)
    assert (shelf.rows, shelf.nbytes) == (everything.rows, everything.nbytes)
    ids = np.array(data.draw(st.lists(st.integers(0, max(0, first - 1)), max_size=9)) if first else [], np.int64)
    expected = everything.take(ids)
    reader = Shelf(shelf.layout, np.concatenate(memory_of(shelf)).tobytes())
    for each in (shelf, reader):
        taken = each.take(ids)
        assert [f.tobytes() for f in taken.frames()] == [f.tobytes() for f in expected.frames()]
        assert all(a.flags.writeable for arrays in taken.arrays for a in arrays)
        for slot, declared in enumerate(slots.types):
            if declared.seq_type:
                assert each.lengths(ids, slot).tolist() == expected.lengths(slot).tolist()


def memory_of(shelf: Shelf) -> list[np.ndarray]:
    """What the memory of ``shelf`` holds, as somebody else sees it."""
    array = shelf.ordinals
    while isinstance(array.base, np.ndarray):
        array = array.base
    return [np.frombuffer(array.base, np.uint8)]


def test_what_is_drawn_stays_and_batches_are_gathered_together(some):
    slots = Slots((integer_value(99), integer_value_sequence(99)))
    shelf = shelf_of(slots)
    fill(shelf, some.columns_of(slots, [[i, [i] * i] for i in range(6)]))
    first, second = Picked(shelf, np.array([5, 0, 5]), 1), Picked(shelf, np.array([2]))
    both = together([first, second])
    assert both.columns().samples() == [[5, [5] * 5], [0, []], [5, [5] * 5], [2, [2, 2]]]
    assert Columns.from_frames(slots, 4, both.frames()).samples() == both.columns().samples()
    del first, second, both
    assert shelf.take(np.arange(6)).samples() == [[i, [i] * i] for i in range(6)]


@pytest.mark.parametrize("row", [-1000, 1000])
def test_a_row_that_cannot_be_is_refused(some, row):
    slots = Slots((integer_value(99), integer_value_sequence(99)))
    with pytest.raises(IndexError):
        shelf_of(slots, 1000).take(np.array([row]))


def test_it_knows_of_all_rows_what_a_pass_depends_on(some):
    slots = Slots((integer_value(99),))
    shelf = shelf_of(slots)
    fill(shelf, some.columns_of(slots, [[1], [2]]))
    assert (shelf.uniform, shelf.heaviest) == (True, 1)
    fill(shelf, some.columns_of(slots, [[1], [2]]), [1, 1])
    assert (shelf.uniform, shelf.heaviest) == (True, 1)
    fill(shelf, some.columns_of(slots, [[1], [2], [3]]), [0, 7, 1])
    assert (shelf.uniform, shelf.heaviest) == (False, 7)
    assert shelf.weights[:7].tolist() == [1, 1, 1, 1, 0, 7, 1]
    assert shelf.sizes[:7].tolist() == [4] * 7


@pytest.mark.parametrize("limit", [0, 1, 67, 68, 5000])
def test_as_many_rows_fit_as_the_limit_holds_and_where_sizes_are_fixed_it_is_little_larger_than_that(some, limit):
    slots = Slots((integer_value(99),))
    layout = Layout(slots, limit)
    assert layout.rows == limit // (OVERHEAD + 4)
    assert layout.size <= limit + 4 * 4096
    shelf = Shelf(layout, bytearray(layout.size))
    fill(shelf, some.columns_of(slots, [[i % 99] for i in range(layout.rows)]))
    assert shelf.take(np.arange(layout.rows)).samples() == [[i % 99] for i in range(layout.rows)]
    assert Layout(Slots((dense_vector(1000),)), 1 << 30).size < 1 << 30
