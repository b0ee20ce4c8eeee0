"""CACHE_PASS_IN_MEM: whole files in memory, up to a limit.

Keeps the first that fit: a pass larger than the limit would push out of an LRU exactly what the next pass wants first.
"""

from __future__ import annotations

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
_OVERHEAD = 64  # bytes per sample for its name, size and weight


class PassCache(Generic[S]):
    """Files by number. A file is in the cache once all of it is: never a part of one."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.full = False
        """A file did not fit; from then on nothing is added."""
        self._files: dict[int, list[S]] = {}
        self._partial: dict[int, tuple[int, list[S]]] = {}

    def __len__(self) -> int:
        return len(self._files)

    def has(self, file: int) -> bool:
        """Whether all of ``file`` is here."""
        return file in self._files

    def runs(self, file: int) -> list[S]:
        """All samples of ``file``, as they were offered."""
        return self._files[file]

    def offer(self, file: int, samples: S) -> None:
        """Keep the next samples of ``file`` if there is room. ``samples`` must not be changed afterwards."""
        if self.full or file in self._files:
            return
        size = int(samples.sizes[samples.lo : samples.hi].sum()) + _OVERHEAD * (samples.hi - samples.lo)
        held, parts = self._partial.setdefault(file, (0, []))
        if self.bytes + size > self.limit:
            self.full = True
            self.bytes -= sum(size for size, _ in self._partial.values())
            self._partial.clear()
            return
        parts.append(samples)
        self._partial[file] = (held + size, parts)
        self.bytes += size

    def complete(self, file: int) -> None:
        """``file`` ended and was offered whole."""
        if not self.full and file not in self._files:
            self._files[file] = self._partial.pop(file, (0, []))[1]

    def drop(self, file: int) -> None:
        """``file`` will not be complete: forget its samples."""
        self.bytes -= self._partial.pop(file, (0, []))[0]

    def abandon(self) -> None:
        """The pass was left: what is not complete is forgotten."""
        for file in list(self._partial):
            self.drop(file)
