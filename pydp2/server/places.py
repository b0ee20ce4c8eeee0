"""Who has which place in a job: its ranks, or whoever came (docs/order.md, "Ranks")."""

from __future__ import annotations

from pydp2.errors import JobTaken, OptionError, Rewound
from pydp2.protocol import messages as m
from pydp2.server.member import Member


class Places:
    """The places of job ``name``: ``world`` ranks, or with ``dynamic`` one for each trainer that comes."""

    def __init__(self, name: str, world: int, dynamic: bool, lease: float) -> None:
        self.name = name
        self.world = world
        self.dynamic = dynamic
        self.lease = lease
        self.members: list[Member] = [] if dynamic else [Member(rank) for rank in range(world)]

    @property
    def empty(self) -> bool:
        """Nobody is connected."""
        return not any(member.peer for member in self.members)

    @property
    def alone(self) -> bool:
        """There is one rank."""
        return self.world == 1 and not self.dynamic

    def ends_with(self, session: str | None, now: float) -> bool:
        """Whether the job is over: all are gone, for long, or it was one only and ``session`` is another."""
        if not self.empty or self.called(session) is not None:
            return False
        heard = max((member.heard for member in self.members), default=0.0)
        return (self.alone and session is not None) or now - heard > self.lease

    def of(self, peer: bytes) -> Member | None:
        """Who is connected as ``peer``."""
        return next((member for member in self.members if member.peer == peer), None)

    def called(self, session: str | None) -> Member | None:
        """Who calls itself ``session``."""
        return next((member for member in self.members if member.session == session), None)

    def place_for(self, attach: m.Attach, now: float) -> Member:
        """The place that ``attach`` asks for. Raises OptionError, JobTaken."""
        return self._newcomer(attach.session) if self.dynamic else self._rank(attach, now)

    def _newcomer(self, session: str) -> Member:
        known = self.called(session)
        if known is None:
            known = Member(max((member.rank for member in self.members), default=-1) + 1)
            self.members.append(known)
        return known

    def _rank(self, attach: m.Attach, now: float) -> Member:
        if attach.world_size != self.world:
            raise OptionError(
                f"job {self.name!r} has world_size={self.world}, this trainer says {attach.world_size}; all ranks of a "
                "job must say the same"
            )
        member = self.members[attach.rank]
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
