"""Keep who takes part in a job: its trainers and their connections, which has which rank, and which ranks are missing
(docs/order.md, "Ranks").

A rank may have several trainers, its *peers*. Everything here counts trainers, by their number; only what a trainer
gets follows from its rank. A rank that no trainer has costs nothing, so a job may say that it has many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any

from pydp2.errors import Error, JobTaken, OptionError, Rewound, to_wire
from pydp2.options.timing import DEFAULT_TIMING
from pydp2.protocol import messages as m
from pydp2.protocol.state_table import next_state
from pydp2.protocol.trainer_numbers import TrainerNumbers
from pydp2.server.jobs.agreement import UNFINISHED, PassRequest
from pydp2.server.jobs.sending import Flow, Outbox, StateFeed
from pydp2.server.snapshots.job_snapshot import PassState, RankSnapshot
from pydp2.system.step_times import StepTimes

_MAX_ABSENT = 1024  # trainers that were away for longer than their lease, and may come back
_NAMED = 4  # trainers that are not there, of those that the others wait for


class TrainerEvent(Enum):
    """Event that changes the state of a trainer in the pass of its job."""

    JOIN = "join"
    """The trainer begins the pass, or goes on in it."""
    FINISH = "finish"
    """The trainer has used all of its batches."""
    LEAVE = "leave"
    """The trainer does not want the rest, or the pass has failed."""
    RETURN = "return"
    """Another session has the place of the trainer."""
    RESTORE_END = "restore end"
    """The job is restored, and the trainer had used all of its batches before."""
    RESET = "reset"
    """Another pass begins, or the pass is over for all."""


_S, _E = PassState, TrainerEvent

TRAINER_TRANSITIONS: dict[tuple[PassState, TrainerEvent], PassState] = {
    (_S.BEFORE, _E.JOIN): _S.IN,
    (_S.BEFORE, _E.LEAVE): _S.LEFT,
    (_S.BEFORE, _E.RESTORE_END): _S.ENDED,
    (_S.IN, _E.JOIN): _S.IN,
    (_S.IN, _E.FINISH): _S.ENDED,
    (_S.IN, _E.LEAVE): _S.LEFT,
    (_S.IN, _E.RETURN): _S.BEFORE,
    (_S.LEFT, _E.LEAVE): _S.LEFT,
    **{(state, _E.RESET): _S.BEFORE for state in _S},
}
"""State and event to the next state."""


@dataclass(slots=True, eq=False)
class Trainer:
    """Trainer ``number`` of a job, called ``name`` in messages, which gets the batches of ``rank``. ``peer`` is empty
    while no process is connected as this trainer; ``last_heard``: when it last said something."""

    number: int
    rank: int = 0
    name: str = ""
    outbox: Outbox = field(default_factory=Outbox)
    peer: bytes = b""
    session: str = ""
    pid: int = 0
    host: str = ""  # where the process is, if that may be another host
    connection_number: int = 0  # of the connections that its process has made, the one that it has
    last_heard: float = 0.0
    state: PassState = PassState.BEFORE  # changed by move() alone
    first_unused: int = 0  # before this batch it has had all of its own
    flow: Flow = field(default_factory=Flow)
    feed: StateFeed = field(default_factory=StateFeed)
    run: int = 0  # number of its last request
    ended_run: int = 0  # the same, once it was sent the end of that run or an error
    previous_run_ended: bool = False
    is_outdated: bool = False  # it does not know the present generation
    unconfirmed_state: str = ""  # that its last runs named, while it is not known to have used a batch since
    deferred_state: str = ""  # from which it begins once the others have ended their pass
    pending: PassRequest | None = None  # of a pass that cannot begin yet
    steps: StepTimes = field(default_factory=StepTimes)
    reported: tuple[int, int] = (0, 0)  # its run, and the batches of that which it has reported as used

    def note_steps(self, need: m.Need, waited: float, worked: float) -> None:
        """Note the steps that it reports with ``need``, and the seconds that it waited and worked in them."""
        run, used = self.reported
        count = need.used_batches - (used if run == need.request_id else 0)
        self.reported = need.request_id, need.used_batches
        if count > 0:
            self.steps.add(waited, worked, count)

    def stats(self, now: float) -> dict[str, Any]:
        """Return statistics as plain data."""
        return {
            "number": self.number,
            "rank": self.rank,
            "name": self.name,
            "process": self.process,
            "connected": self.peer != b"",
            "state": self.state.value,
            "silent_seconds": now - self.last_heard,
            "batches_ahead": self.flow.sent,
            "waiting_seconds": (waiting := self.waiting_seconds(now)),
            "steps": self.steps.steps,
            **self.steps.summary(waiting),
        }

    def waiting_seconds(self, now: float) -> float:
        """Return how long it has been waiting for a batch, or for the end of its pass; 0.0: it does not wait."""
        is_asking = self.peer != b"" and self.run != self.ended_run and self.state is not PassState.LEFT
        return max(0.0, now - self.flow.starved_since) if is_asking and not self.flow.sent else 0.0

    @property
    def process(self) -> str:
        """Name of its process, for messages."""
        return f"process {self.pid} on {self.host}" if self.host else f"process {self.pid}"

    def connect(self, peer: bytes, attach: m.Attach, now: float) -> None:
        """Note that ``peer`` is its connection, which says ``attach``."""
        self.peer, self.last_heard = peer, now
        self.pid, self.host, self.connection_number = attach.pid, attach.host, attach.connection_number

    def take_over(self, session: str) -> None:
        """Note that another process has its place now, which calls itself ``session``."""
        self.session, self.run = session, 0
        self.is_outdated, self.deferred_state, self.unconfirmed_state = False, "", ""
        if self.state is PassState.IN:
            self.move(TrainerEvent.RETURN)

    def snapshot(self, first_unused: int) -> RankSnapshot:
        """Return what a service writes down of it. It has used all of its batches before ``first_unused``."""
        left = self.state is PassState.LEFT and self.ended_run != self.run  # and was not told how the pass ended
        return RankSnapshot(
            self.number,
            self.session,
            self.state,
            not self.is_outdated,
            first_unused,
            "" if left else self.unconfirmed_state,
        )

    def begin_run(self, begin: m.BeginPass) -> None:
        """Begin the run that it asks for with ``begin``."""
        self.previous_run_ended = self.ended_run == self.run
        self.run, self.ended_run, self.flow.asked_later = begin.request_id, 0, 0
        self.flow.starved_since = self.last_heard
        if not begin.state_name:
            self.unconfirmed_state = ""

    def is_in_run(self, run: int) -> bool:
        """Return True if ``run`` is its last one, and it was not sent the end of that."""
        return run == self.run != self.ended_run

    def is_asking(self, request: PassRequest) -> bool:
        """Return True if it waits for the answer to ``request``."""
        return self.peer != b"" and self.run == request.begin.request_id

    def move(self, event: TrainerEvent) -> None:
        """Change the state as ``event`` says. Raises IllegalTransition when the present state does not allow it."""
        self.state = next_state(TRAINER_TRANSITIONS, self.state, event)

    def acknowledge(self, done: int) -> list[int]:
        """Note that the first ``done`` batches of its run are used, and return the numbers of those that are new."""
        numbers = self.flow.acknowledge(done)
        if numbers:
            self.unconfirmed_state = ""
        return numbers

    def join(self, begin: m.BeginPass) -> list[int]:
        """Go on with the run of ``begin``. Return the numbers of the batches that the trainer has used."""
        used = self.flow.begin_run(begin)
        self.move(TrainerEvent.JOIN)
        self.first_unused = max(self.first_unused, begin.first_batch)
        return used

    def end_run(self, message: m.PassEnd | m.Failed) -> None:
        """Send it the end of its run."""
        self.ended_run = self.run
        self.outbox.send(self.peer, message)

    def refuse(self, error: Error) -> None:
        """Refuse what it asks for."""
        self.unconfirmed_state = ""
        self.end_run(m.Failed(self.run, to_wire(error)))

    def begin_again(self) -> None:
        """Have it ask anew for what it asked for."""
        self.pending = None
        self.outbox.send(self.peer, m.BeginAgain(self.run))

    def disconnect(self) -> None:
        """Forget the connection."""
        self.peer = b""
        self.flow.disconnect()
        self.feed = StateFeed()
        self.pending = None

    def reset(self) -> None:
        """Reset it for the next pass."""
        self.move(TrainerEvent.RESET)
        self.flow.end_pass()
        self.feed = StateFeed()
        self.first_unused = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Options of the trainers that share the batches of job ``name``: those with ``numbers``, or with ``dynamic`` as
    many as come. ``missing_rank``: seconds that trainers wait for another before the log names it. ``loss``: why the
    last snapshot of a service before this one could not be used."""

    name: str
    numbers: TrainerNumbers
    dynamic: bool
    lease: float
    prefetch_bytes: int
    missing_rank: float = DEFAULT_TIMING.missing_rank
    loss: str = ""


class RankRegistry:
    """Trainers of a job by number: the peers of its ranks, or with ``dynamic`` one number for each trainer that
    comes."""

    def __init__(self, options: GroupOptions) -> None:
        self.numbers = options.numbers
        """Numbers of its trainers, unless it is dynamic."""
        self.size = self.numbers.total
        """Number of its trainers, 1 if it is dynamic."""
        self.outbox = Outbox(has_ranks=self.size > 1)
        """Messages to them."""
        self._limit = options.prefetch_bytes
        self.name = options.name
        self.world = options.numbers.world
        self.dynamic = options.dynamic
        self.lease = options.lease
        self.loss = options.loss
        self.is_single_rank = self.size == 1 and not self.dynamic
        """There is one rank, with one trainer."""
        self.trainers: dict[int, Trainer] = {}
        """Trainers that are connected, or were and may come back."""
        self.passed_through: dict[int, PassState] = {}
        """Where those trainers stand that ended or left the pass under way, and then the job."""
        self.left_at: set[int] = set()
        """Numbers of trainers that were there and left in order."""
        self._expired: dict[str, Trainer] = {}  # by session: they hold no batches, and nobody waits for them
        self._connected: dict[bytes, Trainer] = {}
        self._counter = count()  # of trainers of a dynamic job: none is given twice
        self._parted_at = 0.0  # when the last of them left

    @property
    def empty(self) -> bool:
        """True while no trainer is connected."""
        return not self._connected

    @property
    def absent(self) -> int:
        """Number of trainers that are not there and have not ended or left the pass under way."""
        return 0 if self.dynamic else self.size - len(self.trainers) - len(self.passed_through)

    @property
    def first_number(self) -> int | None:
        """The lowest number of a trainer that is connected, None while there is none."""
        return min((number for number, trainer in self.trainers.items() if trainer.peer), default=None)

    @property
    def to_come(self) -> int:
        """Number of trainers that were never there."""
        return 0 if self.dynamic else self.size - len(self.trainers.keys() | self.left_at)

    @property
    def is_pass_over(self) -> bool:
        """True if no trainer has anything of the pass under way to come. If none of those that are there has begun it,
        those who did are gone without a word, and what they have not used goes to these."""
        states = {trainer.state for trainer in self.trainers.values()}
        unfinished = {PassState.IN} if self.dynamic else UNFINISHED
        return not (self.absent or states & unfinished or states == {PassState.BEFORE})

    def late_for_next_pass(self) -> tuple[list[Trainer], bool] | None:
        """Return the trainers that others wait for before the next pass can begin, and whether they wait for some that
        are not there, too; None: nobody waits for that."""
        trainers = self.trainers.values()
        if all(trainer.pending is None for trainer in trainers):
            return None
        late = [trainer for trainer in trainers if trainer.pending is None and trainer.state in UNFINISHED]
        return late, self.absent > 0

    def absent_numbers(self, most: int) -> list[int]:
        """Return the numbers of the first ``most`` trainers that are absent."""
        found: list[int] = []
        for number in range(self.size if self.absent else 0):
            if number not in self.trainers and number not in self.passed_through:
                found.append(number)
            if len(found) == min(most, self.absent):
                break
        return found

    def silent_trainers(self, now: float) -> list[Trainer]:
        """Return the trainers that were silent for longer than their lease."""
        return [trainer for trainer in self.trainers.values() if now - trainer.last_heard > self.lease]

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
        return (self.is_single_rank and session is not None) or self.silent_seconds(now) > self.lease

    def by_peer(self, peer: bytes) -> Trainer | None:
        """Return the trainer that is connected as ``peer``."""
        return self._connected.get(peer)

    def by_session(self, session: str | None) -> Trainer | None:
        """Return the trainer that calls itself ``session``."""
        return next((trainer for trainer in self.trainers.values() if trainer.session == session), None)

    def replaced_by(self, attach: m.Attach) -> Trainer | None:
        """Return the trainer that a newcomer which says ``attach`` would replace."""
        if self.dynamic or attach.peer_count != self.numbers.peers:
            return None
        return self.trainers.get(self.numbers.of(attach.rank, attach.peer))

    def claim(self, attach: m.Attach, now: float) -> Trainer:
        """Return the trainer whose rank ``attach`` asks for. Raises OptionError, JobTaken, Rewound."""
        known = self.by_session(attach.session)
        if known is not None and attach.connection_number < known.connection_number:
            raise Rewound(f"a later connection of the same process is {known.name} of job {self.name!r}")
        return self._newcomer(attach.session) if self.dynamic else self._rank(attach, now)

    def connect(self, trainer: Trainer, peer: bytes, attach: m.Attach, now: float) -> None:
        """Make ``peer``, which says ``attach``, the only connection of ``trainer``."""
        self.disconnect(trainer)
        trainer.connect(peer, attach, now)
        self._connected[peer] = trainer

    def disconnect(self, trainer: Trainer) -> None:
        """Forget the connection of ``trainer``."""
        self._connected.pop(trainer.peer, None)
        trainer.disconnect()

    def leave_in_order(self, trainer: Trainer, now: float) -> None:
        """Free the place of ``trainer``, which left in order. Where it stood is known as long as the pass lasts."""
        self.disconnect(trainer)
        del self.trainers[trainer.number]
        self._parted_at = now
        if not self.dynamic:
            self.left_at.add(trainer.number)
            if trainer.state not in UNFINISHED:
                self.passed_through[trainer.number] = trainer.state

    def end_lease(self, trainer: Trainer) -> None:
        """End the lease of a trainer of a dynamic job. If it is not connected, it is set aside; when it wakes or comes
        back, it asks anew and goes on."""
        trainer.flow.credit = 0
        if trainer.peer:
            return
        del self.trainers[trainer.number]
        trainer.reset()
        self._expired[trainer.session] = trainer
        if len(self._expired) > _MAX_ABSENT:
            del self._expired[next(iter(self._expired))]

    def members(self) -> list[Trainer]:
        """Return all trainers, also those that are set aside."""
        return [*self.trainers.values(), *self._expired.values()]

    def snapshot(self, first_missing: Callable[[Trainer], int] | None) -> list[RankSnapshot]:
        """Return what is written down of the trainers: also of those whose connection is gone, because not all of them
        are dead, and what one has that comes back is its own. ``first_missing`` says which batch of the pass under way
        one may still have to be sent first; None: there is no pass."""
        trainers = self.trainers.values()
        ranks = [trainer.snapshot(0 if first_missing is None else first_missing(trainer)) for trainer in trainers]
        return ranks + [RankSnapshot(number, "", state, True) for number, state in self.passed_through.items()]

    def restore(self, ranks: Iterable[RankSnapshot], now: float) -> None:
        """Take in the trainers of a service that was killed, which are not connected and have not begun: they may come
        back, as if last heard of ``now``."""
        for rank in ranks:
            if rank.session:
                trainer = self.trainers[rank.number] = self._new(rank.number)
                trainer.session, trainer.last_heard = rank.session, now
                trainer.is_outdated, trainer.unconfirmed_state = not rank.joined, rank.unanswered
        self._parted_at = now

    def _new(self, number: int, state: PassState = PassState.BEFORE) -> Trainer:
        rank, name = self.numbers.rank(number), self.numbers.name(number)
        return Trainer(number, rank, name, self.outbox, state=state, flow=Flow(self._limit))

    def _newcomer(self, session: str) -> Trainer:
        known = self.by_session(session)
        if known is None:
            known = self._expired.pop(session, None) or self._new(next(self._counter))
            self.trainers[known.number] = known
        return known

    def _rank(self, attach: m.Attach, now: float) -> Trainer:
        if attach.world_size != self.world:
            raise OptionError(
                f"job {self.name!r} has world_size={self.world}, this trainer says {attach.world_size}; all ranks of a "
                f"job must say the same{self.ending_reason(now)}"
            )
        if attach.peer_count != self.numbers.peers:
            raise OptionError(
                f"job {self.name!r} has {_peers_text(self.numbers.peers)}, this trainer says "
                f"{_peers_text(attach.peer_count)}; all trainers of a job must say the same{self.ending_reason(now)}"
            )
        number = self.numbers.of(attach.rank, attach.peer)
        trainer = self.trainers.get(number)
        if trainer is None:
            trainer = self._new(number, self.passed_through.pop(number, PassState.BEFORE))
            self.trainers[number] = trainer
        silent = now - trainer.last_heard
        if trainer.peer and trainer.session != attach.session and silent < self.lease:
            who = "another trainer reads this job" if self.size == 1 else f"{trainer.name} is taken"
            raise JobTaken(
                f"{who} ({trainer.process}, last heard of {silent:.0f} s ago); wait until it has closed its client "
                f"or been silent for lease={self.lease:g} s, or read a job of your own (job='…')"
            )
        return trainer

    def replacement_error(self, trainer: Trainer, now: float) -> Rewound:
        """Return the error for the process that had the place of ``trainer`` and loses it."""
        return Rewound(
            f"{trainer.name} of job {self.name!r} was silent for {now - trainer.last_heard:.0f} s "
            f"(lease={self.lease:g}) and another process has its place now; raise lease where a step may take that long"
        )


def _peers_text(peers: int) -> str:
    return f"share_along=(k, {peers})" if peers > 1 else "no share_along"


class MissingRanks:
    """Missing trainers of the job of ``registry``. Each is named once for each time that the others wait for it, after
    ``missed`` seconds."""

    def __init__(self, registry: RankRegistry, missed: float) -> None:
        self._registry = registry
        self._missed = missed
        self._since: dict[int, float] = {}  # by number, of those that the others wait for now
        self._named: set[int] = set()

    def rank_returned(self, trainer: Trainer) -> None:
        """Note that ``trainer`` is there again."""
        self._since.pop(trainer.number, None)

    def overdue_messages(
        self, late: Sequence[Trainer], waits_for_absent: bool, now: float
    ) -> list[tuple[str, dict[str, int]]]:
        """Return the lines for the log, each with its fields, when others wait for the trainers that are ``late``, and
        for some that are not there."""
        registry = self._registry
        absent = registry.absent_numbers(_NAMED) if waits_for_absent else []
        self._since = {n: self._since.get(n, now) for n in (*absent, *(trainer.number for trainer in late))}
        overdue = {number for number, since in self._since.items() if now - since >= self._missed}
        new, self._named = overdue - self._named, overdue
        lines = [(trainer.name, self._why(trainer, now), [trainer.rank]) for trainer in late if trainer.number in new]
        if numbers := [number for number in absent if number in new]:
            others = registry.absent - len(absent)
            why = "left" if registry.left_at >= {*numbers} else "never came"
            why += f"; connect with {registry.numbers.keywords(numbers[0])}"
            ranks = [registry.numbers.rank(number) for number in numbers]
            lines.append((self._names(numbers, others), why, [] if others else ranks))
        return [
            (f"job {registry.name!r} waits for {who}, which {why}", {"rank": ranks[0]} if len(ranks) == 1 else {})
            for who, why, ranks in lines
        ]

    def _names(self, numbers: Sequence[int], others: int) -> str:
        """Return the names of the trainers ``numbers``, beside which ``others`` are not named."""
        name, peers = self._registry.numbers.name, self._registry.numbers.peers
        if len(numbers) + others == 1:
            who = name(numbers[0])
        else:
            who = ", ".join(map(name, numbers)) if peers > 1 else f"ranks {', '.join(map(str, numbers))}"
        return who + (f" and {others} others" if others else "")

    def _why(self, trainer: Trainer, now: float) -> str:
        silent = now - trainer.last_heard
        if trainer.peer and silent < 1:
            return f"is behind the others ({trainer.process})"
        if trainer.peer:
            return f"has not asked for a batch for {silent:.0f} s ({trainer.process})"
        again = self._registry.numbers.keywords(trainer.number, world=False)
        return f"is gone since {silent:.0f} s; connect it again with {again}"
