"""Batches for whoever asks first: what is not handed out, and where a job stands when some are used out of turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from pydp2.order.saved import Saved
from pydp2.protocol import messages as m
from pydp2.server.member import Edge, Held, Member, had


class Common:
    """The batches of a pass that ``members`` share. A position is the first batch that is not used, and those used
    beyond it (docs/order.md, "Ranks")."""

    def __init__(self, members: Mapping[int, Member]) -> None:
        self._members = members
        self._waiting: deque[Held] = deque()
        self._next = 0  # the batch that is cut next
        self._used: set[int] = set()
        self._points: list[Saved] = []
        self._gone = 0  # of the tail, before the batch that is cut next

    def begin(self, batch: int, beyond: Collection[int], saved: Saved | None) -> None:
        """A pass begins before ``batch``; those in ``beyond`` are used."""
        self.clear()
        self._next = batch
        self._gone = 0
        self._used = set(beyond)
        self._points = [] if saved is None else [saved]

    def clear(self) -> None:
        """The pass is over: nobody is handed anything of it any more."""
        self._waiting.clear()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, batches: Iterable[Held]) -> None:
        """Batches were cut together."""
        for held in batches:
            self._waiting.append(held)
            group = held.group
            self._next, self._gone = group.after, group.gone
            if group.point is not None and (not self._points or self._points[-1] is not group.point):
                self._points.append(group.point)

    @property
    def front(self) -> Held:
        """The next one for whoever asks, as long as nobody takes it."""
        return self._waiting[0]

    def take(self) -> Held:
        """The next one for whoever asks."""
        return self._waiting.popleft()

    def give_back(self, member: Member) -> None:
        """What ``member`` had and has not used goes to the others."""
        self._waiting = deque(sorted((*self._waiting, *member.held), key=lambda held: held.index))
        member.drop()

    def join(self, begin: m.BeginPass) -> None:
        """Somebody goes on who has had what was meanwhile given back."""
        mine = had(begin, self._waiting)
        self._used.update(mine)
        self._waiting = deque(held for held in self._waiting if held.index not in mine)

    def use(self, numbers: Iterable[int]) -> None:
        """These batches are used."""
        self._used.update(numbers)

    @property
    def low(self) -> int:
        """All batches before this one are used."""
        first = self._first()
        return self._next if first is None else first.index

    @property
    def ahead(self) -> int:
        """How many batches were cut since the first that is not used."""
        return self._next - self.low

    def _first(self) -> Held | None:
        held = [*self._waiting, *(one for member in self._members.values() for one in member.held)]
        return min(held, key=lambda one: one.index, default=None)

    def edge(self) -> Edge:
        """Where the job stands."""
        first = self._first()
        low, gone = self._next, self._gone
        if first is not None:
            cut, low = first.ready.cut, first.index
            gone = max(0, cut.gone - len(cut.rows) + cut.padding)
        while len(self._points) > 1 and self._points[1].index <= low:
            del self._points[0]
        point = self._points[0] if self._points and self._points[0].index <= low else None
        self._used = {index for index in self._used if index > low}
        return Edge(low, gone, point, sorted(self._used))
