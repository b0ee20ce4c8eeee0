"""Dispatch the files of one pass to workers and hand their samples to the merge. Pure: no IO, no clock.

It is the source of the merge on one side and the dispatcher of the workers on the other; between them lies the ledger.
``order`` is the order in which the merge wants files; files are handed out in that order, so that what is needed first
is read first, whichever worker happens to be free.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.checksum import EndChecksum
from pydp2.data.columns.checksum_log import LoggedChecksums
from pydp2.errors import Error, RemoteProtocolError, from_wire
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun, SourceState
from pydp2.order.snapshot import UNREACHED, FilePosition, PoolChecks, Reread, SnapshotPoint
from pydp2.protocol.file_ranges import FILE_RAISED, FileAssignment, FileRange
from pydp2.protocol.messages import Assign, BeginDispatch, EndDispatch, Grant, Want
from pydp2.server.actions import Action, Send
from pydp2.server.dispatch.cache_fill import CacheFill
from pydp2.server.dispatch.credit import Credit
from pydp2.server.dispatch.file_counts import FileCounts
from pydp2.server.dispatch.file_state import COMPLETE, QUEUED, READING, FileEvent, FileState
from pydp2.server.dispatch.ledger import MAX_MEMORY_DEATHS, MAX_PROTOCOL_DEATHS, Attempts, FileLedger
from pydp2.server.dispatch.losses import Losses, condemnation
from pydp2.server.dispatch.pass_checksums import PassChecksums
from pydp2.server.dispatch.reread import attach_frames, open_ledger, reread_terms
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
    samples of files are counted.
    """

    workers: int
    budget: int
    label: Callable[[int], str]
    skip_errors: bool = False
    error_budget: float | None = None
    cache: CacheFill | None = None
    counts: FileCounts | None = None


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
    """Files of one pass on their way from workers to the merge.

    ``order``: the files in the order in which the merge wants them; ``saved`` and ``early_ends``: the point at which a
    pass is taken up in its middle, and what is known of files that ended early before it; ``checksums``: of files that
    the merge had taken samples of since, all of which are compared (None: no state is made in the middle of the pass).
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
        self._workers, self.label, self._pull = context.workers, context.label, cycle.share
        self._ramp = cycle.ramp
        self._skip = context.skip_errors
        self._cache = CacheFill(None) if context.cache is None else context.cache
        self._cache.forget_answers()  # those for another job may be of before a file changed
        self._counts = context.counts
        # of a pass that is taken up in its middle, as many files again are bound to bring back the pool
        self.credit = Credit(context.budget, self._cycle_length * (1 if saved is None else 2), context.workers)
        self.ledgers: dict[int, FileLedger] = {}
        self.checksums = PassChecksums(checksums)
        """Checksums of the files of the pass."""
        self._next = 0  # files of the order below this position have an entry or are done
        self._bound = 0
        self._positions: npt.NDArray[np.int64] | None = None
        if saved is not None:
            self._next = self._bound = saved.next_file
            self._positions = np.empty(len(order), np.int64)
            self._positions[order] = np.arange(len(order))
        self._waiting, self._load = FileQueue(), WorkerLoad()
        self._blocked_on_credit: dict[int, FileLedger] = {}  # those that may be granted more now
        self._lack_rest: list[tuple[int, int, int]] = []  # heap of (position, file, attempt) of those that may be
        self._lacking: set[int] = set()  # granted more once others use less, and these attempts
        self._resizes = self.credit.resizes
        self._actions: list[Action] = []
        self._grants: dict[int, dict[int, list[int]]] = {}  # by worker and attempt, told with the next dispatch
        self.losses = Losses(pass_id, self.label, context.error_budget, early_ends or {}, saved, order)
        self.samples_committed = 0
        self._ended = False
        self.budget, self.number = context.budget, 0
        """Bytes of read-ahead that all dispatches of the service share, and the number of this one."""
        self.names_suffice = False
        """True if rows may come as names of rows that lie elsewhere."""
        self.attempts: Attempts[FileDispatcher] = Attempts()
        """The worker pool gives it these when it begins."""

    # -- the merge's side ------------------------------------------------------------------------------------------
    def note_snapshot(self) -> None:
        """Note that the pool was saved: a state from now on has checksums of what is merged after it."""
        self.checksums.note_snapshot()

    def wanted_samples(self, part: FileRange) -> Reread | None:
        """Return what was asked for of the file of ``part``, if the attempt that sends it reads the file again in
        part."""
        ledger = self.ledgers.get(part.file)
        return None if ledger is None or ledger.attempt != part.attempt else ledger.reread

    @property
    def merged_counts(self) -> tuple[int, int]:
        """Samples and dropped samples that the merge has passed."""
        return self.losses.taken, self.losses.dropped

    def position(self, file: int) -> FilePosition:
        """Return where the merge stands in ``file``."""
        return self.ledgers[file].merge_position()

    def open_file(self, file: int, reread: Reread | None = None) -> None:
        """Let ``file`` take turns from now on, or read it again for what ``reread`` names."""
        if reread is not None:
            self._reread(file, reread)
            return
        ledger = self.ledgers.get(file)
        if ledger is None:
            ledger = self._enter_file(file, self._bound)
            self._waiting.push(ledger)
        self._bound += 1
        self._next = max(self._next, self._bound)
        ledger.bound = True
        self.credit.bind(file, last=self._bound == len(self._order))
        if ledger.state is READING and ledger.worker is not None:
            self._load.bind(ledger.worker, file)
            self._grant(ledger, tell=True)

    def _reread(self, file: int, reread: Reread) -> None:
        assert self._positions is not None
        ledger = self._enter_file(file, int(self._positions[file]), reread)
        ledger.bound = True
        self.credit.bind(file, last=self._bound == len(self._order))
        self._waiting.push(ledger)

    def next_run(self, file: int) -> SampleRun | FileFailure | SourceState:
        """Return what comes next in ``file``."""
        ledger, losses = self.ledgers[file], self.losses
        if ledger.dropped:
            self._merge_moved(ledger)
        run = ledger.next_run()
        if run is END and not losses.error and ledger.meet_end():
            self._actions += losses.end(file, ledger.committed, ledger.early_end)
        if losses.error:
            return FileFailure(losses.error)
        if ledger.dropped and isinstance(run, SampleRun):
            run.hi = run.lo + losses.allowed_samples(ledger.dropped, run.sample_indices[run.lo : run.hi])
        return WAIT if run is None else run

    def plain_run(self, file: int) -> SampleRun | None:
        """Return what comes next in ``file`` if it is samples of weight 1, and nothing was dropped there."""
        ledger = self.ledgers[file]
        if ledger.dropped or self.losses.error or not ledger.runs or ledger.runs[0].weights is not None:
            return None
        return ledger.runs[0].view()

    def consume(self, file: int, count: int) -> None:
        """Note that ``count`` samples of ``file`` went into the pool."""
        ledger = self.ledgers[file]
        checksum = self.checksums.next_of(ledger)
        self.checksums.edges.note(ledger)
        y = ledger.consume(count)
        if ledger.reread is None or y >= ledger.reread.start:  # else they had been taken before
            self.losses.taken += count
            if checksum is not None:
                self.checksums.note_taken(file, checksum)
        if ledger.dropped:
            self._merge_moved(ledger, y)
        else:
            self._update_credit(ledger)

    def _merge_moved(self, ledger: FileLedger, edge: int | None = None) -> None:
        for dropped_sample in ledger.pass_dropped(edge):
            self._actions += self.losses.drop(ledger.file, dropped_sample)
            if self.losses.error:
                break
        self._update_credit(ledger)

    def compare(self, file: int) -> FileFailure | SourceState:
        """Return whether ``file``, which is read again, is known to be what it was."""
        return self.ledgers[file].compare()

    def pool_checks(self, samples: bytes) -> PoolChecks:
        """Return what is known of the files of a pool, a set of ``samples``: the end of each that has ended, or an
        earlier checksum behind its samples."""
        return self.checksums.pool_checks(samples, self._end_in_cache, self.ledgers)

    def _end_in_cache(self, file: int) -> EndChecksum:
        return (0, 0) if file in self.ledgers else self._cache.end_checksum(file)

    def close_file(self, file: int) -> None:
        """Note that the merge met the end of ``file``, or needs nothing more of it."""
        ledger = self.ledgers.pop(file)
        self.checksums.note_end(ledger)
        self._cache.detach(ledger, self)
        if ledger.state is READING and ledger.worker is not None:
            self._unassign(ledger.worker, ledger)
        ledger.close()
        self._blocked_on_credit.pop(file, None)
        self.credit.release(file)

    def want(self, file: int, need: int = 1, missing: int = 1) -> None:
        """Note that the merge waits for ``need`` samples of ``file``, and lacks ``missing`` of all files."""
        ledger = self.ledgers[file]
        if ledger.state is FileState.AWAITING_CACHE:
            self._cache.prioritise(ledger, self)
            if ledger.state is not QUEUED:
                return
            self._waiting.push(ledger)
        if ledger.state is not READING:
            self._waiting.prioritise(file)
            if not self._load.takes_files:  # it gets a worker once one of these came further
                for reserved in self._load.reserved_files:
                    self._request_samples(self.ledgers[reserved])
            return
        self._grant(ledger, pressing=True)
        if ledger.committed < self._ramp.get(file, 0):
            need = -(-max(missing // 2, min(missing, _FEW_FILES)) // max(1, len(self._load)))
        elif not ledger.in_cycle:  # the next batch lacks as many of the same: more at a time, the longer it goes on
            need = max(need, min(ledger.committed, _MANY_SAMPLES // 4))
        self._request_samples(ledger, need)

    def _request_samples(self, ledger: FileLedger, need: int = 1) -> None:
        if not ledger.wanted and ledger.worker is not None:
            ledger.wanted = True
            self._actions.append(Send(ledger.worker, Want(ledger.attempt, ledger.committed + min(need, _MANY_SAMPLES))))

    def _update_credit(self, ledger: FileLedger) -> None:
        self.credit.set_use(ledger.file, ledger.use)
        if ledger.state is READING:
            self._blocked_on_credit[ledger.file] = ledger

    # -- the workers' side -----------------------------------------------------------------------------------------
    def add_worker(self, worker: int) -> None:
        """Note that ``worker`` can be given files."""
        self._load.add_worker(worker)
        self._actions.append(Send(worker, BeginDispatch(self.number, self.pass_id, self.seed, self.names_suffice)))

    def worker_lost(
        self,
        worker: int,
        running: tuple[int, int, int] | None,
        how: str,
        *,
        over_memory: bool = False,
        host_lost: bool = False,
        sample_timeout: float | None = None,
        broke_protocol: bool = False,
    ) -> None:
        """Turn the files of ``worker``, which is gone, into new attempts, and blame the one that it was running. The
        other arguments are those of :class:`pydp2.server.actions.WorkerGone`."""
        most = MAX_MEMORY_DEATHS if over_memory else MAX_PROTOCOL_DEATHS if broke_protocol else None
        unfit = broke_protocol or (over_memory and not host_lost)
        if unfit:  # turn by turn the next worker would have all files open, too, before any of them came further
            self._ramp = {}
        for ledger in self._load.remove_worker(worker):
            file, sample_index = ledger.file, None
            if running is not None and running[:2] == (file, ledger.attempt):
                sample_index = running[2]
            self.attempts.end(ledger.attempt)
            condemned = (
                ledger.worker_died(sample_index) if most is None else ledger.unfit_worker_ended(sample_index, most)
            )
            ledger.needs_own_worker = unfit and sample_index is not None
            self.credit.set_use(file, ledger.use)
            self._blocked_on_credit.pop(file, None)
            if condemned and sample_index is not None:
                error = condemnation(
                    self.label(file),
                    sample_index,
                    how,
                    self._skip,
                    over_memory=over_memory,
                    sample_timeout=sample_timeout,
                    broke_protocol=broke_protocol,
                )
                self._end_early(ledger, error)
            else:
                self._waiting.push(ledger)

    def retire_worker(self, worker: int) -> None:
        """Give ``worker`` no more files."""
        self._load.retire(worker)

    def return_files(self, worker: int, attempts: Container[int]) -> None:
        """Give ``worker`` no more files, and those of ``attempts``, which it has not begun, to others."""
        self._load.retire(worker)
        for ledger in self._load.files_of(worker):
            if ledger.attempt in attempts:
                self._unassign(worker, ledger)
                ledger.worker_died(None)
                self.credit.set_use(ledger.file, ledger.use)
                self._waiting.push(ledger)

    def commit(self, worker: int, part: FileRange, run: SampleRun | None) -> None:
        """Commit a range that came from ``worker``. Late output of attempts that were given up is dropped without a
        word."""
        ledger = self.ledgers.get(part.file)
        if ledger is None or not ledger.accepts(worker, part):
            if run is not None:
                run.release()
            return
        ledger.commit(part, run)
        self._load.release(worker, part.file)
        self.samples_committed += part.rows
        if part.did_not_repeat:
            self._actions += self.losses.note_changed(part.file)
            self._cache.abandon(ledger)  # its parts are of different dispatches
        if part.state == FILE_RAISED:
            self._end_early(ledger, from_wire(part.error))
        else:
            self._cache.commit(ledger, part, run)
            if ledger.state is COMPLETE:
                self._count(ledger)
                self.credit.file_ended(ledger.spent_bytes)
                self._unassign(worker, ledger)
        self._update_credit(ledger)

    def worker_blocked(self, worker: int, file: int, attempt: int, sample_index: int, need: int) -> None:
        """Note that ``worker`` waits in ``file``: for credit of ``need`` bytes, or (0) at a stop."""
        ledger = self.ledgers.get(file)
        if ledger is None or ledger.state is not READING or ledger.worker != worker or ledger.attempt != attempt:
            return
        if sample_index > ledger.committed:
            raise RemoteProtocolError(
                f"file {file} waits at sample {sample_index}, but {ledger.committed} are committed"
            )
        if sample_index < ledger.committed:
            return  # it did wait there, until a grant crossed the report
        self._load.release(worker, file)
        if need:
            ledger.need = need
            self._blocked_on_credit[file] = ledger
        elif ledger.pause <= sample_index:  # else the stop is lifted, and the worker does not know it yet
            ledger.pauses.discard(ledger.pause)
            self._grant(ledger, tell=True)

    def _unassign(self, worker: int, ledger: FileLedger) -> None:
        self._load.unassign(worker, ledger)
        self._blocked_on_credit.pop(ledger.file, None)
        self.attempts.end(ledger.attempt)
        ledger.worker = None

    def _count(self, ledger: FileLedger) -> None:
        """Count the samples of a file that has ended, if its end is one."""
        if self._counts is not None and ledger.state is not FileState.FAILED:
            self._actions += self._counts.add(ledger)

    def _end_early(self, ledger: FileLedger, error: Error) -> None:
        worker = ledger.worker
        ledger.end_early(error, skip=self._skip)
        self._count(ledger)
        self.credit.set_use(ledger.file, ledger.use)
        self._cache.abandon(ledger)
        if worker is not None:
            self._unassign(worker, ledger)

    # -- what dispatches of other jobs say, over one cache -----------------------------------------------------------
    def prioritise(self, file: int) -> bool:
        """Hurry with ``file``, which this pass has claimed and the merge of another one waits for. Return True if it
        goes on with it."""
        ledger = self.ledgers[file]
        if ledger.state is not READING:
            self._waiting.prioritise(file)
            return True
        self._grant(ledger)
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

    def _open_in_cache(self, ledger: FileLedger) -> None:
        self._cache.open_file(ledger, self)
        if ledger.in_cache:
            self._count(ledger)

    # -- handing out -----------------------------------------------------------------------------------------------
    def dispatch(self, expecting: int = 0) -> list[Action]:
        """Assign files and grant credit; all actions since the last call. ``expecting``: workers that are starting."""
        workers = len(self._load)
        if not self._ended and (workers or self._load.total):
            items: dict[int, list[FileAssignment]] = {}
            self._workers = max(1, workers + expecting)
            self.credit.share_among(self._workers)
            if self._load.takes_files:
                self._assign_waiting(items, expecting)
            self._grant_waiting()
            if self._load.takes_files:
                self._assign_ahead(items)
            for worker, assignments in items.items():
                for i in range(0, len(assignments), MAX_FILES):
                    these = assignments[i : i + MAX_FILES]
                    frames = attach_frames(these, self.ledgers)
                    self._actions.append(Send(worker, Assign(self.number, [a.to_wire() for a in these]), frames))
        for worker, grants in self._grants.items():
            self._actions.append(Send(worker, Grant([*grants.values()])))
        self._grants.clear()
        out, self._actions = self._actions, []
        return out

    def end(self) -> list[Action]:
        """End the pass, which is over or was left: workers drop what they have of it."""
        self._ended = True
        out, self._actions = self._actions, []  # what the merge met last is still to be told
        out += [Send(worker, EndDispatch(self.number)) for worker in self._load]
        for ledger in self.ledgers.values():
            self._cache.detach(ledger, self)
            if ledger.state is READING:
                self.attempts.end(ledger.attempt)
            ledger.close()
        self._cache.forget_answers()
        self._load.clear()
        return out

    def _assign_waiting(self, items: dict[int, list[FileAssignment]], expecting: int) -> None:
        # those that are starting get their share of the files of the cycle, unless they keep a merge waiting
        most = (
            max(0, -(-self._cycle_length // self._workers) * len(self._load) - self._load.total) if expecting else None
        )
        ledgers = [self.ledgers[file] for file in self._waiting.pop(most) if file in self.ledgers]
        # what the merge takes the most of first, so they come out alike; before it, what a worker had no memory for
        for ledger in sorted(ledgers, key=lambda ledger: (not ledger.needs_own_worker, -ledger.pull)):
            if ledger.state is not QUEUED:
                continue
            if not self._load.takes_files:
                self._waiting.push(ledger)
                continue
            alone = ledger.needs_own_worker and self._load.has_idle
            worker = self._load.least_loaded()
            items.setdefault(worker, []).append(self._assign(worker, ledger))
            if alone:  # until something new comes of it: so no file is condemned for what others need
                self._load.reserve(worker, ledger.file)

    def _grant_waiting(self) -> None:
        """Grant more to the files that can have more now, in the order in which the merge wants them."""
        credit = self.credit
        if self._resizes != credit.resizes:
            self._resizes = credit.resizes
            self._blocked_on_credit = {file: ledger for file, ledger in self.ledgers.items() if ledger.state is READING}
        for ledger in sorted(self._blocked_on_credit.values(), key=lambda e: e.position):
            self._grant(ledger)
        self._blocked_on_credit.clear()
        while self._lack_rest:
            _, file, attempt = self._lack_rest[0]
            known = self.ledgers.get(file)
            if known is not None and known.state is READING and known.attempt == attempt:
                if credit.lacks_rest(known):
                    break
                self._grant(known)
            heappop(self._lack_rest)
            self._lacking.discard(attempt)

    def _assign_ahead(self, items: dict[int, list[FileAssignment]]) -> None:
        if self._waiting:
            return
        start, most = self.credit.start, self.credit.max_waiting
        while self._next < len(self._order) and len(self.ledgers) < self._cycle_length + _MAX_UNBOUND:
            file = int(self._order[self._next])
            comes = self._cache.prefetch(self._order, self._next, self._bound)
            if comes is None:
                return
            if comes:
                self._next += 1  # the merge finds it there when it binds it
                continue
            worker = self._load.fewest_files()
            if self._load.is_backed_up(worker, most) or self.credit.room(file) < start:
                return
            ledger = self._enter_file(file, self._next)
            self._next += 1
            if ledger.state is QUEUED:  # else it is known to end before its first sample
                items.setdefault(worker, []).append(self._assign(worker, ledger))

    def _enter_file(self, file: int, position: int, reread: Reread | None = None) -> FileLedger:
        until, _ = self.losses.early_ends.get(file, (UNREACHED, ""))
        reread = self.checksums.reread_of(file, reread)
        ledger = self.ledgers[file] = open_ledger(file, position, reread, until)
        if reread is not None and ledger.is_merged:
            self.checksums.compare_later(ledger)
        ledger.pull = self._pull(file)
        if file not in self.losses.early_ends:  # the cache knows nothing of an end that only this job has
            self._open_in_cache(ledger)
        return ledger

    def _assign(self, worker: int, ledger: FileLedger) -> FileAssignment:
        ledger.assign(worker, self.attempts.begin(self))
        if self._counts is not None and ledger.stamp_before is None and ledger.reread is None:
            ledger.stamp_before = self._counts.begin(ledger.file)
        room = self.credit.room(ledger.file)
        ledger.limit += room if ledger.bound else min(room, self.credit.start)
        self.credit.set_use(ledger.file, ledger.use)
        self._load.assign(worker, ledger)
        return FileAssignment(
            ledger.file,
            ledger.attempt,
            ledger.position,
            ledger.committed,
            ledger.spent_bytes,
            ledger.limit,
            ledger.pause,
            ledger.bound,
            ledger.crcs[:1],
            begin=ledger.begin.sample_index if ledger.begin.can_begin else 0,
            begin_crcs=ledger.begin.crcs[1:],
            until=ledger.until,
            block_length=ledger.pull,
            ramp_until=self._ramp.get(ledger.file, 0),
            **reread_terms(ledger.reread),
        )

    def _grant(self, ledger: FileLedger, *, pressing: bool = False, tell: bool = False) -> None:
        """Raise the limit of ``ledger`` if there is room worth a message, or if the merge is waiting (``pressing``)."""
        assert ledger.worker is not None
        more = self.credit.grant_for(ledger, pressing=pressing)
        if not more and not tell:
            if ledger.attempt not in self._lacking and self.credit.lacks_rest(ledger):
                self._lacking.add(ledger.attempt)
                heappush(self._lack_rest, (ledger.position, ledger.file, ledger.attempt))
            return
        if more:
            ledger.limit = max(ledger.limit, ledger.spent_bytes) + more
            ledger.need = 0
        self.credit.set_use(ledger.file, ledger.use)
        self._blocked_on_credit.pop(ledger.file, None)
        item = [ledger.attempt, ledger.limit, ledger.pause, int(ledger.bound)]
        self._grants.setdefault(ledger.worker, {})[ledger.attempt] = item

    def file_count(self, worker: int) -> int:
        """Return the number of files that ``worker`` was given and that have not ended."""
        return self._load.file_count(worker)
