"""What of one file goes into a chunk, in pieces that fit into its header."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pydp2.errors import Error
from pydp2.protocol.messages import HEADER_LIMIT
from pydp2.protocol.ranges import OPEN, hole_bytes
from pydp2.worker.task import Task

MAX_BLOCKED = 256
"""Files that wait, told of in one chunk."""
ROOM = HEADER_LIMIT - 48 * MAX_BLOCKED
"""What is left of a header for parts. Bad values are found when a chunk is cut, by thousands at worst: then it takes
several chunks. An error is half of it at most."""
_HOLES = ROOM // 3


@dataclass(slots=True)
class Segment:
    """Ordinals ``first`` to ``first + count`` of one task, ``rows`` of them packed."""

    task: Task
    first: int
    count: int = 0
    rows: int = 0
    holes: list[tuple[int, str, str]] = field(default_factory=list)
    state: int = OPEN
    error: Error | None = None

    def ordinals(self) -> npt.NDArray[np.int64]:
        """The ordinals of its packed rows."""
        y = np.arange(self.first, self.first + self.count, dtype=np.int64)
        if self.holes:
            y = np.delete(y, [hole - self.first for hole, _, _ in self.holes])
        return y

    def pieces(self) -> Iterator[Segment]:
        """The same ordinals in segments that each fit into a header."""
        first, holes, size = self.first, list[tuple[int, str, str]](), 0
        for y, slot, reason in self.holes:
            size += hole_bytes(slot, reason)
            if size > _HOLES:
                yield Segment(self.task, first, y - first, y - first - len(holes), holes)
                first, holes, size = y, [], hole_bytes(slot, reason)
            holes.append((y, slot, reason))
        count = self.first + self.count - first
        yield Segment(self.task, first, count, count - len(holes), holes, self.state, self.error)
