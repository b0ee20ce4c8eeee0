"""Files as lists of what generators yield, what must come of them, and a runner that does everything at random."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from pydp2.data.columns.batch import Ragged
from pydp2.data.columns.columns import frame_count
from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.packers.slot_order import SlotOrder
from pydp2.data.schema.input_types import Slots, integer_value, integer_value_sequence
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import ProviderError, from_wire
from pydp2.host.worker.chunk_builder import MAX_BLOCKED, ChunkBuilder, ChunkContent
from pydp2.host.worker.task import FileTask
from pydp2.host.worker.yielded_samples import YieldedSamples
from pydp2.order.sample_source import FileFailure, SampleRun
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import FileAssignment, FileRange
from pydp2.providers.error_location import with_location
from pydp2.server.dispatch.ledger import FileLedger
from pydp2.server.workers.chunk_decoder import decode_chunk

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


def together(some: Sequence[Yield]) -> ManySamples:
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
    """Of one file: the samples by sample index (id, words, weight), the sample indices of dropped samples, and how it
    ended."""

    samples: list[tuple[int, int, tuple[int, ...], int]] = field(default_factory=list)
    dropped_samples: list[int] = field(default_factory=list)
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
            out.dropped_samples.append(y)
        else:
            number, words = values_of(what)
            out.samples.append((y, number, tuple(words), number % 4 if weighted else 1))
    raise AssertionError("a file must end")


def schema(*, drop: bool, weighted: bool, slots: Slots = SLOTS) -> Schema:
    return Schema(
        slots=slots, shuffle=True, pool_size=-1, min_pool_size=-1, can_over_batch_size=True, weighted=weighted, cache=0,
        check=drop, check_fail_continue=drop,
    )  # fmt: skip


class Ledger:
    """The server's side: what is committed of each file, as the real ledger has it, and the samples that came."""

    def __init__(self, declared: Schema, starts: Sequence[FileLedger]) -> None:
        self.declared = declared
        self.entries = list(starts)
        self.found = [Outcome(length=entry.committed) for entry in starts]
        self.marks: list[list[tuple[int, list[int], int]]] = [[] for _ in starts]  # committed, crcs, spent
        self.errors: dict[int, Exception] = {}
        self.changed = [0 for _ in starts]  # how often it was told

    def receive(self, packed: ChunkContent) -> None:
        """As a chunk over the wire."""
        parts = [part.to_wire() for part in packed.ranges]
        chunk = m.Chunk(packed.columns.rows, parts, [[1 << 60] * 4] * MAX_BLOCKED, 1 << 60, 1 << 60)
        frames = [frame.tobytes() for frame in packed.columns.frames()] if packed.columns.rows else []
        if packed.weights is not None and packed.columns.rows:
            frames.append(b"".join(weight.to_bytes(8, "little") for weight in packed.weights))
        message, body = m.decode([m.encode(chunk), *frames])
        assert isinstance(message, m.Chunk)
        for part, run in decode_chunk(message, [memoryview(frame) for frame in body], self.declared):
            self.take(part, run)

    def take(self, part: FileRange, run: SampleRun | None) -> None:
        """Commit a range, if it comes from the attempt that is valid."""
        entry = self.entries[part.file]
        if not entry.accepts(WORKER, part.attempt):
            return
        entry.commit(part, run)
        self.changed[part.file] += part.did_not_repeat
        self.marks[part.file].append((entry.committed, list(entry.crcs), entry.spent_bytes))
        found = self.found[part.file]
        found.dropped_samples += [y for y, _, _ in part.dropped]
        found.length = entry.committed
        if run is not None:
            rows = run.columns.slice(run.lo, run.hi).samples()
            weights = run.weights[run.lo : run.hi].tolist() if run.weights is not None else [1] * len(rows)
            sample_indices = run.sample_indices[run.lo : run.hi].tolist()
            for y, (number, words), weight in zip(sample_indices, rows, weights, strict=True):
                found.samples.append((y, number, tuple(words), weight))
        if part.error:
            self.errors[part.file] = from_wire(part.error)
            entry.end_early(from_wire(part.error), skip=False)
        found.end = "open" if entry.tail is None else "raised" if isinstance(entry.tail, FileFailure) else "ended"


def run_at_random(
    choose: random.Random,
    files: Sequence[Sequence[Yield]],
    declared: Schema,
    starts: Sequence[FileLedger] | None = None,
    cuts: float = 0.1,
    *,
    lenient: bool = False,
    blocks: float = 0.0,
) -> Ledger:
    """All files to their ends: files take turns, chunks are cut and samples held in hand at random.

    ``blocks``: how often samples come many at once.
    """
    ledger = Ledger(declared, starts or [fresh(i) for i in range(len(files))])
    builder = ChunkBuilder(
        declared, lambda error, task, y: with_location(error, f"f{task.file}", y), allows_changed_samples=lenient
    )
    tasks = [task_of(entry, declared) for entry in ledger.entries]
    hand: FileTask | None = None  # the task whose last sample was the last one added, so that it could be held

    def cut(hold: FileTask | None = None) -> None:
        for packed in builder.finish(hold):
            ledger.receive(packed)
        for task in tasks:
            entry = ledger.entries[task.file]
            if entry.worker is not None and not entry.ended and not builder.has_samples_of(task):
                assert task.sent_bytes == entry.spent_bytes, "worker and ledger count the same costs"

    while True:
        open_ = [task for task in tasks if not task.is_over or task.unsent is not None]
        if not open_:
            break
        if choose.random() < cuts:
            cut(hand if hand is not None and choose.random() < 0.5 and not hand.is_replaying else None)
            hand = None
            continue
        task = choose.choice(open_)
        if task.unsent is not None:
            if choose.random() < 0.3:
                ledger.receive(builder.unsent_chunk(task, task.unsent))
                task.unsent = None
            continue
        what = files[task.file][task.next_index]
        hand = None
        if what[0] == "end":
            builder.end_file(task)
        elif what[0] == "raise":
            builder.fail_file(task, ProviderError(f"file f{task.file}, sample {task.next_index}: process raised"))
        else:
            if task.yielded is None and choose.random() < blocks:
                some = list(
                    itertools.takewhile(
                        lambda each: each[0] not in ("end", "raise"), files[task.file][task.next_index :]
                    )
                )
                task.yielded = YieldedSamples(
                    together(some[: choose.choice([1, 10, 100])]), declared.slots, is_single_slot=False
                )
                task.limit = choose.choice([1 << 60, task.spent_bytes + 1000])
            try:
                if task.yielded is not None:
                    before = task.next_index
                    added = builder.add_yielded(task, task.next_stop, SlotOrder(declared.slots).arrange, weigh_of(what))
                    added = added and task.next_index == before + 1  # many at once are within what may be sent
                else:
                    added = builder.add_sample(task, values_of(what), weigh_of(what))
                if added and task.next_index > task.start:
                    hand = task
            except ProviderError as error:
                builder.fail_file(task, with_location(error, f"f{task.file}", task.next_index))
        if task.next_index == task.start or builder.is_full:
            cut()
            hand = None
    cut()
    assert builder.is_empty
    assert builder.finish() == []
    return ledger


def fresh(file: int) -> FileLedger:
    entry = FileLedger(file, file)
    entry.assign(WORKER, file + 1)
    return entry


def again(file: int, mark: tuple[int, list[int], int]) -> FileLedger:
    """The next attempt of ``file`` from ``mark`` on."""
    entry = FileLedger(file, file, committed=mark[0], crcs=mark[1], spent_bytes=mark[2])
    entry.assign(WORKER, file + 1001)
    return entry


def task_of(entry: FileLedger, declared: Schema) -> FileTask:
    assignment = FileAssignment(
        entry.file,
        entry.attempt,
        entry.position,
        entry.committed,
        entry.spent_bytes,
        1 << 60,
        1 << 60,
        True,
        entry.crcs,
    )
    task = FileTask.from_assignment(FileAssignment.from_wire(assignment.to_wire()), frame_count(declared.slots) + 1)
    task.context = SimpleNamespace(filename=f"f{entry.file}")
    return task
