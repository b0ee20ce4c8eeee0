"""Remember at which sample index the files of a pass have ended, and the checksum there: a state has it of each file
with samples in the pool, so that a file that is read again can be compared with what it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pydp2.columns.checksum import EndChecksum

_FIRST_FILES = 1024

Ints = npt.NDArray[np.int64]


class FileEnds:
    """Ends of the files of a pass, by the number of the file: 16 bytes for each file up to the highest number."""

    def __init__(self) -> None:
        self._ends = np.zeros(_FIRST_FILES, np.int64)
        self._checksums = np.zeros(_FIRST_FILES, np.int64)

    def note(self, file: int, end: EndChecksum) -> None:
        """Note the ``end`` of ``file``."""
        self._make_room(file)
        self._ends[file], self._checksums[file] = end

    def _make_room(self, file: int) -> None:
        if (size := len(self._ends)) <= file:
            more = np.zeros(max(size, file + 1 - size), np.int64)
            self._ends, self._checksums = (np.concatenate([each, more]) for each in (self._ends, self._checksums))

    def of(self, files: Ints, cached: Callable[[int], EndChecksum]) -> tuple[Ints, Ints]:
        """Return the ends of ``files`` and the checksums there; 0 for a file that has not ended. ``cached`` is asked
        for files of which nothing was noted."""
        if len(files):
            self._make_room(int(files[-1]))
        ends, checksums = self._ends[files], self._checksums[files]
        for at in np.flatnonzero(ends == 0).tolist():
            ends[at], checksums[at] = cached(int(files[at]))
        return ends, checksums
