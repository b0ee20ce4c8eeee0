"""Cache whole files in memory (CACHE_PASS_IN_MEM), up to a limit.

The first files that fit are cached: in a pass larger than the limit, an LRU would evict exactly the files that the next
pass needs first. With an append-only store, samples move into the store as they are offered, and the pass that reads
them takes them from there too. So they stay in the store, even if their file is never read to its end: the next time
that the file is read, the samples that are in the store already are skipped, as long as they are equal, and the others
follow. Samples that differ then (the file has changed, or the provider draws random numbers) waste their room.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from copy import copy
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.block_list import BlockList
from pydp2.data.columns.checksum import EndChecksum
from pydp2.data.columns.columns import Ints, expand_ranges
from pydp2.data.columns.sample_set import SampleSet
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.region import ROW_OVERHEAD
from pydp2.server.cache.file_format import DroppedSample


class CacheableRun(Protocol):
    """Consecutive samples of one file: rows ``lo`` to ``hi`` of ``columns``, with their sample indices and sizes in
    bytes. For an append-only store they have weights as well."""

    columns: Any
    lo: int
    hi: int
    sample_indices: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


S = TypeVar("S", bound=CacheableRun)
_DROPPED_BYTES = 512  # bytes per dropped sample


class _PartialFile:
    """File that was not offered completely yet. ``until``: the samples before this index are here. ``confirmed``: the
    samples before this index were offered by the present reading, the others by an earlier one. ``row_ranges``: first
    row and number of rows of each part in the append-only store."""

    __slots__ = ("_part_ends", "confirmed", "dropped", "nbytes", "parts", "row_ranges", "until")

    def __init__(self) -> None:
        self.nbytes = 0
        self.parts: list[Any] = []
        self.dropped: list[DroppedSample] = []
        self.until = self.confirmed = 0
        self.row_ranges: list[tuple[int, int]] = []
        self._part_ends: list[int] = []  # index behind the last sample of each part

    def add(self, samples: Any, dropped: list[DroppedSample]) -> None:
        """Add the next samples. The run is copied, because the caller may shorten its own."""
        last, gap = _ends(samples, dropped)
        if samples is not None:
            self.parts.append(copy(samples))
            self._part_ends.append(last)
        self.dropped += dropped
        self.until = self.confirmed = max(self.until, last, gap)

    def truncate(self, end: int) -> None:
        """Forget the samples from index ``end`` on."""
        if self.until <= end:
            return
        whole = bisect_right(self._part_ends, end)
        cut, ranges = self.parts[whole : whole + 1], self.row_ranges[whole : whole + 1]
        del self.parts[whole:], self.row_ranges[whole:], self._part_ends[whole:]
        for part, (at, _) in zip(cut, ranges, strict=True):
            if count := _count_before(part, end):
                part.hi = part.lo + count
                self.parts.append(part)
                self.row_ranges.append((at, count))
                self._part_ends.append(int(part.sample_indices[part.hi - 1]) + 1)
        self.dropped = [sample for sample in self.dropped if sample[0] < end]
        self.until, self.confirmed = end, min(self.confirmed, end)

    def row_ids(self, begin: int, end: int) -> Ints:
        """Return the row ids, in the append-only store, of the samples from index ``begin`` to below ``end``."""
        found: list[Ints] = [np.empty(0, np.int64)]
        for i in range(bisect_right(self._part_ends, begin), len(self.parts)):
            part, (at, _) = self.parts[i], self.row_ranges[i]
            lo, hi = _count_before(part, begin), _count_before(part, end)
            if lo == hi:
                break
            found.append(np.arange(at + lo, at + hi))
        return np.concatenate(found)


class CachedSampleSet(NamedTuple):
    """All delivered samples in the cache: their row ids in the append-only store, in the order of file and sample
    index, and the ``samples`` themselves. ``weight``, ``nbytes``: sums over the rows. ``max_weight``: largest weight
    of a row. ``blocked``: number of the other samples."""

    row_ids: Ints
    samples: SampleSet
    weight: int
    nbytes: int
    max_weight: int
    blocked: int


class MemoryCache(Generic[S]):
    """Cache of files by number. It has only complete files, and all their samples. Those of ``block_list`` are not
    delivered."""

    def __init__(
        self, limit: int, row_store: AppendOnlyStore | None = None, block_list: BlockList | None = None
    ) -> None:
        self.limit = limit
        self.row_store = row_store
        self.block_list = block_list or BlockList()
        self.has_dropped = False
        """True if a file in the cache has dropped samples."""
        self.bytes = 0
        self.full = False
        """True once a file did not fit; from then on nothing is added."""
        self._files: dict[int, tuple[list[S], list[DroppedSample]]] = {}
        self._ends: dict[int, EndChecksum] = {}
        self._partial: dict[int, _PartialFile] = {}
        self.rejected: dict[int, tuple[list[S], list[DroppedSample]]] = {}
        """Files that were not complete when the cache became full, for a caller that stores them elsewhere."""
        # First row and number of rows of each part of each file in the append-only store.
        self._row_ranges: dict[int, list[tuple[int, int]]] = {}
        self._sample_set: CachedSampleSet | None = None

    def __len__(self) -> int:
        return len(self._files)

    def has(self, file: int) -> bool:
        """Return True if ``file`` is in the cache."""
        return file in self._files

    def runs_of(self, file: int) -> list[S]:
        """Return all samples of ``file``, as they were offered."""
        return self._files[file][0]

    def dropped_of(self, file: int) -> list[DroppedSample]:
        """Return the dropped samples of ``file``."""
        return self._files[file][1]

    def end_checksum(self, file: int) -> EndChecksum:
        """Return the end checksum of ``file``; (0, 0) if it is not in the cache."""
        return self._ends.get(file, (0, 0))

    def offer(self, file: int, samples: S | None, dropped: Sequence[Sequence[Any]] = ()) -> None:
        """Cache the next samples of ``file``, and the dropped ones, if there is room. They must not change afterwards.

        With an append-only store, ``samples`` is in the store afterwards; samples that are there already, from an
        earlier reading of the file, are not added again.
        """
        if self.full or file in self._files:
            return
        partial = self._partial.setdefault(file, _PartialFile())
        gaps: list[DroppedSample] = [(y, slot, reason) for y, slot, reason in dropped]
        new_samples = samples
        if partial.until > partial.confirmed and self.row_store is not None:
            new_samples, gaps = _pass_over_known(partial, samples, gaps, self.row_store)
            if new_samples is None and not gaps:
                return
        size = _DROPPED_BYTES * len(gaps)
        if new_samples is not None:
            size += int(new_samples.sizes[new_samples.lo : new_samples.hi].sum()) + ROW_OVERHEAD * (
                new_samples.hi - new_samples.lo
            )
        if self.bytes + size > self.limit:
            self._become_full(file, new_samples, gaps)
            return
        if self.row_store is not None and new_samples is not None:
            partial.row_ranges.append(_move_to_store(new_samples, self.row_store))
        partial.add(new_samples, gaps)
        partial.nbytes += size
        self.bytes += size

    def _become_full(self, file: int, samples: S | None, dropped: list[DroppedSample]) -> None:
        """Note that the next samples of ``file`` do not fit. Reject all files that are not complete: :attr:`rejected`
        gets the samples that their present reading has offered."""
        self.full = True
        for partial in self._partial.values():
            partial.truncate(partial.confirmed)
        self._partial[file].add(samples, dropped)
        if self.row_store is None:  # rows in an append-only store stay there
            self.bytes -= sum(partial.nbytes for partial in self._partial.values())
        self.rejected = {file: (partial.parts, partial.dropped) for file, partial in self._partial.items()}
        self._partial.clear()

    def finish_file(self, file: int, end: EndChecksum = (0, 0)) -> None:
        """Finish ``file``, which was offered completely, with its end checksum. Samples of an earlier reading behind
        its end are forgotten."""
        if self.full or file in self._files:
            return
        partial = self._partial.pop(file, _PartialFile())
        partial.truncate(partial.confirmed)
        self._files[file] = partial.parts, partial.dropped
        self._ends[file] = end
        self.has_dropped = self.has_dropped or bool(partial.dropped)
        if self.row_store is not None:
            self._row_ranges[file] = partial.row_ranges
            self._sample_set = None

    def sample_set(self) -> CachedSampleSet:
        """Return all samples in the cache that are delivered. This needs an append-only store, and no file with dropped
        samples."""
        if self._sample_set is None:
            files = sorted(self._row_ranges)
            ranges = [row_range for file in files for row_range in self._row_ranges[file]]
            first, count = np.array(ranges, np.int64).reshape(-1, 2).T
            counts = np.array([sum(count for _, count in self._row_ranges[file]) for file in files], np.int64)
            sample_indices = expand_ranges(np.zeros(len(files), np.int64), counts)
            row_ids, numbers = expand_ranges(first, count), np.repeat(np.array(files, np.int64), counts)
            if self.block_list:
                keep = np.ones(len(row_ids), np.bool_)
                for file, begin, rows in zip(
                    files, (np.cumsum(counts) - counts).tolist(), counts.tolist(), strict=True
                ):
                    if (blocked := self.block_list.of(file)) is not None:
                        keep[begin + blocked[blocked < rows]] = False
                row_ids, numbers, sample_indices = row_ids[keep], numbers[keep], sample_indices[keep]
            blocked_count = int(count.sum()) - len(row_ids)
            assert self.row_store is not None
            weights = self.row_store.weights[row_ids]
            self._sample_set = CachedSampleSet(
                row_ids,
                SampleSet.of(numbers, sample_indices),
                int(weights.sum()),
                int(self.row_store.sizes[row_ids].sum()),
                int(weights.max(initial=0)),
                blocked_count,
            )
        return self._sample_set

    def discard(self, file: int) -> None:
        """Note that the present reading of ``file`` will not be complete. Its samples in an append-only store stay
        there for the next reading."""
        if (partial := self._partial.get(file)) is not None:
            partial.confirmed = 0
            if self.row_store is None:
                self.bytes -= partial.nbytes
                del self._partial[file]


def _ends(samples: Any, dropped: list[DroppedSample]) -> tuple[int, int]:
    """Return the sample indices behind the last of ``samples`` and behind the last of ``dropped``, 0 for none."""
    last = 0 if samples is None else int(samples.sample_indices[samples.hi - 1]) + 1
    return last, dropped[-1][0] + 1 if dropped else 0


def _count_before(run: Any, index: int) -> int:
    """Return the number of samples of ``run`` before sample index ``index``."""
    return int(np.searchsorted(run.sample_indices[run.lo : run.hi], index))


def _split(run: Any, index: int) -> tuple[Any, Any]:
    """Return two runs: the samples of ``run`` before sample index ``index``, and the others; None for an empty one."""
    count = 0 if run is None else _count_before(run, index)
    if not count:
        return None, run
    before, rest = copy(run), copy(run)
    before.hi = rest.lo = run.lo + count
    return before, rest if rest.lo < rest.hi else None


def _pass_over_known(
    partial: _PartialFile, samples: Any, dropped: list[DroppedSample], row_store: AppendOnlyStore
) -> tuple[Any, list[DroppedSample]]:
    """Return those of ``samples`` and ``dropped``, the next ones of a file, that are not in ``row_store`` from an
    earlier reading. If they differ from that reading, forget all of its samples from here on."""
    begin, until = partial.confirmed, partial.until
    end = min(until, max(begin, *_ends(samples, dropped)))
    gaps = [sample for sample in dropped if sample[0] < until]
    known, rest = _split(samples, until)
    known_gaps = [sample for sample in partial.dropped if begin <= sample[0] < end]
    if gaps == known_gaps and _is_same(known, partial.row_ids(begin, end), row_store):
        partial.confirmed = end
        return rest, dropped[len(gaps) :]
    partial.truncate(begin)
    return samples, dropped


def _is_same(run: Any, row_ids: Ints, row_store: AppendOnlyStore) -> bool:
    """Return True if the samples of ``run`` (None: no samples) are those at ``row_ids``, bit by bit."""
    lo, hi = (0, 0) if run is None else (run.lo, run.hi)
    if hi - lo != len(row_ids):
        return False
    if lo == hi:
        return True
    weights = 1 if run.weights is None else run.weights[lo:hi]
    return (
        np.array_equal(run.sample_indices[lo:hi], row_store.sample_indices[row_ids])
        and np.array_equal(run.sizes[lo:hi], row_store.sizes[row_ids])
        and bool((row_store.weights[row_ids] == weights).all())
        and [*map(np.ndarray.tobytes, run.columns.slice(lo, hi).frames())]
        == [*map(np.ndarray.tobytes, row_store.take(row_ids).frames())]
    )


def _move_to_store(part: Any, row_store: AppendOnlyStore) -> tuple[int, int]:
    """Move the rows of ``part`` into ``row_store``; its columns are views of the store afterwards. Return the first row
    id and the number of rows."""
    lo, hi, weights = part.lo, part.hi, part.weights
    weights = None if weights is None else weights[lo:hi]
    at, part.columns = row_store.add(part.columns.slice(lo, hi), part.sample_indices[lo:hi], part.sizes[lo:hi], weights)
    part.lo, part.hi = 0, hi - lo
    part.sample_indices, part.sizes = (
        row_store.sample_indices[at : row_store.row_count],
        row_store.sizes[at : row_store.row_count],
    )
    part.weights = None if weights is None else row_store.weights[at : row_store.row_count]
    return at, hi - lo
