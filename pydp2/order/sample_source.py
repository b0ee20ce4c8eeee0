"""Define what the merge reads from: files whose samples become known bit by bit.

A source answers one question, "what is next in this file?", with a run of samples that are there, the end, a failure,
or "not there yet". Dropped samples never show here: a source steps over them. They are passed when the sample behind
them is taken, or when the merge looks for what is behind them: so their number does not depend on timing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.sample_set import SampleSet
from pydp2.errors import Error
from pydp2.order.snapshot import FilePosition, PoolChecks, Reread


class SourceState(Enum):
    """Reason why a file has no samples to take."""

    END = "end"
    WAIT = "wait"


END = SourceState.END
WAIT = SourceState.WAIT


@dataclass(frozen=True, slots=True)
class FileFailure:
    """File ``file`` goes no further and the pass with it: the error that the user's code raised, or why
    the file was given up. ``sample``: sample index at which it stops, None: not known."""

    error: Error
    file: int
    sample: int | None = None


class ChunkSpan:
    """Samples that lie together, rows ``first`` to ``end`` of their chunk, and what is the same for all runs of them.

    ``largest``: the bytes of the largest; ``byte_offsets``: of the first none, one, two … of them; ``pool_ids``: under
    which the pool has them, once its store does.
    """

    __slots__ = ("byte_offsets", "end", "first", "largest", "pool_ids")

    def __init__(self, first: int, end: int, sizes: npt.NDArray[np.int64]) -> None:
        self.first, self.end = first, end
        self.largest = int(sizes.max(initial=0))
        self.byte_offsets = np.zeros(len(sizes) + 1, np.int64)
        sizes.cumsum(out=self.byte_offsets[1:])
        self.pool_ids: npt.NDArray[np.int64] | None = None


UNSEEN = ChunkSpan(0, 0, np.empty(0, np.int64))
"""Span of a run that the merge has not looked at."""


@dataclass(slots=True)
class SampleRun:
    """Consecutive accepted samples ``lo`` to ``hi`` of a chunk that are there to be taken.

    ``sample_indices``, ``sizes`` (bytes) and ``weights`` (None: all 1) are int64, one entry per row of the chunk;
    ``columns`` is what the pool's store takes rows from (``pydp2.data.rowstore.base.UnstoredRows``). Turns are short,
    so what costs the same for few samples as for many is done once for all that lie together: ``span`` has it, from
    the first :meth:`view` on.
    """

    columns: Any
    lo: int
    hi: int
    sample_indices: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64] | None
    span: ChunkSpan = UNSEEN

    def __copy__(self) -> SampleRun:
        """Return the same samples as a run of its own, of which no pool has any rows."""
        return SampleRun(self.columns, self.lo, self.hi, self.sample_indices, self.sizes, self.weights)

    def view(self) -> SampleRun:
        """Return the same samples as a run that the caller may shorten to what is taken of it."""
        if self.span is UNSEEN:
            self.span = ChunkSpan(self.lo, self.hi, self.sizes[self.lo : self.hi])
        return SampleRun(self.columns, self.lo, self.hi, self.sample_indices, self.sizes, self.weights, self.span)

    def take(self, rows: npt.NDArray[np.int64]) -> SampleRun:
        """Return the samples in ``rows`` of the chunk as a run of its own. They are those of this run no more, if they
        are released."""
        weights = None if self.weights is None else self.weights[rows]
        return SampleRun(self.columns.take(rows), 0, len(rows), self.sample_indices[rows], self.sizes[rows], weights)

    def release(self) -> None:
        """Give back the memory of the samples: no pool takes them any more. What a pool has is its own."""
        if self.columns is not None and self.span.pool_ids is None:
            self.columns.slice(self.lo, self.hi).release()

    def nbytes(self, count: int) -> int:
        """Return the bytes of the first ``count`` samples, which the merge has looked at."""
        offsets, at = self.span.byte_offsets, self.lo - self.span.first
        return offsets.item(at + count) - offsets.item(at)


class SampleSource(Protocol):
    """Source of the samples of files, by the files' numbers in the list."""

    def next_run(self, file: int) -> SampleRun | FileFailure | SourceState:
        """Return what is next in ``file``. Another call without :meth:`consume` returns the same or a longer run."""
        ...

    def plain_run(self, file: int) -> SampleRun | None:
        """Return what :meth:`next_run` does if these are samples of weight 1 with no dropped one before or among them,
        so that any part of them can be consumed without another look. None: look first."""
        ...

    def consume(self, file: int, count: int) -> None:
        """Note that the first ``count`` samples of the run at the front now belong to the pool."""
        ...

    @property
    def merged_counts(self) -> tuple[int, int]:
        """Number of samples and number of dropped samples that the merge has passed in this pass."""
        ...

    def label(self, file: int) -> str:
        """Return the name of ``file`` in error messages."""
        ...

    def open_file(self, file: int, reread: Reread | None = None) -> None:
        """Add ``file`` to the files of the cycle, or have it read again for what ``reread`` names."""
        ...

    def position(self, file: int) -> FilePosition:
        """Return where the merge stands in ``file``."""
        ...

    def compare(self, file: int) -> FileFailure | SourceState:
        """Return END if ``file``, which is read again, is known to be the file that it was, a failure if it is another
        one, WAIT as long as that is not known. A comparison for which there is no memory is left to a later moment of
        the pass."""
        ...

    def close_file(self, file: int) -> None:
        """Close ``file``, whose end the merge has met: nothing of it is asked for again."""
        ...

    def pool_checks(self, samples: SampleSet) -> PoolChecks:
        """Return what is known of the files of a pool of ``samples``: where they have a checksum."""
        ...

    def note_snapshot(self) -> None:
        """Note that a snapshot was taken: it has the checksums of all that was merged before."""
        ...
