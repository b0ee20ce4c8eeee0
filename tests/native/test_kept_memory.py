"""Memory of large arrays is used again, and what is kept of it has a bound."""

from __future__ import annotations

import numpy as np
import pytest

from pydp2.data.columns.columns import aligned_empty

kernels = pytest.importorskip("pydp2.data.native._array_kernels")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    kernels.free_kept_memory()


def test_an_array_gets_the_memory_that_the_last_one_of_its_size_has_left() -> None:
    first = aligned_empty((3, MIB), "f4")
    address = first.ctypes.data
    del first
    again = aligned_empty((6, MIB), "i2")
    assert again.ctypes.data == address
    assert again.flags.writeable
    assert again.shape == (6, MIB)


def test_memory_is_not_used_again_while_a_view_refers_to_it() -> None:
    first = aligned_empty((4, MIB), np.uint8)
    view = first[1:2]
    view[:] = 7
    del first
    other = aligned_empty((4, MIB), np.uint8)
    other[:] = 1
    assert (view == 7).all()


@pytest.mark.parametrize("size", [1 << 17, (1 << 17) + 1, 3 * MIB + 5])
def test_memory_begins_at_a_multiple_of_64_bytes_and_has_room_for_all(size: int) -> None:
    array = aligned_empty((size,), np.uint8)
    array[:] = 255
    assert array.ctypes.data % 64 == 0
    assert array.nbytes == size


def test_what_is_kept_is_at_most_64_mib() -> None:
    arrays = [aligned_empty((MIB + i,), "f4") for i in range(0, 20 * 131072, 131072)]
    arrays.clear()
    assert 60 * MIB < kernels.free_kept_memory() <= 64 * MIB
    assert kernels.free_kept_memory() == 0


def test_of_larger_arrays_two_are_kept_and_of_very_large_ones_none() -> None:
    arrays = [aligned_empty((50 * MIB,), np.uint8) for _ in range(4)]
    arrays.clear()
    assert 100 * MIB <= kernels.free_kept_memory() < 120 * MIB
    array = aligned_empty((300 * MIB,), np.uint8)
    del array
    assert kernels.free_kept_memory() == 0


def test_memory_that_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        kernels.Memory(1 << 62)
    with pytest.raises(ValueError, match="size"):
        kernels.Memory(-1)
