"""Keep what was seen of a service, in a fixed amount of memory: the last minutes by the second, and all of it coarser.

A point is a dict of numbers. The coarse points are means of as many seconds as fit: when their room is full, each two
become one, and a point stands for twice as many seconds.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RECENT, COARSE = 600, 600
"""Points by the second, and coarse points, at most."""
_FORMAT = 1
_MOST_BYTES = 1 << 24

Point = dict[str, float]


class History:
    """Points by time. ``time`` of a point: seconds since 1970."""

    def __init__(self, recent: int = RECENT, coarse: int = COARSE) -> None:
        self._recent: deque[Point] = deque(maxlen=recent)
        self._coarse: list[Point] = []
        self._room = coarse
        self._pending: list[Point] = []
        self.seconds_of_coarse = 1
        """Number of points by the second that a coarse one stands for."""

    def add(self, point: Point) -> None:
        """Add a point, which has a ``time`` after all others."""
        self._recent.append(point)
        self._pending.append(point)
        if len(self._pending) >= self.seconds_of_coarse:
            self._coarse.append(mean(self._pending))
            self._pending.clear()
        if len(self._coarse) >= self._room:
            self._coarse = [mean(self._coarse[i : i + 2]) for i in range(0, len(self._coarse), 2)]
            self.seconds_of_coarse *= 2

    def recent(self, after: float = 0.0) -> list[Point]:
        """Return the points by the second that are later than ``after``."""
        return [point for point in self._recent if point["time"] > after]

    def whole(self) -> list[Point]:
        """Return the coarse points."""
        return [*self._coarse, *([mean(self._pending)] if self._pending else [])]

    def save(self, path: Path) -> None:
        """Write all points to ``path``. Raises OSError."""
        plain = {
            "format": _FORMAT,
            "recent": [*self._recent],
            "coarse": self._coarse,
            "pending": self._pending,
            "seconds": self.seconds_of_coarse,
        }
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(json.dumps(plain))
        os.replace(temporary, path)  # noqa: PTH105

    def load(self, path: Path) -> None:
        """Go on with the points of ``path``; without them if there are none, or they are damaged."""
        try:
            if path.stat().st_size > _MOST_BYTES:
                return
            plain = json.loads(path.read_text())
            recent, coarse, pending = (_points(plain[name]) for name in ("recent", "coarse", "pending"))
            seconds = int(plain["seconds"])
        except (OSError, ValueError, LookupError, TypeError):
            return
        if plain["format"] == _FORMAT and seconds > 0 and len(coarse) < self._room:
            self._recent.extend(recent)
            self._coarse, self._pending, self.seconds_of_coarse = coarse, pending, seconds


def mean(points: Sequence[Point]) -> Point:
    """Return the mean of points; of a number that some of them lack, that of the others."""
    names = dict.fromkeys(name for point in points for name in point)
    return {name: sum(found := [p[name] for p in points if name in p]) / len(found) for name in names}


def _points(found: Any) -> list[Point]:
    """Return points as they were read. Raises TypeError, ValueError."""
    if not isinstance(found, list) or not all(isinstance(point, Mapping) and "time" in point for point in found):
        raise TypeError(found)
    return [{str(name): float(value) for name, value in point.items()} for point in found]
