"""Files whose samples become known in random pieces at random times, and a store that remembers names.

What the merge reads from when a test wants to know that neither timing nor chunking shows in the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from pydp2.data.columns.sample_set import SampleSet
from pydp2.errors import ProviderError
from pydp2.order.batcher import BatchCut, Batcher, BlockedOnFile, PassDone, PassFailed
from pydp2.order.bucketing import make_batcher
from pydp2.order.file_order import files_in_order
from pydp2.order.plan import BucketPlan, PassPlan
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun
from pydp2.order.snapshot import UNREACHED, FilePosition, PoolChecks, Reread

from .oracle import Expected, File, Options, Row

SLOT = 3


class Names:
    """Columns of a chunk, reduced to the names of its samples, and their lengths in the one slot that has any."""

    def __init__(self, names: Sequence[tuple[int, int]], lengths: Sequence[int]) -> None:
        self.names = names
        self._lengths = lengths

    def slice(self, lo: int, hi: int) -> Names:
        return Names(self.names[lo:hi], self._lengths[lo:hi])

    def lengths(self, slot: int) -> Any:
        assert slot == SLOT
        return np.array(self._lengths, np.int64)


class NameStore:
    """Gives out row ids, the freed ones again and in any order, as the real store may. They may be any numbers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._free: list[int] = []
        self._top = 0
        self._rows: dict[int, tuple[int, int]] = {}

    def append(self, columns: Names) -> Any:
        ids = []
        for name in columns.names:
            if not self._free:
                self._free = [(-1) ** n * n << 20 for n in range(self._top, self._top + 8)]
                self._random.shuffle(self._free)
                self._top += 8
            ids.append(self._free.pop())
            self._rows[ids[-1]] = name
        return np.array(ids, np.int64)

    def take(self, rows: Any, padding: int) -> list[tuple[int, int]]:
        names = [self._rows[row] for row in rows.tolist()]
        for row in rows.tolist()[: len(rows) - padding]:
            del self._rows[row]
            self._free.append(row)
        return names

    def __len__(self) -> int:
        return len(self._rows)


class Arrivals:
    """The source of a merge: each look at a file may find more of it than the last."""

    def __init__(self, files: Sequence[File], random: Random, skip: bool, chunk: int) -> None:
        self._files, self._random, self._skip, self._chunk = files, random, skip, chunk
        self._runs: dict[int, list[SampleRun]] = {}
        self._next: dict[int, int] = {}
        self._closed: set[int] = set()
        self.bound: list[int] = []
        self.finished: list[int] = []
        self.merged_counts = (0, 0)
        self._recalls: dict[int, Reread] = {}
        self._taken: dict[int, int] = {}

    def reveal(self, number: int) -> None:
        """One more chunk of a file, or its end, becomes known."""
        items = self._files[number].items
        lo = self._next.setdefault(number, 0)
        hi = min(len(items), lo + self._random.randint(1, self._chunk))
        self._next[number] = hi
        if lo == hi:
            self._closed.add(number)
            return
        recall = self._recalls.get(number)
        known = [
            (y, items[y]) for y in range(lo, hi) if recall is None or y >= recall.start or y in recall.sample_indices
        ]
        rows: list[tuple[int, Row]] = [(y, item) for y, item in known if item is not None]
        if rows:
            weights = np.array([row.weight for _, row in rows], np.int64)
            run = SampleRun(
                Names([(number, y) for y, _ in rows], [row.length for _, row in rows]),
                0,
                len(rows),
                np.array([y for y, _ in rows], np.int64),
                np.array([row.size for _, row in rows], np.int64),
                None if (weights == 1).all() else weights,
            )
            self._runs.setdefault(number, []).append(run)

    def next_run(self, file: int) -> Any:
        assert file in self.bound
        assert file not in self.finished
        if self._random.random() < 0.3:
            self.reveal(file)
        if self._runs.get(file):
            return self._runs[file][0].view()
        if file not in self._closed:
            return WAIT
        if self._files[file].raises and not self._skip:
            return FileFailure(ProviderError(f"raised {file} {len(self._files[file].items)}"), file)
        return END

    def plain_run(self, file: int) -> Any:
        front = self.next_run(file)
        return front if isinstance(front, SampleRun) and front.weights is None else None

    def consume(self, file: int, count: int) -> None:
        run = self._runs[file][0]
        run.lo += count
        self._taken[file] = int(run.sample_indices[run.lo - 1]) + 1
        assert run.lo <= run.hi
        if run.lo == run.hi:
            self._runs[file].pop(0)

    def label(self, file: int) -> str:
        return str(file)

    def open_file(self, file: int, reread: Reread | None = None) -> None:
        self.bound.append(file)
        if reread is not None:
            self._recalls[file] = reread
            if reread.start != UNREACHED:
                self._taken[file] = reread.start

    def position(self, file: int) -> FilePosition:
        return FilePosition(file, self._taken.get(file, 0), 0, [])

    def compare(self, file: int) -> Any:
        recall = self._recalls[file]
        return END if self._next.get(file, 0) >= recall.checksum_index else WAIT

    def note_snapshot(self) -> None:
        pass

    def pool_checks(self, samples: SampleSet) -> PoolChecks:
        files = samples.files
        ends = np.array([len(self._files[file].items) * (file in self.finished) for file in files.tolist()], np.int64)
        return PoolChecks(ends, ends + files)

    def close_file(self, file: int) -> None:
        recall = self._recalls.get(file)
        assert recall is None or self._next.get(file, 0) >= recall.checksum_index
        assert recall is None or recall.crcs in ([], [recall.checksum_index + file])
        self.finished.append(file)


def next_outcome(made: Batcher, source: Arrivals) -> BatchCut | PassDone | PassFailed:
    """What the stream gives next; of each file that it waits for, more is found."""
    while isinstance(outcome := made.next(), BlockedOnFile):
        source.reveal(outcome.file)
    return outcome


def plan_of(
    files: Sequence[File],
    options: Options,
    pass_id: int = 0,
    relaxed: bool = False,
    bounds: tuple[int, ...] | None = None,
) -> PassPlan:
    """The plan that a job makes of these options, and of automatic ``bounds`` where it knows them."""
    automatic = options.bounds is None
    buckets = BucketPlan(SLOT, options.bounds or bounds, automatic, options.buckets, options.group)
    return PassPlan(
        seed=options.seed,
        pass_id=pass_id,
        files=len(files),
        batch_size=options.batch_size,
        shuffle=options.shuffle,
        interleave=options.interleave,
        pool_size=options.pool_size,
        min_pool_size=options.min_pool_size,
        can_over_batch_size=options.can_over,
        pool_bytes=options.pool_bytes,
        wait_for_all=options.cached and options.shuffle and pass_id > 0,
        last_batch=options.last_batch,
        relaxed=relaxed,
        buckets=buckets if options.buckets else None,
    )


def stream(
    files: Sequence[File],
    options: Options,
    pass_id: int = 0,
    *,
    timing: int = 0,
    chunk: int = 7,
    relaxed: bool = False,
    sizes: list[int] | None = None,
    bounds: tuple[int, ...] | None = None,
) -> Expected:
    """What the stream makes of ``files`` when they arrive as ``timing`` says, in the words of the oracle."""
    random = Random(timing)
    plan = plan_of(files, options, pass_id, relaxed, bounds)
    source = Arrivals(files, random, options.skip, chunk)
    store = NameStore(random)
    order = files_in_order(plan)
    made = make_batcher(plan, source, store, order)
    found = Expected()
    while True:
        outcome = made.next()
        found.bounds = made.pool.bounds
        match outcome:
            case BlockedOnFile(file):
                assert file in source.bound
                for number in {file, *random.sample(range(len(files)), min(2, len(files)))}:
                    source.reveal(number)
            case BatchCut(index, rows, size, pool_weight, padding):
                assert index == len(found.batches)
                found.batches.append(store.take(rows, padding))
                found.pool_weights.append(pool_weight)
                found.padding += padding
                if sizes is not None:
                    sizes.append(size)
            case PassDone(batches):
                assert batches == len(found.batches)
                assert source.bound == order.tolist()
                assert sorted(source.finished) == list(range(len(files)))
                assert len(store) == 0 or options.last_batch == "drop"
                assert isinstance(made.next(), PassDone)  # and it stays so
                return found
            case PassFailed(error) as failed:
                assert made.next() == failed
                found.error = _named(str(error))
                return found


def _named(text: str) -> tuple[str, int, int]:
    words = text.replace(",", "").replace(":", "").split()
    if words[0] == "raised":
        return "raised", int(words[1]), int(words[2])
    assert (words[0], words[2]) == ("file", "sample"), text
    return "too large", int(words[1]), int(words[3])
