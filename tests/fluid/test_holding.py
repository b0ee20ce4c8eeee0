"""ReaderHolder: forwarding, and creating once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pydp2 import fluid
from pydp2.errors import ClientUseError, OptionError

from .conftest import SHAPES, flat, numbers, rest


def test_cf_28_all_calls_go_to_the_reader_that_is_held(nums: Any) -> None:
    held = fluid.open_files(nums(4), SHAPES)
    holder = fluid.ReaderHolder(held)
    assert holder.get() is held
    assert flat([holder.read_next()]) == [0]
    assert flat([held.read_next()]) == [1]
    assert holder.has_next()
    assert flat([held.read_next(), holder.read_next()]) == [2, 3]
    assert not held.has_next()
    assert not holder.has_next()
    with pytest.raises(fluid.EOFException):
        holder.read_next()
    holder.reinit()
    assert rest(held) == [0, 1, 2, 3]
    holder.close()
    with pytest.raises(ClientUseError, match="closed"):
        held.read_next()


def test_cf_28_creating_into_a_filled_holder_does_nothing() -> None:
    holder = fluid.ReaderHolder()
    made: list[int] = []

    def make(value: int) -> Any:
        made.append(value)
        return fluid.from_reader(numbers(value))

    first = holder.create(lambda: make(1))
    assert holder.create(lambda: make(2)) is first
    assert made == [1]
    assert flat(holder) == [1]
    filled = fluid.ReaderHolder(numbers(5))
    filled.create(lambda: make(3))
    assert made == [1]


@pytest.mark.parametrize("use", ["read_next", "has_next", "reinit", "get"])
def test_an_empty_holder_is_told(use: str) -> None:
    holder = fluid.ReaderHolder()
    with pytest.raises(OptionError, match="the holder has no reader yet"):
        getattr(holder, use)()
    holder.create(lambda: numbers(1))
    holder.reinit()
    assert flat([holder.read_next()]) == [1]
    fluid.ReaderHolder().close()


def test_a_holder_can_be_decorated() -> None:
    assert flat(fluid.batch(fluid.ReaderHolder(numbers(1, 2, 3)), 2)) == [1, 2, 3]


def test_an_error_that_the_held_reader_has_forgotten_is_forgotten() -> None:
    fail = True

    def source() -> Any:
        if fail:
            raise KeyError("broken")
        yield np.ones((1, 1))

    held = fluid.from_reader(source)
    holder = fluid.ReaderHolder(held)
    for use in (holder.read_next, holder.read_next, holder.has_next):
        with pytest.raises(KeyError, match="broken"):
            use()
    fail = False
    held.reinit()
    assert flat([holder.read_next()]) == [1]


def test_an_iterator_of_a_holder_is_left_when_the_held_reader_begins_anew() -> None:
    held = fluid.from_reader(numbers(0, 1, 2))
    one, other = fluid.ReaderHolder(held), fluid.ReaderHolder(held)
    older = iter(one)
    assert flat([next(older)]) == [0]
    held.reinit()
    with pytest.raises(ClientUseError, match="a newer loop over this reader has taken over its pass"):
        next(older)
    older = iter(one)
    assert flat([next(older), next(older)]) == [0, 1]
    newer = iter(other)
    assert flat([next(newer)]) == [0]
    with pytest.raises(ClientUseError, match="a newer loop over this reader"):
        next(older)
    assert flat(newer) == [1, 2]
