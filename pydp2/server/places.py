"""Who has which place in a job: its ranks, or whoever came (docs/order.md, "Ranks").

A place that nobody has costs nothing, so a job may say that it has many ranks.
"""

from __future__ import annotations

from pydp2.errors import JobTaken, OptionError, Rewound
from pydp2.protocol import messages as m
from pydp2.server.member import Member, Stands


class Places:
    """The places of job ``name``: ``world`` ranks, or with ``dynamic`` one for each trainer that comes."""

    def __init__(self, name: str, world: int, dynamic: bool, lease: float) -> None:
        self.name = name
        self.world = world
        self.dynamic = dynamic
        self.lease = lease
        self.alone = world == 1 and not dynamic
        """There is one rank."""
        self.members: dict[int, Member] = {}
        """Who has a place, or had it and may come back, by number."""
        self._connected: dict[bytes, Member] = {}
        self._through: dict[int, Stands] = {}
        """Where those ranks stand that ended or left the pass under way, and then the job."""
        self._parted: set[int] = set()  # ranks that were there and left in order
        self._parted_at = 0.0  # when the last of them left

    @property
    def empty(self) -> bool:
        """Nobody is connected."""
        return not self._connected

    @property
    def absent(self) -> int:
        """How many ranks are not there and have not ended or left the pass under way."""
        return 0 if self.dynamic else self.world - len(self.members) - len(self._through)

    def absent_ranks(self, most: int) -> list[int]:
        """The first ``most`` of them."""
        found: list[int] = []
        for rank in range(self.world if self.absent else 0):
            if rank not in self.members and rank not in self._through:
                found.append(rank)
            if len(found) == min(most, self.absent):
                break
        return found

    def silent(self, now: float) -> float:
        """Seconds since anybody of the job was heard of."""
        return now - max([self._parted_at, *(member.heard for member in self.members.values())])

    def ending(self, now: float) -> str:
        """When the job is over, for who would have another one of its name; empty while somebody is connected."""
        if not self.empty:
            return ""
        left = max(0.0, self.lease - self.silent(now))
        return f"; nobody is connected to it now, and if no rank comes back it is over in {left:.0f} s"

    def ends_with(self, session: str | None, now: float) -> bool:
        """Whether the job is over: all are gone, for long, or it was one only and ``session`` is another."""
        if not self.empty or self.called(session) is not None:
            return False
        return (self.alone and session is not None) or self.silent(now) > self.lease

    def of(self, peer: bytes) -> Member | None:
        """Who is connected as ``peer``."""
        return self._connected.get(peer)

    def called(self, session: str | None) -> Member | None:
        """Who calls itself ``session``."""
        return next((member for member in self.members.values() if member.session == session), None)

    def holder(self, rank: int) -> Member | None:
        """Whose place somebody would take who comes as ``rank``."""
        return None if self.dynamic else self.members.get(rank)

    def place_for(self, attach: m.Attach, now: float) -> Member:
        """The place that ``attach`` asks for. Raises OptionError, JobTaken."""
        return self._newcomer(attach.session) if self.dynamic else self._rank(attach, now)

    def seat(self, member: Member, peer: bytes) -> None:
        """``peer`` has the place of ``member``, and nobody else."""
        self.unseat(member)
        member.peer = peer
        self._connected[peer] = member

    def unseat(self, member: Member) -> None:
        """Nobody is connected in the place of ``member`` any more."""
        self._connected.pop(member.peer, None)
        member.forget()

    def part(self, member: Member, now: float) -> None:
        """``member`` left in order: its place is nobody's. Where it stood is remembered as long as the pass lasts."""
        self.unseat(member)
        del self.members[member.rank]
        self._parted_at = now
        if not self.dynamic:
            self._parted.add(member.rank)
            if member.stands in (Stands.ENDED, Stands.LEFT):
                self._through[member.rank] = member.stands

    def _newcomer(self, session: str) -> Member:
        known = self.called(session)
        if known is None:
            known = Member(max(self.members, default=-1) + 1)
            self.members[known.rank] = known
        return known

    def _rank(self, attach: m.Attach, now: float) -> Member:
        if attach.world_size != self.world:
            raise OptionError(
                f"job {self.name!r} has world_size={self.world}, this trainer says {attach.world_size}; all ranks of a "
                f"job must say the same{self.ending(now)}"
            )
        member = self.members.get(attach.rank)
        if member is None:
            member = Member(attach.rank, stands=self._through.pop(attach.rank, Stands.BEFORE))
            self.members[attach.rank] = member
        silent = now - member.heard
        if member.peer and member.session != attach.session and silent < self.lease:
            who = "another trainer reads this job" if self.world == 1 else f"rank {attach.rank} is taken"
            raise JobTaken(
                f"{who} (process {member.pid}, last heard of {silent:.0f} s ago); wait until it has closed its client "
                f"or been silent for lease={self.lease:g} s, or read a job of your own (job='…')"
            )
        return member

    def replaced(self, member: Member, now: float) -> Rewound:
        """What is told to who has the place of ``member`` and loses it."""
        return Rewound(
            f"rank {member.rank} of job {self.name!r} was silent for {now - member.heard:.0f} s (lease={self.lease:g}) "
            "and another process has its place now; raise lease where a step may take that long"
        )
