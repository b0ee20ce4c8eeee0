"""Preprocessor: a function or a block over every instance."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from pydp2 import fluid
from pydp2.errors import ClientUseError, OptionError, OptionTypeError

from .conftest import flat, numbers, rest


def test_cf_29_a_function_maps_every_instance_once() -> None:
    seen: list[int] = []

    def double(value: fluid.LoDTensor) -> Any:
        seen.append(int(np.asarray(value)[0, 0]))
        return value.with_data(np.asarray(value) * 2), np.zeros(1)

    reader = fluid.Preprocessor(numbers(1, 2, 3), double)
    assert reader.has_next()
    assert reader.has_next()
    assert flat([reader.read_next()]) == [2]
    assert rest(reader) == [4, 6]
    assert seen == [1, 2, 3]
    reader.reinit()
    assert [len(instance) for instance in reader] == [2, 2, 2]


def test_cf_29_a_block_maps_every_instance_once_also_in_another_thread() -> None:
    preprocessor = fluid.Preprocessor(fluid.batch(numbers(*range(10)), 3))
    threads = set()

    @preprocessor.block
    def scale() -> None:
        (values,) = preprocessor.inputs()
        threads.add(threading.current_thread())
        preprocessor.outputs(np.asarray(values) + 100, values)

    with fluid.double_buffer(preprocessor) as reader:
        batches = list(reader)
    assert flat(batches) == [*range(100, 110)]
    assert flat((values,) for _, values in batches) == [*range(10)]
    assert threading.current_thread() not in threads


def test_cf_29_inputs_and_outputs_outside_of_the_block_raise() -> None:
    preprocessor = fluid.Preprocessor(numbers(1, 2))

    def outside() -> None:
        with pytest.raises(ClientUseError, match=r"inputs\(\) has a meaning only inside the block"):
            preprocessor.inputs()
        with pytest.raises(ClientUseError, match=r"outputs\(\) has a meaning only inside the block"):
            preprocessor.outputs(np.zeros(1))

    outside()

    @preprocessor.block
    def block() -> None:
        preprocessor.outputs(*preprocessor.inputs())
        thread = threading.Thread(target=outside)  # another thread is not inside
        thread.start()
        thread.join(20)

    outside()
    assert flat([preprocessor.read_next()]) == [1]
    outside()


@pytest.mark.parametrize("missing", ["inputs", "outputs"])
def test_cf_29_a_block_needs_both(missing: str) -> None:
    preprocessor = fluid.Preprocessor(numbers(1, 2))

    @preprocessor.block
    def block() -> None:
        if missing == "outputs":
            preprocessor.inputs()
        else:
            preprocessor.outputs(np.zeros(1))

    with pytest.raises(ClientUseError, match=rf"must call {missing}\(\)"):
        preprocessor.read_next()


def test_outputs_needs_a_tensor() -> None:
    preprocessor = fluid.Preprocessor(numbers(1))
    preprocessor.block(lambda: preprocessor.outputs(*preprocessor.inputs()[:0]))
    with pytest.raises(ClientUseError, match="at least one tensor"):
        preprocessor.read_next()


def test_a_preprocessor_has_one_function_or_block() -> None:
    with pytest.raises(OptionError, match="needs a function, or a block"):
        fluid.Preprocessor(numbers(1)).read_next()
    with pytest.raises(OptionError, match="has a function or block already"):
        fluid.Preprocessor(numbers(1), lambda value: value).block(lambda: None)
    with pytest.raises(OptionTypeError, match="function must take tensors"):
        fluid.Preprocessor(numbers(1), 5)  # type: ignore[arg-type]
    with pytest.raises(OptionTypeError, match="a block must be a function"):
        fluid.Preprocessor(numbers(1)).block(5)  # type: ignore[arg-type]


def test_what_a_function_raises_and_returns_is_told() -> None:
    def broken(value: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fluid.Preprocessor(numbers(1), broken).read_next()
    with pytest.raises(OptionTypeError, match="a preprocessor must give a list or tuple"):
        fluid.Preprocessor(numbers(1), lambda value: None).read_next()


def test_a_preprocessor_whose_block_does_not_hold_it_is_gone_when_nobody_else_does() -> None:
    preprocessor = fluid.Preprocessor(numbers(1, 2))
    known = weakref.ref(preprocessor)

    @preprocessor.block
    def block() -> None:
        there = known()
        assert there is not None
        there.outputs(*there.inputs())

    assert flat([preprocessor.read_next()]) == [1]
    gc.disable()
    try:
        del preprocessor
        assert known() is None
    finally:
        gc.enable()
