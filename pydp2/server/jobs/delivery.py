"""Deliver the batches of a pass to the trainers of a job: cut what they ask for, hand it out, tell them the end
(docs/order.md, "Ranks").

There are three ways: a sole rank has all batches (:class:`SoloDelivery`), the ranks have their batches in turn
(:class:`RankedDelivery`), or a batch goes to whichever trainer asks first (:class:`SharedDelivery`). With all of them a
batch is kept until the trainer that it went to has used it.

Pure: messages collect in the outbox of the trainers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from pydp2.data.columns.checksum_log import LoggedChecksums, joined
from pydp2.errors import BadSample, Error, to_wire
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.server.actions import JobLog
from pydp2.server.jobs.groups import BatchGroup, GroupedPass, JobPasses, Outcome, PassBroken, PassEnded
from pydp2.server.jobs.membership import RankRegistry, Trainer, TrainerEvent
from pydp2.server.jobs.sending import InFlightBatch, StateFeed, split_group, without_received
from pydp2.server.snapshots.job_snapshot import PassState
from pydp2.system.log_events import LogEvent

# Groups that may wait for a rank, besides the last one of a pass: so many, and twice what any rank asks for at a time;
# for a rank that is not there, twice what any rank asked for at first.
_WINDOW = 4
_MAX_STATES = 256  # between one look at which are still needed and the next
_MAX_CUT_AHEAD = 1000  # batches that a dynamic job may have used beyond one that is not
_ERRORS = 16  # failed passes whose errors are kept
_NOTHING_LEFT = PassEnded(0, 0, 0, False)  # of a pass, for a trainer that has had its end


class PassOutcomes:
    """Ends of the passes of ``stream``. Errors of the last ones that failed are kept: a rank that was cut off meanwhile
    asks for one."""

    def __init__(self, stream: JobPasses, log: JobLog) -> None:
        self._stream = stream
        self._log = log
        self.errors: dict[int, Error] = {}

    def keep_error(self, pass_id: int, broken: PassBroken) -> None:
        """Keep why pass ``pass_id`` failed, and log it."""
        error = self.errors[pass_id] = broken.error
        slot = error.slot if isinstance(error, BadSample) else ""
        about: dict[str, Any] = {"file": broken.file, "sample": broken.sample, "slot": slot or None}
        known = {name: value for name, value in about.items() if value is not None}
        self._log(f"pass {pass_id} ends with an error: {error}", LogEvent.PASS_FAILED, **known)
        if len(self.errors) > _ERRORS:
            del self.errors[min(self.errors)]

    def begin(self, pass_id: int) -> None:
        """Forget how pass ``pass_id`` and those after it ended: they come again."""
        self.errors = {failed: error for failed, error in self.errors.items() if failed < pass_id}

    def tell(self, trainer: Trainer, pass_id: int) -> None:
        """Tell ``trainer`` why pass ``pass_id`` failed, also once more; or that it is over, perhaps before it began."""
        if pass_id in self.errors:
            error = to_wire(self.errors[pass_id])
            trainer.end_run(m.Failed(trainer.run, error, "", self._stream.known_buckets))
        else:
            self.tell_end(trainer)

    def tell_end(self, trainer: Trainer, batches: int = 0, end: PassEnded = _NOTHING_LEFT) -> None:
        """Tell ``trainer`` that a pass is over, of which ``batches`` were cut as far as it is concerned."""
        known = self._stream.known_buckets
        trainer.end_run(m.PassEnd(trainer.run, batches, end.samples, end.dropped, end.uniform, known))


class Delivery(ABC):
    """Pass of ``stream``, from ``start`` on, on its way to the trainers of ``registry``: the batches that were cut and
    not used."""

    def __init__(self, registry: RankRegistry, stream: GroupedPass, outcomes: PassOutcomes, start: StreamState) -> None:
        self.stream = stream
        self.end: PassEnded | PassBroken | None = None
        """End of its batches, once they are all cut."""
        self._registry, self._trainers, self._outbox = registry, registry.trainers, registry.outbox
        self._outcomes = outcomes
        self._pass_id, self._opened, self._point = start.pass_id, start.batch, start.point
        self._next = start.batch  # the batch that is cut next
        self._written = self._known() if registry.size > 1 else None  # when the job was last found to be written down

    # -- batches ---------------------------------------------------------------------------------------------------
    def serve(self, most: int) -> bool:
        """Cut what is asked for, about ``most`` batches at once. Return True when there may be more."""
        for _ in range(most):
            if not self._hand_out() or self.end is not None:
                break
            outcome = self._cut(most)
            if outcome is None:
                return self.stream.more
            if isinstance(outcome, BatchGroup):
                if self._written is not None and self._written != (known := self._known()):
                    self._written = known
                    self._outbox.note_change()
                self._queue(outcome)
                continue
            self.end = outcome
            if isinstance(outcome, PassBroken):
                self._outcomes.keep_error(self._pass_id, outcome)
                self._outbox.note_change()
        else:
            return True
        self._tell_end()
        return False

    def _known(self) -> tuple[int, object]:
        """Return what is written down as soon as it is known, besides where the trainers stand."""
        return len(self.stream.early_ends), self.stream.job.known_buckets

    def _hand_out(self) -> bool:
        """Send trainers what they may be sent. Return True if one of them could take a batch that is not cut yet."""
        is_wanted = False
        for trainer in self._trainers.values():
            if trainer.state is not PassState.IN:
                continue
            while (batch := self._next_for(trainer)) is not None:
                batch.batch.rows.retain()  # until they are sent
                head, frames = trainer.feed.head(trainer.run, batch, self._state_after(batch))
                self._outbox.send(trainer.peer, head, frames)
            is_wanted = is_wanted or trainer.flow.lacks_batch
        return is_wanted

    def _tell_end(self) -> None:
        """Tell trainers that have used all their batches that there are no more; not those that have yet to load."""
        if self.end is None or not self._is_drained():
            return
        for trainer in self._trainers.values():
            if trainer.state is not PassState.IN or trainer.is_outdated or trainer.flow.in_flight:
                continue
            if isinstance(self.end, PassBroken):
                trainer.move(TrainerEvent.LEAVE)
                self._outcomes.tell(trainer, self._pass_id)
            else:
                trainer.move(TrainerEvent.FINISH)
                self._outbox.note_change()
                self._outcomes.tell_end(trainer, self._batch_count(trainer, self.end), self.end)

    def close(self) -> None:
        """End the pass for all trainers, and drop all batches."""
        self.note_unused()
        self.stream.job.close()
        for trainer in self._trainers.values():
            trainer.flow.clear()

    # -- trainers --------------------------------------------------------------------------------------------------
    def claim(self, trainer: Trainer) -> int:
        """Give ``trainer``, which has just connected, the batches that were kept for its rank. Return the number of the
        batch that it goes on at."""
        return self.position_of(trainer)

    def join(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> bool:
        """Go on with ``trainer`` where ``begin`` says, whose position is ``start``. Return False if something that it
        needs is not to be had any more."""
        if not (self._can_join(trainer, begin) and self.stream.has_early_ends(start.early_ends)):
            return False
        self._begin_run(trainer, begin, start)
        # what was sent in a run before may not have been read
        trainer.feed = StateFeed(self._point if begin.snapshot else None, known_early_ends={*start.early_ends})
        return True

    def acknowledge(self, trainer: Trainer, done: int) -> None:
        """Note that ``trainer`` has used the first ``done`` batches of its run."""
        trainer.acknowledge(done)

    def leave(self, trainer: Trainer, done: int) -> None:
        """Note that ``trainer`` does not want the rest, after it has used ``done`` batches of its run."""
        self.acknowledge(trainer, done)
        self.note_unused()
        self.take_back(trainer)
        if trainer.state is not PassState.ENDED:
            trainer.move(TrainerEvent.LEAVE)
            self._outbox.note_change()

    def take_back(self, trainer: Trainer) -> None:
        """Take back the batches that ``trainer`` has not used: it does not want them, or others are to have them."""
        trainer.flow.clear()

    def note_unused(self) -> None:
        """Note how many of the batches that were cut are not used."""
        if (unused := self._unused()) is not None:
            self.stream.job.note_unused(unused)

    def first_missing(self, trainer: Trainer) -> int:
        """Return the first batch that ``trainer`` may still have to be sent."""
        first = trainer.flow.first
        return max(self._next, trainer.first_unused) if first is None else first

    def position_of(self, trainer: Trainer) -> int:
        """Return the number of the batch that ``trainer`` goes on at."""
        return self.first_missing(trainer)

    def late_trainers(self) -> tuple[list[Trainer], bool]:
        """Return the trainers that keep others, which ask for batches, from going on, and whether ranks that are not
        there do, too."""
        trainers = self._trainers.values()
        is_wanted = any(trainer.state is PassState.IN and trainer.flow.lacks_batch for trainer in trainers)
        return self._blocking() if is_wanted else ([], False)

    def resume_state(self) -> StreamState:
        """Return where the pass can be taken up so that no trainer misses a batch that it has not used."""
        state = self._state().with_tail_in_point()
        return replace(state, early_ends={**self.stream.early_ends}, buckets=self.stream.buckets)

    # -- what differs ----------------------------------------------------------------------------------------------
    @abstractmethod
    def _cut(self, most: int) -> Outcome | None:
        """Return what comes next in the pass, looking at about ``most`` batches. None: there is nothing now, or a
        trainer is so far behind that the others wait for it."""

    @abstractmethod
    def _queue(self, group: BatchGroup) -> None:
        """Keep the batches of ``group`` for their trainers."""

    @abstractmethod
    def _unused(self) -> int | None:
        """Return the number of batches that were cut and are not used. None: nobody wants the rest."""

    @abstractmethod
    def _state(self) -> StreamState:
        """Return the :meth:`resume_state`; what is known of its files and buckets may be left out."""

    def _next_for(self, trainer: Trainer) -> InFlightBatch | None:
        """Return the batch that goes to ``trainer`` now and count it as sent. None: there is none, or ``trainer`` may
        not be sent one."""
        return trainer.flow.take_next()

    def _state_after(self, batch: InFlightBatch) -> StreamState:
        """Return the state of a trainer once it has used ``batch``; what is known of files and buckets may be left
        out."""
        return batch.group.after

    def _can_join(self, trainer: Trainer, begin: m.BeginPass) -> bool:
        """Return True if all batches that ``trainer`` needs from ``begin`` on are still to be had."""
        return begin.first_batch + trainer.rank >= self._opened

    def _begin_run(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        """Begin the run that ``trainer`` asks for."""
        trainer.join(begin)

    def _is_drained(self) -> bool:
        """Return True if trainers that have used their batches may be told that the pass is over."""
        return True

    def _batch_count(self, trainer: Trainer, end: PassEnded) -> int:
        """Return the number of batches that the end of the pass names to ``trainer``."""
        return max(0, -(-(end.batches - trainer.rank) // self._registry.world))

    def _blocking(self) -> tuple[list[Trainer], bool]:
        """Return the trainers for which batches are held up, and whether they are for ranks that are not there."""
        return [], False


class SoloDelivery(Delivery):
    """All batches of a pass, on their way to the only rank, which says itself where it stands."""

    def _cut(self, most: int) -> Outcome | None:
        return self.stream.next_group(most)

    def _queue(self, group: BatchGroup) -> None:
        self._next = group.after.batch
        for batch in split_group(group):
            self._enqueue(self._trainers[0], batch)

    def _enqueue(self, trainer: Trainer, batch: InFlightBatch) -> None:
        if trainer.state is PassState.LEFT or batch.index < trainer.first_unused:
            batch.release()
        else:
            trainer.flow.enqueue(batch)

    def _unused(self) -> int | None:
        # As if trainers that have left the pass were as far as those that have not, on average.
        registry = self._registry
        states = (*registry.passed_through.values(), *(trainer.state for trainer in self._trainers.values()))
        staying = registry.size - states.count(PassState.LEFT)
        return -(-registry.world * self._held() // staying) if staying else None

    def _held(self) -> int:
        """Return the number of batches that are kept for trainers: each counts once for each peer."""
        return sum(len(trainer.flow.in_flight) for trainer in self._trainers.values())

    def _state(self) -> StreamState:
        return StreamState(self._pass_id, self._next)


class RankedDelivery(SoloDelivery):
    """Batches of a pass on their way to ranks: batch ``n`` belongs to rank ``n % world``, and each peer of that rank
    gets it. Batches of trainers that are not there are kept, and a trainer that is behind holds the others up."""

    def __init__(self, registry: RankRegistry, stream: GroupedPass, outcomes: PassOutcomes, start: StreamState) -> None:
        super().__init__(registry, stream, outcomes, start)
        self._states = deque([start])  # where those that are behind may stand
        self._ahead: deque[Outcome] = deque()  # what comes next, as far as it was looked at
        self._unclaimed = UnclaimedBatches()

    def close(self) -> None:
        super().close()
        self._unclaimed.clear()
        for outcome in self._ahead:
            for batch in outcome.batches if isinstance(outcome, BatchGroup) else ():
                batch.rows.release()

    def _cut(self, most: int) -> Outcome | None:
        if self._blocked_by_slow():
            return self._cut_last(most)
        return self._ahead.popleft() if self._ahead else self.stream.next_group(most, self._absent_room())

    def _absent_room(self) -> float:
        """Return how many bytes of batches may still be cut for absent trainers: ``pool_bytes`` for all of them
        together, and what connected trainers may have."""
        if not self._registry.absent:
            return inf
        connected = sum(trainer.flow.limit for trainer in self._trainers.values())
        groups = (outcome for outcome in self._ahead if isinstance(outcome, BatchGroup))
        ahead = sum(batch.cost for group in groups for batch in group.batches)
        return self.stream.job.plan.pool_bytes + connected - self._unclaimed.nbytes - ahead

    def _cut_last(self, most: int) -> Outcome | None:
        """Return what comes next if it is the last group of the pass, or its end. These wait for no rank that is
        behind, so ranks that have all of their batches need not wait for it either."""
        while len(self._ahead) < 2 and not (self._ahead and not isinstance(self._ahead[-1], BatchGroup)):
            outcome = self.stream.next_group(most, self._absent_room())
            if outcome is None:
                return None
            self._ahead.append(outcome)
        return None if isinstance(self._ahead[-1], BatchGroup) else self._ahead.popleft()

    def _blocked_by_slow(self) -> bool:
        """Return True if so much waits for one rank that the others wait for it."""
        window = self._window()
        return self._is_unclaimed_full() or any(self._is_full(trainer, window) for trainer in self._trainers.values())

    def _window(self) -> int:
        return _WINDOW + 2 * max((trainer.flow.ahead for trainer in self._trainers.values()), default=0)

    def _is_unclaimed_full(self) -> bool:
        """Return True if the others wait for ranks that are not there."""
        return len(self._unclaimed) >= _WINDOW + 2 * max(
            (trainer.flow.prefetch for trainer in self._trainers.values()), default=0
        )

    def _is_full(self, trainer: Trainer, window: int) -> bool:
        """Return True if the others wait for ``trainer``."""
        if trainer.state is PassState.LEFT:
            return False
        flow = trainer.flow
        return len(flow.in_flight) >= window or (len(flow.in_flight) > 1 and flow.in_flight_bytes >= flow.limit)

    def _queue(self, group: BatchGroup) -> None:
        self._next = group.after.batch
        self._states.append(group.after)
        if len(self._states) > _MAX_STATES:
            self._state()
        unclaimed: dict[int, InFlightBatch] = {}
        for number, batch in enumerate(split_group(group, self._registry.numbers.peers)):
            if number in self._trainers:
                self._enqueue(self._trainers[number], batch)
            elif number in self._registry.passed_through:
                batch.release()
            else:
                unclaimed[number] = batch
        self._unclaimed.add(unclaimed)

    def _unused(self) -> int | None:
        unused = super()._unused()
        groups = (outcome for outcome in self._ahead if isinstance(outcome, BatchGroup))
        return None if unused is None else unused + sum(len(group.batches) for group in groups)

    def _held(self) -> int:
        return super()._held() + self._unclaimed.count

    def claim(self, trainer: Trainer) -> int:
        for batch in self._unclaimed.claim(trainer.number):
            trainer.flow.enqueue(batch)
        return super().claim(trainer)

    def _state(self) -> StreamState:
        firsts = [self._unclaimed.first, *(trainer.flow.first for trainer in self._trainers.values())]
        low = min((first for first in firsts if first is not None), default=self._next)
        while len(self._states) > 1 and self._states[1].batch <= low:
            self._states.popleft()
        return self._states[0]

    def _blocking(self) -> tuple[list[Trainer], bool]:
        window = self._window()
        absent = self._registry.absent > 0 and (self._is_unclaimed_full() or self.stream.pool_over_limit)
        return [trainer for trainer in self._trainers.values() if self._is_full(trainer, window)], absent


class UnclaimedBatches:
    """Batches that wait for trainers that have not come in this pass: of each group, its batches by the number of the
    trainer. Peers wait for one batch, which counts once."""

    def __init__(self) -> None:
        self._groups: list[dict[int, InFlightBatch]] = []
        self.nbytes = 0
        """Bytes that all batches in it count for."""

    def __len__(self) -> int:
        """Groups: so many batches wait for a trainer at most."""
        return len(self._groups)

    @property
    def count(self) -> int:
        """Number of batches: each counts once for each peer."""
        return sum(map(len, self._groups))

    @property
    def first(self) -> int | None:
        """First batch of the first group, None if there is none."""
        return next(iter(self._groups[0].values())).first if self._groups else None

    def add(self, batches: Mapping[int, InFlightBatch]) -> None:
        """Keep the ``batches`` of a group that belong to trainers that are not there."""
        if batches:
            self._groups.append(dict(batches))
            self.nbytes += _cost_once(batches.values())

    def claim(self, number: int) -> list[InFlightBatch]:
        """Remove and return what waits for trainer ``number``, which has come, in order."""
        found: list[InFlightBatch] = []
        for batches in self._groups:
            if (held := batches.pop(number, None)) is not None:
                found.append(held)
                if all(other.index != held.index for other in batches.values()):
                    self.nbytes -= held.cost
        self._groups = [batches for batches in self._groups if batches]
        return found

    def clear(self) -> None:
        """Drop all batches: the pass is over."""
        for batches in self._groups:
            for held in batches.values():
                held.release()
        self._groups.clear()
        self.nbytes = 0


def _cost_once(batches: Iterable[InFlightBatch]) -> int:
    """Return the bytes that ``batches`` count for, a batch of several peers once."""
    return sum({batch.index: batch.cost for batch in batches}.values())


class SharedDelivery(Delivery):
    """Batches of a pass, each on its way to the trainer that asks first. A position is the first batch that is not
    used, and those used beyond it (docs/order.md, "Ranks")."""

    def __init__(self, registry: RankRegistry, stream: GroupedPass, outcomes: PassOutcomes, start: StreamState) -> None:
        super().__init__(registry, stream, outcomes, start)
        self._waiting: deque[InFlightBatch] = deque()
        self._used = {*start.acknowledged_ahead}
        self._points = [(start.point, start.checksums)]  # with checksums up to the next one
        self._loaded: list[tuple[int, LoggedChecksums]] = []  # of states, needed up to a batch that is not cut yet
        self._checksums = start.checksums  # all of them, since the first point
        self._tail_consumed = 0  # of the tail, before the batch that is cut next
        self._note_loaded(start)

    def _note_loaded(self, state: StreamState) -> None:
        """Keep the checksums of ``state`` while batches that were used before are not cut here."""
        if state.acknowledged_ahead:
            self._loaded.append((max(state.acknowledged_ahead), state.checksums))
            self._checksums = self._checksums.extended(state.checksums.since(None))

    def close(self) -> None:
        super().close()
        for batch in self._waiting:
            batch.release()

    def _cut(self, most: int) -> Outcome | None:
        # Beyond the limit, the trainer that has the first batch uses it, or its lease ends. What waits is too large for
        # the trainers that ask.
        if self._waiting or self._next - self.first_unused >= _MAX_CUT_AHEAD:
            return None
        return self.stream.next_group()

    def _queue(self, group: BatchGroup) -> None:
        self._waiting += split_group(group)
        after = group.after
        self._next, self._tail_consumed = after.batch, after.tail[1]
        point, known = self._points.pop()
        if point is after.point:
            records = after.checksums.since(known)
        else:
            rest = group.checksums_before.since(known)
            self._points.append((point, known.extended(rest)))
            records = rest + after.checksums.since(None)
        self._points.append((after.point, after.checksums))
        self._checksums = self._checksums.extended(records)

    def _next_for(self, trainer: Trainer) -> InFlightBatch | None:
        flow = trainer.flow
        if flow.is_all_sent and self._waiting and flow.can_send(self._waiting[0].cost):
            flow.enqueue(self._waiting.popleft())
        return flow.take_next()

    def take_back(self, trainer: Trainer) -> None:
        self._waiting = deque(sorted((*self._waiting, *trainer.flow.take_back()), key=lambda batch: batch.index))

    def _can_join(self, trainer: Trainer, begin: m.BeginPass) -> bool:
        return True

    def _begin_run(self, trainer: Trainer, begin: m.BeginPass, start: StreamState) -> None:
        self._used.update(trainer.join(begin))
        self._note_loaded(start)
        self._waiting, received = without_received(begin, self._waiting)  # it was given up for lost
        self._used.update(received)

    def acknowledge(self, trainer: Trainer, done: int) -> None:
        self._used.update(trainer.acknowledge(done))

    def _unused(self) -> int:
        return len(self._waiting) + sum(len(trainer.flow.in_flight) for trainer in self._trainers.values())

    @property
    def first_unused(self) -> int:
        """Number of the first batch that is not used."""
        first = self._first()
        return self._next if first is None else first.index

    def _first(self) -> InFlightBatch | None:
        unused = [*self._waiting, *(batch for trainer in self._trainers.values() for batch in trainer.flow.in_flight)]
        return min(unused, key=lambda batch: batch.index, default=None)

    def position_of(self, trainer: Trainer) -> int:
        return self.first_unused

    def _state(self) -> StreamState:
        first = self._first()
        low, consumed = self._next, self._tail_consumed
        if first is not None:
            cut, low = first.batch.cut, first.index
            consumed = max(0, cut.tail_consumed - len(cut.row_ids) + cut.padding)
        while len(self._points) > 1 and (later := self._points[1][0]) is not None and later.batch_index <= low:
            del self._points[0]
            self._loaded = [(last, logged) for last, logged in self._loaded if last >= self._next]
            self._checksums = joined(logged for _, logged in (*self._points, *self._loaded))
        self._used = {index for index in self._used if index > low}
        return StreamState(
            self._pass_id, low, sorted(self._used), {}, self._points[0][0], self._checksums, {}, (low, consumed)
        )

    def _state_after(self, batch: InFlightBatch) -> StreamState:
        return self._state()

    def _is_drained(self) -> bool:
        return not self._waiting and not any(trainer.flow.in_flight for trainer in self._trainers.values())

    def _batch_count(self, trainer: Trainer, end: PassEnded) -> int:
        return end.batches


def delivery_of(registry: RankRegistry, stream: GroupedPass, outcomes: PassOutcomes, start: StreamState) -> Delivery:
    """Return the way in which the pass of ``stream`` that begins at ``start`` comes to the trainers of ``registry``."""
    if registry.dynamic:
        return SharedDelivery(registry, stream, outcomes, start)
    return (SoloDelivery if registry.is_single_rank else RankedDelivery)(registry, stream, outcomes, start)
