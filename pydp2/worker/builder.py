"""Samples of several files, packed together, and the ranges that they make when they are sent."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pydp2.errors import BadSample, Error, NotRepeatable, to_wire
from pydp2.inputs import Columns, Packer, crc
from pydp2.inputs.checksum import crc32
from pydp2.inputs.declaration import Declaration
from pydp2.inputs.drawing import Budget, Draws, Mark
from pydp2.protocol.ranges import ENDED, HOLE_COST, OPEN, RAISED, SAMPLE_COST, Part
from pydp2.providers.where import finding
from pydp2.worker.block import Block
from pydp2.worker.segment import ROOM, Segment
from pydp2.worker.task import NEVER, Hand, Task

MAX_ROWS = 4096
MAX_BYTES = 1024 * 1024
MAX_PARTS = 128
MAX_HOLES = 24
"""A chunk is sent when it reaches any of these."""

Ints = npt.NDArray[np.int64]
_NONE: Ints = np.empty(0, np.int64)
_NOTHING = Budget(-1, 0, 0, 0)  # nor the one after them
Place = Callable[[BadSample, Task, int], BadSample]


@dataclass(slots=True)
class Packed:
    """What a chunk carries: parts, and the rows of all parts one after another."""

    parts: list[Part]
    columns: Columns
    weights: list[int] | None


class Builder:
    """Collects samples; :meth:`cut` gives what is to be sent. Bad samples become holes, or errors at their place.

    ``lenient``: a file that does not repeat itself goes on with what it gives now, and the server is told that it did.
    """

    def __init__(self, declaration: Declaration, place: Place, *, lenient: bool = False) -> None:
        self._lenient = lenient
        # the pool copies no more than a chunk that it needs a part of; rows that have places are not copied
        self._most = 4 * MAX_BYTES if declaration.placed else MAX_BYTES
        self._packer = Packer(declaration.slots, strict=declaration.check)
        self._place = place
        self._drop = declaration.check_fail_continue
        self._weighted = declaration.weighted
        self._weights: list[int] = []
        self._segments: list[Segment] = []
        self._holes = 0
        self._enough = MAX_ROWS
        self.since = 0.0
        """When the oldest sample here was added (``time.perf_counter``)."""
        self.last_cost = 0

    @property
    def empty(self) -> bool:
        """Nothing to send."""
        return not self._segments

    @property
    def full(self) -> bool:
        """Time to send."""
        return (
            self._packer.nbytes >= self._most
            or self._packer.rows >= self._enough
            or len(self._segments) >= MAX_PARTS
            or self._holes >= MAX_HOLES
        )

    def holds(self, task: Task) -> bool:
        """Whether something of ``task`` waits to be sent."""
        return any(segment.task is task for segment in self._segments)

    def ask(self, task: Task, until: int) -> None:
        """A merge waits for what is next, in its order, of which ``task`` is one: so much that it would be sample
        ``until`` of the task if it were of that alone."""
        rows = until - next((segment.first for segment in self._segments if segment.task is task), task.y)
        if rows > 0:  # else it is on its way
            self._enough = min(self._enough, rows)

    def _segment(self, task: Task) -> Segment:
        if not self._segments:
            self.since = time.perf_counter()
        elif self._segments[-1].task is task:
            return self._segments[-1]
        segment = Segment(task, task.y)
        self._segments.append(segment)
        return segment

    def drawer(self, single: bool, mark: Mark) -> Draws:
        """What draws samples and may pack them here; :meth:`absorb` is told of these. ``single``: the only slot's value
        is yielded bare."""
        return self._packer.drawer(single, mark)

    def budget(self, task: Task, edge: int) -> Budget:
        """How many samples of ``task`` may be packed unseen: what they are is plain as far as that, and the one after
        them is looked at. ``edge``: the next one of the task."""
        y, packer = task.y, self._packer
        if self._weighted or task.start <= y < task.send_from:  # some of these are sent and others are not
            return _NOTHING
        credit = NEVER if y < task.start else task.limit - task.spent
        rows = min(edge - y, MAX_ROWS - packer.rows) - 1
        return Budget(rows, self._most - packer.nbytes, credit, SAMPLE_COST)

    def absorb(self, task: Task, rows: int, nbytes: int) -> None:
        """The drawer has packed ``rows`` samples of ``task`` within its budget."""
        self._packer.absorb(rows, nbytes)
        self._count(task, rows, nbytes)

    def _count(self, task: Task, rows: int, nbytes: int) -> None:
        segment = self._segment(task)
        segment.rows += rows
        segment.count += rows
        if task.y >= task.start:
            task.spent += nbytes + rows * SAMPLE_COST
        task.y += rows

    def add(self, task: Task, values: list[object], weigh: Callable[[list[object]], int]) -> bool:
        """Add sample ``task.y``. False when it was bad: then it is a hole, or the task is over.

        Raises what ``calc_batch_size`` raised, or code of the value itself; the sample is not added then.
        """
        segments = self._segments
        segment = segments[-1] if segments and segments[-1].task is task else self._segment(task)
        try:
            size = self._packer.add(values)
            if self._weighted:
                # calc_batch_size sees accepted samples only, so this one is checked to the end now
                if bad := self._packer.verify():
                    self._weights.append(0)  # the row goes when the chunk is cut
                    del bad
                else:
                    try:
                        self._weights.append(weigh(values))
                    except BaseException:
                        self._packer.withdraw()
                        raise
        except BadSample as error:
            self.bad(task, error)
            return False
        segment.rows += 1
        segment.count += 1
        task.y += 1
        self.last_cost = cost = size + SAMPLE_COST
        if task.y > task.start and (task.y > task.send_from or task.asked(task.y - 1)):
            task.spent += cost
        return True

    def add_next(
        self, task: Task, edge: int, wrap: Callable[[object], list[object]], weigh: Callable[[list[object]], int]
    ) -> bool:
        """Add what comes next of the task's block: one sample, as :meth:`add` does, or as many as may go together.
        ``edge``: the next one of the task."""
        block = task.block
        assert block is not None
        added = self._add_together(task, block, edge)
        if not added and block.left:
            added = self.add(task, wrap(block.next()), weigh)
        if not block.left:
            task.block = None
        return added

    def _add_together(self, task: Task, block: Block, edge: int) -> bool:
        packer = self._packer
        rows, room, credit, _ = self.budget(task, edge)
        laid = block.take(rows + 1, room, credit)  # these are all here: the last one need not be looked at
        if laid is None:
            return False
        before = packer.nbytes
        if packer.add_columns(laid) is None:
            block.give_back(laid.rows)
            return False
        self._count(task, laid.rows, packer.nbytes - before)
        return True

    def bad(self, task: Task, error: BadSample) -> None:
        """Sample ``task.y`` is bad, seen at once."""
        if not self._drop:
            self.fail(task, self._place(error, task, task.y))
            return
        segment = self._segment(task)
        segment.holes.append((task.y, error.slot, finding(error)))
        segment.count += 1
        self._holes += 1
        task.y += 1
        if task.y > task.start and task.y > task.send_from:
            task.spent += HOLE_COST

    def fail(self, task: Task, error: Error) -> None:
        """The file ends at ``task.y`` with ``error``."""
        segment = self._segment(task)
        segment.state, segment.error = RAISED, error
        task.done = True

    def end(self, task: Task) -> None:
        """The file ends at ``task.y``."""
        self._segment(task).state = ENDED
        task.done = True

    def cut(self, hold: Task | None = None) -> list[Packed]:
        """Everything added since the last cut, in as many chunks as it takes. Tasks that turn out bad are done.

        ``hold``: the task whose last sample, the very last one added, may not be sent: it becomes the task's hand.
        """
        last = self._packer.rows - 1
        packed = self._packer.cut()
        segments, self._segments = self._segments, []
        weights, self._weights = self._weights, []
        self._holes, self._enough = 0, MAX_ROWS
        bad = dict(packed.bad)
        if hold is not None and last not in bad:
            row = packed.columns.rows - 1
            hold.hand = Hand(packed.columns.take([row]), hold.y - 1, weights[last] if weights else 1, self.last_cost)
            segments[-1].rows -= 1
            segments[-1].count -= 1
        if bad and self._weighted:
            weights = [w for i, w in enumerate(weights) if i not in bad]
        kept: list[tuple[Part, Ints]] = []  # with its rows
        added = good = 0  # rows seen: as added, and as they lie in the columns
        for segment in segments:
            rows = segment.rows
            theirs = {i - added: bad[i] for i in range(added, added + rows) if i in bad} if bad else {}
            lo = good
            added += rows
            good += rows - len(theirs)
            if theirs:
                self._settle(segment, theirs)
            task = segment.task
            for piece in segment.pieces() if segment.holes else (segment,):
                part, which = self._part(piece, packed.columns.slice(lo, lo + piece.rows))
                if part is not None and (part.count or part.state != OPEN):
                    rows_of = which + lo
                    task.sent += int(packed.sample_bytes[rows_of].sum())
                    task.sent += SAMPLE_COST * part.rows + HOLE_COST * len(part.holes)
                    part.changed, task.changed = task.changed, False
                    kept.append((part, rows_of))
                lo += piece.rows
            task.spent = task.sent
        return self._chunks(kept, packed.columns, weights)

    def _chunks(self, kept: list[tuple[Part, Ints]], columns: Columns, weights: list[int]) -> list[Packed]:
        """The parts that are sent, each with its rows in ``columns``, as chunks whose headers fit."""
        groups: list[list[tuple[Part, Ints]]] = []
        size = ROOM
        for part, its in kept:
            size += part.wire_bytes
            if size > ROOM:
                groups.append([])
                size = part.wire_bytes
            groups[-1].append((part, its))
        chunks = []
        for group in groups:
            rows = np.concatenate([its for _, its in group])
            if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
                theirs = columns.slice(int(rows[0]), int(rows[-1]) + 1)
            else:
                theirs = columns.take(rows)
            own = [weights[i] for i in rows.tolist()] if self._weighted else None
            chunks.append(Packed([part for part, _ in group], theirs, own))
        return chunks

    def _settle(self, segment: Segment, bad: dict[int, BadSample]) -> int:
        """Make holes or one error of ``bad`` (by row of the segment); how many rows stay."""
        ordinals = segment.ordinals()
        task = segment.task
        if self._drop:
            for row, error in bad.items():
                segment.holes.append((int(ordinals[row]), error.slot, finding(error)))
            segment.holes.sort()
            segment.rows -= len(bad)
            return segment.rows
        row = min(bad)
        y = int(ordinals[row])
        segment.rows = row
        segment.count = y - segment.first
        segment.state, segment.error = RAISED, self._place(bad[row], task, y)
        task.done = True
        task.hand = None
        return row

    def _part(self, segment: Segment, columns: Columns) -> tuple[Part | None, Ints]:
        """The range of ``segment``, whose rows are ``columns``, and which of these rows are sent.

        None when an earlier attempt has committed it. A segment never lies on both sides of an edge of its task.
        """
        task = segment.task
        task.crcs = [
            *crc(columns, task.crcs[:-1]),
            crc32(b"".join(y.to_bytes(8, "little") for y, _, _ in segment.holes), task.crcs[-1]),
        ]
        reached = segment.first + segment.count
        which = _NONE
        if replay := segment.first < task.send_from:
            which = np.flatnonzero(np.isin(segment.ordinals(), task.recalled, assume_unique=True))
        if not self._may_go_on(task, segment.first, reached, segment.state, len(which)):
            task.done = True
            first = max(task.start, segment.first)
            error = to_wire(_not_repeated(task))
            return Part(task.file, task.attempt, first, 0, 0, RAISED, task.expected, [], error), _NONE
        state, error, sum_ = segment.state, _wire(segment.error), _folded(task.crcs)
        if segment.first < task.start and state == OPEN:
            return None, _NONE
        if segment.first < task.start:
            return Part(task.file, task.attempt, task.start, 0, 0, state, sum_, [], error), _NONE
        holes = [] if replay else [list(hole) for hole in segment.holes]
        which = which if replay else np.arange(segment.rows)
        return Part(
            task.file, task.attempt, segment.first, segment.count, len(which), state, sum_, holes, error
        ), which  # fmt: skip

    def _may_go_on(self, task: Task, first: int, reached: int, state: int, given: int) -> bool:
        """Whether the file is, from ``first`` up to ``reached``, what it was before, as far as can be told there.

        If it is not, and that is to be borne with, it is noted. Samples that a saved pool names cannot be missing:
        ``given`` of them are there.
        """
        if first >= task.start and given < task.count_asked(first, reached):
            return False
        if state != OPEN and reached < task.required:
            if not self._lenient or task.count_asked(max(reached, task.start), NEVER):
                return False
            task.changed = True
        differs = reached == task.start and task.start and _folded(task.crcs) != task.expected
        differs = differs or (reached == task.check and task.check and _folded(task.crcs) != [task.crc])
        if not differs:
            return True
        task.changed = self._lenient
        return self._lenient

    def hand_part(self, task: Task, hand: Hand) -> Packed:
        """A chunk of nothing but the sample that ``task`` held in hand."""
        task.crcs = [*crc(hand.columns, task.crcs[:-1]), task.crcs[-1]]
        task.sent += hand.cost
        task.spent = task.sent
        part = Part(task.file, task.attempt, hand.ordinal, 1, 1, OPEN, _folded(task.crcs), [], {})
        if not self._may_go_on(task, hand.ordinal, hand.ordinal + 1, OPEN, 1):
            task.done = True
            part = Part(task.file, task.attempt, hand.ordinal, 0, 0, RAISED, [], [], to_wire(_not_repeated(task)))
            return Packed([part], hand.columns.slice(0, 0), [] if self._weighted else None)
        part.changed, task.changed = task.changed, False
        return Packed([part], hand.columns, [hand.weight] if self._weighted else None)


def _not_repeated(task: Task) -> NotRepeatable:
    return NotRepeatable(
        f"file {task.context.filename}: process() did not repeat itself: run again, its first {task.required} samples "
        "are not those that it gave before; make it depend on the file alone (settings.rng is seeded per file for "
        "random choices)"
    )


def _folded(crcs: list[int]) -> list[int]:
    """Running checksums as the one number that travels, however many columns there are."""
    data = b"".join(value.to_bytes(4, "little") for value in crcs)
    return [int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "little")]


def _wire(error: Error | None) -> dict[str, Any]:
    return {} if error is None else to_wire(error)
