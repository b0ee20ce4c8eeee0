"""Deal the batches of a pass into groups that go out together, one batch for each rank.

What cuts the batches differs (:class:`~pydp2.server.jobs.pass_stream.PassStream` cuts them from files,
:class:`~pydp2.server.jobs.derived.DerivedPass` from rows that were mixed or packed), and what follows from the number
of ranks does not: it is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

from pydp2.data.columns.checksum_log import NO_CHECKSUMS, LoggedChecksums
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import Error, NotRepeatable
from pydp2.order.batcher import BatchCut
from pydp2.order.stream_state import StreamState
from pydp2.protocol.batch_packing import BATCH_COST
from pydp2.protocol.early_ends import EarlyEnds
from pydp2.server.jobs.plan import JobPlan

_PULLS_PER_CALL = 32  # batches cut in one call


class CutBatch(NamedTuple):
    """Batch that was cut, and its rows. ``cost``: the bytes that it counts as long as it is kept, for its columns and
    for what is known of it."""

    cut: BatchCut
    rows: BatchRows
    bucket: dict[str, Any]
    cost: int

    @classmethod
    def of(cls, cut: BatchCut, rows: BatchRows, bucket: dict[str, Any]) -> CutBatch:
        """Return the batch that was cut as ``cut``."""
        origin_bytes = 0 if cut.origins is None else cut.origins.nbytes
        return cls(cut, rows, bucket, rows.padded_bytes + origin_bytes + BATCH_COST)


class BatchGroup(NamedTuple):
    """Batches that go out together, one for each rank, at the end of a pass maybe fewer.

    ``after``: the state of a trainer that has used its batch of the group. ``checksums_before``: of files that were
    read before the point of that state, since the point before.
    """

    batches: list[CutBatch]
    after: StreamState
    checksums_before: LoggedChecksums = NO_CHECKSUMS


@dataclass(frozen=True, slots=True)
class PassEnded:
    """The pass is over. ``is_empty``: no file of it had a sample, good or bad."""

    batches: int
    samples: int
    dropped: int
    uniform: bool
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class PassBroken:
    """The pass failed, in ``file`` at the sample index ``sample``, None: not known."""

    error: Error
    file: str | None = None
    sample: int | None = None


Outcome = BatchGroup | PassEnded | PassBroken
"""Next step of a pass: a group of batches, its end, or its failure."""


class PassShare(NamedTuple):
    """How much of a pass has been delivered: ``done`` of ``total``, weights of samples of its files. ``is_estimate``:
    the batches that are left need not be as many as follows from that."""

    done: float
    total: float
    is_estimate: bool

    @property
    def value(self) -> float:
        """Share from 0 to 1."""
        return self.done / self.total if self.total else 1.0


class JobPasses(ABC):
    """Passes of a job, one at a time. ``memory``: of the rows of its batches."""

    def __init__(self, plan: JobPlan, schema: Schema, memory: PoolMemory) -> None:
        self.plan = plan
        self.schema = schema
        """Schema of its batches."""
        self.memory = memory
        self.pass_id = -1
        """Pass under way, or the last one."""
        self.current: GroupedPass | None = None
        """Pass under way; None: there is none."""
        self.samples = self.batches = 0
        """Samples and batches of the pass ``pass_id`` that were delivered."""
        self.dropped = self.blocked = self.ended_early = 0
        """Bad and blocked samples of the last pass that is over, and its files that ended early."""
        self.batches_before = self.used = 0
        """Batches of that pass that were used before the state at which it was taken up, and that are used now."""
        self.is_cut = False
        """True once no more batches of that pass follow."""
        self._used_weight = 0.0  # the highest that was found for the batches that are used
        self._began_at: float | None = None  # when trainers got the first batch of the pass since it was taken up
        self.last_used_at = 0.0
        """When trainers said last that batches are used."""
        self.total_samples = self.total_batches = 0
        self.known_buckets: dict[str, Any] = {}
        """Bounds of the buckets of all passes, as "bounds"; {} without buckets, and before they are known. A rank
        without a batch does not know them."""

    @abstractmethod
    def open(self, start: StreamState, world: int = 1) -> GroupedPass:
        """Begin a pass at ``start`` for ``world`` ranks; the one before it is closed. Raises OptionError when the point
        of ``start`` is no point of this pass, and StateMismatch for a damaged one."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data."""

    @abstractmethod
    def share(self) -> PassShare | None:
        """Return how much of the pass has been delivered. None: it is not known, or the pass has no end."""

    def progress(self) -> dict[str, Any]:
        """Return how far the pass is, as plain data: the number of its batches that are used, and their share."""
        share = self._used_share()
        return {
            "batch": self.used,
            "share": None if share is None else share.value,
            "is_estimate": share is not None and share.is_estimate,
        }

    def _used_share(self) -> PassShare | None:
        """Return how much of the pass is used: that part of what was delivered. It never falls, although batches that
        are delivered later may weigh less."""
        share, delivered = self.share(), self.batches_before + self.batches
        if share is None:
            return None
        done = share.total if self.is_cut else share.done
        self._used_weight = max(self._used_weight, done * self.used / delivered if delivered else done)
        return share._replace(done=min(self._used_weight, share.total))

    def note_unused(self, count: int) -> None:
        """Note that ``count`` of the batches that were delivered are not used. What is used stays used."""
        self.used = max(self.used, self.batches_before + self.batches - count)

    def begin_time(self, now: float) -> bool:
        """Note that batches went out. Return True if they are the first ones since the pass was begun or taken up."""
        is_first = self._began_at is None
        if is_first:
            self._began_at = now
        return is_first

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds to the end of the pass at its average speed so far. None: not known, or there is no
        pass under way."""
        share, done = self._used_share(), self.used - self.batches_before
        if self.current is None or share is None or self._began_at is None or not (done and share.value):
            return None
        per_batch = (self.last_used_at - self._began_at) / done
        ahead = self.batches_before + self.batches - self.used
        # Trainers report for several batches at once: since the last report they go on with those that they have.
        since = min(now - self.last_used_at, ahead * per_batch)
        return max(0.0, self.used * (1 / share.value - 1) * per_batch - since)

    def begin_pass(self, start: StreamState) -> None:
        """Close the pass before, and count anew for the pass that begins, or is taken up, at ``start``."""
        self.close()
        self.pass_id = start.pass_id
        self.batches_before = self.used = start.batch + len(start.acknowledged_ahead)
        self.is_cut, self._used_weight, self._began_at = False, 0.0, None
        self.samples = self.batches = 0

    def close(self) -> None:
        """End the pass under way, which is over or not wanted any more."""
        if self.current is not None:
            self.current.close()
            self.current = None

    def count(self, batches: Sequence[CutBatch]) -> None:
        """Count ``batches`` as delivered."""
        for batch in batches:
            rows = len(batch.cut.row_ids) - batch.cut.padding
            self.samples += rows
            self.total_samples += rows
        self.batches += len(batches)
        self.total_batches += len(batches)

    def totals(self) -> dict[str, Any]:
        """Return the numbers of samples and batches that were delivered, as plain data."""
        return {
            "pass": self.pass_id,
            "samples": self.total_samples,
            "batches": self.total_batches,
            "samples_in_pass": self.samples,
            "batches_in_pass": self.batches,
        }

    def describe_padding(self) -> str:
        """Return how much padding the batches of its last pass would have, as a line for the log; empty without
        buckets."""
        return ""


class GroupedPass(ABC):
    """Batches of one pass of ``job``, from ``start`` on, in groups of ``world``. ``last_batch``: the option."""

    def __init__(self, job: JobPasses, start: StreamState, world: int, last_batch: str) -> None:
        self.job = job
        self._pass_id, self._world, self._last_batch = start.pass_id, world, last_batch
        self._skip_to = start.batch
        self._acknowledged_ahead = deque(sorted(start.acknowledged_ahead))
        self._group: list[CutBatch] = []  # the next one, as far as it is cut
        self._group_bytes = 0
        self._end: PassEnded | None = None
        self.more = False
        """:meth:`next_group` had nothing because a group of so many ranks is not cut in one call: others have their
        turn."""
        self.pool_over_limit = False
        """It had nothing because there is no room for the rest of the group."""

    # -- for subclasses ------------------------------------------------------------------------------------------------
    @abstractmethod
    def _pull(self) -> CutBatch | PassEnded | PassBroken | None:
        """Return the next batch that is delivered; None: there is nothing now."""

    @abstractmethod
    def _group_behind(self, batches: list[CutBatch]) -> BatchGroup:
        """Return the group of ``batches``, the next ones, with the state behind it."""

    @property
    @abstractmethod
    def early_ends(self) -> EarlyEnds:
        """Files of this pass that are known to end early, also those whose end no batch has met yet."""

    @property
    @abstractmethod
    def byte_limited(self) -> bool:
        """True if a pool of this pass was stopped by its limit in bytes."""

    @abstractmethod
    def describe_start(self) -> str:
        """Return what is run again because the pass is taken up in its middle, as a line for the log; empty if it is
        not."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data."""

    def close(self) -> None:
        """Give back all that the pass has: it is over, or not wanted any more."""
        for batch in self._group:
            batch.rows.release()
        self._group, self._group_bytes = [], 0

    # -- for all -------------------------------------------------------------------------------------------------------
    @property
    def buckets(self) -> dict[str, Any]:
        """Buckets of this pass as plain data; {} without buckets, and before they are known."""
        return {}

    def has_early_ends(self, early_ends: EarlyEnds) -> bool:
        """Return True if this pass has all of ``early_ends``."""
        known = self.early_ends
        return all(file in known and known[file][0] == y for file, (y, _) in early_ends.items())

    def next_group(self, pulls: int = _PULLS_PER_CALL, room: float = inf) -> Outcome | None:
        """Return the next batches that go out together; None: nothing now.

        Cuts ``pulls`` batches at most, and none once those of the group that is begun cost ``room`` bytes.

        With one rank a group is a batch. With ``last_batch`` "drop" or "pad" all ranks get equally many: what is left
        at the end of the pass is dropped, or made up with batches that are padding alone.
        """
        self.more = self.pool_over_limit = False
        for pull in range(self._world - len(self._group) if self._end is None else 0):
            self.more, self.pool_over_limit = pull == pulls, self._group_bytes >= room
            if self.more or self.pool_over_limit:
                return None
            outcome = self._pull()
            if isinstance(outcome, CutBatch):
                self._group.append(outcome)
                self._group_bytes += outcome.cost
                continue
            if isinstance(outcome, PassEnded):
                self._end = self._even_last_group(outcome)
                self.job.is_cut = True
            elif outcome is None or self._last_batch != "keep" or not self._group:
                return outcome
            break
        if self._group:
            batches, self._group, self._group_bytes = self._group, [], 0
            self.job.count(batches)
            return self._group_behind(batches)
        assert self._end is not None
        return replace(self._end, samples=self.job.samples)

    def _even_last_group(self, over: PassEnded) -> PassEnded:
        """End the pass where the last batches are not one for each rank."""
        missing = self._world - len(self._group)
        if not self._group or self._last_batch == "keep":
            return over
        if self._last_batch == "drop":
            missing = -len(self._group)
            GroupedPass.close(self)
        else:
            first, last = self._group[0], self._group[-1].cut
            rows = first.cut.row_ids
            self._group += [
                CutBatch.of(
                    BatchCut(last.index + 1 + i, rows, 0, 0, len(rows), last.tail_consumed, origins=first.cut.origins),
                    first.rows.retain(),
                    first.bucket,
                )
                for i in range(missing)
            ]
        return replace(over, batches=over.batches + missing)

    def _is_used(self, index: int) -> bool:
        """Return True if batch ``index`` was used before the state was saved, or is passed over."""
        ahead = self._acknowledged_ahead
        while ahead and ahead[0] < index:
            ahead.popleft()
        return index < self._skip_to or (bool(ahead) and ahead[0] == index)

    def _used_from(self, behind: int) -> list[int]:
        """Return the batches from ``behind`` on that were used before the state was saved, or are passed over."""
        return [index for index in self._acknowledged_ahead if index >= behind]

    def _check_length(self, batches: int) -> PassBroken | None:
        """Return how the pass fails if it is over after ``batches`` batches, before the state at which it began."""
        if batches >= self._skip_to or self._last_batch == "pad":
            return None
        return PassBroken(
            NotRepeatable(
                f"pass {self._pass_id} has {batches} batches, and the state is behind batch {self._skip_to - 1}: the "
                "files do not give the same samples any more; bring back the files of then, or begin with "
                f"set_epoch({self._pass_id}) in place of the state"
            )
        )
