"""Ids of rows: one row's at a time, used again, and named so that whoever is late finds out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pydp2.data.columns.columns import Ints
from pydp2.data.rowstore.ids import IdAllocator, StaleRows, check_handles, ids_of


def ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def test_what_was_used_last_is_used_first_and_fresh_ids_come_only_where_none_is_left() -> None:
    ids = IdAllocator()
    assert len(ids.allocate(0)) == 0
    first = ids.allocate(3)
    assert first.tolist() == [0, 1, 2]
    ids.live[first] = True
    ids.mark_released(first[1:])
    ids.free(first[1:])
    assert ids.allocate(3).tolist() == [2, 1, 3]
    assert (ids.high_water, ids.need(1), len(ids)) == (4, 5, 4)


def test_a_handle_is_a_number_that_a_message_can_carry_also_when_generations_begin_again() -> None:
    generations = np.full(4, (1 << 22) - 1, np.int64)
    ids = IdAllocator(generations)
    rows = ids.allocate(2)
    handles = ids.handles(rows)
    assert 0 <= handles.min() <= handles.max() < 1 << 62
    ids.free(rows)
    assert ids.handles(ids.allocate(2)).tolist() == [1, 0]
    assert ids_of(ints([-1, -(1 << 62)])).max() < 0


def test_there_is_room_for_no_more_than_what_can_be_had_and_then_nothing_has_changed() -> None:
    ids = IdAllocator()
    rows = ids.allocate(5)
    ids.live[rows] = True
    with pytest.raises((MemoryError, ValueError)):
        ids.reserve(1 << 60)
    assert ids.allocate(1).tolist() == [5]
    assert ids.live[:5].all()


class Machine(RuleBasedStateMachine):
    """An owner of ids that gets, marks, releases and clears, and others that keep the handles that they were told."""

    @initialize(shared=st.booleans())
    def begin(self, shared: bool) -> None:
        self.ids = IdAllocator(np.zeros(5000, np.int64) if shared else None)
        self.unmarked: set[int] = set()
        self.rows: dict[int, int] = {}  # by id, the number of the row
        self.told: list[tuple[int, int]] = []  # handle, number of the row
        self.next = 0

    @rule(count=st.integers(0, 700), kept=st.booleans())
    def get(self, count: int, kept: bool) -> None:
        fresh = self.ids.allocate(count)
        assert len({*fresh.tolist()}) == count
        assert not self.unmarked & {*fresh.tolist()}
        assert not self.rows.keys() & {*fresh.tolist()}
        if kept:
            self.ids.live[fresh] = True
            for row in fresh.tolist():
                self.rows[row] = self.next = self.next + 1
        else:
            self.unmarked |= {*fresh.tolist()}

    @rule()
    def give_back_what_never_had_a_row(self) -> None:
        self.ids.free(ints(sorted(self.unmarked)))
        self.unmarked.clear()

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.rows)))
        self.told.append((int(self.ids.handles(ints([row]))[0]), self.rows[row]))

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), later=st.booleans())
    def release(self, data: st.DataObject, later: bool) -> None:
        rows = data.draw(st.lists(st.sampled_from(sorted(self.rows)), min_size=1, max_size=9, unique=True))
        if later:
            for row in rows:
                self.ids.released.append(ints([row]))
            assert len(self.ids) == len(self.rows) - len(rows) + len(self.unmarked)
            assert sorted(self.ids.take_released().tolist()) == sorted(rows)
        self.ids.mark_released(ints(rows))
        self.ids.free(ints(rows))
        for row in rows:
            del self.rows[row]

    @rule(data=st.data())
    def release_what_is_not_there(self, data: st.DataObject) -> None:
        wrong = data.draw(st.sampled_from([-1, 1 << 40, self.ids.high_water, *sorted(self.unmarked)[:3]]))
        with pytest.raises(KeyError, match="given back once"):
            self.ids.mark_released(ints([*sorted(self.rows)[:3], wrong]))
        for row in sorted(self.rows)[:1]:
            with pytest.raises(KeyError):
                self.ids.mark_released(ints([row, row]))

    @precondition(lambda self: not self.unmarked)
    @rule()
    def clear(self) -> None:
        self.ids.clear()
        self.rows.clear()

    @invariant()
    def who_was_told_of_a_row_finds_it_or_finds_out(self) -> None:
        if not hasattr(self, "ids"):
            return
        assert len(self.ids) == len(self.rows) + len(self.unmarked)
        there = {number: row for row, number in self.rows.items()}
        for handle, number in self.told:
            found = self.ids.known(ints([handle]))
            assert (None if found is None else found.tolist()) == ([there[number]] if number in there else None)
            if number in there:
                check_handles(ints([handle]), self.ids._generations)
            elif handle & (1 << 40) - 1 < len(self.ids._generations):
                with pytest.raises(StaleRows):
                    check_handles(ints([handle]), self.ids._generations)
        assert self.ids.known(ints([-1])) is None
        assert self.ids.known(ints([1 << 61])) is None


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=30)
