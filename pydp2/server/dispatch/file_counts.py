"""Count the samples of each file of the list, as they are delivered (docs/caching.md, "Counts"). Pure: no clock, and
no IO but that of the thread of a :class:`CountStore`.

A count is remembered from an earlier service, or known because a pass has read the file to its end. It may be wrong,
when the generator gives other samples than before: that is found each time the file is read to its end. ``pydp2 count``
runs a pass for the counts alone (:class:`CountingBatcher`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.order.batcher import BatchCut, Batcher, BlockedOnFile, PassDone, PassFailed
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun
from pydp2.server.actions import Action, Log
from pydp2.server.cache.counts import COUNT, CountsLoaded, CountStore, StampBefore
from pydp2.server.cache.disk_messages import CacheNotice
from pydp2.server.dispatch.ledger import FileLedger
from pydp2.system.log_events import LogEvent

_MANY = 4096  # samples that are waited for at a time


class FileCounts:
    """Counts of the ``files`` files of a list. ``store``: where they are remembered, None: nowhere; ``early_ends``:
    files may end before their data do, and such counts hold."""

    def __init__(
        self, files: int, label: Callable[[int], str], store: CountStore | None = None, *, early_ends: bool
    ) -> None:
        self._row_of = np.zeros(files, np.int32)  # 0: not counted
        self._rows = np.zeros(1, COUNT)  # has room for more; the first one is no count
        self._used = 1  # so many of them
        self._label = label
        self._store = store
        self._early_ends = early_ends
        self._read = 0  # files that were read to their ends, each time
        self._is_loading = store is not None  # it is not known yet what is remembered
        if store is not None:
            store.load()

    def __len__(self) -> int:
        """Return the number of files that are counted."""
        return self._used - 1

    @property
    def files(self) -> int:
        """Number of files of the list."""
        return len(self._row_of)

    @property
    def is_plain(self) -> bool:
        """True if all files are counted, and each sample weighs 1."""
        return len(self) == len(self._row_of) and bool(self._counts["plain"].all())

    def weight_of(self, files: range) -> tuple[float, bool] | None:
        """Return the weight of the samples of ``files``, and True if it is estimated, because some are not counted.
        None if it is not known at all."""
        weights = self._counts["weight"]
        if len(files) < self.files:  # for all files this would take six times as long
            rows = self._row_of[files.start : files.stop]
            weights = self._rows["weight"][rows[rows > 0]]
        if self._is_loading or not len(weights):
            return None
        return int(weights.sum()) * len(files) / len(weights), len(weights) < len(files)

    def uncounted(self) -> npt.NDArray[np.int64]:
        """Return the files that are not counted."""
        return np.flatnonzero(self._row_of == 0)

    @property
    def _counts(self) -> npt.NDArray[Any]:
        return self._rows[1 : self._used]

    def _append(self, files: npt.NDArray[np.int64], counts: npt.NDArray[Any]) -> None:
        """Add ``counts`` of ``files``, which have none."""
        first, self._used = self._used, self._used + len(files)
        if self._used > len(self._rows):
            rows = np.zeros(max(self._used, len(self._rows) * 3 // 2), COUNT)
            rows[:first] = self._rows[:first]
            self._rows = rows
        self._rows[first : self._used] = counts
        self._row_of[files] = np.arange(first, self._used)

    def take_disk_answers(self) -> list[CacheNotice]:
        """Take in what is remembered. Return notices for the user."""
        answers = [] if self._store is None else self._store.take_answers()
        for answer in answers:
            if isinstance(answer, CountsLoaded):
                self._load(answer)
        return [answer for answer in answers if isinstance(answer, CacheNotice)]

    def _load(self, remembered: CountsLoaded) -> None:
        """Take in what is remembered. A file that was read meanwhile keeps its count."""
        files, counts = remembered.files, remembered.counts
        self._is_loading = not remembered.is_last
        take = self._row_of[files] == 0
        if not self._early_ends:
            take &= ~counts["early"]
        self._append(files[take], counts[take])

    def begin(self, file: int) -> StampBefore | None:
        """Note that ``file`` begins to be read; the ledger keeps the result."""
        return None if self._store is None else self._store.begin(file)

    def add(self, ledger: FileLedger) -> list[Action]:
        """Take in the count of the file of ``ledger``, which has ended; a warning if it had another one."""
        if ledger.reread is not None and not ledger.reread.is_whole:
            return []
        file = ledger.file
        self._read += 1
        count = np.array(
            (ledger.sample_count, ledger.dropped_count, ledger.weight, ledger.is_plain, ledger.ends_early), COUNT
        )
        row, before = int(self._row_of[file]), ledger.sample_count
        if not row:
            self._append(np.array([file]), count)
        elif self._rows[row].item() != count.item():  # numpy compares structured values slowly
            before, self._rows[row] = int(self._rows[row]["samples"]), count
        # also with the count from before: the file may have been touched
        if self._store is not None and ledger.stamp_before is not None:
            self._store.end(ledger.stamp_before, count)
        if before == ledger.sample_count:
            return []
        text = (
            f"file {self._label(file)} gave {ledger.sample_count} samples, and {before} when it was counted last: the "
            "length of the pass was wrong by that; from now on this service uses the new count"
        )
        return [Log(text, LogEvent.COUNT_CHANGED, {"file": self._label(file)})]

    def remember(self) -> None:
        """Remember what was counted since the last call."""
        if self._store is not None:
            self._store.write()

    def summary(self) -> dict[str, Any]:
        """Return the sums over all files that are counted, and the key under which they are remembered ("": they are
        not), as plain data."""
        counts = self._counts
        return {
            "files": len(self._row_of),
            "counted": len(counts),
            "loading": self._is_loading,
            "read": self._read,
            "plain": bool(counts["plain"].all()),
            **{name: int(counts[name].sum()) for name in ("samples", "dropped", "weight")},
            "key": "" if self._store is None else self._store.key,
        }


class CountingBatcher(Batcher):
    """Stream of no batches: samples are passed as they come. The plan is one with ``relaxed``, so that no file waits
    for another one."""

    def next(self) -> BatchCut | BlockedOnFile | PassFailed | PassDone:
        """Pass what is there. Return what is waited for, or how the pass ended."""
        while self._failure is None:
            run = self.merge.next_run()
            if run is WAIT:
                return BlockedOnFile(self.merge.current_file, _MANY, _MANY)
            if run is END:
                return PassDone(0)
            if isinstance(run, FileFailure):
                return self._fail(run.error, run.file, run.sample)
            assert isinstance(run, SampleRun)
            run.release()
            self.merge.consume(run.hi - run.lo)
        return self._failure
