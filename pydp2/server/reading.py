"""One pass over the files: who reads which, how far, and what the merge finds. Pure: no IO, no clock.

It is the source of the merge on one side and the dispatcher of the workers on the other; between them lies the ledger.
``order`` is the order in which the merge wants files; files are handed out in that order, so that what is needed first
is read first, whichever worker happens to be free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from pydp2.errors import Error, RemoteProtocolError, from_wire
from pydp2.order.saved import NEVER, Recall, Saved, SavedLane
from pydp2.order.source import END, WAIT, Failure, Gap, Run
from pydp2.protocol.messages import Assign, BeginReading, EndReading, Grant, Want
from pydp2.protocol.ranges import RAISED, Assignment, Part
from pydp2.server.actions import Action, Send
from pydp2.server.attempts import Attempts
from pydp2.server.claims import Claims
from pydp2.server.credit import Credit
from pydp2.server.crew import MANY, Crew
from pydp2.server.ledger import Entry
from pydp2.server.losses import Losses, condemned_at
from pydp2.server.recall import attach, entered, terms
from pydp2.server.waiting import Waiting

_FIRST = 8  # a file not yet bound starts with this part of what it may come to
_ENOUGH = 4096  # samples that a merge waits for, at most: a worker sends as many at a time
_FEW = 128  # so many that a pool lacks are not asked for by halves
_KNOWN = 4096  # files not yet bound that are known at a time: tiny ones use next to no credit, but each has an entry


class Reading:
    """Files of one pass on their way from workers to the merge."""

    def __init__(
        self,
        *,
        pass_id: int,
        seed: int,
        order: npt.NDArray[np.int64],
        lanes: int,
        budget: int,
        workers: int,
        label: Callable[[int], str],
        ramp: Mapping[int, int] | None = None,
        pull: Callable[[int], int] = lambda _: 1,
        skip_errors: bool = False,
        cache: Claims | None = None,
        saved: Saved | None = None,
        facts: Mapping[int, tuple[int, str]] | None = None,
        error_budget: float | None = None,
    ) -> None:
        self.pass_id, self.seed = pass_id, seed
        self._order = order
        self._lanes = max(1, lanes)
        self._workers, self.label, self._pull = workers, label, pull
        self._ramp = ramp or {}  # how far the first lanes are read by turns
        self._skip = skip_errors
        self._cache = Claims(None) if cache is None else cache
        # of a pass that is taken up in its middle, as many files again are bound to bring back the pool
        self.credit = Credit(budget, self._lanes * (1 if saved is None else 2), workers)
        self.entries: dict[int, Entry] = {}
        self._next = 0  # files of the order below this position have an entry or are done
        self._bound = 0
        self._places: npt.NDArray[np.int64] | None = None
        if saved is not None:
            self._next = self._bound = saved.next_file
            self._places = np.empty(len(order), np.int64)
            self._places[order] = np.arange(len(order))
        self._waiting, self._crew = Waiting(), Crew()
        self._thirsty: dict[int, Entry] = {}
        self._out: list[Action] = []
        self._grants: dict[int, dict[int, list[int]]] = {}  # by worker and attempt, told with the next dispatch
        self.losses = Losses(pass_id, label, error_budget, facts or {}, saved, order)
        self.samples_committed = 0
        self._over = False
        self.budget, self.number = budget, 0
        """What all readings of the service share, and which of them this is."""
        self.attempts: Attempts[Reading] = Attempts()
        """The coordinator gives it these when it begins."""

    # -- the merge's side ------------------------------------------------------------------------------------------
    def recalled(self, part: Part) -> Recall | None:
        """What was asked for of the file of ``part``, when that is read again in part by the attempt that sends it."""
        entry = self.entries.get(part.file)
        return None if entry is None or entry.attempt != part.attempt else entry.recall

    @property
    def passed(self) -> tuple[int, int]:
        """Samples and holes that the merge has passed."""
        return self.losses.taken, self.losses.dropped

    def position(self, file: int) -> SavedLane:
        """Where the merge stands in ``file``."""
        return self.entries[file].stand()

    def bind(self, file: int, recall: Recall | None = None) -> None:
        """``file`` takes turns from now on, or is read again for what ``recall`` names."""
        if recall is not None:
            self._recall(file, recall)
            return
        entry = self.entries.get(file)
        if entry is None:
            entry = self._enter(file, self._bound)
            self._waiting.add(entry)
        self._bound += 1
        self._next = max(self._next, self._bound)
        entry.bound = True
        self.credit.bind(file, last=self._bound == len(self._order))
        if not entry.ended and entry.worker is not None:
            self._crew.bind(entry.worker, file)
            self._grant(entry, tell=True)

    def _recall(self, file: int, recall: Recall) -> None:
        assert self._places is not None
        entry = self._enter(file, int(self._places[file]), recall)
        entry.bound = True
        self.credit.bind(file, last=self._bound == len(self._order))
        self._waiting.add(entry)

    def front(self, file: int) -> Run | Failure | Gap:
        """What is next in ``file``."""
        entry, losses = self.entries[file], self.losses
        if entry.holes:
            self._moved(entry)
        front = entry.front()
        if front is END and not losses.error and entry.meet_end():
            self._out += losses.end(file, entry.committed, entry.early)
        if losses.error:
            return Failure(losses.error)
        if entry.holes and isinstance(front, Run):
            front.hi = front.lo + losses.room(entry.holes, front.ordinals[front.lo : front.hi])
        return WAIT if front is None else front

    def take(self, file: int, count: int) -> None:
        """``count`` samples of ``file`` went into the pool."""
        entry = self.entries[file]
        y = entry.take(count)
        if entry.recall is None or y >= entry.recall.start:  # else they had been taken before
            self.losses.taken += count
        if entry.holes:
            self._moved(entry, y)
        else:
            self._used(entry)

    def _moved(self, entry: Entry, edge: int | None = None) -> None:
        for hole in entry.pass_holes(edge):
            self._out += self.losses.drop(entry.file, hole)
            if self.losses.error:
                break
        self._used(entry)

    def finish(self, file: int) -> None:
        """The merge met the end of ``file``, or needs nothing more of it."""
        entry = self.entries.pop(file)
        self._cache.forget(entry, self)
        if entry.worker is not None and not entry.ended:
            self._leave(entry.worker, entry)
        self._thirsty.pop(file, None)
        self.credit.release(file)

    def want(self, file: int, need: int = 1, missing: int = 1) -> None:
        """The merge waits for ``need`` samples of ``file``, and lacks ``missing`` of all files."""
        entry = self.entries[file]
        if entry.awaits:
            self._cache.urge(entry, self)
            if entry.awaits:
                return
            self._waiting.add(entry)
        if entry.worker is None:
            self._waiting.hurry(file)
            return
        self._grant(entry, pressing=True)
        if entry.committed < self._ramp.get(file, 0):
            need = -(-max(missing // 2, min(missing, _FEW)) // len(self._crew))
        elif not entry.by_turns:  # the next batch lacks as many of the same: more at a time, the longer it goes on
            need = max(need, min(entry.committed, _ENOUGH // 4))
        self._ask(entry, need)

    def _ask(self, entry: Entry, need: int = 1) -> None:
        if not entry.wanted and entry.worker is not None:
            entry.wanted = True
            self._out.append(Send(entry.worker, Want(entry.attempt, entry.committed + min(need, _ENOUGH))))

    def _used(self, entry: Entry) -> None:
        self.credit.set_use(entry.file, entry.use)
        if not entry.ended and entry.worker is not None:
            self._thirsty[entry.file] = entry

    # -- the workers' side -----------------------------------------------------------------------------------------
    def join(self, worker: int) -> None:
        """``worker`` can be given files."""
        self._crew.join(worker)
        self._out.append(Send(worker, BeginReading(self.number, self.pass_id, self.seed)))

    def lose(
        self,
        worker: int,
        running: tuple[int, int, int] | None,
        how: str,
        *,
        hungry: bool = False,
        sample_timeout: float | None = None,
    ) -> None:
        """``worker`` is gone: its files become new attempts, and the one that it was running is to blame. The other
        arguments are those of :class:`pydp2.server.actions.WorkerGone`."""
        for entry in self._crew.lose(worker):
            file, ordinal = entry.file, None
            if running is not None and running[:2] == (file, entry.attempt):
                ordinal = running[2]
            self.attempts.over(entry.attempt)
            condemned = entry.starve(ordinal) if hungry else entry.lose(ordinal)
            self.credit.set_use(file, entry.use)
            self._thirsty.pop(file, None)
            if condemned and ordinal is not None:
                error = condemned_at(
                    self.label(file), ordinal, how, self._skip, hungry=hungry, sample_timeout=sample_timeout
                )
                self._end_early(entry, error)
            else:
                self._waiting.add(entry)

    def commit(self, worker: int, part: Part, run: Run | None) -> None:
        """A range that came from ``worker``. Late output of attempts given up is dropped without a word."""
        entry = self.entries.get(part.file)
        if entry is None or not entry.accepts(worker, part):
            return
        entry.commit(part, run)
        self.samples_committed += part.rows
        self._out += self.losses.changed(part.file) if part.changed else ()
        if part.state == RAISED:
            self._end_early(entry, from_wire(part.error))
        else:
            self._cache.commit(entry, part, run)
            if entry.ended:
                self._leave(worker, entry)
        self._used(entry)

    def blocked(self, worker: int, file: int, attempt: int, ordinal: int, need: int) -> None:
        """``worker`` waits in ``file``: for credit of ``need``, or (0) at a stop."""
        entry = self.entries.get(file)
        if entry is None or entry.worker != worker or entry.attempt != attempt or entry.ended:
            return
        if ordinal > entry.committed:
            raise RemoteProtocolError(f"file {file} waits at sample {ordinal}, but {entry.committed} are committed")
        if ordinal < entry.committed:
            return  # it did wait there, until a grant crossed the report
        if need:
            entry.need = need
            self._thirsty[file] = entry
        elif entry.pause <= ordinal:  # else the stop is lifted, and the worker does not know it yet
            entry.stops.discard(entry.pause)
            self._grant(entry, tell=True)

    def _leave(self, worker: int, entry: Entry) -> None:
        self._crew.take(worker, entry)
        self._thirsty.pop(entry.file, None)
        self.attempts.over(entry.attempt)
        entry.worker = None

    def _end_early(self, entry: Entry, error: Error) -> None:
        worker = entry.worker
        entry.give_up(error, skip=self._skip)
        self.credit.set_use(entry.file, entry.use)
        self._cache.leave(entry)
        if worker is not None:
            self._leave(worker, entry)

    # -- what readings of other jobs say, over one cache -----------------------------------------------------------
    def urge(self, file: int) -> bool:
        """The merge of another one waits for ``file``, which this one has claimed: whether it goes on with it."""
        entry = self.entries[file]
        if entry.worker is None:
            self._waiting.hurry(file)
            return True
        self._grant(entry)
        if entry.need > entry.unspent:
            return False  # it waits for its own merge to make room
        self._ask(entry)
        return True

    def settled(self, file: int) -> None:
        """``file``, which this one waits for, is in the cache, or will not come from where it was to come from."""
        entry = self.entries[file]
        entry.awaits = False
        self._cache.enter(entry, self)
        self._waiting.add(entry)

    # -- handing out -----------------------------------------------------------------------------------------------
    def dispatch(self, expecting: int = 0) -> list[Action]:
        """Assign files and grant credit; all actions since the last call. ``expecting``: workers that are starting."""
        if self._crew and not self._over:
            items: dict[int, list[Assignment]] = {}
            self._assign_waiting(items, expecting)
            self._assign_ahead(items)
            for worker, assignments in items.items():
                for i in range(0, len(assignments), MANY):
                    these = assignments[i : i + MANY]
                    frames = attach(these, self.entries)
                    self._out.append(Send(worker, Assign(self.number, [a.to_wire() for a in these]), frames))
            for entry in sorted(self._thirsty.values(), key=lambda e: e.position):
                self._grant(entry)
        self._out += [Send(worker, Grant([*items.values()])) for worker, items in self._grants.items()]
        self._grants.clear()
        out, self._out = self._out, []
        return out

    def end(self) -> list[Action]:
        """The pass is over or was left: workers drop what they have of it."""
        self._over = True
        self._cache.over()
        out, self._out = self._out, []  # what the merge met last is still to be told
        out += [Send(worker, EndReading(self.number)) for worker in self._crew]
        for entry in self.entries.values():
            self._cache.forget(entry, self)
            if entry.worker is not None:
                self.attempts.over(entry.attempt)
        self._crew.disband()
        return out

    def _assign_waiting(self, items: dict[int, list[Assignment]], expecting: int) -> None:
        # those that are starting get their share of the lanes, unless they keep a merge waiting
        most = max(0, -(-self._lanes // self._workers) * len(self._crew) - self._crew.total) if expecting else None
        entries = [self.entries[file] for file in self._waiting.pop(most) if file in self.entries]
        # what the merge takes the most of first: so they come out alike
        for entry in sorted(entries, key=lambda entry: entry.pull, reverse=True):
            if entry.worker is None and not entry.ended and not entry.awaits:
                worker = self._crew.idlest()
                items.setdefault(worker, []).append(self._assign(worker, entry))

    def _assign_ahead(self, items: dict[int, list[Assignment]]) -> None:
        if self._waiting:
            return
        while self._next < len(self._order) and len(self.entries) < self._lanes + _KNOWN:
            file = int(self._order[self._next])
            comes = self._cache.ahead(self._order, self._next, self._bound)
            if comes is None:
                return
            if comes:
                self._next += 1  # the merge finds it there when it binds it
                continue
            worker = self._crew.idlest()
            if self._crew.waits(worker):
                return
            if self.credit.room(file) < self.credit.ahead // _FIRST:
                return
            entry = self._enter(file, self._next)
            self._next += 1
            items.setdefault(worker, []).append(self._assign(worker, entry))

    def _enter(self, file: int, position: int, recall: Recall | None = None) -> Entry:
        until, _ = self.losses.facts.get(file, (NEVER, ""))
        entry = self.entries[file] = entered(file, position, recall, until)
        entry.pull = self._pull(file)
        if file not in self.losses.facts:  # the cache knows nothing of an end that only this job has
            self._cache.enter(entry, self)
        return entry

    def _assign(self, worker: int, entry: Entry) -> Assignment:
        entry.worker, entry.attempt = worker, self.attempts.new(self)
        room = self.credit.room(entry.file)
        entry.limit += room if entry.bound else min(room, max(1, self.credit.ahead // _FIRST))
        self.credit.set_use(entry.file, entry.use)
        self._crew.give(worker, entry)
        return Assignment(
            entry.file, entry.attempt, entry.position, entry.committed, entry.spent, entry.limit, entry.pause,
            entry.bound, entry.crcs, until=entry.until, turn=entry.pull, ramp=self._ramp.get(entry.file, 0),
            **terms(entry.recall),
        )  # fmt: skip

    def _grant(self, entry: Entry, *, pressing: bool = False, tell: bool = False) -> None:
        """Raise the limit of ``entry`` if there is room worth a message, or if the merge is waiting (``pressing``)."""
        assert entry.worker is not None
        more = self.credit.due(entry, pressing=pressing)
        if not more and not tell:
            if entry.unspent >= 2 * self.credit.step(entry):
                self._thirsty.pop(entry.file, None)
            return
        if more:
            entry.limit = max(entry.limit, entry.spent) + more
            entry.need = 0
        self.credit.set_use(entry.file, entry.use)
        self._thirsty.pop(entry.file, None)
        item = [entry.attempt, entry.limit, entry.pause, int(entry.bound)]
        self._grants.setdefault(entry.worker, {})[entry.attempt] = item

    def load(self, worker: int) -> int:
        """How many files ``worker`` was given that have not ended."""
        return self._crew.load(worker)
