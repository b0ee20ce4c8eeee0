"""Fluid's readers and pydp2.reader: each family takes the other's."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2 import fluid, reader
from pydp2.errors import ClientUseError

from ..runs import wait_until
from .conftest import SHAPES, flat, numbers


def test_a_fluid_reader_is_a_reader_for_every_decorator(nums: Any) -> None:
    with fluid.open_files(nums(20, 10), SHAPES, is_test=True) as source:
        assert flat(reader.firstn(source, 7)()) == [*range(7)]
        assert sorted(flat(reader.shuffle(source, 30, seed=1)())) == [*range(30)]
        assert flat(reader.buffered(source, 4)()) == [*range(30)]
        assert flat(reader.chain(source, source)()) == [*range(30)] * 2
        assert flat(reader.map_readers(lambda instance: instance, source)()) == [*range(30)]
        assert [flat(entries) for entries in reader.batch(source, 20)()] == [[*range(20)], [*range(20, 30)]]
        assert flat(reader.cache(source)()) == [*range(30)]


@given(st.lists(st.integers(0, 99), max_size=20), st.integers(1, 5))
def test_the_decorators_of_fluid_take_any_reader(values: list[int], size: int) -> None:
    source = numbers(*values)
    shuffled = reader.shuffle(source, 4, seed=3)
    batches = fluid.batch(shuffled, size)
    for _ in range(2):
        assert sorted(flat(batches)) == sorted(values)
    back = reader.firstn(fluid.batch(reader.buffered(source, 3), 1), 5)
    assert flat(back()) == values[:5]


def test_instances_compose_to_tuples_of_all_slots() -> None:
    image = fluid.from_reader(lambda: iter([(np.full((1, 2), i),) for i in range(3)]))
    label = fluid.batch(numbers(7, 8, 9), 1)
    composed = fluid.from_reader(reader.compose(image, label))
    for _ in range(2):
        found = [[np.asarray(tensor).tolist() for tensor in instance] for instance in composed]
        assert found == [[[[i, i]], [[7 + i]]] for i in range(3)]


def test_one_reader_at_two_places_of_a_pass_is_told() -> None:
    """It has one place in its data."""
    source = fluid.from_reader(numbers(1, 2, 3))
    with pytest.raises(ClientUseError, match="a reader has one place"):
        list(reader.compose(source, source)())


@pytest.mark.parametrize("above", [reader.buffered, reader.shuffle])
def test_a_consumer_that_leaves_ends_the_threads_of_both_families(above: Any, nums: Any) -> None:
    before = set(threading.enumerate())
    with fluid.open_files(nums(50, 50), SHAPES, thread_num=2) as source:
        for _ in range(3):
            begun = iter(above(source, 3)())
            next(begun)
            begun.close()
            assert wait_until(lambda: set(threading.enumerate()) <= before)
        assert sorted(flat(source)) == [*range(100)]


def test_xmap_over_files_and_a_double_buffer_over_that(nums: Any) -> None:
    def double(instance: Any) -> Any:
        return tuple(np.asarray(tensor) * 2 for tensor in instance)

    with (
        fluid.open_files(nums(20, 5), SHAPES, is_test=True) as source,
        fluid.double_buffer(fluid.batch(reader.xmap_readers(double, source, 2, 4, order=True), 4)) as batches,
    ):
        for _ in range(2):
            assert flat(batches) == [*range(0, 50, 2)]


def test_instances_of_one_row_go_through_a_data_feeder(nums: Any) -> None:
    with fluid.open_files(nums(6, 4), SHAPES, is_test=True) as source:
        rows = reader.map_readers(lambda instance: (np.asarray(instance[0]).ravel().astype(float),), source)
        (entries,) = reader.batch(rows, 20)()
        fed = reader.DataFeeder({"value": pydp2.dense_vector(1)}, {"value": 0})(entries)
        assert fed["value"].ravel().tolist() == [*range(10)]


def test_a_data_feeder_makes_the_instances_of_a_file(tmp_path: Path) -> None:
    """As programs did it that wrote RecordIO: a reader of mini-batches, and the feeder of a network."""
    samples = [([i, i + 0.5], i % 3) for i in range(5)]
    feeder = reader.DataFeeder({"pixel": pydp2.dense_vector(2), "label": pydp2.integer_value(3)})
    path = tmp_path / "fed.recordio"
    assert fluid.convert_reader_to_recordio_file(path, reader.batch(lambda: iter(samples), 2), feeder) == 3
    found = [
        [np.asarray(tensor).tolist() for tensor in batch] for batch in fluid.open_recordio_file(path, [[-1, 2], [-1]])
    ]
    assert found == [[[p for p, _ in part], [n for _, n in part]] for part in (samples[:2], samples[2:4], samples[4:])]
