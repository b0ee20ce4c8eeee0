"""How well a pass is shuffled: a full shuffle has 1, the order of the list 0, and neither mistake hides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2.diagnostics.shuffle_quality import ShuffleQuality, shuffle_quality_of
from pydp2.errors import Error

FILES, LENGTH = 10, 200
COUNT = FILES * LENGTH
PROVIDER = """
@provider(input_types=[integer_value(100000)], pool_size=%d)
def process(settings, filename):
    yield from range(int(filename))
"""


def quality_of(order: npt.NDArray[np.int64], batch: int = 50) -> ShuffleQuality:
    """That of ``order``, places in a list of ten files of 200 samples."""
    return shuffle_quality_of(order // LENGTH, order % LENGTH, np.full(COUNT // batch, batch))


def test_a_full_shuffle_has_nearly_one() -> None:
    found = quality_of(np.random.default_rng(3).permutation(COUNT))
    assert found.quality > 0.95
    assert abs(found.files_per_batch - found.full_files_per_batch) < 0.1
    assert found.picture.shape == (12, 8)
    assert np.isclose(found.picture.mean(), 1)
    assert found.picture.min() > 0.3


def test_the_order_of_the_list_has_nearly_none() -> None:
    found = quality_of(np.arange(COUNT))
    assert found.quality < 0.01
    assert found.files_per_batch == 1
    assert found.picture[0, 0] > 5
    assert found.picture[0, -1] == 0


def test_files_that_take_turns_without_a_pool_are_no_shuffle() -> None:
    found = quality_of(np.arange(COUNT).reshape(FILES, LENGTH).T.reshape(-1))
    assert found.list_distance > 0.5
    assert found.quality == found.stream_distance < 0.05
    assert found.files_per_batch == 10


def test_shuffled_files_without_a_pool_are_no_shuffle() -> None:
    files = np.random.default_rng(3).permutation(FILES)
    found = quality_of((files[:, None] * LENGTH + np.arange(LENGTH)).reshape(-1))
    assert found.quality < 0.02


@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 7))
def test_figures_are_shares(seed: int, count: int, files: int) -> None:
    random = np.random.default_rng(seed)
    order = random.permutation(count)
    found = shuffle_quality_of(order % files, order // files, np.array([count]))
    assert 0 <= found.quality <= min(found.list_distance, found.stream_distance) <= 1
    assert np.isclose(found.picture.mean(), 1)
    assert found.files_per_batch == len({*(order % files).tolist()})
    backward = shuffle_quality_of(order[::-1] % files, order[::-1] // files, np.array([count]))
    assert np.isclose(backward.quality, found.quality)  # a stream is as well shuffled backwards


def test_a_large_pool_is_better_than_a_small_one_and_none_is_bad(provider_file: Callable[[str], str]) -> None:
    options = {"seed": 1, "batch_size": 32, "interleave": 2, "workers": 2}
    found = {
        pool: pydp2.shuffle_quality(["400"] * 8, provider_file(PROVIDER % pool), **options).quality
        for pool in (64, 800, 1 << 20)
    }
    assert found[64] < found[800] < found[1 << 20]
    assert found[1 << 20] > 0.9
    unshuffled = pydp2.shuffle_quality(["400"] * 8, provider_file(PROVIDER % 64), shuffle=False, workers=2)
    assert unshuffled.quality < 0.01
    assert (unshuffled.samples, unshuffled.batches) == (3200, 25)


def test_one_sample_cannot_be_shuffled(provider_file: Callable[[str], str]) -> None:
    with pytest.raises(Error, match="needs a pass of two samples at least, and this one has 1"):
        pydp2.shuffle_quality(["1"], provider_file(PROVIDER % 8), workers=1)
