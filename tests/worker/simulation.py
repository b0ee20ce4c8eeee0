"""Files as lists of what generators yield, what must come of them, and a runner that does everything at random."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from pydp2.errors import ProviderError, from_wire
from pydp2.inputs import (
    Ragged,
    Rows,
    Slots,
    Wrapper,
    frame_count,
    integer_value,
    integer_value_sequence,
    rows,
)
from pydp2.inputs.declaration import Declaration
from pydp2.order.source import Failure, Run
from pydp2.protocol import messages as m
from pydp2.protocol.ranges import Assignment, Part
from pydp2.providers.where import place
from pydp2.server.chunks import ranges
from pydp2.server.ledger import Entry
from pydp2.worker.block import Block
from pydp2.worker.builder import Builder, Packed
from pydp2.worker.segment import MAX_BLOCKED
from pydp2.worker.task import Task

SLOTS = Slots((integer_value(100), integer_value_sequence(50)), ("id", "words"))
WORKER = 1

Yield = tuple[str, int]
"""("good", n), ("bad type", n), ("bad value", n), ("bad weight", n); a file ends with ("end", 0) or ("raise", 0)."""


def values_of(what: Yield) -> list[Any]:
    kind, n = what
    words = [k % 50 for k in range(n % 5)]
    match kind:
        case "bad type":
            return [None, words]
        case "bad value":
            return [n % 100, [*words, 50]]
    return [n % 100, words]


def together(some: Sequence[Yield]) -> Rows:
    """The samples of ``some`` in one yield: as arrays, if they can be."""
    samples = [values_of(what) for what in some]
    numbers, words = [sample[0] for sample in samples], [sample[1] for sample in samples]
    if None in numbers:
        return rows(id=numbers, words=words)
    flat = np.array([word for each in words for word in each], np.int64)
    return rows(id=np.array(numbers, np.int64), words=Ragged(flat, np.cumsum([0, *map(len, words)])))


def weigh_of(what: Yield) -> Any:
    def weigh(values: list[Any]) -> int:
        if what[0] == "bad weight":
            raise ProviderError("calc_batch_size raised")
        return int(values[0]) % 4

    return weigh


@dataclass
class Outcome:
    """Of one file: the samples by ordinal (id, words, weight), the ordinals of holes, and how it ended."""

    samples: list[tuple[int, int, tuple[int, ...], int]] = field(default_factory=list)
    holes: list[int] = field(default_factory=list)
    end: str = "open"
    length: int = 0


def expected(file: Sequence[Yield], *, drop: bool, weighted: bool) -> Outcome:
    """What must come of ``file``."""
    out = Outcome()
    for y, what in enumerate(file):
        kind = what[0]
        out.length = y
        if kind == "end":
            out.end = "ended"
            return out
        if kind == "raise" or (kind == "bad weight" and weighted) or (kind.startswith("bad ") and not drop
                                                                      and kind != "bad weight"):  # fmt: skip
            out.end = "raised"
            return out
        if kind in ("bad type", "bad value"):
            out.holes.append(y)
        else:
            number, words = values_of(what)
            out.samples.append((y, number, tuple(words), number % 4 if weighted else 1))
    raise AssertionError("a file must end")


def declaration(*, drop: bool, weighted: bool, slots: Slots = SLOTS) -> Declaration:
    return Declaration(
        slots=slots, shuffle=True, pool_size=-1, min_pool_size=-1, can_over_batch_size=True, weighted=weighted, cache=0,
        check=drop, check_fail_continue=drop,
    )  # fmt: skip


class Ledger:
    """The server's side: what is committed of each file, as the real ledger has it, and the samples that came."""

    def __init__(self, declared: Declaration, starts: Sequence[Entry]) -> None:
        self.declared = declared
        self.entries = list(starts)
        self.found = [Outcome(length=entry.committed) for entry in starts]
        self.marks: list[list[tuple[int, list[int], int]]] = [[] for _ in starts]  # committed, crcs, spent
        self.errors: dict[int, Exception] = {}
        self.changed = [0 for _ in starts]  # how often it was told

    def receive(self, packed: Packed) -> None:
        """As a chunk over the wire."""
        parts = [part.to_wire() for part in packed.parts]
        chunk = m.Chunk(packed.columns.rows, parts, [[1 << 60] * 4] * MAX_BLOCKED, 1 << 60, 1 << 60)
        frames = [frame.tobytes() for frame in packed.columns.frames()] if packed.columns.rows else []
        if packed.weights is not None and packed.columns.rows:
            frames.append(b"".join(weight.to_bytes(8, "little") for weight in packed.weights))
        message, body = m.decode([m.encode(chunk), *frames])
        assert isinstance(message, m.Chunk)
        for part, run in ranges(message, [memoryview(frame) for frame in body], self.declared):
            self.take(part, run)

    def take(self, part: Part, run: Run | None) -> None:
        """Commit a range, if it comes from the attempt that is valid."""
        entry = self.entries[part.file]
        if not entry.accepts(WORKER, part):
            return
        entry.commit(part, run)
        self.changed[part.file] += part.changed
        self.marks[part.file].append((entry.committed, list(entry.crcs), entry.spent))
        found = self.found[part.file]
        found.holes += [y for y, _, _ in part.holes]
        found.length = entry.committed
        if run is not None:
            rows = run.columns.slice(run.lo, run.hi).samples()
            weights = run.weights[run.lo : run.hi].tolist() if run.weights is not None else [1] * len(rows)
            ordinals = run.ordinals[run.lo : run.hi].tolist()
            for y, (number, words), weight in zip(ordinals, rows, weights, strict=True):
                found.samples.append((y, number, tuple(words), weight))
        if part.error:
            self.errors[part.file] = from_wire(part.error)
            entry.tail = Failure(from_wire(part.error))
        found.end = "open" if entry.tail is None else "raised" if isinstance(entry.tail, Failure) else "ended"


def run_at_random(
    choose: random.Random,
    files: Sequence[Sequence[Yield]],
    declared: Declaration,
    starts: Sequence[Entry] | None = None,
    cuts: float = 0.1,
    *,
    lenient: bool = False,
    blocks: float = 0.0,
) -> Ledger:
    """All files to their ends: files take turns, chunks are cut and samples held in hand at random.

    ``blocks``: how often samples come many at once.
    """
    ledger = Ledger(declared, starts or [fresh(i) for i in range(len(files))])
    builder = Builder(declared, lambda error, task, y: place(error, f"f{task.file}", y), lenient=lenient)
    tasks = [task_of(entry, declared) for entry in ledger.entries]
    hand: Task | None = None  # the task whose last sample was the last one added, so that it could be held

    def cut(hold: Task | None = None) -> None:
        for packed in builder.cut(hold):
            ledger.receive(packed)
        for task in tasks:
            entry = ledger.entries[task.file]
            if entry.worker is not None and not entry.ended and not builder.holds(task):
                assert task.sent == entry.spent, "worker and ledger count the same costs"

    while True:
        open_ = [task for task in tasks if not task.done or task.hand is not None]
        if not open_:
            break
        if choose.random() < cuts:
            cut(hand if hand is not None and choose.random() < 0.5 and not hand.replaying else None)
            hand = None
            continue
        task = choose.choice(open_)
        if task.hand is not None:
            if choose.random() < 0.3:
                ledger.receive(builder.hand_part(task, task.hand))
                task.hand = None
            continue
        what = files[task.file][task.y]
        hand = None
        if what[0] == "end":
            builder.end(task)
        elif what[0] == "raise":
            builder.fail(task, ProviderError(f"file f{task.file}, sample {task.y}: process raised"))
        else:
            if task.block is None and choose.random() < blocks:
                some = list(
                    itertools.takewhile(lambda each: each[0] not in ("end", "raise"), files[task.file][task.y :])
                )
                task.block = Block(together(some[: choose.choice([1, 10, 100])]), declared.slots, single=False)
                task.limit = choose.choice([1 << 60, task.spent + 1000])
            try:
                if task.block is not None:
                    before = task.y
                    added = builder.add_next(task, task.edge, Wrapper(declared.slots).wrap, weigh_of(what))
                    added = added and task.y == before + 1  # many at once are within what may be sent
                else:
                    added = builder.add(task, values_of(what), weigh_of(what))
                if added and task.y > task.start:
                    hand = task
            except ProviderError as error:
                builder.fail(task, place(error, f"f{task.file}", task.y))
        if task.y == task.start or builder.full:
            cut()
            hand = None
    cut()
    assert builder.empty
    assert builder.cut() == []
    return ledger


def fresh(file: int) -> Entry:
    entry = Entry(file, file, attempt=file + 1)
    entry.worker = WORKER
    return entry


def again(file: int, mark: tuple[int, list[int], int]) -> Entry:
    """The next attempt of ``file`` from ``mark`` on."""
    entry = Entry(file, file, attempt=file + 1001, committed=mark[0], crcs=mark[1], spent=mark[2])
    entry.worker = WORKER
    return entry


def task_of(entry: Entry, declared: Declaration) -> Task:
    assignment = Assignment(
        entry.file, entry.attempt, entry.position, entry.committed, entry.spent, 1 << 60, 1 << 60, True, entry.crcs
    )
    task = Task.of(Assignment.from_wire(assignment.to_wire()), frame_count(declared.slots) + 1)
    task.context = SimpleNamespace(filename=f"f{entry.file}")
    return task
