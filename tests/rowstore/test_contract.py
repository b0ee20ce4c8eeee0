"""What every memory of rows holds to (``pydp2/data/rowstore/base.py``), whichever it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydp2.data.columns.columns import Columns, Ints
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.base import RowReader, RowStore
from pydp2.data.rowstore.batch_rows import BatchRows, concat_rows
from pydp2.data.rowstore.cells import CellAllocator, CellRegion, CellStore
from pydp2.data.rowstore.gather import gather_copy
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.rowstore.mixed import MixedStore
from pydp2.data.rowstore.region_layout import RegionLayout
from pydp2.data.rowstore.shared_heap import PassRows, SharedHeap, SharedHeapReader
from pydp2.data.schema.input_types import Slots, dense_array, dense_vector, integer_value
from pydp2.server.dispatch.cached_rows import CachedRows

ROOM = 1 << 16  # bytes, of the kinds that have a limit
data = st.data()


class Memory(NamedTuple):
    """A store, what reads rows from it, and what a trainer with the same memory reads them with (None: it cannot)."""

    store: RowStore
    reader: RowReader
    shared: Callable[[Ints], Columns] | None


class OverAppended:
    """The store of a pass over the cache: rows lie in the append-only store before the pool asks for them."""

    def __init__(self, rows: AppendOnlyStore) -> None:
        self._rows, self._there = rows, CachedRows(rows)

    def append(self, columns: Columns) -> Ints:
        count = columns.rows
        _, where = self._rows.append(columns, np.arange(count), columns.sample_bytes(), None)
        return self._there.append(where)


def on_the_heap(slots: Slots) -> Memory:
    store = HeapStore(slots)
    return Memory(store, store, None)


def in_cells(slots: Slots) -> Memory:
    layout = RegionLayout(slots, ROOM)
    memory = bytearray(layout.size)
    store = CellStore(CellAllocator(CellRegion(layout, memory)))
    return Memory(store, store, CellRegion(layout, memory).take)


def append_only(slots: Slots) -> Memory:
    layout = RegionLayout(slots, ROOM)
    memory = bytearray(layout.size)
    rows = AppendOnlyStore(layout, memory)
    return Memory(OverAppended(rows), rows, AppendOnlyStore(layout, memory).take)


class PartlyCached:
    """The store of a pass of which the cache takes every other chunk."""

    def __init__(self, rows: AppendOnlyStore, store: MixedStore) -> None:
        self._rows, self._store = rows, store
        self._count = 0

    def append(self, columns: Columns) -> Ints:
        self._count += 1
        if self._count % 2:
            indices = np.arange(columns.rows)
            _, columns = self._rows.append(columns, indices, columns.sample_bytes(), None)
        return self._store.append(columns)


def mixed(slots: Slots) -> Memory:
    layout = RegionLayout(slots, ROOM)
    memory = bytearray(layout.size)
    rows = AppendOnlyStore(layout, memory)
    store = MixedStore(rows, HeapStore(slots))
    return Memory(PartlyCached(rows, store), store, AppendOnlyStore(layout, memory).take)


def shared_heap(slots: Slots) -> Memory:
    layout = RegionLayout(slots, ROOM, movable=True)
    memory = bytearray(layout.size)
    store = PassRows(SharedHeap(layout, memory))
    return Memory(store, store, SharedHeapReader(layout, memory).take)


OF_ONE_SIZE = Slots((dense_vector(3), integer_value(1 << 40), dense_array(6, shape=(2, 3), dtype="u1")), tuple("abc"))


def slots_of(make: Callable[[Slots], Memory], some: Any, draw: Callable[[Any], Any]) -> Slots:
    return OF_ONE_SIZE if make is in_cells else draw(some.slots)


@pytest.mark.parametrize("make", [on_the_heap, in_cells, append_only, mixed, shared_heap])
@given(data=data)
def test_rows_are_found_under_their_ids_until_they_are_released(
    make: Callable[[Slots], Memory], some: Any, data: Any
) -> None:
    """Any appending, reading and releasing, against a dict of samples."""
    slots = slots_of(make, some, data.draw)
    sample = st.tuples(*map(some.good_values, slots.types)).map(list)
    store, reader, shared = make(slots)
    rows: dict[int, Columns] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()) or not rows:
            columns = some.columns_of(slots, data.draw(st.lists(sample, max_size=5)))
            ids = store.append(columns)
            assert (ids.dtype, ids.shape) == (np.int64, (columns.rows,))
            assert not rows.keys() & set(ids.tolist()), "the id of a row that is kept"
            rows |= {row: columns.slice(i, i + 1) for i, row in enumerate(ids.tolist())}
        else:
            gone = data.draw(st.lists(st.sampled_from(sorted(rows)), unique=True))
            reader.release_later(np.array(gone, np.int64))
            for row in gone:
                del rows[row]
        chosen = data.draw(st.lists(st.sampled_from(sorted(rows)), max_size=6)) if rows else []
        ids = np.array(chosen, np.int64)
        expected = Columns.concat([Columns.empty(slots), *(rows[row] for row in chosen)])
        check(reader, shared, ids, expected)


def check(reader: RowReader, shared: Callable[[Ints], Columns] | None, ids: Ints, expected: Columns) -> None:
    """Every way to read the rows ``ids`` gives ``expected``, bit by bit."""
    frames = [frame.tobytes() for frame in expected.frames()]
    taken = reader.take(ids)
    assert [frame.tobytes() for frame in taken.frames()] == frames
    assert all(array.flags.writeable for arrays in taken.arrays for array in arrays)
    assert [gather_copy(array, which).tobytes() for array, which in reader.sources(ids)] == frames
    for slot, declared in enumerate(expected.slots.types):
        if declared.seq_type:
            assert reader.lengths(ids, slot).tolist() == expected.lengths(slot).tolist()
        elif isinstance(reader, CellStore):
            with pytest.raises(TypeError):
                reader.lengths(ids, slot)
    if shared is None:
        assert reader.shared_row_count(ids) == 0
    elif not isinstance(reader, MixedStore) or reader.shared_row_count(ids):
        assert (reader.handles(ids) & (1 << 40) - 1 < reader.shared_row_count(ids)).all()
        assert [frame.tobytes() for frame in shared(reader.handles(ids)).frames()] == frames


@pytest.mark.parametrize("make", [on_the_heap, in_cells, append_only, mixed, shared_heap])
@settings(max_examples=15, deadline=None)
@given(data=data)
def test_a_batch_keeps_its_rows_until_it_is_released(make: Callable[[Slots], Memory], some: Any, data: Any) -> None:
    """It can be sent any number of times, alone or with others, however much is appended meanwhile."""
    slots = slots_of(make, some, data.draw)
    sample = st.tuples(*map(some.good_values, slots.types)).map(list)
    store, reader, _ = make(slots)
    batches, contents = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        columns = some.columns_of(slots, data.draw(st.lists(sample, min_size=1, max_size=4)))
        ids = store.append(columns)
        padding = data.draw(st.integers(0, 2))
        batches.append(BatchRows(reader, np.concatenate([ids, ids[:1].repeat(padding)]), padding, columns.nbytes))
        contents.append(Columns.concat([columns, *[columns.slice(0, 1)] * padding]))
        if len(batches) > 1 and data.draw(st.booleans()):
            gone = data.draw(st.integers(0, len(batches) - 1))
            batches.pop(gone).release()
            del contents[gone]
        for batch, expected in zip(batches, contents, strict=True):
            into = [np.empty(size, np.uint8) for size in batch.sizes()]
            batch.write(into)
            assert [each.tobytes() for each in into] == [frame.tobytes() for frame in expected.frames()]
        together = concat_rows(batches).columns()
        assert [f.tobytes() for f in together.frames()] == [f.tobytes() for f in Columns.concat(contents).frames()]
