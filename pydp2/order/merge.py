"""Merge the samples of files: the files of the cycle take turns (docs/order.md, "Merge").

This only keeps track of where the merge stands. It never looks further than the one file whose turn it is: what that
file gives next decides everything, so neither timing nor the way samples were chunked can show in the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pydp2.order.file_order import block_length
from pydp2.order.plan import PassPlan
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun, SampleSource, SourceState
from pydp2.order.snapshot import FilePosition, Reread, SnapshotPoint


@dataclass(slots=True)
class CycleFile:
    """File that takes turns with others, and how many samples a turn of it takes."""

    file: int
    block_length: int


class CycleRows:
    """Pool ids that are there of each file of the cycle, for a compiled loop (:mod:`pydp2.order.bulk_cut`).

    ``addresses`` and ``available``: where the next id of a file lies in memory, and how many follow it, int64 (files,).
    """

    def __init__(self, block_lengths: Sequence[int]) -> None:
        self.block_lengths = np.array(block_lengths, np.int64)
        self.addresses = np.zeros(len(block_lengths), np.int64)
        self.available = np.zeros(len(block_lengths), np.int64)
        self._pool_ids: list[npt.NDArray[np.int64] | None] = [None] * len(block_lengths)

    def fill(self, index: int, ids: npt.NDArray[np.int64]) -> None:
        """Let the file at ``index`` have ``ids``, which are contiguous."""
        assert not self.available[index]
        self._pool_ids[index] = ids  # they stay where they are as long as they are named here
        self.addresses[index], self.available[index] = ids.__array_interface__["data"][0], len(ids)

    def skip(self, index: int, count: int) -> None:
        """Pass over the first ``count`` ids of the file at ``index``, if any are there: they went another way."""
        if self.available[index]:
            self.addresses[index] += 8 * count
            self.available[index] -= count

    def replace(self, index: int, block_length: int) -> None:
        """Let another file come to ``index``, of which nothing is there yet."""
        self.block_lengths[index] = block_length
        self.addresses[index] = self.available[index] = 0
        self._pool_ids[index] = None

    def remove(self, index: int) -> None:
        """Remove the file at ``index``; those behind it move up."""
        self.block_lengths = np.delete(self.block_lengths, index)
        self.addresses = np.delete(self.addresses, index)
        self.available = np.delete(self.available, index)
        del self._pool_ids[index]


class Merge:
    """Merge that gives the samples of all files one run at a time, in the order of the plan."""

    def __init__(
        self,
        plan: PassPlan,
        source: SampleSource,
        file_order: npt.NDArray[np.int64],
        snapshot: SnapshotPoint | None = None,
        rereads: Mapping[int, Reread] | None = None,
    ) -> None:
        self._plan = plan
        self._source = source
        self.file_order = file_order
        self.next_file = 0
        self.cycle: list[CycleFile] = []
        self.cycle_index = 0
        if snapshot is not None:
            self._restore(snapshot, rereads or {})
        else:
            while len(self.cycle) < plan.cycle_length and self.next_file < len(self.file_order):
                self.cycle.append(self._open_next())
            self.block_left = self.cycle[0].block_length if self.cycle else 0
        self.cycle_rows = CycleRows([cycle_file.block_length for cycle_file in self.cycle])

    def _restore(self, snapshot: SnapshotPoint, rereads: Mapping[int, Reread]) -> None:
        self.next_file, self.cycle_index, self.block_left = (
            snapshot.next_file,
            snapshot.cycle_index,
            snapshot.block_left,
        )
        for cycle_file in snapshot.cycle:
            self._source.open_file(cycle_file.file, rereads[cycle_file.file])
            self.cycle.append(CycleFile(cycle_file.file, block_length(self._plan, cycle_file.file)))

    def positions(self) -> list[FilePosition]:
        """Return where the merge stands in each file of the cycle."""
        return [self._source.position(cycle_file.file) for cycle_file in self.cycle]

    def _open_next(self) -> CycleFile:
        file = int(self.file_order[self.next_file])
        self.next_file += 1
        self._source.open_file(file)
        return CycleFile(file, block_length(self._plan, file))

    @property
    def current_file(self) -> int:
        """File whose turn it is. Only while there are files in the cycle."""
        return self.cycle[self.cycle_index].file

    @property
    def current_label(self) -> str:
        """Name of that file in error messages."""
        return self._source.label(self.current_file)

    def next_run(self) -> SampleRun | FileFailure | SourceState:
        """Return the next samples, at most to the end of the turn; a failure; WAIT; or END
        when every file has ended."""
        while self.cycle:
            if self.block_left == 0:
                self._advance_cycle()
            cycle_file = self.cycle[self.cycle_index]
            run = self._source.next_run(cycle_file.file)
            if run is not END:
                if isinstance(run, SampleRun) and run.hi - run.lo > self.block_left:
                    run.hi = run.lo + self.block_left
                return run
            self._source.close_file(cycle_file.file)
            if self.next_file < len(self.file_order):
                self.cycle[self.cycle_index] = opened = self._open_next()  # and the same turn goes on
                self.cycle_rows.replace(self.cycle_index, opened.block_length)
                continue
            del self.cycle[self.cycle_index]
            self.cycle_rows.remove(self.cycle_index)
            if self.cycle:
                self.cycle_index %= len(self.cycle)
                self.block_left = self.cycle[self.cycle_index].block_length
        return END

    def consume(self, count: int) -> None:
        """Note that the first ``count`` samples of the run that :meth:`next_run` returned are merged."""
        self._source.consume(self.cycle[self.cycle_index].file, count)
        self.cycle_rows.skip(self.cycle_index, count)
        self.block_left -= count

    def _advance_cycle(self) -> None:
        self.cycle_index = (self.cycle_index + 1) % len(self.cycle)
        self.block_left = self.cycle[self.cycle_index].block_length


class RelaxedMerge(Merge):
    """Merge for ``order="relaxed"``: any file of the cycle that has samples goes next, with all of them. Only
    the multiset is promised."""

    def next_run(self) -> SampleRun | FileFailure | SourceState:
        """Return samples of any file of the cycle; a failure; WAIT when no file of the cycle has any; or END."""
        for _ in range(len(self.cycle)):
            self.block_left = 1 << 62
            run = super().next_run()
            if run is not WAIT:
                return run
            self.cycle_index = (self.cycle_index + 1) % len(self.cycle)
        return WAIT if self.cycle else END
