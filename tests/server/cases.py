"""What a simulation is about: files as scripts, options, and what the scheduler may do. Random ones by number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from pydp2 import integer_value, integer_value_sequence
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import Slots
from pydp2.order.plan import BucketPlan
from pydp2.server.jobs.plan import JobPlan

TYPES = {"file": integer_value(1 << 20), "y": integer_value(1 << 20), "weight": integer_value(100),
         "data": integer_value_sequence(2)}  # fmt: skip


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
    change: str = ""  # what of a file is another when the pass goes back: "value", "shorter", "longer"
    slow_starts: bool = False
    hung_starts: int = 0  # of the first workers so many never get ready
    passes: int = 1
    others: tuple[JobPlan, ...] = ()  # jobs beside the first, over the same files
    sleepers: tuple[int, ...] = ()  # jobs whose trainers stop asking until all others are through
    quitters: tuple[int, ...] = ()  # jobs whose trainers leave for good


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
    return Case(**(values | fixed))  # type: ignore[arg-type]
