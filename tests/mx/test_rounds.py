"""The rule of round_batch, on numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.mx.rounds import EpochStart, batches, next_epoch_start


def epochs(count: int, size: int, number: int, *, round_batch: bool = True) -> list[list[tuple[list[int], int]]]:
    def read(reading: int) -> Iterator[int]:
        return iter(range(reading * count, (reading + 1) * count))  # so that it shows which reading a sample is of

    place, found = EpochStart(), []
    for _ in range(number):
        epoch = list(batches(read, place, size, round_batch))
        found.append(epoch)
        place = next_epoch_start(place, epoch[-1][1])
    return found


def test_the_example_of_the_page() -> None:
    found = [[([x % 4 + 1 for x in batch], pad) for batch, pad in epoch] for epoch in epochs(4, 3, 4)]
    assert found == [
        [([1, 2, 3], 0), ([4, 1, 2], 2)],
        [([3, 4, 1], 1)],
        [([2, 3, 4], 0)],
        [([1, 2, 3], 0), ([4, 1, 2], 2)],
    ]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 8))
def test_over_all_epochs_every_reading_goes_on_where_the_one_before_ended(count: int, size: int, number: int) -> None:
    size = min(size, count)
    flat = [x for epoch in epochs(count, size, number) for batch, _ in epoch for x in batch]
    assert flat == list(range(len(flat)))
    assert len(flat) % size == 0


@given(st.integers(0, 30), st.integers(1, 30))
def test_without_it_every_epoch_is_a_reading(count: int, size: int) -> None:
    (epoch,) = (
        epochs(count, size, 1, round_batch=False)
        if count
        else [list(batches(lambda n: iter(()), EpochStart(), 3, False))]
    )
    assert [x for batch, _ in epoch for x in batch] == list(range(count))
    assert all(pad == 0 for _, pad in epoch)
    assert all(len(batch) == size for batch, _ in epoch[:-1])


def test_fewer_samples_than_a_batch_cannot_be_rounded() -> None:
    with pytest.raises(ValueError, match="at least a batch of 5 samples, but the data has 4"):
        epochs(4, 5, 1)
