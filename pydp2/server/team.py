"""The trainers of a job: who gets which batch, what is sent again, when a pass ends for all (docs/order.md, "Ranks").

A batch is kept until the trainer that it went to has used it: asked for the next one, or left in order. Pure: what is
to be sent collects in ``out``, what is to be read is asked for through ``read``; the clock is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydp2.errors import Error, RemoteProtocolError, Rewound, to_wire
from pydp2.order.saved import Saved
from pydp2.protocol import messages as m
from pydp2.server.common import Common
from pydp2.server.job import Broke, Group, Job, Over
from pydp2.server.member import Edge, Held, Member, Stands
from pydp2.server.missing import Missing
from pydp2.server.places import Places
from pydp2.server.reading import Reading

_WINDOW = 4  # groups, and twice the prefetch, that may wait for a rank
_AHEAD = 1000  # batches that may be used beyond one that is not, dynamic

Facts = Mapping[int, tuple[int, str]]


class Team(Places):
    """The trainers of ``job``: ``world`` ranks, or with ``dynamic`` as many as come."""

    def __init__(
        self,
        job: Job,
        *,
        name: str,
        world: int,
        dynamic: bool,
        lease: float,
        read: Callable[[Reading | None], None],
        over: Callable[[Over], None],
        log: Callable[[str, str], None],
    ) -> None:
        super().__init__(name, world, dynamic, lease)
        self.job = job
        self._read = read
        self._over = over
        self._log = log
        self.out: deque[tuple[bytes, m.Message, Sequence[Any]]] = deque()
        """Messages to be sent, and to whom."""
        self.in_pass = False
        self._position = 0  # before this batch all were cut
        self._end: Over | Broke | None = None
        self._loaded = ""  # the state that the present generation began with
        self._joined: set[int] = set()  # who began from it
        self._start: Saved | None = None
        self._common = Common(self.members)  # dynamic
        self._missing = Missing(name, world)

    # -- coming and going ------------------------------------------------------------------------------------------
    def attach(self, peer: bytes, attach: m.Attach, now: float) -> dict[str, Any]:
        """``peer`` takes a place; where that stands. Raises OptionError, JobTaken."""
        member = self.place_for(attach, now)
        if member.peer:
            self._fail(member, self.replaced(member, now))
        member.forget()
        member.peer, member.pid, member.heard, member.joined = peer, attach.pid, now, True
        if member.session != attach.session:
            member.session, member.run = attach.session, 0
            member.stands = Stands.BEFORE if member.stands is Stands.IN else member.stands
        self._missing.came(member)
        if not self.in_pass or member.stands in (Stands.ENDED, Stands.LEFT):
            return {"pass": self.job.pass_id + 1, "batch": 0}
        batch = member.held[0].group.batches[0].cut.index if member.held else self._position
        return {"pass": self.job.pass_id, "batch": self._common.low if self.dynamic else batch}

    def detach(self, member: Member, run: int, done: int) -> None:
        """``member`` left in order."""
        self._leave(member, done if run == member.run else 0)
        member.forget()
        member.session = ""
        if self.dynamic:
            self.members.remove(member)
        self._settle()

    def vanish(self, member: Member, now: float) -> None:
        """``member`` is gone without a word. Its place is kept."""
        member.forget()
        member.heard = now

    # -- passes ----------------------------------------------------------------------------------------------------
    def begin(self, peer: bytes, begin: m.BeginPass, saved: Saved | None, facts: Facts, now: float) -> None:
        """A trainer begins a pass, goes on in one, or goes back to a state."""
        member = self._heard(peer, now)
        if begin.run <= member.run:
            raise RemoteProtocolError(f"run {begin.run} begins after run {member.run}")
        member.run = begin.run
        if begin.loaded and (begin.loaded != self._loaded or member.rank in self._joined):
            self._rewind(member, begin.loaded)
        elif not begin.loaded and not member.joined:
            self._fail(member, self._rewound())
            return
        if begin.loaded:
            self._joined.add(member.rank)
            member.joined = True
        if self.in_pass and begin.pass_id != self.job.pass_id and member.stands is Stands.IN:
            self._leave(member, 0)
            self._settle()
        if begin.pass_id < self.job.pass_id + (not self.in_pass) and not begin.loaded:
            self._tell(member, m.PassEnd(member.run, 0, 0, 0, False))  # it was over before this trainer began
        elif not self.in_pass:
            self._start_pass(member, begin, saved, facts)
        elif begin.pass_id == self.job.pass_id and member.stands in (Stands.BEFORE, Stands.IN):
            self._join(member, begin, len(facts))
        elif begin.pass_id == self.job.pass_id + 1 and begin.batch == 0:
            member.pending = begin
        else:
            self._fail(
                member,
                Rewound(
                    f"job {self.name!r} is in pass {self.job.pass_id}, rank {member.rank} asks for pass "
                    f"{begin.pass_id}: load the same state in all ranks, or none in any"
                ),
            )

    def _rewind(self, member: Member, loaded: str) -> None:
        """A new generation begins with the state ``loaded``."""
        self.stop()
        self._loaded = loaded
        self._joined = set()
        for other in self.members:
            if other is not member and other.peer:
                other.joined = False
                if other.pending is not None or other.stands is Stands.IN:
                    self._fail(other, self._rewound())
            other.restart()
            other.pending = None

    def _rewound(self) -> Rewound:
        return Rewound(
            f"another rank of job {self.name!r} has loaded a state, and the service went back to it: load the same "
            "state here, too"
        )

    def _start_pass(self, member: Member, begin: m.BeginPass, saved: Saved | None, facts: Facts) -> None:
        try:
            reading = self.job.begin(
                begin.pass_id, batch=begin.batch, saved=saved, facts=facts, beyond=begin.beyond,
                buckets=begin.buckets, world=1 if self.dynamic else self.world,
            )  # fmt: skip
        except Error as error:
            self._fail(member, error)
            return
        self._read(None)
        self._read(reading)
        for each in self.members:
            each.restart()
        self.in_pass, self._end, self._position, self._start = True, None, begin.batch, saved
        self._common.begin(begin.batch, begin.beyond, saved)
        if begin.batch:
            files, samples = self.job.again
            self._log(
                f"pass {begin.pass_id} is taken up at batch {begin.batch}: {files} files are run again, "
                f"{samples} samples of them a second time",
                "",
            )
        self._join(member, begin, len(facts))

    def _join(self, member: Member, begin: m.BeginPass, facts: int) -> None:
        self._use(member.join(begin, facts))
        if self.dynamic:
            self._common.join(begin)
        member.point = self._start if begin.saved else None

    def leave(self, peer: bytes, run: int, done: int, now: float) -> None:
        """A trainer does not want the rest of its pass."""
        member = self._heard(peer, now)
        if run == member.run:
            self._leave(member, done)
            self._settle()

    def _leave(self, member: Member, done: int) -> None:
        self._use(member.use(done))
        member.pending = None
        if self.dynamic:
            self._common.give_back(member)
        if self.in_pass and member.stands is not Stands.ENDED:
            member.stands = Stands.LEFT
        member.held.clear()
        member.sent = 0

    def need(self, peer: bytes, need: m.Need, now: float) -> None:
        """A trainer takes a batch and has used those before."""
        member = self._heard(peer, now)
        if need.run == member.run:
            member.credit += need.count
            self._use(member.use(need.done))

    def _use(self, numbers: list[int]) -> None:
        if self.dynamic:
            self._common.use(numbers)

    def _heard(self, peer: bytes, now: float) -> Member:
        member = self.of(peer)
        if member is None:
            raise RemoteProtocolError("a message from a trainer that has lost its place")
        member.heard = now
        return member

    def _fail(self, member: Member, error: Error) -> None:
        self._tell(member, m.Failed(member.run, to_wire(error)))

    def _tell(self, member: Member, message: m.Message) -> None:
        if member.peer:
            self.out.append((member.peer, message, ()))

    def _settle(self) -> None:
        """End the pass when it is over for all, and begin the next one."""
        stays = (Stands.IN,) if self.dynamic else (Stands.BEFORE, Stands.IN)
        if not self.in_pass or any(each.stands in stays for each in self.members):
            return
        if isinstance(self._end, Over) and (said := self.job.said_of_padding()):
            self._log(said, "")
        self.stop()
        if isinstance(self._end, Over):
            self._over(self._end)
        for each in self.members:
            each.restart()
        for each in self.members:
            if each.pending is not None:
                begin, each.pending = each.pending, None
                if self.in_pass:
                    self._join(each, begin, 0)
                else:
                    self._start_pass(each, begin, None, {})

    def stop(self) -> None:
        """End the pass for all."""
        if self.in_pass:
            self.in_pass = False
            self.job.leave()
            self._read(None)

    # -- batches ---------------------------------------------------------------------------------------------------
    def serve(self, most: int) -> bool:
        """Cut what is asked for, about ``most`` batches at once; True when there may be more."""
        for _ in range(most):
            if not self.in_pass:
                return False
            self._hand_out()
            if self._end is not None or not self._wanted():
                break
            outcome = self.job.next()
            if outcome is None:
                return False
            if isinstance(outcome, Group):
                self._take(outcome)
            else:
                self._end = outcome
        else:
            return True
        self._finish()
        return False

    def _wanted(self) -> bool:
        """Whether anybody can take a batch that there is not yet, and those who are behind are not too far behind."""
        if not self._asked():
            return False
        if self.dynamic and self._common.ahead >= _AHEAD:
            return False  # who holds the first one uses it, or its lease ends
        return not any(self._full(each) for each in self.members)

    def _asked(self) -> bool:
        """Whether anybody asks for more than there is for it."""
        return any(each.stands is Stands.IN and each.credit > each.unsent for each in self.members)

    def _full(self, member: Member) -> bool:
        window = _WINDOW + 2 * max(each.prefetch for each in self.members)
        return not self.dynamic and member.stands is not Stands.LEFT and len(member.held) >= window

    def _take(self, group: Group) -> None:
        self._position = group.after
        if self.dynamic:
            self._common.add(group)
            return
        for member, ready in zip(self.members, group.batches, strict=False):
            if member.stands is not Stands.LEFT:
                member.held.append(Held(ready, group))

    def _hand_out(self) -> None:
        for member in self.members:
            while member.stands is Stands.IN and member.credit > 0:
                if not member.unsent and self._common:
                    member.held.append(self._common.take())
                if not member.unsent:
                    break
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
                    end = self._end
                    count = end.batches if self.dynamic else max(0, -(-(end.batches - member.rank) // self.world))
                    self._tell(member, m.PassEnd(member.run, count, end.samples, end.dropped, end.uniform))
        self._settle()

    # -- time ------------------------------------------------------------------------------------------------------
    def watch(self, now: float) -> None:
        """Look for leases that ran out, and for ranks that keep the others waiting."""
        if self.dynamic:
            for member in [each for each in self.members if now - each.heard > self.lease]:
                if member.held:
                    count = len(member.held)
                    self._log(f"job {self.name!r}: {count} batches of a silent trainer go to others", "lease")
                    self._common.give_back(member)
                member.credit = 0  # when it wakes it asks anew
                if not member.peer:
                    self.members.remove(member)
            self._settle()
            return
        for text in self._missing.look(self._late(), now):
            self._log(text, "")

    def _late(self) -> list[Member]:
        """Ranks that others wait for."""
        if any(each.pending is not None for each in self.members):
            return [each for each in self.members if each.pending is None and each.stands in (Stands.BEFORE, Stands.IN)]
        waited_for = self.in_pass and self._asked()
        return [each for each in self.members if waited_for and self._full(each)]
