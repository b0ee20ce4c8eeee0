"""Pack samples of several files together, and describe them as ranges when they are sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.checksum import dropped_crc, fold_crcs
from pydp2.data.columns.columns import Columns, running_crcs
from pydp2.data.packers.packer import Packer
from pydp2.data.packers.sample_loop import PackingBudget, SampleLoop, SampleMarker
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import BadSample, Error, NotRepeatable, to_wire
from pydp2.host.worker.task import NO_SAMPLE, FileTask, UnsentSample
from pydp2.host.worker.yielded_samples import YieldedSamples
from pydp2.protocol.file_ranges import (
    DROPPED_COST,
    FILE_ENDED,
    FILE_OPEN,
    FILE_RAISED,
    SAMPLE_COST,
    FileRange,
    dropped_bytes,
)
from pydp2.protocol.messages import HEADER_LIMIT
from pydp2.providers.error_location import mismatch_text
from pydp2.system.stdlib import time

MAX_ROWS = 4096
MAX_BYTES = 4 << 20
MAX_RANGES = 128
MAX_DROPPED = 24
"""Limits of a chunk: it is sent when it reaches any of these."""
MAX_BLOCKED = 256
"""Number of waiting files that one chunk tells of at most."""
MAX_RANGES_BYTES = HEADER_LIMIT - 48 * MAX_BLOCKED
"""Number of bytes of a header that are left for parts. Bad values are found when a chunk is cut, by thousands at worst:
then it takes several chunks. An error takes half of it at most."""
_MAX_DROPPED_BYTES = MAX_RANGES_BYTES // 3

_ENOUGH_OF_BLOCK = MAX_BYTES // 4  # of samples of one yield: to put more to them would copy them

Ints = npt.NDArray[np.int64]
_NO_ROWS: Ints = np.empty(0, np.int64)
_NO_BUDGET = PackingBudget(-1, 0, 0, 0)  # not even the next sample
LocateError = Callable[[BadSample, FileTask, int], BadSample]


@dataclass(slots=True)
class TaskSegment:
    """Sample indices ``first_index`` to ``first_index + count`` of one task, ``rows`` of them packed."""

    task: FileTask
    first_index: int
    count: int = 0
    rows: int = 0
    dropped: list[tuple[int, str, str]] = field(default_factory=list)
    state: int = FILE_OPEN
    error: Error | None = None
    is_selected: bool = False  # only chosen samples of these were run

    def sample_indices(self) -> npt.NDArray[np.int64]:
        """Return the sample indices of its packed rows."""
        first, end = self.first_index, self.first_index + self.count
        if self.is_selected:
            first, end = np.searchsorted(self.task.reread_indices, [first, end])
            y = self.task.reread_indices[first:end]
        else:
            y = np.arange(first, end, dtype=np.int64)
        if self.dropped:
            y = np.delete(y, np.searchsorted(y, [dropped_sample for dropped_sample, _, _ in self.dropped]))
        return y

    def split_to_fit(self) -> Iterator[TaskSegment]:
        """Yield the same sample indices in segments that each fit into a header."""
        first, dropped_samples, size = self.first_index, list[tuple[int, str, str]](), 0
        for y, slot, reason in self.dropped:
            size += dropped_bytes(slot, reason)
            if size > _MAX_DROPPED_BYTES:
                yield TaskSegment(self.task, first, y - first, y - first - len(dropped_samples), dropped_samples)
                first, dropped_samples, size = y, [], dropped_bytes(slot, reason)
            dropped_samples.append((y, slot, reason))
        count = self.first_index + self.count - first
        yield TaskSegment(
            self.task, first, count, count - len(dropped_samples), dropped_samples, self.state, self.error
        )


@dataclass(slots=True)
class ChunkContent:
    """Content of a chunk: parts, and the rows of all parts one after another. They may lie in memory of a provider, and
    must be sent, with a copy, before its code runs again."""

    ranges: list[FileRange]
    columns: Columns
    weights: list[int] | None


class ChunkBuilder:
    """Builder of chunks: it collects samples, and :meth:`finish` returns what to send. Bad samples become dropped
    samples, or errors at their place.

    ``allows_changed_samples``: a file that does not repeat itself goes on with what it gives now, and the
    server is told that it did. ``skips_errors``: a bad sample that the generator itself yields is dropped.
    ``can_start``: another attempt may begin behind a range that is sent, so it has all checksums there.
    """

    def __init__(
        self,
        schema: Schema,
        locate: LocateError,
        *,
        allows_changed_samples: bool = False,
        skips_errors: bool = False,
        can_start: bool = False,
    ) -> None:
        self._sends_all_checksums = can_start
        self._allows_changed = allows_changed_samples
        self._packer = Packer(schema.slots, strict=schema.check, chunk_bytes=MAX_BYTES)
        self._locate = locate
        self._drops_bad = schema.check_fail_continue
        self._drops_yielded = schema.check_fail_continue or skips_errors
        self._is_weighted = schema.weighted
        self._weights: list[int] = []
        self._segments: list[TaskSegment] = []
        self._dropped_count = 0
        self._enough_rows = MAX_ROWS
        self.oldest_at = 0.0
        """Time at which the oldest sample here was added (``time.perf_counter``)."""
        self.last_cost = 0

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to send."""
        return not self._segments

    @property
    def is_full(self) -> bool:
        """True if it is time to send."""
        nbytes = self._packer.nbytes
        return (
            nbytes >= MAX_BYTES
            or (nbytes >= _ENOUGH_OF_BLOCK and self._packer.is_one_block)  # to copy it would cost more
            or self._packer.rows >= self._enough_rows
            or len(self._segments) >= MAX_RANGES
            or self._dropped_count >= MAX_DROPPED
        )

    def has_samples_of(self, task: FileTask) -> bool:
        """Return True if something of ``task`` waits to be sent."""
        return any(segment.task is task for segment in self._segments)

    def lower_enough_rows(self, task: FileTask, until_index: int) -> None:
        """Send earlier: a merge waits for its next samples, of which ``task`` has some. They suffice as soon as there
        are as many as ``task`` alone would have at sample ``until_index``."""
        rows = until_index - next(
            (segment.first_index for segment in self._segments if segment.task is task), task.next_index
        )
        if rows > 0:  # else it is on its way
            self._enough_rows = min(self._enough_rows, rows)

    def _segment_of(self, task: FileTask) -> TaskSegment:
        if not self._segments:
            self.oldest_at = time.perf_counter()
        elif self._segments[-1].task is task:
            return self._segments[-1]
        segment = TaskSegment(task, task.next_index, is_selected=task.selected is not None)
        self._segments.append(segment)
        return segment

    def sample_loop(self, is_single_slot: bool, marker: SampleMarker, other_names: Collection[str] = ()) -> SampleLoop:
        """Return the loop that draws samples and may pack them here; :meth:`count_packed` is told of these.
        ``is_single_slot``: the only slot's value is yielded bare. ``other_names``: names that are no slots but were
        declared."""
        return self._packer.sample_loop(is_single_slot, marker, other_names)

    def packing_budget(self, task: FileTask, next_stop: int) -> PackingBudget:
        """Return how many samples of ``task`` the sample loop may pack by itself: up to there their treatment is known,
        and the sample after them comes back here. ``next_stop``: the next one of the task."""
        y, packer = task.next_index, self._packer
        if self._is_weighted:
            return _NO_BUDGET
        credit = NO_SAMPLE if y < task.start else task.limit - task.spent_bytes
        rows = min(task.rows_until(next_stop), MAX_ROWS - packer.rows) - 1
        return PackingBudget(rows, MAX_BYTES - packer.nbytes, credit, SAMPLE_COST)

    def count_packed(self, task: FileTask, rows: int, nbytes: int) -> None:
        """Count ``rows`` samples of ``task`` that the sample loop has packed within its budget."""
        self._packer.count_packed(rows, nbytes)
        self._count_rows(task, rows, nbytes)

    def _count_rows(self, task: FileTask, rows: int, nbytes: int) -> None:
        segment = self._segment_of(task)
        segment.rows += rows
        if task.next_index >= task.start:  # below send_from that is too much: finish() knows which of them are sent
            task.spent_bytes += nbytes + rows * SAMPLE_COST
        task.advance(rows)
        segment.count = task.next_index - segment.first_index

    def add_sample(self, task: FileTask, values: list[object], weight_of: Callable[[list[object]], int]) -> bool:
        """Add sample ``task.next_index``. Return False if it was bad: then it is a dropped sample, or the task is over.

        Raises what ``calc_batch_size`` raised, or code of the value itself; the sample is not added then.
        """
        segments = self._segments
        segment = segments[-1] if segments and segments[-1].task is task else self._segment_of(task)
        try:
            size = self._packer.add(values)
            if self._is_weighted:
                # calc_batch_size sees accepted samples only, so this one is checked to the end now
                if bad := self._packer.verify():
                    self._weights.append(0)  # the row is removed when the chunk is cut
                    del bad
                else:
                    try:
                        self._weights.append(weight_of(values))
                    except BaseException:
                        self._packer.undo_last()
                        raise
        except BadSample as error:
            self.add_bad(task, error)
            return False
        segment.rows += 1
        task.advance(1)
        segment.count = task.next_index - segment.first_index
        self.last_cost = cost = size + SAMPLE_COST
        if task.next_index > task.start and (
            segment.is_selected or task.next_index > task.send_from or task.is_requested(task.next_index - 1)
        ):
            task.spent_bytes += cost
        return True

    def add_yielded(
        self,
        task: FileTask,
        next_stop: int,
        arrange: Callable[[object], list[object]],
        weight_of: Callable[[list[object]], int],
    ) -> bool:
        """Add what comes next of the task's block: one sample, as :meth:`add_sample` does, or as many as may go
        together. ``next_stop``: the next one of the task."""
        block = task.yielded
        assert block is not None
        added = self._add_together(task, block, next_stop)
        if not added and block.remaining:
            added = self.add_sample(task, arrange(block.next_sample()), weight_of)
        if not block.remaining:
            task.yielded = None
        return added

    def copy_lent(self) -> None:
        """Copy what lies in memory of a provider, before its code runs and may change that."""
        self._packer.copy_lent()

    def _add_together(self, task: FileTask, yielded: YieldedSamples, next_stop: int) -> bool:
        packer = self._packer
        rows, room, credit, _ = self.packing_budget(task, next_stop)
        laid = yielded.take_columns(rows + 1, room, credit)  # all of these are here: the last one need not be looked at
        if laid is None:
            return False
        before = packer.nbytes
        if packer.add_columns(laid) is None:
            yielded.unpack_last(laid.rows)
            return False
        self._count_rows(task, laid.rows, packer.nbytes - before)
        return True

    def add_bad(self, task: FileTask, error: BadSample, *, yielded: bool = False) -> None:
        """Add sample ``task.next_index``, which was seen to be bad at once. ``yielded``: the generator itself said so,
        and reads on behind it."""
        if not (self._drops_yielded if yielded else self._drops_bad):
            self.fail_file(task, self._locate(error, task, task.next_sample))
            return
        segment = self._segment_of(task)
        segment.dropped.append((task.next_sample, error.slot, mismatch_text(error)))
        task.advance(1)
        segment.count = task.next_index - segment.first_index
        self._dropped_count += 1
        if task.next_index > task.start and task.next_index > task.send_from:
            task.spent_bytes += DROPPED_COST

    def fail_file(self, task: FileTask, error: Error) -> None:
        """End the file at ``task.next_index`` with ``error``."""
        segment = self._segment_of(task)
        segment.state, segment.error = FILE_RAISED, error
        task.is_over = True

    def skip_to(self, task: FileTask, sample_index: int) -> None:
        """Pass over the samples of ``task`` below ``sample_index``: none of them is needed."""
        segment = self._segment_of(task)
        task.next_index = sample_index
        segment.count = sample_index - segment.first_index

    def end_file(self, task: FileTask) -> None:
        """End the file at ``task.next_index``."""
        self._segment_of(task).state = FILE_ENDED
        task.is_over = True

    def finish(self, unsent_of: FileTask | None = None) -> list[ChunkContent]:
        """Return everything added since the last cut, in as many chunks as it takes. Tasks that turn out bad are done.

        ``unsent_of``: the task whose last sample, the very last one added, may not be sent: the task holds it back.
        """
        last = self._packer.rows - 1
        packed = self._packer.finish()
        segments, self._segments = self._segments, []
        weights, self._weights = self._weights, []
        self._dropped_count, self._enough_rows = 0, MAX_ROWS
        bad = dict(packed.bad)
        if unsent_of is not None and last not in bad:
            row = packed.columns.rows - 1
            unsent_of.unsent = UnsentSample(
                packed.columns.take([row]), unsent_of.last_sample, weights[last] if weights else 1, self.last_cost
            )
            segments[-1].rows -= 1
            segments[-1].count = unsent_of.last_sample - segments[-1].first_index
        if bad and self._is_weighted:
            weights = [w for i, w in enumerate(weights) if i not in bad]
        parts: list[tuple[FileRange, Ints]] = []  # each with its rows
        added = good = 0  # rows counted so far: as added, and as they lie in the columns
        for segment in segments:
            rows = segment.rows
            bad_of_segment = {i - added: bad[i] for i in range(added, added + rows) if i in bad} if bad else {}
            lo = good
            added += rows
            good += rows - len(bad_of_segment)
            if bad_of_segment:
                self._record_bad(segment, bad_of_segment)
            task = segment.task
            for piece in segment.split_to_fit() if segment.dropped and not segment.is_selected else (segment,):
                part, which = self._range_of(piece, packed.columns.slice(lo, lo + piece.rows))
                if part is not None and (part.count or part.state != FILE_OPEN):
                    rows_of = which + lo
                    task.sent_bytes += int(packed.sample_bytes[rows_of].sum())
                    task.sent_bytes += SAMPLE_COST * part.rows + DROPPED_COST * len(part.dropped)
                    part.did_not_repeat, task.did_not_repeat = task.did_not_repeat, False
                    parts.append((part, rows_of))
                lo += piece.rows
            task.spent_bytes = task.sent_bytes
        return self._group_into_chunks(parts, packed.columns, weights)

    def _group_into_chunks(
        self, parts: list[tuple[FileRange, Ints]], columns: Columns, weights: list[int]
    ) -> list[ChunkContent]:
        """Group the parts that are sent, each with its rows in ``columns``, into chunks whose headers fit."""
        groups: list[list[tuple[FileRange, Ints]]] = []
        size = MAX_RANGES_BYTES
        for part, row_ids in parts:
            need = part.wire_bytes
            size += need
            if size > MAX_RANGES_BYTES:
                groups.append([])
                size = need
            groups[-1].append((part, row_ids))
        chunks = []
        for group in groups:
            rows = np.concatenate([row_ids for _, row_ids in group])
            if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
                part_columns = columns.slice(int(rows[0]), int(rows[-1]) + 1)
            else:
                part_columns = columns.take(rows)
            own = [weights[i] for i in rows.tolist()] if self._is_weighted else None
            chunks.append(ChunkContent([part for part, _ in group], part_columns, own))
        return chunks

    def _record_bad(self, segment: TaskSegment, bad: dict[int, BadSample]) -> int:
        """Make dropped samples or one error of ``bad`` (by row of the segment); return how many rows stay."""
        sample_indices = segment.sample_indices()
        task = segment.task
        if self._drops_bad:
            for row, error in bad.items():
                segment.dropped.append((int(sample_indices[row]), error.slot, mismatch_text(error)))
            segment.dropped.sort()
            segment.rows -= len(bad)
            return segment.rows
        row = min(bad)
        y = int(sample_indices[row])
        segment.rows = row
        segment.count = y - segment.first_index
        segment.state, segment.error = FILE_RAISED, self._locate(bad[row], task, y)
        task.is_over = True
        task.unsent = None
        return row

    def _range_of(self, segment: TaskSegment, columns: Columns) -> tuple[FileRange | None, Ints]:
        """Return the range of ``segment``, whose rows are ``columns``, and which of these rows are sent.

        The range is None if an earlier attempt has committed it. A segment never lies on both
        sides of an edge of its task.
        """
        task = segment.task
        if not segment.is_selected:
            task.crcs = [
                *running_crcs(columns, task.crcs[:-1]),
                dropped_crc((y for y, _, _ in segment.dropped), task.crcs[-1]),
            ]
        reached = segment.first_index + segment.count
        which = _NO_ROWS
        if replay := segment.first_index < task.send_from:
            which = np.flatnonzero(np.isin(segment.sample_indices(), task.reread_indices, assume_unique=True))
        if not self._check_repeats(task, segment, reached, len(which)):
            task.is_over = True
            first = max(task.start, segment.first_index)
            error = to_wire(_not_repeatable(task))
            return FileRange(task.file, task.attempt, first, 0, 0, FILE_RAISED, task.expected_crcs, [], error), _NO_ROWS
        state, error = segment.state, _error_to_wire(segment.error)
        sum_ = [] if segment.is_selected else self._checksums_to_wire(task)
        if segment.first_index < task.start and state == FILE_OPEN:
            return None, _NO_ROWS
        if segment.first_index < task.start:
            return FileRange(task.file, task.attempt, task.start, 0, 0, state, sum_, [], error), _NO_ROWS
        dropped_samples = [] if replay else [list(dropped_sample) for dropped_sample in segment.dropped]
        which = which if replay else np.arange(segment.rows)
        return FileRange(
            task.file, task.attempt, segment.first_index, segment.count, len(which), state, sum_, dropped_samples, error
        ), which

    def _check_repeats(self, task: FileTask, segment: TaskSegment, end_index: int, reread_rows: int) -> bool:
        """Return True if the file, from the first sample of ``segment`` up to ``end_index``, is what it was before, as
        far as can be told there.

        If it is not, and that is allowed, it is noted. Samples that a saved pool names cannot be missing:
        ``reread_rows`` of them are there.
        """
        first_index = segment.first_index
        if first_index >= task.start and reread_rows < task.count_reread(first_index, end_index):
            return False
        if segment.state != FILE_OPEN and end_index < task.required_samples:
            if not self._allows_changed or task.count_reread(max(end_index, task.start), NO_SAMPLE):
                return False
            task.did_not_repeat = True
        if segment.is_selected:  # not all were run, so their checksum is not known
            return True
        checksum = fold_crcs(task.crcs)
        differs = end_index == task.start and task.expected_crcs not in ([], [checksum])
        differs = differs or (end_index == task.check_at > 0 and checksum != task.check_crc)
        if not differs:
            return True
        task.did_not_repeat = self._allows_changed
        return self._allows_changed

    def _checksums_to_wire(self, task: FileTask) -> list[int]:
        return [fold_crcs(task.crcs), *(task.crcs if self._sends_all_checksums else ())]

    def unsent_chunk(self, task: FileTask, unsent: UnsentSample) -> ChunkContent:
        """Return a chunk of nothing but the sample that ``task`` held back."""
        first, end = unsent.sample_index, task.next_index
        segment = TaskSegment(task, first, end - first, 1, is_selected=task.selected is not None)
        sum_: list[int] = []
        if not segment.is_selected:
            task.crcs = [*running_crcs(unsent.columns, task.crcs[:-1]), task.crcs[-1]]
            sum_ = self._checksums_to_wire(task)
        task.sent_bytes += unsent.cost
        task.spent_bytes = task.sent_bytes
        part = FileRange(task.file, task.attempt, first, segment.count, 1, FILE_OPEN, sum_, [], {})
        if not self._check_repeats(task, segment, end, 1):
            task.is_over = True
            part = FileRange(
                task.file, task.attempt, unsent.sample_index, 0, 0, FILE_RAISED, [], [], to_wire(_not_repeatable(task))
            )
            return ChunkContent([part], unsent.columns.slice(0, 0), [] if self._is_weighted else None)
        part.did_not_repeat, task.did_not_repeat = task.did_not_repeat, False
        return ChunkContent([part], unsent.columns, [unsent.weight] if self._is_weighted else None)


def _not_repeatable(task: FileTask) -> NotRepeatable:
    if task.begin:
        return NotRepeatable(
            f"file {task.context.filename}: process() with start={task.begin} did not yield what it gave before: "
            f"samples {task.begin} to {task.required_samples - 1} differ; if the file was changed, bring it back; "
            "else make its first yield that of sample `start`, and let no sample depend on those before it (`pydp2 "
            "check` shows the first sample that differs)"
        )
    return NotRepeatable(
        f"file {task.context.filename}: process() did not repeat itself: run again, its first {task.required_samples} "
        "samples are not those that it gave before; if the file was changed, bring it back; else make process() depend "
        "on the file alone (settings.rng is seeded per file, and so are the global generators of random, numpy and "
        "torch; `pydp2 check` shows the first sample that differs)"
    )


def _error_to_wire(error: Error | None) -> dict[str, Any]:
    return {} if error is None else to_wire(error)
