"""Batches that are cut several at a time are those that are cut one by one, and so are the snapshots."""

from __future__ import annotations

from array import array
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydp2.data.native import is_active
from pydp2.order import pool
from pydp2.order.batcher import BatchCut, Batcher, PassDone, PassFailed
from pydp2.order.bulk_cut import BulkCutter
from pydp2.order.file_order import files_in_order
from pydp2.order.pool import sort_by_name, sort_by_name_in_python

from .arrivals import Arrivals, NameStore, next_outcome, plan_of
from .oracle import File, Options, Row

compiled = pytest.mark.skipif(not is_active(), reason="nothing was compiled")


def outcomes(files: list[File], options: Options, timing: int, chunk: int, *, bulk: bool) -> list[Any]:
    """All that a stream gives: batches by name, what is known of each, the snapshot behind it, and the end."""
    random = Random(timing)
    plan = plan_of(files, options)
    source, store = Arrivals(files, random, options.skip, chunk), NameStore(random)
    made = Batcher(plan, source, store, files_in_order(plan))
    if not bulk:
        made._bulk = None
    found: list[Any] = []
    while True:
        outcome = next_outcome(made, source)
        match outcome:
            case BatchCut():
                names = store.take(outcome.row_ids, outcome.padding)
                found.append((names, [getattr(outcome, name) for name in outcome.__slots__ if name != "row_ids"]))
                snapshot = made.snapshot
                found.append(None if snapshot is None else replace(snapshot, cycle=list(snapshot.cycle)))
            case PassDone(batches):
                return [*found, batches, made.byte_limited, source.bound, source.finished]
            case PassFailed(error):
                return [*found, str(error)]


@compiled
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_pd_32_both_ways_of_cutting_give_the_same_batches_and_snapshots(seed: int) -> None:
    random = Random(seed)
    weighted, dropping = random.random() < 0.2, random.random() < 0.3
    files = [
        File(
            [
                None if dropping and random.random() < 0.02 else
                Row(random.choice([0, 1, 2]) if weighted and random.random() < 0.05 else 1, random.choice([4, 8, 30]))
                for _ in range(random.choice([0, 3, 70, 300]))
            ],
            raises=random.random() < 0.02,
        )
        for _ in range(random.choice([1, 3, 12, 30]))
    ]  # fmt: skip
    options = Options(
        batch_size=random.choice([1, 7, 32, 128]),
        seed=seed % 100,
        pool_size=random.choice([-1, 40, 600, 5000]),
        min_pool_size=random.choice([-1, 64, 500]),
        interleave=random.choice([1, 4, 16]),
        pool_bytes=random.choice([2_000, 20_000, 1 << 30]),
        last_batch=random.choice(["keep", "drop", "pad"]),  # type: ignore[arg-type]
        skip=random.random() < 0.5,
    )
    chunk = random.choice([1, 40, 300])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "SNAPSHOT_MIN", random.choice([16, 100, 1024]))  # few: many points between two snapshots
        one_by_one = outcomes(files, options, seed, chunk, bulk=False)
        assert outcomes(files, options, seed + 1, chunk, bulk=True) == one_by_one


@compiled
def test_a_pass_of_plain_samples_is_cut_in_few_calls_and_turns_cost_nothing_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [File([Row()] * 3000)] * 20
    calls: list[int] = []
    run = BulkCutter._run
    monkeypatch.setattr(
        BulkCutter,
        "_run",
        lambda self, *given: calls.append(1) or run(self, *given),  # type: ignore[func-returns-value]
    )
    pulls: list[int] = []
    pull = Batcher._pull
    monkeypatch.setattr(Batcher, "_pull", lambda self, level: pulls.append(1) or pull(self, level))  # type: ignore[func-returns-value]
    found = outcomes(files, Options(batch_size=16, pool_size=2000), 1, 400, bulk=True)
    batches = 60_000 // 16
    assert found[-4] == batches
    assert len(calls) < batches // 4
    assert len(pulls) < batches // 4  # where chunks and files end; a turn takes 36 samples


@given(st.integers(0, 2**32 - 1), st.integers(0, 300), st.sampled_from([3, 1 << 11, 1 << 23, 1 << 40]))
def test_rows_are_sorted_by_file_and_sample_index_whatever_their_numbers(seed: int, count: int, largest: int) -> None:
    random = np.random.default_rng(seed)
    files, indices = random.integers(0, largest, 500), random.integers(0, max(largest, 1 << 41) // 3, 500)
    rows = random.permutation(500)[:count]
    sorted_, expected = array("q", rows.tobytes()), array("q", rows.tobytes())
    sort_by_name(sorted_, files, indices)
    sort_by_name_in_python(expected, files, indices)
    assert sorted_ == expected


@pytest.mark.parametrize("size", [1 << 20, 1 << 21, 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize("pool_size", [-1, 40, (1 << 63) - 1])
def test_numbers_as_large_as_options_may_have_them_are_cut_as_well(size: int, pool_size: int) -> None:
    files = [File([Row()] * 50)] * 3
    options = Options(batch_size=size, pool_size=pool_size, pool_bytes=(1 << 63) - 1)
    assert outcomes(files, options, 1, 20, bulk=True) == outcomes(files, options, 1, 20, bulk=False)
