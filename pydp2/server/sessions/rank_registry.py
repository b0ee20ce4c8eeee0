"""Who has which place in a job: its ranks, or whoever came (docs/order.md, "Ranks").

A place that nobody has costs nothing, so a job may say that it has many ranks.
"""

from __future__ import annotations

from pydp2.errors import JobTaken, OptionError, Rewound
from pydp2.protocol import messages as m
from pydp2.server.sessions.trainer import Trainer
from pydp2.server.snapshots.job_snapshot import PassState


class RankRegistry:
    """The places of job ``name``: ``world`` ranks, or with ``dynamic`` one for each trainer that comes."""

    def __init__(self, name: str, world: int, dynamic: bool, lease: float) -> None:
        self.name = name
        self.world = world
        self.dynamic = dynamic
        self.lease = lease
        self.alone = world == 1 and not dynamic
        """There is one rank."""
        self.trainers: dict[int, Trainer] = {}
        """Who has a place, or had it and may come back, by number."""
        self._connected: dict[bytes, Trainer] = {}
        self._passed_through: dict[int, PassState] = {}
        """Where those ranks stand that ended or left the pass under way, and then the job."""
        self._left_at: set[int] = set()  # ranks that were there and left in order
        self._parted_at = 0.0  # when the last of them left

    @property
    def empty(self) -> bool:
        """Nobody is connected."""
        return not self._connected

    @property
    def absent(self) -> int:
        """How many ranks are not there and have not ended or left the pass under way."""
        return 0 if self.dynamic else self.world - len(self.trainers) - len(self._passed_through)

    def absent_ranks(self, most: int) -> list[int]:
        """The first ``most`` of them."""
        found: list[int] = []
        for rank in range(self.world if self.absent else 0):
            if rank not in self.trainers and rank not in self._passed_through:
                found.append(rank)
            if len(found) == min(most, self.absent):
                break
        return found

    def silent_seconds(self, now: float) -> float:
        """Seconds since anybody of the job was heard of."""
        return now - max([self._parted_at, *(trainer.last_heard for trainer in self.trainers.values())])

    def ending_reason(self, now: float) -> str:
        """When the job is over, for who would have another one of its name; empty while somebody is connected."""
        if not self.empty:
            return ""
        left = max(0.0, self.lease - self.silent_seconds(now))
        return f"; nobody is connected to it now, and if no rank comes back it is over in {left:.0f} s"

    def ends_with(self, session: str | None, now: float) -> bool:
        """Whether the job is over: all are gone, for long, or it was one only and ``session`` is another."""
        if not self.empty or self.by_session(session) is not None:
            return False
        return (self.alone and session is not None) or self.silent_seconds(now) > self.lease

    def by_peer(self, peer: bytes) -> Trainer | None:
        """Who is connected as ``peer``."""
        return self._connected.get(peer)

    def by_session(self, session: str | None) -> Trainer | None:
        """Who calls itself ``session``."""
        return next((trainer for trainer in self.trainers.values() if trainer.session == session), None)

    def by_rank(self, rank: int) -> Trainer | None:
        """Whose place somebody would take who comes as ``rank``."""
        return None if self.dynamic else self.trainers.get(rank)

    def claim(self, attach: m.Attach, now: float) -> Trainer:
        """The place that ``attach`` asks for. Raises OptionError, JobTaken."""
        return self._newcomer(attach.session) if self.dynamic else self._rank(attach, now)

    def connect(self, trainer: Trainer, peer: bytes) -> None:
        """``peer`` has the place of ``trainer``, and nobody else."""
        self.disconnect(trainer)
        trainer.peer = peer
        self._connected[peer] = trainer

    def disconnect(self, trainer: Trainer) -> None:
        """Nobody is connected in the place of ``trainer`` any more."""
        self._connected.pop(trainer.peer, None)
        trainer.disconnect()

    def leave_in_order(self, trainer: Trainer, now: float) -> None:
        """``trainer`` left in order: its place is nobody's. Where it stood is remembered as long as the pass lasts."""
        self.disconnect(trainer)
        del self.trainers[trainer.rank]
        self._parted_at = now
        if not self.dynamic:
            self._left_at.add(trainer.rank)
            if trainer.state in (PassState.ENDED, PassState.LEFT):
                self._passed_through[trainer.rank] = trainer.state

    def _newcomer(self, session: str) -> Trainer:
        known = self.by_session(session)
        if known is None:
            known = Trainer(max(self.trainers, default=-1) + 1)
            self.trainers[known.rank] = known
        return known

    def _rank(self, attach: m.Attach, now: float) -> Trainer:
        if attach.world_size != self.world:
            raise OptionError(
                f"job {self.name!r} has world_size={self.world}, this trainer says {attach.world_size}; all ranks of a "
                f"job must say the same{self.ending_reason(now)}"
            )
        trainer = self.trainers.get(attach.rank)
        if trainer is None:
            trainer = Trainer(attach.rank, first_state=self._passed_through.pop(attach.rank, PassState.BEFORE))
            self.trainers[attach.rank] = trainer
        silent = now - trainer.last_heard
        if trainer.peer and trainer.session != attach.session and silent < self.lease:
            who = "another trainer reads this job" if self.world == 1 else f"rank {attach.rank} is taken"
            raise JobTaken(
                f"{who} (process {trainer.pid}, last heard of {silent:.0f} s ago); wait until it has closed its client "
                f"or been silent for lease={self.lease:g} s, or read a job of your own (job='…')"
            )
        return trainer

    def replacement_error(self, trainer: Trainer, now: float) -> Rewound:
        """What is told to who has the place of ``trainer`` and loses it."""
        return Rewound(
            f"rank {trainer.rank} of job {self.name!r} was silent for {now - trainer.last_heard:.0f} s "
            f"(lease={self.lease:g}) and another process has its place now; raise lease where a step may take that long"
        )
