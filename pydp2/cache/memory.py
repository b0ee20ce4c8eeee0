"""Cache whole files in memory (CACHE_PASS_IN_MEM), up to a limit.

The first files that fit are kept: in a pass larger than the limit, an LRU would push out exactly what the next pass
wants first. Where there is an append-only store, samples move there as they are offered, and the pass that reads them
takes them from there too. So they stay there, also if their file does not become whole: the next time that it is read,
the samples that are there already are passed over, and the rest of it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pydp2.cache.file_format import DroppedSample
from pydp2.columns.columns import Ints, expand_ranges
from pydp2.columns.sample_set import encode_set
from pydp2.rowstore.append_only import AppendOnlyStore
from pydp2.rowstore.region_layout import ROW_OVERHEAD


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
    """File of which not all was offered yet. ``until``: the samples before this index are here. ``row_ranges``: first
    row and number of rows of each part in the append-only store."""

    __slots__ = ("dropped", "nbytes", "parts", "row_ranges", "until")

    def __init__(self) -> None:
        self.nbytes = 0
        self.parts: list[Any] = []
        self.dropped: list[DroppedSample] = []
        self.until = 0
        self.row_ranges: list[tuple[int, int]] = []

    def add(self, samples: Any, dropped: list[DroppedSample]) -> None:
        """Add what comes next. Who offered ``samples`` may shorten its own run."""
        if samples is not None:
            self.parts.append(copy(samples))
        self.dropped += dropped


class CachedSampleSet(NamedTuple):
    """All samples that are there: the rows of the append-only store in the order of names, and the names as a set."""

    row_ids: Ints
    encoded: bytes


class MemoryCache(Generic[S]):
    """Cache of files by number. A file is in the cache once all of it is: never a part of one."""

    def __init__(self, limit: int, row_store: AppendOnlyStore | None = None) -> None:
        self.limit = limit
        self.row_store = row_store
        self.has_dropped = False
        """True if a file in the cache has dropped samples."""
        self.bytes = 0
        self.full = False
        """True if a file did not fit; from then on nothing is added."""
        self._files: dict[int, tuple[list[S], list[DroppedSample]]] = {}
        self._partial: dict[int, _PartialFile] = {}
        self.rejected: dict[int, tuple[list[S], list[DroppedSample]]] = {}
        """Files that were not whole when the cache was found to be full, for a caller that keeps them elsewhere."""
        # First row and number of rows of each part of each file in the append-only store.
        self._row_ranges: dict[int, list[tuple[int, int]]] = {}
        self._sample_set: CachedSampleSet | None = None

    def __len__(self) -> int:
        return len(self._files)

    def has(self, file: int) -> bool:
        """Return True if all of ``file`` is here."""
        return file in self._files

    def runs_of(self, file: int) -> list[S]:
        """Return all samples of ``file``, as they were offered."""
        return self._files[file][0]

    def dropped_of(self, file: int) -> list[DroppedSample]:
        """Return the dropped samples of ``file``."""
        return self._files[file][1]

    def offer(self, file: int, samples: S | None, dropped: Sequence[Sequence[Any]] = ()) -> None:
        """Keep the next samples of ``file``, and the dropped ones, if there is room. They must not change afterwards.

        With an append-only store ``samples`` lies there afterwards; if some of them are there already from another time
        when the file was read, only the others do.
        """
        if self.full or file in self._files:
            return
        partial = self._partial.setdefault(file, _PartialFile())
        gaps: list[DroppedSample] = [(y, slot, reason) for y, slot, reason in dropped if y >= partial.until]
        kept = None if samples is None else self._without_known(samples, partial.until)
        size = _DROPPED_BYTES * len(gaps)
        if kept is not None:
            size += int(kept.sizes[kept.lo : kept.hi].sum()) + ROW_OVERHEAD * (kept.hi - kept.lo)
        if self.bytes + size > self.limit:
            self._become_full(file, kept, gaps)
            return
        if self.row_store is not None:
            if kept is not None:
                partial.row_ranges.append(_move_to_store(kept, self.row_store))
            partial.until = max(partial.until, *_ends(kept, gaps))
        partial.add(kept, gaps)
        partial.nbytes += size
        self.bytes += size

    @staticmethod
    def _without_known(samples: S, until: int) -> S | None:
        """Return ``samples`` without those before sample index ``until``; None: there are no others."""
        if not until or int(samples.sample_indices[samples.lo]) >= until:
            return samples
        known = int(np.searchsorted(samples.sample_indices[samples.lo : samples.hi], until))
        if known == samples.hi - samples.lo:
            return None
        rest = copy(samples)
        rest.lo += known
        return rest

    def _become_full(self, file: int, samples: S | None, dropped: list[DroppedSample]) -> None:
        """Note that the next samples of ``file`` do not fit, and reject all files that are not whole."""
        self.full = True
        self._partial[file].add(samples, dropped)
        if self.row_store is None:  # else what lies there stays there
            self.bytes -= sum(partial.nbytes for partial in self._partial.values())
        self.rejected = {file: (partial.parts, partial.dropped) for file, partial in self._partial.items()}
        self._partial.clear()

    def finish_file(self, file: int, end: int | None = None) -> None:
        """Finish ``file``, which was offered whole and ended at sample index ``end`` (None: behind what was offered).
        If it had more samples when it was read before, it does not come into the cache."""
        if self.full or file in self._files:
            return
        partial = self._partial.pop(file, _PartialFile())
        if end is not None and partial.until > end:
            return
        self._files[file] = partial.parts, partial.dropped
        self.has_dropped = self.has_dropped or bool(partial.dropped)
        if self.row_store is not None:
            self._row_ranges[file] = partial.row_ranges
            self._sample_set = None

    def sample_set(self) -> CachedSampleSet:
        """Return all samples that are there. This needs an append-only store, and no file with dropped samples."""
        if self._sample_set is None:
            files = sorted(self._row_ranges)
            ranges = [each for file in files for each in self._row_ranges[file]]
            first, count = np.array(ranges, np.int64).reshape(-1, 2).T
            counts = np.array([sum(count for _, count in self._row_ranges[file]) for file in files], np.int64)
            sample_indices = expand_ranges(np.zeros(len(files), np.int64), counts)
            self._sample_set = CachedSampleSet(
                expand_ranges(first, count), encode_set(np.repeat(np.array(files, np.int64), counts), sample_indices)
            )
        return self._sample_set

    def discard(self, file: int) -> None:
        """Note that ``file`` will not be complete. What lies in an append-only store waits there for the rest of it."""
        if self.row_store is None and (partial := self._partial.pop(file, None)) is not None:
            self.bytes -= partial.nbytes


def _ends(samples: Any, dropped: list[DroppedSample]) -> tuple[int, int]:
    """Return the sample indices behind the last of ``samples`` and of ``dropped``, 0 where there are none."""
    last = 0 if samples is None else int(samples.sample_indices[samples.hi - 1]) + 1
    return last, dropped[-1][0] + 1 if dropped else 0


def _move_to_store(part: Any, row_store: AppendOnlyStore) -> tuple[int, int]:
    """Move the rows of ``part`` into ``row_store``; its columns are views of that afterwards. Return the first row and
    the number of rows."""
    lo, hi, weights = part.lo, part.hi, part.weights
    weights = None if weights is None else weights[lo:hi]
    at, part.columns = row_store.append(
        part.columns.slice(lo, hi), part.sample_indices[lo:hi], part.sizes[lo:hi], weights
    )
    part.lo, part.hi, part.span = 0, hi - lo, None
    part.sample_indices, part.sizes = (
        row_store.sample_indices[at : row_store.row_count],
        row_store.sizes[at : row_store.row_count],
    )
    part.weights = None if weights is None else row_store.weights[at : row_store.row_count]
    return at, hi - lo
