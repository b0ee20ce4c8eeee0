"""Shuffle, batch, multi_pass: which instances in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2 import fluid
from pydp2.errors import BadSample, OptionError, OptionTypeError

from .conftest import flat, numbers, rest


# -- shuffle -----------------------------------------------------------------------------------------------------------
@given(st.integers(0, 60), st.integers(1, 70), st.integers(0, 5))
def test_cf_19_shuffle_keeps_the_instances_and_moves_them_within_a_buffer(count: int, size: int, seed: int) -> None:
    found = flat(fluid.shuffle(numbers(*range(count)), size, seed))
    for first in range(0, count, size):
        assert sorted(found[first : first + size]) == [*range(first, min(first + size, count))]


def test_cf_19_a_buffer_of_one_keeps_the_order() -> None:
    assert flat(fluid.shuffle(numbers(*range(50)), 1)) == [*range(50)]


def test_cf_19_a_seed_fixes_the_order_of_each_pass() -> None:
    one, other = (fluid.shuffle(numbers(*range(50)), 20, seed=7) for _ in range(2))
    first, second = flat(one), flat(one)
    assert first != second
    other.read_next()
    other.has_next()
    other.reinit()  # how far the first pass was read has no influence on the second
    assert rest(other) == second
    assert flat(fluid.shuffle(numbers(*range(50)), 20, seed=7)) == first
    assert flat(fluid.shuffle(numbers(*range(50)), 20, seed=8)) != first


def test_cf_19_without_a_seed_each_reader_draws_its_own() -> None:
    drawn = {tuple(flat(fluid.shuffle(numbers(*range(50)), 50))) for _ in range(5)}
    assert len(drawn) == 5


def test_cf_20_shuffle_drops_its_buffer_when_it_begins_anew() -> None:
    passes = iter([[1, 2, 3, 4], [5, 6, 7, 8]])
    reader = fluid.shuffle(lambda: numbers(*next(passes))(), 4, seed=1)
    assert reader.read_next()
    reader.reinit()
    assert sorted(rest(reader)) == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("size", "seed", "kind"),
    [(0, 0, OptionError), (-1, 0, OptionError), (1.5, 0, OptionTypeError), (1, -1, OptionError)],
)
def test_shuffle_refuses_sizes_and_seeds_that_cannot_be(size: Any, seed: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="must be"):
        fluid.shuffle(numbers(1), size, seed)


# -- batch -------------------------------------------------------------------------------------------------------------
@given(st.integers(0, 30), st.integers(1, 12))
def test_cf_21_batch_joins_along_the_first_axis_and_the_last_is_smaller(count: int, size: int) -> None:
    batches = list(fluid.batch(numbers(*range(count)), size))
    assert flat(batches) == [*range(count)]
    assert [len(b[0]) for b in batches] == [min(size, count - first) for first in range(0, count, size)]
    full = list(fluid.batch(numbers(*range(count)), size, discard_leftover=True))
    assert [len(b[0]) for b in full] == [size] * (count // size)
    assert flat(full) == [*range(count // size * size)]


def test_cf_21_instances_of_several_rows_and_slots_are_joined_too() -> None:
    def source() -> Any:
        for n in (1, 3, 2):
            yield np.full((n, 2, 2), n, np.float32), np.full((n,), n)

    ((image, label),) = fluid.batch(source, 5)
    assert (image.shape, image.dtype, label.shape) == ((6, 2, 2), np.float32, (6,))
    assert np.asarray(label).tolist() == [1, 3, 3, 3, 2, 2]
    assert image.lod == ()


def given_as(*instances: Any) -> fluid.Reader:
    return fluid.batch(lambda: iter(instances), 2)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((np.zeros((1, 2)),), (np.zeros((1, 2), np.float32),), "slot 0, dtype: expected float64, got float32"),
        ((np.zeros((1, 2)),), (np.zeros((1, 3)),), r"slot 0, dimensions behind the first: expected \(2,\), got \(3,\)"),
        ((np.zeros((1, 2)),), (np.zeros((1, 2, 1)),), r"behind the first: expected \(2,\), got \(2, 1\)"),
        ((np.zeros(1),), (np.zeros(1), np.zeros(1)), "all slots, slots: expected 1, got 2"),
        ((np.zeros(1),), (fluid.LoDTensor(np.zeros(1), [[0, 1]]),), "levels of LoD: expected 0, got 1"),
        ((np.zeros(1),), (np.zeros(0),), r"rows: expected at least one row, got shape \(0,\)"),
        ((np.zeros(()),), (np.zeros(()),), r"rows: expected at least one row, as in \[number\], got a single number"),
    ],
)
def test_cf_22_batch_refuses_instances_that_are_not_alike(first: Any, second: Any, message: str) -> None:
    good = np.zeros((1, 2))
    reader = given_as((good,), (good,), first, second)
    reader.read_next()
    with pytest.raises(BadSample, match=f"instances 2 to 3 cannot be one batch: .*{message}") as caught:
        reader.read_next()
    assert caught.value.slot
    assert caught.value.expected


def test_cf_23_batch_appends_lods_level_by_level() -> None:
    def source() -> Any:
        yield (fluid.LoDTensor([[1], [2], [3]], [[0, 2], [0, 2, 3]]),)
        yield (fluid.LoDTensor([[4], [5]], [[0, 0, 1], [0, 2]]),)
        yield (fluid.LoDTensor([[6]], [[0, 1], [0, 1]]),)

    ((merged,),) = fluid.batch(source, 3)
    assert [level.tolist() for level in merged.lod] == [[0, 2, 2, 3, 4], [0, 2, 3, 5, 6]]
    assert np.asarray(merged).ravel().tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("size", [0, -2, 2.0, True, "2"])
def test_batch_refuses_sizes_that_cannot_be(size: Any) -> None:
    with pytest.raises((OptionError, OptionTypeError), match="batch_size must be"):
        fluid.batch(numbers(1), size)
    with pytest.raises(OptionTypeError, match="discard_leftover must be True"):
        fluid.batch(numbers(1), 1, discard_leftover=1)  # type: ignore[arg-type]
    with pytest.raises(OptionTypeError, match="discard_leftover must be True or False, got None"):
        fluid.batch(numbers(1), 1, discard_leftover=None)  # type: ignore[arg-type]


# -- multi_pass --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("above", [False, True])
def test_cf_16_three_passes_are_one_of_three_times_as_many(above: bool) -> None:
    reader: fluid.Reader = fluid.multi_pass(numbers(*range(7)), 3)
    if above:
        reader = fluid.batch(reader, 2)
    with reader:
        found = []
        while reader.has_next():
            found.append(reader.read_next())
        assert flat(found) == [*range(7)] * 3
        assert not reader.has_next()


def test_cf_16_has_next_is_true_until_the_last_pass_is_through() -> None:
    reader = fluid.multi_pass(numbers(1, 2), 3)
    for _ in range(6):
        assert reader.has_next()
        reader.read_next()
    assert not reader.has_next()


def test_cf_16_the_loop_of_the_original_ends() -> None:
    """do: read, train; while has_next."""
    reader = fluid.double_buffer(fluid.multi_pass(fluid.batch(numbers(*range(5)), 2), 2))
    with reader:
        sizes = []
        while True:
            (batch,) = reader.read_next()
            sizes.append(len(batch))
            if not reader.has_next():
                break
    assert sizes == [2, 2, 1] * 2


def test_cf_17_passes_over_nothing_end_at_once() -> None:
    reader = fluid.multi_pass(numbers(), 1000)
    assert not reader.has_next()
    with pytest.raises(fluid.EOFException):
        reader.read_next()


@pytest.mark.parametrize("read", [0, 1, 4, 5, 6])
def test_cf_18_beginning_anew_counts_passes_from_0(read: int) -> None:
    reader = fluid.multi_pass(numbers(1, 2), 3)
    for _ in range(read):
        reader.read_next()
    reader.reinit()
    assert rest(reader) == [1, 2] * 3


def test_each_pass_of_a_shuffle_below_has_an_order_of_its_own() -> None:
    found = flat(fluid.multi_pass(fluid.shuffle(numbers(*range(30)), 30, seed=2), 3))
    orders = {tuple(found[i : i + 30]) for i in (0, 30, 60)}
    assert len(orders) == 3
    assert all(sorted(order) == [*range(30)] for order in orders)


@pytest.mark.parametrize("passes", [0, -1, 1.0])
def test_multi_pass_refuses_numbers_of_passes_that_cannot_be(passes: Any) -> None:
    with pytest.raises((OptionError, OptionTypeError), match="pass_num must be"):
        fluid.multi_pass(numbers(1), passes)
