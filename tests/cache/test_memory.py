"""The cache of a pass: whole files, up to a limit, the first ones kept."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.sample_set import decode_set
from pydp2.data.packers.packer import Packer
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.region import RegionLayout
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.order.sample_source import SampleRun
from pydp2.server.cache.memory import MemoryCache

SLOTS = Slots((integer_value(1000),))
COST = 10 + 64  # a sample of 10 bytes and what the cache needs for it


@dataclass(eq=False)
class Samples:
    lo: int
    hi: int
    sizes: npt.NDArray[np.int64]
    sample_indices: npt.NDArray[np.int64]
    columns: object = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Samples) and (self.lo, self.hi) == (other.lo, other.hi) and self.sizes is other.sizes


def samples(count: int, size: int = 10) -> Samples:
    return Samples(
        1, 1 + count, np.full(count + 2, size), np.arange(-1, count + 1)
    )  # rows of other files before and behind


def test_a_file_is_there_once_it_was_offered_whole() -> None:
    cache: MemoryCache[Samples] = MemoryCache(1000)
    first, second = samples(2), samples(1)
    cache.offer(5, first)
    assert not cache.has(5)
    cache.offer(5, second)
    cache.finish_file(5)
    assert cache.has(5)
    assert cache.runs_of(5) == [first, second]
    assert (len(cache), cache.bytes) == (1, 3 * COST)


def test_a_file_without_samples_is_a_file() -> None:
    cache: MemoryCache[Samples] = MemoryCache(0)
    cache.finish_file(3)
    assert cache.has(3)
    assert cache.runs_of(3) == []


def test_a_full_cache_keeps_what_it_has_and_adds_nothing() -> None:
    cache: MemoryCache[Samples] = MemoryCache(3 * COST)
    cache.offer(0, samples(2))
    cache.finish_file(0)
    cache.offer(1, samples(1))
    cache.offer(2, samples(1))  # one too many
    assert cache.full
    cache.finish_file(1)
    cache.finish_file(2)
    cache.offer(3, samples(0))
    cache.finish_file(3)
    assert [cache.has(file) for file in range(4)] == [True, False, False, False]
    assert cache.bytes == 2 * COST


def test_a_file_that_will_not_be_complete_gives_its_room_back() -> None:
    cache: MemoryCache[Samples] = MemoryCache(1000)
    cache.offer(0, samples(2))
    cache.discard(0)
    cache.discard(1)  # never offered
    assert cache.bytes == 0
    cache.offer(0, samples(1))
    cache.finish_file(0)
    assert cache.bytes == COST


def test_pd_46_what_will_not_be_complete_is_forgotten_and_whole_files_are_kept() -> None:
    cache: MemoryCache[Samples] = MemoryCache(1000)
    cache.offer(0, samples(2))
    cache.finish_file(0)
    cache.offer(1, samples(2))
    cache.discard(0)
    cache.discard(1)
    assert (cache.has(0), cache.has(1), cache.bytes) == (True, False, 2 * COST)
    whole = samples(3)
    cache.offer(1, whole)
    cache.finish_file(1)
    assert cache.runs_of(1) == [whole]


def test_a_file_that_is_there_is_not_taken_twice() -> None:
    cache: MemoryCache[Samples] = MemoryCache(1000)
    cache.offer(0, samples(1))
    cache.finish_file(0)
    cache.offer(0, samples(5))
    cache.finish_file(0)
    assert cache.bytes == COST
    assert len(cache.runs_of(0)) == 1


def run(file: int, lo: int, hi: int) -> SampleRun:
    """Samples of ``file``, between rows of others."""
    packer = Packer(SLOTS, strict=False)
    for y in range(lo - 1, hi + 1):
        packer.add([100 * file + y + 1])
    columns = packer.finish().columns
    return SampleRun(columns, 1, 1 + hi - lo, np.arange(lo - 1, hi + 1), columns.sample_bytes(), None)


def cache_with_store(limit: int) -> tuple[MemoryCache[SampleRun], AppendOnlyStore, Any]:
    layout = RegionLayout(SLOTS, limit)
    memory = np.zeros(layout.size, np.uint8)
    store = AppendOnlyStore(layout, memory)
    return MemoryCache(layout.limit, store), store, memory


def numbers(run: SampleRun) -> list[int]:
    values: list[int] = run.columns.slice(run.lo, run.hi).arrays[0][0].tolist()
    return values


def test_what_is_offered_lies_in_the_store_and_nowhere_else() -> None:
    cache, store, memory = cache_with_store(10_000)
    offered = [run(3, 0, 4), run(1, 0, 2), run(3, 4, 5)]
    read = weakref.ref(offered[0].columns.arrays[0][0])
    for each, file in zip(offered, (3, 1, 3), strict=True):
        cache.offer(file, each)
        assert np.may_share_memory(each.columns.arrays[0][0], memory), "the pass that reads it takes it from there"
    assert read() is None
    for file in (3, 1, 2):
        cache.finish_file(file)
    runs = [*cache.runs_of(1), *cache.runs_of(3)]
    for each in runs:
        assert all(np.may_share_memory(array, memory) for array in (each.columns.arrays[0][0], each.sizes))
    assert [(each.sample_indices.tolist(), each.columns.samples()) for each in runs] == [
        ([0, 1], [[101], [102]]), ([0, 1, 2, 3], [[301], [302], [303], [304]]), ([4], [[305]]),
    ]  # fmt: skip
    names = cache.sample_set()
    assert store.take(names.row_ids).samples() == [[101], [102], [301], [302], [303], [304], [305]]
    assert [part.tolist() for part in decode_set(names.samples.data)] == [[1, 1, 3, 3, 3, 3, 3], [0, 1, 0, 1, 2, 3, 4]]
    cache.offer(0, run(0, 0, 1))
    cache.finish_file(0)
    assert store.take(cache.sample_set().row_ids[:1]).samples() == [[1]]


def test_a_run_that_its_reader_shortens_stays_whole_in_the_cache() -> None:
    cache, _, _ = cache_with_store(10_000)
    offered = run(0, 0, 4)
    cache.offer(0, offered)
    cache.finish_file(0)
    offered.lo += 3
    assert [numbers(each) for each in cache.runs_of(0)] == [[1, 2, 3, 4]]


@pytest.mark.parametrize("again", [[4], [1, 1, 1, 1], [2, 2], [1, 3], [3, 1]])
def test_a_file_that_is_read_again_goes_on_where_the_store_has_it(again: list[int]) -> None:
    cache, store, _ = cache_with_store(10_000)
    cache.offer(0, run(0, 0, 2))
    before = cache.bytes
    cache.discard(0)
    assert not cache.has(0)
    at = 0
    for count in again:
        each = run(0, at, at + count)
        cache.offer(0, each)
        assert numbers(each) == [at + 1 + i for i in range(count)]
        at += count
    cache.finish_file(0)
    assert [number for each in cache.runs_of(0) for number in numbers(each)] == [1, 2, 3, 4]
    assert store.row_count == 4
    assert cache.bytes == 2 * before
    assert store.take(cache.sample_set().row_ids).samples() == [[1], [2], [3], [4]]


def test_dropped_samples_are_known_when_a_file_is_read_again() -> None:
    cache, store, _ = cache_with_store(10_000)
    cache.offer(0, run(0, 0, 2), [(2, "n", "as it has to be")])
    cache.discard(0)
    cache.offer(0, run(0, 0, 2), [(2, "n", "as it has to be")])
    cache.offer(0, run(0, 3, 4), [(4, "n", "as it has to be")])
    cache.finish_file(0)
    assert [y for y, _, _ in cache.dropped_of(0)] == [2, 4]
    assert [each.sample_indices.tolist() for each in cache.runs_of(0)] == [[0, 1], [3]]
    assert store.row_count == 3


def test_a_file_that_became_shorter_comes_into_the_cache_as_it_is_now() -> None:
    cache, store, _ = cache_with_store(10_000)
    cache.offer(0, run(0, 0, 3), [(3, "n", "as it has to be")])
    cache.discard(0)
    cache.offer(0, run(0, 0, 2))
    cache.finish_file(0)
    assert [numbers(each) for each in cache.runs_of(0)] == [[1, 2]]
    assert cache.dropped_of(0) == []
    assert store.take(cache.sample_set().row_ids).samples() == [[1], [2]]
    assert cache.sample_set()[2:] == (2, 8, 1, 0)


def test_of_a_file_that_became_another_only_what_is_the_same_is_passed_over() -> None:
    cache, store, _ = cache_with_store(10_000)
    cache.offer(0, run(0, 0, 2))
    cache.offer(0, run(0, 2, 4))
    before = cache.bytes
    cache.discard(0)
    cache.offer(0, run(0, 0, 1))
    other = run(0, 1, 3)
    other.columns.arrays[0][0][other.lo] = 77  # in the place of 2
    cache.offer(0, other)
    cache.offer(0, run(0, 3, 5))
    cache.finish_file(0)
    assert [numbers(each) for each in cache.runs_of(0)] == [[1], [77, 3], [4, 5]]
    assert store.take(cache.sample_set().row_ids).samples() == [[1], [77], [3], [4], [5]]
    assert cache.bytes == before + 4 * 68, "what lies there for nothing counts"


def test_where_the_cache_is_full_only_what_the_present_reading_gave_is_thrown_out() -> None:
    cache, _, _ = cache_with_store(5 * 68)
    cache.offer(0, run(0, 0, 4))
    cache.discard(0)
    cache.offer(0, run(0, 0, 3))
    cache.offer(1, run(1, 0, 2))
    assert cache.full
    assert {file: [numbers(each) for each in runs] for file, (runs, _) in cache.rejected.items()} == {
        0: [[1, 2, 3]], 1: [[101, 102]],
    }  # fmt: skip


readings = st.lists(
    st.tuples(
        st.integers(0, 1),  # the file
        st.lists(st.tuples(st.sampled_from("rrrd"), st.integers(0, 2)), max_size=8),  # its rows and dropped samples
        st.integers(0, 9),  # it is left behind as many
        st.lists(st.integers(1, 8), max_size=3),  # where it is cut into pieces
    ),
    max_size=8,
)


@given(readings, st.integers(100, 3000))
def test_a_file_comes_into_the_cache_as_the_reading_that_ended_gave_it(readings: Any, limit: int) -> None:
    """Whatever earlier readings gave, and wherever they were left."""
    cache, store, _ = cache_with_store(limit)
    whole: dict[int, tuple[list[tuple[int, int]], list[int]]] = {}
    for file, content, until, cuts in readings:
        if file in whole or cache.full:
            continue
        places = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
        given_rows: list[tuple[int, int]] = []
        given_gaps: list[int] = []
        for lo, hi in pairwise(places):
            if hi > until:
                break
            rows = [(y, 10 * number) for y, (kind, number) in enumerate(content) if kind == "r" and lo <= y < hi]
            gaps = [y for y, (kind, _) in enumerate(content) if kind == "d" and lo <= y < hi]
            given_rows, given_gaps = given_rows + rows, given_gaps + gaps
            cache.offer(file, run_of(rows) if rows else None, [(y, "n", "bad") for y in gaps])
            if cache.full:
                runs, dropped = cache.rejected[file]
                assert (rows_of(runs), [y for y, _, _ in dropped]) == (given_rows, given_gaps)
                break
        else:
            cache.finish_file(file)
            whole[file] = given_rows, given_gaps
            continue
        cache.discard(file)
    for file, (rows, gaps) in whole.items():
        assert (rows_of(cache.runs_of(file)), [y for y, _, _ in cache.dropped_of(file)]) == (rows, gaps)
    names = cache.sample_set()
    expected = [number for file in sorted(whole) for _, number in whole[file][0]]
    assert [row[0] for row in store.take(names.row_ids).samples()] == expected
    assert names.weight == len(expected)
    assert cache.bytes <= limit


def run_of(rows: list[tuple[int, int]]) -> SampleRun:
    """Rows of one file, each with its sample index and its number."""
    packer = Packer(SLOTS, strict=False)
    for _, number in rows:
        packer.add([number])
    columns = packer.finish().columns
    return SampleRun(columns, 0, len(rows), np.array([y for y, _ in rows]), columns.sample_bytes(), None)


def rows_of(runs: list[SampleRun]) -> list[tuple[int, int]]:
    return [
        (y, number)
        for each in runs
        for y, number in zip(each.sample_indices[each.lo : each.hi].tolist(), numbers(each), strict=True)
    ]


def test_what_does_not_fit_stays_with_who_offered_it() -> None:
    cache, store, memory = cache_with_store(4 * 68)
    cache.offer(0, run(0, 0, 2))
    cache.finish_file(0)
    cache.offer(1, run(1, 0, 1))
    rest = run(1, 1, 4)
    cache.offer(1, rest)
    cache.finish_file(1)
    assert cache.full
    assert not cache.has(1)
    assert not np.may_share_memory(rest.columns.arrays[0][0], memory)
    assert [numbers(each) for each in cache.rejected[1][0]] == [[101], [102, 103, 104]]
    assert (store.row_count, cache.bytes) == (3, 3 * 68)


moves = st.lists(st.tuples(st.sampled_from(["offer", "complete", "drop"]), st.integers(0, 4), st.integers(0, 5)))


@given(st.integers(0, 2000), moves)
def test_it_never_holds_more_than_its_limit_and_counts_what_it_holds(
    limit: int, moves: list[tuple[str, int, int]]
) -> None:
    cache: MemoryCache[Samples] = MemoryCache(limit)
    parts: dict[int, int] = {}
    for what, file, count in moves:
        had = cache.has(file)
        if what == "offer":
            cache.offer(file, samples(count))
            parts[file] = parts.get(file, 0) + count
        elif what == "complete":
            cache.finish_file(file)
            if cache.has(file) and not had:
                assert sum(s.hi - s.lo for s in cache.runs_of(file)) == parts.get(file, 0)
            parts.pop(file, None)
        else:
            cache.discard(file)
            parts.pop(file, None)
        if cache.full:
            parts.clear()
        assert cache.bytes <= limit
    for file in range(5):
        cache.discard(file)
    assert cache.bytes == COST * sum(s.hi - s.lo for file in range(5) if cache.has(file) for s in cache.runs_of(file))
