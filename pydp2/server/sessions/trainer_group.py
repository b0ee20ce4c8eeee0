"""Keep the trainers of a job together: which batch goes to which of them, what is sent again, when a pass ends for all
(docs/order.md, "Ranks").

Pure: messages to be sent collect in ``out``, what is to be read is asked for through ``on_begin``, the clock is an
argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydp2.errors import Error, RemoteProtocolError, to_wire
from pydp2.options.tables import JobOptions
from pydp2.order.snapshot import SnapshotPoint
from pydp2.order.stream_state import StreamPosition, StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.used_word import unpack_used
from pydp2.server.actions import JobLog
from pydp2.server.dispatch.file_dispatcher import FileDispatcher
from pydp2.server.sessions.delivery import Delivery
from pydp2.server.sessions.generation import Generation, cut_off, in_other_pass, not_known, went_back
from pydp2.server.sessions.missing_ranks import AbsentRanks, MissingRanks
from pydp2.server.sessions.pass_runner import BatchGroup, PassBroken, PassEnded, PassRunner
from pydp2.server.sessions.rank_registry import GroupOptions, RankRegistry
from pydp2.server.sessions.ranked_delivery import RankedDelivery
from pydp2.server.sessions.rejoin import Rejoin, RejoinRequest
from pydp2.server.sessions.shared_delivery import SharedDelivery
from pydp2.server.sessions.trainer import Trainer
from pydp2.server.sessions.trainer_state import TrainerEvent
from pydp2.server.snapshots.job_snapshot import JobSnapshot, PassState, RankSnapshot

_RESTORED_BY = {
    PassState.BEFORE: TrainerEvent.JOIN,
    PassState.IN: TrainerEvent.JOIN,
    PassState.ENDED: TrainerEvent.RESTORE_END,
    PassState.LEFT: TrainerEvent.LEAVE,
}
_UNFINISHED = (PassState.BEFORE, PassState.IN)
_ERRORS = 16  # failed passes whose errors are kept
_NAMED = 4  # ranks that are not there, of those that the others wait for


class TrainerGroup:
    """Trainers of a job, whose passes ``runner`` runs. ``on_begin`` is called with what is read for a pass,
    ``on_end`` when a pass is over."""

    def __init__(
        self,
        runner: PassRunner,
        options: GroupOptions,
        *,
        on_begin: Callable[[FileDispatcher | None], None],
        on_end: Callable[[PassEnded], None],
        log: JobLog,
    ) -> None:
        self.runner = runner
        runner.rows_may_stay = not options.dynamic
        self.registry = RankRegistry(options)
        way = SharedDelivery if options.dynamic else RankedDelivery
        self.delivery: Delivery = way(self.registry, runner, options.prefetch_bytes)
        self._limit = options.prefetch_bytes  # of batches that one trainer was sent and has not used
        self.out: deque[tuple[bytes, m.Message, Sequence[Any]]] = deque()
        """Messages to be sent, and the peers that they go to. They hold the rows of their batches."""
        self.in_pass = False
        self.snapshot_due = False
        """Something happened that a service that keeps states has to write down before it sends more."""
        self._on_begin = on_begin
        self._on_end = on_end
        self._log = log
        self._written = self._known()  # when the job was last found to be written down
        self._end: PassEnded | PassBroken | None = None
        self._errors: dict[int, Error] = {}  # of passes that failed: a rank that was cut off meanwhile asks for one
        self._generation = Generation()
        self._start: SnapshotPoint | None = None
        self._maybe_stale = False  # too little was written down: only a state tells where to go on
        self._rejoin: Rejoin | None = None
        self._missing_ranks = MissingRanks(options.name, options.world, options.missing_rank)

    # -- coming and going ------------------------------------------------------------------------------------------
    def attach(self, peer: bytes, attach: m.Attach, now: float) -> dict[str, Any]:
        """Give ``peer`` the rank that it asks for and return where that stands. Raises OptionError, JobTaken, and
        Rewound for a connection that its trainer has given up."""
        trainer = self.registry.claim(attach, now)
        if trainer.peer:
            self._fail(trainer, self.registry.replacement_error(trainer, now))
        self.registry.connect(trainer, peer)
        trainer.pid, trainer.host = attach.pid, attach.host
        trainer.connection_number = attach.connection_number
        trainer.last_heard = now
        self.delivery.claim(trainer)
        if trainer.session != attach.session:
            trainer.take_over(attach.session)
            if trainer.state is PassState.IN:
                trainer.move(TrainerEvent.RETURN)
            if (unanswered := self.registry.expired.get(attach.session)) is not None:
                trainer.unanswered = unanswered
                self._generation.joined.add(trainer.rank)
        self._missing_ranks.rank_returned(trainer)
        if not self.in_pass or trainer.state in (PassState.ENDED, PassState.LEFT):
            return StreamPosition(self.runner.pass_id + 1).position
        return StreamPosition(self.runner.pass_id, self.delivery.position_of(trainer)).position

    @property
    def awaits_ranks(self) -> bool:
        """True while ranks have not had the pass that was begun, or are gone without a word: they have the lease."""
        registry = self.registry
        waits = registry.awaits_restored if registry.dynamic else self.in_pass or bool(registry.trainers)
        return self._rejoin is not None or (waits and not registry.alone)

    def detach(self, trainer: Trainer, run: int, done: int, now: float) -> None:
        """Note that ``trainer`` left in order, after it had used ``done`` batches of ``run``."""
        self._leave(trainer, done if run == trainer.run else 0)
        if self._rejoin is not None:
            self._rejoin.remove(trainer)
        self.registry.leave_in_order(trainer, now)
        if self.registry.dynamic:  # another one may get its number
            self._generation.joined.discard(trainer.rank)
        self._settle()

    def connection_lost(self, trainer: Trainer, now: float) -> None:
        """Note that ``trainer`` is gone without a word. Its rank is kept for it."""
        self.registry.disconnect(trainer)
        trainer.last_heard = now
        self.snapshot_due = not self.registry.alone

    # -- passes ----------------------------------------------------------------------------------------------------
    def begin(self, peer: bytes, begin: m.BeginPass, start: StreamState, now: float) -> None:
        """Begin a pass for the trainer ``peer``, go on in one, or go back to a state. ``start``: where, in the words of
        ``begin``."""
        registry = self.registry
        trainer = self._heard_from(peer, now)
        if begin.request_id <= trainer.run:
            raise RemoteProtocolError(f"run {begin.request_id} begins after run {trainer.run}")
        known = trainer.run > 0
        lost = self._maybe_stale or registry.lacks(trainer, begin)
        trainer.begin_run(begin)
        self.snapshot_due = self.snapshot_due or (registry.dynamic and not known)  # a restarted service waits for it
        if not lost and self._generation.has_had(trainer, begin, known=known):
            self._end_pass(trainer, 0, PassEnded(0, 0, 0, False))
            return
        if begin.state_name and not (lost and begin.is_repeat):
            if (begun := self._load(trainer, begin, known=known)) is None:
                return
            begin = begun
        elif lost or not trainer.joined:
            trainer.joined = False
            self._fail_rewound(trainer)
            return
        elif registry.dynamic:
            self._generation.joined.add(trainer.rank)
        if self._rejoin is None and self._continues_unknown_pass(begin):
            self.stop()
            if registry.dynamic:
                self._fail(trainer, not_known(registry.name, trainer.rank, registry.loss))
                return
            self._rejoin = Rejoin(range(registry.world), now + registry.lease, dynamic=False)
            self._begin_again(trainer)
        if self._rejoin is not None:
            self._rejoin.add(RejoinRequest(trainer, begin, start))
            self._finish_rejoin(now)
            return
        if self.in_pass and begin.pass_id > self.runner.pass_id and trainer.state in _UNFINISHED:
            self._leave(trainer, 0)
            self._settle()
        self._enter_pass(trainer, begin, start)

    def _load(self, trainer: Trainer, begin: m.BeginPass, *, known: bool) -> m.BeginPass | None:
        """Go to the state that ``trainer`` names, if this generation did not begin there. Return what it asks for then,
        None if the pass of ``begin`` cannot begin yet, or was over before."""
        if self._goes_back(trainer, begin, known=known):
            if begin.after_pass and self._is_ahead(trainer):
                self._leave(trainer, 0)
                trainer.pending, trainer.waits_for = begin, begin.state_name
                self._settle()
                return None
            self._rewind(trainer, begin)
        elif self.registry.dynamic:
            begin = replace(begin, state_name="")  # it goes on where the others are
        elif self._rejoin is None and self._generation.has_told(trainer, begin):
            unfinished = self.in_pass and trainer.state in _UNFINISHED
            if begin.pass_id < self.runner.pass_id + (not unfinished):
                self._tell_outcome(trainer, begin.pass_id)
                return None
        self._generation.add(trainer)
        self.snapshot_due = not self.registry.alone  # once it had an answer it does not name the state again
        return begin

    def _goes_back(self, trainer: Trainer, begin: m.BeginPass, *, known: bool) -> bool:
        is_awaited = self._rejoin is not None and self._rejoin.awaits(trainer, begin.pass_id)
        unfinished = (self.in_pass or is_awaited) and trainer.state in _UNFINISHED
        is_there = unfinished and begin.pass_id == self.runner.pass_id and not self.registry.dynamic
        is_there = is_there and self.delivery.position_of(trainer) == begin.first_batch
        return self._maybe_stale or self._generation.is_left(
            trainer, begin, self.registry.others(trainer), known=known, is_unfinished=unfinished, is_there=is_there
        )

    def _is_ahead(self, trainer: Trainer) -> bool:
        """Return True if ``trainer`` is done with a pass that others are in."""
        return self.in_pass and trainer.state is not PassState.BEFORE and not self._is_over()

    def _continues_unknown_pass(self, begin: m.BeginPass) -> bool:
        """Return True if ``begin`` comes from the middle of a pass that is not known here: of a service that was
        killed."""
        began = begin.pass_id + (begin.first_batch > 0)
        return not self.registry.alone and not begin.state_name and began > self.runner.pass_id + 1

    def _begin_again(self, comes: Trainer) -> None:
        """Have all trainers but ``comes`` that wait for something ask anew."""
        for each in self.registry.trainers.values():
            if each is not comes and each.peer and (each.pending is not None or each.state is PassState.IN):
                each.pending = None
                self.out.append((each.peer, m.BeginAgain(each.run), ()))

    def _finish_rejoin(self, now: float) -> None:
        """Go on when all trainers that were in the pass are there, or have been waited for."""
        rejoin = self._rejoin
        if rejoin is None or not rejoin.is_complete(now):
            return
        self._rejoin = None
        start = rejoin.resume_state()
        there = [
            one for one in rejoin.requests.values() if one.trainer.peer and one.trainer.run == one.begin.request_id
        ]
        try:
            self._open(start)
        except Error as error:
            for one in there:
                self._fail(one.trainer, error)
            return
        for one in there:
            if one.begin.pass_id > start.pass_id:
                one.trainer.move(TrainerEvent.LEAVE)  # or it had ended it
            self._enter_pass(one.trainer, one.begin, one.start)
        self._settle()

    def _enter_pass(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        """Do what ``begin`` asks for, by where the job stands."""
        pass_id = self.runner.pass_id
        over = begin.pass_id < pass_id + (not self.in_pass)
        failed = trainer.state is PassState.LEFT and pass_id in self._errors
        ended = over or (begin.pass_id == pass_id and (failed or trainer.state is PassState.ENDED))
        if ended and not begin.state_name:
            self._tell_outcome(trainer, begin.pass_id)
        elif not self.in_pass:
            self._start_pass(trainer, begin, start)
        elif begin.pass_id == pass_id and trainer.state in _UNFINISHED:
            self._join(trainer, begin, start)
        elif begin.pass_id == pass_id + 1 and begin.first_batch == 0:
            trainer.pending = begin
        else:
            self._fail(trainer, in_other_pass(self.registry.name, pass_id, trainer.rank, begin.pass_id))

    def _rewind(self, trainer: Trainer, begin: m.BeginPass) -> None:
        """Begin a new generation with the state that ``trainer`` names in ``begin``."""
        last = self.runner.pass_id
        last = last if begin.after_pass and not (self.in_pass or self._maybe_stale or last in self._errors) else -1
        again = self.in_pass and begin.state_name == self._generation.loaded and begin.pass_id == self.runner.pass_id
        done = {**self.registry.passed_through} if again else {}  # had the pass from there on, and left
        early_ends = self.runner.early_ends if again else {}
        self.stop()
        self.registry.passed_through.update(done)
        waiting = set() if self._rejoin is None else {*self._rejoin.requests}
        self._rejoin = None
        self.registry.expired.clear()
        self._generation, self._maybe_stale = Generation(begin.state_name, done, last), False
        self._generation.keep_early_ends(begin.pass_id, early_ends)
        for other in self.registry.trainers.values():
            if other is not trainer:
                other.joined = False  # also of one that is away: it comes back with what it has had
                if other.pending is not None or other.state is PassState.IN or other.rank in waiting:
                    self._fail_rewound(other)
            other.reset()
            other.pending = None

    def _fail_rewound(self, trainer: Trainer) -> None:
        """Tell ``trainer`` to load the state that others have loaded, or any if nobody knows where to go on."""
        error, loaded = went_back(self.registry.name), self._generation.loaded
        if self._maybe_stale or not loaded:
            error, loaded = not_known(self.registry.name, trainer.rank, self.registry.loss), ""
        self._tell(trainer, m.Failed(trainer.run, to_wire(error), loaded))

    def _start_pass(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        try:
            early_ends = {**self._generation.early_ends_of(begin.pass_id), **start.early_ends}
            self._open(replace(start, early_ends=early_ends))
        except Error as error:
            self._fail(trainer, error)
        else:
            self._join(trainer, begin, start)

    def _open(self, start: StreamState) -> None:
        """Begin a pass at ``start``. Raises Error where that cannot be."""
        dispatcher = self.runner.begin(start, 1 if self.registry.dynamic else self.registry.world)
        self._on_begin(dispatcher)
        for each in self.registry.trainers.values():
            each.reset()
        self.in_pass, self._end, self._start = True, None, start.point
        self._errors = {failed: error for failed, error in self._errors.items() if failed < start.pass_id}
        self._written = self._known()
        self.snapshot_due = not self.registry.alone
        self.delivery.begin(start)
        if start.batch:
            files, samples = self.runner.run_again
            again = "all that came before is read again"
            if start.point is not None:
                again = f"{files} files are run again, {samples} samples of them a second time"
            self._log(f"pass {start.pass_id} is taken up at batch {start.batch}: {again}", "")

    def _join(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        if not (self.delivery.can_join(trainer, begin) and self.runner.has_early_ends(start.early_ends)):
            self._fail(trainer, not_known(self.registry.name, trainer.rank, self.registry.loss))
            return
        self.delivery.join(trainer, begin, start)
        trainer.point = self._start if begin.snapshot else None

    def leave(self, peer: bytes, run: int, done: int, now: float) -> None:
        """Note that the trainer ``peer`` does not want the rest of its pass."""
        trainer = self._heard_from(peer, now)
        # else it leaves a pass that was over, or one of the generation before
        if run == trainer.run and run != trainer.ended_run and trainer.joined:
            self._leave(trainer, done)
            self._settle()

    def _leave(self, trainer: Trainer, done: int) -> None:
        self.delivery.acknowledge(trainer.acknowledge(done))
        trainer.pending = None
        self.delivery.release(trainer)
        if self.in_pass and trainer.state is not PassState.ENDED:
            trainer.move(TrainerEvent.LEAVE)
            self.snapshot_due = not self.registry.alone

    def need(self, peer: bytes, need: m.Need, now: float) -> None:
        """Note that the trainer ``peer`` takes more batches, and which of those before it has used."""
        trainer = self._heard_from(peer, now)
        if need.request_id == trainer.run and trainer.joined:
            self.delivery.acknowledge(trainer.acknowledge(need.used_batches))
            trainer.add_credit(need.count)

    def note_used(self, trainer: Trainer, word: int) -> None:
        """Note which batches ``trainer`` has used, as the ``word`` says that it shows."""
        self.delivery.acknowledge(trainer.acknowledge(unpack_used(word, trainer.run)))

    def _heard_from(self, peer: bytes, now: float) -> Trainer:
        trainer = self.registry.by_peer(peer)
        if trainer is None:
            raise RemoteProtocolError("a message from a trainer that has lost its place")
        trainer.last_heard = now
        return trainer

    def _settle(self) -> None:
        """End the pass when it is over for all trainers, and begin the next one."""
        if not self.in_pass or not self._is_over():
            return
        if isinstance(self._end, PassEnded) and (said := self.runner.describe_padding()):
            self._log(said, "")
        self.stop()
        if isinstance(self._end, PassEnded):
            self._on_end(self._end)
        for each in self.registry.trainers.values():
            each.reset()
        waiting = [(each, each.pending) for each in self.registry.trainers.values() if each.pending is not None]
        for each, _ in waiting:
            each.pending = None
        opened = ""  # the state of the generation that begins here
        for each, begin in waiting:
            if each.waits_for:
                if begin.state_name != opened:
                    self._rewind(each, begin)
                    opened = begin.state_name
                self._generation.add(each)
            if each.joined:
                self._enter_pass(each, begin, StreamState.without_frames(begin))
            else:
                self._fail_rewound(each)

    def _is_over(self) -> bool:
        """Return True if no rank has anything of the present pass to come. If none has begun it, those who did are gone
        without a word, and what they have not used goes to the others."""
        states = {each.state for each in self.registry.trainers.values()}
        return not (self.registry.absent or states & self.delivery.unfinished_states or states == {PassState.BEFORE})

    def stop(self) -> None:
        """End the pass for all trainers, and drop the batches that wait for them: this object may be kept for long."""
        if self.in_pass:
            self.in_pass = False
            self.runner.leave()
            self._on_begin(None)
            self.delivery.clear()
            self.registry.passed_through.clear()
            for each in self.registry.trainers.values():
                each.clear()

    def take_up_again(self) -> None:
        """Go back to where no trainer misses a batch: rows that wait here are lost with their host."""
        runner, registry = self.runner, self.registry
        if not (self.in_pass and runner.do_rows_stay):
            return
        self._log(f"rows of pass {runner.pass_id} are lost with their host and are read again", "rows lost")
        start = self._state()
        trainers = [(each, each.state, self.delivery.first_missing(each)) for each in registry.trainers.values()]
        done, errors = {**registry.passed_through}, self._errors
        self.stop()
        if registry.alone:  # its trainer says where it is
            runner.pass_id -= 1
        else:
            self._open(start)
            registry.passed_through.update(done)
            self._errors = errors  # also of this pass: a rank that was told may not have heard it
        for trainer, state, first_missing in trainers:
            if state is PassState.IN and trainer.peer:
                self.out.append((trainer.peer, m.BeginAgain(trainer.run), ()))
            if state is not PassState.BEFORE and not registry.alone:
                trainer.move(_RESTORED_BY[state])
                trainer.first_unused = first_missing

    # -- snapshots -------------------------------------------------------------------------------------------------
    def _state(self) -> StreamState:
        """Return where the pass under way can be taken up."""
        runner, state = self.runner, self.delivery.state().with_tail_in_point()
        return replace(state, early_ends=dict(runner.early_ends), buckets=runner.buckets)

    def snapshot(self, options: JobOptions, identity: dict[str, Any]) -> JobSnapshot:
        """Return what a service writes down of this job so that it can go on. (Of a job of one rank: which trainer has
        it. That trainer knows the rest.)"""
        self.snapshot_due = False
        registry = self.registry
        # also of those whose connection is gone: not all of them are dead, and what one has that comes back is its own
        known = [each for each in registry.trainers.values() if not registry.dynamic or registry.is_known(each)]
        ranks = [each.snapshot(self.delivery.first_missing(each)) for each in known]
        ranks += [RankSnapshot(rank, "", state, True) for rank, state in registry.passed_through.items()]
        running = None if self._rejoin is None else self._rejoin.snapshot_so_far()
        pass_id = -1 if registry.alone else self.runner.pass_id + (running is not None)
        if self.in_pass and not registry.alone and self.runner.plan.order == "strict":
            running = self._state()
        return JobSnapshot(
            registry.name, registry.world, options, identity, ranks, pass_id, self._generation.loaded,
            sorted(self._generation.joined), running, {} if registry.alone else self._errors.copy(),
            self._generation.previous_pass, {} if registry.alone else self.runner.known_buckets, self._maybe_stale,
        )  # fmt: skip

    def restore(self, snapshot: JobSnapshot, now: float, *, last: bool = True) -> None:
        """Be the job that was written down. ``last``: nothing was written after it. Raises Error where it cannot be."""
        registry = self.registry
        self._generation = Generation(snapshot.loaded, snapshot.begun_from_state, snapshot.previous_pass)
        self._errors = {**snapshot.errors}
        known = (rank for rank in snapshot.ranks if rank.session or registry.dynamic)
        registry.restore(map(Trainer.from_snapshot, known), now)
        self.runner.pass_id, self.runner.known_buckets = snapshot.pass_id, snapshot.buckets
        self._maybe_stale = registry.dynamic and (snapshot.is_stale or not last)  # who came later is not known here
        if snapshot.running is None or registry.alone:
            if snapshot.is_cut_off:
                self._errors.setdefault(snapshot.pass_id, cut_off(registry.name, snapshot.pass_id))
            return
        if registry.dynamic:
            self.runner.pass_id -= 1
            waits = {rank.rank for rank in snapshot.ranks if rank.state in _UNFINISHED}
            self._rejoin = Rejoin(waits, now + registry.lease, dynamic=True, snapshot=snapshot.running)
            return
        self._open(snapshot.running)
        self._errors = {**snapshot.errors}  # also of this pass, which some ranks may have been told
        for rank in snapshot.ranks:
            trainer = registry.trainers.get(rank.rank)
            if trainer is not None:  # one that had not begun may have, since
                trainer.move(_RESTORED_BY[rank.state])
                trainer.first_unused = rank.first_unused
            elif rank.state in (PassState.ENDED, PassState.LEFT):
                registry.passed_through[rank.rank] = rank.state

    # -- batches ---------------------------------------------------------------------------------------------------
    def serve(self, most: int) -> bool:
        """Cut what is asked for, about ``most`` batches at once. Return True when there may be more."""
        for _ in range(most):
            if not self.in_pass:
                return False
            self._hand_out()
            if self._end is not None or not self._has_demand():
                break
            outcome = self.delivery.cut(most)
            if outcome is None:
                return self.runner.more
            if isinstance(outcome, BatchGroup):
                self._queue(outcome)
            else:
                self._end = outcome
                if isinstance(outcome, PassBroken):
                    self._keep_error(outcome.error)
        else:
            return True
        self._finish()
        self._settle()
        return False

    def _keep_error(self, error: Error) -> None:
        """Keep why the present pass failed, for ranks that ask for it later."""
        self._errors[self.runner.pass_id] = error
        if len(self._errors) > _ERRORS:
            del self._errors[min(self._errors)]
        self.snapshot_due = not self.registry.alone

    def _has_demand(self) -> bool:
        """Return True if some trainer can take a batch that is not cut yet."""
        return any(
            each.state is PassState.IN and each.sent == len(each.in_flight) and each.can_send(0, self._limit)
            for each in self.registry.trainers.values()
        )

    def _queue(self, group: BatchGroup) -> None:
        if self._written != (known := self._known()):
            self._written = known
            self.snapshot_due = not self.registry.alone
        self.delivery.queue(group)

    def _known(self) -> tuple[int, dict[str, Any]]:
        """Return what is written down as soon as it is known, besides where the trainers stand."""
        return len(self.runner.early_ends), self.runner.known_buckets

    def _hand_out(self) -> None:
        for trainer in self.registry.trainers.values():
            while trainer.state is PassState.IN and trainer.credit > 0 and (batch := self.delivery.next_for(trainer)):
                batch.batch.rows.retain()  # until they are sent
                self.out.append((trainer.peer, *trainer.head(batch, self.delivery.state_after(batch))))

    def _finish(self) -> None:
        """Tell trainers that have used all their batches that there are no more; not those that have yet to load."""
        if self._end is None or not self.delivery.is_drained():
            return
        for trainer in self.registry.trainers.values():
            if trainer.state is PassState.IN and trainer.joined and not trainer.in_flight:
                if isinstance(self._end, PassBroken):
                    trainer.move(TrainerEvent.LEAVE)
                    self._tell_outcome(trainer, self.runner.pass_id)
                else:
                    trainer.move(TrainerEvent.FINISH)
                    self.snapshot_due = not self.registry.alone
                    self._end_pass(trainer, self.delivery.batch_count(trainer, self._end), self._end)

    # -- time ------------------------------------------------------------------------------------------------------
    def check_leases(self, now: float) -> None:
        """Look for leases that ran out, and for ranks that keep the others waiting."""
        self._finish_rejoin(now)
        if self.registry.dynamic:
            self._end_leases(now)
        elif self.registry.world > 1:
            self._name_missing_ranks(now)

    def _end_leases(self, now: float) -> None:
        """Give the batches of trainers that were silent for too long to the others."""
        trainers, lease = self.registry.trainers, self.registry.lease
        for trainer in [each for each in trainers.values() if now - each.last_heard > lease]:
            self.snapshot_due = self.snapshot_due or bool(trainer.in_flight) or not trainer.peer
            if trainer.in_flight:
                text = f"job {self.registry.name!r}: {len(trainer.in_flight)} batches of a silent trainer go to others"
                self._log(text, "lease", names_job=True)
                self.delivery.release(trainer)
            trainer.credit = 0  # when it wakes it asks anew
            if not trainer.peer:
                self.registry.expire(trainer)
                self._generation.joined.discard(trainer.rank)
        self._settle()

    def _name_missing_ranks(self, now: float) -> None:
        late, absent = self._late_trainers()
        ranks = self.registry.absent_ranks(_NAMED) if absent else []
        others = self.registry.absent - len(ranks) if absent else 0
        away = AbsentRanks(ranks, others, self.registry.left_at)
        for text in self._missing_ranks.overdue_messages(late, away, now):
            self._log(text, "", names_job=True)

    def _late_trainers(self) -> tuple[list[Trainer], bool]:
        """Return the trainers that others wait for, and whether they wait for ranks that are not there."""
        trainers = self.registry.trainers.values()
        if any(each.pending is not None for each in trainers):
            late = [each for each in trainers if each.pending is None and each.state in _UNFINISHED]
            return late, self.registry.absent > 0
        return self.delivery.late_trainers() if self.in_pass and self._has_demand() else ([], False)

    # -- telling ---------------------------------------------------------------------------------------------------
    def _end_pass(self, trainer: Trainer, batches: int, end: PassEnded) -> None:
        """Tell ``trainer`` that the pass is over, of which ``batches`` were cut as far as it is concerned."""
        known = self.runner.known_buckets
        self._tell(trainer, m.PassEnd(trainer.run, batches, end.samples, end.dropped, end.uniform, known))

    def _tell_outcome(self, trainer: Trainer, pass_id: int) -> None:
        """Tell ``trainer`` why pass ``pass_id`` failed, also once more; or that it is over, perhaps before it began."""
        if pass_id in self._errors:
            self._tell(trainer, m.Failed(trainer.run, to_wire(self._errors[pass_id]), "", self.runner.known_buckets))
        else:
            self._end_pass(trainer, 0, PassEnded(0, 0, 0, False))

    def _fail(self, trainer: Trainer, error: Error) -> None:
        """Refuse what ``trainer`` asks for."""
        trainer.unanswered = ""
        self._tell(trainer, m.Failed(trainer.run, to_wire(error)))

    def _tell(self, trainer: Trainer, message: m.Message) -> None:
        """Send ``trainer`` the end of its run."""
        trainer.ended_run = trainer.run
        if trainer.peer:
            self.out.append((trainer.peer, message, ()))
