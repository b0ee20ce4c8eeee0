"""How far a pass is: the batches that are used, and the time that is left."""

from __future__ import annotations

import pytest

from pydp2.order.stream_state import StreamState
from pydp2.server.jobs.groups import BatchGroup, JobPasses

from ..list_stage import ListStage, StageReader

BATCHES = 100


def delivered(batches: int, start: StreamState | None = None) -> JobPasses:
    """A job whose next ``batches`` of 100 were delivered at 1000 s."""
    job = StageReader(ListStage([[1]] * BATCHES, 1), 1).job
    current = job.open(StreamState(0) if start is None else start)
    assert job.begin_time(1000.0)
    assert not job.begin_time(1000.0)
    for _ in range(batches):
        outcome = current.next_group()
        assert isinstance(outcome, BatchGroup)
        outcome.batches[0].rows.release()
    return job


@pytest.mark.parametrize("burst", [1, 8, 32])
@pytest.mark.parametrize("step", [0.01, 0.5, 6.0])
def test_the_time_left_follows_from_the_average_speed_also_where_trainers_report_in_bursts(
    burst: int, step: float
) -> None:
    job = delivered(BATCHES)
    assert job.seconds_left(1000.0) is None
    for used in range(burst, BATCHES, burst):
        job.note_unused(BATCHES - used)
        job.last_used_at = 1000 + used * step
        for more in range(min(burst, BATCHES - used)):
            left = job.seconds_left(job.last_used_at + more * step)
            assert left == pytest.approx((BATCHES - used - more) * step, rel=0.01)
    job.note_unused(0)
    job.last_used_at = 1000 + BATCHES * step
    assert job.seconds_left(job.last_used_at) == 0
    job.close()
    assert job.seconds_left(2000.0) is None, "there is no pass"


def test_time_in_which_a_trainer_has_nothing_to_use_is_not_taken_for_progress() -> None:
    job = delivered(50)
    job.note_unused(10)
    job.last_used_at = 1040.0
    assert [job.seconds_left(now) for now in (1040, 1045, 1050, 1200)] == pytest.approx([60, 55, 50, 50])


def test_a_pass_that_a_state_resumes_has_the_time_of_its_rest() -> None:
    job = delivered(20, StreamState(0, 40))
    assert job.progress()["batch"] == 40
    job.note_unused(0)
    job.last_used_at = 1010.0
    assert job.progress() == {"batch": 60, "share": 0.6, "is_estimate": False}
    assert job.seconds_left(1010.0) == pytest.approx(20)
