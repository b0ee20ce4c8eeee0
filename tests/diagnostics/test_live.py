"""Why training waits for data, from two looks at the statistics of a service."""

from __future__ import annotations

from typing import Any

import pytest

from pydp2.diagnostics.live import LiveAdvice, explain

RANK: dict[str, Any] = {
    "number": 0, "rank": 0, "name": "rank 0", "process": "process 7", "connected": True, "state": "in",
    "silent_seconds": 0.1, "batches_ahead": 2, "steps": 100, "exposed": 0.0, "exposed_p50": 0.0, "exposed_p99": 0.0,
    "step_seconds": 0.01, "wait_seconds": 0.0, "waiting_seconds": 0.0,
}  # fmt: skip
WORKER: dict[str, Any] = {
    "worker": 0, "pid": 9, "active": True, "files": 1, "samples_per_second": 10.0, "busy_seconds": 0.0,
    "idle_seconds": 0.0, "memory": 1, "host": 0, "file": None, "sample": None, "sample_seconds": 0.0,
    "waits_for_store": False, "generator_seconds": 0.0, "storage_seconds": 0.0,
}  # fmt: skip


def stats(
    waited: float = 0.0, worked: float = 0.0, *, uptime: float = 0.0, server: float = 0.0,
    ranks: list[dict[str, Any]] | None = None, worker: dict[str, Any] | None = None, pass_id: int = 0, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    job = {
        "pass": pass_id,
        "attached": True, "ranks": [RANK] if ranks is None else ranks, "batches_in_pass": 5, "pool": {"samples": 9},
        "fill": {"is_full": True}, "ranks_to_come": 0,
        "trainer": {"waited_seconds": waited, "worked_seconds": worked},
    }  # fmt: skip
    found: dict[str, Any] = {
        "attached": True, "ranks_to_come": 0, "uptime_seconds": uptime, "busy_seconds": server,
        "trainer": {"waited_seconds": waited, "worked_seconds": worked}, "jobs": {"train": job},
        "workers": [WORKER | (worker or {})], "remote": None, "read_ahead": {"used": 0, "budget": 100},
        "scaling": {"workers": 1, "wanted": 1, "limited_by": ""},
    }  # fmt: skip
    return found | more


def found(waited: float, worked: float, **more: Any) -> LiveAdvice:
    return explain(stats(), stats(waited, worked, uptime=10.0, **more))


def test_a_trainer_that_is_fed_is_the_narrowest() -> None:
    answer = found(0.04, 9.96, worker={"busy_seconds": 2.0, "idle_seconds": 8.0, "generator_seconds": 1.0})
    assert answer.stage == "trainer"
    assert answer.headline == "Training does not wait for data: 0.4 % of its time."
    assert answer.shares == pytest.approx({"storage": 0.0, "generator": 0.1, "packing": 0.1, "waiting": 0.8})


@pytest.mark.parametrize(
    ("stage", "worker", "says"),
    [
        ("generator", {"generator_seconds": 8.0}, "process takes 80 % of the workers' time"),
        ("packing", {"generator_seconds": 1.0}, "Checks and packing take 90 %"),
        ("storage", {"generator_seconds": 2.0, "storage_seconds": 7.0}, "wait for the store of remote files 70 %"),
    ],
)  # fmt: skip
def test_busy_workers_are_told_apart_by_what_they_do(stage: str, worker: dict[str, float], says: str) -> None:
    answer = found(5.0, 5.0, worker={"busy_seconds": 10.0} | worker)
    assert answer.stage == stage
    assert says in answer.cause
    assert answer.headline == "Training waits for data 50 % of its time."
    assert "workers" in answer.remedy


def test_more_workers_are_named_if_that_helps() -> None:
    busy = {"busy_seconds": 10.0, "generator_seconds": 9.0}
    answer = found(5.0, 5.0, worker=busy, scaling={"workers": 2, "wanted": 7, "limited_by": ""})
    assert answer.remedy.startswith("Take 7 workers in place of 2, make process faster")


@pytest.mark.parametrize(
    ("wanted", "limit", "remedy"),
    [
        (7, "files", "Take 7 workers in place of 2 (as many as there are files), make process faster"),
        (2, "files", "Cut the files into parts (?part=1/8) for more workers, make process faster"),
        (2, "cores", "All cores here are in use: add workers of other hosts (pydp2 worker), make process faster"),
    ],
)
def test_what_keeps_more_workers_from_helping_is_named(wanted: int, limit: str, remedy: str) -> None:
    scaling = {"workers": 2, "wanted": wanted, "limited_by": limit}
    busy = {"busy_seconds": 10.0, "generator_seconds": 9.0}
    assert found(5.0, 5.0, worker=busy, scaling=scaling).remedy.startswith(remedy)


def test_a_busy_server_is_named_before_workers() -> None:
    answer = found(5.0, 5.0, server=9.5, worker={"busy_seconds": 10.0})
    assert (answer.stage, answer.server) == ("pool", 0.95)


def test_idle_workers_beside_a_waiting_trainer_are_named() -> None:
    idle = {"busy_seconds": 5.0, "idle_seconds": 5.0}
    assert "their turn in the order" in found(5.0, 5.0, worker=idle).cause
    assert "0 of 1 worker have a file" in found(5.0, 5.0, worker=idle | {"files": 0}).cause


def test_short_passes_are_named_and_not_the_workers_that_wait_for_them() -> None:
    answer = found(2.0, 8.0, pass_id=20, worker={"busy_seconds": 1.0, "idle_seconds": 9.0})
    assert answer.stage == "filling"
    assert answer.cause.startswith("Passes of job train are short, 0.5 s, and each begins with a wait")
    assert "CACHE_PASS_IN_MEM" in answer.remedy
    assert found(2.0, 8.0, pass_id=1, worker={"busy_seconds": 1.0, "idle_seconds": 9.0}).stage == "files"


def test_a_store_that_does_not_answer_is_named_first() -> None:
    remote = {"waits_for": "s3", "waiting_seconds": 12.0, "reason": "503 Service Unavailable"}
    answer = found(9.0, 1.0, remote=remote)
    assert answer.cause == "The store s3 has not answered for 12 s: 503 Service Unavailable."


def test_a_slow_rank_is_named_and_not_the_data() -> None:
    slow = RANK | {"rank": 1, "name": "rank 1", "step_seconds": 0.05, "exposed": 0.01, "process": "process 8"}
    fast = RANK | {"step_seconds": 0.05, "wait_seconds": 0.045, "exposed": 0.9}
    answer = found(9.0, 10.0, ranks=[fast, slow], worker={"busy_seconds": 1.0, "idle_seconds": 9.0})
    assert answer.stage == "rank"
    assert answer.headline == "Ranks wait for another rank, up to 90 % of each step."
    assert "rank 1 of job train (process 8): it works 50 ms with a batch, they 5 ms" in answer.cause


@pytest.mark.parametrize("more", [{}, {"state": "ended", "batches_ahead": 0}])
def test_a_rank_that_asks_for_nothing_while_another_waits_is_named(more: dict[str, Any]) -> None:
    waiting = RANK | {"exposed": 0.8, "waiting_seconds": 9.0, "batches_ahead": 0, "silent_seconds": 1.5}
    stalled = RANK | {"rank": 1, "name": "rank 1", "process": "process 8", "silent_seconds": 12.0} | more
    answer = found(9.0, 1.0, ranks=[waiting, stalled], worker={"busy_seconds": 1.0, "idle_seconds": 9.0})
    assert answer.headline == "Ranks wait for another rank, for 9 s now."
    assert answer.cause == (
        "The others wait for rank 1 of job train (process 8), which has not asked for data for 12 s."
    )


def test_ranks_that_did_not_come_are_named_while_others_wait_for_them() -> None:
    now = stats(9.0, 0.0, uptime=10.0, ranks=[RANK | {"state": "before", "waiting_seconds": 9.0, "exposed": 1.0}])
    now["jobs"]["train"]["ranks_to_come"] = 2
    assert explain(stats(), now).cause == "The others wait for 2 ranks of job train that did not come yet."


def test_a_job_that_waits_is_not_hidden_by_one_that_does_not() -> None:
    now, before = stats(0.0, 10.0, uptime=10.0), stats()
    for look, waited in ((before, 0.0), (now, 9.5)):
        look["jobs"]["other"] = look["jobs"]["train"] | {"trainer": {"waited_seconds": waited, "worked_seconds": 0.0}}
    now["jobs"]["other"] |= {"batches_in_pass": 0, "fill": {"is_full": False}}
    answer = explain(before, now)
    assert (answer.exposed, answer.stage) == (1.0, "filling")
    assert answer.headline.startswith("Job other waits for data 100 % of its time")


def test_a_sample_that_hangs_is_the_cause_of_a_pool_that_fills() -> None:
    now = stats(5.0, 0.0, uptime=10.0, worker={"file": "a.txt", "sample": 4, "sample_seconds": 25.0})
    now["jobs"]["train"] |= {"batches_in_pass": 0, "fill": {"is_full": False}}
    answer = explain(stats(), now)
    assert answer.who == "Worker 0 is at sample 4 of a.txt for 25 s."
    assert answer.remedy == "Find out why this sample takes so long; sample_timeout ends it."


def test_a_rank_that_is_gone_is_named() -> None:
    gone = RANK | {"rank": 1, "name": "rank 1", "connected": False, "silent_seconds": 8.0}
    answer = found(9.0, 1.0, ranks=[RANK | {"exposed": 0.9}, gone])
    assert answer.cause == "The others wait for rank 1 of job train (process 7), which is gone for 8 s."


def test_a_pool_that_fills_is_named() -> None:
    now = stats(5.0, 0.0, uptime=10.0)
    now["jobs"]["train"] |= {"batches_in_pass": 0, "fill": {"is_full": False}}
    assert explain(stats(), now).cause == "The pool of job train fills: 9 samples before the first batch."


def test_a_long_sample_is_named() -> None:
    worker = {"busy_seconds": 10.0, "generator_seconds": 9.0, "file": "a.txt", "sample": 4, "sample_seconds": 7.2}
    assert found(5.0, 5.0, worker=worker).who == "Worker 0 is at sample 4 of a.txt for 7 s."


def test_without_steps_the_batches_that_are_ready_tell_who_waits() -> None:
    idle = {"busy_seconds": 1.0, "idle_seconds": 9.0}
    long = found(0.0, 0.0, ranks=[RANK | {"silent_seconds": 17.0}], worker=idle)
    assert (long.exposed, long.stage, long.cause, long.remedy) == (None, "trainer", "", "")
    assert long.headline == "The trainer is at work on a long step, or stopped, for 17 s; batches are ready."
    between = RANK | {"state": "before", "batches_ahead": 0, "silent_seconds": 15.0}
    evaluation = found(0.0, 0.0, ranks=[between], worker=idle)
    assert evaluation.headline == "No trainer is in a pass: none has asked for data for 15 s."
    assert evaluation.remedy == ""


def test_without_a_trainer_there_is_nothing_to_wait_for() -> None:
    answer = explain(stats(), stats(attached=False, ranks_to_come=3, uptime=1.0))
    assert (answer.headline, answer.remedy) == ("No trainer is attached.", "3 ranks did not come yet.")
