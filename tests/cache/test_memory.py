"""The cache of a pass: whole files, up to a limit, the first ones kept."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from pydp2.cache.memory import PassCache
from pydp2.inputs import Packer, Slots, integer_value
from pydp2.inputs.names import decode
from pydp2.inputs.shelf import Layout, Shelf
from pydp2.order import Run

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
    cache: PassCache[Samples] = PassCache(1000)
    first, second = samples(2), samples(1)
    cache.offer(5, first)
    assert not cache.has(5)
    cache.offer(5, second)
    cache.complete(5)
    assert cache.has(5)
    assert cache.runs(5) == [first, second]
    assert (len(cache), cache.bytes) == (1, 3 * COST)


def test_a_file_without_samples_is_a_file() -> None:
    cache: PassCache[Samples] = PassCache(0)
    cache.complete(3)
    assert cache.has(3)
    assert cache.runs(3) == []


def test_a_full_cache_keeps_what_it_has_and_adds_nothing() -> None:
    cache: PassCache[Samples] = PassCache(3 * COST)
    cache.offer(0, samples(2))
    cache.complete(0)
    cache.offer(1, samples(1))
    cache.offer(2, samples(1))  # one too many
    assert cache.full
    cache.complete(1)
    cache.complete(2)
    cache.offer(3, samples(0))
    cache.complete(3)
    assert [cache.has(file) for file in range(4)] == [True, False, False, False]
    assert cache.bytes == 2 * COST


def test_a_file_that_will_not_be_complete_gives_its_room_back() -> None:
    cache: PassCache[Samples] = PassCache(1000)
    cache.offer(0, samples(2))
    cache.drop(0)
    cache.drop(1)  # never offered
    assert cache.bytes == 0
    cache.offer(0, samples(1))
    cache.complete(0)
    assert cache.bytes == COST


def test_pd_46_what_will_not_be_complete_is_forgotten_and_whole_files_are_kept() -> None:
    cache: PassCache[Samples] = PassCache(1000)
    cache.offer(0, samples(2))
    cache.complete(0)
    cache.offer(1, samples(2))
    cache.drop(0)
    cache.drop(1)
    assert (cache.has(0), cache.has(1), cache.bytes) == (True, False, 2 * COST)
    whole = samples(3)
    cache.offer(1, whole)
    cache.complete(1)
    assert cache.runs(1) == [whole]


def test_a_file_that_is_there_is_not_taken_twice() -> None:
    cache: PassCache[Samples] = PassCache(1000)
    cache.offer(0, samples(1))
    cache.complete(0)
    cache.offer(0, samples(5))
    cache.complete(0)
    assert cache.bytes == COST
    assert len(cache.runs(0)) == 1


def run(file: int, lo: int, hi: int) -> Run:
    """Samples of ``file``, between rows of others."""
    packer = Packer(SLOTS, strict=False)
    for y in range(lo - 1, hi + 1):
        packer.add([100 * file + y + 1])
    columns = packer.cut().columns
    return Run(columns, 1, 1 + hi - lo, np.arange(lo - 1, hi + 1), columns.sample_bytes(), None)


def test_what_is_whole_lies_on_the_shelf_and_nowhere_else() -> None:
    layout = Layout(SLOTS, 10_000)
    memory = np.zeros(layout.size, np.uint8)
    cache: PassCache[Run] = PassCache(layout.limit, Shelf(layout, memory))
    offered = [run(3, 0, 4), run(1, 0, 2), run(3, 4, 5)]
    read = weakref.ref(offered[0].columns.arrays[0][0])
    for each, file in zip(offered, (3, 1, 3), strict=True):
        cache.offer(file, each)
    assert cache.shelf is not None
    assert cache.shelf.rows == 0
    cache.complete(3)
    assert read() is None
    cache.complete(1)
    cache.complete(2)
    runs = [*cache.runs(1), *cache.runs(3)]
    for each in runs:
        assert all(np.may_share_memory(array, memory) for array in (each.columns.arrays[0][0], each.sizes))
    assert [(each.ordinals.tolist(), each.columns.samples()) for each in runs] == [
        ([0, 1], [[101], [102]]), ([0, 1, 2, 3], [[301], [302], [303], [304]]), ([4], [[305]]),
    ]  # fmt: skip
    names = cache.names()
    assert cache.shelf.take(names.rows).samples() == [[101], [102], [301], [302], [303], [304], [305]]
    assert [part.tolist() for part in decode(names.encoded)] == [[1, 1, 3, 3, 3, 3, 3], [0, 1, 0, 1, 2, 3, 4]]
    cache.offer(0, run(0, 0, 1))
    cache.complete(0)
    assert cache.shelf.take(cache.names().rows[:1]).samples() == [[1]]


def test_of_a_file_that_does_not_fit_nothing_lies_on_the_shelf() -> None:
    layout = Layout(SLOTS, 4 * 68)
    cache: PassCache[Run] = PassCache(layout.limit, Shelf(layout, bytearray(layout.size)))
    cache.offer(0, run(0, 0, 2))
    cache.complete(0)
    cache.offer(1, run(1, 0, 2))
    cache.offer(1, run(1, 2, 3))
    cache.complete(1)
    assert cache.full
    assert cache.shelf is not None
    assert cache.shelf.rows == 2


moves = st.lists(st.tuples(st.sampled_from(["offer", "complete", "drop"]), st.integers(0, 4), st.integers(0, 5)))


@given(st.integers(0, 2000), moves)
def test_it_never_holds_more_than_its_limit_and_counts_what_it_holds(
    limit: int, moves: list[tuple[str, int, int]]
) -> None:
    cache: PassCache[Samples] = PassCache(limit)
    parts: dict[int, int] = {}
    for what, file, count in moves:
        had = cache.has(file)
        if what == "offer":
            cache.offer(file, samples(count))
            parts[file] = parts.get(file, 0) + count
        elif what == "complete":
            cache.complete(file)
            if cache.has(file) and not had:
                assert sum(s.hi - s.lo for s in cache.runs(file)) == parts.get(file, 0)
            parts.pop(file, None)
        else:
            cache.drop(file)
            parts.pop(file, None)
        if cache.full:
            parts.clear()
        assert cache.bytes <= limit
    for file in range(5):
        cache.drop(file)
    assert cache.bytes == COST * sum(s.hi - s.lo for file in range(5) if cache.has(file) for s in cache.runs(file))
