"""Dealing out the batches of a pass: who gets which, who waits for whom (docs/order.md, "Ranks").

A batch is kept until the trainer that it went to has used it: asked for the next one, or left in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from pydp2.errors import Error, to_wire
from pydp2.protocol import messages as m
from pydp2.server.common import Common
from pydp2.server.job import Broke, Group, Job, Over
from pydp2.server.member import Edge, Held, Member, Stands
from pydp2.server.places import Places

_WINDOW = 4  # groups, and twice what any rank asks for at a time, that may wait for a rank
_AHEAD = 1000  # batches that may be used beyond one that is not, dynamic
_EDGES = 64  # between one look at which are still needed and the next


class Dealer(Places):
    """Deals the batches of ``job`` to its trainers. What is to be sent collects in ``out``."""

    def __init__(self, job: Job, name: str, world: int, dynamic: bool, lease: float) -> None:
        super().__init__(name, world, dynamic, lease)
        self.job = job
        self.out: deque[tuple[bytes, m.Message, Sequence[Any]]] = deque()
        """Messages to be sent, and to whom."""
        self.in_pass = False
        self.to_keep = False
        """Something happened that has to be written down before more is sent, where states are kept."""
        self._position = 0  # before this batch all were cut
        self._edges: deque[Edge] = deque()  # where those who are behind may stand
        self._facts: list[list[Any]] = []  # the last that were told
        self._end: Over | Broke | None = None
        self._common = Common(self.members)  # dynamic

    def _wanted(self) -> bool:
        """Whether anybody can take a batch that there is not yet, and those who are behind are not too far behind."""
        if not self._asked():
            return False
        if self.dynamic:
            return self._common.ahead < _AHEAD  # else who holds the first one uses it, or its lease ends
        return not any(map(self._full, self.members))

    def _asked(self) -> bool:
        """Whether anybody asks for more than there is for it."""
        return any(each.stands is Stands.IN and each.credit > len(each.held) - each.sent for each in self.members)

    def _full(self, member: Member) -> bool:
        """Whether so much waits for ``member`` that the others wait for it."""
        if self.dynamic or len(member.held) < _WINDOW or member.stands is Stands.LEFT:
            return False
        return len(member.held) >= _WINDOW + 2 * max(each.ahead for each in self.members)

    def _take(self, group: Group) -> None:
        self._position = group.after
        if len(group.facts) != len(self._facts):
            self._facts = group.facts
            self.to_keep = not self.alone
        if self.dynamic:
            self._common.add(group)
            return
        if not self.alone:  # its trainer knows where it stands
            self._edges.append(Edge(group.after, group.gone, group.point))
            if len(self._edges) > _EDGES:
                self._edge()
        for member, ready in zip(self.members, group.batches, strict=False):
            if member.stands is not Stands.LEFT and ready.cut.index >= member.below:
                member.held.append(Held(ready, group))

    def _hand_out(self) -> None:
        for member in self.members:
            while member.stands is Stands.IN and member.credit > 0:
                if member.sent == len(member.held):
                    if not self._common:
                        break
                    member.held.append(self._common.take())
                held = member.held[member.sent]
                member.sent += 1
                member.credit -= 1
                group = held.group
                edge = self._common.edge() if self.dynamic else Edge(group.after, group.gone, group.point)
                self.out.append((member.peer, *member.head(held, edge)))

    def _finish(self) -> None:
        """Tell those who have used all of theirs that there is no more."""
        if self._end is None or (self.dynamic and (self._common or any(each.held for each in self.members))):
            return
        for member in self.members:
            if member.stands is Stands.IN and not member.held:
                if isinstance(self._end, Broke):
                    member.stands = Stands.LEFT
                    self._fail(member, self._end.error)
                else:
                    member.stands = Stands.ENDED
                    self.to_keep = not self.alone
                    end = self._end
                    count = end.batches if self.dynamic else max(0, -(-(end.batches - member.rank) // self.world))
                    self._tell(member, m.PassEnd(member.run, count, end.samples, end.dropped, end.uniform))

    def _late(self) -> list[Member]:
        """Ranks that others wait for."""
        if any(each.pending is not None for each in self.members):
            return [each for each in self.members if each.pending is None and each.stands in (Stands.BEFORE, Stands.IN)]
        waited_for = self.in_pass and self._asked()
        return [each for each in self.members if waited_for and self._full(each)]

    # -- where they stand ------------------------------------------------------------------------------------------
    def _first_for(self, member: Member) -> int:
        """The first batch from which on nothing is missing for ``member``."""
        return member.held[0].group.batches[0].cut.index if member.held else max(self._position, member.below)

    def _edge(self) -> Edge:
        """Where the pass can be taken up so that nobody misses what it has not used."""
        if self.dynamic:
            return self._common.edge()
        low = min((self._first_for(each) for each in self.members if each.held), default=self._position)
        while len(self._edges) > 1 and self._edges[1].after <= low:
            self._edges.popleft()
        return self._edges[0]

    def _use(self, numbers: list[int]) -> None:
        if self.dynamic:
            self._common.use(numbers)

    # -- telling ---------------------------------------------------------------------------------------------------
    def _fail(self, member: Member, error: Error) -> None:
        self._tell(member, m.Failed(member.run, to_wire(error)))

    def _tell(self, member: Member, message: m.Message) -> None:
        if member.peer:
            self.out.append((member.peer, message, ()))
