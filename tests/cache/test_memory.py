"""The cache of a pass: whole files, up to a limit, the first ones kept."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from pydp2.cache.memory import MemoryCache
from pydp2.columns.sample_set import decode_set
from pydp2.order.sample_source import SampleRun
from pydp2.packers.packer import Packer
from pydp2.rowstore.append_only import AppendOnlyStore
from pydp2.rowstore.region_layout import RegionLayout
from pydp2.schema.input_types import Slots, integer_value

SLOTS = Slots((integer_value(1000),))
COST = 10 + 64  # a sample of 10 bytes and what the cache needs for it


@dataclass
class Samples:
    lo: int
    hi: int
    sizes: npt.NDArray[np.int64]
    columns: object = None


def samples(count: int, size: int = 10) -> Samples:
    return Samples(1, 1 + count, np.full(count + 2, size))  # rows of other files before and behind


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


def test_what_is_whole_lies_on_the_shelf_and_nowhere_else() -> None:
    layout = RegionLayout(SLOTS, 10_000)
    memory = np.zeros(layout.size, np.uint8)
    cache: MemoryCache[SampleRun] = MemoryCache(layout.limit, AppendOnlyStore(layout, memory))
    offered = [run(3, 0, 4), run(1, 0, 2), run(3, 4, 5)]
    read = weakref.ref(offered[0].columns.arrays[0][0])
    for each, file in zip(offered, (3, 1, 3), strict=True):
        cache.offer(file, each)
    assert cache.row_store is not None
    assert cache.row_store.row_count == 0
    cache.finish_file(3)
    assert read() is None
    cache.finish_file(1)
    cache.finish_file(2)
    runs = [*cache.runs_of(1), *cache.runs_of(3)]
    for each in runs:
        assert all(np.may_share_memory(array, memory) for array in (each.columns.arrays[0][0], each.sizes))
    assert [(each.sample_indices.tolist(), each.columns.samples()) for each in runs] == [
        ([0, 1], [[101], [102]]), ([0, 1, 2, 3], [[301], [302], [303], [304]]), ([4], [[305]]),
    ]  # fmt: skip
    names = cache.sample_set()
    assert cache.row_store.take(names.row_ids).samples() == [[101], [102], [301], [302], [303], [304], [305]]
    assert [part.tolist() for part in decode_set(names.encoded)] == [[1, 1, 3, 3, 3, 3, 3], [0, 1, 0, 1, 2, 3, 4]]
    cache.offer(0, run(0, 0, 1))
    cache.finish_file(0)
    assert cache.row_store.take(cache.sample_set().row_ids[:1]).samples() == [[1]]


def test_of_a_file_that_does_not_fit_nothing_lies_on_the_shelf() -> None:
    layout = RegionLayout(SLOTS, 4 * 68)
    cache: MemoryCache[SampleRun] = MemoryCache(layout.limit, AppendOnlyStore(layout, bytearray(layout.size)))
    cache.offer(0, run(0, 0, 2))
    cache.finish_file(0)
    cache.offer(1, run(1, 0, 2))
    cache.offer(1, run(1, 2, 3))
    cache.finish_file(1)
    assert cache.full
    assert cache.row_store is not None
    assert cache.row_store.row_count == 2


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
