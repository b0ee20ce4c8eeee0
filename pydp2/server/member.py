"""One trainer of a job: what it has been sent, what of that it has used, and where it stands in the pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pydp2.order.saved import Saved
from pydp2.protocol import messages as m
from pydp2.protocol.facts import to_frames
from pydp2.server.job import Group, Ready


class Stands(Enum):
    """Where a trainer stands in the pass of its job."""

    BEFORE = "before"  # it has not begun it
    IN = "in"
    ENDED = "ended"  # it has used all of its batches
    LEFT = "left"  # it does not want its rest


@dataclass(slots=True)
class Held:
    """A batch that is kept until it is used. ``group``: what it was cut with, without the batches; ``first``: the first
    of these. ``cost``: the bytes that it counts against ``prefetch_bytes``."""

    ready: Ready
    group: Group
    first: int
    cost: int

    @property
    def index(self) -> int:
        return self.ready.cut.index


def apart(group: Group) -> list[Held]:
    """Each batch of ``group`` by itself: none keeps the rows of another."""
    shared, first = group, group.batches[0].cut.index
    if len(group.batches) > 1:
        shared = Group([], group.after, group.gone, group.point, group.facts)
    return [Held(ready, shared, first, ready.cost) for ready in group.batches]


def had(begin: m.BeginPass, batches: Iterable[Held]) -> list[int]:
    """Which of ``batches`` the trainer that says ``begin`` has had."""
    return [held.index for held in batches if held.index < begin.batch or held.index in begin.beyond]


@dataclass(frozen=True, slots=True)
class Edge:
    """A place in the pass: before batch ``after``, those in ``beyond`` used as well. It can be taken up from ``point``
    (None: the start of the pass), or where that is in the tail, after ``gone`` samples of it."""

    after: int
    gone: int
    point: Saved | None
    beyond: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Member:
    """A trainer. ``peer`` is empty while nobody is connected in its place; ``heard``: when it last said something."""

    rank: int
    peer: bytes = b""
    session: str = ""
    pid: int = 0
    heard: float = 0.0
    joined: bool = True  # it knows the present generation
    stands: Stands = Stands.BEFORE
    run: int = 0
    credit: int = 0
    held: deque[Held] = field(default_factory=deque)
    held_bytes: int = 0  # what they cost
    sent: int = 0  # of them, in the present run
    sent_bytes: int = 0
    unread_bytes: int = 0  # sent in earlier runs of this connection, where they may still lie
    done: int = 0  # batches of the present run that are used
    below: int = 0  # before this batch it has had all of its own
    point: Saved | None = None  # the last one told
    facts: int = 0  # told
    ahead: int = 0  # the most that it asked for at a time beyond the one that it takes next
    pending: m.BeginPass | None = None  # of a pass that cannot begin yet

    def put(self, held: Held) -> None:
        """A batch is its own."""
        self.held.append(held)
        self.held_bytes += held.cost

    def drop(self) -> None:
        """Nothing is kept for it any more."""
        self.held.clear()
        self.held_bytes = 0
        self._unsent()

    def _unsent(self) -> None:
        """A run is over: of what was sent in it and not used, nobody knows whether it was read."""
        self.unread_bytes += self.sent_bytes
        self.sent = self.sent_bytes = 0

    def use(self, done: int) -> list[int]:
        """The first ``done`` batches that were sent in this run are used: they are kept no longer. Which these are."""
        numbers = []
        while self.done < done and self.sent:
            held = self.held.popleft()
            self.held_bytes -= held.cost
            self.sent_bytes -= held.cost
            self.sent -= 1
            self.done += 1
            self.unread_bytes = 0  # that came before it
            numbers.append(held.index)
        return numbers

    def ask(self, count: int) -> None:
        """It takes ``count`` batches more; none: it has read all that came, and waits."""
        if not count:
            self.unread_bytes = 0
        self.credit += count
        self.ahead = max(self.ahead, self.credit + self.sent - 1)

    def takes(self, cost: int, limit: int) -> bool:
        """Whether a batch of ``cost`` bytes may be sent, where ``limit`` bytes may be sent and not used. One beside the
        one in its hand may, however large they are."""
        at_least = self.sent < 2 and not self.unread_bytes
        return self.credit > 0 and (at_least or self.unread_bytes + self.sent_bytes + cost <= limit)

    def send(self) -> Held:
        """The next batch that is its own goes out."""
        held = self.held[self.sent]
        self.sent += 1
        self.sent_bytes += held.cost
        self.credit -= 1
        return held

    def join(self, begin: m.BeginPass, facts: int) -> list[int]:
        """The trainer, who knows so many facts, goes on with the run of ``begin``; which batches it has used."""
        used = had(begin, self.held)
        self.held = deque(held for held in self.held if held.index not in used)
        self.held_bytes = sum(held.cost for held in self.held)
        self.stands = Stands.IN
        self.below = max(self.below, begin.batch)
        self._unsent()
        self.done = 0
        self.credit = self.ahead = begin.credit
        self.facts = facts
        return used

    def forget(self) -> None:
        """Nobody is connected any more: what was sent and not used is sent again to whoever comes."""
        self.peer = b""
        self.sent = self.sent_bytes = self.unread_bytes = self.done = self.credit = 0
        self.point, self.facts = None, 0
        self.pending = None

    def restart(self) -> None:
        """Before a pass."""
        self.stands = Stands.BEFORE
        self.drop()
        self.done = self.credit = self.below = 0
        self.point, self.facts = None, 0

    def head(self, held: Held, at: Edge) -> tuple[m.BatchHead, list[Any]]:
        """What announces ``held``, and its frames; ``at``: where the trainer is once it has it."""
        cut, picked = held.ready.cut, held.ready.picked
        point = None if at.point is self.point else at.point
        facts = to_frames(held.group.facts[self.facts :])
        self.point, self.facts = at.point, len(held.group.facts)
        head = m.BatchHead(
            self.run, cut.index, len(picked), cut.size, cut.pool_weight, cut.padding, at.gone, at.after, at.beyond,
            {} if point is None else point.to_wire(), len(facts), held.ready.bucket,
        )  # fmt: skip
        return head, [picked, *(() if point is None else (point.pool,)), *facts]
