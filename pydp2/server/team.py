"""The trainers of a job: who gets which batch, what is sent again, when a pass ends for all (docs/order.md, "Ranks").

A batch is kept until the trainer that it went to has used it: asked for the next one, or left in order. Pure: what is
to be sent collects in ``out``, what is to be read is asked for through ``read``; the clock is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pydp2.config import JobOptions
from pydp2.errors import Error, RemoteProtocolError, Rewound
from pydp2.order.saved import Saved
from pydp2.protocol import messages as m
from pydp2.protocol.facts import Facts, by_file, listed
from pydp2.server.dealer import Dealer
from pydp2.server.gathering import Asked, Gathering
from pydp2.server.job import Broke, Group, Job, Over
from pydp2.server.kept import Kept, Place, Running
from pydp2.server.member import Edge, Member, Stands
from pydp2.server.missing import Absent, Missing
from pydp2.server.reading import Reading
from pydp2.server.timing import USUAL

_NAMED = 4  # ranks that are not there, of those that the others wait for


class Team(Dealer):
    """The trainers of ``job``: ``world`` ranks, or with ``dynamic`` as many as come."""

    def __init__(
        self,
        job: Job,
        *,
        name: str,
        world: int,
        dynamic: bool,
        lease: float,
        prefetch_bytes: int,
        read: Callable[[Reading | None], None],
        over: Callable[[Over], None],
        log: Callable[[str, str], None],
        missed: float = USUAL.missed,
    ) -> None:
        super().__init__(job, name, world, dynamic, lease, prefetch_bytes)
        self._read = read
        self._over = over
        self._log = log
        self._loaded = ""  # the state that the present generation began with
        self._joined: set[int] = set()  # who began from it
        self._start: Saved | None = None
        self._restored = False  # from what was written down
        self._unsure = False  # too little was written down: only a state tells where to go on
        self._opened = 0  # where the pass began, or was taken up
        self._gathering: Gathering | None = None
        self._missing = Missing(name, world, missed)

    # -- coming and going ------------------------------------------------------------------------------------------
    def attach(self, peer: bytes, attach: m.Attach, now: float) -> dict[str, Any]:
        """``peer`` takes a place; where that stands. Raises OptionError, JobTaken."""
        member = self.place_for(attach, now)
        if member.peer:
            self._fail(member, self.replaced(member, now))
        self.seat(member, peer)
        member.pid, member.heard = attach.pid, now
        for held in self._unclaimed.claim(member.rank):
            member.put(held)
        if member.session != attach.session:
            member.session, member.run, member.joined = attach.session, 0, True
            member.stands = Stands.BEFORE if member.stands is Stands.IN else member.stands
        self.to_keep = self.to_keep or self.dynamic  # who is waited for
        self._missing.came(member)
        if not self.in_pass or member.stands in (Stands.ENDED, Stands.LEFT):
            return {"pass": self.job.pass_id + 1, "batch": 0}
        return {"pass": self.job.pass_id, "batch": self._common.low if self.dynamic else self._first_for(member)}

    @property
    def awaited(self) -> bool:
        """Not all ranks have had the pass that was begun: who comes within the lease goes on in it."""
        return self._gathering is not None or (self.in_pass and not self.alone and not self.dynamic)

    def detach(self, member: Member, run: int, done: int, now: float) -> None:
        """``member`` left in order."""
        self._leave(member, done if run == member.run else 0)
        if self._gathering is not None:
            self._gathering.gone(member)
        self.part(member, now)
        self._settle()

    def vanish(self, member: Member, now: float) -> None:
        """``member`` is gone without a word. Its place is kept."""
        self.unseat(member)
        member.heard = now
        self.to_keep = not self.alone

    # -- passes ----------------------------------------------------------------------------------------------------
    def begin(self, peer: bytes, begin: m.BeginPass, saved: Saved | None, facts: Facts, now: float) -> None:
        """A trainer begins a pass, goes on in one, or goes back to a state."""
        member = self._heard(peer, now)
        if begin.run <= member.run:
            raise RemoteProtocolError(f"run {begin.run} begins after run {member.run}")
        # of a service that was killed, and nothing of it was written down
        lost = self.dynamic and not member.run and begin.run > 1 and not self._restored
        member.run = begin.run
        if begin.loaded and (begin.loaded != self._loaded or (member.rank in self._joined and not begin.again)):
            self._rewind(member, begin.loaded)
        elif not begin.loaded and (self._unsure or lost or not member.joined):
            self._fail(member, self._too_late(member) if self._unsure or lost else self._rewound())
            return
        if begin.loaded:
            self._joined.add(member.rank)
            member.joined = True
            self.to_keep = not self.alone  # once it had an answer it does not name the state again
        if self._gathering is None and self._lost_track(begin):
            self.stop()
            if self.dynamic:
                self._fail(member, self._too_late(member))
                return
            self._gathering = Gathering(range(self.world), now + self.lease, dynamic=False)
        if self._gathering is not None:
            self._gathering.add(Asked(member, begin, saved, facts))
            self._gather(now)
            return
        if self.in_pass and begin.pass_id > self.job.pass_id and member.stands in (Stands.BEFORE, Stands.IN):
            self._leave(member, 0)
            self._settle()
        self._enter(member, begin, saved, facts)

    def _lost_track(self, begin: m.BeginPass) -> bool:
        """Whether ``begin`` comes from the middle of a pass that is not known here: of a service that was killed."""
        return not self.alone and not begin.loaded and begin.pass_id + (begin.batch > 0) > self.job.pass_id + 1

    def _gather(self, now: float) -> None:
        """Go on when all are there who were in the pass, or have been waited for."""
        gathering = self._gathering
        if gathering is None or not gathering.over(now):
            return
        self._gathering = None
        first = gathering.outcome()
        there = [one for one in gathering.asked.values() if one.member.peer and one.member.run == one.begin.run]
        try:
            self._open(first.begin, first.saved, first.facts)
        except Error as error:
            for one in there:
                self._fail(one.member, error)
            return
        for one in there:
            if one.begin.pass_id > first.begin.pass_id:
                one.member.stands = Stands.LEFT  # or it had ended it
            self._enter(one.member, one.begin, one.saved, one.facts)
        self._settle()

    def _enter(self, member: Member, begin: m.BeginPass, saved: Saved | None, facts: Facts) -> None:
        """What ``begin`` asks for, by where the job stands."""
        over = begin.pass_id < self.job.pass_id + (not self.in_pass)
        failed = begin.pass_id == self.job.pass_id and (over or member.stands is Stands.LEFT) and not begin.loaded
        if failed and isinstance(self._end, Broke):
            self._fail(member, self._end.error)  # it has not seen that yet, or not understood
        elif (over or (begin.pass_id == self.job.pass_id and member.stands is Stands.ENDED)) and not begin.loaded:
            self._tell(member, m.PassEnd(member.run, 0, 0, 0, False))  # it was over before this trainer began
        elif not self.in_pass:
            self._start_pass(member, begin, saved, facts)
        elif begin.pass_id == self.job.pass_id and member.stands in (Stands.BEFORE, Stands.IN):
            self._join(member, begin, facts)
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
        waiting = set() if self._gathering is None else {*self._gathering.asked}
        self._gathering = None
        self._loaded, self._unsure = loaded, False
        self._joined = set()
        for other in self.members.values():
            if other is not member:
                other.joined = False  # also of one that is away: it comes back with what it has had
                if other.pending is not None or other.stands is Stands.IN or other.rank in waiting:
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
            self._open(begin, saved, facts)
        except Error as error:
            self._fail(member, error)
        else:
            self._join(member, begin, facts)

    def _open(self, begin: m.BeginPass, saved: Saved | None, facts: Facts) -> None:
        """A pass is under way, from ``begin`` on. Raises Error where that cannot be."""
        reading = self.job.begin(
            begin.pass_id, batch=begin.batch, saved=saved, facts=facts, beyond=begin.beyond,
            buckets=begin.buckets, world=1 if self.dynamic else self.world,
        )  # fmt: skip
        self._read(reading)
        for each in self.members.values():
            each.restart()
        self.in_pass, self._end, self._start = True, None, saved
        self._opened = self._position = begin.batch
        self._edges = deque([Edge(begin.batch, 0, saved)])
        self._facts = listed(facts)
        self.to_keep = not self.alone
        self._common.begin(begin.batch, begin.beyond, saved)
        if begin.batch:
            files, samples = self.job.again
            self._log(
                f"pass {begin.pass_id} is taken up at batch {begin.batch}: {files} files are run again, "
                f"{samples} samples of them a second time",
                "",
            )

    def _join(self, member: Member, begin: m.BeginPass, facts: Facts) -> None:
        if (not self.dynamic and begin.batch + member.rank < self._opened) or not self.job.knows(facts):
            self._fail(member, self._too_late(member))
            return
        self._use(member.join(begin, len(facts)))
        if self.dynamic:
            self._common.join(begin)
        member.point = self._start if begin.saved else None

    def _too_late(self, member: Member) -> Rewound:
        return Rewound(
            f"the service was started again and does not know any more what rank {member.rank} of job {self.name!r} "
            "needs to go on; load the same state in all ranks"
        )

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
            self.to_keep = not self.alone
        member.drop()

    def need(self, peer: bytes, need: m.Need, now: float) -> None:
        """A trainer takes a batch and has used those before."""
        member = self._heard(peer, now)
        if need.run == member.run:
            self._use(member.use(need.done))
            member.ask(need.count)

    def _heard(self, peer: bytes, now: float) -> Member:
        member = self.of(peer)
        if member is None:
            raise RemoteProtocolError("a message from a trainer that has lost its place")
        member.heard = now
        return member

    def _settle(self) -> None:
        """End the pass when it is over for all, and begin the next one."""
        stays = (Stands.IN,) if self.dynamic else (Stands.BEFORE, Stands.IN)
        if not self.in_pass or self.absent or any(each.stands in stays for each in self.members.values()):
            return
        if isinstance(self._end, Over) and (said := self.job.said_of_padding()):
            self._log(said, "")
        self.stop()
        if isinstance(self._end, Over):
            self._over(self._end)
        for each in self.members.values():
            each.restart()
        for each in self.members.values():
            if each.pending is not None:
                begin, each.pending = each.pending, None
                if self.in_pass:
                    self._join(each, begin, {})
                else:
                    self._start_pass(each, begin, None, {})

    def stop(self) -> None:
        """End the pass for all. What waits for them is let go: this object may be remembered for long after."""
        if self.in_pass:
            self.in_pass = False
            self.job.leave()
            self._read(None)
            self._clear()

    # -- what is kept of it ----------------------------------------------------------------------------------------
    def kept(self, options: JobOptions, fits: dict[str, Any]) -> Kept:
        """What is written down of this job, so that it can go on. (A job of one rank: whose it is. Its trainer knows
        the rest.)"""
        self.to_keep = False
        # also of those whose connection is gone: not all of them are dead, and what one has that comes back is its own
        places = [
            Place(each.rank, each.session, each.stands, each.joined, self._first_for(each))
            for each in self.members.values()
        ]
        places += [Place(rank, "", stands, True) for rank, stands in self._through.items()]
        running = None if self._gathering is None else self._gathering.so_far()
        pass_id = -1 if self.alone else self.job.pass_id + (running is not None)
        if self.in_pass and not self.alone and self.job.plan.order == "strict":
            running = Running.at(self._edge(), self._facts, self.job.buckets)
        return Kept(
            self.name, self.world, options, fits, places, pass_id, self._loaded, sorted(self._joined), running
        )  # fmt: skip

    def restore(self, kept: Kept, now: float, *, last: bool = True) -> None:
        """Be the job that was written down. ``last``: nothing was written after it. Raises Error where it cannot be."""
        self._restored = True
        self._loaded, self._joined = kept.loaded, set(kept.began)
        for place in kept.places:
            if place.session or self.dynamic:
                member = self.members[place.rank] = Member(place.rank)
                member.session, member.joined, member.heard = place.session, place.joined, now
        self._parted_at = now
        running = kept.running
        self.job.pass_id = kept.pass_id
        self._unsure = self.dynamic and not last  # whoever came later is not known here, nor what it had
        if running is None or self.alone:
            return
        if self.dynamic:
            self.job.pass_id -= 1
            waits = {place.rank for place in kept.places if place.stands in (Stands.BEFORE, Stands.IN)}
            self._gathering = Gathering(waits, now + self.lease, dynamic=True, pass_id=kept.pass_id, kept=running)
            return
        begin = m.BeginPass(0, kept.pass_id, running.batch, 0, {}, 0, running.beyond, "", running.buckets)
        self._open(begin, running.point, by_file(running.facts))
        for place in kept.places:
            known = self.members.get(place.rank)
            if known is not None:  # who had not begun may have, since
                known.stands = Stands.IN if place.stands is Stands.BEFORE else place.stands
                known.below = place.below
            elif place.stands in (Stands.ENDED, Stands.LEFT):
                self._through[place.rank] = place.stands

    # -- batches ---------------------------------------------------------------------------------------------------
    def serve(self, most: int) -> bool:
        """Cut what is asked for, about ``most`` batches at once; True when there may be more."""
        for _ in range(most):
            if not self.in_pass:
                return False
            self._hand_out()
            if self._end is not None or not self._asked():
                break
            outcome = self._cut(most)
            if outcome is None:
                return self.job.more
            if isinstance(outcome, Group):
                self._take(outcome)
            else:
                self._end = outcome
        else:
            return True
        self._finish()
        self._settle()
        return False

    # -- time ------------------------------------------------------------------------------------------------------
    def watch(self, now: float) -> None:
        """Look for leases that ran out, and for ranks that keep the others waiting."""
        self._gather(now)
        if self.dynamic:
            for member in [each for each in self.members.values() if now - each.heard > self.lease]:
                if member.held:
                    count = len(member.held)
                    self._log(f"job {self.name!r}: {count} batches of a silent trainer go to others", "lease")
                    self._common.give_back(member)
                member.credit = 0  # when it wakes it asks anew
                if not member.peer:
                    del self.members[member.rank]
            self._settle()
            return
        if self.world > 1:
            late, absent = self._late()
            ranks = self.absent_ranks(_NAMED) if absent else []
            others = self.absent - len(ranks) if absent else 0
            for text in self._missing.look(late, Absent(ranks, others, self._parted), now):
                self._log(text, "")
