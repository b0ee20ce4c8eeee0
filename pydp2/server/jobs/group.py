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
from pydp2.options.job_options import JobOptions
from pydp2.order.snapshot import SnapshotPoint
from pydp2.order.stream_state import StreamPosition, StreamState
from pydp2.protocol import messages as m
from pydp2.protocol import progress_word
from pydp2.server.actions import JobLog
from pydp2.server.dispatch.file_dispatcher import FileDispatcher
from pydp2.server.jobs.agreement import (
    UNFINISHED,
    Decision,
    Gathering,
    Generation,
    GroupView,
    PassRequest,
    cut_off,
    decide,
    in_other_pass,
    not_known,
    went_back,
)
from pydp2.server.jobs.batches import BatchGroup, PassBroken, PassEnded
from pydp2.server.jobs.delivery import Delivery, RankedDelivery, SharedDelivery, SoloDelivery
from pydp2.server.jobs.membership import (
    AbsentRanks,
    GroupOptions,
    MissingRanks,
    RankRegistry,
    Trainer,
    TrainerEvent,
)
from pydp2.server.jobs.pass_runner import PassRunner
from pydp2.server.snapshots.job_snapshot import JobSnapshot, PassState, RankSnapshot

_RESTORED_BY = {
    PassState.BEFORE: TrainerEvent.JOIN,
    PassState.IN: TrainerEvent.JOIN,
    PassState.ENDED: TrainerEvent.RESTORE_END,
    PassState.LEFT: TrainerEvent.LEAVE,
}
_ERRORS = 16  # failed passes whose errors are kept
_NAMED = 4  # ranks that are not there, of those that the others wait for


def _way_of(registry: RankRegistry) -> type[SoloDelivery] | type[SharedDelivery]:
    if registry.dynamic:
        return SharedDelivery
    return SoloDelivery if registry.is_single_rank else RankedDelivery


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
        runner.may_lose_rows = not options.dynamic
        self.registry = RankRegistry(options)
        self.delivery: Delivery = _way_of(self.registry)(self.registry, runner, options.prefetch_bytes)
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
        self._gathering: Gathering | None = None
        self._missing_ranks = MissingRanks(options.name, options.world, options.missing_rank)

    # -- coming and going ------------------------------------------------------------------------------------------
    def attach(self, peer: bytes, attach: m.Attach, now: float) -> dict[str, Any]:
        """Give ``peer`` the rank that it asks for and return where that stands. Raises OptionError, JobTaken, and
        Rewound for a connection that its trainer has given up."""
        trainer = self.registry.claim(attach, now)
        if trainer.peer:
            self._fail(trainer, self.registry.replacement_error(trainer, now))
        self.registry.connect(trainer, peer, attach, now)
        self.delivery.claim(trainer)
        if trainer.session != attach.session:
            trainer.take_over(attach.session)
        self._missing_ranks.rank_returned(trainer)
        if not self.in_pass or trainer.state in (PassState.ENDED, PassState.LEFT):
            return StreamPosition(self.runner.pass_id + 1).position
        return StreamPosition(self.runner.pass_id, self.delivery.position_of(trainer)).position

    @property
    def awaits_ranks(self) -> bool:
        """True while ranks have not had the pass that was begun, or are gone without a word: they have the lease."""
        registry = self.registry
        return self._gathering is not None or (registry.world > 1 and (self.in_pass or bool(registry.trainers)))

    def detach(self, trainer: Trainer, run: int, done: int, now: float) -> None:
        """Note that ``trainer`` left in order, after it had used ``done`` batches of ``run``."""
        self._leave(trainer, done if run == trainer.run else 0)
        if self._gathering is not None:
            self._gathering.remove(trainer.rank)
        self.registry.leave_in_order(trainer, now)
        if self.registry.dynamic:  # its number does not come back
            self._generation.begun_from_state.discard(trainer.rank)
        self._finish_pass_if_over()

    def connection_lost(self, trainer: Trainer, now: float) -> None:
        """Note that ``trainer`` is gone without a word. Its rank is kept for it."""
        self.registry.disconnect(trainer)
        trainer.last_heard = now
        self._note_change()

    # -- passes ----------------------------------------------------------------------------------------------------
    def begin(self, peer: bytes, begin: m.BeginPass, start: StreamState, now: float) -> None:
        """Begin a pass for the trainer ``peer``, go on in one, or go back to a state. ``start``: where, in the words of
        ``begin``."""
        trainer = self._heard_from(peer, now)
        if begin.request_id <= trainer.run:
            raise RemoteProtocolError(f"run {begin.request_id} begins after run {trainer.run}")
        is_first = trainer.run == 0
        trainer.begin_run(begin)
        self._answer(trainer, PassRequest(begin, start, is_first=is_first))

    def _answer(self, trainer: Trainer, request: PassRequest) -> None:
        """Carry out what follows from ``request``, which changes the job before it is decided once more."""
        while True:
            match decide(self._view(trainer), request):
                case Decision.ADMIT:
                    request = self._admit(trainer, request)
                case Decision.REWIND:
                    self._rewind(trainer, request.begin)
                    request = replace(self._admit(trainer, request), begin=request.begin)
                case Decision.LEAVE:
                    self._leave(trainer, 0)
                    self._finish_pass_if_over()
                case decision:
                    self._carry_out(decision, trainer, request)
                    return

    def _view(self, trainer: Trainer) -> GroupView:
        registry, generation = self.registry, self._generation
        others = (other for other in registry.trainers.values() if other is not trainer and other.peer)
        return GroupView(
            dynamic=registry.dynamic,
            is_single_rank=registry.is_single_rank,
            pass_id=self.runner.pass_id,
            in_pass=self.in_pass,
            is_over=self._is_over(),
            failed=self._errors.keys(),
            is_gathering=self._gathering is not None,
            loaded=generation.loaded,
            generation=generation.number,
            previous_pass=generation.previous_pass,
            state=trainer.state,
            is_outdated=trainer.is_outdated,
            began_from_state=trainer.rank in generation.begun_from_state,
            others_from_state=any(other.rank in generation.begun_from_state for other in others),
            unconfirmed_state=trainer.unconfirmed_state,
            deferred_state=trainer.deferred_state,
            previous_run_ended=trainer.previous_run_ended,
            next_batch=self.delivery.position_of(trainer) if self.in_pass else 0,
        )

    def _carry_out(self, decision: Decision, trainer: Trainer, request: PassRequest) -> None:
        """Carry out ``decision``, with which ``request`` is answered."""
        begin = request.begin
        match decision:
            case Decision.DEFER:
                self._leave(trainer, 0)
                trainer.pending = replace(request, deferred_in=self._generation.number)
                trainer.deferred_state = begin.state_name
                self._finish_pass_if_over()
            case Decision.WAIT:
                trainer.pending = request
            case Decision.GATHER:
                self._gather(trainer, request)
            case Decision.JOIN:
                self._join(trainer, begin, request.start)
            case Decision.TELL_END:
                self._end_pass(trainer, 0, PassEnded(0, 0, 0, False))
            case Decision.TELL_OUTCOME:
                self._tell_outcome(trainer, begin.pass_id)
            case Decision.REFUSE_OUTDATED:
                trainer.is_outdated = True
                self._fail_rewound(trainer)
            case Decision.REFUSE_UNKNOWN:
                self._fail_unknown(trainer)
            case Decision.REFUSE_OTHER_PASS:
                self._fail(trainer, in_other_pass(self.registry.name, self.runner.pass_id, trainer.rank, begin.pass_id))

    def _fail_unknown(self, trainer: Trainer) -> None:
        self._fail(trainer, not_known(self.registry.name, trainer.rank, self.registry.loss))

    def _admit(self, trainer: Trainer, request: PassRequest) -> PassRequest:
        """Take ``trainer`` into the generation. A dynamic one that names its state goes on where the others are."""
        begin = request.begin
        if begin.state_name:
            self._generation.begun_from_state.add(trainer.rank)
            trainer.is_outdated, trainer.deferred_state = False, ""
            trainer.unconfirmed_state = self._generation.loaded
            self._note_change()  # once it had an answer it does not name the state again
            if self.registry.dynamic:
                begin = replace(begin, state_name="")
        elif self.registry.dynamic:
            self._generation.begun_from_state.add(trainer.rank)
        return replace(request, begin=begin, is_admitted=True)

    def _gather(self, trainer: Trainer, request: PassRequest) -> None:
        """Wait for the other ranks, and go on where the last of them is."""
        if self._gathering is None:
            self.stop()
            self._gathering = Gathering(self.registry.world, trainer.last_heard + self.registry.lease)
            self._begin_again(trainer)
        self._gathering.add(trainer.rank, request)
        self._finish_gathering(trainer.last_heard)

    def _begin_again(self, comes: Trainer) -> None:
        """Have all trainers but ``comes`` that wait for something ask anew."""
        for trainer in self.registry.trainers.values():
            if trainer is not comes and trainer.peer and (trainer.pending or trainer.state is PassState.IN):
                trainer.pending = None
                self.out.append((trainer.peer, m.BeginAgain(trainer.run), ()))

    def _finish_gathering(self, now: float) -> None:
        """Go on when all trainers that were in the pass are there, or have been waited for."""
        gathering = self._gathering
        if gathering is None or not gathering.is_complete(now):
            return
        self._gathering = None
        start = gathering.resume_state()
        requests = [(self.registry.trainers[rank], request) for rank, request in gathering.requests.items()]
        present = [
            (trainer, request)
            for trainer, request in requests
            if trainer.peer and trainer.run == request.begin.request_id
        ]
        try:
            self._open(start)
        except Error as error:
            for trainer, _ in present:
                self._fail(trainer, error)
            return
        for trainer, request in present:
            if request.begin.pass_id > start.pass_id:
                trainer.move(TrainerEvent.LEAVE)  # or it had ended it
            self._answer(trainer, replace(request, was_gathered=True))
        self._finish_pass_if_over()

    def _rewind(self, trainer: Trainer, begin: m.BeginPass) -> None:
        """Begin a new generation with the state that ``trainer`` names in ``begin``."""
        last = self.runner.pass_id
        last = last if begin.after_pass and not (self.in_pass or last in self._errors) else -1
        again = self.in_pass and begin.state_name == self._generation.loaded and begin.pass_id == self.runner.pass_id
        done = {**self.registry.passed_through} if again else {}  # had the pass from there on, and left
        early_ends = self.runner.early_ends if again else {}
        self.stop()
        self.registry.passed_through.update(done)
        gathered = set() if self._gathering is None else {*self._gathering.requests}
        self._gathering = None
        self._generation = Generation(begin.state_name, done, last, number=self._generation.number + 1)
        self._generation.keep_early_ends(begin.pass_id, early_ends)
        for other in self.registry.members():
            if other is not trainer:
                other.is_outdated = True  # also of one that is away: it comes back with what it has had
                if other.pending is not None or other.state is PassState.IN or other.rank in gathered:
                    self._fail_rewound(other)
            other.reset()
            other.pending = None

    def _fail_rewound(self, trainer: Trainer) -> None:
        """Tell ``trainer`` to load the state that others have loaded, or any if nobody knows where to go on."""
        error, loaded = went_back(self.registry.name), self._generation.loaded
        if not loaded:
            error, loaded = not_known(self.registry.name, trainer.rank, self.registry.loss), ""
        self._tell(trainer, m.Failed(trainer.run, to_wire(error), loaded))

    def _open(self, start: StreamState) -> None:
        """Begin a pass at ``start``. Raises Error where that cannot be."""
        dispatcher = self.runner.begin(start, 1 if self.registry.dynamic else self.registry.world)
        self._on_begin(dispatcher)
        for trainer in self.registry.trainers.values():
            trainer.reset()
        self.in_pass, self._end, self._start = True, None, start.point
        self._errors = {failed: error for failed, error in self._errors.items() if failed < start.pass_id}
        self._written = self._known()
        self._note_change()
        self.delivery.begin(start)
        if start.batch:
            files, samples = self.runner.run_again
            again = "all that came before is read again"
            if start.point is not None:
                again = f"{files} files are run again, {samples} samples of them a second time"
            self._log(f"pass {start.pass_id} is taken up at batch {start.batch}: {again}", "")

    def _join(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        """Go on with ``trainer`` in the pass, which begins if none is under way."""
        if not self.in_pass:
            early_ends = {**self._generation.early_ends_of(begin.pass_id), **start.early_ends}
            try:
                self._open(replace(start, early_ends=early_ends))
            except Error as error:
                self._fail(trainer, error)
                return
        if not (self.delivery.can_join(trainer, begin) and self.runner.has_early_ends(start.early_ends)):
            self._fail_unknown(trainer)
            return
        self.delivery.join(trainer, begin, start)
        trainer.feed.point = self._start if begin.snapshot else None

    def leave(self, peer: bytes, run: int, done: int, now: float) -> None:
        """Note that the trainer ``peer`` does not want the rest of its pass."""
        trainer = self._heard_from(peer, now)
        # else it leaves a pass that was over, or one of the generation before
        if run == trainer.run and run != trainer.ended_run and not trainer.is_outdated:
            self._leave(trainer, done)
            self._finish_pass_if_over()

    def _leave(self, trainer: Trainer, done: int) -> None:
        self.delivery.acknowledge(trainer.acknowledge(done))
        trainer.pending = None
        self.delivery.release(trainer)
        if self.in_pass and trainer.state is not PassState.ENDED:
            trainer.move(TrainerEvent.LEAVE)
            self._note_change()

    def need(self, peer: bytes, need: m.Need, now: float) -> None:
        """Note that the trainer ``peer`` takes more batches, and which of those before it has used."""
        trainer = self._heard_from(peer, now)
        if need.request_id == trainer.run and not trainer.is_outdated:
            self.delivery.acknowledge(trainer.acknowledge(need.used_batches))
            trainer.flow.add_credit(need.count)

    def note_used(self, trainer: Trainer, word: int) -> None:
        """Note which batches ``trainer`` has used, as the ``word`` says that it shows."""
        self.delivery.acknowledge(trainer.acknowledge(progress_word.unpack(word, trainer.run)))

    def _heard_from(self, peer: bytes, now: float) -> Trainer:
        trainer = self.registry.by_peer(peer)
        if trainer is None:
            raise RemoteProtocolError("a message from a trainer that has lost its place")
        trainer.last_heard = now
        return trainer

    def _finish_pass_if_over(self) -> None:
        """End the pass when it is over for all trainers, and begin the next one."""
        if not self.in_pass or not self._is_over():
            return
        if isinstance(self._end, PassEnded) and (said := self.runner.describe_padding()):
            self._log(said, "")
        self.stop()
        if isinstance(self._end, PassEnded):
            self._on_end(self._end)
        for trainer in self.registry.trainers.values():
            trainer.reset()
        waiting = [(trainer, trainer.pending) for trainer in self.registry.trainers.values()]
        for trainer, _ in waiting:
            trainer.pending = None
        for trainer, request in waiting:
            if request is not None:
                self._answer(trainer, request)

    def _is_over(self) -> bool:
        """Return True if no rank has anything of the present pass to come. If none has begun it, those who did are gone
        without a word, and what they have not used goes to the others."""
        states = {trainer.state for trainer in self.registry.trainers.values()}
        return not (self.registry.absent or states & self.delivery.unfinished_states or states == {PassState.BEFORE})

    def stop(self) -> None:
        """End the pass for all trainers, and drop the batches that wait for them: this object may be kept for long."""
        if self.in_pass:
            self.in_pass = False
            self.runner.leave()
            self._on_begin(None)
            self.delivery.clear()
            self.registry.passed_through.clear()
            for trainer in self.registry.trainers.values():
                trainer.flow.clear()

    def restart_from_resume_point(self) -> None:
        """Go back to where no trainer misses a batch, if rows of the pass are lost with their host."""
        runner, registry = self.runner, self.registry
        if not (self.in_pass and runner.has_lost_rows):
            return
        self._log(f"rows of pass {runner.pass_id} are lost with their host and are read again", "rows lost")
        start = self._state()
        trainers = [
            (trainer, trainer.state, self.delivery.first_missing(trainer)) for trainer in registry.trainers.values()
        ]
        done, errors = {**registry.passed_through}, self._errors
        self.stop()
        if registry.is_single_rank:  # its trainer says where it is
            runner.pass_id -= 1
        else:
            self._open(start)
            registry.passed_through.update(done)
            self._errors = errors  # also of this pass: a rank that was told may not have heard it
        for trainer, state, first_missing in trainers:
            if state is PassState.IN and trainer.peer:
                self.out.append((trainer.peer, m.BeginAgain(trainer.run), ()))
            if state is not PassState.BEFORE and not registry.is_single_rank:
                trainer.move(_RESTORED_BY[state])
                trainer.first_unused = first_missing

    # -- snapshots -------------------------------------------------------------------------------------------------
    def _note_change(self) -> None:
        """Note that something happened that no rank could tell to a service that is started again."""
        self.snapshot_due = self.registry.world > 1

    def _state(self) -> StreamState:
        """Return where the pass under way can be taken up."""
        runner, state = self.runner, self.delivery.state().with_tail_in_point()
        return replace(state, early_ends=dict(runner.early_ends), buckets=runner.buckets)

    def snapshot(self, options: JobOptions, identity: dict[str, Any]) -> JobSnapshot:
        """Return what a service writes down of this job of ranks so that it can go on. (Of a job of one rank: which
        trainer has it. That trainer knows the rest.)"""
        self.snapshot_due = False
        registry = self.registry
        # also of those whose connection is gone: not all of them are dead, and what one has that comes back is its own
        ranks = [trainer.snapshot(self.delivery.first_missing(trainer)) for trainer in registry.trainers.values()]
        ranks += [RankSnapshot(rank, "", state, True) for rank, state in registry.passed_through.items()]
        running = None
        if self.in_pass and not registry.is_single_rank and self.runner.plan.order == "strict":
            running = self._state()
        errors, buckets, pass_id = self._errors.copy(), self.runner.known_buckets, self.runner.pass_id
        if registry.is_single_rank:
            errors, buckets, pass_id = {}, {}, -1
        generation = self._generation
        return JobSnapshot(
            registry.name,
            registry.world,
            options,
            identity,
            ranks,
            pass_id,
            generation.loaded,
            sorted(generation.begun_from_state),
            running,
            errors,
            generation.previous_pass,
            buckets,
        )

    def restore(self, snapshot: JobSnapshot, now: float) -> None:
        """Be the job of ranks that was written down. Raises Error where it cannot be."""
        registry = self.registry
        self._generation = Generation(snapshot.loaded, snapshot.begun_from_state, snapshot.previous_pass)
        self._errors = {**snapshot.errors}
        known = (rank for rank in snapshot.ranks if rank.session)
        registry.restore(map(Trainer.from_snapshot, known), now)
        self.runner.pass_id, self.runner.known_buckets = snapshot.pass_id, snapshot.buckets
        if snapshot.running is None or registry.is_single_rank:
            if snapshot.is_cut_off:
                self._errors.setdefault(snapshot.pass_id, cut_off(registry.name, snapshot.pass_id))
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
        self._finish_pass_if_over()
        return False

    def _keep_error(self, error: Error) -> None:
        """Keep why the present pass failed, for ranks that ask for it later."""
        self._errors[self.runner.pass_id] = error
        if len(self._errors) > _ERRORS:
            del self._errors[min(self._errors)]
        self._note_change()

    def _has_demand(self) -> bool:
        """Return True if some trainer can take a batch that is not cut yet."""
        return any(
            trainer.state is PassState.IN and trainer.flow.next_unsent is None and trainer.flow.can_send(0, self._limit)
            for trainer in self.registry.trainers.values()
        )

    def _queue(self, group: BatchGroup) -> None:
        if self._written != (known := self._known()):
            self._written = known
            self._note_change()
        self.delivery.queue(group)

    def _known(self) -> tuple[int, dict[str, Any]]:
        """Return what is written down as soon as it is known, besides where the trainers stand."""
        return len(self.runner.early_ends), self.runner.known_buckets

    def _hand_out(self) -> None:
        delivery = self.delivery
        for trainer in self.registry.trainers.values():
            while trainer.state is PassState.IN and trainer.flow.credit > 0 and (batch := delivery.next_for(trainer)):
                batch.batch.rows.retain()  # until they are sent
                head, frames = trainer.feed.head(trainer.run, batch, delivery.state_after(batch))
                self.out.append((trainer.peer, head, frames))

    def _finish(self) -> None:
        """Tell trainers that have used all their batches that there are no more; not those that have yet to load."""
        if self._end is None or not self.delivery.is_drained():
            return
        for trainer in self.registry.trainers.values():
            if trainer.state is PassState.IN and not (trainer.is_outdated or trainer.flow.in_flight):
                if isinstance(self._end, PassBroken):
                    trainer.move(TrainerEvent.LEAVE)
                    self._tell_outcome(trainer, self.runner.pass_id)
                else:
                    trainer.move(TrainerEvent.FINISH)
                    self._note_change()
                    self._end_pass(trainer, self.delivery.batch_count(trainer, self._end), self._end)

    # -- time ------------------------------------------------------------------------------------------------------
    def check_leases(self, now: float) -> None:
        """Look for leases that ran out, and for ranks that keep the others waiting."""
        self._finish_gathering(now)
        if self.registry.dynamic:
            self._end_leases(now)
        elif self.registry.world > 1:
            self._name_missing_ranks(now)

    def _end_leases(self, now: float) -> None:
        """Give the batches of trainers that were silent for too long to the others."""
        trainers, lease = self.registry.trainers, self.registry.lease
        for trainer in [trainer for trainer in trainers.values() if now - trainer.last_heard > lease]:
            if queued := trainer.flow.in_flight:
                text = f"job {self.registry.name!r}: {len(queued)} batches of a silent trainer go to others"
                self._log(text, "lease", names_job=True)
                self.delivery.release(trainer)
            trainer.flow.credit = 0  # when it wakes it asks anew
            if not trainer.peer:
                self.registry.expire(trainer)
        self._finish_pass_if_over()

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
        if any(trainer.pending is not None for trainer in trainers):
            late = [trainer for trainer in trainers if trainer.pending is None and trainer.state in UNFINISHED]
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
        trainer.unconfirmed_state = ""
        self._tell(trainer, m.Failed(trainer.run, to_wire(error)))

    def _tell(self, trainer: Trainer, message: m.Message) -> None:
        """Send ``trainer`` the end of its run."""
        trainer.ended_run = trainer.run
        if trainer.peer:
            self.out.append((trainer.peer, message, ()))
