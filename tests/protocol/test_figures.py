"""Figures: whatever a clock says, a message can carry it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pydp2.protocol import messages as m
from pydp2.protocol.figures import MAX_FIGURE, clip, microseconds


@given(st.floats() | st.integers(-(1 << 80), 1 << 80))
def test_every_duration_is_a_figure_that_a_message_carries_as_it_is(seconds: float) -> None:
    made = microseconds(seconds)
    assert type(made) is int
    decoded, _ = m.decode([m.encode(m.Need(1, 1, 0, made, made))])
    assert decoded == m.Need(1, 1, 0, made, made)


@given(st.floats(0, 1e9))
def test_a_duration_that_can_be_is_kept(seconds: float) -> None:
    assert math.isclose(microseconds(seconds), seconds * 1e6, abs_tol=1)


@given(st.integers())
def test_a_number_is_clipped_to_what_a_figure_may_be(number: int) -> None:
    assert clip(number) == (number if 0 <= number <= MAX_FIGURE else MAX_FIGURE if number > 0 else 0)
