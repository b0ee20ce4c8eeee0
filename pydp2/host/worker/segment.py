"""Split what a chunk holds of one file into pieces that fit into the chunk's header."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pydp2.errors import Error
from pydp2.host.worker.task import FileTask
from pydp2.protocol.file_ranges import FILE_OPEN, dropped_bytes
from pydp2.protocol.messages import HEADER_LIMIT

MAX_BLOCKED = 256
"""Number of waiting files that one chunk tells of at most."""
MAX_RANGES_BYTES = HEADER_LIMIT - 48 * MAX_BLOCKED
"""Number of bytes of a header that are left for parts. Bad values are found when a chunk is cut, by thousands at worst:
then it takes several chunks. An error takes half of it at most."""
_MAX_DROPPED_BYTES = MAX_RANGES_BYTES // 3


@dataclass(slots=True)
class TaskSegment:
    """Sample indices ``first_index`` to ``first_index + count`` of one task, ``rows`` of them packed."""

    task: FileTask
    first_index: int
    count: int = 0
    rows: int = 0
    dropped: list[tuple[int, str, str]] = field(default_factory=list)
    state: int = FILE_OPEN
    error: Error | None = None

    def sample_indices(self) -> npt.NDArray[np.int64]:
        """Return the sample indices of its packed rows."""
        y = np.arange(self.first_index, self.first_index + self.count, dtype=np.int64)
        if self.dropped:
            y = np.delete(y, [dropped_sample - self.first_index for dropped_sample, _, _ in self.dropped])
        return y

    def split_to_fit(self) -> Iterator[TaskSegment]:
        """Yield the same sample indices in segments that each fit into a header."""
        first, dropped_samples, size = self.first_index, list[tuple[int, str, str]](), 0
        for y, slot, reason in self.dropped:
            size += dropped_bytes(slot, reason)
            if size > _MAX_DROPPED_BYTES:
                yield TaskSegment(self.task, first, y - first, y - first - len(dropped_samples), dropped_samples)
                first, dropped_samples, size = y, [], dropped_bytes(slot, reason)
            dropped_samples.append((y, slot, reason))
        count = self.first_index + self.count - first
        yield TaskSegment(
            self.task, first, count, count - len(dropped_samples), dropped_samples, self.state, self.error
        )
