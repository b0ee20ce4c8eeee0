"""What every store of a pass holds to (``pydp2/data/rowstore/base.py``), however it is composed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydp2.data.columns.columns import Columns, Ints
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.base import RowMemory, RowStore
from pydp2.data.rowstore.batch_rows import BatchRows, concat_rows
from pydp2.data.rowstore.cells import CellStore
from pydp2.data.rowstore.composite import CompositeStore
from pydp2.data.rowstore.gather import gather_copy
from pydp2.data.rowstore.heap import HeapStore, SharedHeap
from pydp2.data.rowstore.host_rows import RowServers
from pydp2.data.rowstore.pass_view import PassView
from pydp2.data.rowstore.reader import SharedHeapReader, SharedRows
from pydp2.data.rowstore.region import RegionLayout
from pydp2.data.schema.input_types import Slots, dense_array, dense_vector, integer_value

ROOM = 1 << 16  # bytes, of the kinds that have a limit
OF_ONE_SIZE = Slots((dense_vector(3), integer_value(1 << 40), dense_array(6, shape=(2, 3), dtype="u1")), tuple("abc"))
data = st.data()


@dataclass
class Case:
    """Memory of a service with two passes. ``memories``: what the passes share, and gives rows back;
    ``readers``: what a trainer with the same memory reads rows with."""

    slots: Slots
    memories: list[Any] = field(default_factory=list)
    readers: list[SharedRows] = field(default_factory=list)
    open_pass: Callable[[], RowStore] = field(init=False)
    arriving: Callable[[Columns], Any] = lambda columns: columns
    """What arrives in place of some columns that are read as these."""
    fetched: Callable[[Ints], Columns] | None = None
    """The rows with these handles, of hosts."""

    def read(self, store: RowStore, ids: Ints) -> Columns:
        """The rows, as whoever gets them has them in the end."""
        split = store.split(ids)
        if split is None:
            assert store.carried_bytes(ids, 1000 * len(ids)) == 1000 * len(ids)
            return store.take(ids)
        assert self.fetched is not None
        remote = len(split.handles)
        assert remote == sum(count for _, count in split.elsewhere)
        assert store.carried_bytes(ids, 1000 * len(ids)) == 1000 * (len(ids) - remote) + 16 * remote
        assert store.shared_row_count(ids) == 0
        with pytest.raises(RuntimeError, match="fetched from there"):
            store.take(ids)
        return Columns.concat([split.store.take(split.here), self.fetched(split.handles)]).take(split.order)


def on_the_heap(slots: Slots) -> Case:
    heap = HeapStore(slots)
    case = Case(slots, [heap])
    case.open_pass = lambda: PassView(heap)
    return case


def region_of(slots: Slots, *, movable: bool) -> tuple[RegionLayout, bytearray]:
    layout = RegionLayout(slots, ROOM, movable=movable)
    return layout, bytearray(layout.size)


def on_a_shared_heap(slots: Slots) -> Case:
    region = region_of(slots, movable=True)
    heap = SharedHeap(*region)
    case = Case(slots, [heap], [SharedHeapReader(*region)])
    case.open_pass = lambda: PassView(heap)
    return case


def in_cells(slots: Slots) -> Case:
    region = region_of(slots, movable=True)
    cells = CellStore(*region)
    case = Case(slots, [cells], [SharedHeapReader(*region)])
    case.open_pass = lambda: PassView(cells)
    return case


def in_the_cache(slots: Slots) -> Case:
    """All rows lie there before the pool asks for them."""
    region = region_of(slots, movable=False)
    cache = AppendOnlyStore(*region)
    case = Case(slots, [], [AppendOnlyStore(*region)])
    case.open_pass = lambda: cache
    case.arriving = lambda columns: cached(cache, columns)
    return case


def cached(cache: AppendOnlyStore, columns: Columns) -> Columns:
    return cache.add(columns, np.arange(columns.rows), columns.sample_bytes(), None)[1]


def every_other(some: Callable[[Columns], Any]) -> Callable[[Columns], Any]:
    turns = [0]

    def arriving(columns: Columns) -> Any:
        turns[0] += 1
        return some(columns) if turns[0] % 2 else columns

    return arriving


def partly_in_the_cache(slots: Slots, other: Callable[[Slots], Case]) -> Case:
    case, region = other(slots), region_of(slots, movable=False)
    cache, open_pass = AppendOnlyStore(*region), case.open_pass
    case.readers.insert(0, AppendOnlyStore(*region))
    case.open_pass = lambda: CompositeStore(cache, open_pass())
    case.arriving = every_other(lambda columns: cached(cache, columns))
    return case


def partly_on_hosts(slots: Slots, other: Callable[[Slots], Case]) -> Case:
    case, servers = other(slots), RowServers()
    open_pass, there = case.open_pass, list[Columns]()
    for host in (1, 2, 3):
        servers.add(host, f"tcp://node{host}")

    def stays(columns: Columns) -> Any:
        handles = np.arange(len(there), len(there) + columns.rows)
        there.extend(columns.slice(row, row + 1) for row in range(columns.rows))
        return servers.accept(1 + len(there) % 3, handles, columns.sample_bytes())

    case.memories.append(servers)
    case.open_pass = lambda: CompositeStore(PassView(servers), open_pass())
    case.arriving = every_other(stays)
    case.fetched = lambda handles: Columns.concat([there[i] for i in handles.tolist()])
    return case


CASES: dict[str, Callable[[Slots], Case]] = {
    "heap": on_the_heap,
    "shared heap": on_a_shared_heap,
    "cells": in_cells,
    "cache": in_the_cache,
    "cache, heap": lambda slots: partly_in_the_cache(slots, on_the_heap),
    "cache, shared heap": lambda slots: partly_in_the_cache(slots, on_a_shared_heap),
    "hosts, heap": lambda slots: partly_on_hosts(slots, on_the_heap),
    "hosts, shared heap": lambda slots: partly_on_hosts(slots, on_a_shared_heap),
    "hosts, cells": lambda slots: partly_on_hosts(slots, in_cells),
}
of_every_composition = pytest.mark.parametrize("kind", CASES)


def case_of(kind: str, some: Any, draw: Callable[[Any], Any]) -> tuple[Case, Any]:
    """A case, and a strategy for its samples."""
    slots = OF_ONE_SIZE if "cells" in kind else draw(some.slots)
    return CASES[kind](slots), st.tuples(*map(some.good_values, slots.types)).map(list)


def frames_of(columns: Columns) -> list[bytes]:
    return [frame.tobytes() for frame in columns.frames()]


def live_rows(memory: Any) -> int:
    return sum(memory.row_count(host) for host in (1, 2, 3)) if isinstance(memory, RowServers) else len(memory)


@of_every_composition
@settings(max_examples=settings().max_examples // 2)  # for each composition
@given(data=data)
def test_rows_are_found_under_their_ids_until_they_are_released(kind: str, some: Any, data: Any) -> None:
    """Any appending, reading, releasing and closing of two passes, against a dict of samples."""
    case, sample = case_of(kind, some, data.draw)
    passes = [case.open_pass(), case.open_pass()]
    rows: list[dict[int, Columns]] = [{}, {}]
    for _ in range(data.draw(st.integers(1, 10))):
        which = data.draw(st.integers(0, 1))
        store, mine = passes[which], rows[which]
        if data.draw(st.booleans()) or not mine:
            columns = some.columns_of(case.slots, data.draw(st.lists(sample, max_size=5)))
            ids = store.append(case.arriving(columns))
            assert (ids.dtype, ids.shape) == (np.int64, (columns.rows,))
            assert not mine.keys() & set(ids.tolist()), "the id of a row that is kept"
            mine |= {row: columns.slice(i, i + 1) for i, row in enumerate(ids.tolist())}
        elif data.draw(st.integers(0, 4)):
            gone = data.draw(st.lists(st.sampled_from(sorted(mine)), unique=True))
            store.release_later(np.array(gone, np.int64))
            for row in gone:
                del mine[row]
        else:
            stays = sum(row >= 0 for row in mine) if "cache" in kind else 0
            assert [store.close(), store.close()] == [len(mine) - stays, 0]
            store.release_later(np.array([*mine], np.int64))  # by whoever has a batch of it
            passes[which], rows[which] = case.open_pass(), {}
        for store, mine in zip(passes, rows, strict=True):
            chosen = data.draw(st.lists(st.sampled_from(sorted(mine)), max_size=6)) if mine else []
            expected = Columns.concat([Columns.empty(case.slots), *(mine[row] for row in chosen)])
            check(case, store, np.array(chosen, np.int64), expected)
    for store in passes:
        store.close()
    assert [live_rows(memory) for memory in case.memories] == [0] * len(case.memories)


def check(case: Case, store: RowStore, ids: Ints, expected: Columns) -> None:
    """Every way to read the rows ``ids`` gives ``expected``, bit by bit."""
    frames = frames_of(expected)
    taken = case.read(store, ids)
    assert frames_of(taken) == frames
    assert all(array.flags.writeable for arrays in taken.arrays for array in arrays)
    if store.split(ids) is not None:
        return
    assert [gather_copy(array, which).tobytes() for array, which in store.sources(ids)] == frames
    for slot, declared in enumerate(expected.slots.types):
        if declared.seq_type:
            assert store.lengths(ids, slot).tolist() == expected.lengths(slot).tolist()
        elif case.slots is OF_ONE_SIZE:
            with pytest.raises(TypeError):
                store.lengths(ids, slot)
    if not case.readers:
        assert store.shared_row_count(ids) == 0
    elif bound := store.shared_row_count(ids):
        reader = case.readers[-1 if (ids < 0).all() else 0]
        handles = store.handles(ids)
        assert (reader.resolve(handles) < bound).all()
        assert frames_of(reader.take(handles)) == frames
        assert reader.row_sizes(handles).tolist() == expected.sample_bytes().tolist()


@of_every_composition
@settings(max_examples=settings().max_examples // 3)
@given(data=data)
def test_a_batch_keeps_its_rows_until_it_is_released(kind: str, some: Any, data: Any) -> None:
    """It can be sent any number of times, alone or with others, however much is appended meanwhile."""
    case, sample = case_of(kind, some, data.draw)
    store = case.open_pass()
    batches, contents = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        columns = some.columns_of(case.slots, data.draw(st.lists(sample, min_size=1, max_size=4)))
        ids = store.append(case.arriving(columns))
        padding = data.draw(st.integers(0, 2))
        batches.append(BatchRows(store, np.concatenate([ids, ids[:1].repeat(padding)]), padding, columns.nbytes))
        contents.append(Columns.concat([columns, *[columns.slice(0, 1)] * padding]))
        if len(batches) > 1 and data.draw(st.booleans()):
            gone = data.draw(st.integers(0, len(batches) - 1))
            batches.pop(gone).release()
            del contents[gone]
        for batch, expected in zip(batches, contents, strict=True):
            if store.split(batch.row_ids) is None:
                into = [np.empty(size, np.uint8) for size in batch.sizes()]
                batch.write(into)
                assert [each.tobytes() for each in into] == frames_of(expected)
        together = case.read(store, concat_rows(batches).row_ids)
        assert frames_of(together) == frames_of(Columns.concat(contents))


@pytest.mark.parametrize("kind", [kind for kind in CASES if "cache" not in kind])
def test_a_row_is_given_back_once_and_only_by_the_pass_that_has_it(kind: str, some: Any) -> None:
    case = CASES[kind](OF_ONE_SIZE)
    store, other = case.open_pass(), case.open_pass()
    for _ in range(2):  # where rows lie in two memories, once in each
        columns = some.columns_of(OF_ONE_SIZE, [[[5, 6, 7], 8, [1] * 6]])
        ids = store.append(case.arriving(columns))
        for wrong in (np.repeat(ids, 2), ids + (1 << 20), ids - (1 << 20)):
            with pytest.raises(KeyError, match="given back once"):
                store.release_later(wrong)
        with pytest.raises(KeyError, match="given back once"):
            other.release_later(ids)
        assert frames_of(case.read(store, ids)) == frames_of(columns)
        store.release_later(ids)
        with pytest.raises(KeyError, match="given back once"):
            store.release_later(ids)


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind != "cache"])
def test_to_a_pass_that_is_over_nothing_is_added(kind: str, some: Any) -> None:
    case = CASES[kind](OF_ONE_SIZE)
    store = case.open_pass()
    assert store.close() == 0
    columns = some.columns_of(OF_ONE_SIZE, [[[1, 2, 3], 4, [0] * 6]])
    if kind.startswith("cache"):
        case.arriving(columns)
    with pytest.raises(RuntimeError, match="its pass is over"):
        store.append(case.arriving(columns))
    memories: list[RowMemory] = case.memories
    assert [live_rows(memory) for memory in memories if not isinstance(memory, RowServers)] == [0]
