"""Rows in cells: what was put is what is gathered, a cell is one row's at a time, and whoever comes too late
for a row finds out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pydp2.data.columns.columns import Columns, Ints
from pydp2.data.rowstore import row_copier
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.cells import CellRegion, CellRows, CellStore
from pydp2.data.rowstore.ids import StaleRows
from pydp2.data.rowstore.pass_view import PassView
from pydp2.data.rowstore.reader import SharedHeapReader
from pydp2.data.rowstore.region import RegionLayout
from pydp2.data.schema.input_types import (
    MIN_CELL_BYTES,
    Slots,
    dense_array,
    dense_vector,
    integer_value,
    integer_value_sequence,
    suits_cells,
)
from pydp2.errors import RemoteProtocolError


@pytest.fixture(autouse=True, scope="module")
def each_row_is_copied_by_the_thread() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_copier, "_MIN_BYTES", 0)
        yield


SLOTS = Slots((dense_vector(300), integer_value(1 << 20)))
ROOM = 40  # cells


class Cells(CellStore):
    """Cells, with what a worker and a trainer have of them."""

    def __init__(self, rows: int = ROOM) -> None:
        layout = RegionLayout(SLOTS, rows * (64 + SLOTS.row_bytes), movable=True)
        assert layout.max_rows == rows
        memory = bytearray(layout.size)
        super().__init__(layout, memory)
        self.of_workers, self.of_trainers = CellRegion(layout, memory), SharedHeapReader(layout, memory)
        self.generations = self._views.generations


def columns_of(numbers: list[int]) -> Columns:
    values = np.array(numbers, np.float32)[:, None] + np.arange(300, dtype=np.float32) / 1000
    return Columns(SLOTS, len(numbers), [[values.astype(np.float32)], [np.array(numbers, np.int32)]])


def numbers_of(columns: Columns) -> list[int]:
    """What :func:`columns_of` made ``columns`` of."""
    numbers: list[int] = columns.arrays[1][0].tolist()
    assert (columns.arrays[0][0] == columns_of(numbers).arrays[0][0]).all()
    return numbers


def put(cells: Cells, worker: int, numbers: list[int]) -> CellRows:
    """What a worker does that was granted cells."""
    granted = cells.grant(worker, len(numbers))
    assert len(granted) == len(numbers)
    cells.of_workers.put(granted, columns_of(numbers))
    return cells.accept_filled(worker, granted)


@pytest.mark.parametrize(
    ("types", "fits"),
    [
        ((dense_vector(MIN_CELL_BYTES // 4),), True),
        ((dense_vector(MIN_CELL_BYTES // 4 - 1),), False),
        ((dense_vector(MIN_CELL_BYTES // 4 - 1), integer_value(9)), True),
        ((dense_array(MIN_CELL_BYTES, shape=(2, MIN_CELL_BYTES // 2), dtype="u1"),), True),
        ((dense_vector(MIN_CELL_BYTES), integer_value_sequence(9)), False),
    ],
)
def test_large_samples_of_one_size_have_cells_and_no_others(types: Any, fits: bool) -> None:
    assert suits_cells(Slots(types)) is fits


def test_what_was_put_is_gathered_by_its_number_in_any_order() -> None:
    cells = Cells()
    store = PassView(cells)
    ids = store.append(put(cells, 3, [5, 6, 7]))
    assert numbers_of(store.take(ids[[2, 0, 0]])) == [7, 5, 5]
    assert numbers_of(cells.of_trainers.take(store.handles(ids[[1, 2]]))) == [6, 7]
    assert [array.tolist() for array in map(np.asarray, store.take(ids).arrays[1])] == [[5, 6, 7]]
    taken = store.take(ids)
    taken.arrays[0][0][:] = -1
    assert numbers_of(store.take(ids)) == [5, 6, 7]


def test_who_comes_too_late_finds_out_though_the_place_has_the_same_number() -> None:
    cells = Cells(4)
    store = PassView(cells)
    for turn in range(9):
        told = store.handles(ids := store.append(put(cells, 0, [turn, turn + 1])))
        assert numbers_of(cells.of_trainers.take(told)) == [turn, turn + 1]
        store.release_later(ids[:1])
        again = store.append(put(cells, 1, [100]))
        with pytest.raises(StaleRows):
            cells.of_trainers.take(told)
        assert numbers_of(cells.of_trainers.take(told[1:])) == [turn + 1]
        store.release_later(np.concatenate([again, ids[1:]]))


def test_a_mark_never_makes_a_number_that_a_message_cannot_carry() -> None:
    cells = Cells()
    store = PassView(cells)
    ids = store.append(put(cells, 0, [8]))
    cells.generations[ids] = (1 << 22) - 1
    assert 0 <= int(store.handles(ids)[0]) < 1 << 62
    assert cells.of_trainers.resolve(store.handles(ids)).tolist() == ids.tolist()
    store.release_later(ids)
    assert store.handles(store.append(put(cells, 0, [8]))).tolist() == ids.tolist()
    assert cells.of_trainers.resolve(np.array([-1, -(1 << 62)])).max() < 0


def test_cells_that_were_not_granted_are_refused() -> None:
    cells = Cells()
    mine, other = cells.grant(0, 3), cells.grant(1, 3)
    held = cells.accept_filled(0, mine[:1])
    for wrong in ([*mine[:1]], [*other[:1]], [mine[1], mine[1]], [-1], [1 << 40], [1 << 62], [ROOM - 1], []):
        with pytest.raises(RemoteProtocolError, match="not granted"):
            cells.accept_filled(0, np.array(wrong, np.int64))
    assert cells.granted == {0: 2, 1: 3}
    assert len(cells) == held.rows


def test_a_worker_gets_as_many_as_there_are_and_no_row_is_put_where_there_is_none() -> None:
    cells = Cells(4)
    assert cells.grant(0, 9).tolist() == [0, 1, 2, 3]
    assert cells.grant(1, 1).tolist() == []
    with pytest.raises(MemoryError, match="6 rows are needed"):
        cells.append(columns_of([1, 2]))
    cells.reclaim_worker(0)
    assert len(cells.append(columns_of([1, 2, 3]))) == 3
    with pytest.raises(MemoryError):
        cells.append(columns_of([1, 2]))
    assert len(cells.grant(0, 9)) == 1


def test_rows_that_no_store_claims_or_that_a_closed_store_has_are_given_back() -> None:
    cells = Cells()
    store = PassView(cells)
    placed = put(cells, 0, [1, 2, 3, 4])
    rows = store.append(placed.slice(1, 3))
    assert numbers_of(store.take(rows)) == [2, 3]
    with pytest.raises(ValueError, match="claimed once"):
        store.append(placed.slice(2, 4))
    part = placed.slice(2, 4).slice(1, 2)
    assert part.sample_bytes().tolist() == [SLOTS.row_bytes]
    last = store.append(part)
    assert numbers_of(store.take(last)) == [4]
    store.release_later(last)
    assert len(cells) == 3
    for _ in range(2):
        placed.release()  # the first row, which no store has
        assert len(cells) == len(store) == 2
    with pytest.raises(ValueError, match="claimed once"):
        store.append(placed.slice(0, 1))
    picked, unused = BatchRows(store, rows[:1]), BatchRows(store, rows[1:])
    picked.release()
    assert len(cells) == len(store) == 1
    for _ in range(2):
        store.close()
        assert len(cells) == len(store) == 0
    unused.release()
    assert len(cells) == 0
    with pytest.raises(RuntimeError, match="closed"):
        store.append(columns_of([1]))


def test_rows_are_given_back_once() -> None:
    cells = Cells()
    store, other = PassView(cells), PassView(cells)
    ids = store.append(put(cells, 0, [1, 2]))
    for wrong in (ids + 2, ids):
        with pytest.raises(KeyError):
            other.release_later(wrong)
    store.release_later(ids)
    with pytest.raises(KeyError):
        store.release_later(ids)
    cells.release_later(ids)
    with pytest.raises(KeyError, match="given back once"):
        cells.grant(0, 1)


def test_no_slot_of_them_has_steps() -> None:
    store = Cells()
    with pytest.raises(TypeError, match="no sequences"):
        store.lengths(np.array([0]), 0)


class Machine(RuleBasedStateMachine):
    """Workers, stores and trainers over one memory. Each row is a number of its own; a dict says what lies where."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = Cells()
        self.stores = [PassView(self.cells), PassView(self.cells)]
        self.granted: dict[int, list[int]] = {0: [], 1: [], 2: []}
        self.chunks: list[tuple[CellRows, list[int]]] = []  # sent, with where their rows lie
        self.batches: list[tuple[BatchRows, list[int]]] = []
        self.lies: dict[int, int] = {}
        self.next = 0
        self.told: list[tuple[Ints, list[int]]] = []

    def fresh(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    @rule(worker=st.integers(0, 2), count=st.integers(0, 9))
    def grant(self, worker: int, count: int) -> None:
        cells = self.cells.grant(worker, count).tolist()
        taken = {cell for all_ in self.granted.values() for cell in all_} | set(self.lies)
        assert not taken & set(cells)
        assert len(cells) == min(count, ROOM - len(taken))
        self.granted[worker] += cells

    @rule(worker=st.integers(0, 2))
    def worker_dies(self, worker: int) -> None:
        self.cells.reclaim_worker(worker)
        self.granted[worker] = []

    @precondition(lambda self: any(self.granted.values()))
    @rule(worker=st.integers(0, 2), count=st.integers(1, 5))
    def worker_sends(self, worker: int, count: int) -> None:
        mine, self.granted[worker] = self.granted[worker][:count], self.granted[worker][count:]
        if mine:
            numbers = self.fresh(len(mine))
            self.cells.of_workers.put(np.array(mine), columns_of(numbers))
            self.lies |= dict(zip(mine, numbers, strict=True))
            self.chunks.append((self.cells.accept_filled(worker, np.array(mine)), mine))

    @precondition(lambda self: self.chunks)
    @rule(which=st.integers(0, 99))
    def chunk_is_late(self, which: int) -> None:
        rows, cells = self.chunks.pop(which % len(self.chunks))
        rows.release()
        for cell in cells:
            del self.lies[cell]

    @precondition(lambda self: self.chunks)
    @rule(which=st.integers(0, 99), store=st.integers(0, 1), cut=st.integers(0, 4), reverse=st.booleans())
    def pool_takes(self, which: int, store: int, cut: int, reverse: bool) -> None:
        placed, mine = self.chunks.pop(which % len(self.chunks))
        for part in sorted((slice(0, cut), slice(cut, len(mine))), key=lambda part: part.start, reverse=reverse):
            if here := mine[part]:
                rows = self.stores[store].append(placed.slice(part.start, part.start + len(here)))
                assert rows.tolist() == here
                self.batches.append((BatchRows(self.stores[store], rows), here))

    @precondition(lambda self: self.chunks)
    @rule(which=st.integers(0, 99), store=st.integers(0, 1), cut=st.integers(0, 4))
    def pool_takes_some_and_the_file_is_closed(self, which: int, store: int, cut: int) -> None:
        placed, mine = self.chunks.pop(which % len(self.chunks))
        if here := mine[:cut]:
            self.batches.append(
                (BatchRows(self.stores[store], self.stores[store].append(placed.slice(0, len(here)))), here)
            )
        placed.release()
        for cell in mine[cut:]:
            del self.lies[cell]

    @rule(store=st.integers(0, 1), count=st.integers(1, 4))
    def rows_come_another_way(self, store: int, count: int) -> None:
        numbers = self.fresh(count)
        if ROOM - len(self.lies) - sum(map(len, self.granted.values())) < count:
            with pytest.raises(MemoryError):
                self.stores[store].append(columns_of(numbers))
            return
        rows = self.stores[store].append(columns_of(numbers))
        self.lies |= dict(zip(rows.tolist(), numbers, strict=True))
        self.batches.append((BatchRows(self.stores[store], rows), rows.tolist()))

    @precondition(lambda self: self.batches)
    @rule(which=st.integers(0, 99))
    def trainer_is_told(self, which: int) -> None:
        picked, cells = self.batches[which % len(self.batches)]
        self.told.append((picked.handles(), [self.lies[cell] for cell in cells]))

    @precondition(lambda self: self.batches)
    @rule(which=st.integers(0, 99))
    def batch_is_used(self, which: int) -> None:
        picked, cells = self.batches.pop(which % len(self.batches))
        assert numbers_of(picked.columns()) == [self.lies.pop(cell) for cell in cells]
        picked.release()

    @rule(store=st.integers(0, 1))
    def pass_is_left(self, store: int) -> None:
        left = self.stores[store]
        left.close()
        self.stores[store] = PassView(self.cells)
        for picked, cells in self.batches:
            if picked.store is left:
                picked.release()  # that comes too late
                for cell in cells:
                    del self.lies[cell]
        self.batches = [batch for batch in self.batches if batch[0].store is not left]

    @invariant()
    def what_trainers_were_told_is_there_or_they_find_out(self) -> None:
        there = set(self.lies.values())
        assert len(self.cells) == len(self.lies)
        granted = sum(map(len, self.granted.values()))
        assert self.cells.free_count == ROOM - granted - len(self.lies)  # what was given back is applied now
        for told, numbers in self.told:
            if there.issuperset(numbers):
                assert numbers_of(self.cells.of_trainers.take(told)) == numbers
            else:
                with pytest.raises(StaleRows):
                    self.cells.of_trainers.take(told)

    @invariant()
    def what_is_granted_is_counted(self) -> None:
        assert {w: n for w, n in self.cells.granted.items() if n} == {w: len(p) for w, p in self.granted.items() if p}


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=40)
