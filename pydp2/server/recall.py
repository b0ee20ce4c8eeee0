"""What a file that is read again in part means for a worker, for the cache, and for the merge that takes it up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pydp2.cache.memory import PassCache
from pydp2.cache.terms import Found
from pydp2.order.saved import NEVER, Recall
from pydp2.order.source import END, Run
from pydp2.protocol.ranges import Assignment
from pydp2.server.ledger import Entry, Hole


def terms(recall: Recall | None) -> dict[str, int]:
    if recall is None:
        return {}
    send_from = recall.start if recall.start < NEVER else recall.until
    return {"send_from": send_from, "check": recall.check, "crc": recall.crcs[0] if recall.crcs else 0}


def entered(file: int, position: int, recall: Recall | None, until: int) -> Entry:
    """A file that is read for what ``recall`` names (None: from its start), and not beyond ``until``."""
    entry = Entry(file, position, recall=recall)
    if recall is not None:
        entry.until = recall.until
        entry.y = 0 if recall.start == NEVER else recall.start
    entry.until = min(entry.until, until)
    if not entry.until:
        entry.tail = END
    return entry


def attach(assignments: Sequence[Assignment], entries: Mapping[int, Entry]) -> tuple[npt.NDArray[np.int64], ...]:
    """The raw frames that go with ``assignments``, which learn the number of theirs."""
    frames: list[npt.NDArray[np.int64]] = []
    for assignment in assignments:
        recall = entries[assignment.file].recall
        if recall is not None and len(recall.ordinals):
            frames.append(recall.ordinals)
            assignment.frame = len(frames)
    return tuple(frames)


def asked(runs: Iterable[Run], recall: Recall) -> Iterator[Run]:
    """Those samples of ``runs`` that ``recall`` names."""
    for run in runs:
        y = run.ordinals[run.lo : run.hi]
        rows = np.flatnonzero((y >= recall.start) | np.isin(y, recall.ordinals, assume_unique=True)) + run.lo
        if len(rows):
            weights = None if run.weights is None else run.weights[rows]
            yield Run(run.columns.take(rows), 0, len(rows), run.ordinals[rows], run.sizes[rows], weights)


def from_cache(entry: Entry, cache: PassCache[Run]) -> None:
    """All of ``entry`` that is wanted comes from the cache: its samples use no credit."""
    _from(entry, map(fresh, cache.runs(entry.file)), cache.holes(entry.file))


def from_disk(entry: Entry, found: Found) -> None:
    """As :func:`from_cache`, of what was found on the disk."""
    runs = [Run(p.columns, 0, p.columns.rows, p.ordinals, p.sizes, p.weights) for p in found.pieces]
    _from(entry, runs, found.holes)


def _from(entry: Entry, runs: Iterable[Run], holes: Iterable[Hole]) -> None:
    recall = entry.recall
    entry.runs.extend(runs if recall is None else asked(runs, recall))
    start = 0 if recall is None else recall.start
    entry.holes.extend(hole for hole in holes if hole[0] >= start)
    entry.tail = END
    entry.cached = True


def fresh(run: Run) -> Run:
    """The same samples, to be taken anew: the merge shortens the run that it takes from."""
    return Run(run.columns, run.lo, run.hi, run.ordinals, run.sizes, run.weights)
