"""How many workers a service should have, from what its trainers wait for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.server.scaling import DOWN_SECONDS, UP_SECONDS, Limits, ScalingAdvice, ScalingAdvisor, Totals

UNLIMITED = Limits()


def after(
    seconds: float, workers: int = 2, *, attached: bool = True, limits: Limits = UNLIMITED, **per_second: float
) -> ScalingAdvice:
    """The advice after so many seconds, of each of which the same can be said."""
    usual = {"samples": 1000, "waited": 0.0, "worked": 1.0, "read": 1000, "busy": 1.0, "idle": 0.0, "server": 0.1}
    spent = usual | per_second
    advisor = ScalingAdvisor()
    for second in range(int(seconds) + 1):
        totals = Totals(**{k: v * second for k, v in spent.items()})  # type: ignore[arg-type]
        advisor.add(float(second), totals, workers, attached=attached, limits=limits)
    return advisor.advice


def test_trainers_that_wait_get_as_many_workers_as_they_could_use_after_a_while() -> None:
    waits = {"waited": 0.75, "worked": 0.25, "busy": 2.0}
    assert after(UP_SECONDS - 1, **waits).wanted == 2
    advice = after(UP_SECONDS + 5, **waits)
    assert (advice.demand, advice.supply) == (pytest.approx(4000), pytest.approx(500))
    assert advice.wanted == 9, "4000 / 500, and a tenth more"
    assert advice.reason == "trainers wait for 75% of their time"


def test_workers_that_are_not_needed_are_given_up_late() -> None:
    idle = {"waited": 0.0, "worked": 1.0, "busy": 0.5, "idle": 7.5}
    assert after(DOWN_SECONDS - 1, 8, **idle).wanted == 8
    advice = after(DOWN_SECONDS + 5, 8, **idle)
    assert advice.wanted == 1
    assert advice.reason == "workers wait for the trainers"


def test_a_few_more_than_needed_stay() -> None:
    assert after(DOWN_SECONDS + 20, 5, busy=3.8, idle=1.2).wanted == 5


@pytest.mark.parametrize(
    ("why", "per_second"),
    [
        ("the server is busy for 90% of the time: more would not help", {"server": 0.9}),
        ("workers wait for their turn: a larger interleave would help, more workers would not", {"idle": 1.0}),
    ],
)
def test_more_workers_are_not_advised_where_they_would_not_help(why: str, per_second: dict[str, float]) -> None:
    advice = after(60, waited=0.75, worked=0.25, busy=2.0, **per_second)
    assert (advice.wanted, advice.reason) == (2, why)


WAITS = {"waited": 0.75, "worked": 0.25, "busy": 2.0}


@pytest.mark.parametrize(
    ("wanted", "limited_by", "limits", "computed"),
    [
        (9, "", Limits(files=9, cores=2), 0.01),
        (4, "files", Limits(files=4, cores=2), 0.01),
        (2, "files", Limits(files=1, cores=2), 0.01),
        (2, "cores", Limits(files=100, cores=2), 2.0),
        (4, "cores", Limits(files=100, cores=2), 0.9),
        (2, "cores", Limits(files=100, cores=2), 1.2),
        (3, "cores", Limits(files=8, cores=3), 2.0),
        (9, "", Limits(files=100), 2.0),
    ],
)
def test_no_more_workers_are_wanted_than_have_a_file_and_a_core(
    wanted: int, limited_by: str, limits: Limits, computed: float
) -> None:
    advice = after(60, limits=limits, computed=computed, **WAITS)
    assert (advice.wanted, advice.limited_by) == (wanted, limited_by)


def test_a_limit_beyond_the_workers_that_there_are_is_none_while_no_more_are_advised() -> None:
    early = after(UP_SECONDS - 1, limits=Limits(files=4), **WAITS)
    assert (early.wanted, early.limited_by) == (2, "")
    assert after(UP_SECONDS - 1, limits=Limits(files=2), **WAITS).limited_by == "files"


def test_the_reason_names_the_limit() -> None:
    assert after(60, limits=Limits(files=1), **WAITS).reason == (
        "1 file can be read at a time: cut files into parts (?part=1/8)"
    )
    assert after(60, limits=Limits(cores=2), computed=2.0, **WAITS).reason == (
        "workers compute, and 2 cores can run no more of them"
    )


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("no trainer is attached", {"attached": False}),
        ("nothing to say yet", {"samples": 0}),
        ("samples come from the cache", {"read": 0, "busy": 0.0, "waited": 0.5}),
        ("trainers and workers keep up with each other", {"waited": 0.01, "worked": 0.99, "busy": 2.0}),
    ],
)
def test_where_there_is_nothing_to_change_the_reason_says_so(why: str, options: dict[str, float]) -> None:
    advice = after(60, **options)  # type: ignore[arg-type]
    assert (advice.wanted, advice.reason) == (2, why)


def test_at_first_there_is_nothing_to_say() -> None:
    assert ScalingAdvisor().advice.reason == after(2, waited=1.0, worked=0.0).reason == "nothing to say yet"


@given(st.lists(st.tuples(*[st.floats(0, 1e6)] * 7), min_size=1, max_size=50), st.integers(0, 100), st.booleans())
def test_whatever_is_counted_the_advice_is_a_number_of_workers(
    steps: list[tuple[float, ...]], workers: int, attached: bool
) -> None:
    advisor = ScalingAdvisor()
    for second, step in enumerate(steps):
        advisor.add(float(second), Totals(*step), workers, attached=attached)  # type: ignore[arg-type]
        assert advisor.advice.wanted >= min(1, workers)
        assert advisor.advice.reason
        assert set(advisor.advice.to_plain(workers)) == {
            "workers",
            "wanted",
            "reason",
            "demand",
            "supply",
            "limited_by",
        }
