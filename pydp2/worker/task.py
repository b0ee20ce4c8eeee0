"""One file's run in this worker: where it stands and how far it may go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydp2.inputs import Columns
from pydp2.protocol.ranges import Assignment


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
    y: int = 0
    crcs: list[int] = field(default_factory=list)
    hand: Hand | None = None
    iterator: Iterator[Any] | None = None
    context: Any = None
    close: Any = None
    done: bool = False
    reported: bool = False  # the server knows that it waits
    wanted: bool = False  # the merge waits for it

    @classmethod
    def of(cls, a: Assignment, checksums: int) -> Task:
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
            crcs=[0] * checksums,
        )

    @property
    def started(self) -> bool:
        """Its generator is open."""
        return self.iterator is not None

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
