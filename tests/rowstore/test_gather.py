"""Moving rows about: both forms do what a loop in Python does, and refuse what lies outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2.data.rowstore.gather as gather_module
from pydp2.data.rowstore.gather import (
    EntryRanges,
    compact,
    compact_in_python,
    gather,
    gather_copy,
    gather_in_python,
    mark_released,
    mark_released_in_python,
    put,
    put_in_python,
    sort_by_start,
    sort_by_start_in_python,
)

SOURCES = [
    np.arange(40, dtype=np.int32),
    np.arange(120, dtype=np.float64).reshape(40, 3),
    np.arange(40, dtype=np.uint8),
]
both_gather = pytest.mark.parametrize("form", [gather, gather_in_python])
both_close = pytest.mark.parametrize("form", [compact, compact_in_python])
some = st.lists(st.tuples(st.integers(0, 34), st.integers(0, 6)), max_size=20)


def stretches(pairs: list[tuple[int, int]]) -> EntryRanges:
    starts, counts = np.array(pairs, np.int64).reshape(-1, 2).T
    return EntryRanges(starts.copy(), counts.copy())


@pytest.mark.parametrize("source", SOURCES, ids=["int32", "rows", "bytes"])
def test_what_is_gathered_begins_at_a_multiple_of_64_bytes(source: Any) -> None:
    for count in range(1, 30):
        copy = gather_copy(source, np.arange(count))
        assert copy.ctypes.data % 64 == 0
        assert (copy == source[:count]).all()


@both_gather
@pytest.mark.parametrize("source", SOURCES, ids=["int32", "rows", "bytes"])
def test_stretches_are_gathered_one_after_the_other(form: Callable[..., None], source: Any) -> None:
    @given(pairs=some, piece=st.sampled_from([3, 7, 1 << 16]))
    def check(pairs: list[tuple[int, int]], piece: int) -> None:
        which = stretches(pairs)
        out = np.empty((which.entry_count, *source.shape[1:]), source.dtype)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gather_module, "_PIECE", piece)
            form(source, which, out)
        expected = [entry for start, count in pairs for entry in source[start : start + count].tolist()]
        assert out.tolist() == expected

    check()


def test_single_entries_are_gathered_as_stretches_are() -> None:
    rows = np.array([5, 3, 3, 39, 0])
    assert gather_copy(SOURCES[1], rows).tolist() == SOURCES[1][rows].tolist()


@both_gather
@pytest.mark.parametrize("dtype", ["u1", "i4", "i8", "(3,)f4"])
def test_entries_are_gathered_from_a_field_of_records(form: Callable[..., None], dtype: str) -> None:
    records = np.frombuffer(bytes(range(240)) * 4, np.dtype([("a", "u1"), ("b", dtype), ("c", "u1", (4,))]), 40)
    rows = np.array([7, 0, 39, 7])
    out = np.empty((4, *records["b"].shape[1:]), records["b"].dtype)
    form(records["b"], rows, out)
    assert out.tobytes() == records["b"][rows].tobytes()


@pytest.mark.parametrize("form", [put, put_in_python])
@pytest.mark.parametrize("dtype", ["u1", "i4", "i8", "(3,)f4"])
@given(rows=st.lists(st.integers(0, 29), unique=True))
def test_values_are_put_into_a_field_of_records_and_nothing_else_changes(
    form: Callable[..., None], dtype: str, rows: list[int]
) -> None:
    records = np.zeros(30, np.dtype([("a", "u1"), ("b", dtype), ("c", "u1", (4,))]))
    values = np.arange(1, 1 + len(rows) * records["b"][0].size).reshape(len(rows), *records["b"].shape[1:])
    expected = records.copy()
    expected["b"][rows] = values
    form(values.astype(records["b"].dtype), np.array(rows, np.int64), records["b"])
    assert records.tobytes() == expected.tobytes()


@pytest.mark.parametrize("form", [put, put_in_python])
@pytest.mark.parametrize("rows", [[0, 30], [-1, 2], [1]])
def test_values_are_put_only_where_there_is_a_place_for_each(form: Callable[..., None], rows: list[int]) -> None:
    with pytest.raises(IndexError):
        form(np.zeros(2, np.int32), np.array(rows, np.int64), np.zeros(30, np.int32))


@both_gather
@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "f8", "3f4"])
def test_single_entries_of_any_size_are_gathered(form: Callable[..., None], dtype: str) -> None:
    shape = (3,) if dtype == "3f4" else ()
    source = np.arange(240, dtype=dtype[-2:])[: 40 * max(1, 3 * len(shape))].reshape(40, *shape)
    rows = np.array([5, 3, 3, 39, 0])
    out = np.empty((5, *shape), source.dtype)
    form(source, rows, out)
    assert out.tolist() == source[rows].tolist()
    form(source, rows[:0], out[:0])
    for wrong in ([40], [-1], [1 << 62]):
        with pytest.raises(IndexError):
            form(source, np.array([0, *wrong]), out[:2])
    for room in (4, 6):
        with pytest.raises((IndexError, ValueError)):
            form(source, rows, np.empty((room, *shape), source.dtype))


@both_gather
@pytest.mark.parametrize(
    "pairs", [[(38, 3)], [(-1, 2)], [(0, 2), (40, 1)], [(0, -1), (0, 2)], [(1 << 61, 1)], [(9, 1 << 61)]], ids=str
)
def test_nothing_outside_of_the_array_is_gathered(form: Callable[..., None], pairs: list[tuple[int, int]]) -> None:
    which = stretches(pairs)
    with pytest.raises((IndexError, ValueError)):
        form(SOURCES[0], which, np.empty(min(100, max(0, which.entry_count)), np.int32))


@both_gather
def test_where_an_empty_stretch_begins_does_not_matter(form: Callable[..., None]) -> None:
    out = np.empty(2, np.int32)
    form(SOURCES[0], stretches([(1 << 40, 0), (3, 2), (-7, 0)]), out)
    assert out.tolist() == [3, 4]


@both_gather
@pytest.mark.parametrize("room", [4, 6])
def test_what_is_gathered_fills_the_place_for_it(form: Callable[..., None], room: int) -> None:
    with pytest.raises(IndexError):
        form(SOURCES[0], stretches([(3, 5)]), np.empty(room, np.int32))


@both_close
@pytest.mark.parametrize("source", SOURCES, ids=["int32", "rows", "bytes"])
def test_stretches_in_rising_order_are_moved_to_the_front(form: Callable[..., None], source: Any) -> None:
    @given(
        gaps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=5), piece=st.sampled_from([3, 1 << 16])
    )
    def check(gaps: list[tuple[int, int]], piece: int) -> None:
        pairs, at = [], 0
        for gap, count in gaps:
            pairs.append((at + gap, count))
            at += gap + count
        array = source.copy()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gather_module, "_PIECE", piece)
            form(array, stretches(pairs))
        expected = [entry for start, count in pairs for entry in source[start : start + count].tolist()]
        assert array[: len(expected)].tolist() == expected

    check()


@both_close
@pytest.mark.parametrize("pairs", [[(5, 2), (3, 1)], [(0, 4), (2, 2)], [(39, 2)]], ids=str)
def test_stretches_that_do_not_rise_are_refused(form: Callable[..., None], pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(IndexError):
        form(SOURCES[0].copy(), stretches(pairs))


@pytest.mark.parametrize("form", [sort_by_start, sort_by_start_in_python])
@pytest.mark.parametrize("largest", [5, 1 << 20, 1 << 41])
def test_rows_are_sorted_by_where_they_start(form: Callable[..., None], largest: int) -> None:
    random = np.random.default_rng(largest)
    starts = random.permutation(np.unique(random.integers(0, largest, 3000)))
    rows = random.permutation(len(starts))[: len(starts) // 2]
    expected = sorted(rows.tolist(), key=starts.tolist().__getitem__)
    form(rows, starts)
    assert rows.tolist() == expected


@pytest.mark.parametrize("form", [mark_released, mark_released_in_python])
@pytest.mark.parametrize("ids", [[1, 2, 1], [1, 0], [1, 2, 5], [1, 2, -1], [3]])
def test_rows_that_are_not_live_or_given_twice_are_refused_and_nothing_is_released(
    form: Callable[..., bool], ids: list[int]
) -> None:
    live = np.array([False, True, True, False, True])
    assert not form(live, np.array(ids))
    assert live.tolist() == [False, True, True, False, True]
    assert form(live, np.array([4, 1]))
    assert live.tolist() == [False, False, True, False, False]
