"""A cached pass drawn straight from the cache, or through a merge from there, against the same pass through merge and
store: bit by bit the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydp2.cache.memory import PassCache
from pydp2.inputs import Packer, Slots, integer_value, integer_value_sequence
from pydp2.inputs.declaration import Declaration
from pydp2.inputs.shelf import Layout, Shelf
from pydp2.order import Buckets, Run
from pydp2.order.saved import Saved
from pydp2.order.whole import Whole
from pydp2.server.claims import Claims
from pydp2.server.job import Broke, Group, Job, JobPlan, Over

SLOTS = Slots((integer_value(1 << 20), integer_value_sequence(1 << 20)), ("n", "s"))
LIMIT = 1 << 20
Files = Sequence[Sequence[int]]
"""Of each file the weights of its samples."""


def claims_of(files: Files, *, shelf: bool, order: Sequence[int], chunk: int = 5, limit: int = LIMIT) -> Claims:
    """Filled in this ``order``, in pieces."""
    layout = Layout(SLOTS, limit)
    cache: PassCache[Run] = PassCache(limit, Shelf(layout, bytearray(layout.size)) if shelf else None)
    for file in order:
        for lo in range(0, len(files[file]), chunk):
            weights = np.array(files[file][lo : lo + chunk], np.int64)
            packer = Packer(SLOTS, strict=False)
            for y in range(lo - 1, lo + len(weights)):  # rows of others lie before them
                packer.add([1000 * file + max(y, 0), [y] * (max(y, 0) % 7)])
            columns = packer.cut().columns
            ordinals = np.arange(lo - 1, lo + len(weights))
            plain = None if (weights == 1).all() else np.concatenate([[0], weights])
            cache.offer(file, Run(columns, 1, len(weights) + 1, ordinals, columns.sample_bytes(), plain))
        cache.complete(file)
    return Claims(cache)


@dataclass(frozen=True)
class Case:
    batch_size: int = 4
    seed: int = 0
    can_over: bool = True
    last_batch: str = "keep"
    order: str = "strict"
    pool_bytes: int = 1 << 30
    shuffle: bool = True


def job_of(files: Files, case: Case, claims: Claims, *, buckets: Buckets | None = None) -> Job:
    declaration = Declaration(
        slots=SLOTS, shuffle=case.shuffle, pool_size=-1, min_pool_size=-1, can_over_batch_size=case.can_over,
        weighted=any(weight != 1 for file in files for weight in file), cache=1, check=True, check_fail_continue=False,
    )  # fmt: skip
    plan = JobPlan(case.batch_size, case.seed, case.shuffle, case.order, 3, case.pool_bytes, case.last_batch, buckets)
    return Job(
        plan, declaration, files=len(files), label=str, budget=1 << 20, workers=2, skip_errors=False, cache=claims
    )


def told(job: Job, outcome: Any) -> Any:
    """All that can be seen of an outcome."""
    pool = {name: value for name, value in job.pool().items() if name != "memory"}
    seen = (pool, job.samples, job.batches, job.total_samples, job.reading and job.reading.losses.dropped)
    if isinstance(outcome, Broke):
        return str(outcome.error)
    if isinstance(outcome, Over):
        return outcome, seen
    assert isinstance(outcome, Group)
    batches = [
        (
            each.cut.index, each.cut.size, each.cut.pool_weight, each.cut.padding, each.cut.gone, each.cut.longest,
            each.cut.nbytes, each.picked.nbytes, each.bucket, each.picked.columns().samples(),
        )
        for each in outcome.batches
    ]  # fmt: skip
    return batches, outcome.after, outcome.gone, outcome.point, outcome.facts, seen


def one_pass(job: Job, whole: bool, **how: Any) -> list[Any]:
    job.begin(how.pop("pass_id", 1), **how)
    assert isinstance(job._stream, Whole) is whole
    said = []
    while True:
        outcome = job.next()
        assert outcome is not None, "nothing has to be waited for"
        said.append(told(job, outcome))
        if not isinstance(outcome, Group):
            return said


weights = st.lists(st.lists(st.sampled_from([0, 1, 1, 1, 2, 3]), max_size=25), min_size=1, max_size=8)
ones = st.lists(st.lists(st.just(1), max_size=25), min_size=1, max_size=8)
cases = st.builds(
    Case, st.integers(3, 12), st.integers(0, 5), st.booleans(), st.sampled_from(["keep", "drop", "pad"]),
    st.sampled_from(["strict", "strict", "relaxed"]),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.one_of(weights, ones), cases, st.integers(1, 3), st.randoms(use_true_random=False), st.data())
def test_it_is_the_pass_that_merge_and_store_would_make(
    files: Files, case: Case, world: int, random: Random, data: st.DataObject
) -> None:
    order = list(range(len(files)))
    random.shuffle(order)
    jobs = [job_of(files, case, claims_of(files, shelf=shelf, order=order)) for shelf in (True, False)]
    for pass_id in (1, 2):
        quick, slow = (
            one_pass(job, whole, pass_id=pass_id, world=world) for job, whole in zip(jobs, (True, False), strict=True)
        )
        assert quick == slow
    beyond = data.draw(st.sets(st.integers(0, len(quick)), max_size=3))
    batch = data.draw(st.integers(0, max(0, len(quick) - 2)))
    quick, slow = (
        one_pass(job, whole, batch=batch, beyond=beyond) for job, whole in zip(jobs, (True, False), strict=True)
    )
    assert quick == slow


@settings(max_examples=60, deadline=None)
@given(st.one_of(weights, ones), cases, st.integers(1, 2), st.data())
def test_a_state_from_the_middle_of_it_goes_on_as_if_it_had_never_stopped(
    files: Files, case: Case, world: int, data: st.DataObject
) -> None:
    case = replace(case, order="strict")
    quick, slow = (job_of(files, case, claims_of(files, shelf=shelf, order=range(len(files)))) for shelf in (1, 0))
    said = one_pass(quick, True, world=world)
    groups = [each for each in said if len(each) == 6]
    if not groups:
        return
    number = data.draw(st.integers(0, len(groups) - 1))
    _, after, gone, point, *_ = groups[number]
    assert isinstance(point, Saved)
    assert point.ended
    saved = replace(point, index=after, offset=gone)
    for job in (quick, slow):
        rest = one_pass(job, False, batch=after, saved=saved, world=world)
        assert [each[0] for each in rest if len(each) == 6] == [each[0] for each in groups[number + 1 :]]


some_buckets = st.sampled_from([None, Buckets(1, (3,), automatic=False, count=2)])


@settings(max_examples=150, deadline=None)
@given(st.one_of(weights, ones), cases, some_buckets, st.booleans(), st.integers(60, 2000), st.booleans(), st.data())
def test_a_pass_that_needs_a_merge_takes_from_the_cache_what_it_would_copy_into_a_store(
    files: Files, case: Case, buckets: Buckets | None, shuffle: bool, room: int, dropped: bool, data: st.DataObject
) -> None:
    case = replace(case, shuffle=shuffle, pool_bytes=room)
    pass_id = data.draw(st.integers(0, 2))
    found = []
    for shelf in (True, False):
        claims = claims_of(files, shelf=shelf, order=range(len(files)))
        assert claims.cache is not None
        if dropped:
            claims.cache.offer(len(files), None, [[0, "n", "as it has to be"]])
            claims.cache.complete(len(files))
        job = job_of([*files, []] if dropped else files, case, claims, buckets=buckets)
        job.begin(pass_id)
        assert isinstance(job._store, Shelf) is shelf
        assert not shelf or job.pool()["memory"] == 0
        found.append(one_pass(job, isinstance(job._stream, Whole), pass_id=pass_id))
    assert found[0] == found[1]


def test_what_lies_elsewhere_has_no_number_on_a_shelf() -> None:
    cache = claims_of([[1] * 9], shelf=True, order=[0]).cache
    assert cache is not None
    shelf = cache.shelf
    assert shelf is not None
    columns = cache.runs(0)[1].columns
    assert shelf.found(columns).tolist() == [5, 6, 7, 8]
    assert shelf.found(columns.slice(1, 3)).tolist() == [6, 7]
    assert shelf.found(columns.slice(2, 2)).tolist() == []
    with pytest.raises(ValueError, match="do not lie on the shelf"):
        shelf.found(columns.take([0, 1]))


def ordinary(files: Files, case: Case = Case(), **how: Any) -> bool:
    """Whether the pass goes the ordinary way."""
    claims = how.pop("claims", None) or claims_of(files, shelf=True, order=how.pop("order", range(len(files))))
    job = job_of(files, case, claims, buckets=how.pop("buckets", None))
    job.begin(how.pop("pass_id", 1), **how)
    return not isinstance(job._stream, Whole)


FILES = [[1] * 5, [1] * 7]


def test_only_a_pass_that_is_all_in_the_cache_and_one_tail_is_drawn_from_it() -> None:
    assert not ordinary(FILES)
    assert ordinary(FILES, pass_id=0)
    assert ordinary(FILES, order=[1])
    assert ordinary(FILES, Case(shuffle=False))
    assert ordinary(FILES, buckets=Buckets(1, (3,), automatic=False, count=2))
    assert ordinary(FILES, facts={0: (3, "as it has to be")})
    assert ordinary(FILES, claims=claims_of(FILES, shelf=False, order=[0, 1]))


def test_nor_is_one_whose_samples_the_pool_cannot_hold_at_once() -> None:
    size = sum(8 + 4 * (y % 7) for file in FILES for y in range(len(file)))
    claims = claims_of(FILES, shelf=True, order=[0, 1])
    assert claims.cache is not None
    assert claims.cache.shelf is not None
    assert claims.cache.shelf.nbytes == size
    assert not ordinary(FILES, Case(pool_bytes=size + 1))
    assert ordinary(FILES, Case(pool_bytes=size))


def test_nor_one_with_dropped_samples() -> None:
    claims = claims_of(FILES, shelf=True, order=[1])
    assert claims.cache is not None
    claims.cache.offer(0, None, [[0, "n", "as it has to be"]])
    claims.cache.complete(0)
    assert len(claims.cache) == 2
    assert ordinary(FILES, claims=claims)


@pytest.mark.parametrize("can_over", [True, False])
def test_a_sample_that_no_batch_can_hold_fails_where_the_merge_meets_it(can_over: bool) -> None:
    files = [[1, 1], [1, 9, 1], [9]]
    case = Case(can_over=can_over)
    assert ordinary(files, case) is not can_over
    quick, slow = (
        one_pass(job_of(files, case, claims_of(files, shelf=shelf, order=[0, 1, 2])), shelf and can_over)
        for shelf in (True, False)
    )
    assert quick == slow
