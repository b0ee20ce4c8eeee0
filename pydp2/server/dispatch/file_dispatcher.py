"""Dispatch the files of one pass to workers (docs/order.md, "Ledger" and "Credit"). Pure: no IO, no clock.

Theory of operation
-------------------

Files are assigned in the order in which the merge will want them, so what is needed first is read first, whichever
worker is free. A file is *bound* from when the merge takes turns with it until the merge has met its end. Bound files
are assigned at once. Files that come later are read ahead, as far as workers and credit allow.

Anything may happen at any time: a worker dies, a host leaves, late output of an attempt comes that was given up, the
merge closes a file that is still read, another job takes over the cache. None of it may lose a sample, give one twice
or change the order. This holds because all that is known of a file is in its ledger
(:mod:`pydp2.server.dispatch.ledger`):

* A range is committed only if it comes from the attempt that is valid now and begins where the ledger ends. So a lost
  worker needs no clean-up: its files get new attempts, which go on from what is committed.
* A worker has a file exactly while the ledger is READING. :class:`WorkerLoad` has the same files by worker, and
  :class:`Attempts` by attempt. They change together, in ``_assign``, ``_unassign`` and ``worker_lost``.
* What is not READING and not ended waits in the queue or for the cache. So no file is forgotten: whatever ends an
  attempt pushes the file to the queue or ends the file.

The merge must always come further. It tells :meth:`FileDispatcher.want` which file it waits for. That file goes to the
front of the queue, or its worker is granted credit and is asked to send what it has. Credit that cannot deadlock is the
work of :mod:`pydp2.server.dispatch.credit`.

What the merge takes is given by :class:`pydp2.server.dispatch.ledger_source.LedgerSource`, from the same ledgers. It
calls the dispatcher, and the dispatcher knows nothing of it. One class for both sides invites to note a loss
or an end when a worker says so; then what a batch counts depends on timing.

Nothing is sent from here. Each call appends to ``actions``, and :meth:`FileDispatcher.dispatch`, which the server calls
once for all messages that it has read, assigns files and returns them. To assign at each message instead would give
files to workers one by one, before it is known which other workers are free, and take a message for each grant.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.checksum_log import NO_CHECKSUMS, LoggedChecksums
from pydp2.errors import Error, from_wire
from pydp2.order.sample_source import SampleRun
from pydp2.order.snapshot import UNREACHED, Reread, SnapshotPoint
from pydp2.protocol.file_ranges import FILE_RAISED, FileAssignment, FileRange
from pydp2.protocol.messages import Assign, BeginDispatch, EndDispatch, StealFile, Want
from pydp2.server.actions import Action, Send, WorkerGone
from pydp2.server.dispatch.blocked_samples import BlockedSamples
from pydp2.server.dispatch.cache_fill import CacheFill
from pydp2.server.dispatch.credit import Credit, Grants
from pydp2.server.dispatch.file_counts import FileCounts
from pydp2.server.dispatch.file_state import COMPLETE, QUEUED, READING, FileEvent, FileState
from pydp2.server.dispatch.ledger import Attempts, FileLedger
from pydp2.server.dispatch.losses import changed_log, condemnation
from pydp2.server.dispatch.reread import attach_frames, open_ledger, with_checksum
from pydp2.server.dispatch.worker_load import MAX_FILES, FileQueue, WorkerLoad

_MANY_SAMPLES = 4096  # samples that a merge waits for, at most: a worker sends as many at a time
_FEW_FILES = 128  # so many that a pool lacks are not asked for by halves
_MAX_UNBOUND = (
    4096  # files not yet bound that are known at a time: tiny ones use next to no credit, but each has an entry
)


def _same_share(file: int) -> int:
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """Values that all passes of a service share when their files are read.

    ``budget``: bytes of read-ahead credit; ``label``: the name of a file by its number; ``skip_errors``: a file whose
    generator raises ends there; ``error_budget``: how much a pass may lose, see :class:`Losses`; ``counts``: where the
    samples of files are counted; ``blocked``: samples that are never delivered, None for none.
    """

    workers: int
    budget: int
    label: Callable[[int], str]
    skip_errors: bool = False
    error_budget: float | None = None
    cache: CacheFill | None = None
    counts: FileCounts | None = None
    blocked: BlockedSamples | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReading:
    """Way in which the merge takes samples from the ``length`` files of its cycle.

    ``share``: how much it takes of a file, compared with others; ``ramp``: how far the first files are read turn by
    turn.
    """

    length: int
    share: Callable[[int], int] = _same_share
    ramp: Mapping[int, int] = field(default_factory=dict)


class FileDispatcher:
    """Workers that read the files of one pass, and what comes back from them.

    ``order``: the files in the order in which the merge wants them; ``saved``: the point at which a pass is taken up in
    its middle; ``early_ends`` and ``checksums``: what is known of files that were read before it.
    """

    def __init__(
        self,
        context: ReadContext,
        cycle: CycleReading,
        *,
        pass_id: int,
        seed: int,
        order: npt.NDArray[np.int64],
        saved: SnapshotPoint | None = None,
        early_ends: Mapping[int, tuple[int, str]] | None = None,
        checksums: LoggedChecksums | None = None,
    ) -> None:
        self.pass_id, self.seed = pass_id, seed
        self._order = order
        self._cycle_length = max(1, cycle.length)
        self._pull, self._ramp = cycle.share, cycle.ramp
        self.label, self._skip, self._counts = context.label, context.skip_errors, context.counts
        self._blocked = context.blocked
        self.cache = CacheFill(None) if context.cache is None else context.cache
        """Fill of the cache, which all passes share."""
        self.cache.forget_answers()  # those for another job may be of before a file changed
        # of a pass that is taken up in its middle, as many files again are bound to bring back the pool
        self.credit = Credit(context.budget, self._cycle_length * (1 if saved is None else 2), context.workers)
        self.ledgers: dict[int, FileLedger] = {}
        """Files of which the merge needs more, or that are read ahead for it."""
        self.grants = Grants(self.credit, self.ledgers)
        self._next = 0  # files of the order below this position have an entry or are done
        self._bound = 0
        self._positions = np.empty(0, np.int64)  # by file, if some are read again
        if saved is not None:
            self._next = self._bound = saved.next_file
            self._positions = np.empty(int(order.max(initial=-1)) + 1, np.int64)  # the files may be some of the list
            self._positions[order] = np.arange(len(order))
        self._early_ends, self._checksums = early_ends or {}, (checksums or NO_CHECKSUMS).by_file()
        self._changed: set[int] = set()  # files that did not repeat themselves
        self._waiting = FileQueue()
        self.load = WorkerLoad()
        """Files that workers have."""
        self.actions: list[Action] = []
        """What is to be carried out when :meth:`dispatch` is called next."""
        self.samples_committed = 0
        self.samples_blocked = 0
        """Number of blocked samples in the files whose end the merge has met."""
        self._ended = False
        self.budget, self.number = context.budget, 0
        """Bytes of read-ahead that all dispatches of the service share, and the number of this one."""
        self.names_suffice = False
        """True if rows may come as names of rows that lie elsewhere."""
        self.attempts: Attempts[FileDispatcher] = Attempts()
        """The worker pool gives it these when it begins."""

    # -- what the merge needs ----------------------------------------------------------------------------------------
    def open_file(self, file: int, reread: Reread | None = None) -> FileLedger:
        """Let ``file`` have a share of the credit from now on, because the merge takes turns with it, or needs of it
        what ``reread`` names."""
        ledger = self.ledgers.get(file)
        if ledger is None:
            ledger = self._enter_file(file, self._bound if reread is None else int(self._positions[file]), reread)
            self._waiting.push(ledger)
        if reread is None:
            self._bound += 1
            self._next = max(self._next, self._bound)
        ledger.bound = True
        self.credit.bind(file, last=self._bound == len(self._order))
        if ledger.state is READING and ledger.worker is not None:
            self.load.bind(ledger.worker, file)
            self.grants.grant(ledger, tell=True)
        return ledger

    def want(self, file: int, need: int = 1, missing: int = 1) -> None:
        """Note that the merge waits for ``need`` samples of ``file``, and lacks ``missing`` of all files."""
        ledger = self.ledgers[file]
        if ledger.state is FileState.AWAITING_CACHE:
            self.cache.prioritise(ledger, self)
            if ledger.state is not QUEUED:
                return
            self._waiting.push(ledger)
        if ledger.state is not READING:
            self._waiting.prioritise(file)
            if not self.load.takes_files:  # it gets a worker once one of these came further
                for reserved in self.load.reserved_files:
                    self._request_samples(self.ledgers[reserved])
            return
        self.grants.grant(ledger, pressing=True)
        if ledger.committed < self._ramp.get(file, 0):
            need = -(-max(missing // 2, min(missing, _FEW_FILES)) // max(1, len(self.load)))
        elif not ledger.in_cycle:  # the next batch lacks as many of the same: more at a time, the longer it goes on
            need = max(need, min(ledger.committed, _MANY_SAMPLES // 4))
        self._request_samples(ledger, need)

    def _request_samples(self, ledger: FileLedger, need: int = 1) -> None:
        if not ledger.wanted and ledger.worker is not None:
            ledger.wanted = True
            self.actions.append(Send(ledger.worker, Want(ledger.attempt, ledger.committed + min(need, _MANY_SAMPLES))))

    def close_file(self, file: int) -> None:
        """Drop ``file``: the merge needs nothing more of it."""
        ledger = self.ledgers.pop(file)
        if not ledger.ended:
            self.cache.detach(ledger, self)
            if ledger.state is READING:
                self._unassign(ledger)
        self.samples_blocked += ledger.blocked_count
        ledger.close()
        self.grants.release(file)

    # -- what dispatches of other jobs need, over one cache ----------------------------------------------------------
    def prioritise(self, file: int) -> bool:
        """Hurry with ``file``, which this pass has claimed and the merge of another one waits for. Return True if it
        goes on with it."""
        ledger = self.ledgers[file]
        if ledger.state is not READING:
            self._waiting.prioritise(file)
            return True
        self.grants.grant(ledger)
        if ledger.need > ledger.unspent:
            return False  # it waits for its own merge to make room
        self._request_samples(ledger)
        return True

    def cache_settled(self, file: int) -> None:
        """Note that ``file``, which this pass waits for, is in the cache now, or will not come to it."""
        ledger = self.ledgers[file]
        ledger.move(FileEvent.CACHE_SETTLED)
        self._open_in_cache(ledger)
        self._waiting.push(ledger)

    # -- what workers say ----------------------------------------------------------------------------------------------
    def add_worker(self, worker: int) -> None:
        """Note that ``worker`` can be given files."""
        self.load.add_worker(worker)
        self.actions.append(Send(worker, BeginDispatch(self.number, self.pass_id, self.seed, self.names_suffice)))

    def worker_lost(self, gone: WorkerGone) -> None:
        """Turn the files of the worker of ``gone`` into new attempts, and blame the one that it was running."""
        if (
            gone.is_unfit
        ):  # turn by turn the next worker would have all files open, too, before any of them came further
            self._ramp = {}
        for ledger in self.load.remove_worker(gone.worker):
            self.attempts.end(ledger.attempt)
            condemned_at = ledger.lose_worker(gone)
            if condemned_at is None:
                self._waiting.push(ledger)
            else:
                self._end_early(ledger, condemnation(self.label(ledger.file), condemned_at, gone, skip=self._skip))
            self.grants.update(ledger)

    def return_files(self, worker: int, attempts: Container[int]) -> None:
        """Give the files of ``attempts``, which ``worker`` has and has not begun, to others. If it was not asked for
        them, it retires, and gets no more files."""
        self.load.note_answer(worker)
        for ledger in self.load.files_of(worker):
            if ledger.attempt in attempts:
                if not self.load.is_requested(ledger.file):
                    self.load.retire(worker)
                self._unassign(ledger)
                ledger.return_to_queue()
                self.grants.update(ledger)
                self._waiting.push(ledger)

    def wanted_samples(self, part: FileRange) -> Reread | None:
        """Return what was asked for of the file of ``part``, if the attempt that sends it reads the file again in
        part."""
        ledger = self.ledgers.get(part.file)
        return None if ledger is None or ledger.attempt != part.attempt else ledger.reread

    def commit(self, worker: int, part: FileRange, run: SampleRun | None) -> None:
        """Commit a range that came from ``worker``. Late output of attempts that were given up is dropped without a
        word."""
        ledger = self.ledgers.get(part.file)
        if ledger is None or not ledger.accepts(worker, part.attempt):
            if run is not None:
                run.release()
            return
        ledger.commit(part, run)
        self.load.note_output(worker, part.file)
        self.samples_committed += part.rows
        if part.did_not_repeat and part.file not in self._changed:
            self._changed.add(part.file)
            self.cache.abandon(ledger)  # its parts are of different dispatches
            self.actions.append(changed_log(self.label(part.file)))
        if ledger.fills_cache and part.state != FILE_RAISED:
            self.cache.commit(ledger, part, run)
        ledger.leave_out_blocked(run)  # the cache has them, for services with another block list
        if part.state == FILE_RAISED:
            self._end_early(ledger, from_wire(part.error))
        elif ledger.state is COMPLETE:
            self._count(ledger)
            self.credit.file_ended(ledger.spent_bytes)
            self._unassign(ledger)
        self.grants.update(ledger)

    def worker_blocked(self, worker: int, file: int, attempt: int, sample_index: int, need: int) -> None:
        """Note that ``worker`` waits in ``file``: for credit of ``need`` bytes, or (0) at a stop."""
        ledger = self.ledgers.get(file)
        if ledger is not None and ledger.accepts(worker, attempt) and ledger.waits_at(sample_index):
            self.load.note_output(worker, file)
            self.grants.note_waiting(ledger, sample_index, need)

    def _end_early(self, ledger: FileLedger, error: Error) -> None:
        if ledger.worker is not None:
            self._unassign(ledger)
        ledger.end_early(error, skip=self._skip)
        self._count(ledger)
        self.cache.abandon(ledger)

    def _unassign(self, ledger: FileLedger) -> None:
        assert ledger.worker is not None
        self.load.unassign(ledger.worker, ledger)
        self.attempts.end(ledger.attempt)
        ledger.worker = None

    def _count(self, ledger: FileLedger) -> None:
        """Count the samples of a file that has ended, if its end is one."""
        if self._counts is not None and ledger.state is not FileState.FAILED:
            self.actions += self._counts.add(ledger)
        if self._blocked is not None and not ledger.ends_early:
            end = ledger.cached_end[0] if ledger.in_cache else ledger.committed
            if end or not ledger.in_cache:  # else it is not known
                self.actions += self._blocked.check_end(ledger.file, end)

    # -- what workers are given ----------------------------------------------------------------------------------------
    def dispatch(self, expecting: int = 0, *, waits: bool = False) -> list[Action]:
        """Assign files and grant credit; all actions since the last call. ``expecting``: workers that are starting.
        ``waits``: the files of their share wait for them, also those that a merge waits for."""
        workers = len(self.load)
        if not self._ended and (workers or self.load.total):
            items: dict[int, list[FileAssignment]] = {}
            self.credit.share_among(max(1, workers + expecting))
            if self.load.takes_files:
                self._assign_waiting(items, expecting, waits)
            self.grants.grant_waiting()
            if self.load.takes_files:
                self._assign_ahead(items)
            for worker, assignments in items.items():
                for i in range(0, len(assignments), MAX_FILES):
                    these = assignments[i : i + MAX_FILES]
                    frames = attach_frames(these, self.ledgers)
                    self.actions.append(Send(worker, Assign(self.number, [a.to_wire() for a in these]), frames))
            if (ledger := self.load.next_to_steal()) is not None and ledger.worker is not None:
                self.actions.append(Send(ledger.worker, StealFile(ledger.attempt)))
        if self.grants.messages:
            self.actions += self.grants.take_messages()
        out, self.actions = self.actions, []
        return out

    def end(self) -> list[Action]:
        """End the pass, which is over or was left: workers drop what they have of it."""
        self._ended = True
        out, self.actions = self.actions, []  # what the merge met last is still to be told
        out += [Send(worker, EndDispatch(self.number)) for worker in self.load]
        for ledger in self.ledgers.values():
            self.cache.detach(ledger, self)
            if ledger.state is READING:
                self.attempts.end(ledger.attempt)
            ledger.close()
        self.cache.forget_answers()
        self.load.clear()
        return out

    def _assign_waiting(self, items: dict[int, list[FileAssignment]], expecting: int, waits: bool) -> None:
        # those that are starting get their share of the files of the cycle, unless they keep a merge waiting
        part = -(-self._cycle_length // self.credit.workers)
        most = max(0, part * len(self.load) - self.load.total) if expecting else None
        ledgers = [self.ledgers[file] for file in self._waiting.pop(most, beyond=not waits) if file in self.ledgers]
        # Where no file comes after these, the worker with the most files would be the last one of the pass.
        next_worker = self.load.fewest_files if self._bound == len(self._order) else self.load.least_loaded
        # what the merge takes the most of first, so they come out alike; before it, what a worker had no memory for
        for ledger in sorted(ledgers, key=lambda ledger: (not ledger.needs_own_worker, -ledger.pull)):
            if ledger.state is not QUEUED:
                continue
            if not self.load.takes_files:
                self._waiting.push(ledger)
                continue
            alone = ledger.needs_own_worker and self.load.has_idle
            worker = next_worker()
            items.setdefault(worker, []).append(self._assign(worker, ledger))
            if alone:  # until something new comes of it: so no file is condemned for what others need
                self.load.reserve(worker, ledger.file)

    def _assign_ahead(self, items: dict[int, list[FileAssignment]]) -> None:
        if self._waiting:
            return
        start, most = self.credit.start, self.credit.max_waiting
        while self._next < len(self._order) and len(self.ledgers) < self._cycle_length + _MAX_UNBOUND:
            file = int(self._order[self._next])
            comes = self.cache.prefetch(self._order, self._next, self._bound)
            if comes is None:
                return
            if comes:
                self._next += 1  # the merge finds it there when it binds it
                continue
            worker = self.load.fewest_files()
            if self.load.is_backed_up(worker, most) or self.credit.room(file) < start:
                return
            ledger = self._enter_file(file, self._next)
            self._next += 1
            if ledger.state is QUEUED:  # else it is known to end before its first sample
                items.setdefault(worker, []).append(self._assign(worker, ledger))

    def _enter_file(self, file: int, position: int, reread: Reread | None = None) -> FileLedger:
        until, _ = self._early_ends.get(file, (UNREACHED, ""))
        reread = with_checksum(reread, self._checksums.of(file))
        ledger = self.ledgers[file] = open_ledger(file, position, reread, until)
        ledger.pull = self._pull(file)
        ledger.blocked = None if self._blocked is None else self._blocked.of(file)
        if file not in self._early_ends:  # the cache knows nothing of an end that only this job has
            self._open_in_cache(ledger)
        return ledger

    def _open_in_cache(self, ledger: FileLedger) -> None:
        self.cache.open_file(ledger, self)
        if ledger.in_cache:
            self._count(ledger)

    def _assign(self, worker: int, ledger: FileLedger) -> FileAssignment:
        ledger.assign(worker, self.attempts.begin(self))
        if self._counts is not None and ledger.stamp_before is None and ledger.reread is None:
            ledger.stamp_before = self._counts.begin(ledger.file)
        self.grants.begin(ledger)
        self.load.assign(worker, ledger)
        return ledger.assignment(self._ramp.get(ledger.file, 0))
