"""Weights of a mixture: exact, from step to step, and the same wherever they are computed."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import OptionError, OptionTypeError
from pydp2.order.mixture import WeightSchedule, furthest_behind, whole_weights
from pydp2.protocol.exact_weights import exact_weight, shares_of

ONE, TWO, NONE = Fraction(1), Fraction(2), Fraction(0)


def test_a_schedule_holds_from_each_step_to_the_next() -> None:
    schedule = WeightSchedule(((0, (ONE, NONE)), (5, (NONE, TWO))))
    assert [schedule.at(3, step) for step in (0, 4, 5, 99)] == [(ONE, NONE)] * 2 + [(NONE, TWO)] * 2


def test_a_linear_schedule_lies_on_a_line_between_two_steps() -> None:
    schedule = WeightSchedule(((0, (ONE, NONE)), (4, (NONE, TWO))), linear=True)
    assert [schedule.at(0, step) for step in range(6)] == [
        (ONE - Fraction(step, 4), Fraction(step, 2)) if step < 4 else (NONE, TWO) for step in range(6)
    ]


def test_weights_that_were_set_hold_from_their_step_on_in_later_passes_too() -> None:
    schedule = WeightSchedule(((0, (ONE, ONE)),))
    schedule.change(1, 5, (ONE, TWO))
    schedule.change(1, 7, (TWO, ONE))
    assert [schedule.at(*place) for place in ((0, 9), (1, 4), (1, 5), (1, 7), (2, 0))] == [
        (ONE, ONE), (ONE, ONE), (ONE, TWO), (TWO, ONE), (TWO, ONE)
    ]  # fmt: skip
    schedule.change(1, 6, (NONE, ONE))
    assert schedule.at(1, 7) == (NONE, ONE), "what was to change behind it does not"


@given(st.one_of(st.floats(0, 1e9), st.fractions(0, 1000, max_denominator=10**9), st.integers(0, 10**12)))
def test_a_weight_keeps_its_value_as_text(weight: Any) -> None:
    if len(str(Fraction(weight))) <= 100:
        assert Fraction(exact_weight(weight)) == Fraction(weight)


@pytest.mark.parametrize("weight", [-1, -0.5, float("nan"), float("inf"), True, None, b"1", "x", [1], "1/0"])
def test_what_is_no_weight_is_refused(weight: Any) -> None:
    with pytest.raises((OptionError, OptionTypeError), match="a weight must be a number from 0 on"):
        exact_weight(weight)


def test_shares_are_refused_unless_one_is_above_0() -> None:
    assert shares_of(["1/2", "0"]) == (Fraction(1, 2), NONE)
    for texts in (["0", "0"], ["-1", "2"], ["a"], []):
        with pytest.raises(ValueError):  # noqa: PT011  # of Fraction, or a weight below 0
            shares_of(texts)


@given(st.lists(st.fractions(0, 10, max_denominator=50), min_size=1, max_size=4).filter(any), st.integers(1, 300))
def test_time_steps_come_from_each_source_in_its_share(shares: list[Fraction], rows: int) -> None:
    weights = whole_weights(shares)
    alive, counts = [i for i, share in enumerate(shares) if share], [0] * len(shares)
    for _ in range(rows):
        counts[furthest_behind(weights, alive, counts)] += 3
    for i in alive:
        assert abs(counts[i] - 3 * rows * shares[i] / sum(shares)) <= 3 * len(shares)
