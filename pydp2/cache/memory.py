"""Cache whole files in memory (CACHE_PASS_IN_MEM), up to a limit.

The first files that fit are kept: in a pass larger than the limit, an LRU would push out exactly what the next pass
wants first. A file that is whole moves to the append-only store, where there is one: samples that lie there can be
gathered by their numbers, from all files together. The offered samples are from then on views of what lies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pydp2.cache.file_format import DroppedSample
from pydp2.columns.columns import Ints, expand_ranges
from pydp2.columns.sample_set import encode_set
from pydp2.rowstore.append_only import AppendOnlyStore
from pydp2.rowstore.region_layout import ROW_OVERHEAD


class CacheableRun(Protocol):
    """Consecutive samples of one file: rows ``lo`` to ``hi`` of ``columns``, with their sizes in bytes. For an
    append-only store they have sample indices and weights as well."""

    columns: Any
    lo: int
    hi: int
    sizes: npt.NDArray[np.int64]


S = TypeVar("S", bound=CacheableRun)
_DROPPED_BYTES = 512  # bytes per dropped sample


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
        self._partial: dict[int, tuple[int, list[S], list[DroppedSample]]] = {}
        self.rejected: dict[int, tuple[list[S], list[DroppedSample]]] = {}
        """Files that were not whole when the cache was found to be full, for a caller that keeps them elsewhere."""
        # First row and number of rows of each file in the append-only store.
        self._row_ranges: dict[int, tuple[int, int]] = {}
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
        """Keep the next samples of ``file``, and the dropped ones, if there is room. They must
        not change afterwards."""
        if self.full or file in self._files:
            return
        size = _DROPPED_BYTES * len(dropped)
        if samples is not None:
            size += int(samples.sizes[samples.lo : samples.hi].sum()) + ROW_OVERHEAD * (samples.hi - samples.lo)
        held, parts, gaps = self._partial.setdefault(file, (0, [], []))
        if samples is not None:
            parts.append(samples)
        gaps.extend((y, slot, reason) for y, slot, reason in dropped)
        if self.bytes + size > self.limit:
            self.full = True
            self.bytes -= sum(size for size, _, _ in self._partial.values())
            self.rejected = {file: (parts, gaps) for file, (_, parts, gaps) in self._partial.items()}
            self._partial.clear()
            return
        self._partial[file] = (held + size, parts, gaps)
        self.bytes += size

    def finish_file(self, file: int) -> None:
        """Finish ``file``, which ended and was offered whole."""
        if self.full or file in self._files:
            return
        _, parts, gaps = self._partial.pop(file, (0, [], []))
        self._files[file] = parts, gaps
        self.has_dropped = self.has_dropped or bool(gaps)
        if self.row_store is not None:
            self._row_ranges[file] = self.row_store.row_count, sum(part.hi - part.lo for part in parts)
            self._sample_set = None
            for part in parts:
                _move_to_store(part, self.row_store)

    def sample_set(self) -> CachedSampleSet:
        """Return all samples that are there. This needs an append-only store, and no file with dropped samples."""
        if self._sample_set is None:
            files = np.array(sorted(self._row_ranges), np.int64)
            where = np.array([self._row_ranges[file] for file in files.tolist()], np.int64).reshape(-1, 2)
            first, count = where[:, 0], where[:, 1]
            sample_indices = expand_ranges(np.zeros(len(files), np.int64), count)
            self._sample_set = CachedSampleSet(
                expand_ranges(first, count), encode_set(np.repeat(files, count), sample_indices)
            )
        return self._sample_set

    def discard(self, file: int) -> None:
        """Forget the samples of ``file``, which will not be complete."""
        self.bytes -= self._partial.pop(file, (0, [], []))[0]


def _move_to_store(part: Any, row_store: AppendOnlyStore) -> None:
    """Move the rows of ``part`` into ``row_store``; its columns are views of that afterwards."""
    lo, hi, weights = part.lo, part.hi, part.weights
    weights = None if weights is None else weights[lo:hi]
    at, part.columns = row_store.append(
        part.columns.slice(lo, hi), part.sample_indices[lo:hi], part.sizes[lo:hi], weights
    )
    part.lo, part.hi = 0, hi - lo
    part.sample_indices, part.sizes = (
        row_store.sample_indices[at : row_store.row_count],
        row_store.sizes[at : row_store.row_count],
    )
    part.weights = None if weights is None else row_store.weights[at : row_store.row_count]
