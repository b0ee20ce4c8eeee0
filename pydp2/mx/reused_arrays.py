"""Memory of batches that nobody refers to any more, used again.

The first touch of fresh memory costs a large batch of pictures about a quarter of the time that decoding them takes.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NOBODY = sys.getrefcount(object()) + 1
"""What ``sys.getrefcount`` says of an object that only a list refers to."""


class ReusedArrays:
    """Arrays of one shape, float32, each the caller's own for as long as anything refers to it or to a view of it.

    One thread takes them. At most ``max_arrays`` are kept in mind; what is taken beyond is fresh.
    """

    def __init__(self, shape: tuple[int, ...], max_arrays: int) -> None:
        self._shape = shape
        self._max_arrays = max_arrays
        self._arrays: list[NDArray[np.float32]] = []
        self.allocated_count = 0
        """How many arrays were made fresh."""

    def unused_array(self) -> NDArray[np.float32]:
        """An array with anything in it."""
        known = self._arrays
        for i in range(len(known)):
            # Only this list refers to it, so nobody else can come to refer to it: views and other libraries that look
            # at its memory hold the array.
            if sys.getrefcount(known[i]) == _NOBODY:
                return known[i]
        fresh: NDArray[Any] = np.empty(self._shape, np.float32)
        self.allocated_count += 1
        if len(known) < self._max_arrays:
            known.append(fresh)
        return fresh
