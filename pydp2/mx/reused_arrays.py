"""Reuse the memory of batches to which nothing refers any more.

The first touch of fresh memory costs a large batch of pictures about a quarter of the time that decoding them takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.columns import is_held_elsewhere


class ReusedArrays:
    """Float32 arrays of one shape. An array belongs to the caller while anything refers to it or to a view of it.

    Only one thread may take arrays. At most ``max_arrays`` are kept for reuse; further arrays are new.
    """

    def __init__(self, shape: tuple[int, ...], max_arrays: int) -> None:
        self._shape = shape
        self._max_arrays = max_arrays
        self._arrays: list[NDArray[np.float32]] = []
        self.allocated_count = 0
        """Number of new arrays that were made."""

    def unused_array(self) -> NDArray[np.float32]:
        """Return an array to which nothing else refers. Its values are undefined."""
        known = self._arrays
        for i in range(len(known)):
            if not is_held_elsewhere(known, i):
                return known[i]
        fresh: NDArray[Any] = np.empty(self._shape, np.float32)
        self.allocated_count += 1
        if len(known) < self._max_arrays:
            known.append(fresh)
        return fresh
