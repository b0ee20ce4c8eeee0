"""CACHE_PASS_IN_MEM: whole files in memory, up to a limit.

Keeps the first that fit: a pass larger than the limit would push out of an LRU exactly what the next pass wants first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt


class Samples(Protocol):
    """Consecutive samples of one file: rows ``lo`` to ``hi`` of ``columns``, with their sizes in bytes."""

    columns: Any
    lo: int
    hi: int
    sizes: npt.NDArray[np.int64]


S = TypeVar("S", bound=Samples)
Hole = tuple[int, str, str]
"""(ordinal, slot, reason) of a dropped sample: a pass tells the same wherever its files come from."""
_OVERHEAD = 64  # bytes per sample for its name, size and weight
_HOLE = 512  # and per dropped sample


class PassCache(Generic[S]):
    """Files by number. A file is in the cache once all of it is: never a part of one."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.full = False
        """A file did not fit; from then on nothing is added."""
        self._files: dict[int, tuple[list[S], list[Hole]]] = {}
        self._partial: dict[int, tuple[int, list[S], list[Hole]]] = {}
        self.thrown: dict[int, tuple[list[S], list[Hole]]] = {}
        """What was not whole when it was found to be full, for whoever wants to keep it elsewhere."""

    def __len__(self) -> int:
        return len(self._files)

    def has(self, file: int) -> bool:
        """Whether all of ``file`` is here."""
        return file in self._files

    def runs(self, file: int) -> list[S]:
        """All samples of ``file``, as they were offered."""
        return self._files[file][0]

    def holes(self, file: int) -> list[Hole]:
        """The dropped samples of ``file``."""
        return self._files[file][1]

    def offer(self, file: int, samples: S | None, holes: Sequence[Sequence[Any]] = ()) -> None:
        """Keep what is next in ``file``, samples and dropped ones, if there is room. It must not change afterwards."""
        if self.full or file in self._files:
            return
        size = _HOLE * len(holes)
        if samples is not None:
            size += int(samples.sizes[samples.lo : samples.hi].sum()) + _OVERHEAD * (samples.hi - samples.lo)
        held, parts, gaps = self._partial.setdefault(file, (0, [], []))
        if samples is not None:
            parts.append(samples)
        gaps.extend((y, slot, reason) for y, slot, reason in holes)
        if self.bytes + size > self.limit:
            self.full = True
            self.bytes -= sum(size for size, _, _ in self._partial.values())
            self.thrown = {file: (parts, gaps) for file, (_, parts, gaps) in self._partial.items()}
            self._partial.clear()
            return
        self._partial[file] = (held + size, parts, gaps)
        self.bytes += size

    def complete(self, file: int) -> None:
        """``file`` ended and was offered whole."""
        if not self.full and file not in self._files:
            self._files[file] = self._partial.pop(file, (0, [], []))[1:]

    def drop(self, file: int) -> None:
        """``file`` will not be complete: forget its samples."""
        self.bytes -= self._partial.pop(file, (0, [], []))[0]
