"""Remember at which sample index the files of a pass have ended, and the checksum there: a state has it of each file
with samples in the pool, so that a file that is read again can be compared with what it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.checksum import EndChecksum

_FIRST_FILES = 1024

Ints = npt.NDArray[np.int64]


class FileEnds:
    """Ends of the files of a pass, by the number of the file: 4 bytes for each file up to the highest number, and 16
    for each that has ended."""

    def __init__(self) -> None:
        self._row_of = np.zeros(_FIRST_FILES, np.int32)  # 0: nothing was noted
        self._rows = np.zeros((_FIRST_FILES, 2), np.int64)  # end and checksum; the first one is no file's
        self._used = 1

    def note(self, file: int, end: EndChecksum) -> None:
        """Note the ``end`` of ``file``."""
        self._make_room(file)
        row = int(self._row_of[file])
        if not row:
            row, self._used = self._used, self._used + 1
            if row == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._row_of[file] = row
        self._rows[row] = end

    def _make_room(self, file: int) -> None:
        if (size := len(self._row_of)) <= file:
            more = np.zeros(max(size, file + 1 - size), np.int32)
            self._row_of = np.concatenate([self._row_of, more])

    def of(self, files: Ints, cached: Callable[[int], EndChecksum]) -> tuple[Ints, Ints]:
        """Return the ends of ``files`` and the checksums there; 0 for a file that has not ended. ``cached`` is asked
        for files of which nothing was noted."""
        if len(files):
            self._make_room(int(files[-1]))
        found = self._rows[self._row_of[files]]
        ends, checksums = found[:, 0].copy(), found[:, 1].copy()
        for at in np.flatnonzero(ends == 0).tolist():
            ends[at], checksums[at] = cached(int(files[at]))
        return ends, checksums
