"""Columns side by side: rows are found by number, whatever they came with and wherever the memory comes from."""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydp2.data.columns.columns import Columns
from pydp2.data.rowstore import region as region_module
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.batch_rows import BatchRows, concat_rows
from pydp2.data.rowstore.region import ROW_OVERHEAD, RegionLayout
from pydp2.data.schema.input_types import Slots, dense_vector, integer_value, integer_value_sequence
from pydp2.transport.shared_region import SharedRegion, map_region

data = st.data()


def shelf_of(slots: Slots, limit: int = 1 << 14) -> AppendOnlyStore:
    layout = RegionLayout(slots, limit)
    return AppendOnlyStore(layout, bytearray(layout.size))


def fill(row_store: AppendOnlyStore, columns: Columns, weights: list[int] | None = None) -> tuple[int, Columns]:
    count = columns.rows
    return row_store.add(
        columns, np.arange(count), columns.sample_bytes(), None if weights is None else np.array(weights, np.int64)
    )


@given(data=data)
def test_rows_of_all_that_was_put_there_are_gathered_by_number(some, data):
    slots = data.draw(some.slots)
    sample = st.tuples(*map(some.good_values, slots.types)).map(list)
    row_store = shelf_of(slots)
    parts, looks, first = [], [], 0
    for _ in range(data.draw(st.integers(1, 4))):
        columns = some.columns_of(slots, data.draw(st.lists(sample, max_size=5)))
        at, look = fill(row_store, columns)
        assert at == first
        first += columns.rows
        parts.append(columns)
        looks.append(look)
    for part, look in zip(parts, looks, strict=True):
        assert [f.tobytes() for f in look.frames()] == [f.tobytes() for f in part.frames()]
    everything = Columns.concat(parts)
    assert row_store.row_count == everything.rows
    ids = np.array(data.draw(st.lists(st.integers(0, max(0, first - 1)), max_size=9)) if first else [], np.int64)
    expected = everything.take(ids)
    reader = AppendOnlyStore(row_store.layout, np.concatenate(memory_of(row_store)).tobytes())
    for each in (row_store, reader):
        taken = each.take(ids)
        assert [f.tobytes() for f in taken.frames()] == [f.tobytes() for f in expected.frames()]
        assert all(a.flags.writeable for arrays in taken.arrays for a in arrays)
        for slot, declared in enumerate(slots.types):
            if declared.seq_type:
                assert each.lengths(ids, slot).tolist() == expected.lengths(slot).tolist()


@contextlib.contextmanager
def shown_to_others(layout: RegionLayout) -> Iterator[SharedRegion]:
    """Memory that is gone behind the block."""
    gc.freeze()  # the collection looks at what is made from here on, and is quick
    region = SharedRegion(layout.size)
    try:
        assert region.read_only_descriptor is not None
        yield region
    finally:
        region.close()
        region.memory = mmap.mmap(-1, 1)
        gc.collect()  # columns refer to themselves


@contextlib.contextmanager
def writing(how: str) -> Iterator[None]:
    """The file that the memory belongs to is written to for any number of bytes; ``how`` says what the kernel does."""

    def few_bytes(descriptor: int, what: memoryview, offset: int) -> int:
        return pwrite(descriptor, what[:3], offset)

    def no_memory(descriptor: int, what: memoryview, offset: int) -> int:
        few_bytes(descriptor, what, offset)
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    pwrite = os.pwrite
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_module, "_LEAST_WRITTEN", 1)
        patch.setattr(os, "pwrite", {"at once": pwrite, "little by little": few_bytes, "not": no_memory}[how])
        yield


@pytest.mark.parametrize("how", ["at once", "little by little", "not"])
@given(data=data)
@settings(max_examples=12)
def test_others_see_the_same_rows_where_they_are_written_to_the_file(some, data, how):
    slots = data.draw(some.slots)
    sample = st.tuples(*map(some.good_values, slots.types)).map(list)
    layout = RegionLayout(slots, 1 << 14)
    parts = [some.columns_of(slots, data.draw(st.lists(sample, max_size=5))) for _ in range(3)]
    everything = Columns.concat(parts)
    with shown_to_others(layout) as region:
        row_store = AppendOnlyStore(layout, region.memory, region.writable_descriptor)
        with writing(how):
            looks = [[f.tobytes() for f in fill(row_store, part)[1].frames()] for part in parts]
        reader = AppendOnlyStore(layout, map_region(region.read_only_descriptor, layout.size))
        taken = reader.take(np.arange(everything.rows))
        del row_store, reader
    assert looks == [[f.tobytes() for f in part.frames()] for part in parts]
    assert [f.tobytes() for f in taken.frames()] == [f.tobytes() for f in everything.frames()]


def test_only_what_is_large_is_written_to_the_file(some, monkeypatch):
    slots = Slots((dense_vector(4096), integer_value(99)))
    layout = RegionLayout(slots, 1 << 20)
    written = []
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda to, what, at: written.append(len(what)) or pwrite(to, what, at))
    with shown_to_others(layout) as region:
        row_store = AppendOnlyStore(layout, region.memory, region.writable_descriptor)
        fill(row_store, some.columns_of(slots, [[[0.5] * 4096, 7]] * 4))
        fill(row_store, some.columns_of(slots, [[[1.5] * 4096, 8]] * 3))
        taken = row_store.take(np.array([3, 4]))
        del row_store
    assert written == [4 * 4096 * 4]
    assert taken.arrays[0][0][:, 0].tolist() == [0.5, 1.5]


def memory_of(row_store: AppendOnlyStore) -> list[np.ndarray]:
    """What the memory of ``row_store`` holds, as somebody else sees it."""
    array = row_store.sample_indices
    while isinstance(array.base, np.ndarray):
        array = array.base
    return [np.frombuffer(array.base, np.uint8)]


def test_what_is_drawn_stays_and_batches_are_gathered_together(some):
    slots = Slots((integer_value(99), integer_value_sequence(99)))
    row_store = shelf_of(slots)
    fill(row_store, some.columns_of(slots, [[i, [i] * i] for i in range(6)]))
    first, second = BatchRows(row_store, np.array([5, 0, 5]), 1), BatchRows(row_store, np.array([2]))
    both = concat_rows([first, second])
    assert both.columns().samples() == [[5, [5] * 5], [0, []], [5, [5] * 5], [2, [2, 2]]]
    assert Columns.from_frames(slots, 4, both.frames()).samples() == both.columns().samples()
    first.release()
    second.release()
    assert row_store.take(np.arange(6)).samples() == [[i, [i] * i] for i in range(6)]


@pytest.mark.parametrize("row", [-1000, 1000])
def test_a_row_that_cannot_be_is_refused(some, row):
    slots = Slots((integer_value(99), integer_value_sequence(99)))
    with pytest.raises(IndexError):
        shelf_of(slots, 1000).take(np.array([row]))


def test_it_knows_of_all_rows_what_a_pass_depends_on(some):
    slots = Slots((integer_value(99),))
    row_store = shelf_of(slots)
    fill(row_store, some.columns_of(slots, [[1], [2]]))
    fill(row_store, some.columns_of(slots, [[1], [2]]), [1, 1])
    fill(row_store, some.columns_of(slots, [[1], [2], [3]]), [0, 7, 1])
    assert row_store.weights[:7].tolist() == [1, 1, 1, 1, 0, 7, 1]
    assert row_store.sizes[:7].tolist() == [4] * 7


@pytest.mark.parametrize("limit", [0, 1, 67, 68, 5000])
def test_as_many_rows_fit_as_the_limit_holds_and_where_sizes_are_fixed_it_is_little_larger_than_that(some, limit):
    slots = Slots((integer_value(99),))
    layout = RegionLayout(slots, limit)
    assert layout.max_rows == limit // (ROW_OVERHEAD + 4)
    assert layout.size <= limit + 4 * 4096
    row_store = AppendOnlyStore(layout, bytearray(layout.size))
    fill(row_store, some.columns_of(slots, [[i % 99] for i in range(layout.max_rows)]))
    assert row_store.take(np.arange(layout.max_rows)).samples() == [[i % 99] for i in range(layout.max_rows)]
    assert RegionLayout(Slots((dense_vector(1000),)), 1 << 30).size < 1 << 30
