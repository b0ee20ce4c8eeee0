"""Trainers that come back to a service that was started again, until it is known where their pass goes on.

Each knows what it has had; nobody knows all. With ranks the pass goes on where the last of them is. Shared
(``dynamic``), it goes on where all of them are, without the batches that any of them has had.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from pydp2.order.saved import Saved
from pydp2.protocol import messages as m
from pydp2.protocol.facts import Facts, by_file, listed
from pydp2.server.kept import Running
from pydp2.server.member import Member


@dataclass(frozen=True, slots=True)
class Asked:
    """How a trainer asked to go on."""

    member: Member
    begin: m.BeginPass
    saved: Saved | None
    facts: Facts


class Gathering:
    """Waits for the trainers with the numbers ``expected`` until the time ``until``.

    ``kept``: the pass that was under way, as it was written down, and its number.
    """

    def __init__(
        self, expected: Collection[int], until: float, *, dynamic: bool, pass_id: int = -1, kept: Running | None = None
    ) -> None:
        self._expected = expected
        self._settled: set[int] = set()  # of them, who came or left
        self.until = until
        self.pass_id = pass_id
        self.kept = kept
        self.asked: dict[int, Asked] = {}
        self._dynamic = dynamic

    def add(self, asked: Asked) -> None:
        """A trainer came back."""
        self.asked[asked.member.rank] = asked
        self._settle(asked.member)

    def gone(self, member: Member) -> None:
        """``member`` left: nobody waits for it."""
        self._settle(member)
        self.asked.pop(member.rank, None)

    def _settle(self, member: Member) -> None:
        if member.rank in self._expected:
            self._settled.add(member.rank)

    def over(self, now: float) -> bool:
        """All are there, or it has taken too long."""
        return bool(self.asked) and (len(self._settled) == len(self._expected) or now > self.until)

    def so_far(self) -> Running | None:
        """What is to be written down: the pass as it was, without what those who came have had."""
        if self.kept is None or not self.asked:
            return self.kept
        at = self.outcome()
        if at.begin.pass_id != self.pass_id:
            return self.kept
        return Running(at.begin.batch, at.begin.beyond, at.saved, listed(at.facts), self.kept.buckets)

    def outcome(self) -> Asked:
        """Where the pass goes on: like somebody who asked for all that is missing to somebody."""
        # who has had something of a pass shows that it had begun, and those before it were over; to ask is not enough
        began = [one.begin.pass_id for one in self.asked.values() if one.begin.batch or one.begin.beyond]
        if self.kept is not None:
            began.append(self.pass_id)
        last = max(began) if began else min(one.begin.pass_id for one in self.asked.values())
        kept = self.kept if self.pass_id == last else None
        there = [one for one in self.asked.values() if one.begin.pass_id == last]
        first = (max if self._dynamic else min)(there or self.asked.values(), key=lambda one: one.begin.batch)
        begin = first.begin
        if kept is not None and (not there or kept.batch > begin.batch):
            begin = replace(begin, pass_id=last, batch=kept.batch, beyond=[], buckets=kept.buckets)
        beyond: set[int] = set()
        if self._dynamic:
            known = [one.begin.beyond for one in there] + ([] if kept is None else [kept.beyond])
            beyond = {index for each in known for index in each if index >= begin.batch}
        points = [one.saved for one in there] + ([] if kept is None else [kept.point])
        point = max((one for one in points if one is not None and one.index <= begin.batch), key=_index, default=None)
        facts = {} if kept is None else by_file(kept.facts)
        for one in there:
            facts |= one.facts
        return replace(first, begin=replace(begin, beyond=sorted(beyond)), saved=point, facts=facts)


def _index(point: Saved) -> int:
    return point.index
