"""Count the samples of each file of the list, as they are delivered (docs/caching.md, "Counts"). Pure: no IO, no clock.

A count is remembered from an earlier service, or known because a pass has read the file to its end. It may be wrong,
when the generator gives other samples than before: that is found each time the file is read to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.cache.counts import COUNT
from pydp2.server.actions import Action, Log
from pydp2.server.dispatch.ledger import FileLedger


class FileCounts:
    """Counts of the ``files`` files of a list. ``early_ends``: files may end before their data do, and such counts
    hold."""

    def __init__(self, files: int, label: Callable[[int], str], *, early_ends: bool) -> None:
        self._counts = np.zeros(files, COUNT)
        self._known = np.zeros(files, bool)
        self._label = label
        self._early_ends = early_ends
        self._new: set[int] = set()
        self._read = 0  # files that were read to their ends, each time
        self.is_loading = False
        """True while it is not known yet what is remembered."""

    def __len__(self) -> int:
        """Return the number of files that are counted."""
        return int(self._known.sum())

    @property
    def is_plain(self) -> bool:
        """True if all files are counted, and each sample weighs 1."""
        return bool(self._known.all() and self._counts["plain"].all())

    def uncounted(self) -> npt.NDArray[np.int64]:
        """Return the files that are not counted."""
        return np.flatnonzero(~self._known)

    def load(self, files: npt.NDArray[np.int64], counts: npt.NDArray[Any]) -> None:
        """Take in what is remembered, ``counts`` (COUNT) of ``files``. A file that was read meanwhile keeps its
        count."""
        self.is_loading = False
        take = ~self._known[files]
        if not self._early_ends:
            take &= ~counts["early"]
        self._counts[files[take]] = counts[take]
        self._known[files[take]] = True

    def add(self, ledger: FileLedger) -> list[Action]:
        """Take in the count of the file of ``ledger``, which has ended; a warning if it had another one."""
        if ledger.reread is not None:  # in part
            return []
        file = ledger.file
        self._read += 1
        count = np.array(
            (ledger.sample_count, ledger.dropped_count, ledger.weight, ledger.is_plain, ledger.ends_early), COUNT
        )
        if self._known[file] and self._counts[file] == count:
            return []
        before = int(self._counts[file]["samples"]) if self._known[file] else ledger.sample_count
        self._counts[file], self._known[file] = count, True
        self._new.add(file)
        if before == ledger.sample_count:
            return []
        text = (
            f"file {self._label(file)} gave {ledger.sample_count} samples, and {before} when it was counted last: the "
            "length of the pass was wrong by that; the new count is remembered"
        )
        return [Log(text, kind="count")]

    def take_new(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Return the files (int64) that were counted since the last call, and their counts (COUNT)."""
        files = np.array(sorted(self._new), np.int64)
        self._new.clear()
        return files, self._counts[files]

    def summary(self) -> dict[str, Any]:
        """Return the sums over all files that are counted, as plain data."""
        counts = self._counts[self._known]
        return {
            "files": len(self._known), "counted": len(counts), "loading": self.is_loading,
            "read": self._read,
            "plain": bool(counts["plain"].all()),
            **{name: int(counts[name].sum()) for name in ("samples", "dropped", "weight")},
        }  # fmt: skip
