"""Layouts of memory: fields of small rows lie together, aligned, and no two share a byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2 import dense_array, dense_vector, integer_value, integer_value_sequence, raw
from pydp2.data.rowstore import region
from pydp2.data.rowstore.region import RecordLayout, RegionLayout, RegionViews
from pydp2.data.schema.input_types import Slots

KINDS = [
    *(dense_vector(dim, dtype=dtype) for dim in (1, 3) for dtype in ("float64", "float32", "int16", "uint8")),
    dense_array((2, 3), dtype="float16"),
    integer_value(10),
    integer_value(1 << 40),
    integer_value_sequence(10),
    raw(),
]
some_slots = st.lists(st.sampled_from(KINDS), min_size=1, max_size=8).map(lambda types: Slots(tuple(types)))


@given(some_slots, st.integers(0, 5))
def test_each_field_of_a_record_is_aligned_and_has_bytes_of_its_own(slots: Slots, rows: int) -> None:
    records = RecordLayout(slots)
    arrays = [np.zeros((rows, *shape), dtype) for dtype, shape in records.parts()]
    columns = records.columns(arrays)
    assert [(c.dtype, c.shape) for c in columns] == [(f[0].dtype, (rows, *f[0].shape)) for f in slots.fields]
    for number, column in enumerate(columns, 1):
        assert column.flags.aligned
        column[...] = number
    for number, column in enumerate(columns, 1):
        assert (column == number).all()


@pytest.mark.parametrize("form", ["compiled", "in Python"])
@given(slots=some_slots, rows=st.lists(st.integers(0, 699), unique=True, max_size=600))
def test_records_are_taken_as_they_were_put(form: str, slots: Slots, rows: list[int]) -> None:
    records, random, ids = RecordLayout(slots), np.random.default_rng(1), np.array(rows, np.int64)
    arrays = [np.zeros((700, *shape), dtype) for dtype, shape in records.parts()]
    values = [random.integers(0, 100, (len(rows), *field.shape)).astype(field.dtype) for field, *_ in slots.fields]
    with pytest.MonkeyPatch.context() as patch:
        if form == "in Python":
            patch.setattr(region, "_copy_fields", None)
        elif region._copy_fields is None:
            pytest.skip("nothing was compiled here")
        records.put(values, ids, arrays)
        taken = records.take(ids[::-1], arrays)
        for outside in (700, -1):
            with pytest.raises(IndexError):
                records.take(np.array([*rows, outside], np.int64), arrays)
    assert all((each == value[::-1]).all() for each, value in zip(taken, values, strict=True))
    others = np.setdiff1d(np.arange(700), ids)
    assert not any(column[others].any() for column in records.columns(arrays))


@given(some_slots)
def test_a_record_is_at_most_seven_bytes_larger_than_its_fields(slots: Slots) -> None:
    assert 0 <= RecordLayout(slots).size - sum(fields[0].entry_bytes for fields in slots.fields) < 8


@pytest.mark.parametrize(("slots", "is_split"), [
    ([dense_vector(4)], True), ([dense_vector(4), integer_value(2)], False),
    ([dense_vector(300), integer_value(2)], True),
])  # fmt: skip
def test_large_rows_and_single_slots_have_an_array_for_each_slot(slots: list, is_split: bool) -> None:
    assert RecordLayout(Slots(tuple(slots))).is_split is is_split


@given(some_slots, st.booleans())
def test_the_arrays_of_a_layout_share_no_byte(slots: Slots, movable: bool) -> None:
    layout = RegionLayout(slots, 20_000, movable=movable)
    views = RegionViews(layout, memoryview(bytearray(layout.size)))
    flat = [
        array for group in (views.arrays, views.starts, views.counts, [views.row_info]) for of in group for array in of
    ]
    for number, array in enumerate(flat, 1):
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(flat, 1))
