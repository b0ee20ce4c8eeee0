"""CACHE_PASS_IN_MEM: whole files in memory, up to a limit.

Keeps the first that fit: a pass larger than the limit would push out of an LRU exactly what the next pass wants first.
A file that is whole moves to the shelf, where there is one: samples that lie there can be gathered by their numbers,
from all files together. What was offered of it is from then on a look at what lies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pydp2.inputs.columns import Ints, spans
from pydp2.inputs.names import encode
from pydp2.inputs.shelf import OVERHEAD, Shelf


class Samples(Protocol):
    """Consecutive samples of one file: rows ``lo`` to ``hi`` of ``columns``, with their sizes in bytes. For a shelf
    they have ordinals and weights as well."""

    columns: Any
    lo: int
    hi: int
    sizes: npt.NDArray[np.int64]


S = TypeVar("S", bound=Samples)
Hole = tuple[int, str, str]
"""(ordinal, slot, reason) of a dropped sample: a pass tells the same wherever its files come from."""
_HOLE = 512  # bytes per dropped sample


class Names(NamedTuple):
    """All samples that are there: the rows of the shelf in the order of names, and the names as a set."""

    rows: Ints
    encoded: bytes


class PassCache(Generic[S]):
    """Files by number. A file is in the cache once all of it is: never a part of one."""

    def __init__(self, limit: int, shelf: Shelf | None = None) -> None:
        self.limit = limit
        self.shelf = shelf
        self.holes_kept = False
        """A file that is there has dropped samples."""
        self.bytes = 0
        self.full = False
        """A file did not fit; from then on nothing is added."""
        self._files: dict[int, tuple[list[S], list[Hole]]] = {}
        self._partial: dict[int, tuple[int, list[S], list[Hole]]] = {}
        self.thrown: dict[int, tuple[list[S], list[Hole]]] = {}
        """What was not whole when it was found to be full, for whoever wants to keep it elsewhere."""
        self._rows: dict[int, tuple[int, int]] = {}  # of each file in the shelf: its first row, and how many
        self._names: Names | None = None

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
            size += int(samples.sizes[samples.lo : samples.hi].sum()) + OVERHEAD * (samples.hi - samples.lo)
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
        if self.full or file in self._files:
            return
        _, parts, gaps = self._partial.pop(file, (0, [], []))
        self._files[file] = parts, gaps
        self.holes_kept = self.holes_kept or bool(gaps)
        if self.shelf is not None:
            self._rows[file] = self.shelf.rows, sum(part.hi - part.lo for part in parts)
            self._names = None
            for part in parts:
                _move(part, self.shelf)

    def names(self) -> Names:
        """All samples that are there, where there is a shelf, and no file that has dropped ones."""
        if self._names is None:
            files = np.array(sorted(self._rows), np.int64)
            where = np.array([self._rows[file] for file in files.tolist()], np.int64).reshape(-1, 2)
            first, count = where[:, 0], where[:, 1]
            ordinals = spans(np.zeros(len(files), np.int64), count)
            self._names = Names(spans(first, count), encode(np.repeat(files, count), ordinals))
        return self._names

    def drop(self, file: int) -> None:
        """``file`` will not be complete: forget its samples."""
        self.bytes -= self._partial.pop(file, (0, [], []))[0]


def _move(part: Any, shelf: Shelf) -> None:
    """Have ``part`` lie in ``shelf``, and nowhere else."""
    lo, hi, weights = part.lo, part.hi, part.weights
    weights = None if weights is None else weights[lo:hi]
    at, part.columns = shelf.append(part.columns.slice(lo, hi), part.ordinals[lo:hi], part.sizes[lo:hi], weights)
    part.lo, part.hi = 0, hi - lo
    part.ordinals, part.sizes = shelf.ordinals[at : shelf.rows], shelf.sizes[at : shelf.rows]
    part.weights = None if weights is None else shelf.weights[at : shelf.rows]
