"""Raw values of one slot on their way to columns: bytes in the form in which they came, until a chunk is judged.

A run is a stretch of values that came in one form (packed ints, a numpy dtype, marshalled records); a provider that
always yields the same kind of thing makes one run per chunk. Nothing here looks at a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Runs:
    """Flat values in arrival order. ``key`` and ``buf`` (dtype and bytes of the open run) are there to be appended to;
    whoever appends in another form calls :meth:`switch` first."""

    __slots__ = ("_closed", "buf", "key")

    def __init__(self, key: np.dtype[Any]) -> None:
        self.key = key
        self.buf = bytearray()
        self._closed: list[tuple[np.dtype[Any], bytearray]] = []

    def switch(self, key: np.dtype[Any]) -> None:
        """Open a run of the form ``key``."""
        if self.buf:
            self._closed.append((self.key, self.buf))
            self.buf = bytearray()
        self.key = key

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` values."""
        for i, (key, buf) in enumerate(self._closed):
            here = len(buf) // key.itemsize
            if count < here:
                del self._closed[i:]
                self.key, self.buf = key, buf
                break
            count -= here
        del self.buf[count * self.key.itemsize :]

    def hand_over(self) -> list[NDArray[Any]]:
        """All values, an array for each run, over memory that is the caller's from now on."""
        self.switch(self.key)
        arrays = [np.frombuffer(buf, key) for key, buf in self._closed]
        self._closed = []
        return arrays
