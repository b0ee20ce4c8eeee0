"""The memory of rows that have places: for which samples there is any, how it is given out, and that it comes back."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from pydp2.data.columns.columns import Columns, Ints
from pydp2.data.rowstore.cells import CellRegion, CellRows
from pydp2.data.rowstore.pass_view import PassView
from pydp2.data.rowstore.reader import SharedHeapReader
from pydp2.data.rowstore.region import HEAP_NOTE_PREFIX, RegionLayout
from pydp2.data.schema.input_types import Slots, dense_vector, integer_value_sequence
from pydp2.data.schema.provider_schema import Schema
from pydp2.host.worker.chunk_builder import MAX_BYTES
from pydp2.server.workers import cell_grants as placing_
from pydp2.server.workers.cell_grants import CellGrants, create_cell_grants
from pydp2.transport.shared_region import map_region

ROW = 1 << 16
DECLARED = Schema(
    slots=Slots((dense_vector(ROW // 4),)), shuffle=True, pool_size=-1, min_pool_size=-1, can_over_batch_size=True,
    weighted=False, cache=0, check=True, check_fail_continue=False,
)  # fmt: skip
AHEAD = (16 << 20) // ROW


def columns(count: int) -> Columns:
    return Columns(DECLARED.slots, count, [[np.full((count, ROW // 4), 7, np.float32)]])


def open_placing(slots: Slots = DECLARED.slots) -> CellGrants:
    made = create_cell_grants(replace(DECLARED, slots=slots), 1 << 30, 1)
    assert made is not None
    return made


def claim(made: CellGrants, worker: int, cells: Ints) -> CellRows:
    return made.claim(worker, len(cells), [np.ascontiguousarray(cells).view(np.uint8)])


@pytest.mark.parametrize(
    "other",
    [{"cache": 1}, {"cache": 2}, {"slots": Slots((dense_vector(9),))}, {"slots": Slots((integer_value_sequence(9),))}],
)
def test_small_samples_those_of_several_sizes_and_those_that_a_cache_keeps_have_no_places(other: dict) -> None:
    assert create_cell_grants(replace(DECLARED, **other), 1 << 30, 1) is None
    open_placing().close()


def test_where_memory_cannot_be_shared_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing_, "_ROOM", 1 << 32)
    assert create_cell_grants(DECLARED, 1 << 30, 1) is None  # there are not so many addresses
    monkeypatch.undo()
    monkeypatch.delattr("pydp2.system.stdlib.os.memfd_create")
    assert create_cell_grants(DECLARED, 1 << 30, 1) is None


def test_what_a_worker_is_granted_at_least_holds_two_chunks() -> None:
    """It sends one that lacks a cell without any, and is granted more once half of them are used."""
    assert placing_._LEAST_AHEAD == 2 * MAX_BYTES


@pytest.mark.parametrize(
    ("limit", "workers", "share"), [(32 << 20, 4, 8 << 20), (96 << 20, 2, 12 << 20), (96 << 20, 1, 16 << 20)]
)
def test_all_workers_together_are_granted_a_part_of_little_memory(limit: int, workers: int, share: int) -> None:
    made = create_cell_grants(DECLARED, limit, workers)
    assert made is not None
    granted = made.next_grant(0)
    assert granted is not None
    assert len(granted) == share // ROW
    made.close()


def test_a_worker_is_granted_places_ahead_and_more_when_half_of_them_are_used() -> None:
    made = open_placing()
    first = made.next_grant(3)
    assert first is not None
    assert len(first) == AHEAD
    assert made.next_grant(3) is None
    held = [claim(made, 3, first[: AHEAD // 2 - 1])]
    assert made.next_grant(3) is None
    held.append(claim(made, 3, first[AHEAD // 2 - 1 : AHEAD // 2]))
    more = made.next_grant(3)
    assert more is not None
    assert len(more) == AHEAD // 2
    assert not set(more.tolist()) & set(first.tolist())
    made.worker_gone(3)
    again = made.next_grant(4)
    assert again is not None
    assert set(again.tolist()) < {*first.tolist(), *more.tolist()}
    made.close()


def test_of_rows_larger_than_what_is_granted_ahead_a_worker_has_a_few_places_all_the_same() -> None:
    made = open_placing(Slots((dense_vector(8 << 20),)))
    places = made.next_grant(0)
    assert places is not None
    assert len(places) == 8
    made.close()


def test_many_workers_leave_places_for_rows_that_come_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are few in all, workers that have some and use none must not have every one of them."""
    monkeypatch.setattr(placing_.os, "sysconf", lambda name: 1)
    monkeypatch.setattr(placing_, "_AHEAD", 8 * ROW)
    made = create_cell_grants(DECLARED, 10 * ROW, 1)  # room for less than 40
    assert made is not None
    granted = [made.next_grant(worker) for worker in range(50)]
    assert len([places for places in granted if places is not None]) > 5
    assert len(PassView(made.rows).append(columns(3))) == 3
    made.close()


def test_of_rows_larger_than_all_there_is_none_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing_.os, "sysconf", lambda name: 1)
    assert create_cell_grants(DECLARED, ROW // 8, 1) is None


def test_workers_write_trainers_read_and_nobody_else_is_needed() -> None:
    made = open_placing()
    (readable, note), (writable, same) = made.for_trainers, made.for_workers
    assert note == same
    assert note.startswith(HEAP_NOTE_PREFIX)
    layout = RegionLayout.from_note(DECLARED.slots, note.removeprefix(HEAP_NOTE_PREFIX), movable=True)
    theirs = CellRegion(layout, map_region(writable, layout.size, writable=True))
    seen = SharedHeapReader(layout, map_region(readable, layout.size))
    places = made.next_grant(0)
    assert places is not None
    theirs.put(places[:3], columns(3))
    store = PassView(made.rows)
    ids = store.append(claim(made, 0, places[:3]))
    assert (seen.take(store.handles(ids)).arrays[0][0] == 7).all()
    with pytest.raises(ValueError, match="read-only"):
        CellRegion(layout, map_region(readable, layout.size)).put(places[:1], columns(1))
    with pytest.raises(OSError, match=r"denied|permitted"):
        map_region(readable, layout.size, writable=True)
    made.close()
    for descriptor in (readable, writable):
        with pytest.raises(OSError, match="Bad"):
            os.fstat(descriptor)
    assert (seen.take(store.handles(ids)).arrays[0][0] == 7).all()


def test_when_there_is_no_job_the_memory_is_given_back_but_never_under_a_row() -> None:
    made = open_placing()
    store = PassView(made.rows)

    def held() -> int:
        return os.fstat(made.for_trainers[0]).st_blocks * 512

    ids = store.append(columns(100))
    told = store.handles(ids)  # the rows are there then
    assert held() >= 100 * ROW
    made.release_memory()
    assert (store.take(ids).arrays[0][0] == 7).all()
    store.release_later(ids)
    made.release_memory()
    assert held() < 10 * ROW
    ids = store.append(columns(100))
    assert (store.handles(ids) != told).all()
    assert (store.take(ids).arrays[0][0] == 7).all()
    made.close()
