"""The line that says how a service is doing: what of its stats it shows, and which end it calls the bottleneck."""

from __future__ import annotations

from typing import Any

import pytest
from pydp2_cli.output import size_text
from pydp2_cli.stats_line import BOTTLENECK_TEXTS, StatsLine


def stats(at: float, **changes: Any) -> dict[str, Any]:
    """A service's stats ``at`` seconds after its start: two workers and a spare one."""
    worked = {"busy_seconds": changes.pop("busy", 0.0), "idle_seconds": changes.pop("idle", 0.0)}
    workers = [
        {"worker": i, "pid": 100 + i, "active": i < 2, "samples_per_second": 0.0, "memory": 10_000_000} | worked
        for i in range(3)
    ]
    return {
        "attached": True, "pass": 3, "samples": 1000, "samples_per_second": 12345.6, "batches_per_second": 96.44,
        "pool": {"samples": 1024, "bytes": 2_500_000}, "memory": 50_000_000, "uptime_seconds": at, "workers": workers,
        "trainer": {"waited_seconds": changes.pop("waited", 0.0), "worked_seconds": changes.pop("computed", 0.0)},
    } | changes  # fmt: skip


def line(*looks: dict[str, Any]) -> list[str]:
    figures = StatsLine()
    for look in looks:
        figures.add_stats(look)
    return figures.parts()


def test_the_line_has_pass_rates_pool_and_memory_of_server_and_working_workers() -> None:
    assert line(stats(1)) == [
        "pass 3", "12,346 samples/s", "96.4 batches/s", "pool 1,024 (2.5 MB)", "memory 70 MB",
    ]  # fmt: skip


def test_of_several_jobs_each_is_named_before_what_all_have_together() -> None:
    train = {"pass": 3, "samples_per_second": 12000.4, "attached": True, "ranks": []}
    evaluation = {"pass": 0, "samples_per_second": 0.0, "attached": False, "ranks": []}
    assert line(stats(1, jobs={"train": train, "eval": evaluation}))[:3] == [
        "train: pass 3, 12,000 samples/s", "eval: pass 0, no trainer", "12,346 samples/s",
    ]  # fmt: skip
    assert line(stats(1, jobs={"train": train}))[0] == "pass 3"


def test_hosts_are_counted_where_there_are_others() -> None:
    workers = [
        {"worker": i, "pid": 100, "active": True, "samples_per_second": 0.0, "memory": 0, "host": host,
         "busy_seconds": 1.0 + i, "idle_seconds": 0.0}
        for i, host in enumerate([1, 1, 2])
    ]  # fmt: skip
    of_hosts = {"hosts": [{"host": "a"}, {"host": "b"}], "workers": workers}
    assert line(stats(1, **of_hosts))[4] == "3 workers on 2 hosts"
    assert line(stats(1, attached=False, **of_hosts))[1] == "3 workers on 2 hosts"


def test_a_store_that_does_not_answer_comes_first() -> None:
    remote = {"waits_for": "s3", "reason": "503 Service Unavailable", "waiting_seconds": 12.3}
    assert line(stats(1, remote=remote))[:2] == ["waits for s3: 503 Service Unavailable, 12 s", "pass 3"]
    assert line(stats(1, remote=remote, attached=False))[0].startswith("waits for s3")
    assert line(stats(1, remote=remote | {"waiting_seconds": 1.0}))[0] == "pass 3"
    assert line(stats(1, remote=remote | {"waits_for": ""}))[0] == "pass 3"


def test_without_a_trainer_there_is_little_to_say() -> None:
    assert line(stats(1, attached=False)) == ["no trainer is attached", "2 workers", "memory 70 MB"]


@pytest.mark.parametrize(
    ("waited", "computed", "idle", "busy", "expected"),
    [
        (4, 1, 0, 5, ["trainer waits 80%", "workers wait 0%", "bottleneck: workers"]),
        (0, 5, 4, 1, ["trainer waits 0%", "workers wait 80%", "bottleneck: trainer"]),
        (1, 4, 1, 4, ["trainer waits 20%", "workers wait 20%", "no bottleneck"]),
        (0, 5, 0, 5, ["trainer waits 0%", "workers wait 0%", "no bottleneck"]),
        (4, 1, 4, 1, ["trainer waits 80%", "workers wait 80%", "both wait: for short passes, or for the pool to fill"]),
    ],
)
def test_who_waits_for_whom_is_taken_from_the_last_seconds(
    waited: float, computed: float, idle: float, busy: float, expected: list[str]
) -> None:
    begun = {"waited": 100.0, "computed": 7.0, "idle": 50.0, "busy": 3.0}
    ended = {
        "waited": 100.0 + waited, "computed": 7.0 + computed, "idle": 50.0 + idle, "busy": 3.0 + busy,
    }  # fmt: skip
    assert line(stats(10, **begun), stats(12, **ended))[5:] == expected


def test_where_ranks_wait_for_another_that_is_the_bottleneck() -> None:
    fast = {
        "name": "rank 0", "connected": True, "state": "in", "silent_seconds": 0.1, "steps": 20, "step_seconds": 0.05,
        "wait_seconds": 0.045, "exposed": 0.9, "batches_ahead": 0,
    }  # fmt: skip
    slow = fast | {"name": "rank 1", "wait_seconds": 0.0, "exposed": 0.0, "batches_ahead": 2}
    looks = [stats(at, waited=at / 2, computed=at / 2, jobs={"train": {"ranks": [fast, slow]}}) for at in (10.0, 12.0)]
    assert line(*looks)[-1] == "bottleneck: rank 1"


def test_what_is_older_than_the_last_seconds_is_forgotten() -> None:
    looks = [stats(at, waited=float(min(at, 10)), computed=float(max(0, at - 10))) for at in range(0, 21, 2)]
    assert "trainer waits 0%" in line(*looks)
    assert "trainer waits 100%" in line(*looks[:6])


def test_another_trainer_begins_anew() -> None:
    """Counts go back to 0 with it; nothing negative is shown."""
    assert "trainer waits 50%" in line(
        stats(1, waited=9.0), stats(2, samples=0, waited=9.0), stats(3, samples=9, waited=10.0, computed=1.0)
    )


def test_a_line_is_worth_writing_when_something_has_gone_on() -> None:
    figures = StatsLine()
    figures.add_stats(stats(1))
    before = figures.progress
    figures.add_stats(stats(2))
    assert figures.progress == before
    figures.add_stats(stats(3, samples=1001))
    assert figures.progress != before


def test_there_are_words_for_every_bottleneck() -> None:
    assert set(BOTTLENECK_TEXTS) == {"workers", "trainer", "balanced", ""}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (15_400, "15 kB"), (2_500_000, "2.5 MB"),
        (7e9, "7.0 GB"), (3e12, "3.0 TB"),
    ],
)  # fmt: skip
def test_sizes_are_readable(count: float, text: str) -> None:
    assert size_text(count) == text
