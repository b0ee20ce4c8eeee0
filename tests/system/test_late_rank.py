"""Which rank the others of a job wait for."""

from __future__ import annotations

from typing import Any

import pytest

from pydp2.system.late_rank import Lateness, late_rank, late_rank_name

RANK: dict[str, Any] = {
    "name": "rank 0", "connected": True, "state": "in", "silent_seconds": 0.1, "waiting_seconds": 0.0,
    "batches_ahead": 2, "steps": 100, "exposed": 0.0, "step_seconds": 0.01, "wait_seconds": 0.0,
}  # fmt: skip
WAITING = RANK | {"waiting_seconds": 9.0, "batches_ahead": 0, "exposed": 0.9, "wait_seconds": 0.009}


@pytest.mark.parametrize(
    ("rank", "why"),
    [
        ({"connected": False, "silent_seconds": 2.0}, Lateness.GONE),
        ({"step_seconds": 0.05}, Lateness.SLOW),
        ({"silent_seconds": 2.0, "wait_seconds": 0.009}, Lateness.STALLED),
        ({"silent_seconds": 20.0, "state": "before", "batches_ahead": 0, "wait_seconds": 0.009}, Lateness.STALLED),
    ],
)
def test_a_rank_is_late_for_one_reason(rank: dict[str, Any], why: Lateness) -> None:
    late = RANK | {"name": "rank 1"} | rank
    assert late_rank([WAITING, late]) == (late, why)
    assert late_rank_name([{"ranks": [RANK, RANK]}, {"ranks": [WAITING, late]}]) == "rank 1"


def test_no_rank_is_late_while_none_waits_or_all_wait() -> None:
    assert late_rank([]) is None
    assert late_rank([RANK, RANK | {"silent_seconds": 20.0}]) is None
    assert late_rank([RANK, RANK | {"step_seconds": 0.05}]) is None
    assert late_rank([WAITING, WAITING]) is None
    assert late_rank_name([]) == ""
