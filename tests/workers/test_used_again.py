"""Memory that a provider uses again: each sample is what it was when it was yielded, whatever a chunk has."""

from __future__ import annotations

from pathlib import Path

import pytest

import pydp2

PROVIDER = """
import numpy as np
from pydp2 import BinaryArray, dense_vector, integer_value, provider, raw, rows

@provider(input_types={"number": integer_value(10**6), "row": dense_vector(250), "bytes": raw()})
def process(settings, filename):
    first, count, size = map(int, filename.split())
    memory = np.empty((size, 250), np.float32)
    numbers = np.empty(size, np.int64)
    data = np.empty(8 * size, np.uint8)
    for at in range(first, first + count, size):
        numbers[:] = np.arange(at, at + size)
        memory[:] = numbers[:, None]
        data[:] = numbers.view(np.uint8)
        yield rows(number=numbers, row=memory, bytes=BinaryArray(np.arange(size + 1) * 8, data))
    memory[:] = data[:] = numbers[:] = 0
"""


@pytest.mark.parametrize("size", [5, 100, 750, 6000], ids="{} samples in a block".format)
def test_a_provider_may_use_its_memory_again_for_each_block(size: int, tmp_path: Path) -> None:
    module = tmp_path / "again.py"
    module.write_text(PROVIDER)
    files = [f"{first} 6000 {size}" for first in range(0, 24_000, 6000)]
    seen = []
    with pydp2.load(files, f"{module}:process", batch_size=500, workers=2, seed=1) as data:
        for batch in data:
            numbers = batch["number"].tolist()
            assert (batch["row"] == batch["number"][:, None]).all()
            assert [int.from_bytes(each, "little") for each in batch["bytes"].to_list()] == numbers
            seen += numbers
    assert sorted(seen) == list(range(24_000))
