"""Keep what was seen of a service, in a fixed amount of memory: the last minutes by the second, and all of it coarser.

A point is a dict of numbers. The coarse points are means of as many seconds as fit: when their room is full, each two
become one, and a point stands for twice as many seconds.
"""

from __future__ import annotations

import errno
import json
import os
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

RECENT, COARSE = 600, 600
"""Points by the second, and coarse points, at most."""
_FORMAT = 1
_MOST_BYTES = 1 << 24
_MOST_SECONDS = 1 << 20  # of a coarse point of a file: it would come after years
_LARGEST = 1 << 52  # number of a file, and a time to which a second can be added

Point = dict[str, float]


class History:
    """Points by time. ``time`` of a point: seconds of a clock that nobody sets, near those since 1970."""

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

    @property
    def latest(self) -> float:
        """Time of the last point, 0 if there is none."""
        return max((point["time"] for point in [*self._recent, *self._coarse, *self._pending]), default=0.0)

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
        temporary = _temporary(path)
        temporary.write_text(json.dumps(plain))
        os.replace(temporary, path)  # noqa: PTH105

    def load(self, path: Path) -> None:
        """Go on with the points of ``path``; without them if there are none, or they are damaged."""
        try:
            _require_regular(path)  # a pipe or a device may have no end
            recent, coarse, pending, seconds = _read(path)
        except (OSError, ValueError, RecursionError):
            return
        if len(coarse) < self._room:
            self._recent.extend(recent)
            self._coarse, self._pending, self.seconds_of_coarse = coarse, pending, seconds


def require_place(path: Path) -> None:
    """Raise OSError unless points can be saved to ``path``, where no other file would be replaced."""
    if path.exists():
        _require_regular(path)
        try:
            if path.stat().st_size:
                _read(path)
        except (ValueError, RecursionError):
            raise OSError(errno.EINVAL, "it is another file than a history, or a damaged one") from None
    temporary = _temporary(path)
    temporary.touch()
    temporary.unlink()


def _require_regular(path: Path) -> None:
    if not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def mean(points: Sequence[Point]) -> Point:
    """Return the mean of points; of a number that some of them lack, that of the others."""
    names = dict.fromkeys(name for point in points for name in point)
    return {name: sum(found := [p[name] for p in points if name in p]) / len(found) for name in names}


def _read(path: Path) -> tuple[list[Point], list[Point], list[Point], int]:
    """Return what :func:`_saved` does of a file. Raises OSError too."""
    with path.open("rb") as file:
        return _saved(file.read(_MOST_BYTES + 1))


def _saved(text: bytes) -> tuple[list[Point], list[Point], list[Point], int]:
    """Return the points of a file: recent, coarse, and those of the next coarse one; and the seconds of a coarse one.
    Raises ValueError if it is damaged, RecursionError."""
    if len(text) <= _MOST_BYTES:
        match json.loads(text):
            case {
                "format": int(number),
                "recent": [*recent],
                "coarse": [*coarse],
                "pending": [*pending],
                "seconds": int(seconds),
            } if (
                number == _FORMAT
                and _are_points(recent)
                and _are_points([*coarse, *pending])
                and len(pending) < seconds <= _MOST_SECONDS
            ):
                return recent, coarse, pending, seconds
    raise ValueError("it is no history")


def _are_points(found: list[Any]) -> bool:
    """Return True if ``found`` are points whose times rise, with numbers whose means are finite."""
    return all(
        isinstance(point, dict) and "time" in point and all(map(_is_number, point.values())) for point in found
    ) and all(before["time"] < after["time"] for before, after in pairwise(found))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST
