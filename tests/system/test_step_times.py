"""Shares of waiting in the last steps of a trainer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.system.step_times import StepTimes

SECONDS = st.floats(0, 100, allow_subnormal=False)
STEPS = st.lists(st.tuples(SECONDS, SECONDS, st.integers(1, 9)), max_size=40)


def test_no_steps_have_no_shares() -> None:
    assert StepTimes().summary() == dict.fromkeys(
        ("exposed", "exposed_p50", "exposed_p99", "step_seconds", "wait_seconds"), 0.0
    )


@given(STEPS)
def test_shares_are_parts_of_the_whole_and_quantiles_rise(steps: list[tuple[float, float, int]]) -> None:
    times = StepTimes()
    for step in steps:
        times.add(*step)
    found = times.summary()
    assert 0 <= found["exposed"] <= 1
    assert found["exposed_p50"] <= found["exposed_p99"] <= 1
    assert found["wait_seconds"] <= found["step_seconds"]
    assert times.steps == sum(count for _, _, count in steps)
    total = sum(waited + worked for waited, worked, _ in steps)
    if total:
        assert found["exposed"] == pytest.approx(sum(waited for waited, _, _ in steps) / total)


def test_a_quantile_counts_steps_and_not_reports() -> None:
    times = StepTimes()
    times.add(0.0, 99.0, 99)  # 99 steps that waited for nothing
    times.add(1.0, 0.0, 1)  # and one that only waited
    assert times.summary()["exposed_p50"] == times.summary()["exposed_p99"] == 0.0
    times.add(1.0, 0.0, 1)
    assert times.summary()["exposed_p99"] == 1.0


def test_only_the_last_steps_count() -> None:
    times = StepTimes(most=2)
    for waited in (9.0, 0.0, 0.0):
        times.add(waited, 1.0)
    assert times.summary()["exposed"] == 0.0
    assert times.steps == 3
