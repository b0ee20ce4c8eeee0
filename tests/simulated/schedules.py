"""One schedule: the world of a seed, run to its end, and what the trainer got compared with the oracle."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pydp2.worker import chunk_builder, loop

from ..order.oracle import expect
from ..server.cases import Case, case
from ..server.simulation import where
from ..server.test_simulation import options, oracle_files
from .world import Seen, World


def hosted(seed: int) -> Case:
    """A random simulation for hosts."""
    this = case(seed, leaves=0, cache_limit=None, hung_starts=0, slow_starts=False)
    return replace(this, plan=replace(this.plan, order="strict"), passes=min(this.passes, 2))


def compare(this: Case, seen: Seen) -> None:
    """``seen`` is what the oracle says."""
    expected = expect(oracle_files(this), options(this), seen.pass_id, None)
    assert seen.batches == expected.batches
    assert seen.pool_weights == expected.pool_weights
    assert seen.padding == expected.padding
    assert (where(seen.error) if seen.error else None) == expected.error


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
        for seen in world.run():
            compare(this, seen)
        return world
