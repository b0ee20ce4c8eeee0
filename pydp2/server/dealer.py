"""Dealing out the batches of a pass: who gets which, who waits for whom (docs/order.md, "Ranks").

A batch is kept until the trainer that it went to has used it: asked for the next one, or left in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any

from pydp2.errors import Error, to_wire
from pydp2.protocol import messages as m
from pydp2.server.common import Common
from pydp2.server.job import Broke, Group, Job, Over
from pydp2.server.member import Edge, Held, Member, Stands, apart
from pydp2.server.places import Places
from pydp2.server.unclaimed import Unclaimed

_WINDOW = 4  # groups, and twice what any rank asks for at a time, that may wait for a rank; and the last one of a pass
_AHEAD = 1000  # batches that may be used beyond one that is not, dynamic
_EDGES = 64  # between one look at which are still needed and the next


class Dealer(Places):
    """Deals the batches of ``job`` to its trainers. What is to be sent collects in ``out``."""

    def __init__(self, job: Job, name: str, world: int, dynamic: bool, lease: float, prefetch_bytes: int) -> None:
        super().__init__(name, world, dynamic, lease)
        self.job = job
        self.out: deque[tuple[bytes, m.Message, Sequence[Any]]] = deque()
        """Messages to be sent, and to whom."""
        self.in_pass = False
        self.to_keep = False
        """Something happened that has to be written down before more is sent, where states are kept."""
        self._limit = prefetch_bytes  # of what one trainer was sent and has not used, and of what waits for it
        self._position = 0  # before this batch all were cut
        self._edges: deque[Edge] = deque()  # where those who are behind may stand
        self._facts: list[list[Any]] = []  # the last that were told
        self._end: Over | Broke | None = None
        self._next: deque[Group | Over | Broke] = deque()  # what comes next, as far as it was looked at
        self._unclaimed = Unclaimed()
        self._common = Common(self.members)  # dynamic

    def _asked(self) -> bool:
        """Whether anybody can take a batch that there is not yet."""
        return any(
            each.stands is Stands.IN and each.sent == len(each.held) and each.takes(0, self._limit)
            for each in self.members.values()
        )

    def _cut(self, most: int) -> Group | Over | Broke | None:
        """What comes next for those who ask. None: nothing now, or those who are behind are too far behind."""
        if self.alone:
            return self.job.next(most)
        if self.dynamic:
            # beyond that, who holds the first one uses it, or its lease ends; and what waits is too large for who asks
            return None if self._common or self._common.ahead >= _AHEAD else self.job.next()
        if self._held_up():
            return self._last(most)
        return self._next.popleft() if self._next else self.job.next(most, self._room())

    def _room(self) -> float:
        """What may be cut for ranks that are not there: of all of them together, as many bytes as the pool may have."""
        if not self.absent:
            return inf
        there = len(self.members) * self._limit
        known = sum(ready.cost for one in self._next if isinstance(one, Group) for ready in one.batches)
        return self.job.plan.pool_bytes + there - self._unclaimed.nbytes - known

    def _last(self, most: int) -> Group | Over | Broke | None:
        """What comes next, if it is the last group of the pass, or its end. That is kept back for nobody who is behind:
        so nobody has to be waited for by those who have all of theirs."""
        while len(self._next) < 2 and not (self._next and not isinstance(self._next[-1], Group)):
            outcome = self.job.next(most, self._room())
            if outcome is None:
                return None
            self._next.append(outcome)
        return None if isinstance(self._next[-1], Group) else self._next.popleft()

    def _held_up(self) -> bool:
        """Whether so much waits for a rank that the others wait for it."""
        window = self._window()
        return len(self._unclaimed) >= window or any(self._full(each, window) for each in self.members.values())

    def _window(self) -> int:
        return _WINDOW + 2 * max((each.ahead for each in self.members.values()), default=0)

    def _full(self, member: Member, window: int) -> bool:
        """Whether the others wait for ``member``."""
        if member.stands is Stands.LEFT:
            return False
        return len(member.held) >= window or (len(member.held) > 1 and member.held_bytes >= self._limit)

    def _take(self, group: Group) -> None:
        self._position = group.after
        if len(group.facts) != len(self._facts):
            self._facts = group.facts
            self.to_keep = not self.alone
        batches = apart(group)
        if self.dynamic:
            self._common.add(batches)
            return
        if not self.alone:  # its trainer knows where it stands
            self._edges.append(Edge(group.after, group.gone, group.point))
            if len(self._edges) > _EDGES:
                self._edge()
        unclaimed: dict[int, Held] = {}
        for rank, held in enumerate(batches):
            member = self.members.get(rank)
            if member is None:
                if rank not in self._through:
                    unclaimed[rank] = held
            elif member.stands is not Stands.LEFT and held.index >= member.below:
                member.put(held)
        self._unclaimed.add(unclaimed)

    def _hand_out(self) -> None:
        for member in self.members.values():
            while member.stands is Stands.IN and member.credit > 0:
                own = member.sent < len(member.held)
                if not (own or self._common):
                    break
                held = member.held[member.sent] if own else self._common.front
                if not member.takes(held.cost, self._limit):
                    break
                if not own:
                    member.put(self._common.take())
                member.send()
                group = held.group
                edge = self._common.edge() if self.dynamic else Edge(group.after, group.gone, group.point)
                self.out.append((member.peer, *member.head(held, edge)))

    def _finish(self) -> None:
        """Tell those who have used all of theirs that there is no more."""
        if self._end is None or (self.dynamic and (self._common or any(each.held for each in self.members.values()))):
            return
        for member in self.members.values():
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

    def _late(self) -> tuple[list[Member], bool]:
        """Trainers that others wait for, and whether they wait for ranks that are not there."""
        members = self.members.values()
        if any(each.pending is not None for each in members):
            late = [each for each in members if each.pending is None and each.stands in (Stands.BEFORE, Stands.IN)]
            return late, self.absent > 0
        if not (self.in_pass and self._asked()):
            return [], False
        window = self._window()
        absent = self.absent > 0 and (len(self._unclaimed) >= window or self.job.crowded)
        return [each for each in members if self._full(each, window)], absent

    def _clear(self) -> None:
        """The pass is over: what waits for anybody is let go."""
        self._common.clear()
        self._unclaimed.clear()
        self._next.clear()
        self._through.clear()
        for each in self.members.values():
            each.drop()

    # -- where they stand ------------------------------------------------------------------------------------------
    def _first_for(self, member: Member) -> int:
        """The first batch from which on nothing is missing for ``member``."""
        return member.held[0].first if member.held else max(self._position, member.below)

    def _edge(self) -> Edge:
        """Where the pass can be taken up so that nobody misses what it has not used."""
        if self.dynamic:
            return self._common.edge()
        firsts = [each.held[0].first for each in self.members.values() if each.held]
        low = min(firsts, default=self._position)
        if (first := self._unclaimed.first) is not None:
            low = min(low, first)
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
