"""Trainers that come back to a service that was started again, until it is known where their pass goes on.

Each knows what it has had; nobody knows all. With ranks the pass goes on where the last of them is. Shared
(``dynamic``), it goes on where all of them are, without the batches that any of them has had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydp2.order.saved import Saved
from pydp2.protocol import messages as m
from pydp2.server.kept import Running
from pydp2.server.member import Member

Facts = Mapping[int, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """How a trainer asked to go on."""

    member: Member
    begin: m.BeginPass
    saved: Saved | None
    facts: Facts


class Gathering:
    """Waits for ``missing`` trainers (their sessions, or for ranks their numbers) until the time ``until``.

    ``kept``: the pass that was under way, as it was written down, and its number.
    """

    def __init__(
        self, missing: set[int], until: float, *, dynamic: bool, pass_id: int = -1, kept: Running | None = None
    ) -> None:
        self.missing = missing
        self.until = until
        self.pass_id = pass_id
        self.kept = kept
        self.asked: dict[int, Asked] = {}
        self._dynamic = dynamic

    def add(self, asked: Asked) -> None:
        """A trainer came back."""
        self.asked[asked.member.rank] = asked
        self.missing.discard(asked.member.rank)

    def gone(self, member: Member) -> None:
        """``member`` left: nobody waits for it."""
        self.missing.discard(member.rank)
        self.asked.pop(member.rank, None)

    def over(self, now: float) -> bool:
        """All are there, or it has taken too long."""
        return bool(self.asked) and (not self.missing or now > self.until)

    def outcome(self) -> Asked:
        """Where the pass goes on: like somebody who asked for all that is missing to somebody."""
        last = max(one.begin.pass_id for one in self.asked.values())
        there = [one for one in self.asked.values() if one.begin.pass_id == last]
        kept = self.kept if self.kept is not None and self.pass_id == last else None
        first = (max if self._dynamic else min)(there, key=lambda one: one.begin.batch)
        batch = first.begin.batch
        beyond: set[int] = set()
        if self._dynamic:
            batch = max(batch, 0 if kept is None else kept.batch)
            known = [one.begin.beyond for one in there] + ([] if kept is None else [kept.beyond])
            beyond = {index for each in known for index in each if index >= batch}
        points = [one.saved for one in there] + ([] if kept is None else [kept.point])
        point = max((one for one in points if one is not None and one.index <= batch), key=_index, default=None)
        facts: dict[int, tuple[int, str]] = {}
        if kept is not None:
            facts = {file: (y, why) for file, y, why in kept.facts}
        for one in there:
            facts |= one.facts
        return replace(first, begin=replace(first.begin, batch=batch, beyond=sorted(beyond)), saved=point, facts=facts)


def _index(point: Saved) -> int:
    return point.index
