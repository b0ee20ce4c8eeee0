"""Counters and what they say. Times are arguments, so nothing here waits."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.server.jobs.session import bottleneck_of
from pydp2.system.process_memory import private_bytes, resident_bytes
from pydp2.system.rates import RateCounter


def test_a_steady_flow_has_its_rate_and_total() -> None:
    rates = RateCounter()
    for i in range(1000):
        rates.add(100 + i * 0.01, 5)
    assert rates.total == 5000
    assert rates.per_second(110) == pytest.approx(500, rel=0.1)


def test_before_anything_was_counted_the_rate_is_nothing() -> None:
    assert RateCounter().per_second(5) == 0
    rates = RateCounter()
    rates.add(5, 0)
    assert rates.per_second(5) == 0


def test_a_rate_follows_a_change_and_forgets_within_five_seconds() -> None:
    rates = RateCounter()
    for i in range(100):
        rates.add(i * 0.1, 100)
    assert rates.per_second(10) == pytest.approx(1000, rel=0.1)
    assert rates.per_second(12.5) == pytest.approx(500, rel=0.15)
    assert rates.per_second(16) == 0
    assert rates.total == 10_000


def test_a_count_after_a_pause_was_done_in_all_of_the_pause() -> None:
    rates = RateCounter()
    for i in range(100):
        rates.add(i * 0.1, 100)
    rates.add(110, 100)
    assert rates.per_second(110.1) == pytest.approx(1, rel=0.05)
    for i in range(60):
        rates.add(110 + i * 0.1, 100)
    assert rates.per_second(116) == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize(("interval", "count"), [(0.5, 1), (3, 32), (6, 32), (12, 64), (15, 32)])
@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_counts_seconds_apart_have_their_rate_at_any_time(interval: float, count: int, at_once: int) -> None:
    rates, now = RateCounter(), 0.0
    for i in range(20):
        for part in range(at_once):
            rates.add(i * interval + part * 0.01, count)
        for step in range(20 if i > 12 else 0):
            now = i * interval + 0.05 + step * (interval - 0.1) / 20
            assert rates.per_second(now) == pytest.approx(count * at_once / interval, rel=0.1), (i, step)
    assert rates.per_second(now + 60 + interval) < count * at_once / interval / 10


def test_the_first_count_has_its_rate_where_it_is_known_when_its_work_began() -> None:
    rates = RateCounter()
    rates.add(100, 0)
    assert rates.per_second(101) == 0
    rates.add(106, 32)
    assert rates.per_second(107) == pytest.approx(32 / 6, rel=0.05)
    rates.add(112, 32)
    assert rates.per_second(113) == pytest.approx(32 / 6, rel=0.05)


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 1000)), max_size=200))
def test_whatever_is_counted_a_rate_is_finite_and_memory_bounded(steps: list[tuple[float, int]]) -> None:
    rates, now = RateCounter(), 0.0
    for wait, count in steps:
        now += wait
        rates.add(now, count)
        assert 0 <= rates.per_second(now) <= sum(c for _, c in steps)
        assert len(rates._points) <= 44
    assert rates.total == sum(count for _, count in steps)


@pytest.mark.parametrize(
    ("waited", "worked", "word"),
    [
        (0, 0, ""),
        (0.01, 0.01, ""),
        (10, 0, "workers"),
        (4, 6, "workers"),
        (2, 8, "balanced"),
        (0.5, 9.5, "trainer"),
        (0, 10, "trainer"),
    ],
)
def test_who_waits_for_whom_in_one_word(waited: float, worked: float, word: str) -> None:
    assert bottleneck_of(waited, worked) == word


@pytest.mark.parametrize(("waited", "word"), [(9, "rank 1"), (2, "rank 1"), (0.5, "trainer"), (0, "trainer")])
def test_the_rank_that_others_wait_for_is_the_bottleneck_and_not_the_workers(waited: float, word: str) -> None:
    assert bottleneck_of(waited, 10 - waited, "rank 1") == word


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_a_process_is_its_resident_part() -> None:
    before = resident_bytes(os.getpid())
    assert before > 1 << 20
    with mmap.mmap(-1, 64 << 20) as block:  # new pages: a bytearray may get some that the process has already
        for at in range(0, len(block), 1 << 12):
            block[at] = 1
        assert resident_bytes(os.getpid()) - before > 50 << 20


def test_of_a_process_that_is_gone_no_memory_is_known() -> None:
    assert not resident_bytes(2**22 + 1)


def test_shared_memory_can_be_left_out() -> None:
    """In a process of its own, in which nothing else is freed meanwhile."""
    code = """
import mmap, os
from pydp2.system.process_memory import private_bytes, resident_bytes
before = private_bytes(os.getpid()), resident_bytes(os.getpid())
common, own = mmap.mmap(-1, 80 << 20), bytearray(40 << 20)
for block in (common, own):
    for at in range(0, len(block), mmap.PAGESIZE):
        block[at] = 1
print(private_bytes(os.getpid()) - before[0], resident_bytes(os.getpid()) - before[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    unshared, all_of_it = map(int, done.stdout.split())
    assert 30 << 20 < unshared < 60 << 20
    assert all_of_it > 110 << 20
    assert not private_bytes(2**22 + 1)
