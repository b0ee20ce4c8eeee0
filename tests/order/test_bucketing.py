"""Batches of samples alike in length, against the oracle: any files, options, timing, and place to go on from."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydp2.errors import OptionError
from pydp2.order import pool
from pydp2.order.bucketing import automatic_bounds

from ..seeds import each_seed
from . import oracle
from .arrivals import plan_of, stream
from .oracle import File, Options, Row, expect
from .test_batcher import flat, names, options, row_of, seeds
from .test_snapshot import run, through_json

property_test = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def rows(*, weighted: bool = True) -> st.SearchStrategy[Row]:
    weights = st.sampled_from([0, 1, 1, 1, 2, 3, 5, 9]) if weighted else st.just(1)
    return st.builds(Row, weights, st.sampled_from([0, 1, 8, 8, 100]), st.sampled_from([0, 1, 2, 3, 4, 5, 8, 13, 40]))


def lists(*, weighted: bool = True, raising: bool = False) -> st.SearchStrategy[list[File]]:
    items = st.lists(st.one_of(st.none(), rows(weighted=weighted), rows(weighted=weighted)), max_size=70)
    raises = st.booleans() if raising else st.just(False)
    return st.lists(st.builds(File, items, raises), max_size=12)


def bucketed(**fixed: Any) -> st.SearchStrategy[Options]:
    bounds = st.one_of(st.none(), st.sets(st.integers(1, 20), min_size=1, max_size=4).map(lambda s: tuple(sorted(s))))
    return st.builds(
        lambda chosen, bounds, count, group: replace(chosen, bounds=bounds, buckets=count, group=group),
        options(**fixed), bounds, st.integers(1, 5), st.sampled_from([1, 1, 2, 3, 8]),
    )  # fmt: skip


def of_passes(files: list[File], chosen: Options, pass_id: int) -> tuple[int, ...] | None:
    """Bounds that pass 0 would have drawn."""
    return expect(files, chosen, 0).bounds if pass_id else None


@property_test
@given(lists(raising=True), bucketed(), st.integers(0, 2), seeds, st.integers(1, 50))
def test_a_bucketed_pass_is_what_the_oracle_says_whatever_the_timing_and_the_chunks(
    files: list[File], chosen: Options, pass_id: int, timing: int, chunk: int
) -> None:
    bounds = of_passes(files, chosen, pass_id)
    found = stream(files, chosen, pass_id, timing=timing, chunk=chunk, bounds=bounds)
    assert found == expect(files, chosen, pass_id, bounds)


@pytest.mark.parametrize("seed", [*range(3, 8), *(pytest.param(each, marks=pytest.mark.slow) for each in range(3))])
def test_a_long_bucketed_pass_is_what_the_oracle_says_through_snapshot_points(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SNAPSHOT_MIN", 100)
    monkeypatch.setattr(oracle, "SNAPSHOT", 100)
    random = Random(seed)
    files = long_files(random, seed % 3 == 0)
    chosen = Options(
        batch_size=random.choice([8, 30]),
        seed=seed,
        shuffle=seed != 4,
        pool_size=random.choice([-1, 300, 900]),
        min_pool_size=random.choice([-1, 64]),
        pool_bytes=random.choice([3000, 1 << 30, 1 << 30]),
        can_over=seed % 2 == 0,
        buckets=random.choice([3, 6]),
        bounds=random.choice([None, (4, 12)]),
        group=random.choice([1, 3, 4]),
    )
    found = stream(files, chosen, timing=seed + 100, chunk=200)
    assert found == expect(files, chosen)
    assert sorted(flat(found.batches)) == names(files)


def long_files(random: Random, weighted: bool) -> list[File]:
    def row() -> Row | None:
        weight = random.choice([0, 1, 1, 2, 7]) if weighted else 1
        return None if random.random() < 0.03 else Row(weight, 8, min(int(random.expovariate(0.1)), 60))

    return [File([row() for _ in range(random.randint(0, 300))]) for _ in range(random.choice([3, 12]))]


def bucket_of(row: Row, bounds: tuple[int, ...]) -> int:
    return sum(row.length > bound for bound in bounds)


@property_test
@given(lists(), bucketed(last_batch="keep", can_over=True, pool_bytes=1 << 30), st.integers(0, 2), seeds)
def test_every_sample_comes_exactly_once_and_a_batch_has_samples_of_one_bucket(
    files: list[File], chosen: Options, pass_id: int, timing: int
) -> None:
    found = stream(files, chosen, pass_id, timing=timing)
    assert sorted(flat(found.batches)) == names(files)
    for batch in found.batches:
        assert len({bucket_of(row_of(files, name), found.bounds or ()) for name in batch}) == 1


@property_test
@given(lists(), bucketed(last_batch="keep", can_over=True, pool_bytes=1 << 30), st.integers(0, 2), seeds)
def test_all_batches_of_a_group_come_from_one_bucket_as_long_as_one_can_fill_it(
    files: list[File], chosen: Options, pass_id: int, timing: int
) -> None:
    """Where a group is mixed, no bucket had enough for a whole one: nor does any from there to the end."""
    found = stream(files, chosen, pass_id, timing=timing)
    b, g = chosen.batch_size, chosen.group
    of = [bucket_of(row_of(files, batch[0]), found.bounds or ()) for batch in found.batches]
    for n in range(0, len(of), g):
        if len(set(of[n : n + g])) > 1 or len(of) < n + g:
            for k in set(of):
                weights = [row_of(files, x).weight for i in range(n, len(of)) if of[i] == k for x in found.batches[i]]
                heaviest = sorted(weights, reverse=True)[: g - 1]
                assert sum(weights) - sum(heaviest) < b * g - (g - 1) or sum(weights) < b * g
            break


@property_test
@given(lists(), bucketed(), st.integers(0, 2), seeds)
def test_only_the_last_batch_of_each_bucket_is_smaller_and_is_kept_dropped_or_padded(
    files: list[File], chosen: Options, pass_id: int, timing: int
) -> None:
    chosen = replace(chosen, can_over=True, pool_bytes=1 << 30)
    found = stream(files, chosen, pass_id, timing=timing)
    small: list[int] = []
    for batch in found.batches:
        if sum(row_of(files, name).weight for name in batch) < chosen.batch_size:
            small.append(bucket_of(row_of(files, batch[0]), found.bounds or ()))
    assert len(small) == len(set(small))
    if chosen.last_batch == "drop":
        assert not small
        lost = sorted(set(names(files)) - set(flat(found.batches)))
        weights: dict[int, int] = {}
        for name in lost:
            k = bucket_of(row_of(files, name), found.bounds or ())
            weights[k] = weights.get(k, 0) + row_of(files, name).weight
        assert max(weights.values(), default=0) < chosen.batch_size
    if chosen.last_batch == "pad":  # only what weighs nothing at all cannot be padded
        assert all(row_of(files, name).weight == 0 for b in found.batches if len(set(b)) == len(b)
                   for name in b if sum(row_of(files, x).weight for x in b) < chosen.batch_size)  # fmt: skip


@property_test
@given(lists(), bucketed(), st.integers(0, 2), seeds, st.data())
def test_a_bucketed_pass_goes_on_from_any_batch(
    files: list[File], chosen: Options, pass_id: int, timing: int, data: st.DataObject
) -> None:
    chosen = replace(chosen, pool_bytes=data.draw(st.sampled_from([700, 1 << 30])), can_over=True)
    files = [File([item and replace(item, size=min(item.size, 90)) for item in f.items]) for f in files]
    bounds = of_passes(files, chosen, pass_id)
    plan = plan_of(files, chosen, pass_id, bounds=bounds)
    made, points, _ = run(plan, files, timing)
    if not made:
        return
    plan = plan_of(files, chosen, pass_id, bounds=expect(files, chosen, pass_id, bounds).bounds)  # the state has them
    k = data.draw(st.integers(0, len(made) - 1))
    point = through_json(points[k], len(files))
    again, _, _ = run(plan, files, timing + 1, point)
    skipped = k + 1 - (0 if point is None else point.batch_index)
    assert again[skipped:] == made[k + 1 :]


@pytest.mark.parametrize("seed", [0, 1, 5, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3, 4, 6, 7))])
def test_a_long_bucketed_pass_goes_on_from_its_points_in_the_middle_of_groups_too(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "SNAPSHOT_MIN", 60)
    random = Random(seed)
    files = [*long_files(random, seed % 2 == 0), *long_files(random, seed % 2 == 0)] * 2
    chosen = Options(
        batch_size=10, seed=seed, shuffle=seed != 5, pool_size=random.choice([100, 300]), interleave=4, buckets=4,
        group=random.choice([1, 3, 5]),
    )  # fmt: skip
    made, points, _ = run(plan_of(files, chosen), files, seed)
    plan = plan_of(files, chosen, bounds=expect(files, chosen).bounds)
    assert len({point.batch_index for point in points if point is not None}) > 1
    for k in random.sample(range(len(made)), 6):
        point = through_json(points[k], len(files))
        again, _, _ = run(plan, files, seed + 1, point)
        skipped = k + 1 - (0 if point is None else point.batch_index)
        assert again[skipped:] == made[k + 1 :]


def test_a_damaged_point_of_a_bucketed_pass_is_refused() -> None:
    files = [File([Row(1, 8, y % 9) for y in range(900)]) for _ in range(4)]
    chosen = Options(batch_size=16, pool_size=100, buckets=3)
    _, points, _ = run(plan_of(files, chosen), files, 0)
    point = next(p for p in points if p is not None)
    assert point.bucket_number > 0
    known = plan_of(files, chosen, bounds=expect(files, chosen).bounds)
    for plan, change in (
        (plan_of(files, chosen), {}), (known, {"bucket_number": 9}), (known, {"tail_consumed": 3}),
    ):  # fmt: skip
        with pytest.raises(OptionError, match="where its buckets stood: it is damaged"):
            run(plan, files, 1, replace(point, **change))  # type: ignore[arg-type]


def test_a_rare_bucket_waits_about_as_long_as_a_pool_takes_to_be_used_up_once_it_can_fill_a_batch() -> None:
    """One sample of 50 is long. A batch of them is drawn as soon as chance wants it, not at the end of the pass."""
    random = Random(1)
    files = [File([Row(1, 8, 9 if random.random() < 0.02 else 1) for _ in range(500)]) for _ in range(40)]
    chosen = Options(batch_size=10, pool_size=200, buckets=2, bounds=(5,), seed=3)
    found = stream(files, chosen)
    long = [n for n, batch in enumerate(found.batches) if row_of(files, batch[0]).length == 9]
    assert len(long) >= 35
    assert max(np.diff([0, *long])) < len(found.batches) / 6


def test_a_pool_that_is_too_small_for_its_buckets_goes_on_until_one_can_fill_the_group() -> None:
    files = [File([Row(1, 8, y % 7) for y in range(200)]) for _ in range(6)]
    chosen = Options(batch_size=10, pool_size=10, buckets=7, bounds=(0, 1, 2, 3, 4, 5), group=2)
    found = stream(files, chosen)
    assert found == expect(files, chosen)
    assert all(len(batch) == 10 for batch in found.batches[:-7])
    assert max(found.pool_weights) <= 7 * (2 * 10 - 1) + 1


def test_where_bytes_are_the_limit_batches_stay_full_and_groups_are_given_up() -> None:
    files = [File([Row(1, 10, y % 4) for y in range(200)]) for _ in range(4)]
    chosen = Options(batch_size=10, pool_size=400, pool_bytes=450, buckets=4, bounds=(0, 1, 2), group=4)
    found = stream(files, chosen)
    assert found == expect(files, chosen)
    assert max(found.pool_weights) <= 45
    assert [len(batch) for batch in found.batches] == [10] * 80


@each_seed(60)
def test_where_bytes_give_up_groups_the_fill_ends_at_the_same_sample_for_any_timing(seed: int) -> None:
    random = Random(seed)
    files = [
        File([Row(random.choice([0, 1, 1, 2, 5]), random.choice([1, 8, 40]), random.randint(0, 7)) for _ in range(40)])
        for _ in range(8)
    ]
    chosen = Options(
        batch_size=8, seed=seed, pool_size=10, pool_bytes=random.choice([200, 300]), interleave=4, buckets=3,
        can_over=False, bounds=(1, 5), group=3,
    )  # fmt: skip
    expected = expect(files, chosen)
    for timing in range(4):
        assert stream(files, chosen, timing=timing, chunk=1 + 9 * timing) == expected


@pytest.mark.parametrize("pool_size", [-1, 64])
def test_without_shuffle_the_bucket_with_the_oldest_sample_comes_next_in_the_order_of_the_list(pool_size: int) -> None:
    files = [File([Row(1, 8, length) for length in (1, 9, 1, 1, 9, 1, 9, 9, 1, 1)])]
    chosen = Options(batch_size=2, shuffle=False, pool_size=pool_size, buckets=2, bounds=(5,))
    expected = [[0, 2], [1, 4], [3, 5], [6, 7], [8, 9]]
    assert [[y for _, y in batch] for batch in stream(files, chosen).batches] == expected


def test_a_bound_is_the_greatest_length_in_its_bucket() -> None:
    files = [File([Row(1, 8, length) for length in (4, 5, 8, 9, 30)])]
    chosen = Options(batch_size=5, buckets=3, bounds=(4, 8))
    lengths = [sorted(row_of(files, name).length for name in batch) for batch in stream(files, chosen).batches]
    assert sorted(lengths) == [[4], [5, 8], [9, 30]]


@pytest.mark.parametrize(
    ("lengths", "weights", "count", "bounds"),
    [
        (range(1, 101), [1] * 100, 4, (25, 50, 75)),
        (range(1, 101), [1] * 100, 1, ()),
        ([7] * 50, [1] * 50, 4, (7,)),
        ([0] * 30 + [5] * 10, [1] * 40, 4, (1,)),
        ([], [], 4, ()),
        ([3, 9], [0, 0], 4, ()),
        ([1, 2, 3], [1, 1, 8], 2, (3,)),
        ([9, 1, 5, 3], [1, 1, 1, 1], 2, (3,)),
    ],
)
def test_automatic_bounds_cut_the_weight_into_equal_parts(
    lengths: Any, weights: list[int], count: int, bounds: tuple[int, ...]
) -> None:
    assert automatic_bounds(np.array(lengths, np.int64), np.array(weights, np.int64), count) == bounds


@property_test
@given(lists(), bucketed(last_batch="keep", can_over=True, pool_bytes=1 << 30), seeds)
def test_relaxed_order_gives_the_same_samples_in_batches_of_one_bucket(
    files: list[File], chosen: Options, timing: int
) -> None:
    found = stream(files, chosen, timing=timing, relaxed=True)
    assert sorted(flat(found.batches)) == names(files)
    for batch in found.batches:
        assert len({bucket_of(row_of(files, name), found.bounds or ()) for name in batch}) == 1
