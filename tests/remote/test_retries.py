"""When a request that has failed is made again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydp2.remote.retries import FIRST_SECONDS, Retries

CHANCES = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=60)


@given(CHANCES, st.floats(1, 1000))
def test_delays_grow_to_a_bound_and_end_at_the_deadline(chances: list[float], timeout: float) -> None:
    retries, now, first = Retries(timeout), 100.0, FIRST_SECONDS
    for number, chance in enumerate(chances):
        delay = retries.delay(now, chance)
        if delay is None:
            assert now >= 100.0 + timeout
            return
        most = first * min(128.0, 2.0**number)
        assert min(most / 2, 100.0 + timeout - now) <= delay <= most
        assert now + delay <= 100.0 + timeout + 1e-6
        now += delay
