"""Workers, ledger, credit and order together, under any schedule: order, exactly once, progress, bounds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from pydp2.errors import NotRepeatable
from pydp2.host.worker import chunk_builder
from pydp2.order import pool
from pydp2.server.jobs.plan import JobPlan

from ..order import oracle
from ..order.oracle import expect
from ..seeds import each_seed
from ..simulated.cases import Case, Sample, Script, buckets, case
from ..simulated.expected import compare, compare_relaxed, options, oracle_files
from ..simulated.service import World
from ..simulated.workers import stop_clocks

CHANGES = ["value", "value", "shorter", "longer"]


@pytest.fixture(autouse=True)
def _clocks_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clocks(monkeypatch)


def points_often(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Passes have points from which they can be taken up after few batches, and chunks of any size."""
    monkeypatch.setattr(pool, "SNAPSHOT_MIN", 16)
    monkeypatch.setattr(oracle, "SNAPSHOT", 16)
    monkeypatch.setattr(chunk_builder, "MAX_ROWS", Random(seed).choice([1, 7, 50, 4096]))


@each_seed(150)
def test_pd_32_any_schedule_gives_the_order_of_the_oracle(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(chunk_builder, "MAX_ROWS", random.choice([1, 2, 7, 50, 4096]))
    monkeypatch.setattr(chunk_builder, "MAX_RANGES", random.choice([1, 3, 128]))
    this = case(seed)
    world = World(this)
    outcomes = world.run()
    for number, outcome in enumerate(outcomes):
        (compare_relaxed if this.plan.order == "relaxed" else compare)(this, outcome)
        assert not any(world.opened[number, file] for file in outcome.cached)
    failed = any(outcome.error for outcome in outcomes)  # the error budget may end a pass before a file is read
    for file, script in enumerate(this.files):
        if script.poison is not None and this.skip and not this.leaves and not failed:
            begun = sum(file not in outcome.cached for outcome in world.trainers[0].outcomes)
            assert world.deaths[file, script.poison] == 3 * begun


@each_seed(150)
def test_a_pass_that_goes_back_to_saved_states_is_one_that_never_did(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    points_often(monkeypatch, seed)
    this = case(seed, leaves=0, rewinds=6, cache_limit=None)
    if this.plan.order == "relaxed":
        this = replace(this, plan=replace(this.plan, order="strict"))
    for outcome in World(this).run():
        compare(this, outcome)


@each_seed(300, few=60)
def test_a_pass_that_goes_back_begins_its_files_where_it_needs_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With providers that can start at any sample, or yield chosen ones alone: the stream is the same."""
    points_often(monkeypatch, seed)
    random = Random(f"begins {seed}")
    kills = random.choice([0, 3, 20])
    this = case(seed, leaves=0, rewinds=6, begins=random.choice(["start", "indices"]), kills=kills)
    if random.random() < 0.3:
        this = replace(this, plan=replace(this.plan, buckets=buckets(seed)))
    if this.plan.order == "relaxed":
        this = replace(this, plan=replace(this.plan, order="strict"))
    if this.cache_limit is not None:
        this = replace(this, cache_limit=None)
    for outcome in World(this).run():
        compare(this, outcome)


@each_seed(500, few=100)
def test_a_pass_that_goes_back_to_a_state_names_the_file_that_changed_since_or_is_what_it_was(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    points_often(monkeypatch, seed)
    random = Random(seed)
    this = case(
        seed, leaves=0, rewinds=1, cache_limit=None, budget=1 << 20, passes=1, change=random.choice(CHANGES),
        begins="start" if seed % 3 == 2 else "",
    )  # fmt: skip
    if this.plan.order == "relaxed" or not any(script.items for script in this.files):
        return
    world = World(this)
    (outcome,) = world.run()
    change = world.change
    if change is not None and not change.merged:
        return  # it may be another stream from there on
    expected = expect(oracle_files(this), options(this), outcome.pass_id, outcome.bounds)
    assert outcome.batches == expected.batches[: len(outcome.batches)]
    if not isinstance(outcome.error, NotRepeatable):
        compare(this, outcome)
    else:
        assert change is not None
        assert f"file {change.file}:" in str(outcome.error)


@each_seed(150)
def test_any_schedule_gives_the_buckets_of_the_oracle_through_passes_deaths_and_saved_states(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    points_often(monkeypatch, seed)
    this = case(seed, passes=Random(seed).choice([1, 2, 3]))
    this = replace(this, plan=replace(this.plan, buckets=buckets(seed)))
    if this.cache_limit is None and this.plan.order == "strict":
        this = replace(this, rewinds=6, leaves=0)
    if this.plan.order == "relaxed":  # else the batches that are padded would have to be known
        this = replace(this, plan=replace(this.plan, last_batch="keep"))
    for outcome in World(this).run():
        (compare_relaxed if this.plan.order == "relaxed" else compare)(this, outcome)


def several(seed: int, **fixed: object) -> Case:
    """A random simulation of two or three jobs, of which some stop asking, or leave for good."""
    random = Random(f"several {seed}")
    this = case(seed, **fixed)
    jobs = random.choice([2, 2, 3])
    others = tuple(case(seed * 7 + number).plan for number in range(1, jobs))
    some = random.sample(range(jobs), random.choice([0, 1, 1, jobs - 1]))
    values = {
        "others": others,
        "sleepers": tuple(some) if random.random() < 0.7 else (),
        "quitters": tuple(number for number in range(jobs) if random.random() < 0.15),
        "cache_limit": random.choice([None, 500, 5000, 1 << 30, 1 << 30, 1 << 30]),
        "passes": random.choice([1, 2]),
    }
    return replace(this, **(values | fixed))


@each_seed(150)
def test_each_of_several_jobs_has_the_order_that_it_has_alone_whatever_the_others_do(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(chunk_builder, "MAX_ROWS", random.choice([1, 2, 7, 50, 4096]))
    monkeypatch.setattr(chunk_builder, "MAX_RANGES", random.choice([1, 3, 128]))
    this = several(seed)
    world = World(this)
    world.run()
    for trainer in world.trainers:
        mine = replace(this, plan=trainer.plan)
        for outcome in trainer.outcomes:
            (compare_relaxed if mine.plan.order == "relaxed" else compare)(mine, outcome)
        if trainer.number not in this.quitters:
            assert sum(outcome.is_complete for outcome in trainer.outcomes) == this.passes


def job(**options: object) -> JobPlan:
    plain = {"batch_size": 8, "seed": 3, "shuffle": True, "order": "strict", "interleave": 16, "pool_bytes": 1 << 30}
    return JobPlan(**(plain | {"last_batch": "keep", "origin": True} | options))  # type: ignore[arg-type]


def file(count: int, values: int = 3, **how: int) -> Script:
    return Script(tuple(Sample(1, values) for _ in range(count)), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("shuffle", [True, False])
def test_samples_larger_than_all_credit_come_one_at_a_time(workers: int, shuffle: bool) -> None:
    this = Case(tuple(file(5, 4000) for _ in range(20)), job(shuffle=shuffle), 1, workers=workers, budget=3000)
    (outcome,) = World(this).run()
    compare(this, outcome)


@pytest.mark.parametrize("seed", range(5))
def test_a_deadly_sample_condemns_its_file_after_three_deaths_and_no_other(seed: int) -> None:
    files = [file(40) for _ in range(12)]
    files[3], files[7] = file(40, poison=17), file(40, poison=0)
    this = Case(tuple(files), job(), seed, workers=3, skip=True, kills=20, pool_size=30)
    world = World(this)
    (outcome,) = world.run()
    compare(this, outcome)
    assert sorted(early_end[:2] for early_end in outcome.early_ends) == [(3, 17), (7, 0)]
    assert (world.deaths[3, 17], world.deaths[7, 0]) == (3, 3)


@pytest.mark.parametrize("seed", range(5))
def test_workers_that_never_get_ready_keep_nothing_back(seed: int) -> None:
    this = Case(tuple(file(30) for _ in range(20)), job(), seed, workers=8, hung_starts=8, pool_size=20)
    (outcome,) = World(this).run()
    compare(this, outcome)


@pytest.mark.parametrize("shuffle", [True, False])
def test_relaxed_order_over_a_bounded_pool_ends_with_every_sample(shuffle: bool) -> None:
    files = tuple(file(n) for n in (30, 0, 5, 90, 1))
    this = Case(files, job(order="relaxed", shuffle=shuffle, interleave=4), 5, workers=2, pool_size=10)
    (outcome,) = World(this).run()
    compare_relaxed(this, outcome)


def test_a_thousand_tiny_files_take_few_steps() -> None:
    this = Case(tuple(file(1) for _ in range(1000)), job(), 2, workers=4, pool_size=50)
    world = World(this)
    (outcome,) = world.run()
    compare(this, outcome)
    assert world.steps < 3000


@pytest.mark.parametrize("limit", [0, 3000, 1 << 30])
def test_pd_46_passes_over_a_cache_of_any_size_are_those_without_one_even_after_passes_that_were_left(
    limit: int,
) -> None:
    files = tuple(file(n % 7) for n in range(40))
    this = Case(files, job(), 11, workers=2, cache_limit=limit, leaves=4, passes=4, kills=5)
    world = World(this)
    outcomes = world.run()
    for outcome in outcomes:
        compare(this, outcome)
    assert [outcome.is_complete for outcome in outcomes].count(True) == 4
    assert bool(outcomes[-1].cached) == (limit > 0)
