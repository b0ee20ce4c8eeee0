"""Read a file again in part: what that means for a worker, for the cache, and for the merge that takes it up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.checksum import EndChecksum, dropped_crc, fold_crcs
from pydp2.data.columns.checksum_log import FileChecksum
from pydp2.data.columns.columns import running_crcs
from pydp2.order.sample_source import SampleRun
from pydp2.order.snapshot import UNREACHED, Reread
from pydp2.protocol.file_ranges import FileAssignment
from pydp2.server.cache.counts import StampBefore
from pydp2.server.cache.disk_messages import DiskHit
from pydp2.server.cache.file_format import DroppedSample
from pydp2.server.cache.memory import MemoryCache
from pydp2.server.dispatch.file_state import FileEvent
from pydp2.server.dispatch.ledger import FileEdge, FileLedger


def open_ledger(file: int, position: int, reread: Reread | None, until: int) -> FileLedger:
    """Return the ledger of a file that is read for what ``reread`` names (None: from its start), and not beyond
    ``until``."""
    ledger = FileLedger(file, position, reread=reread)
    if reread is not None:
        if reread.begin:
            crcs = [fold_crcs(reread.begin_crcs), *reread.begin_crcs]
            ledger.committed, ledger.crcs = ledger.begin = FileEdge(reread.begin, crcs)
        ledger.until = reread.until
        ledger.next_index = 0 if reread.start == UNREACHED else reread.start
    ledger.until = min(ledger.until, until)
    if not ledger.until:
        ledger.move(FileEvent.NOTHING_WANTED)
    return ledger


def with_checksum(reread: Reread | None, known: FileChecksum | None) -> Reread | None:
    """Return ``reread`` (None: the whole file) with the checksum that the file is ``known`` to have had when a position
    was saved."""
    if known is None:
        return reread
    if reread is None:
        reread = Reread(np.empty(0, np.int64), 0)
    if reread.start < UNREACHED and known.sample_index >= reread.checksum_index:
        reread.checksum_index = known.sample_index
        reread.crcs = [known.checksum] if known.sample_index else []
        reread.end = known.sample_index if known.is_end else UNREACHED
    return reread


def attach_frames(
    assignments: Sequence[FileAssignment], ledgers: Mapping[int, FileLedger]
) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the raw frames that go with ``assignments``, each of which learns the number of its frame."""
    frames: list[npt.NDArray[np.int64]] = []
    for assignment in assignments:
        reread = ledgers[assignment.file].reread
        if reread is not None and len(reread.sample_indices):
            frames.append(reread.sample_indices)
            assignment.reread_frame = len(frames)
    return tuple(frames)


def select_wanted(runs: Iterable[SampleRun], reread: Reread) -> Iterator[SampleRun]:
    """Return those samples of ``runs`` that ``reread`` names."""
    for run in runs:
        y = run.sample_indices[run.lo : run.hi]
        rows = np.flatnonzero((y >= reread.start) | np.isin(y, reread.sample_indices, assume_unique=True)) + run.lo
        if len(rows):
            yield run.take(rows)


def serve_from_cache(ledger: FileLedger, cache: MemoryCache[SampleRun]) -> None:
    """Serve all of ``ledger`` that is wanted from the cache: its samples use no credit. If a file that is read again is
    not what it was, or lacks a sample in the cache, a worker has to read it."""
    file = ledger.file
    _serve_runs(ledger, map(copy, cache.runs_of(file)), cache.dropped_of(file), cache.end_checksum(file))


def serve_from_disk(ledger: FileLedger, found: DiskHit) -> None:
    """Serve ``ledger`` as :func:`serve_from_cache` does, from what was found on the disk."""
    runs = [SampleRun(p.columns, 0, p.columns.rows, p.sample_indices, p.sizes, p.weights) for p in found.pieces]
    _serve_runs(ledger, runs, found.dropped, found.end)
    if ledger.in_cache:
        ledger.stamp_before = StampBefore(found.file, found.stamp)


def _serve_runs(
    ledger: FileLedger, runs: Iterable[SampleRun], dropped_samples: Iterable[DroppedSample], end: EndChecksum
) -> None:
    reread = ledger.reread
    runs, dropped_samples = [*runs], [*dropped_samples]
    if reread is not None and not _is_same(reread, runs, dropped_samples, end):
        return
    wanted = runs if reread is None or not reread.start else [*select_wanted(runs, reread)]
    if reread is not None and _count_before(wanted, reread.start) < len(reread.sample_indices):
        return
    ledger.cached_end = end
    ledger.serve(wanted, dropped_samples)


def _is_same(
    reread: Reread, runs: Sequence[SampleRun], dropped_samples: Sequence[DroppedSample], end: EndChecksum
) -> bool:
    """Return True if ``runs`` and ``dropped_samples``, all of a file, are what it was before, as far as its checksum
    is known."""
    index = reread.checksum_index
    if reread.end < UNREACHED and end[0] != reread.end:
        return False
    if not index:
        return True
    checksum = end[1] if end[0] == index else _checksum_at(index, runs, dropped_samples)
    return [checksum] == reread.crcs


def _checksum_at(index: int, runs: Sequence[SampleRun], dropped_samples: Sequence[DroppedSample]) -> int:
    """Return the checksum of a file at sample index ``index``, as a worker computes it."""
    crcs: list[int] = []
    for run in runs:
        count = int(np.searchsorted(run.sample_indices[run.lo : run.hi], index))
        columns = run.columns.slice(run.lo, run.lo + count)
        crcs = running_crcs(columns, crcs or [0] * len(columns.frames()))
    return fold_crcs([*crcs, dropped_crc((y for y, _, _ in dropped_samples if y < index), 0)])


def _count_before(runs: Iterable[SampleRun], index: int) -> int:
    return sum(int(np.count_nonzero(run.sample_indices[run.lo : run.hi] < index)) for run in runs)
