"""Carry out what the trainers of a job agree on: who is in which generation, when a pass begins and ends for all
(docs/order.md, "Ranks").

:func:`~pydp2.server.jobs.agreement.decide` says what follows when a trainer asks for a pass, and gives the reasons.
:class:`TrainerGroup` does it. What happens within a pass is the affair of its
:class:`~pydp2.server.jobs.delivery.Delivery`, who is there that of the
:class:`~pydp2.server.jobs.membership.RankRegistry`.

Pure: messages to be sent collect in ``outbox``, the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pydp2.errors import Error, RemoteProtocolError, Rewound, to_wire
from pydp2.order.stream_state import StreamPosition, StreamState
from pydp2.protocol import messages as m
from pydp2.protocol import progress_word
from pydp2.server.actions import JobLog
from pydp2.server.jobs.agreement import (
    UNFINISHED,
    Decision,
    Gathering,
    Generation,
    GroupView,
    PassRequest,
    decide,
    in_other_pass,
    not_known,
    went_back,
)
from pydp2.server.jobs.delivery import Delivery, PassOutcomes, delivery_of
from pydp2.server.jobs.groups import JobPasses, PassEnded
from pydp2.server.jobs.membership import GroupOptions, MissingRanks, RankRegistry, Trainer
from pydp2.server.snapshots.job_snapshot import PassState
from pydp2.system.log_events import LogEvent


class TrainerGroup:
    """Trainers of a job, whose passes ``stream`` gives. ``on_end`` is called when a pass is over."""

    def __init__(
        self,
        stream: JobPasses,
        options: GroupOptions,
        *,
        on_end: Callable[[PassEnded], None],
        log: JobLog,
    ) -> None:
        self.stream = stream
        self.registry = RankRegistry(options)
        self.outbox = self.registry.outbox
        self.outcomes = PassOutcomes(stream, log)
        self.current: Delivery | None = None
        """Pass under way; None: there is none."""
        self._on_end = on_end
        self.log = log
        self.generation = Generation()
        self._gathering: Gathering | None = None
        self._missing_ranks = MissingRanks(self.registry, options.missing_rank)

    # -- coming and going ------------------------------------------------------------------------------------------
    def attach(self, peer: bytes, attach: m.Attach, now: float) -> dict[str, Any]:
        """Give ``peer`` the rank that it asks for and return where that stands. Raises OptionError, JobTaken, and
        Rewound for a connection that its trainer has given up."""
        trainer, current = self.registry.claim(attach, now), self.current
        if trainer.peer:
            trainer.refuse(self.registry.replacement_error(trainer, now))
        self.registry.connect(trainer, peer, attach, now)
        position = 0 if current is None else current.claim(trainer)
        if trainer.session != attach.session:
            trainer.take_over(attach.session)
        self._missing_ranks.rank_returned(trainer)
        if current is None or trainer.state not in UNFINISHED:
            return StreamPosition(self.stream.pass_id + 1).position
        return StreamPosition(self.stream.pass_id, position).position

    @property
    def awaits_ranks(self) -> bool:
        """True while ranks have not had the pass that was begun, or are gone without a word: they have the lease."""
        registry = self.registry
        has_begun = self.current is not None or bool(registry.trainers)
        return self._gathering is not None or (registry.size > 1 and has_begun)

    def detach(self, trainer: Trainer, run: int, done: int, now: float) -> None:
        """Note that ``trainer`` left in order, after it had used ``done`` batches of ``run``."""
        self._leave(trainer, done if trainer.is_in_run(run) else 0)
        if self._gathering is not None:
            self._gathering.remove(trainer.number)
        self.registry.leave_in_order(trainer, now)
        if self.registry.dynamic:  # its number does not come back
            self.generation.begun_from_state.discard(trainer.number)
        self._finish_pass_if_over()

    def connection_lost(self, trainer: Trainer, now: float) -> None:
        """Note that ``trainer`` is gone without a word. Its rank is kept for it, and its batches until its lease ends:
        if it comes back, it may have used them."""
        self.registry.disconnect(trainer)
        trainer.last_heard = now
        self.outbox.note_change()

    def check_leases(self, now: float) -> None:
        """Look for leases that ran out, and for ranks that keep the others waiting."""
        self._finish_gathering(now)
        registry, current = self.registry, self.current
        if registry.dynamic:
            for trainer in registry.silent_trainers(now):
                self._end_lease(trainer)
            self._finish_pass_if_over()
        elif registry.size > 1:
            late = registry.late_for_next_pass()
            if late is None:
                late = ([], False) if current is None else current.late_trainers()
            for text, fields in self._missing_ranks.overdue_messages(*late, now):
                self.log(text, LogEvent.RANK_LATE, names_job=True, **fields)

    def _end_lease(self, trainer: Trainer) -> None:
        """Give the batches of a silent trainer to others. It may live, and its messages be late: then it has to ask
        anew, because it does not know that it has lost its credit, and would wait for ever."""
        flow = trainer.flow
        has_asked = flow.credit > 0 or len(flow.in_flight) > 0
        if self.current is not None and (count := len(flow.in_flight)):
            text = f"job {self.registry.name!r}: {count} batches of a silent trainer go to others"
            self.log(text, LogEvent.LEASE_ENDED, names_job=True)
            self.current.take_back(trainer)
        self.registry.end_lease(trainer)
        if has_asked and trainer.peer and trainer.state is PassState.IN and trainer.is_in_run(trainer.run):
            trainer.begin_again()

    # -- requests for passes ---------------------------------------------------------------------------------------
    def begin(self, trainer: Trainer, begin: m.BeginPass, start: StreamState, now: float) -> None:
        """Begin a pass for ``trainer``, go on in one, or go back to a state. ``start``: where, in the words of
        ``begin``."""
        trainer.last_heard = now
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
        registry, generation, current = self.registry, self.generation, self.current
        others = (other for other in registry.trainers.values() if other is not trainer and other.peer)
        return GroupView(
            dynamic=registry.dynamic,
            is_single_rank=registry.is_single_rank,
            pass_id=self.stream.pass_id,
            in_pass=current is not None,
            failed=self.outcomes.errors.keys(),
            is_gathering=self._gathering is not None,
            loaded=generation.loaded,
            generation=generation.number,
            previous_pass=generation.previous_pass,
            state=trainer.state,
            is_outdated=trainer.is_outdated,
            began_from_state=trainer.number in generation.begun_from_state,
            others_from_state=any(other.number in generation.begun_from_state for other in others),
            unconfirmed_state=trainer.unconfirmed_state,
            deferred_state=trainer.deferred_state,
            previous_run_ended=trainer.previous_run_ended,
            next_batch=0 if current is None else current.position_of(trainer),
        )

    def _carry_out(self, decision: Decision, trainer: Trainer, request: PassRequest) -> None:
        """Carry out ``decision``, with which ``request`` is answered."""
        begin = request.begin
        match decision:
            case Decision.DEFER:
                self._leave(trainer, 0)
                trainer.pending = replace(request, deferred_in=self.generation.number)
                trainer.deferred_state = begin.state_name
                self._finish_pass_if_over()
            case Decision.WAIT:
                trainer.pending = request
            case Decision.GATHER:
                self._gather(trainer, request)
            case Decision.JOIN:
                self._join(trainer, begin, request.start)
            case Decision.TELL_END:
                self.outcomes.tell_end(trainer)
            case Decision.TELL_OUTCOME:
                self.outcomes.tell(trainer, begin.pass_id)
            case Decision.REFUSE_OUTDATED:
                trainer.is_outdated = True
                self._refuse_outdated(trainer)
            case Decision.REFUSE_UNKNOWN:
                trainer.refuse(self._not_known(trainer))
            case Decision.REFUSE_OTHER_PASS:
                trainer.refuse(in_other_pass(self.registry.name, self.stream.pass_id, trainer.name, begin.pass_id))

    def _not_known(self, trainer: Trainer) -> Rewound:
        return not_known(self.registry.name, trainer.name, self.registry.loss)

    def _refuse_outdated(self, trainer: Trainer) -> None:
        """Tell ``trainer`` to load the state that others have loaded, or any if nobody knows where to go on."""
        loaded = self.generation.loaded
        error = went_back(self.registry.name) if loaded else self._not_known(trainer)
        trainer.end_run(m.Failed(trainer.run, to_wire(error), loaded))

    def _admit(self, trainer: Trainer, request: PassRequest) -> PassRequest:
        """Take ``trainer`` into the generation. A dynamic one that names its state goes on where the others are."""
        begin, dynamic = request.begin, self.registry.dynamic
        if begin.state_name or dynamic:
            self.generation.begun_from_state.add(trainer.number)
        if begin.state_name:
            trainer.is_outdated, trainer.deferred_state = False, ""
            trainer.unconfirmed_state = self.generation.loaded
            self.outbox.note_change()  # once it had an answer it does not name the state again
            begin = replace(begin, state_name="") if dynamic else begin
        return replace(request, begin=begin, is_admitted=True)

    def _rewind(self, trainer: Trainer, begin: m.BeginPass) -> None:
        """Begin a new generation with the state that ``trainer`` names in ``begin``."""
        registry, current, last = self.registry, self.current, self.stream.pass_id
        all_had_ended = begin.after_pass and current is None and last not in self.outcomes.errors
        done: dict[int, PassState] = {}
        early_ends = {}
        if current is not None and begin.state_name == self.generation.loaded and begin.pass_id == last:
            done = {**registry.passed_through}  # ranks that had the pass from there on, and left
            early_ends = {last: {**current.stream.early_ends}}
        gathered = set() if self._gathering is None else {*self._gathering.requests}
        self.stop()
        registry.passed_through.update(done)
        self._gathering = None
        self.generation = Generation(
            begin.state_name, {*done}, last if all_had_ended else -1, self.generation.number + 1, early_ends
        )
        for other in registry.members():
            if other is not trainer:
                other.is_outdated = True  # also of one that is away: it comes back with what it has had
                if other.pending is not None or other.state is PassState.IN or other.number in gathered:
                    self._refuse_outdated(other)
            other.reset()
            other.pending = None

    def _gather(self, trainer: Trainer, request: PassRequest) -> None:
        """Wait for the other ranks, and go on where the last of them is."""
        if self._gathering is None:
            self.stop()
            self._gathering = Gathering(self.registry.size, trainer.last_heard + self.registry.lease)
            for other in self.registry.trainers.values():
                if other is not trainer and (other.pending or other.state is PassState.IN):
                    other.begin_again()
        self._gathering.add(trainer.number, request)
        self._finish_gathering(trainer.last_heard)

    def _finish_gathering(self, now: float) -> None:
        """Go on when all trainers that were in the pass are there, or have been waited for."""
        gathering, trainers = self._gathering, self.registry.trainers
        if gathering is None or not gathering.is_complete(now):
            return
        self._gathering = None
        start = gathering.resume_state()
        requests = [(trainers[number], request) for number, request in gathering.requests.items()]
        present = [(trainer, request) for trainer, request in requests if trainer.is_asking(request)]
        if not self._begin_pass(start, [trainer for trainer, _ in present]):
            return
        for trainer, request in present:
            self._answer(trainer, replace(request, was_gathered=True))

    def _join(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        """Go on with ``trainer`` in the pass, which begins if none is under way."""
        if self.current is None:
            early_ends = {**self.generation.early_ends.get(begin.pass_id, {}), **start.early_ends}
            if not self._begin_pass(replace(start, early_ends=early_ends), [trainer]):
                return
        assert self.current is not None
        if not self.current.join(trainer, begin, start):
            trainer.refuse(self._not_known(trainer))

    # -- the pass --------------------------------------------------------------------------------------------------
    def _begin_pass(self, start: StreamState, trainers: Iterable[Trainer]) -> bool:
        """Begin a pass at ``start``. Return False if that cannot be, after ``trainers`` were told."""
        try:
            self.open(start)
        except Error as error:
            for trainer in trainers:
                trainer.refuse(error)
            return False
        self.outcomes.begin(start.pass_id)
        return True

    def open(self, start: StreamState) -> None:
        """Begin a pass at ``start``. Raises Error where that cannot be."""
        stream = self.stream.open(start, self.registry.world)
        for trainer in self.registry.trainers.values():
            trainer.reset()
        self.current = delivery_of(self.registry, stream, self.outcomes, start)
        self.outbox.note_change()
        if text := stream.describe_start():
            self.log(text, LogEvent.PASS_RESUMED)

    def leave(self, trainer: Trainer, run: int, done: int, now: float) -> None:
        """Note that ``trainer`` does not want the rest of its pass."""
        trainer.last_heard = now
        if trainer.is_in_run(run):  # else it leaves a pass that was over, or one of the generation before
            self._leave(trainer, done)
            self._finish_pass_if_over()

    def _leave(self, trainer: Trainer, done: int) -> None:
        trainer.pending = None
        if self.current is not None:
            self.current.leave(trainer, done)

    def need(self, trainer: Trainer, need: m.Need, now: float) -> None:
        """Note that ``trainer`` takes more batches, and which of those before it has used."""
        trainer.last_heard = now
        if trainer.is_in_run(need.request_id):
            if self.current is not None:
                self.current.acknowledge(trainer, need.used_batches)
            trainer.flow.add_credit(need.count)
            if not trainer.flow.sent:
                trainer.flow.starved_since = min(trainer.flow.starved_since, now)

    def note_used(self, trainer: Trainer, word: int) -> None:
        """Note which batches ``trainer`` has used, as the ``word`` says that it shows."""
        if self.current is not None:
            self.current.acknowledge(trainer, progress_word.unpack(word, trainer.run))

    def serve(self, most: int) -> bool:
        """Cut what is asked for, about ``most`` batches at once. Return True when there may be more."""
        if self.current is None:
            return False
        more = self.current.serve(most)
        if self.current.end is not None:
            self._finish_pass_if_over()
        return more

    def _finish_pass_if_over(self) -> None:
        """End the pass when it is over for all trainers, and begin the next one."""
        if self.current is None or not self.registry.is_pass_over:
            return
        end = self.current.end
        self.stop()
        if isinstance(end, PassEnded):
            self._on_end(end)
        waiting = []
        for trainer in self.registry.trainers.values():
            trainer.reset()
            if trainer.pending is not None:
                waiting.append((trainer, trainer.pending))
                trainer.pending = None
        for trainer, request in waiting:
            self._answer(trainer, request)

    def stop(self) -> None:
        """End the pass for all trainers, and drop the batches that wait for them: this object may be kept for long."""
        if self.current is not None:
            self.current.close()
            self.current = None
            self.registry.passed_through.clear()
