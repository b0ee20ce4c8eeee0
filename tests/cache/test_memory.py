"""The cache of a pass: whole files, up to a limit, the first ones kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from pydp2.cache import PassCache

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
