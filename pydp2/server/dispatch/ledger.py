"""Record what of each file is committed and where its attempts stand (docs/order.md, "Ledger").

A range of a file is committed once, in order, by the attempt that is valid now. Everything else is refused: output of a
worker that was given up, a range that was sent twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from pydp2.data.columns.checksum import EndChecksum, fold_crcs
from pydp2.data.columns.columns import Ints
from pydp2.errors import Error, NotRepeatable, RemoteProtocolError
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun, SourceState
from pydp2.order.snapshot import UNREACHED, FilePosition, Reread
from pydp2.protocol.file_ranges import DROPPED_COST, FILE_ENDED, SAMPLE_COST, FileAssignment, FileRange
from pydp2.protocol.state_table import next_state
from pydp2.server.actions import WorkerGone
from pydp2.server.cache.counts import StampBefore
from pydp2.server.cache.file_format import DroppedSample
from pydp2.server.dispatch.blocked_samples import are_blocked, split_blocked
from pydp2.server.dispatch.file_state import (
    CACHED,
    ENDED_STATES,
    FILE_TRANSITIONS,
    QUEUED,
    READING,
    FileEvent,
    FileState,
)

NO_PAUSE = 1 << 62
MAX_DEATHS = 3
"""A file that was running in this many dead workers at the same sample is condemned."""
MAX_MEMORY_DEATHS = 5
"""So is one that this many workers in a row could not read on in the memory that they may have."""
MAX_PROTOCOL_DEATHS = 3
"""So is one of which this many workers in a row sent what could not be accepted."""


R = TypeVar("R")


class Attempts(Generic[R]):
    """Attempts that are under way, each with the dispatcher that it belongs to.

    One count numbers those of all dispatches of a service. So late output of a dispatch, of a worker or of an attempt
    that was given up never passes for that of another.
    """

    def __init__(self) -> None:
        self._last = 0
        self._of: dict[int, R] = {}

    def begin(self, dispatcher: R) -> int:
        """Begin an attempt and return its number."""
        self._last += 1
        self._of[self._last] = dispatcher
        return self._last

    def dispatcher_of(self, attempt: int) -> R | None:
        """Return the dispatcher whose ``attempt`` is under way; None when it is over."""
        return self._of.get(attempt)

    def end(self, attempt: int) -> None:
        """Note that ``attempt`` ended or was given up."""
        self._of.pop(attempt, None)


class FileEdge(NamedTuple):
    """Sample index between two ranges of a file, and the running checksums there as a range has them: folded first,
    then all if an attempt may continue from them. Empty at the start of a file, and where they are not known."""

    sample_index: int
    crcs: list[int]

    @property
    def can_begin(self) -> bool:
        """True if an attempt can begin here."""
        return len(self.crcs) > 1


START_OF_FILE = FileEdge(0, [])


@dataclass(slots=True)
class FileLedger:
    """Record of one file of a pass. ``position``: its place in the order in which the merge wants files."""

    file: int
    position: int
    pull: int = 1  # how much of it the merge takes in the same time, compared with others
    state: FileState = QUEUED  # changed by move() alone
    bound: bool = False
    worker: int | None = None  # that reads it
    attempt: int = 0
    committed: int = 0  # sample indices below are committed
    crcs: list[int] = field(default_factory=list)  # running checksums there
    spent_bytes: int = 0  # cost of what is committed
    merged: int = 0  # cost of what the merge has taken
    limit: int = 0  # cost up to which the worker may send
    runs: deque[SampleRun] = field(default_factory=deque)  # committed, not merged
    dropped: deque[DroppedSample] = field(default_factory=deque)  # committed, not passed by the merge
    end_error: Error | None = None  # why it was skipped from there on, or failed
    end_met: bool = False  # the merge has met its end
    pauses: set[int] = field(default_factory=set)  # sample indices before which all must be committed
    need: int = 0  # cost of the sample that the worker holds in hand for lack of credit
    wanted: bool = False  # the worker was told that the merge waits
    deaths: dict[int, int] = field(default_factory=dict)
    unfit_workers: int = 0  # so many in a row were ended for their memory or messages, and nothing new came of it
    needs_own_worker: bool = False  # the last of them was the cause itself: the file is to be alone at the next one
    reread: Reread | None = None  # of a file that is read again in part: what is needed of it
    until: int = UNREACHED  # nothing from this sample index on is needed
    next_index: int = 0  # the sample index that the merge takes next
    run_edges: deque[tuple[FileEdge, FileEdge]] = field(default_factory=deque)  # of each run: before it, behind it
    begin: FileEdge = START_OF_FILE  # before the range that was committed last
    cached_end: EndChecksum = (0, 0)  # of a file that is taken from the cache
    fills_cache: bool = False  # what is committed of it goes to the cache
    stamp_before: StampBefore | None = None  # of the file, if its count may be remembered
    blocked: Ints | None = None  # sample indices that are never delivered
    blocked_count: int = 0  # of blocked samples that were left out
    sample_count: int = 0  # of all samples so far, which the merge may have taken
    dropped_count: int = 0  # of dropped ones
    weight: int = 0  # of the samples
    is_plain: bool = True  # each of them weighs 1
    logged_index: int = 0  # sample index of the last checksum that was logged

    def move(self, event: FileEvent) -> None:
        """Change the state as ``event`` says. Raises IllegalTransition when the present state does not allow it."""
        self.state = next_state(FILE_TRANSITIONS, self.state, event)

    @property
    def in_cycle(self) -> bool:
        """True if the merge takes turns with this file and others."""
        return self.pull > 1

    @property
    def ended(self) -> bool:
        """True if no worker has to run the file any more."""
        return self.state in ENDED_STATES

    @property
    def is_merged(self) -> bool:
        """True if the merge takes turns with this file: more is wanted of it than its samples in a saved pool."""
        return self.reread is None or self.reread.start < UNREACHED

    @property
    def tail(self) -> SourceState | FileFailure | None:
        """End or failure behind the runs; None: it is not known yet."""
        if self.state is FileState.FAILED:
            assert self.end_error is not None
            return FileFailure(self.end_error, self.file, self.committed)
        return END if self.ended else None

    @property
    def early_end(self) -> Error | None:
        """Error for which the file is taken to end before its data did; None: there is none."""
        return self.end_error if self.state is FileState.SKIPPED else None

    @property
    def ends_early(self) -> bool:
        """True if it ended before its data did, now or in the run of the pass that is taken up."""
        return self.state is FileState.SKIPPED or self.until < UNREACHED

    @property
    def in_cache(self) -> bool:
        """True if its samples came from the cache, where they use no credit."""
        return self.state is CACHED

    @property
    def use(self) -> int:
        """Bytes of credit: granted and unspent, in flight, committed and not merged."""
        return (
            0 if self.state is CACHED else max(self.limit, self.spent_bytes) - self.merged
        )  # a dropped sample may exceed the limit

    @property
    def unspent(self) -> int:
        """Number of bytes that were granted and are not spent."""
        return max(0, self.limit - self.spent_bytes)

    @property
    def pause(self) -> int:
        """Next sample index at which the worker has to wait."""
        return min(self.pauses, default=NO_PAUSE)

    def accepts(self, worker: int, attempt: int) -> bool:
        """Return True if ``attempt``, of which ``worker`` says something, is the one that is valid now."""
        return self.state is READING and self.worker == worker and self.attempt == attempt

    def assign(self, worker: int, attempt: int) -> None:
        """Give the file to ``worker``, which runs it as ``attempt``."""
        self.move(FileEvent.ASSIGN)
        self.worker, self.attempt = worker, attempt

    def assignment(self, ramp_until: int) -> FileAssignment:
        """Return what the worker is told, which alternates between files up to sample ``ramp_until`` of this one."""
        given = FileAssignment(
            self.file,
            self.attempt,
            self.position,
            self.committed,
            self.spent_bytes,
            self.limit,
            self.pause,
            self.bound,
            self.crcs[:1],
            begin=self.begin.sample_index if self.begin.can_begin else 0,
            begin_crcs=self.begin.crcs[1:],
            until=self.until,
            block_length=self.pull,
            ramp_until=ramp_until,
        )
        if (reread := self.reread) is not None:
            given.send_from = reread.start if reread.start < UNREACHED else reread.until
            given.check_at, given.check_crc = reread.checksum_index, reread.crcs[0] if reread.crcs else 0
            given.select_until = reread.select_until if reread.start < UNREACHED else reread.until
            given.select_crcs = reread.select_crcs
        return given

    def commit(self, part: FileRange, run: SampleRun | None) -> None:
        """Commit the range of ``part``; ``run`` holds its samples. Raises RemoteProtocolError when it leaves a gap."""
        if part.first_index != self.committed:
            raise RemoteProtocolError(
                f"file {self.file}: a range from sample {part.first_index}, but {self.committed} are committed"
            )
        if part.rows + len(part.dropped) != part.count and self.reread is None:
            raise RemoteProtocolError(f"file {self.file}: a range of {part.count} with {part.rows} samples")
        cost = DROPPED_COST * len(part.dropped)
        if run is not None:
            cost += int(run.sizes[run.lo : run.hi].sum()) + SAMPLE_COST * part.rows
            self.runs.append(run)
            if self.blocked is None:  # else leave_out_blocked() counts those that remain
                self.count(run)
            edge = FileEdge(part.first_index + part.count, part.crcs)
            self.run_edges.append((FileEdge(self.committed, self.crcs), edge))
        if part.count:
            self.begin = FileEdge(self.committed, self.crcs)
        delivered = self._without_blocked([(y, slot, reason) for y, slot, reason in part.dropped])
        self.dropped += delivered
        self.dropped_count += len(delivered)
        self.merged += DROPPED_COST * (len(part.dropped) - len(delivered))
        self.committed += part.count
        self.unfit_workers = 0
        self.needs_own_worker = False
        if part.count:  # else it may say only that the file is not what it was
            self.crcs = part.crcs or self._crcs_after_selection()
        self.spent_bytes += cost
        self.wanted = False
        self.need = 0
        if part.state == FILE_ENDED:
            self.move(FileEvent.COMPLETE)
            self.limit = self.spent_bytes

    def _crcs_after_selection(self) -> list[int]:
        """Return the checksums at ``committed``, behind samples that were chosen from what lies before; [] where they
        are not known."""
        reread = self.reread
        if reread is None or not reread.select_crcs or self.committed != reread.select_until:
            return []
        return [fold_crcs(reread.select_crcs), *reread.select_crcs]

    def count(self, run: SampleRun) -> None:
        """Count the samples of ``run``."""
        rows = run.hi - run.lo
        weights = None if run.weights is None else run.weights[run.lo : run.hi]
        self.sample_count += rows
        self.weight += rows if weights is None else int(weights.sum())
        self.is_plain = self.is_plain and (weights is None or bool((weights == 1).all()))

    def leave_out_blocked(self, run: SampleRun | None) -> None:
        """Take the blocked samples out of ``run``, which was committed last, and give back their memory and their
        credit. The caches have them by now."""
        if run is None or self.blocked is None:
            return
        delivered, blocked = split_blocked(run, self.blocked)
        if delivered is None:
            del self.runs[-1], self.run_edges[-1]
        else:
            self.runs[-1] = delivered
            self.count(delivered)
        if blocked is not None:
            rows = blocked.hi - blocked.lo
            self.blocked_count += rows
            self.merged += int(blocked.sizes[blocked.lo : blocked.hi].sum()) + SAMPLE_COST * rows
            blocked.release()

    def serve(self, wanted: Iterable[SampleRun], dropped: list[DroppedSample]) -> None:
        """Serve the file from the cache. ``wanted``: the samples that the merge needs, and those of them that are
        blocked; ``dropped``: the dropped samples of the file."""
        for run in wanted:
            delivered, blocked = (run, None) if self.blocked is None else split_blocked(run, self.blocked)
            if delivered is not None:
                self.runs.append(delivered)
                self.count(delivered)
            if blocked is not None:
                self.blocked_count += blocked.hi - blocked.lo
        remaining = self._without_blocked(dropped)
        start = 0 if self.reread is None else self.reread.start
        self.dropped_count = len(remaining)
        self.dropped.extend(dropped_sample for dropped_sample in remaining if dropped_sample[0] >= start)
        self.move(FileEvent.SERVE_FROM_CACHE)

    def _without_blocked(self, dropped: list[DroppedSample]) -> list[DroppedSample]:
        if self.blocked is None or not dropped:
            return dropped
        blocked = are_blocked(np.array([y for y, _, _ in dropped]), self.blocked)
        return [sample for sample, leave_out in zip(dropped, blocked.tolist(), strict=True) if not leave_out]

    def waits_at(self, sample_index: int) -> bool:
        """Return True if the worker, which says that it waits at ``sample_index``, still waits there: no grant crossed
        its report. Raises RemoteProtocolError when it has not sent all that comes before."""
        if sample_index > self.committed:
            raise RemoteProtocolError(
                f"file {self.file} waits at sample {sample_index}, but {self.committed} are committed"
            )
        return sample_index == self.committed

    def lose_worker(self, gone: WorkerGone) -> int | None:
        """Note that the worker is gone. Return the sample index at which the file is condemned; None: it is not.

        Only a file is to blame of which the worker was asking for a sample. If it had too much memory or broke the
        protocol, that sample is chance: the file is condemned when several such workers in a row add nothing to it.
        """
        sample_index, condemned = None, False
        if gone.running_sample is not None and gone.running_sample[:2] == (self.file, self.attempt):
            sample_index = gone.running_sample[2]
            if gone.over_memory or gone.broke_protocol:
                self.unfit_workers += 1
                condemned = self.unfit_workers >= (MAX_MEMORY_DEATHS if gone.over_memory else MAX_PROTOCOL_DEATHS)
            else:
                self.deaths[sample_index] = self.deaths.get(sample_index, 0) + 1
                condemned = self.deaths[sample_index] >= MAX_DEATHS
        self.needs_own_worker = gone.is_unfit and sample_index is not None
        self._leave_worker(FileEvent.CONDEMN if condemned else FileEvent.WORKER_LOST)
        return sample_index if condemned else None

    def return_to_queue(self) -> None:
        """Take the file from its worker, which is not to blame for anything: another one gets it."""
        self._leave_worker(FileEvent.WORKER_LOST)

    def _leave_worker(self, event: FileEvent) -> None:
        self.move(event)
        self.worker = None
        self.limit = self.spent_bytes
        self.need = 0
        self.wanted = False
        # Before a sample that was deadly once is asked for again, all before it must have arrived.
        self.pauses = {y for y in self.deaths if y > self.committed}

    def end_early(self, error: Error, *, skip: bool) -> None:
        """End the file at what is committed: with ``error`` at that place, or (``skip``) as if it ended there."""
        self.move(FileEvent.SKIP_REST if skip else FileEvent.FAIL)
        self.end_error = error
        self.worker = None
        self.limit = self.spent_bytes

    def close(self) -> None:
        """Note that nothing more of the file is wanted, and give back what the merge has not taken of it."""
        self.move(FileEvent.CLOSE)
        self.worker = None
        for run in self.runs:
            run.release()
        self.runs.clear()

    # -- what the merge asks -------------------------------------------------------------------------------------------
    def pass_dropped(self, edge: int | None = None) -> Iterator[DroppedSample]:
        """Step over the dropped samples below ``edge`` (None: before the next sample), each when it is asked for."""
        if edge is None:
            edge = int(self.runs[0].sample_indices[self.runs[0].lo]) if self.runs else NO_PAUSE
        while self.dropped and self.dropped[0][0] < edge:
            dropped_sample = self.dropped.popleft()
            self.merged += DROPPED_COST
            self.next_index = max(self.next_index, dropped_sample[0] + 1)
            yield dropped_sample

    def next_run(self) -> SampleRun | FileFailure | SourceState | None:
        """Return the next samples, or what comes instead; None: not known yet."""
        if self.runs:
            return self.runs[0].view()
        return self.tail

    def meet_end(self) -> bool:
        """Return True if the merge, which looks at the end, meets it now and in order, not before a sample that is
        asked for."""
        asked = None if self.reread is None else self.reread.sample_indices
        if self.end_met or (asked is not None and len(asked) and self.committed <= int(asked[-1])):
            return False
        self.end_met = True
        return True

    def consume(self, count: int) -> int:
        """Take ``count`` samples of the first run for the merge. Return the sample index of the last one."""
        run = self.runs[0]
        end = run.lo + count
        self.merged += run.nbytes(count) + SAMPLE_COST * count
        run.lo = end
        last = int(run.sample_indices[end - 1])
        self.next_index = max(self.next_index, last + 1)
        if run.lo == run.hi:
            self.runs.popleft()
            if self.run_edges:
                self.run_edges.popleft()
        elif run.span.pool_ids is not None:
            run.columns = None  # the pool has all rows that lie together with these
        return last

    def merge_position(self) -> FilePosition:
        """Return where the merge stands, and the checksum at the end of the run that it is taking from; of a file in
        the cache, and of one of which nothing new has come since it is read again, a later one."""
        if self.in_cache:
            check, crcs = self.end_checksum[0], [self.end_checksum[1]]
        else:
            check, crcs = self.run_edges[0][1] if self.run_edges else (self.committed, self.crcs)
        if self.reread is not None and check < self.next_index:
            check, crcs = self.reread.checksum_index, self.reread.crcs
        if not check or not crcs or check < self.next_index:
            check, crcs = 0, []
        return FilePosition(self.file, self.next_index, check, crcs[:1])

    @property
    def end_checksum(self) -> EndChecksum:
        """Sample index at which the file has ended, and the checksum there."""
        if self.in_cache:
            return self.cached_end
        if not self.crcs and self.reread is not None and self.reread.checksum_index == self.committed > 0:
            return self.committed, self.reread.crcs[0]  # its samples were chosen, so it was not compared
        return (self.committed, self.crcs[0]) if self.crcs else (0, 0)

    def compare(self) -> FileFailure | SourceState:
        """Return END if the file, which is read again, is known to be what it was, a failure if it is not; WAIT: that
        is not known yet. While its worker lacks the credit to come so far, the merge has to go on."""
        assert self.reread is not None
        if self.end_error is not None and (self.reread.start == UNREACHED or isinstance(self.end_error, NotRepeatable)):
            return FileFailure(self.end_error, self.file, self.committed)
        if self.ended or self.committed >= min(self.reread.checksum_index, self.until):
            return END
        return END if self.need > self.unspent and self.reread.start < UNREACHED else WAIT
