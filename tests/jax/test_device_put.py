"""Arrays of a batch on devices: over the same memory where jax can take it, and equal to what jax itself makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydp2_samples import path

from pydp2.data.columns.columns import aligned_empty

jax: Any = pytest.importorskip("jax")
import pydp2.jax  # noqa: E402 - it is there
import pydp2.jax.device_put as device_put_module  # noqa: E402
from pydp2.jax.device_put import make_put  # noqa: E402
from pydp2.jax.placement import ProcessPlacement  # noqa: E402

ALONE = ProcessPlacement(0, 1)
ONE_DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
both_places = pytest.mark.parametrize("sharding", [None, ONE_DEVICE], ids=["default", "sharding"])


def filled(shape: tuple[int, ...], dtype: Any, first: int = 0) -> Any:
    array = aligned_empty(shape, dtype)
    array[...] = np.arange(first, first + array.size).reshape(shape)
    return array


@both_places
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "int64", "float64", "bool"])
def test_all_arrays_of_a_shape_are_what_jax_makes_of_them(sharding: Any, dtype: str) -> None:
    put = make_put(ALONE, sharding)
    for first in range(3):
        array = filled((4, 3), dtype, first)
        made, expected = put(array), jax.device_put(array, sharding)
        assert (made.aval, made.sharding, made.committed) == (expected.aval, expected.sharding, expected.committed)
        assert np.asarray(made).tolist() == np.asarray(expected).tolist()


@both_places
def test_arrays_have_the_bits_of_the_context_that_they_are_made_in(sharding: Any) -> None:
    put = make_put(ALONE, sharding)
    for wide in (False, True, False):
        with jax.enable_x64(wide):
            for first in range(2):
                assert put(filled((4, 3), "int64", first)).dtype == (np.int64 if wide else np.int32)


@both_places
def test_without_the_function_that_has_no_public_name_the_arrays_are_the_same(
    sharding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_put_module, "_batched_device_put", None)
    put = make_put(ALONE, sharding)
    for first in range(3):
        array = filled((4, 3), "int64", first)
        assert np.asarray(put(array)).tolist() == array.tolist()
        assert put(array).committed == (sharding is not None)


@both_places
def test_a_function_of_another_release_that_does_something_else_is_not_used(
    sharding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(aval: Any, *_: Any) -> Any:
        return jax.numpy.zeros(aval.shape, aval.dtype)

    for wrong in (other, lambda aval: aval):
        monkeypatch.setattr(device_put_module, "_batched_device_put", wrong)
        put = make_put(ALONE, sharding)
        for first in range(1, 4):
            assert np.asarray(put(filled((4, 3), "float32", first)))[0, 0] == first


@both_places
def test_arrays_lie_in_the_memory_of_the_batch_and_stay_as_they_are(sharding: Any) -> None:
    digits: dict[str, Any] = {"root": path("digits"), "batch_size": 32, "seed": 7, "workers": 1}
    expected, kept, shared = [], [], 0
    with pydp2.jax.loader("train.list", "digits_provider.process", **digits, ahead=0, sharding=sharding) as data:
        for _ in range(2):
            for values in data:
                numbers = data.batch["pixel"]
                kept.append(values["pixel"])
                expected.append(numbers.copy())
                is_shared = values["pixel"].unsafe_buffer_pointer() == numbers.ctypes.data
                assert is_shared or numbers.ctypes.data % 64
                shared += is_shared
    assert shared > len(kept) // 2
    assert all((np.asarray(made) == numbers).all() for made, numbers in zip(kept, expected, strict=True))


def test_a_step_that_donates_its_batch_does_not_write_to_the_memory_of_the_numpy_batch() -> None:
    array = filled((128, 64), "float32")
    before = array.copy()
    step = jax.jit(lambda values: values + 1, donate_argnums=0)
    for sharding in (None, ONE_DEVICE):
        put = make_put(ALONE, sharding)
        put(array)
        assert np.asarray(step(put(array))).tolist() == (before + 1).tolist()
        assert (array == before).all()


def test_more_shapes_than_are_remembered_are_put_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_put_module, "_MOST_SHAPES", 2)
    put = make_put(ALONE, None)
    for rows in (1, 2, 3, 1, 2, 3):
        assert put(filled((rows,), "int32")).tolist() == list(range(rows))


def test_the_default_device_is_that_of_each_call_and_rows_are_divided(jax_program: Callable[..., Any]) -> None:
    code = """
from pydp2.jax.device_put import make_put
from pydp2.jax.placement import ProcessPlacement

def run():
    put, seen = make_put(ProcessPlacement(0, 1), None), []
    for device in [0, 1, 1, 0, 2, 0]:
        with jax.default_device(jax.devices()[device]):
            seen.append([each.id for each in put(np.ones(3, np.float32)).devices()])
    rows = NamedSharding(jax.make_mesh((4,), ("data",)), P("data"))
    divided = make_put(ProcessPlacement(0, 1, shards=4), rows)
    for first in range(3):
        array = np.arange(first, first + 8, dtype=np.int64)
        made, expected = divided(array), jax.device_put(array, rows)
        assert (made.aval, made.sharding, made.committed) == (expected.aval, expected.sharding, expected.committed)
        assert [part.data.tolist() for part in made.addressable_shards] == array.reshape(4, 2).tolist()
    return seen
"""
    assert jax_program(code) == [[[0], [1], [1], [0], [2], [0]]]
