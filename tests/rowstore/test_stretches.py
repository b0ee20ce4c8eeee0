"""Places for rows of many lengths: none overlap, what was released is used again, and both forms keep to the limit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2.data.rowstore.stretches as stretches_module
from pydp2.data.rowstore.gather import EntryRanges, gather_copy
from pydp2.data.rowstore.stretches import ROUNDING_DIVISOR, Stretches, rounded_lengths, scatter

lengths = st.lists(st.one_of(st.integers(0, 40), st.sampled_from([100, 1000, 1 << 20])), max_size=12)
both_forms = pytest.mark.parametrize("compiled", [True, False])


def form(patch: pytest.MonkeyPatch, compiled: bool) -> None:
    if not compiled:
        patch.setattr(stretches_module, "_array_kernels", None)
    elif stretches_module._array_kernels is None:
        pytest.skip("nothing was compiled here")


def ints(values: Any) -> Any:
    return np.array(values, np.int64)


@given(value=st.one_of(st.integers(0, 200), st.integers(0, 1 << 47)))
def test_rounding_adds_at_most_a_sixteenth_and_gives_few_lengths(value: int) -> None:
    rounded = int(rounded_lengths(ints([value]))[0])
    assert value <= rounded <= value + value // ROUNDING_DIVISOR
    assert rounded == int(rounded_lengths(ints([rounded]))[0])
    assert rounded >> max(0, rounded.bit_length() - 6) << max(0, rounded.bit_length() - 6) == rounded


@both_forms
@given(steps=st.lists(st.tuples(lengths, st.integers(0, 20)), max_size=12))
def test_no_two_rows_lie_on_each_other(compiled: bool, steps: list[tuple[list[int], int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        form(patch, compiled)
        places = Stretches()
        used: list[tuple[int, int]] = []  # start, length
        for wanted, going in steps:
            starts = np.full(len(wanted), -1, np.int64)
            assert places.place(ints(wanted), starts, 1 << 40) == len(wanted)
            used += zip(starts.tolist(), wanted, strict=True)
            inside = sorted((start, start + length) for start, length in used if length)
            assert all(end <= begin for (_, end), (begin, _) in pairwise(inside))
            assert all(end <= places.end for _, end in inside)
            assert places.room == rounded_lengths(ints([length for _, length in used])).sum()
            gone, used = used[:going], used[going:]
            places.release(ints([start for start, _ in gone]), ints([length for _, length in gone]))
        if not places.room:
            assert places.end == 0


@given(wanted=lengths, again=st.randoms())
def test_rows_of_the_same_lengths_need_no_new_room(wanted: list[int], again: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        form(patch, True)
        places = Stretches()
        kept = np.empty(1, np.int64)
        places.place(ints([1]), kept, 1 << 40)
        starts = np.empty(len(wanted), np.int64)
        places.place(ints(wanted), starts, 1 << 40)
        end = places.end
        places.release(starts, ints(wanted))
        again.shuffle(wanted)
        assert places.place(ints(wanted), starts, end) == len(wanted)
        assert places.end == end


@both_forms
def test_what_does_not_fit_below_the_limit_is_left_and_the_rows_before_it_have_their_places(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    form(monkeypatch, compiled)
    places = Stretches()
    starts = np.full(4, -1, np.int64)
    assert places.place(ints([3, 4, 5, 1]), starts, 10) == 2
    assert starts.tolist() == [0, 3, -1, -1]
    assert (places.end, places.room) == (7, 7)
    assert places.place(ints([5, 1]), starts[2:], 13) == 2
    assert starts.tolist() == [0, 3, 7, 12]


@both_forms
def test_after_a_sweep_room_begins_behind_what_was_moved_together(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    form(monkeypatch, compiled)
    places = Stretches()
    starts = np.empty(3, np.int64)
    places.place(ints([5, 5, 5]), starts, 100)
    places.release(starts[:1], ints([5]))
    places.reset(10)
    places.place(ints([5]), starts[:1], 100)
    assert (int(starts[0]), places.end, places.room) == (10, 15, 15)


@both_forms
@given(parts=st.lists(st.integers(0, 5), max_size=10), order=st.randoms())
def test_scattering_undoes_gathering(compiled: bool, parts: list[int], order: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        form(patch, compiled)
        counts = ints(parts)
        starts = np.cumsum(counts) - counts
        which = list(range(len(parts)))
        order.shuffle(which)
        source = np.arange(2 * counts.sum(), dtype=np.float32).reshape(-1, 2)
        gathered = gather_copy(source, EntryRanges(starts[which].copy(), counts[which].copy()))
        back = np.zeros_like(source)
        scatter(gathered, starts[which].copy(), counts[which].copy(), back)
        assert (back == source).all()


@both_forms
@pytest.mark.parametrize(("start", "count"), [(9, 2), (-1, 2), (1 << 60, 2)])
def test_nothing_is_copied_outside(compiled: bool, start: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    form(monkeypatch, compiled)
    out = np.zeros(10, np.int32)
    with pytest.raises(IndexError):
        scatter(np.ones(count, np.int32), ints([start]), ints([count]), out)
    assert not out.any()


@pytest.mark.parametrize("wrong", [-1, 1 << 60])
def test_a_length_that_cannot_be_is_refused(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    form(monkeypatch, True)
    with pytest.raises(ValueError, match="impossible length"):
        Stretches().place(ints([wrong]), np.empty(1, np.int64), 100)
    with pytest.raises(ValueError, match="impossible length"):
        Stretches().release(ints([0]), ints([wrong]))
