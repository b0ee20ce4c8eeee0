"""A point of a pass from which it can be taken up again, and what its files must give for that (docs/order.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.errors import OptionError
from pydp2.inputs import names

NEVER = 1 << 62
"""An ordinal that no file reaches."""
_LATEST = 1 << 53  # batch that a point may stand before, so that those after it can be numbered, too


@dataclass(slots=True)
class Recall:
    """What is still needed of a file whose first samples were merged before: ``ordinals``, and all from ``start`` on.

    ``check``: an ordinal up to which running checksums ``crcs`` are known (0: none).
    """

    ordinals: npt.NDArray[np.int64]
    start: int = NEVER
    check: int = 0
    crcs: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """How many samples of the file were merged before, as far as they have to be run again."""
        return self.start if self.start < NEVER else self.until

    @property
    def until(self) -> int:
        """Nothing from this ordinal on is needed."""
        if self.start < NEVER:
            return NEVER
        return int(self.ordinals[-1]) + 1 if len(self.ordinals) else 0


@dataclass(frozen=True, slots=True)
class SavedLane:
    """A lane: its file, the ordinal that comes next, and checksums at some ordinal not below it."""

    file: int
    y: int
    check: int
    crcs: list[int]


@dataclass(frozen=True, slots=True)
class Saved:
    """The stream before batch ``index``: the pool as a set, and where the merge stood.

    ``ended``: the merge had no more, so the pool is the tail of the pass, of which the first ``offset`` samples (in the
    order of the tail) are gone. ``taken`` and ``dropped``: samples and holes that the merge had passed. ``bucket``: the
    one that the batch before came from, its number and 1; 0: none.
    """

    index: int
    pool: bytes
    ended: bool
    offset: int
    next_file: int
    current: int
    left: int
    lanes: list[SavedLane]
    taken: int
    dropped: int
    bucket: int = 0

    def to_wire(self) -> dict[str, Any]:
        """Plain values but for the pool, which is bytes."""
        return {
            "index": self.index, "ended": self.ended, "offset": self.offset, "next_file": self.next_file,
            "current": self.current, "left": self.left, "taken": self.taken, "dropped": self.dropped,
            "lanes": [[lane.file, lane.y, lane.check, lane.crcs] for lane in self.lanes],
            **({"bucket": self.bucket} if self.bucket else {}),
        }  # fmt: skip

    @classmethod
    def from_wire(cls, wire: Any, pool: bytes, files: int) -> Saved:
        """Inverse of :meth:`to_wire`, for a list of ``files`` files. Raises OptionError for what cannot be one."""
        try:
            lanes = [
                SavedLane(_int(f, files - 1), _int(y), _int(c), [_int(v) for v in crcs])
                for f, y, c, crcs in wire["lanes"]
            ]
            saved = cls(
                _int(wire["index"], _LATEST), pool, bool(wire["ended"]), _int(wire["offset"]),
                _int(wire["next_file"], files),
                _int(wire["current"], max(0, len(lanes) - 1)), _int(wire["left"]), lanes, _int(wire["taken"]),
                _int(wire["dropped"]), _int(wire.get("bucket", 0)),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(f"the state cannot be read ({type(error).__name__}: {error}): it is damaged") from None
        numbers, _ = names.decode(pool)
        if len(numbers) and int(numbers[-1]) >= files:
            raise OptionError("the state names a file that the list does not have: it is damaged")
        if saved.offset > len(numbers):
            raise OptionError("the state is further in its tail than the tail is long: it is damaged")
        return saved

    def check(self, order: npt.NDArray[np.int64], most_lanes: int) -> None:
        """Raise OptionError unless this can be a point of a pass that wants files in this ``order``."""
        merged = order[: self.next_file]  # files that the merge has met
        lanes = [lane.file for lane in self.lanes]
        files, ordinals = names.decode(self.pool)
        if not np.isin(files, merged).all() or not np.isin(lanes, merged).all():
            raise OptionError("the state holds samples of files that were not reached yet: it is damaged")
        if len(set(lanes)) != len(lanes) or len(lanes) > most_lanes or (self.next_file < len(order)) > bool(lanes):
            raise OptionError("the state does not say where in its files it stands: it is damaged")
        if self.ended and (lanes or self.next_file < len(order)):
            raise OptionError("the state is at the end of its files and in the middle of them: it is damaged")
        for lane in self.lanes:
            if (ordinals[files == lane.file] >= lane.y).any() or (lane.check and lane.check < lane.y):
                raise OptionError("the state stands before samples that it holds: it is damaged")


def _int(value: Any, most: int = NEVER) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r:.40} where a number from 0 to {most} is needed")
    return value
