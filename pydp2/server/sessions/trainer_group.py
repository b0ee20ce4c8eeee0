"""The trainers of a job: who gets which batch, what is sent again, when a pass ends for all (docs/order.md, "Ranks").

A batch is kept until the trainer that it went to has used it: asked for the next one, or left in order. Pure: what is
to be sent collects in ``out``, what is to be read is asked for through ``read``; the clock is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydp2.errors import Error, RemoteProtocolError, Rewound
from pydp2.options.tables import JobOptions
from pydp2.order.snapshot import SnapshotPoint
from pydp2.protocol import messages as m
from pydp2.protocol.early_ends import EarlyEnds, by_file, to_list
from pydp2.server.actions import JobLog
from pydp2.server.dispatch.file_dispatcher import FileDispatcher
from pydp2.server.sessions.batch_delivery import BatchDelivery
from pydp2.server.sessions.missing_ranks import AbsentRanks, MissingRanks
from pydp2.server.sessions.pass_runner import BatchGroup, PassBroken, PassEnded, PassRunner
from pydp2.server.sessions.rejoin import Rejoin, RejoinRequest
from pydp2.server.sessions.trainer import Trainer
from pydp2.server.snapshots.job_snapshot import JobSnapshot, PassSnapshot, PassState, RankSnapshot, ResumePoint
from pydp2.server.timing import DEFAULT_TIMING

_NAMED = 4  # ranks that are not there, of those that the others wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Who shares the batches of a job: ``world`` ranks, or with ``dynamic`` as many trainers as come.

    ``missing_rank``: seconds that trainers wait for a rank before it is said which one is missing.
    """

    name: str
    world: int
    dynamic: bool
    lease: float
    prefetch_bytes: int
    missing_rank: float = DEFAULT_TIMING.missing_rank


class TrainerGroup(BatchDelivery):
    """The trainers of ``job``. ``on_begin`` is called with what is read for a pass, ``on_end`` when a pass is over."""

    def __init__(
        self,
        job: PassRunner,
        options: GroupOptions,
        *,
        on_begin: Callable[[FileDispatcher | None], None],
        on_end: Callable[[PassEnded], None],
        log: JobLog,
    ) -> None:
        name, world = options.name, options.world
        super().__init__(job, name, world, options.dynamic, options.lease, options.prefetch_bytes)
        self._on_begin = on_begin
        self._on_end = on_end
        self._log = log
        self._loaded = ""  # the state that the present generation began with
        self._joined: set[int] = set()  # who began from it
        self._start: SnapshotPoint | None = None
        self._restored = False  # from what was written down
        self._maybe_stale = False  # too little was written down: only a state tells where to go on
        self._opened = 0  # where the pass began, or was taken up
        self._rejoin: Rejoin | None = None
        self._missing_ranks = MissingRanks(name, world, options.missing_rank)

    # -- coming and going ------------------------------------------------------------------------------------------
    def attach(self, peer: bytes, attach: m.Attach, now: float) -> dict[str, Any]:
        """``peer`` takes a place; where that stands. Raises OptionError, JobTaken."""
        trainer = self.claim(attach, now)
        if trainer.peer:
            self._fail(trainer, self.replacement_error(trainer, now))
        self.connect(trainer, peer)
        trainer.pid, trainer.last_heard = attach.pid, now
        for held in self._unclaimed.claim(trainer.rank):
            trainer.enqueue(held)
        if trainer.session != attach.session:
            trainer.session, trainer.run, trainer.joined = attach.session, 0, True
            trainer.state = PassState.BEFORE if trainer.state is PassState.IN else trainer.state
        self.snapshot_due = self.snapshot_due or self.dynamic  # who is waited for
        self._missing_ranks.rank_returned(trainer)
        if not self.in_pass or trainer.state in (PassState.ENDED, PassState.LEFT):
            return {"pass": self.job.pass_id + 1, "batch": 0}
        return {
            "pass": self.job.pass_id,
            "batch": self._shared.first_unused if self.dynamic else self._first_for(trainer),
        }

    @property
    def awaits_ranks(self) -> bool:
        """Not all ranks have had the pass that was begun: who comes within the lease goes on in it."""
        return self._rejoin is not None or (self.in_pass and not self.alone and not self.dynamic)

    def detach(self, trainer: Trainer, run: int, done: int, now: float) -> None:
        """``trainer`` left in order."""
        self._leave(trainer, done if run == trainer.run else 0)
        if self._rejoin is not None:
            self._rejoin.remove(trainer)
        self.leave_in_order(trainer, now)
        self._settle()

    def connection_lost(self, trainer: Trainer, now: float) -> None:
        """``trainer`` is gone without a word. Its place is kept."""
        self.disconnect(trainer)
        trainer.last_heard = now
        self.snapshot_due = not self.alone

    # -- passes ----------------------------------------------------------------------------------------------------
    def begin(
        self, peer: bytes, begin: m.BeginPass, saved: SnapshotPoint | None, early_ends: EarlyEnds, now: float
    ) -> None:
        """A trainer begins a pass, goes on in one, or goes back to a state."""
        trainer = self._heard_from(peer, now)
        if begin.request_id <= trainer.run:
            raise RemoteProtocolError(f"run {begin.request_id} begins after run {trainer.run}")
        # of a service that was killed, and nothing of it was written down
        lost = self.dynamic and not trainer.run and begin.request_id > 1 and not self._restored
        trainer.run = begin.request_id
        if begin.state_name and (
            begin.state_name != self._loaded or (trainer.rank in self._joined and not begin.is_repeat)
        ):
            self._rewind(trainer, begin.state_name)
        elif not begin.state_name and (self._maybe_stale or lost or not trainer.joined):
            self._fail(trainer, self._refuse_late(trainer) if self._maybe_stale or lost else self._rewound())
            return
        if begin.state_name:
            self._joined.add(trainer.rank)
            trainer.joined = True
            self.snapshot_due = not self.alone  # once it had an answer it does not name the state again
        if self._rejoin is None and self._continues_unknown_pass(begin):
            self.stop()
            if self.dynamic:
                self._fail(trainer, self._refuse_late(trainer))
                return
            self._rejoin = Rejoin(range(self.world), now + self.lease, dynamic=False)
        if self._rejoin is not None:
            self._rejoin.add(RejoinRequest(trainer, begin, saved, early_ends))
            self._finish_rejoin(now)
            return
        if self.in_pass and begin.pass_id > self.job.pass_id and trainer.state in (PassState.BEFORE, PassState.IN):
            self._leave(trainer, 0)
            self._settle()
        self._enter_pass(trainer, begin, saved, early_ends)

    def _continues_unknown_pass(self, begin: m.BeginPass) -> bool:
        """Whether ``begin`` comes from the middle of a pass that is not known here: of a service that was killed."""
        return (
            not self.alone and not begin.state_name and begin.pass_id + (begin.first_batch > 0) > self.job.pass_id + 1
        )

    def _finish_rejoin(self, now: float) -> None:
        """Go on when all are there who were in the pass, or have been waited for."""
        gathering = self._rejoin
        if gathering is None or not gathering.is_complete(now):
            return
        self._rejoin = None
        first = gathering.resume_request()
        there = [
            one for one in gathering.requests.values() if one.trainer.peer and one.trainer.run == one.begin.request_id
        ]
        try:
            self._open(first.begin, first.saved, first.early_ends)
        except Error as error:
            for one in there:
                self._fail(one.trainer, error)
            return
        for one in there:
            if one.begin.pass_id > first.begin.pass_id:
                one.trainer.state = PassState.LEFT  # or it had ended it
            self._enter_pass(one.trainer, one.begin, one.saved, one.early_ends)
        self._settle()

    def _enter_pass(
        self, trainer: Trainer, begin: m.BeginPass, saved: SnapshotPoint | None, early_ends: EarlyEnds
    ) -> None:
        """What ``begin`` asks for, by where the job stands."""
        over = begin.pass_id < self.job.pass_id + (not self.in_pass)
        failed = (
            begin.pass_id == self.job.pass_id and (over or trainer.state is PassState.LEFT) and not begin.state_name
        )
        if failed and isinstance(self._end, PassBroken):
            self._fail(trainer, self._end.error)  # it has not seen that yet, or not understood
        elif (
            over or (begin.pass_id == self.job.pass_id and trainer.state is PassState.ENDED)
        ) and not begin.state_name:
            self._tell(trainer, m.PassEnd(trainer.run, 0, 0, 0, False))  # it was over before this trainer began
        elif not self.in_pass:
            self._start_pass(trainer, begin, saved, early_ends)
        elif begin.pass_id == self.job.pass_id and trainer.state in (PassState.BEFORE, PassState.IN):
            self._join(trainer, begin, early_ends)
        elif begin.pass_id == self.job.pass_id + 1 and begin.first_batch == 0:
            trainer.pending = begin
        else:
            self._fail(
                trainer,
                Rewound(
                    f"job {self.name!r} is in pass {self.job.pass_id}, rank {trainer.rank} asks for pass "
                    f"{begin.pass_id}: load the same state in all ranks, or none in any"
                ),
            )

    def _rewind(self, trainer: Trainer, loaded: str) -> None:
        """A new generation begins with the state ``loaded``."""
        self.stop()
        waiting = set() if self._rejoin is None else {*self._rejoin.requests}
        self._rejoin = None
        self._loaded, self._maybe_stale = loaded, False
        self._joined = set()
        for other in self.trainers.values():
            if other is not trainer:
                other.joined = False  # also of one that is away: it comes back with what it has had
                if other.pending is not None or other.state is PassState.IN or other.rank in waiting:
                    self._fail(other, self._rewound())
            other.reset()
            other.pending = None

    def _rewound(self) -> Rewound:
        return Rewound(
            f"another rank of job {self.name!r} has loaded a state, and the service went back to it: load the same "
            "state here, too"
        )

    def _start_pass(
        self, trainer: Trainer, begin: m.BeginPass, saved: SnapshotPoint | None, early_ends: EarlyEnds
    ) -> None:
        try:
            self._open(begin, saved, early_ends)
        except Error as error:
            self._fail(trainer, error)
        else:
            self._join(trainer, begin, early_ends)

    def _open(self, begin: m.BeginPass, saved: SnapshotPoint | None, early_ends: EarlyEnds) -> None:
        """A pass is under way, from ``begin`` on. Raises Error where that cannot be."""
        dispatcher = self.job.begin(
            begin.pass_id, batch=begin.first_batch, saved=saved, early_ends=early_ends, beyond=begin.acknowledged_ahead,
            buckets=begin.buckets, world=1 if self.dynamic else self.world,
        )  # fmt: skip
        self._on_begin(dispatcher)
        for each in self.trainers.values():
            each.reset()
        self.in_pass, self._end, self._start = True, None, saved
        self._opened = self._position = begin.first_batch
        self._resume_points = deque([ResumePoint(begin.first_batch, 0, saved)])
        self._early_ends = to_list(early_ends)
        self.snapshot_due = not self.alone
        self._shared.begin(begin.first_batch, begin.acknowledged_ahead, saved)
        if begin.first_batch:
            files, samples = self.job.run_again
            self._log(
                f"pass {begin.pass_id} is taken up at batch {begin.first_batch}: {files} files are run again, "
                f"{samples} samples of them a second time",
                "",
            )

    def _join(self, trainer: Trainer, begin: m.BeginPass, early_ends: EarlyEnds) -> None:
        if (not self.dynamic and begin.first_batch + trainer.rank < self._opened) or not self.job.has_early_ends(
            early_ends
        ):
            self._fail(trainer, self._refuse_late(trainer))
            return
        self._acknowledge(trainer.join(begin, len(early_ends)))
        if self.dynamic:
            self._shared.rejoin(begin)
        trainer.point = self._start if begin.snapshot else None

    def _refuse_late(self, trainer: Trainer) -> Rewound:
        return Rewound(
            f"the service was started again and does not know any more what rank {trainer.rank} of job {self.name!r} "
            "needs to go on; load the same state in all ranks"
        )

    def leave(self, peer: bytes, run: int, done: int, now: float) -> None:
        """A trainer does not want the rest of its pass."""
        trainer = self._heard_from(peer, now)
        if run == trainer.run:
            self._leave(trainer, done)
            self._settle()

    def _leave(self, trainer: Trainer, done: int) -> None:
        self._acknowledge(trainer.acknowledge(done))
        trainer.pending = None
        if self.dynamic:
            self._shared.requeue(trainer)
        if self.in_pass and trainer.state is not PassState.ENDED:
            trainer.state = PassState.LEFT
            self.snapshot_due = not self.alone
        trainer.clear()

    def need(self, peer: bytes, need: m.Need, now: float) -> None:
        """A trainer takes a batch and has used those before."""
        trainer = self._heard_from(peer, now)
        if need.request_id == trainer.run:
            self._acknowledge(trainer.acknowledge(need.used_batches))
            trainer.add_credit(need.count)

    def _heard_from(self, peer: bytes, now: float) -> Trainer:
        trainer = self.by_peer(peer)
        if trainer is None:
            raise RemoteProtocolError("a message from a trainer that has lost its place")
        trainer.last_heard = now
        return trainer

    def _settle(self) -> None:
        """End the pass when it is over for all, and begin the next one."""
        stays = (PassState.IN,) if self.dynamic else (PassState.BEFORE, PassState.IN)
        if not self.in_pass or self.absent or any(each.state in stays for each in self.trainers.values()):
            return
        if isinstance(self._end, PassEnded) and (said := self.job.describe_padding()):
            self._log(said, "")
        self.stop()
        if isinstance(self._end, PassEnded):
            self._on_end(self._end)
        for each in self.trainers.values():
            each.reset()
        for each in self.trainers.values():
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
            self._on_begin(None)
            self._clear_pass()

    # -- what is kept of it ----------------------------------------------------------------------------------------
    def snapshot(self, options: JobOptions, fits: dict[str, Any]) -> JobSnapshot:
        """What is written down of this job, so that it can go on. (A job of one rank: whose it is. Its trainer knows
        the rest.)"""
        self.snapshot_due = False
        # also of those whose connection is gone: not all of them are dead, and what one has that comes back is its own
        places = [
            RankSnapshot(each.rank, each.session, each.state, each.joined, self._first_for(each))
            for each in self.trainers.values()
        ]
        places += [RankSnapshot(rank, "", stands, True) for rank, stands in self._passed_through.items()]
        running = None if self._rejoin is None else self._rejoin.snapshot_so_far()
        pass_id = -1 if self.alone else self.job.pass_id + (running is not None)
        if self.in_pass and not self.alone and self.job.plan.order == "strict":
            running = PassSnapshot.at_point(self._resume_point(), self._early_ends, self.job.buckets)
        return JobSnapshot(
            self.name, self.world, options, fits, places, pass_id, self._loaded, sorted(self._joined), running
        )  # fmt: skip

    def restore(self, kept: JobSnapshot, now: float, *, last: bool = True) -> None:
        """Be the job that was written down. ``last``: nothing was written after it. Raises Error where it cannot be."""
        self._restored = True
        self._loaded, self._joined = kept.loaded, set(kept.begun_state)
        for place in kept.ranks:
            if place.session or self.dynamic:
                trainer = self.trainers[place.rank] = Trainer(place.rank)
                trainer.session, trainer.joined, trainer.last_heard = place.session, place.joined, now
        self._parted_at = now
        running = kept.running
        self.job.pass_id = kept.pass_id
        self._maybe_stale = self.dynamic and not last  # whoever came later is not known here, nor what it had
        if running is None or self.alone:
            return
        if self.dynamic:
            self.job.pass_id -= 1
            waits = {place.rank for place in kept.ranks if place.state in (PassState.BEFORE, PassState.IN)}
            self._rejoin = Rejoin(waits, now + self.lease, dynamic=True, pass_id=kept.pass_id, kept=running)
            return
        begin = m.BeginPass(0, kept.pass_id, running.batch, 0, {}, 0, running.beyond, "", running.buckets)
        self._open(begin, running.point, by_file(running.early_ends))
        for place in kept.ranks:
            known = self.trainers.get(place.rank)
            if known is not None:  # who had not begun may have, since
                known.state = PassState.IN if place.state is PassState.BEFORE else place.state
                known.first_unused = place.first_unused
            elif place.state in (PassState.ENDED, PassState.LEFT):
                self._passed_through[place.rank] = place.state

    # -- batches ---------------------------------------------------------------------------------------------------
    def serve(self, most: int) -> bool:
        """Cut what is asked for, about ``most`` batches at once; True when there may be more."""
        for _ in range(most):
            if not self.in_pass:
                return False
            self._hand_out()
            if self._end is not None or not self._has_demand():
                break
            outcome = self._cut_group(most)
            if outcome is None:
                return self.job.more
            if isinstance(outcome, BatchGroup):
                self._queue_group(outcome)
            else:
                self._end = outcome
        else:
            return True
        self._finish()
        self._settle()
        return False

    # -- time ------------------------------------------------------------------------------------------------------
    def check_leases(self, now: float) -> None:
        """Look for leases that ran out, and for ranks that keep the others waiting."""
        self._finish_rejoin(now)
        if self.dynamic:
            for trainer in [each for each in self.trainers.values() if now - each.last_heard > self.lease]:
                if trainer.in_flight:
                    count = len(trainer.in_flight)
                    self._log(
                        f"job {self.name!r}: {count} batches of a silent trainer go to others", "lease", names_job=True
                    )
                    self._shared.requeue(trainer)
                trainer.credit = 0  # when it wakes it asks anew
                if not trainer.peer:
                    del self.trainers[trainer.rank]
            self._settle()
            return
        if self.world > 1:
            late, absent = self._late_trainers()
            ranks = self.absent_ranks(_NAMED) if absent else []
            others = self.absent - len(ranks) if absent else 0
            for text in self._missing_ranks.overdue_messages(late, AbsentRanks(ranks, others, self._left_at), now):
                self._log(text, "", names_job=True)
