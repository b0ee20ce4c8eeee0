"""Many workers: they are used in full, whatever their number, and the order is that of one."""

from __future__ import annotations

import pytest

from benchmarks.many import Scene, World, ready_seconds
from pydp2.server.gateway.resources import read_ahead_budget

from ..order.oracle import File, Options, Row, expect


@pytest.mark.parametrize(("workers", "files", "budget"), [(64, 640, 1 << 30), (64, 640, 256 << 20), (2, 60, 256 << 20)])
def test_workers_are_used_and_the_order_is_exact(workers: int, files: int, budget: int) -> None:
    """Files of 0.5 MB, ten and more a worker: those that wait at workers do not take the credit of the others."""
    sizes, cost = (20,) * files, 25_000
    outcome = World(Scene(workers=workers, sizes=sizes, budget=budget, cost=cost, seconds=0.025)).run()
    assert outcome.use >= 0.9
    rows = [File([Row(1, cost)] * count) for count in sizes]
    assert outcome.batches == expect(rows, Options(batch_size=128, seed=1, pool_size=4096), 0, None).batches


def test_a_worker_without_a_file_takes_over_one_that_another_has_not_begun() -> None:
    """Five files a worker: at the end of the pass some workers would have two more, and others none."""
    outcome = World(Scene(workers=8, sizes=(200,) * 40, budget=256 << 20, cost=100, seconds=0.004)).run()
    assert outcome.use >= 0.97
    rows = [File([Row(1, 100)] * 200)] * 40
    assert outcome.batches == expect(rows, Options(batch_size=128, seed=1, pool_size=4096), 0, None).batches


@pytest.mark.parametrize(
    ("workers", "limit", "ahead"), [(2, 1 << 40, 256), (16, 1 << 40, 256), (64, 1 << 40, 1024), (64, 1 << 29, 256)]
)
def test_more_is_read_ahead_where_there_are_many_workers_if_the_memory_limit_allows(
    workers: int, limit: int, ahead: int
) -> None:
    assert read_ahead_budget(workers, limit) == ahead << 20


def test_a_thousand_workers_get_ready_in_little_time_of_the_loop() -> None:
    assert ready_seconds(1000) < 1.0  # 0.1 s on a machine that has time
