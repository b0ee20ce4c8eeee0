"""The random generator: shapes, bounds, no end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2 import fluid
from pydp2.errors import OptionError, OptionTypeError

FLOATS = st.floats(-1e6, 1e6)


@given(FLOATS, FLOATS)
def test_cf_26_shapes_are_as_asked_and_numbers_within_the_bounds(one: float, other: float) -> None:
    low, high = sorted((one, other))
    reader = fluid.random_data_generator(low, high, [[3, 4], [2, 1, 5]])
    image, other_slot = reader.read_next()
    assert (image.shape, other_slot.shape) == ((3, 4), (2, 1, 5))
    for slot in (image, other_slot):
        assert slot.dtype == np.float32
        assert slot.lod == ()
        assert np.float32(low) <= np.asarray(slot).min()
        assert np.asarray(slot).max() <= np.float32(high)


def test_cf_26_it_never_ends_and_beginning_anew_changes_nothing() -> None:
    reader, same = (fluid.random_data_generator(0, 1, [[2, 2]], seed=4) for _ in range(2))
    for _ in range(100):
        assert reader.has_next()
        reader.reinit()
        assert np.array_equal(np.asarray(reader.read_next()[0]), np.asarray(same.read_next()[0]))


def test_numbers_fill_the_range_evenly() -> None:
    values = np.asarray(fluid.random_data_generator(-2, 6, [[1000, 100]], seed=1).read_next()[0])
    assert abs(float(values.mean()) - 2) < 0.05
    assert np.histogram(values, 8, (-2, 6))[0].min() > 12_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 0, [[2, 2]]), "low must not be above high"),
        ((0, 1, [[5]]), r"at least 2 dimensions, rows first, that of slot 0 is \[5\]"),
        ((0, 1, [[2, 2], [-1, 2]]), r"all dimensions must be known, from 1, those of slot 1 are \[-1, 2\]"),
        ((0, 1, [[2, 0]]), "all dimensions must be known"),
        ((0, 1, []), "one shape for each slot"),
        ((0, float("inf"), [[2, 2]]), "high must be a number that float32 holds"),
        (("0", 1, [[2, 2]]), "low must be a number"),
        ((0, 1, [[2, 2]], [1]), r"random data have no LoD: lod_levels must be 0 for each slot, got \[1\]"),
        ((0, 1, [[2, 2]], [0, 0]), "lod_levels must be a list with one entry for each of the 1 shapes"),
    ],
)
def test_cf_26_what_cannot_be_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises((OptionError, OptionTypeError), match=message):
        fluid.random_data_generator(*arguments)


def test_levels_of_lod_may_be_said_to_be_none() -> None:
    image, label = fluid.random_data_generator(0, 1, [[2, 2], [3, 1]], [0, 0]).read_next()
    assert (image.lod, label.lod) == ((), ())


def test_a_seed_is_a_whole_number_from_0() -> None:
    with pytest.raises(OptionError, match="seed must be at least 0, got -1"):
        fluid.random_data_generator(0, 1, [[2, 2]], seed=-1)
