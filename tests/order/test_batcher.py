"""The order of a pass against the oracle: any files, any options, any timing, any chunks."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .arrivals import stream
from .oracle import File, Options, Row, expect

seeds = st.integers(0, 2**32 - 1)
property_test = settings(suppress_health_check=[HealthCheck.too_slow])


def rows(*, weighted: bool = True) -> st.SearchStrategy[Row]:
    weights = st.sampled_from([0, 1, 1, 1, 2, 3, 5, 9]) if weighted else st.just(1)
    return st.builds(Row, weights, st.sampled_from([0, 1, 8, 8, 100]))


def lists(*, weighted: bool = True, raising: bool = False) -> st.SearchStrategy[list[File]]:
    items = st.lists(st.one_of(st.none(), rows(weighted=weighted), rows(weighted=weighted)), max_size=70)
    raises = st.booleans() if raising else st.just(False)
    return st.lists(st.builds(File, items, raises), max_size=12)


@st.composite
def options(draw: st.DrawFn, **fixed: Any) -> Options:
    levels = st.one_of(st.just(-1), st.integers(1, 60))
    free: dict[str, Any] = {
        "batch_size": st.integers(1, 12),
        "seed": st.integers(0, 5),
        "shuffle": st.sampled_from([True, True, True, False]),
        "pool_size": levels,
        "min_pool_size": levels,
        "interleave": st.sampled_from([1, 2, 3, 16]),
        "pool_bytes": st.sampled_from([100, 150, 700, 1 << 30]),
        "can_over": st.booleans(),
        "last_batch": st.sampled_from(["keep", "drop", "pad"]),
        "cached": st.booleans(),
        "skip": st.booleans(),
    }
    return Options(**{name: draw(strategy) for name, strategy in free.items() if name not in fixed}, **fixed)


def names(files: list[File]) -> list[tuple[int, int]]:
    return [(f, y) for f, file in enumerate(files) for y, item in enumerate(file.items) if item is not None]


def flat(batches: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return [name for batch in batches for name in batch]


def row_of(files: list[File], name: tuple[int, int]) -> Row:
    item = files[name[0]].items[name[1]]
    assert item is not None
    return item


@property_test
@given(lists(raising=True), options(), st.integers(0, 2), seeds, st.integers(1, 50))
def test_pd_32_a_pass_is_what_the_oracle_says_whatever_the_timing_and_the_chunks(
    files: list[File], options: Options, pass_id: int, timing: int, chunk: int
) -> None:
    assert stream(files, options, pass_id, timing=timing, chunk=chunk) == expect(files, options, pass_id)


@pytest.mark.parametrize("seed", [*range(4, 12), *(pytest.param(each, marks=pytest.mark.slow) for each in range(4))])
def test_pd_32_a_long_pass_is_what_the_oracle_says_through_snapshot_points_and_ramps(seed: int) -> None:
    random = Random(seed)
    files = [
        File(
            [None if random.random() < 0.03 else _any_row(random, seed % 3 == 0) for _ in range(random.randint(0, 900))]
        )
        for _ in range(random.choice([3, 12, 40]))
    ]
    options = Options(
        batch_size=random.choice([32, 100, 128]),
        seed=seed,
        pool_size=random.choice([-1, 2000, 7000]),
        min_pool_size=random.choice([-1, 64, 1500]),
        interleave=random.choice([4, 16]),
        pool_bytes=random.choice([20_000, 1 << 30, 1 << 30]),
        can_over=seed % 2 == 0,
    )
    found = stream(files, options, timing=seed + 100, chunk=200)
    assert found == expect(files, options)
    assert sorted(flat(found.batches)) == names(files)


def _any_row(random: Random, weighted: bool) -> Row:
    return Row(random.choice([0, 1, 1, 2, 7]) if weighted else 1, random.choice([4, 8, 30]))


@property_test
@given(lists(), options(last_batch="keep", can_over=True, pool_bytes=1 << 30), st.integers(0, 2), seeds)
def test_pd_31_every_sample_comes_exactly_once(files: list[File], options: Options, pass_id: int, timing: int) -> None:
    assert sorted(flat(stream(files, options, pass_id, timing=timing).batches)) == names(files)


@property_test
@given(lists(), options(shuffle=False, last_batch="keep", can_over=True, pool_bytes=1 << 30), seeds)
def test_pd_30_with_shuffle_off_samples_come_in_list_and_yield_order(
    files: list[File], options: Options, timing: int
) -> None:
    assert flat(stream(files, options, timing=timing).batches) == names(files)


@property_test
@given(
    lists(),
    options(shuffle=True, pool_size=-1, min_pool_size=-1, can_over=True, pool_bytes=1 << 30, cached=False),
    seeds,
)
def test_pd_33_by_default_the_first_batch_is_cut_when_every_sample_waits(
    files: list[File], options: Options, timing: int
) -> None:
    found = stream(files, options, timing=timing)
    assert found.pool_weights[:1] == [sum(row_of(files, name).weight for name in names(files))] * bool(found.batches)


@pytest.mark.parametrize("pass_id", [0, 1])
def test_pd_33_or_when_pool_bytes_are_reached(pass_id: int) -> None:
    files = [File([Row(1, 10)] * 100)] * 5
    options = Options(batch_size=8, pool_bytes=205, cached=True)
    found = stream(files, options, pass_id)
    assert found == expect(files, options, pass_id)
    assert found.pool_weights[0] == 21  # 20 of 10 bytes are not yet 205
    assert len(flat(found.batches)) == 500


@property_test
@given(
    lists(),
    st.integers(1, 60),
    options(shuffle=True, can_over=True, last_batch="keep", pool_bytes=1 << 30, cached=False),
    seeds,
)
def test_pd_34_at_least_min_pool_size_waits_when_a_batch_is_cut(
    files: list[File], least: int, options: Options, timing: int
) -> None:
    options = replace(options, min_pool_size=least, pool_size=-1)
    found = stream(files, options, timing=timing)
    remaining = sum(row_of(files, name).weight for name in names(files))
    for batch, weight in zip(found.batches, found.pool_weights, strict=True):
        assert weight >= min(max(least, options.batch_size), remaining)
        remaining -= sum(row_of(files, name).weight for name in batch)


@property_test
@given(lists(), st.integers(1, 60), options(shuffle=True, can_over=True, pool_bytes=1 << 30, cached=False), seeds)
def test_pd_35_the_pool_never_weighs_more_than_its_size_and_one_sample(
    files: list[File], size: int, options: Options, timing: int
) -> None:
    options = replace(options, pool_size=size)
    heaviest = max((row_of(files, name).weight for name in names(files)), default=0)
    for weight in stream(files, options, timing=timing).pool_weights:
        assert weight <= max(size, options.batch_size) - 1 + heaviest


@property_test
@given(lists(), options(shuffle=True, last_batch="keep", can_over=True, pool_bytes=1 << 30), seeds)
def test_pd_36_a_pool_smaller_than_the_batch_neither_hangs_nor_loses(
    files: list[File], options: Options, timing: int
) -> None:
    options = replace(options, batch_size=12, pool_size=3)
    assert sorted(flat(stream(files, options, timing=timing).batches)) == names(files)


@property_test
@given(lists(), options(can_over=False, batch_size=9, last_batch="keep", pool_bytes=1 << 30), st.integers(0, 1), seeds)
def test_pd_38_without_can_over_no_batch_is_too_heavy_and_nothing_is_lost(
    files: list[File], options: Options, pass_id: int, timing: int
) -> None:
    sizes: list[int] = []
    found = stream(files, options, pass_id, timing=timing, sizes=sizes)
    assert max(sizes, default=0) <= 9
    assert sorted(flat(found.batches)) == names(files)


@property_test
@given(lists(), options(can_over=True, last_batch="keep", pool_bytes=1 << 30), seeds)
def test_pd_39_with_can_over_a_batch_exceeds_by_less_than_its_last_sample(
    files: list[File], options: Options, timing: int
) -> None:
    found = stream(files, options, timing=timing)
    for batch in found.batches:
        weights = [row_of(files, name).weight for name in batch]
        assert sum(weights[:-1]) < options.batch_size
    assert sorted(flat(found.batches)) == names(files)


@pytest.mark.parametrize("shuffle", [True, False])
def test_pd_40_a_sample_heavier_than_the_batch_is_an_error_and_not_the_end(shuffle: bool) -> None:
    files = [File([Row(1)] * 10 + [Row(5)] + [Row(1)] * 10)]
    options = Options(batch_size=4, can_over=False, pool_size=4, shuffle=shuffle)
    found = stream(files, options)
    assert found.error == ("too large", 0, 10)
    assert len(found.batches) == 2  # the full batches before it
    assert found == expect(files, options)


@property_test
@given(lists(), options(can_over=True, pool_bytes=1 << 30), seeds)
def test_pd_41_the_size_of_a_batch_is_its_weight(files: list[File], options: Options, timing: int) -> None:
    sizes: list[int] = []
    found = stream(files, options, timing=timing, sizes=sizes)
    rows = [[row_of(files, name).weight for name in batch] for batch in found.batches]
    if found.padding:
        del rows[-1][-found.padding :]
    assert sizes == [sum(weights) for weights in rows]


@property_test
@given(lists(weighted=False), options(can_over=True, pool_bytes=1 << 30), seeds)
def test_pd_42_the_last_smaller_batch_is_delivered_dropped_or_padded_as_asked(
    files: list[File], options: Options, timing: int
) -> None:
    found = stream(files, options, timing=timing)
    whole, rest = divmod(len(names(files)), options.batch_size)
    kept = bool(rest) and options.last_batch != "drop"
    assert [len(b) for b in found.batches[:whole]] == [options.batch_size] * whole
    assert len(found.batches) == whole + kept
    if kept and options.last_batch == "pad":
        assert found.padding == options.batch_size - rest
        last = found.batches[-1]
        assert last[rest:] == [last[i % rest] for i in range(found.padding)]
    elif kept:
        assert len(found.batches[-1]) == rest


def test_pd_42_a_rest_of_samples_without_weight_is_a_last_batch_of_size_0() -> None:
    files = [File([Row(1)] * 4 + [Row(0)] * 3)]
    sizes: list[int] = []
    found = stream(files, Options(batch_size=4, shuffle=False), sizes=sizes)
    assert [len(b) for b in found.batches] == [4, 3]
    assert sizes == [4, 0]


def test_the_end_of_a_file_hands_its_turn_to_the_next_file() -> None:
    """Many files shorter than a turn: one file of the cycle takes them one after another within the same turn."""
    files = [File([Row()] * (1 + i % 3)) for i in range(60)]
    options = Options(batch_size=5, interleave=2, pool_size=5)
    assert stream(files, options, chunk=1) == expect(files, options)


@property_test
@given(lists(), options(can_over=True, last_batch="keep", pool_bytes=1 << 30, cached=False), seeds)
def test_relaxed_order_gives_the_same_samples(files: list[File], options: Options, timing: int) -> None:
    found = stream(files, options, timing=timing, relaxed=True)
    assert sorted(flat(found.batches)) == names(files)


def test_another_pass_and_another_seed_are_another_order() -> None:
    files = [File([Row()] * 40)] * 20
    first = stream(files, Options(batch_size=8))
    assert first == stream(files, Options(batch_size=8), timing=9)
    assert first != stream(files, Options(batch_size=8), pass_id=1)
    assert first != stream(files, Options(batch_size=8, seed=1))
