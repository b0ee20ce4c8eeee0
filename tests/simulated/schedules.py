"""One schedule: the world of a seed, run to its end, and what the trainer got compared with the oracle."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pydp2.host.worker import chunk_builder

from .cases import Case, buckets, case
from .expected import compare_ranks
from .workers import stop_clocks
from .world import World


def hosted(seed: int) -> Case:
    """A random simulation for hosts."""
    random = Random(f"hosted {seed}")
    ranks = random.choice([1, 1, 2, 3])
    cache_limit = random.choice([None, None, 1 << 30])
    peers = Random(f"peers {seed}").choice([1, 1, 2])
    this = case(seed, leaves=0, cache_limit=cache_limit, hung_starts=0, slow_starts=False, ranks=ranks, peers=peers)
    by_length = None if random.random() < 0.7 else replace(buckets(seed), group_size=ranks)
    plan = replace(this.plan, order="strict", buckets=by_length)
    return replace(this, plan=plan, passes=min(this.passes, 2))


@contextlib.contextmanager
def scheduled(seed: int) -> Iterator[pytest.MonkeyPatch]:
    """What the world of ``seed`` is made in: workers do nothing by the clock."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the file list is empty")
        stop_clocks(patch)
        patch.setattr(chunk_builder, "MAX_ROWS", Random(seed).choice([1, 2, 7, 50, 4096]))
        yield patch


def play(seed: int, folder: Path) -> World:
    """Run the schedule of ``seed``, and compare what came of it. ``folder`` is for files of its server."""
    with scheduled(seed) as patch:
        this = hosted(seed)
        world = World(this, folder, patch)
        compare_ranks(this, world.run())
        return world
