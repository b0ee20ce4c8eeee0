"""Read a saved pool again: which samples of which files, and in what order they come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from pydp2.errors import NotRepeatable
from pydp2.order.plan import PassPlan
from pydp2.order.pool import tail_order
from pydp2.order.sample_source import END, FileFailure, SampleRun, SampleSource, SourceState
from pydp2.order.snapshot import UNREACHED, Reread, SnapshotPoint, decode_begins, decode_checksums, decode_samples


def rereads_of(plan: PassPlan, snapshot: SnapshotPoint) -> dict[int, Reread]:
    """Return what ``snapshot`` needs of its files: the samples of its pool (of a tail those not yet gone) and of
    its files of the cycle."""
    files, sample_indices = decode_samples(snapshot.pool)
    checksums = decode_checksums(snapshot.pool)
    if snapshot.in_tail:
        rest = np.sort(tail_order(plan, len(files))[snapshot.tail_consumed :])
        files, sample_indices = files[rest], sample_indices[rest]
    numbers, starts = np.unique(files, return_index=True)
    ends = np.append(starts, len(files))[1:]
    rereads = {int(file): Reread(sample_indices[lo:hi]) for file, lo, hi in zip(numbers, starts, ends, strict=True)}
    for file, reread in rereads.items():
        if file in checksums:
            reread.checksum_index, checksum = checksums[file]
            reread.crcs = [checksum]
    for cycle_file in snapshot.cycle:
        reread = rereads.setdefault(cycle_file.file, Reread(np.empty(0, np.int64)))
        reread.start, reread.checksum_index, reread.crcs = (
            cycle_file.sample_index,
            cycle_file.checksum_index,
            cycle_file.crcs,
        )
    for file, begins in decode_begins(snapshot.pool).items():
        if file not in rereads:  # its samples of the tail are gone
            continue
        reread = rereads[file]
        (reread.begin, begin_crcs), (until, until_crcs) = begins[0], begins[-1]
        reread.begin_crcs = [*begin_crcs]
        if reread.start < UNREACHED:
            reread.select_until, reread.select_crcs = until, [*until_crcs]
    return rereads


class PoolRestore:
    """Restore that takes the samples of ``rereads`` from ``source``, by name. Files outside the cycle
    are bound some at a time. All samples are back when each of their files is known to be the file that it was."""

    def __init__(
        self, source: SampleSource, max_open: int, rereads: Mapping[int, Reread], cycle_files: set[int]
    ) -> None:
        self._source = source
        self._rereads = rereads
        self._cycle_files = cycle_files
        self._files = deque(sorted(file for file, reread in rereads.items() if len(reread.sample_indices)))
        self._unbound = deque(file for file in self._files if file not in cycle_files)
        for _ in range(max_open):
            self._open_next()
        self._consumed = 0

    def _open_next(self) -> None:
        if self._unbound:
            file = self._unbound.popleft()
            self._source.open_file(file, self._rereads[file])

    @property
    def current_file(self) -> int | None:
        """File whose samples come next, or are to be compared; None when all are back."""
        return self._files[0] if self._files else None

    def next_run(self) -> SampleRun | FileFailure | SourceState:
        """Return the next samples of that file which belong to the pool; END when there are no more, and the file is
        what it was. Then :meth:`end_file` follows."""
        file = self._files[0]
        if self._consumed == len(self._rereads[file].sample_indices):
            return self._source.compare(file)
        run = self._source.next_run(file)
        if run is END:
            return FileFailure(
                NotRepeatable(
                    f"file {self._source.label(file)}: process() yields fewer samples than when the state was saved; "
                    "it must give the same samples whenever it is run"
                ),
                file,
            )
        if isinstance(run, SampleRun):
            left = len(self._rereads[file].sample_indices) - self._consumed
            run.hi = min(run.hi, run.lo + left)
        return run

    def consume(self, count: int) -> None:
        """Note that ``count`` of them are back in the pool."""
        file = self._files[0]
        self._source.consume(file, count)
        self._consumed += count

    def end_file(self) -> None:
        """Note that the samples of that file are back."""
        file = self._files.popleft()
        self._consumed = 0
        if file not in self._cycle_files:
            self._source.close_file(file)
            self._open_next()
