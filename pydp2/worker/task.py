"""One file's run in this worker: where it stands and how far it may go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.inputs import Columns
from pydp2.protocol.ranges import Assignment
from pydp2.worker.block import Block

NEVER = 1 << 62
"""An ordinal that no file reaches."""


@dataclass(slots=True)
class Hand:
    """A sample that may not be sent yet: one row, its ordinal, weight and cost."""

    columns: Columns
    ordinal: int
    weight: int
    cost: int


@dataclass(slots=True)
class Task:
    """A file that was assigned. ``y`` is the ordinal of the sample that the generator yields next.

    Samples below ``start`` were committed by an earlier attempt: they are run again, compared and not sent.
    """

    file: int
    attempt: int
    position: int
    start: int
    limit: int
    pause: int
    bound: bool
    expected: list[int]  # the checksums at ``start``
    spent: int  # cost of all samples from ``start`` on, sent or about to be
    sent: int
    send_from: int = 0
    turn: int = 1
    ramp: int = 0
    until: int = NEVER
    check: int = 0
    crc: int = 0
    recalled: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    y: int = 0
    crcs: list[int] = field(default_factory=list)
    hand: Hand | None = None
    iterator: Iterator[Any] | None = None
    block: Block | None = None  # what is left of many samples that came in one yield
    context: Any = None
    close: Any = None
    done: bool = False
    changed: bool = False  # it did not repeat itself, which the next part tells
    reported: bool = False  # the server knows that it waits
    wanted: bool = False  # a merge waits for it,
    due: int = 0  # and goes on with the samples below this ordinal
    reading: int = 0  # for which it runs
    pass_id: int = 0
    seed: int = 0

    @classmethod
    def of(cls, a: Assignment, checksums: int, recalled: npt.NDArray[np.int64] | None = None) -> Task:
        """The task that ``a`` describes; ``checksums``: how many running checksums a file has."""
        return cls(
            a.file,
            a.attempt,
            a.position,
            a.start,
            a.limit,
            a.pause,
            a.bound,
            a.crcs,
            a.spent,
            a.spent,
            a.send_from,
            a.turn,
            a.ramp,
            a.until,
            a.check,
            a.crc,
            np.empty(0, np.int64) if recalled is None else recalled,
            crcs=[0] * checksums,
        )

    @property
    def started(self) -> bool:
        """Its generator is open."""
        return self.iterator is not None

    @property
    def is_due(self) -> bool:
        """A merge waits for it, and can go on with what there is."""
        return self.wanted and self.y >= self.due

    @property
    def edge(self) -> int:
        """The next ordinal before which all must have been sent: what comes after it is treated otherwise."""
        y = self.y
        return min(
            (e for e in (self.start, self.send_from, self.check, self.until, self.pause) if e > y), default=NEVER
        )

    @property
    def ramping(self) -> bool:
        """It is run turn by turn."""
        return self.y < self.ramp

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Of the tasks of a reading, the one with the lowest comes next."""
        if self.ramping:  # what the merge takes first: that it waits for this one changes nothing
            return True, self.y // self.turn, self.position
        return not self.wanted, NEVER, self.position

    @property
    def turn_end(self) -> int:
        """The ordinal at which others have their turns."""
        return self.y - self.y % self.turn + self.turn if self.ramping else NEVER

    def asked(self, y: int) -> bool:
        """Whether sample ``y`` is to be sent."""
        if y < self.start:
            return False
        if y >= self.send_from:
            return True
        at = int(np.searchsorted(self.recalled, y))
        return at < len(self.recalled) and int(self.recalled[at]) == y

    def count_asked(self, lo: int, hi: int) -> int:
        """How many samples from ``lo`` to below ``hi`` a saved pool names."""
        if not len(self.recalled):
            return 0
        first, end = np.searchsorted(self.recalled, [lo, hi])
        return int(end - first)

    @property
    def required(self) -> int:
        """The file must have samples up to here: it had them before."""
        last = int(self.recalled[-1]) + 1 if len(self.recalled) else 0
        return max(self.start, self.check, last)

    @property
    def replaying(self) -> bool:
        """What the generator yields now was committed before."""
        return self.y < self.start

    @property
    def waits(self) -> int | None:
        """What it waits for: the cost of the sample in hand, 0 for its pause, None when it can go on.

        Dropped samples are not held in hand: the one that exceeds the limit is sent, and any credit ends the wait.
        """
        if self.done:  # a value that is found to be bad when it is sent may end a file that was waiting
            return None
        if self.hand is not None and self.spent + self.hand.cost > self.limit:
            return self.hand.cost
        if self.hand is None and self.spent > self.limit:
            return 1
        if self.y >= self.pause and self.y >= self.start and self.hand is None:
            return 0
        return None
