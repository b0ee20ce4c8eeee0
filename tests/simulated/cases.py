"""What a simulation is about: files as scripts, options, what may happen; and the user's code, which follows the
scripts. Random cases by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from pydp2 import CacheType, integer_value, integer_value_sequence, provider
from pydp2.data.columns.block_list import BlockList
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import Slots
from pydp2.errors import Error
from pydp2.order.plan import BucketPlan
from pydp2.server.jobs.plan import JobPlan

if TYPE_CHECKING:
    from .workers import Worker

TYPES = {"file": integer_value(1 << 20), "y": integer_value(1 << 20), "weight": integer_value(100),
         "data": integer_value_sequence(2)}  # fmt: skip
CHANGED = 1 << 15
"""What is added to a sample that changes."""


def weight(values: list[Any]) -> int:
    return int(values[2])


@cache
def sample_bytes(values: int) -> int:
    """Bytes of the columns of a sample with so many values in its sequence."""
    return Packer(Slots(tuple(TYPES.values()), tuple(TYPES)), strict=True).add([0, 0, 0, [1] * values])


@dataclass(frozen=True)
class Sample:
    weight: int = 1
    values: int = 0  # in its sequence: what makes it small or large


@dataclass(frozen=True)
class Bad:
    late: bool = False  # its defect shows only when a chunk is judged


@dataclass(frozen=True)
class Script:
    """What ``process`` does with one file."""

    items: tuple[Sample | Bad, ...] = ()
    raises: bool = False
    poison: int | None = None  # asking for this sample kills the worker


@dataclass(frozen=True)
class Case:
    """One simulation: the data, the options, and what the scheduler may do."""

    files: tuple[Script, ...]
    plan: JobPlan
    seed: int
    workers: int = 2
    budget: int = 1 << 20
    pool_size: int = -1
    min_pool_size: int = -1
    can_over: bool = True
    skip: bool = False
    error_budget: float | None = None
    cache_limit: int | None = None
    kills: int = 0
    leaves: int = 0
    rewinds: int = 0  # so often the pass goes back to a saved state, on a service that has only just started
    begins: str = ""  # what else the provider takes: "start", or "indices" as well
    change: str = ""  # what of a file is another when the pass goes back: "value", "shorter", "longer"
    slow_starts: bool = False
    hung_starts: int = 0  # of the first workers so many never get ready
    passes: int = 1
    ranks: int = 1  # of the first job
    peers: int = 1  # trainers of each of its ranks
    others: tuple[JobPlan, ...] = ()  # jobs beside the first, over the same files
    sleepers: tuple[int, ...] = ()  # jobs whose trainers stop asking until all others are through
    quitters: tuple[int, ...] = ()  # jobs whose trainers leave for good
    blocked: frozenset[tuple[int, int]] = frozenset()  # files and sample indices that are never delivered

    @property
    def trainers(self) -> int:
        """Number of trainers of the first job."""
        return self.ranks * self.peers

    @property
    def block_list(self) -> BlockList:
        return BlockList.of_samples(*np.array(sorted(self.blocked), np.int64).reshape(-1, 2).T)


def script(random: Random, kind: str, longest: int) -> Script:
    """A random file."""
    count = random.choice([0, 0, 1, 2, random.randint(0, 12), random.randint(0, longest)])
    large = [0, 0, 1, 5, 40, 3000] if kind == "large" else [0, 0, 1, 5]
    weights = [0, 1, 1, 2, 5] if kind == "weights" else [1]
    items = tuple(
        Bad(random.random() < 0.5)
        if random.random() < (0.4 if kind == "holes" else 0.05)
        else Sample(random.choice(weights), random.choice(large))
        for _ in range(count)
    )
    ends = kind in ("poison", "raises")
    return Script(
        items,
        raises=ends and random.random() < 0.1,
        poison=random.randint(0, count) if kind == "poison" and random.random() < 0.2 else None,
    )


def blocked(seed: int, files: Sequence[Script]) -> frozenset[tuple[int, int]]:
    """Random samples of ``files``, one of them behind the end of its file; often none."""
    random = Random(f"blocked {seed}")
    share = random.choice([0, 0, 0.05, 0.3, 0.9])
    names = [(number, y) for number, script in enumerate(files) for y in range(len(script.items) + 1)]
    return frozenset(name for name in names if random.random() < share)


def buckets(seed: int) -> BucketPlan:
    """Random ones, by the sequence."""
    random = Random(f"buckets {seed}")
    bounds = random.choice([None, None, (1,), (1, 5), (2, 30, 50)])
    count = len(bounds) + 1 if bounds else random.choice([2, 4])
    return BucketPlan(3, bounds, bounds is None, count, random.choice([1, 1, 2, 3]))


def case(seed: int, **fixed: object) -> Case:
    """A random simulation."""
    random = Random(f"case {seed}")
    kind = random.choice(["plain", "plain", "weights", "holes", "large", "poison", "raises"])
    longest = random.choice([20, 60, 200])
    files = tuple(script(random, kind, longest) for _ in range(random.choice([0, 1, 3, 10, 30])))
    plan = JobPlan(
        batch_size=random.choice([1, 3, 8, 30]),
        seed=random.randint(0, 9),
        shuffle=random.random() < 0.8,
        order="relaxed" if random.random() < 0.1 else "strict",
        interleave=random.choice([1, 2, 4, 16]),
        pool_bytes=random.choice([300, 4000, 1 << 30, 1 << 30]) if kind != "large" else 1 << 30,
        last_batch=random.choice(["keep", "keep", "drop", "pad"]),
        origin=True,
    )
    values = {
        "files": files,
        "plan": plan,
        "seed": seed,
        "workers": random.choice([1, 2, 3, 8]),
        "budget": random.choice([64, 500, 2000, 20_000, 1 << 20]),
        "pool_size": random.choice([-1, -1, 10, 100]),
        "min_pool_size": random.choice([-1, 1, 20]),
        "can_over": kind != "weights" or random.random() < 0.5,
        "skip": kind in ("poison", "raises") and random.random() < 0.7,
        "kills": random.choice([0, 0, 2, 10]),
        "leaves": random.choice([0, 0, 0, 2]),
        "slow_starts": random.random() < 0.3,
        "cache_limit": random.choice([None, None, 0, 500, 1 << 30]),
        "passes": random.choice([1, 1, 3]),
    }
    values["hung_starts"] = random.choice([0, 0, 1, 8]) if values["workers"] == 8 else random.choice([0, 0, 1])
    values["error_budget"] = random.choice([None, None, 0, 2, 12, 40, 0.05, 0.2, 0.4])
    values["blocked"] = blocked(seed, files)
    return Case(**(values | fixed))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Change:
    """Change of a ``file``, from sample ``y`` on. ``merged``: the merge had met this at the state that is loaded."""

    file: int
    y: int
    merged: bool


@dataclass
class Outcome:
    """What a trainer got of one pass. ``died``: in it, and the next process was given another pass, so that it may not
    know of an error."""

    pass_id: int
    batches: list[list[tuple[int, int]]] = field(default_factory=list)
    pool_weights: list[int] = field(default_factory=list)
    paddings: list[int] = field(default_factory=list)
    error: Error | None = None
    is_complete: bool = False
    died: bool = False
    dropped: int = 0
    early_ends: list[tuple[int, int, str]] = field(default_factory=list)
    losses: list[tuple[int, int]] = field(default_factory=list)  # each when it was first reported
    cached: frozenset[int] = frozenset()  # files that the cache had when it began
    bounds: tuple[int, ...] | None = None  # of buckets, known when it began

    def cut(self, count: int) -> None:
        """Forget what came behind ``count`` batches."""
        del self.batches[count:], self.pool_weights[count:], self.paddings[count:]
        self.is_complete, self.error, self.died = False, None, False


class ScriptedWorld:
    """A world in which workers run the scripts of ``case``, and die as they say, or by chance while ``next()`` runs."""

    def __init__(self, case: Case, random: Random) -> None:
        self.case, self.random = case, random
        self.names = [str(i) for i in range(len(case.files))]
        self.kills = case.kills
        self.deaths: Counter[tuple[int, int]] = Counter()
        self.change: Change | None = None

    def note_opened(self, file: int) -> None:
        """A worker opens ``file``."""

    def provider(self, worker: Worker | None) -> Any:
        """Return the started provider of ``worker``; None: only its schema is needed."""
        case = self.case

        def process(settings: Any, filename: str, start: int = 0, indices: Any = None) -> Iterator[Any]:
            number = int(filename)
            script, change = case.files[number], self.change
            items, at = script.items, change.y if change is not None and change.file == number else -1
            if at >= 0 and case.change != "value":
                items = (*items, Sample()) if case.change == "longer" else items[:at]
            self.note_opened(number)
            ys = range(start, len(items) + 1) if indices is None else [y for y in indices.tolist() if y < len(items)]
            for y, item in ((y, (*items, None)[y]) for y in ys):
                self._run_next(worker, script, number, y)
                if isinstance(item, Sample):
                    shown = y + CHANGED * (y == at and case.change == "value")
                    yield {"file": number, "y": shown, "weight": item.weight, "data": [1] * item.values}
                elif isinstance(item, Bad):
                    yield {"file": number, "y": 1 << 30 if item.late else None, "weight": 0, "data": []}
            if script.raises:
                raise LookupError("as the script says")

        def process_from(settings: Any, filename: str, start: int) -> Iterator[Any]:
            return process(settings, filename, start)

        def process_whole(settings: Any, filename: str) -> Iterator[Any]:
            return process(settings, filename)

        return provider(
            input_types=TYPES, pool_size=case.pool_size, min_pool_size=case.min_pool_size, should_shuffle=True,
            can_over_batch_size=case.can_over, calc_batch_size=weight, check=True, check_fail_continue=True,
            cache=CacheType.NO_CACHE if case.cache_limit is None else CacheType.CACHE_PASS_IN_MEM,
        )({"": process_whole, "start": process_from, "indices": process}[case.begins]).start()  # fmt: skip

    def _run_next(self, worker: Worker | None, script: Script, file: int, y: int) -> None:
        """``next()`` runs: the one moment in which a death has somebody to blame."""
        assert worker is not None
        if self.random.random() < 0.1:
            worker.send_now()  # as its other thread does when this takes long
        killed = script.poison == y
        if not killed and self.kills and self.deaths[file, y] < 2 and self.random.random() < 0.01:
            self.kills -= 1
            killed = True
        if killed and not worker.wire.dead:
            self.deaths[file, y] += 1
            worker.die()
