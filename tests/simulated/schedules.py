"""One schedule: the world of a seed, run to its end, and what the trainer got compared with the oracle."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from random import Random

import pytest

from pydp2.host.worker import chunk_builder, loop

from ..order.oracle import expect
from ..server.cases import Case, buckets, case
from ..server.simulation import where
from ..server.test_simulation import options, oracle_files
from .trainers import Seen
from .world import World


@dataclass(frozen=True)
class HostedCase(Case):
    """A simulation with ``ranks`` trainers."""

    ranks: int = 1


def hosted(seed: int) -> HostedCase:
    """A random simulation for hosts."""
    random = Random(f"hosted {seed}")
    ranks = random.choice([1, 1, 2, 3])
    cache_limit = random.choice([None, None, 1 << 30])
    this = case(seed, leaves=0, cache_limit=cache_limit, hung_starts=0, slow_starts=False)
    by_length = None if random.random() < 0.7 else replace(buckets(seed), group_size=ranks)
    plan = replace(this.plan, order="strict", buckets=by_length)
    values = {each.name: getattr(this, each.name) for each in fields(this)}
    return HostedCase(**values | {"plan": plan, "passes": min(this.passes, 2), "ranks": ranks})


def compare(this: HostedCase, passes: Sequence[Sequence[Seen]]) -> None:
    """``passes``, by rank, are what the oracle says."""
    bounds: tuple[int, ...] | None = this.plan.buckets.bounds if this.plan.buckets else None
    for pass_id in range(this.passes):
        expected = expect(oracle_files(this), options(this), pass_id, bounds)
        bounds = bounds or expected.bounds
        seen = [each[pass_id] for each in passes]
        count = len(expected.batches)
        if this.plan.last_batch == "drop" or (this.plan.last_batch == "pad" and expected.error):
            count -= count % this.ranks
        for rank, one in enumerate(seen):
            share = slice(rank, count, this.ranks)
            batches, weights = expected.batches[share], expected.pool_weights[share]
            if this.plan.last_batch == "pad" and rank >= count % this.ranks > 0:
                batches = [*batches, one.batches[-1]]
                weights = [*weights, one.pool_weights[-1]]
                assert one.paddings[-1] == len(one.batches[-1]) > 0, "padding alone, for equally many steps"
            assert one.batches == batches
            assert one.pool_weights == weights
            assert one.died or (where(one.error) if one.error else None) == expected.error
        if this.ranks == 1:
            assert sum(seen[0].paddings) == expected.padding


@contextlib.contextmanager
def scheduled(seed: int) -> Iterator[pytest.MonkeyPatch]:
    """What the world of ``seed`` is made in: workers do nothing by the clock."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the file list is empty")
        for name, value in (("_POLL", -1.0), ("FLUSH", 1e9), ("_SLOW", 1e9)):  # what workers do by the clock
            patch.setattr(loop, name, value)  # is the scheduler's to decide
        patch.setattr(chunk_builder, "MAX_ROWS", Random(seed).choice([1, 2, 7, 50, 4096]))
        yield patch


def play(seed: int, folder: Path) -> World:
    """Run the schedule of ``seed``, and compare what came of it. ``folder`` is for files of its server."""
    with scheduled(seed) as patch:
        this = hosted(seed)
        world = World(this, folder, patch)
        compare(this, world.run())
        return world
