"""What a file that is read again in part means for a worker, for the cache, and for the merge that takes it up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pydp2.cache.disk_messages import DiskHit
from pydp2.cache.memory import MemoryCache
from pydp2.order.sample_source import END, SampleRun
from pydp2.order.snapshot import UNREACHED, Reread
from pydp2.protocol.file_ranges import FileAssignment
from pydp2.server.dispatch.ledger import DroppedSample, FileLedger


def reread_terms(recall: Reread | None) -> dict[str, int]:
    if recall is None:
        return {}
    send_from = recall.start if recall.start < UNREACHED else recall.until
    return {
        "send_from": send_from,
        "check_at": recall.checksum_index,
        "check_crc": recall.crcs[0] if recall.crcs else 0,
    }


def open_ledger(file: int, position: int, recall: Reread | None, until: int) -> FileLedger:
    """A file that is read for what ``recall`` names (None: from its start), and not beyond ``until``."""
    ledger = FileLedger(file, position, reread=recall)
    if recall is not None:
        ledger.until = recall.until
        ledger.next_index = 0 if recall.start == UNREACHED else recall.start
    ledger.until = min(ledger.until, until)
    if not ledger.until:
        ledger.tail = END
    return ledger


def attach_frames(
    assignments: Sequence[FileAssignment], ledgers: Mapping[int, FileLedger]
) -> tuple[npt.NDArray[np.int64], ...]:
    """The raw frames that go with ``assignments``, which learn the number of theirs."""
    frames: list[npt.NDArray[np.int64]] = []
    for assignment in assignments:
        recall = ledgers[assignment.file].reread
        if recall is not None and len(recall.sample_indices):
            frames.append(recall.sample_indices)
            assignment.reread_frame = len(frames)
    return tuple(frames)


def select_wanted(runs: Iterable[SampleRun], recall: Reread) -> Iterator[SampleRun]:
    """Those samples of ``runs`` that ``recall`` names."""
    for run in runs:
        y = run.sample_indices[run.lo : run.hi]
        rows = np.flatnonzero((y >= recall.start) | np.isin(y, recall.sample_indices, assume_unique=True)) + run.lo
        if len(rows):
            weights = None if run.weights is None else run.weights[rows]
            yield SampleRun(run.columns.take(rows), 0, len(rows), run.sample_indices[rows], run.sizes[rows], weights)


def serve_from_cache(ledger: FileLedger, cache: MemoryCache[SampleRun]) -> None:
    """All of ``ledger`` that is wanted comes from the cache: its samples use no credit."""
    _serve_runs(ledger, map(copy_run, cache.runs_of(ledger.file)), cache.dropped_of(ledger.file))


def serve_from_disk(ledger: FileLedger, found: DiskHit) -> None:
    """As :func:`serve_from_cache`, of what was found on the disk."""
    runs = [SampleRun(p.columns, 0, p.columns.rows, p.sample_indices, p.sizes, p.weights) for p in found.pieces]
    _serve_runs(ledger, runs, found.dropped)


def _serve_runs(ledger: FileLedger, runs: Iterable[SampleRun], dropped_samples: Iterable[DroppedSample]) -> None:
    recall = ledger.reread
    ledger.runs.extend(runs if recall is None else select_wanted(runs, recall))
    start = 0 if recall is None else recall.start
    ledger.dropped.extend(dropped_sample for dropped_sample in dropped_samples if dropped_sample[0] >= start)
    ledger.tail = END
    ledger.in_cache = True


def copy_run(run: SampleRun) -> SampleRun:
    """The same samples, to be taken anew: the merge shortens the run that it takes from."""
    return SampleRun(run.columns, run.lo, run.hi, run.sample_indices, run.sizes, run.weights)
