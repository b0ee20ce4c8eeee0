"""Know the checksums of the files of one pass: where they ended, what a state of the pass says of them, and whether
they are what they were (docs/order.md, "State").

A state names the files that a run needs again, and has a checksum of each. So checksums are noted as the merge goes
on: of each chunk when its first sample is taken, of each file when its end is met. A pass that is taken up runs these
files again, and no batch is sent before each of them was compared (:meth:`PassChecksums.next_to_compare`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.checksum import EndChecksum
from pydp2.data.columns.checksum_log import NO_CHECKSUMS, ChecksumLog, FileChecksum, LoggedChecksums
from pydp2.data.columns.sample_set import SampleSet
from pydp2.errors import NotRepeatable
from pydp2.order.sample_source import WAIT, FileFailure
from pydp2.order.snapshot import Begin, PoolChecks
from pydp2.server.dispatch.ledger import FileEdge, FileLedger

_FIRST_FILES = 1024
_MAX_EDGES = 64

Ints = npt.NDArray[np.int64]


class PassChecksums:
    """Checksums of the files of a pass. ``saved``: of files that the merge had taken samples of since the point at
    which the pass is taken up (None: no state is made in the middle of the pass)."""

    def __init__(self, saved: LoggedChecksums | None) -> None:
        self._is_logged, saved = saved is not None, saved or NO_CHECKSUMS
        self._log, self._log_before = ChecksumLog(saved), NO_CHECKSUMS
        self._open: dict[int, FileChecksum] = {}  # of files of the cycle, to be logged unless they end before
        self._uncompared: dict[int, FileLedger] = {}  # of the merge, with samples read before
        self.ends = FileEnds()
        """Ends of the files that the merge has met."""
        self.edges = FileEdges()
        """Edges between the ranges of files that a provider can begin at."""

    # -- what the merge takes --------------------------------------------------------------------------------------
    def next_of(self, ledger: FileLedger) -> FileChecksum | None:
        """Return the checksum at the end of the run that the merge takes from now; of a file in the cache, at the end
        of the file. None: a state does not need it, it was returned before, or it is not known."""
        if not self._is_logged or not ledger.is_merged:
            return None
        if ledger.in_cache:
            index, checksum = ledger.cached_end
        elif ledger.run_edges and ledger.run_edges[0][1].crcs:
            index, (checksum, *_) = ledger.run_edges[0][1]
        else:
            return None
        if index <= ledger.logged_index:
            return None
        ledger.logged_index = index
        return FileChecksum(index, checksum, False)

    def note_taken(self, file: int, checksum: FileChecksum) -> None:
        """Note that the merge takes samples of ``file`` from before ``checksum``."""
        self._open[file] = checksum

    def note_end(self, ledger: FileLedger) -> None:
        """Note that the merge met the end of a file, or needs nothing more of it."""
        file, end = ledger.file, ledger.end_checksum
        self.ends.note(file, end)
        if not isinstance(ledger.end_error, NotRepeatable):  # else next_to_compare() returns the error
            self._uncompared.pop(file, None)
        if self._is_logged and ledger.is_merged:
            self._open.pop(file, None)
            index, checksum = end
            if index or not ledger.committed:  # else it is not known
                self._log.note(file, FileChecksum(index, checksum, True))

    # -- what a state has ------------------------------------------------------------------------------------------
    def note_snapshot(self) -> None:
        """Begin the checksums of what is merged from now on."""
        self._log_before = self.logged_checksums()
        self._log = ChecksumLog()

    def logged_checksums(self) -> LoggedChecksums:
        """Return the checksums of files that the merge took samples of since the last snapshot."""
        for file, known in self._open.items():
            self._log.note(file, known)
        self._open.clear()
        return self._log.view()

    def take_checksums_before(self) -> LoggedChecksums:
        """Return once the checksums of the time before the last snapshot, since the one before it."""
        logged, self._log_before = self._log_before, NO_CHECKSUMS
        return logged

    def pool_checks(
        self, samples: SampleSet, cached: Callable[[int], EndChecksum], ledgers: Mapping[int, FileLedger]
    ) -> PoolChecks:
        """Return what is known of the files of a pool of ``samples``, and of the files of the cycle. ``cached``:
        see :meth:`FileEnds.of`; ``ledgers``: of the files that have not ended."""
        files = samples.files
        checks, checksums = self.ends.of(files, cached)
        if not self.edges:
            return PoolChecks(checks, checksums)
        needed = dict(zip(files.tolist(), samples.first.tolist(), strict=True))
        for at in np.flatnonzero(checks).tolist():
            if (edge := self.edges.behind(int(files[at]), int(samples.last[at]))) is not None:
                checks[at], checksums[at] = edge.sample_index, edge.crcs[0]
        cycle = {file: ledger.next_index for file, ledger in ledgers.items() if ledger.bound and ledger.is_merged}
        for file, y in cycle.items():
            needed[file] = min(y, needed.get(file, y))
        return PoolChecks(checks, checksums, self.edges.begins(needed, cycle))

    # -- what is compared ------------------------------------------------------------------------------------------
    def compare_later(self, ledger: FileLedger) -> None:
        """Note that the merge takes turns with a file of which samples were read before."""
        self._uncompared[ledger.file] = ledger

    def next_to_compare(self) -> tuple[int, int] | FileFailure | None:
        """Return a file that the merge has come to, whose checksum is known and which is not compared yet, and how many
        samples are missing for that; a failure if a file is not what it was; None: there is neither."""
        for file, ledger in [*self._uncompared.items()]:
            outcome = ledger.compare()
            if isinstance(outcome, FileFailure):
                return outcome
            if outcome is WAIT:
                assert ledger.reread is not None
                return file, max(1, ledger.reread.checksum_index - ledger.committed)
            del self._uncompared[file]
        return None


class FileEdges:
    """Edges between the ranges of the files that a pool may have samples of, where an attempt can begin.

    The merge comes to the edges of a file in order. There may be one after every few samples, so a file keeps 64 at
    most: without every second one, an attempt begins a little earlier.
    """

    def __init__(self) -> None:
        self._of: dict[int, list[FileEdge]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def note(self, ledger: FileLedger) -> None:
        """Note the edges of the run of ``ledger`` that the merge takes from, the first time."""
        if not ledger.run_edges or not ledger.run_edges[0][1].can_begin:
            return
        before, behind = ledger.run_edges[0]
        if not before.sample_index:
            before = FileEdge(0, [0] * len(behind.crcs))  # the checksums of nothing
        edges = self._of.setdefault(ledger.file, [])
        for edge in (before, behind):
            if edge.can_begin and (not edges or edge.sample_index > edges[-1].sample_index):
                edges.append(edge)
        if len(edges) > _MAX_EDGES:
            del edges[1:-1:2]  # not the last: what is taken lies before it

    def behind(self, file: int, sample_index: int) -> FileEdge | None:
        """Return the first edge of ``file`` behind ``sample_index``; None if there is none."""
        edges = self._of.get(file, ())
        return next((edge for edge in edges if edge.sample_index > sample_index), None)

    def begins(self, needed: Mapping[int, int], cycle: Mapping[int, int]) -> dict[int, list[Begin]]:
        """Return where the files of ``needed``, each with the first sample that is needed of it, may begin; of files of
        the ``cycle`` also the last edge before the next sample. Forget what lies before that, and other files: nothing
        of them is needed any more."""
        found: dict[int, list[Begin]] = {}
        for file in [*self._of]:
            edges = self._of.pop(file)
            if file not in needed:
                continue
            places = {_last_until(edges, y) for y in (needed[file], cycle.get(file, needed[file]))}
            self._of[file] = edges[max(min(places), 0) :]
            begins = [edges[at] for at in sorted(places) if at >= 0]
            if begins and begins[-1].sample_index:
                found[file] = [(edge.sample_index, edge.crcs[1:]) for edge in begins]
        return found


def _last_until(edges: Sequence[FileEdge], sample_index: int) -> int:
    """Return the position of the last of ``edges`` that is not behind ``sample_index``; -1 if there is none."""
    return bisect_right(edges, sample_index, key=lambda edge: edge.sample_index) - 1


class FileEnds:
    """Ends of the files of a pass, by the number of the file: 4 bytes for each file up to the highest number, and 16
    for each that has ended."""

    def __init__(self) -> None:
        self._row_of = np.zeros(_FIRST_FILES, np.int32)  # 0: nothing was noted
        self._rows = np.zeros((_FIRST_FILES, 2), np.int64)  # end and checksum; the first one is no file's
        self._used = 1

    def note(self, file: int, end: EndChecksum) -> None:
        """Note the ``end`` of ``file``."""
        if file >= len(self._row_of):
            self._make_room(file)
        row = int(self._row_of[file])
        if not row:
            row, self._used = self._used, self._used + 1
            if row == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._row_of[file] = row
        self._rows[row] = end

    def _make_room(self, file: int) -> None:
        size = len(self._row_of)
        self._row_of = np.concatenate([self._row_of, np.zeros(max(size, file + 1 - size), np.int32)])

    def of(self, files: Ints, cached: Callable[[int], EndChecksum]) -> tuple[Ints, Ints]:
        """Return the ends of ``files`` and the checksums there; 0 for a file that has not ended. ``cached`` is asked
        for files of which nothing was noted."""
        if len(files) and files[-1] >= len(self._row_of):
            self._make_room(int(files[-1]))
        found = self._rows[self._row_of[files]]
        ends, checksums = found[:, 0].copy(), found[:, 1].copy()
        for at in np.flatnonzero(ends == 0).tolist():
            ends[at], checksums[at] = cached(int(files[at]))
        return ends, checksums
