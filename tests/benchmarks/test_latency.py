"""The time inside ``next()``: what counts, what does not, and the step after it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.latency import SKIPPED, STEPS, WORKLOADS, Felt, TooFewBatches, compute, exposed

SLOW = 0.03


def batches(count: int, slow: set[int]) -> Iterator[int]:
    for number in range(count):
        if number in slow:
            time.sleep(SLOW)
        yield number


def test_the_time_that_next_takes_is_told_from_that_of_the_step() -> None:
    felt = Felt(1.0)
    began = time.perf_counter()
    assert list(felt.stepping(batches(SKIPPED + 10, {0, SKIPPED + 3}))) == list(range(SKIPPED + 10))
    assert time.perf_counter() - began >= 2 * SLOW + 0.001 * (SKIPPED + 10)
    assert [number for number, taken in enumerate(felt.times) if taken >= SLOW][:1] == [0]
    figures = felt.figures()
    assert figures["steps"] == 10
    assert figures["late"] >= 0.1
    assert figures["p50"] <= figures["p99"] <= figures["max"]
    assert figures["max"] >= SLOW * 1000


def test_what_makes_arrays_of_a_batch_is_a_part_of_next() -> None:
    def convert(batch: int) -> int:
        time.sleep(SLOW)
        return batch + 100

    felt = Felt(0.1, convert)
    assert list(felt.stepping(batches(2, set()))) == [100, 101]
    assert min(felt.times) >= SLOW


def test_a_pass_without_a_batch_that_counts_is_refused() -> None:
    felt = Felt(0.1)
    list(felt.stepping(batches(SKIPPED, set())))
    with pytest.raises(
        TooFewBatches, match=f"the first {SKIPPED} batches of a pass are left out, and it had {SKIPPED}"
    ):
        felt.figures()


def test_a_step_computes_for_as_long_as_it_says() -> None:
    began, busy = time.perf_counter(), time.thread_time()
    numbers = np.zeros(1000, np.float32)
    compute(0.05, numbers)
    assert time.perf_counter() - began >= 0.05
    assert time.thread_time() > busy
    assert numbers.min() > 0


def test_there_is_a_step_for_each_workload_that_is_measured() -> None:
    assert set(WORKLOADS) <= set(STEPS)


def test_the_exposed_share_is_that_of_the_waits() -> None:
    figures = exposed([0.01, 0.01, 0.03, 0.0], [0.1, 0.1, 0.1, 0.05])
    assert np.isclose(figures.pop("exposed"), 0.05 / 0.4)
    assert np.isclose(figures["step"], 100.0)
    assert np.isclose(figures["work"], 87.5)
    assert np.isclose(figures["p50"], 10.0)
    assert np.isclose(figures["max"], 30.0)
    assert figures["steps"] == 4
