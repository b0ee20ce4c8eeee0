"""Decorators that work in the caller's thread: what they give, where they stop, what they ask of their source."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2 import reader as r
from pydp2.errors import ComposeNotAligned, OptionError, OptionTypeError

Numbers = Callable[..., Callable[[], Iterator[int]]]


class Counted:
    """A reader that counts its calls and the entries that were asked for; and whether what it gave was closed."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.calls = self.asked = self.closed = 0

    def __call__(self) -> Iterator[int]:
        self.calls += 1
        try:
            for i in range(self.n):
                self.asked += 1
                yield i
        finally:
            self.closed += 1


DECORATED: dict[str, Callable[[Any], Any]] = {
    "map_readers": lambda source: r.map_readers(lambda x: x, source),
    "shuffle": lambda source: r.shuffle(source, 1),
    "chain": lambda source: r.chain(source),
    "compose": lambda source: r.map_readers(lambda entry: entry[0], r.compose(source)),
    "buffered": lambda source: r.buffered(source, 3),
    "firstn": lambda source: r.firstn(source, 100),
    "cache": lambda source: r.cache(source),
    "xmap_readers": lambda source: r.xmap_readers(lambda x: x, source, 2, 3, order=True),
    "batch": lambda source: r.map_readers(lambda entries: entries[0], r.batch(source, 1)),
}


@pytest.mark.parametrize("decorate", DECORATED.values(), ids=DECORATED.keys())
def test_rd_1_each_call_of_a_reader_begins_anew(decorate: Callable[[Any], Any], numbers: Numbers) -> None:
    decorated = decorate(numbers(10))
    begun = iter(decorated())
    assert [next(begun), next(begun)] == [0, 1]
    assert [list(decorated()), list(decorated())] == [list(range(10))] * 2
    del begun


@pytest.mark.parametrize("decorate", [d for n, d in DECORATED.items() if n != "cache"], ids=lambda d: "")
def test_what_a_reader_gave_is_closed_when_the_consumer_leaves(decorate: Callable[[Any], Any]) -> None:
    source = Counted(100)
    entries = decorate(source)()
    assert next(entries) == 0
    entries.close()
    assert (source.calls, source.closed) == (1, 1)


def test_an_iterator_that_is_somebodys_is_not_closed() -> None:
    class Shared:
        closed = False

        def __iter__(self) -> Shared:
            return self

        def __next__(self) -> int:
            return 5

        def close(self) -> None:
            self.closed = True

    shared = Shared()
    assert list(r.firstn(lambda: shared, 2)()) == [5, 5]
    assert not shared.closed


def test_rd_2_map_readers_maps_entry_by_entry_and_stops_at_the_shortest(numbers: Numbers) -> None:
    assert list(r.map_readers(lambda a, b: a * b, numbers(5), numbers(3, 10))()) == [0, 11, 24]


def test_a_mapper_that_raises_stop_iteration_does_not_end_the_pass_silently(numbers: Numbers) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(r.map_readers(lambda x: next(iter([])), numbers(3))())


def test_rd_6_two_equal_readers_compose_to_pairs(numbers: Numbers) -> None:
    assert list(r.compose(numbers(10), numbers(10))()) == [(i, i) for i in range(10)]


def test_rd_7_compose_joins_tuples_and_keeps_lists_whole() -> None:
    composed = r.compose(lambda: [(1, 2)], lambda: [3], lambda: [[4, 5]], lambda: [(6,)])
    assert list(composed()) == [(1, 2, 3, [4, 5], 6)]


@pytest.mark.parametrize("lengths", [(20, 10), (10, 20)])
def test_rd_8_readers_of_different_length_raise_after_what_they_share(
    lengths: tuple[int, int], numbers: Numbers, until_error: Any
) -> None:
    got, error = until_error(r.compose(*map(numbers, lengths))())
    assert isinstance(error, ComposeNotAligned)
    assert "ended after 10 entries" in str(error)
    assert got == [(i, i) for i in range(10)]


def test_rd_9_without_the_check_the_shortest_ends_the_pass(numbers: Numbers) -> None:
    assert len(list(r.compose(numbers(20), numbers(10), check_alignment=False)())) == 10


def test_rd_10_compose_not_aligned_is_a_value_error() -> None:
    assert issubclass(ComposeNotAligned, ValueError)
    assert r.ComposeNotAligned is ComposeNotAligned


def test_rd_11_none_is_an_entry_like_any_other() -> None:
    assert list(r.compose(lambda: [None, 1], lambda: [2, None])()) == [(None, 2), (1, None)]


def test_compose_knows_no_other_keyword_and_no_readers_are_no_entries(numbers: Numbers) -> None:
    with pytest.raises(TypeError, match="check_align"):
        r.compose(numbers(1), check_align=False)  # type: ignore[call-arg]
    assert list(r.compose()()) == []


def test_rd_12_chain_gives_one_reader_after_the_other(numbers: Numbers) -> None:
    assert list(r.chain(numbers(3), numbers(2, 7))()) == [0, 1, 2, 7, 8]


@pytest.mark.parametrize("size", [0, 1, 10, 100])
def test_rd_13_small_buffers_keep_the_order_and_large_ones_the_entries(size: int, numbers: Numbers) -> None:
    got = list(r.shuffle(numbers(100), size, seed=1)())
    assert sorted(got) == list(range(100))
    assert (got == list(range(100))) == (size < 2)


@given(st.integers(0, 60), st.integers(0, 70), st.integers(0, 5))
def test_rd_14_no_entry_comes_from_beyond_the_buffer(n: int, size: int, seed: int) -> None:
    source = Counted(n)
    for i, entry in enumerate(r.shuffle(source, size, seed=seed)()):
        assert entry // max(size, 1) == i // max(size, 1)  # it is one of its buffer
        assert source.asked <= (i // max(size, 1) + 1) * max(size, 1)


def test_a_seeded_shuffle_differs_from_pass_to_pass_and_not_from_run_to_run(numbers: Numbers) -> None:
    one, other = (r.shuffle(numbers(50), 50, seed=3) for _ in range(2))
    passes = [list(one()) for _ in range(3)]
    assert passes == [list(other()) for _ in range(3)]
    assert len({tuple(each) for each in passes}) == 3
    random.seed(5)
    drawn = list(r.shuffle(numbers(50), 50)())
    random.seed(5)
    assert drawn == list(r.shuffle(numbers(50), 50)())


@pytest.mark.parametrize("n", [0, 1, 5, 20])
def test_rd_15_firstn_gives_as_many_as_asked_or_as_there_are(n: int, numbers: Numbers) -> None:
    assert list(r.firstn(numbers(10), n)()) == list(range(min(n, 10)))


@pytest.mark.parametrize("n", [0, 1, 5])
def test_rd_16_firstn_asks_for_no_entry_more(n: int) -> None:
    source = Counted(10)
    list(r.firstn(source, n)())
    assert source.asked == n


def test_rd_17_cache_reads_once_when_it_is_made_and_gives_as_often_as_asked() -> None:
    source = Counted(10)
    cached = r.cache(source)
    assert source.calls == 1
    assert [list(cached()) for _ in range(3)] == [list(range(10))] * 3
    assert source.calls == 1


@given(st.integers(0, 50), st.integers(1, 12), st.booleans())
def test_rd_30_batches_are_full_but_the_last_which_may_be_dropped(n: int, size: int, drop: bool) -> None:
    batches = list(r.batch(lambda: iter(range(n)), size, drop_last=drop)())
    whole, rest = divmod(n, size)
    assert list(map(len, batches)) == [size] * whole + ([rest] if rest and not drop else [])
    assert [x for each in batches for x in each] == list(range(n if not drop else whole * size))


@pytest.mark.parametrize("size", [0, -1, "0", 0.9])
def test_rd_31_a_batch_size_below_one_is_refused_at_decoration(size: Any, numbers: Numbers) -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        r.batch(numbers(3), size)


def test_rd_31_a_batch_size_is_what_int_makes_of_it(numbers: Numbers) -> None:
    for size in ("2", 2.7, np.int64(2)):
        assert list(r.batch(numbers(3), size)()) == [[0, 1], [2]]
    with pytest.raises(ValueError, match="invalid literal"):
        r.batch(numbers(3), "two")


def test_a_pass_may_have_no_end() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    batches = r.batch(r.shuffle(r.buffered(endless, 10), 5), 3)()
    assert [next(iter(batches)) for _ in range(100)] == [[1, 1, 1]] * 100
    batches.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: r.map_readers(len, x),
        lambda x: r.map_readers(x, list),
        lambda x: r.shuffle(x, 1),
        lambda x: r.chain(x),
        lambda x: r.compose(x),
        lambda x: r.buffered(x, 1),
        lambda x: r.firstn(x, 1),
        lambda x: r.cache(x),
        lambda x: r.batch(x, 1),
        lambda x: r.xmap_readers(len, x, 1, 1),
        lambda x: r.xmap_readers(x, list, 1, 1),
        lambda x: r.multiprocess_reader([x]),
        lambda x: r.map_readers(len) if x else None,
    ],
)
def test_what_is_no_reader_is_refused_when_it_is_decorated(make: Callable[[Any], Any]) -> None:
    with pytest.raises(OptionTypeError, match=r"must be|needs at least"):
        make([1, 2])


def test_a_reader_that_gives_nothing_to_iterate_is_told_so() -> None:
    def forgot() -> None:
        pass

    with pytest.raises(OptionTypeError, match=r"forgot gave None \(NoneType\); does it lack a yield"):
        list(r.firstn(forgot, 1)())  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [10**20, 5.0])
def test_a_size_may_be_beyond_all_counting_or_written_with_a_point(size: Any, numbers: Numbers) -> None:
    assert list(r.firstn(numbers(3), size)()) == [0, 1, 2]
    assert sorted(r.shuffle(numbers(3), size)()) == [0, 1, 2]
    assert list(r.batch(numbers(3), size)()) == [[0, 1, 2]]
    assert list(r.buffered(numbers(3), size)()) == [0, 1, 2]
    fake = iter(r.Fake()(numbers(3), size)())
    assert [next(fake), next(fake)] == [0, 0]


def test_a_batch_size_without_end_is_refused(numbers: Numbers) -> None:
    for size in (float("inf"), float("nan"), 10**20 * -1):
        with pytest.raises(ValueError, match=r"batch_size|NaN"):
            r.batch(numbers(3), size)


@pytest.mark.parametrize(
    "make",
    [
        lambda: r.shuffle(list, -1),
        lambda: r.firstn(list, -1),
        lambda: r.buffered(list, -1),
        lambda: r.xmap_readers(len, list, 1, -1),
        lambda: r.multiprocess_reader([list], queue_size=0),
    ],
)
def test_a_size_that_cannot_be_is_refused_when_it_is_decorated(make: Callable[[], Any]) -> None:
    with pytest.raises(OptionError, match="must be at least"):
        make()
    with pytest.raises(OptionTypeError, match="whole number"):
        r.firstn(list, 1.5)  # type: ignore[arg-type]
