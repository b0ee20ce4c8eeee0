"""Workers, ledger, credit and order together, under any schedule: order, exactly once, progress, bounds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from pydp2.server.job import JobPlan
from pydp2.worker import builder, runner

from ..order.oracle import File, Options, Row, expect
from .simulation import Bad, Case, Outcome, Sample, Script, World, sample_bytes, where

SEEDS = int(os.environ.get("PYDP2_SIMULATIONS", "200"))


@pytest.fixture(autouse=True)
def _clocks_stand_still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the loop of a worker does by the clock is the scheduler's to decide."""
    monkeypatch.setattr(runner, "_POLL", -1.0)
    monkeypatch.setattr(runner, "_FLUSH", 1e9)
    monkeypatch.setattr(runner, "_SLOW", 1e9)
    yield


size_of = cache(sample_bytes)


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
    return Case(**(values | fixed))  # type: ignore[arg-type]


def oracle_files(case: Case) -> list[File]:
    """The scripts, as they end in the end: at an exception, or condemned at the sample that kills."""
    return [
        File(
            [Row(i.weight, size_of(i.values)) if isinstance(i, Sample) else None for i in s.items[: s.poison]],
            s.raises or s.poison is not None,
        )
        for s in case.files
    ]


def options(case: Case) -> Options:
    plan = case.plan
    return Options(
        batch_size=plan.batch_size, seed=plan.seed, shuffle=plan.shuffle, pool_size=case.pool_size,
        min_pool_size=case.min_pool_size, interleave=plan.interleave, pool_bytes=plan.pool_bytes,
        can_over=case.can_over, last_batch=plan.last_batch, cached=case.cache_limit is not None, skip=case.skip,
    )  # fmt: skip


def compare_relaxed(case: Case, outcome: Outcome) -> None:
    """Each sample once, in any order, and no batch too small but the last."""
    names = [(f, y) for f, file in enumerate(oracle_files(case)) for y, item in enumerate(file.items) if item]
    found = [name for batch in outcome.batches for name in batch]
    found = found[: len(found) - outcome.padding]
    assert len(set(found)) == len(found)
    assert set(found) <= set(names)
    if outcome.whole and not outcome.error and case.plan.last_batch != "drop":
        assert sorted(found) == names


def compare(case: Case, outcome: Outcome) -> None:
    """``outcome`` is what the oracle says; of a pass that was left, as far as it went."""
    if case.plan.order == "relaxed":
        return compare_relaxed(case, outcome)
    files = oracle_files(case)
    expected = expect(files, options(case), outcome.pass_id)
    if not outcome.whole:
        assert outcome.batches == expected.batches[: len(outcome.batches)]
        return
    assert outcome.batches == expected.batches
    assert outcome.pool_weights == expected.pool_weights
    assert outcome.padding == expected.padding
    assert (where(outcome.error) if outcome.error else None) == expected.error
    if not outcome.error:
        ends = [(n, len(file.items)) for n, file in enumerate(files) if file.raises]
        assert sorted(fact[:2] for fact in outcome.facts) == ends
        read = [file for number, file in enumerate(files) if number not in outcome.cached]
        assert outcome.dropped == sum(item is None for file in read for item in file.items)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_pd_32_any_schedule_gives_the_order_of_the_oracle(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(builder, "MAX_ROWS", random.choice([1, 2, 7, 50, 4096]))
    monkeypatch.setattr(builder, "MAX_PARTS", random.choice([1, 3, 128]))
    this = case(seed)
    world = World(this)
    for number, outcome in enumerate(world.run()):
        compare(this, outcome)
        assert not any(world.opened[number, file] for file in outcome.cached)
    for file, script in enumerate(this.files):
        if script.poison is not None and this.skip and not this.leaves:
            begun = sum(file not in outcome.cached for outcome in world.outcomes)
            assert world.deaths[file, script.poison] == 3 * begun
