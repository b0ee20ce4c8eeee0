"""Padding of batches of sequences is counted as it would be."""

from __future__ import annotations

import numpy as np

from pydp2 import integer_value_sub_sequence, sparse_binary_vector_sequence
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import Slots
from pydp2.server.jobs.pass_stream import PaddingStats


def test_padding_is_what_the_longest_of_each_batch_has_more_than_the_others() -> None:
    slots = Slots((sparse_binary_vector_sequence(9), integer_value_sub_sequence(9)))
    padding = PaddingStats()
    assert padding.share == 0.0
    for lengths in ([1, 3], [4, 4], [0], []):
        packer = Packer(slots, strict=True)
        for length in lengths:
            packer.add([[[1]] * length, [[1] * length, [1] * 2]])
        columns = packer.finish().columns
        assert columns.lengths(0).tolist() == lengths
        assert columns.lengths(1).tolist() == [length + 2 for length in lengths]
        assert columns.lengths(1).dtype == np.int64
        padding.add(columns.lengths(0))
    assert (padding.steps, padding.padded) == (12, 14)
    assert padding.figures("slot 0") == {"slot": "slot 0", "steps": 12, "places": 14, "share": 1 - 12 / 14}
    assert "slot 0 padded to the longest of each batch is 14.3% padding" in padding.describe("slot 0", (2, 4))
    assert "bounds of the buckets: 2, 4)" in padding.describe("slot 0", (2, 4))
    assert "bounds of the buckets: none)" in padding.describe("slot 0", ())
