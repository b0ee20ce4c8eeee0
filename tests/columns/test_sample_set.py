"""Sets of samples as bytes and text."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.sample_set import (
    SampleSet,
    decode_set,
    encode_set,
    encode_set_in_python,
    set_from_text,
    set_to_text,
)
from pydp2.errors import OptionError

names = st.sets(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)), max_size=60)
stretches = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3000), st.integers(1, 300)), max_size=6)


def columns(of: set[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(sorted(of), np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


@given(names, stretches)
def test_a_set_comes_back_from_its_bytes_and_from_its_text(single: set[tuple[int, int]], runs: list) -> None:
    files, sample_indices = columns(single | {(f, y) for f, lo, n in runs for y in range(lo, lo + n)})
    data = encode_set(files, sample_indices)
    assert data == encode_set_in_python(files, sample_indices)
    assert set_from_text(set_to_text(data)) == data
    for back, sent in zip(decode_set(data), (files, sample_indices), strict=True):
        assert back.tolist() == sent.tolist()


@given(names)
def test_a_set_has_the_first_and_the_last_sample_of_each_file(samples: set[tuple[int, int]]) -> None:
    made = SampleSet.of(*columns(samples))
    assert made.data == encode_set(*columns(samples))
    by_file: dict[int, list[int]] = {}
    for file, sample_index in sorted(samples):
        by_file.setdefault(file, []).append(sample_index)
    found = zip(made.files.tolist(), made.first.tolist(), made.last.tolist(), strict=True)
    assert [*found] == [(file, indices[0], indices[-1]) for file, indices in by_file.items()]


def test_a_shuffle_pool_of_65536_samples_takes_less_than_45_kilobytes_of_text() -> None:
    random = np.random.default_rng(3)
    lanes, pool, seen = 16, [], 0
    while seen < 6 * 65_536:
        name = (seen % lanes, seen // lanes)
        seen += 1
        if len(pool) < 65_536:
            pool.append(name)
        else:
            pool[int(random.integers(65_536))] = name
    assert len(set_to_text(encode_set(*columns(set(pool))))) < 45_000


def test_a_whole_pass_takes_a_few_bytes_a_file() -> None:
    files = np.repeat(np.arange(200), 5_000)
    assert len(set_to_text(encode_set(files, np.tile(np.arange(5_000), 200)))) < 500


@given(names, st.data())
def test_damaged_bytes_are_refused_or_are_another_set(single: set[tuple[int, int]], data: st.DataObject) -> None:
    good = bytearray(encode_set(*columns(single)))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    try:
        files, sample_indices = decode_set(bytes(good[: data.draw(st.integers(0, len(good)))]))
    except OptionError:
        return
    assert len(files) == len(sample_indices)


@pytest.mark.parametrize("text", ["", "x", "c$`", "é", base64.b85encode(zlib.compress(b"x" * 10)[:-3]).decode()])
def test_a_text_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="damaged"):
        decode_set(set_from_text(text))
