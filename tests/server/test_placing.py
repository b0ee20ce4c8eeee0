"""The memory of rows that have places: for which samples there is any, how it is given out, and that it comes back."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from pydp2.inputs import Columns, Slots, dense_vector, integer_value_sequence
from pydp2.inputs.declaration import Declaration
from pydp2.inputs.placed import NOTED, PlacedRows
from pydp2.inputs.shelf import Layout
from pydp2.server import placing as placing_
from pydp2.server.placing import Placing, placing
from pydp2.transport.lasting import look

ROW = 1 << 16
DECLARED = Declaration(
    slots=Slots((dense_vector(ROW // 4),)), shuffle=True, pool_size=-1, min_pool_size=-1, can_over_batch_size=True,
    weighted=False, cache=0, check=True, check_fail_continue=False,
)  # fmt: skip
AHEAD = (16 << 20) // ROW


def columns(count: int) -> Columns:
    return Columns(DECLARED.slots, count, [[np.full((count, ROW // 4), 7, np.float32)]])


def open_placing(slots: Slots = DECLARED.slots) -> Placing:
    made = placing(replace(DECLARED, slots=slots), 1 << 30)
    assert made is not None
    return made


@pytest.mark.parametrize(
    "other",
    [{"cache": 1}, {"cache": 2}, {"slots": Slots((dense_vector(9),))}, {"slots": Slots((integer_value_sequence(9),))}],
)
def test_small_samples_those_of_several_sizes_and_those_that_a_cache_keeps_have_no_places(other: dict) -> None:
    assert placing(replace(DECLARED, **other), 1 << 30) is None
    open_placing().close()


def test_where_memory_cannot_be_shared_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing_, "_ROOM", 1 << 32)
    assert placing(DECLARED, 1 << 30) is None  # there are not so many addresses
    monkeypatch.undo()
    monkeypatch.delattr(os, "memfd_create")
    assert placing(DECLARED, 1 << 30) is None


def test_a_worker_is_granted_places_ahead_and_more_when_half_of_them_are_used() -> None:
    made = open_placing()
    first = made.due(3)
    assert first is not None
    assert len(first) == AHEAD
    assert made.due(3) is None
    held = [made.taken(3, first[: AHEAD // 2 - 1])]
    assert made.due(3) is None
    held.append(made.taken(3, first[AHEAD // 2 - 1 : AHEAD // 2]))
    more = made.due(3)
    assert more is not None
    assert len(more) == AHEAD // 2
    assert not set(more.tolist()) & set(first.tolist())
    made.gone(3)
    again = made.due(4)
    assert again is not None
    assert set(again.tolist()) < {*first.tolist(), *more.tolist()}
    made.close()


def test_of_rows_larger_than_what_is_granted_ahead_a_worker_has_a_few_places_all_the_same() -> None:
    made = open_placing(Slots((dense_vector(8 << 20),)))
    places = made.due(0)
    assert places is not None
    assert len(places) == 8
    made.close()


def test_many_workers_leave_places_for_rows_that_come_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are few in all, workers that have some and use none must not have every one of them."""
    monkeypatch.setattr(placing_.os, "sysconf", lambda name: 1)
    monkeypatch.setattr(placing_, "_AHEAD", 8 * ROW)
    made = placing(DECLARED, 10 * ROW)  # room for less than 40
    assert made is not None
    granted = [made.due(worker) for worker in range(50)]
    assert len([places for places in granted if places is not None]) > 5
    assert len(made.store().append(columns(3))) == 3
    made.close()


def test_of_rows_larger_than_all_there_is_none_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing_.os, "sysconf", lambda name: 1)
    assert placing(DECLARED, ROW // 8) is None


def test_workers_write_trainers_read_and_nobody_else_is_needed() -> None:
    made = open_placing()
    (readable, note), (writable, same) = made.for_trainers, made.for_workers
    assert note == same
    assert note.startswith(NOTED)
    layout = Layout.noted(DECLARED.slots, note.removeprefix(NOTED))
    theirs = PlacedRows(layout, look(os.dup(writable), layout.size, write=True))
    seen = PlacedRows(layout, look(os.dup(readable), layout.size))
    places = made.due(0)
    assert places is not None
    theirs.put(places[:3], columns(3))
    store = made.store()
    ids = store.append(made.taken(0, places[:3]))
    assert (seen.take(store.numbers(ids)).arrays[0][0] == 7).all()
    with pytest.raises(ValueError, match="read-only"):
        seen.put(places[:1], columns(1))
    with pytest.raises(OSError, match=r"denied|permitted"):
        look(os.dup(readable), layout.size, write=True)
    made.close()
    for descriptor in (readable, writable):
        with pytest.raises(OSError, match="Bad"):
            os.fstat(descriptor)
    assert (seen.take(store.numbers(ids)).arrays[0][0] == 7).all()


def test_when_there_is_no_job_the_memory_is_given_back_but_never_under_a_row() -> None:
    made = open_placing()
    store = made.store()

    def held() -> int:
        return os.fstat(made.for_trainers[0]).st_blocks * 512

    ids = store.append(columns(100))
    assert held() >= 100 * ROW
    made.rest()
    assert (store.take(ids).arrays[0][0] == 7).all()
    told = store.numbers(ids)
    store.release(ids)
    made.rest()
    assert held() < 10 * ROW
    ids = store.append(columns(100))
    assert (store.numbers(ids) != told).all()
    assert (store.take(ids).arrays[0][0] == 7).all()
    made.close()
