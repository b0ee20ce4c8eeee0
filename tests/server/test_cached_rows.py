"""A cached pass drawn straight from the cache, or through a merge from there, against the same pass through merge and
store: bit by bit the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.block_list import BlockList
from pydp2.data.packers.packer import Packer
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.region import RegionLayout
from pydp2.data.schema.input_types import Slots, integer_value, integer_value_sequence
from pydp2.data.schema.provider_schema import Schema
from pydp2.order.cached_pass import CachedPassBatcher
from pydp2.order.plan import BucketPlan
from pydp2.order.sample_source import SampleRun
from pydp2.order.snapshot import SnapshotPoint
from pydp2.order.stream_state import StreamState
from pydp2.server.cache.memory import MemoryCache
from pydp2.server.dispatch.blocked_samples import BlockedSamples
from pydp2.server.dispatch.cache_fill import CacheFill
from pydp2.server.dispatch.file_dispatcher import ReadContext
from pydp2.server.jobs.groups import BatchGroup, PassBroken, PassEnded
from pydp2.server.jobs.pass_stream import JobStream, PassStream
from pydp2.server.jobs.plan import JobPlan

SLOTS = Slots((integer_value(1 << 20), integer_value_sequence(1 << 20)), ("n", "s"))
LIMIT = 1 << 20
Files = Sequence[Sequence[int]]
"""Of each file the weights of its samples."""


def cache_fill_of(
    files: Files,
    *,
    row_store: bool,
    order: Sequence[int],
    chunk: int = 5,
    limit: int = LIMIT,
    block_list: BlockList | None = None,
) -> CacheFill:
    """Filled in this ``order``, in pieces."""
    layout = RegionLayout(SLOTS, limit)
    cache: MemoryCache[SampleRun] = MemoryCache(
        limit, AppendOnlyStore(layout, bytearray(layout.size)) if row_store else None, block_list
    )
    for file in order:
        for lo in range(0, len(files[file]), chunk):
            weights = np.array(files[file][lo : lo + chunk], np.int64)
            packer = Packer(SLOTS, strict=False)
            for y in range(lo - 1, lo + len(weights)):  # rows of others lie before them
                packer.add([1000 * file + max(y, 0), [y] * (max(y, 0) % 7)])
            columns = packer.finish().columns
            sample_indices = np.arange(lo - 1, lo + len(weights))
            plain = None if (weights == 1).all() else np.concatenate([[0], weights])
            cache.offer(file, SampleRun(columns, 1, len(weights) + 1, sample_indices, columns.sample_bytes(), plain))
        cache.finish_file(file)
    return CacheFill(cache)


@dataclass(frozen=True)
class Case:
    batch_size: int = 4
    seed: int = 0
    can_over: bool = True
    last_batch: str = "keep"
    order: str = "strict"
    pool_bytes: int = 1 << 30
    shuffle: bool = True


def job_of(files: Files, case: Case, cache_fill: CacheFill, *, buckets: BucketPlan | None = None) -> JobStream:
    schema = Schema(
        slots=SLOTS, shuffle=case.shuffle, pool_size=-1, min_pool_size=-1, can_over_batch_size=case.can_over,
        weighted=any(weight != 1 for file in files for weight in file), cache=1, check=True, check_fail_continue=False,
    )  # fmt: skip
    plan = JobPlan(case.batch_size, case.seed, case.shuffle, case.order, 3, case.pool_bytes, case.last_batch, buckets)
    assert cache_fill.memory is not None
    blocked = BlockedSamples(cache_fill.memory.block_list, str)
    context = ReadContext(label=str, budget=1 << 20, workers=2, cache=cache_fill, blocked=blocked)
    return JobStream(plan, schema, context, files=range(len(files)))


def told(job: JobStream, outcome: Any) -> Any:
    """All that can be seen of an outcome."""
    stats = job.stats()
    pool = {name: value for name, value in stats["pool"].items() if name != "memory"}
    seen = (pool, *(stats[name] for name in ("samples_in_pass", "batches_in_pass", "samples", "dropped")))
    if isinstance(outcome, PassBroken):
        return str(outcome.error)
    if isinstance(outcome, PassEnded):
        return outcome, seen
    assert isinstance(outcome, BatchGroup)
    batches = [
        (
            each.cut.index, each.cut.size, each.cut.pool_weight, each.cut.padding, each.cut.tail_consumed,
            each.cut.bucket_bound, each.cut.nbytes, each.rows.nbytes, each.bucket, each.rows.columns().samples(),
        )
        for each in outcome.batches
    ]  # fmt: skip
    after = outcome.after
    return batches, after.batch, after.tail[1], after.point, after.early_ends, seen


def begin(job: JobStream, pass_id: int = 1, world: int = 1, **at: Any) -> PassStream:
    return job.open(StreamState(pass_id, **at), world)


def one_pass(job: JobStream, whole: bool, **how: Any) -> list[Any]:
    stream = begin(job, **how)
    assert isinstance(stream._batcher, CachedPassBatcher) is whole
    said = []
    while True:
        outcome = stream.next_group()
        assert outcome is not None, "nothing has to be waited for"
        said.append(told(job, outcome))
        if not isinstance(outcome, BatchGroup):
            return said


weights = st.lists(st.lists(st.sampled_from([0, 1, 1, 1, 2, 3]), max_size=25), min_size=1, max_size=8)
ones = st.lists(st.lists(st.just(1), max_size=25), min_size=1, max_size=8)
cases = st.builds(
    Case, st.integers(3, 12), st.integers(0, 5), st.booleans(), st.sampled_from(["keep", "drop", "pad"]),
    st.sampled_from(["strict", "strict", "relaxed"]),
)  # fmt: skip


@given(st.one_of(weights, ones), cases, st.integers(1, 3), st.randoms(use_true_random=False), st.data())
def test_it_is_the_pass_that_merge_and_store_would_make(
    files: Files, case: Case, world: int, random: Random, data: st.DataObject
) -> None:
    order = list(range(len(files)))
    random.shuffle(order)
    names = st.tuples(st.integers(0, len(files) - 1), st.integers(0, 26))
    blocked = np.array([*data.draw(st.sets(names, max_size=30))], np.int64).reshape(-1, 2).T
    filled = [
        cache_fill_of(files, row_store=row_store, order=order, block_list=BlockList.of_samples(*blocked))
        for row_store in (True, False)
    ]
    jobs = [job_of(files, case, cache_fill) for cache_fill in filled]
    for pass_id in (1, 2):
        quick, slow = (
            one_pass(job, whole, pass_id=pass_id, world=world) for job, whole in zip(jobs, (True, False), strict=True)
        )
        assert quick == slow
    beyond = data.draw(st.sets(st.integers(0, len(quick)), max_size=3))
    batch = data.draw(st.integers(0, max(0, len(quick) - 2)))
    quick, slow = (
        one_pass(job, whole, batch=batch, acknowledged_ahead=[*beyond])
        for job, whole in zip(jobs, (True, False), strict=True)
    )
    assert quick == slow


@given(st.one_of(weights, ones), cases, st.integers(1, 2), st.data())
def test_a_state_from_the_middle_of_it_goes_on_as_if_it_had_never_stopped(
    files: Files, case: Case, world: int, data: st.DataObject
) -> None:
    case = replace(case, order="strict")
    quick, slow = (
        job_of(files, case, cache_fill_of(files, row_store=row_store, order=range(len(files)))) for row_store in (1, 0)
    )
    said = one_pass(quick, True, world=world)
    groups = [each for each in said if len(each) == 6]
    if not groups:
        return
    number = data.draw(st.integers(0, len(groups) - 1))
    _, after, gone, point, *_ = groups[number]
    assert isinstance(point, SnapshotPoint)
    assert point.in_tail
    saved = replace(point, batch_index=after, tail_consumed=gone)
    for job in (quick, slow):
        rest = one_pass(job, False, batch=after, point=saved, world=world)
        assert [each[0] for each in rest if len(each) == 6] == [each[0] for each in groups[number + 1 :]]


some_buckets = st.sampled_from([None, BucketPlan(1, (3,), automatic=False, max_buckets=2)])


@given(st.one_of(weights, ones), cases, some_buckets, st.booleans(), st.integers(60, 2000), st.booleans(), st.data())
def test_a_pass_that_needs_a_merge_takes_from_the_cache_what_it_would_copy_into_a_store(
    files: Files, case: Case, buckets: BucketPlan | None, shuffle: bool, room: int, dropped: bool, data: st.DataObject
) -> None:
    case = replace(case, shuffle=shuffle, pool_bytes=room)
    pass_id = data.draw(st.integers(0, 2))
    found = []
    for row_store in (True, False):
        cache_fill = cache_fill_of(files, row_store=row_store, order=range(len(files)))
        assert cache_fill.memory is not None
        if dropped:
            cache_fill.memory.offer(len(files), None, [[0, "n", "as it has to be"]])
            cache_fill.memory.finish_file(len(files))
        job = job_of([*files, []] if dropped else files, case, cache_fill, buckets=buckets)
        stream = begin(job, pass_id)
        assert isinstance(stream._store, AppendOnlyStore) is row_store
        assert not row_store or job.stats()["pool"]["memory"] == 0
        found.append(one_pass(job, isinstance(stream._batcher, CachedPassBatcher), pass_id=pass_id))
    assert found[0] == found[1]


def test_what_lies_elsewhere_has_no_number_in_the_cache() -> None:
    cache = cache_fill_of([[1] * 9], row_store=True, order=[0]).memory
    assert cache is not None
    row_store = cache.row_store
    assert row_store is not None
    columns = cache.runs_of(0)[1].columns
    assert row_store.append(columns).tolist() == [5, 6, 7, 8]
    assert row_store.append(columns.slice(1, 3)).tolist() == [6, 7]
    assert row_store.append(columns.slice(2, 2)).tolist() == []
    with pytest.raises(ValueError, match="not in the append-only store"):
        row_store.append(columns.take([0, 1]))


def ordinary(files: Files, case: Case = Case(), **how: Any) -> bool:
    """Whether the pass goes the ordinary way."""
    cache_fill = how.pop("cache_fill", None) or cache_fill_of(
        files, row_store=True, order=how.pop("order", range(len(files)))
    )
    job = job_of(files, case, cache_fill, buckets=how.pop("buckets", None))
    return not isinstance(begin(job, **how)._batcher, CachedPassBatcher)


FILES = [[1] * 5, [1] * 7]


def test_only_a_pass_that_is_all_in_the_cache_and_one_tail_is_drawn_from_it() -> None:
    assert not ordinary(FILES)
    assert ordinary(FILES, pass_id=0)
    assert ordinary(FILES, order=[1])
    assert ordinary(FILES, Case(shuffle=False))
    assert ordinary(FILES, buckets=BucketPlan(1, (3,), automatic=False, max_buckets=2))
    assert ordinary(FILES, early_ends={0: (3, "as it has to be")})
    assert ordinary(FILES, cache_fill=cache_fill_of(FILES, row_store=False, order=[0, 1]))


def test_nor_is_one_whose_samples_the_pool_cannot_hold_at_once() -> None:
    size = sum(8 + 4 * (y % 7) for file in FILES for y in range(len(file)))
    cache_fill = cache_fill_of(FILES, row_store=True, order=[0, 1])
    assert cache_fill.memory is not None
    assert cache_fill.memory.row_store is not None
    assert cache_fill.memory.sample_set().nbytes == size
    assert not ordinary(FILES, Case(pool_bytes=size + 1))
    assert ordinary(FILES, Case(pool_bytes=size))


def test_nor_one_with_dropped_samples() -> None:
    cache_fill = cache_fill_of(FILES, row_store=True, order=[1])
    assert cache_fill.memory is not None
    cache_fill.memory.offer(0, None, [[0, "n", "as it has to be"]])
    cache_fill.memory.finish_file(0)
    assert len(cache_fill.memory) == 2
    assert ordinary(FILES, cache_fill=cache_fill)


@pytest.mark.parametrize("can_over", [True, False])
def test_a_sample_that_no_batch_can_hold_fails_where_the_merge_meets_it(can_over: bool) -> None:
    files = [[1, 1], [1, 9, 1], [9]]
    case = Case(can_over=can_over)
    assert ordinary(files, case) is not can_over
    quick, slow = (
        one_pass(
            job_of(files, case, cache_fill_of(files, row_store=row_store, order=[0, 1, 2])), row_store and can_over
        )
        for row_store in (True, False)
    )
    assert quick == slow
