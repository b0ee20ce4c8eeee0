"""Hold the state of one file's run in this worker: its position and how far it may go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.columns import Columns
from pydp2.host.worker.yielded_samples import YieldedSamples
from pydp2.protocol.file_ranges import FileAssignment

NO_SAMPLE = 1 << 62
"""Sample index that no file reaches."""


@dataclass(slots=True)
class UnsentSample:
    """Sample that may not be sent yet: one row, its sample index, weight and cost."""

    columns: Columns
    sample_index: int
    weight: int
    cost: int


@dataclass(slots=True)
class FileTask:
    """File that was assigned. ``next_index`` is the sample index of the sample that the generator yields next; it was
    run from sample ``begin``.

    Samples below ``start`` were committed by an earlier attempt: they are run again, compared and not sent. While
    chosen samples are run alone, ``next_index`` may lie before the next one.
    """

    file: int
    attempt: int
    position: int
    start: int
    limit: int
    pause: int
    bound: bool
    expected_crcs: list[int]  # checksums at ``start``
    spent_bytes: int  # cost of all samples from ``start`` on, sent or about to be
    sent_bytes: int
    send_from: int = 0
    block_length: int = 1
    ramp_until: int = 0
    until: int = NO_SAMPLE
    check_at: int = 0
    check_crc: int = 0
    reread_indices: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    begin: int = 0
    selected: npt.NDArray[np.int64] | None = None  # the samples below ``select_until`` that are run, if not all are
    select_until: int = 0
    select_crcs: list[int] = field(default_factory=list)
    selected_count: int = 0  # of them were drawn
    next_index: int = 0
    crcs: list[int] = field(default_factory=list)
    unsent: UnsentSample | None = None
    iterator: Iterator[Any] | None = None
    yielded: YieldedSamples | None = None  # the rest of many samples that came in one yield
    context: Any = None
    close: Any = None
    is_over: bool = False
    did_not_repeat: bool = False  # the file did not repeat itself, which the next part tells
    wait_reported: bool = False  # the server knows that the task waits
    merge_waits: bool = False  # a merge waits for it,
    merge_waits_until: int = 0  # and goes on with the samples below this sample index
    dispatch_id: int = 0  # dispatch for which it runs
    pass_id: int = 0
    seed: int = 0

    @classmethod
    def from_assignment(
        cls,
        assignment: FileAssignment,
        checksum_count: int,
        reread_indices: npt.NDArray[np.int64] | None = None,
        *,
        can_start: bool = False,
        can_select: bool = False,
    ) -> FileTask:
        """Return the task that ``assignment`` describes; ``checksum_count``: how many running checksums a file has;
        ``can_start``: its samples can be drawn from any on; ``can_select``: chosen ones can be drawn alone."""
        # whoever cannot continue there runs the file from its first sample, and compares it at ``start`` all the same
        continues = can_start and len(assignment.begin_crcs) == checksum_count
        begin = assignment.begin if continues else 0
        reread_indices = np.empty(0, np.int64) if reread_indices is None else reread_indices
        until = assignment.select_until
        goes_on = len(assignment.select_crcs) == checksum_count or until == assignment.until
        selected = None
        if can_select and goes_on and assignment.start < until:
            first, end = np.searchsorted(reread_indices, [assignment.start, until])
            selected, begin = reread_indices[first:end], assignment.start
        return cls(
            file=assignment.file,
            attempt=assignment.attempt,
            position=assignment.position,
            start=assignment.start,
            limit=assignment.limit,
            pause=assignment.pause,
            bound=assignment.bound,
            spent_bytes=assignment.spent_bytes,
            send_from=assignment.send_from,
            block_length=assignment.block_length,
            ramp_until=assignment.ramp_until,
            until=assignment.until,
            check_at=assignment.check_at,
            check_crc=assignment.check_crc,
            expected_crcs=assignment.crcs,
            sent_bytes=assignment.spent_bytes,
            reread_indices=reread_indices,
            begin=begin,
            selected=selected,
            select_until=until if selected is not None else 0,
            select_crcs=assignment.select_crcs,
            next_index=begin,
            crcs=assignment.begin_crcs if begin and selected is None else [0] * checksum_count,
        )

    @property
    def is_open(self) -> bool:
        """True if its generator is open."""
        return self.iterator is not None

    @property
    def has_enough_for_merge(self) -> bool:
        """True if a merge waits for it, and can go on with what there is."""
        return self.merge_waits and self.next_index >= self.merge_waits_until

    @property
    def next_stop(self) -> int:
        """Next sample index before which all must have been sent: what comes after it is treated otherwise."""
        y = self.next_index
        return min(
            (
                stop
                for stop in (self.start, self.select_until, self.send_from, self.check_at, self.until, self.pause)
                if stop > y
            ),
            default=NO_SAMPLE,
        )

    @property
    def is_ramping(self) -> bool:
        """True while it is run turn by turn."""
        return self.next_index < self.ramp_until

    @property
    def priority(self) -> tuple[bool, int, int]:
        """Sort key: of the tasks of a dispatch, the lowest comes next."""
        if self.is_ramping:  # as the merge takes them: that it waits for this one changes nothing
            return True, self.next_index // self.block_length, self.position
        return not self.merge_waits, NO_SAMPLE, self.position

    @property
    def block_end(self) -> int:
        """Sample index at which the turn ends."""
        return (
            self.next_index - self.next_index % self.block_length + self.block_length if self.is_ramping else NO_SAMPLE
        )

    @property
    def next_sample(self) -> int:
        """Index of the sample that the generator yields next."""
        if self.selected is not None and self.selected_count < len(self.selected):
            return int(self.selected[self.selected_count])
        return self.next_index

    @property
    def last_sample(self) -> int:
        """Index of the sample that the generator yielded last."""
        return self.next_index - 1 if self.selected is None else int(self.selected[self.selected_count - 1])

    def advance(self, count: int) -> None:
        """Pass over the next ``count`` samples of the generator."""
        if self.selected is None:
            self.next_index += count
            return
        self.selected_count += count
        is_last = self.selected_count >= len(self.selected)
        self.next_index = self.select_until if is_last else int(self.selected[self.selected_count - 1]) + 1

    def end_selection(self) -> None:
        """Note that the chosen samples were drawn: the file is run from ``select_until`` on."""
        self.selected, self.begin, self.crcs = None, self.select_until, self.select_crcs
        self.iterator = self.close = None

    def rows_until(self, stop: int) -> int:
        """Return how many samples the generator yields before sample ``stop``."""
        if self.selected is None:
            return stop - self.next_index
        return int(np.searchsorted(self.selected, stop)) - self.selected_count

    def is_requested(self, sample_index: int) -> bool:
        """Return True if sample ``sample_index`` is to be sent."""
        if sample_index < self.start:
            return False
        if sample_index >= self.send_from:
            return True
        at = int(np.searchsorted(self.reread_indices, sample_index))
        return at < len(self.reread_indices) and int(self.reread_indices[at]) == sample_index

    def count_reread(self, lo: int, hi: int) -> int:
        """Return how many samples from ``lo`` to below ``hi`` a saved pool names."""
        if not len(self.reread_indices):
            return 0
        first, end = np.searchsorted(self.reread_indices, [lo, hi])
        return int(end - first)

    @property
    def required_samples(self) -> int:
        """Number of samples that the file must have, because it had them before."""
        last = int(self.reread_indices[-1]) + 1 if len(self.reread_indices) else 0
        return max(self.start, self.check_at, last)

    @property
    def is_replaying(self) -> bool:
        """True if the sample that the generator yields next was committed before."""
        return self.next_index < self.start

    @property
    def missing_credit(self) -> int | None:
        """Credit that it waits for: the cost of the sample held back, 0 for its pause, None if it can go on.

        Dropped samples are not held back: the one that exceeds the limit is sent, and any credit ends the wait.
        """
        if self.is_over:  # a value that is found to be bad when it is sent may end a file that was waiting
            return None
        if self.unsent is not None and self.spent_bytes + self.unsent.cost > self.limit:
            return self.unsent.cost
        if self.unsent is None and self.spent_bytes > self.limit:
            return 1
        if self.next_index >= self.pause and self.next_index >= self.start and self.unsent is None:
            return 0
        return None
