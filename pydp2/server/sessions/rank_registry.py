"""Keep which trainer has which rank of a job (docs/order.md, "Ranks").

A rank that no trainer has costs nothing, so a job may say that it has many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydp2.errors import JobTaken, OptionError, Rewound
from pydp2.options.timing import DEFAULT_TIMING
from pydp2.protocol import messages as m
from pydp2.server.sessions.trainer import Trainer
from pydp2.server.snapshots.job_snapshot import PassState

_MAX_EXPIRED = 1024  # trainers that were away for too long, of those that may come back


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Options of the trainers that share the batches of job ``name``: ``world`` ranks, or with ``dynamic`` as many as
    come. ``missing_rank``: seconds that trainers wait for a rank before the log names it. ``is_forgetful``: a service
    before this one knew more of its jobs, and ``loss`` says why."""

    name: str
    world: int
    dynamic: bool
    lease: float
    prefetch_bytes: int
    missing_rank: float = DEFAULT_TIMING.missing_rank
    is_forgetful: bool = False
    loss: str = ""


class RankRegistry:
    """Trainers of a job by number: its ranks, or with ``dynamic`` one number for each trainer that comes."""

    def __init__(self, options: GroupOptions) -> None:
        self.name = options.name
        self.world = options.world
        self.dynamic = options.dynamic
        self.lease = options.lease
        self.is_forgetful = options.is_forgetful
        self.loss = options.loss
        self.alone = self.world == 1 and not self.dynamic
        """There is one rank."""
        self.trainers: dict[int, Trainer] = {}
        """Trainers that are connected, or were and may come back."""
        self.passed_through: dict[int, PassState] = {}
        """Where those ranks stand that ended or left the pass under way, and then the job."""
        self.left_at: set[int] = set()
        """Ranks that were there and left in order."""
        self.expired: dict[str, str] = {}
        """By session, the unanswered state of trainers of this generation whose lease ran out while they were away."""
        self._connected: dict[bytes, Trainer] = {}
        self._restored: dict[int, Trainer] = {}
        self._parted_at = 0.0  # when the last of them left

    @property
    def empty(self) -> bool:
        """True while no trainer is connected."""
        return not self._connected

    @property
    def awaits_restored(self) -> bool:
        """True while trainers of a service that was killed have not come back: not all of them need be dead."""
        return any(self.trainers.get(one.rank) is one and not (one.peer or one.run) for one in self._restored.values())

    @property
    def absent(self) -> int:
        """Number of ranks that are not there and have not ended or left the pass under way."""
        return 0 if self.dynamic else self.world - len(self.trainers) - len(self.passed_through)

    @property
    def first_rank(self) -> int | None:
        """The lowest rank that is connected, None while there is none."""
        return min((rank for rank, trainer in self.trainers.items() if trainer.peer), default=None)

    @property
    def to_come(self) -> int:
        """Number of ranks that were never there."""
        return 0 if self.dynamic else self.world - len(self.trainers.keys() | self.left_at)

    def absent_ranks(self, most: int) -> list[int]:
        """Return the first ``most`` of them."""
        found: list[int] = []
        for rank in range(self.world if self.absent else 0):
            if rank not in self.trainers and rank not in self.passed_through:
                found.append(rank)
            if len(found) == min(most, self.absent):
                break
        return found

    def silent_seconds(self, now: float) -> float:
        """Return the seconds since a trainer of the job was last heard of."""
        return now - max([self._parted_at, *(trainer.last_heard for trainer in self.trainers.values())])

    def ending_reason(self, now: float) -> str:
        """Return when the job will be over, for a trainer that wants another one of its name; empty while a trainer is
        connected."""
        if not self.empty:
            return ""
        left = max(0.0, self.lease - self.silent_seconds(now))
        return f"; no rank is connected to it now, and it ends if none comes back within {left:.0f} s"

    def ends_with(self, session: str | None, now: float) -> bool:
        """Return True if the job is over: all trainers have been gone for longer than the lease, or there was one only
        and ``session`` is another."""
        if not self.empty or self.by_session(session) is not None:
            return False
        return (self.alone and session is not None) or self.silent_seconds(now) > self.lease

    def by_peer(self, peer: bytes) -> Trainer | None:
        """Return the trainer that is connected as ``peer``."""
        return self._connected.get(peer)

    def by_session(self, session: str | None) -> Trainer | None:
        """Return the trainer that calls itself ``session``."""
        return next((trainer for trainer in self.trainers.values() if trainer.session == session), None)

    def by_rank(self, rank: int) -> Trainer | None:
        """Return the trainer that a newcomer with the rank ``rank`` would replace."""
        return None if self.dynamic else self.trainers.get(rank)

    def claim(self, attach: m.Attach, now: float) -> Trainer:
        """Return the trainer whose rank ``attach`` asks for. Raises OptionError, JobTaken, Rewound."""
        known = self.by_session(attach.session)
        if known is not None and attach.connection_number < known.connection_number:
            raise Rewound(f"a later connection of the same process has rank {known.rank} of job {self.name!r}")
        return self._newcomer(attach.session) if self.dynamic else self._rank(attach, now)

    def connect(self, trainer: Trainer, peer: bytes) -> None:
        """Make ``peer`` the only connection of ``trainer``."""
        self.disconnect(trainer)
        trainer.peer = peer
        self._connected[peer] = trainer

    def disconnect(self, trainer: Trainer) -> None:
        """Forget the connection of ``trainer``."""
        self._connected.pop(trainer.peer, None)
        trainer.disconnect()

    def leave_in_order(self, trainer: Trainer, now: float) -> None:
        """Free the rank of ``trainer``, which left in order. Where it stood is remembered as long as the pass lasts."""
        self.disconnect(trainer)
        del self.trainers[trainer.rank]
        self._parted_at = now
        if not self.dynamic:
            self.left_at.add(trainer.rank)
            if trainer.state in (PassState.ENDED, PassState.LEFT):
                self.passed_through[trainer.rank] = trainer.state

    def expire(self, trainer: Trainer) -> None:
        """Forget a trainer of a dynamic job that did not come back within its lease. If it does, it goes on."""
        del self.trainers[trainer.rank]
        if trainer.joined and trainer.run:
            self.expired[trainer.session] = trainer.unanswered
            if len(self.expired) > _MAX_EXPIRED:
                del self.expired[next(iter(self.expired))]

    def restore(self, trainers: Iterable[Trainer], now: float) -> None:
        """Take in ``trainers`` of a service that was killed: they may come back, as if last heard of ``now``."""
        self._restored = {trainer.rank: trainer for trainer in trainers}
        for trainer in self._restored.values():
            trainer.last_heard = now
            self.trainers[trainer.rank] = trainer
        self._parted_at = now

    def is_known(self, trainer: Trainer) -> bool:
        """Return True if ``trainer`` has begun a pass here, or with the service that was killed: where it stands may be
        believed."""
        return trainer.run > 0 or trainer.session in self.expired or self._restored.get(trainer.rank) is trainer

    def lacks(self, trainer: Trainer, begin: m.BeginPass) -> bool:
        """Return True if ``trainer`` has had something of a dynamic job, or may have, and is not known: a service that
        was killed wrote too little down."""
        had = begin.was_answered or (begin.is_repeat and self.is_forgetful)
        return self.dynamic and had and not self.is_known(trainer)

    def others(self, trainer: Trainer) -> list[Trainer] | None:
        """Return the trainers that share the job with ``trainer``, None if each has batches of its own."""
        return [each for each in self.trainers.values() if each is not trainer] if self.dynamic else None

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
            trainer = Trainer(attach.rank, state=self.passed_through.pop(attach.rank, PassState.BEFORE))
            self.trainers[attach.rank] = trainer
        silent = now - trainer.last_heard
        if trainer.peer and trainer.session != attach.session and silent < self.lease:
            who = "another trainer reads this job" if self.world == 1 else f"rank {attach.rank} is taken"
            raise JobTaken(
                f"{who} ({trainer.process}, last heard of {silent:.0f} s ago); wait until it has closed its client "
                f"or been silent for lease={self.lease:g} s, or read a job of your own (job='…')"
            )
        return trainer

    def replacement_error(self, trainer: Trainer, now: float) -> Rewound:
        """Return the error for the process that had the rank of ``trainer`` and loses it."""
        return Rewound(
            f"rank {trainer.rank} of job {self.name!r} was silent for {now - trainer.last_heard:.0f} s "
            f"(lease={self.lease:g}) and another process has its place now; raise lease where a step may take that long"
        )
