"""Rows in memory that trainers see: what they gather is what was named, or they are told that it is gone."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

import pydp2.data.rowstore.heap as heap_module
import pydp2.data.rowstore.reader as reader_module
from pydp2.data.columns.columns import Columns
from pydp2.data.rowstore.heap import SharedHeap
from pydp2.data.rowstore.ids import StaleRows
from pydp2.data.rowstore.pass_view import PassView
from pydp2.data.rowstore.reader import SharedHeapReader
from pydp2.data.rowstore.region import RegionLayout
from pydp2.data.schema.input_types import Slots, integer_value, integer_value_sequence
from pydp2.transport.shared_region import SharedRegion

SLOTS = Slots((integer_value(1 << 30), integer_value_sequence(1 << 30)), ("n", "ids"))


def rows_of(numbers: Any, lengths: Any) -> Columns:
    """Rows whose sequence holds the number of the row, as often as it is long."""
    numbers, lengths = np.asarray(numbers, np.int32), np.asarray(lengths, np.int32)
    return Columns(SLOTS, len(numbers), [[numbers], [lengths, np.repeat(numbers, lengths)]])


def heap_of(limit: int = 1 << 20) -> tuple[SharedHeap, SharedHeapReader]:
    layout = RegionLayout(SLOTS, limit, movable=True)
    memory = bytearray(layout.size)
    return SharedHeap(layout, memory), SharedHeapReader(layout, memory)


def numbers_in(columns: Columns) -> list[int]:
    """The numbers of the rows, which are whole."""
    (numbers,), (lengths, ids) = columns.arrays
    assert ids.tolist() == np.repeat(numbers, lengths).tolist()
    found: list[int] = numbers.tolist()
    return found


def test_a_row_that_was_given_back_is_not_gathered_also_when_its_id_has_another_row() -> None:
    heap, reader = heap_of()
    ids = heap.append(rows_of([7, 8], [3, 3]))
    handles = heap.handles(ids)
    assert numbers_in(reader.take(handles)) == [7, 8]
    heap.release(ids[:1])
    with pytest.raises(StaleRows):
        reader.take(handles)
    assert numbers_in(reader.take(handles[1:])) == [8]
    again = heap.append(rows_of([9], [3]))
    assert again.tolist() == ids[:1].tolist()
    with pytest.raises(StaleRows):
        reader.take(handles[:1])
    assert numbers_in(reader.take(heap.handles(again))) == [9]


def test_rows_that_move_while_they_are_gathered_are_gathered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_module, "_SLACK", 8)
    heap, reader = heap_of()
    ids = heap.append(rows_of(range(20), [5] * 20))
    heap.release(ids[::2])
    kept = ids[1::2]
    handles = heap.handles(kept)
    gather, sweeps = reader._gather, []

    def swept_meanwhile(where: Any) -> Columns | None:
        found = gather(where)
        if len(sweeps) < 2:
            sweeps.append(0)
            for arenas in heap._arenas:
                for arena in arenas:
                    arena._compact(heap._ids.live, arena.capacity)
            if found is not None:
                found.arrays[1][1][:] = -1  # as if others had been copied
        return found

    monkeypatch.setattr(reader, "_gather", swept_meanwhile)
    assert numbers_in(reader.take(handles)) == list(range(1, 20, 2))
    assert len(sweeps) == 2


def test_a_sweep_that_never_ends_makes_rows_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was killed in the middle of it."""
    monkeypatch.setattr(reader_module, "_PATIENCE", 0.01)
    heap, reader = heap_of()
    handles = heap.handles(heap.append(rows_of([1], [1])))
    heap._views.header[0] += 1
    with pytest.raises(StaleRows):
        reader.take(handles)
    heap._views.header[0] += 1
    assert numbers_in(reader.take(handles)) == [1]


@pytest.mark.parametrize("damage", [(-1, 1), (0, -1), (1 << 40, 1), (0, 1 << 40)])
def test_a_row_that_lies_nowhere_is_refused(damage: tuple[int, int]) -> None:
    heap, reader = heap_of()
    ids = heap.append(rows_of([1], [3]))
    heap._views.starts[1][0][ids], heap._views.counts[1][0][ids] = damage
    with pytest.raises(IndexError):
        reader.take(heap.handles(ids))


def test_a_pass_that_is_closed_gives_back_its_own_rows_and_no_others() -> None:
    heap, reader = heap_of()
    one, other = PassView(heap), PassView(heap)
    mine, theirs = one.append(rows_of([1, 2, 3], [1, 2, 3])), other.append(rows_of([4, 5], [4, 5]))
    one.release_later(mine[:1])
    kept = heap.handles(theirs)
    one.close()
    one.release_later(mine[1:])  # by whoever had a batch of it
    assert len(one) == 0
    with pytest.raises(RuntimeError, match="its pass is over"):
        one.append(rows_of([6], [1]))
    again = other.append(rows_of([7, 8, 9], [1, 1, 1]))
    assert not set(again.tolist()) & set(theirs.tolist())
    assert numbers_in(reader.take(kept)) == [4, 5]
    assert (len(heap), heap.high_water) == (5, 5)


def test_there_is_an_error_when_there_is_no_room() -> None:
    heap, _ = heap_of(4096)
    with pytest.raises(MemoryError):
        heap.append(rows_of([1], [10_000]))
    heap, _ = heap_of(4096)
    with pytest.raises(MemoryError):
        heap.append(rows_of(range(200), [1] * 200))


def blocks(region: SharedRegion) -> int:
    """Bytes that the memory of ``region`` takes."""
    assert region.read_only_descriptor is not None
    return os.fstat(region.read_only_descriptor).st_blocks * 512


def test_memory_that_is_not_needed_any_more_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_module, "_SPARE_BYTES", 1 << 16)
    monkeypatch.setattr(heap_module, "_SLACK", 1 << 16)
    layout = RegionLayout(SLOTS, 1 << 30, movable=True)
    region = SharedRegion(layout.size)
    try:
        if region.read_only_descriptor is None:
            pytest.skip("memory cannot be shared here")
        heap = SharedHeap(layout, region.memory)
        few = heap.append(rows_of(range(10), [10] * 10))
        ids = heap.append(rows_of(range(4000), [1000] * 4000))
        assert blocks(region) > 16_000_000
        heap.release(ids)
        assert blocks(region) < 1_000_000
        assert numbers_in(SharedHeapReader(layout, region.memory).take(heap.handles(few))) == list(range(10))
        before = heap.handles(few)
        heap.release(few)
        heap.release_memory()
        assert blocks(region) < 100_000
        assert heap.held_bytes < 100_000
        heap.append(rows_of(range(20), [1] * 20))
        with pytest.raises(StaleRows):
            SharedHeapReader(layout, region.memory).take(before)
        del heap
    finally:
        region.close()


def test_what_is_gathered_beside_sweeps_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread appends, releases and sweeps; another gathers rows that it was told of, as a trainer does. The first
    goes on until the other, which may get little of a busy processor, has gathered often enough."""
    monkeypatch.setattr(heap_module, "_SLACK", 256)
    heap, reader = heap_of(1 << 22)
    random = np.random.default_rng(1)
    told: list[tuple[Any, list[int]]] = []
    over = threading.Event()
    wrong: list[str] = []
    gathered, stale = [0], [0]

    def trainer() -> None:
        try:
            while not over.is_set():
                if not told:
                    continue
                handles, numbers = told[-1]
                try:
                    found = reader.take(handles)
                except StaleRows:
                    stale[0] += 1
                    continue
                gathered[0] += 1
                time.sleep(0)  # else it has the interpreter's lock nearly all the time
                if numbers_in(found) != numbers:
                    wrong.append(f"{numbers_in(found)} instead of {numbers}")
        except BaseException as error:
            wrong.append(repr(error))

    thread = threading.Thread(target=trainer)
    thread.start()
    try:
        live = np.empty(0, np.int64)
        turn, deadline = 0, time.monotonic() + 30
        while (turn < 2000 or gathered[0] <= 20) and not wrong and time.monotonic() < deadline:
            numbers = np.arange(30) + 30 * turn
            ids = heap.append(rows_of(numbers, random.integers(0, 40, 30)))
            told.append((heap.handles(ids), numbers.tolist()))
            live = np.concatenate([live, ids])
            random.shuffle(live)
            if len(live) > 300:
                gone, live = live[:60], live[60:]
                heap.release(gone)
            turn += 1
        assert int(heap._views.header[0]) > 20, "rows moved now and then"
    finally:
        over.set()
        thread.join(10)
    assert not wrong, wrong[:1]
    said = f"gathered {gathered[0]} times in {turn} turns; {stale[0]} times the rows were gone"
    assert gathered[0] > 20, said
    assert turn >= 2000, said
