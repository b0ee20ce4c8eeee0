"""What a worker does, estimated from looks at its status row."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import pydp2
from pydp2.host.worker_activity import WorkerActivity
from pydp2.protocol.worker_status import ATTEMPT, FIELD_COUNT, FILE, RUNNING, SAMPLE_INDEX, WorkerStatus

from ..runs import wait_until


def status(**fields: int) -> WorkerStatus:
    row: Any = memoryview(bytearray(8 * FIELD_COUNT)).cast("q")
    row[FILE] = -1
    made = WorkerStatus(row)
    change(made, **fields)
    return made


def change(row: WorkerStatus, *, file: int = -1, sample: int = 0, running: int = 0) -> None:
    for field, value in ((FILE, file), (ATTEMPT, 1), (SAMPLE_INDEX, sample), (RUNNING, running)):
        row.row[field] = value


def test_looks_count_for_the_time_between_them() -> None:
    activity, row = WorkerActivity(), status()
    activity.look(row, 1.0)
    change(row, file=0, sample=3, running=1)
    for tick in range(1, 6):
        activity.look(row, 1.0 + tick * 0.02)
    assert activity.generator_seconds == pytest.approx(0.1)
    row.note_wait(True, 5)
    activity.look(row, 1.12)
    assert activity.storage_seconds == pytest.approx(0.02)
    found = activity.stats(row.running_sample, ["a.txt"], 1.22, waits_for_store=row.waits_for_store)
    assert (found["file"], found["sample"], found["waits_for_store"]) == ("a.txt", 3, True)
    assert found["sample_seconds"] == pytest.approx(0.2)


def test_a_long_sleep_of_the_loop_counts_little() -> None:
    activity, row = WorkerActivity(), status(file=0, running=1)
    activity.look(row, 1.0)
    change(row, file=0, sample=1, running=1)
    activity.look(row, 100.0)
    assert activity.generator_seconds == 0.25


def test_a_sample_that_runs_at_two_looks_has_run_all_the_time_between() -> None:
    activity, row = WorkerActivity(), status(file=0, running=1)
    activity.look(row, 1.0)
    activity.look(row, 31.0)
    assert activity.generator_seconds == 30.0


def test_between_samples_a_worker_has_none() -> None:
    assert WorkerActivity().stats(status(file=0).running_sample, ["a"], 1.0)["file"] is None


def test_a_service_shows_the_sample_that_a_worker_is_at(provider_file: Callable[[str], str]) -> None:
    provider = provider_file("""
        import time

        @provider(input_types=[integer_value(10)])
        def process(settings, filename):
            yield 1
            time.sleep(1.5)
            yield 2
        """)
    with pydp2.load(["https://user:hush@host/a?sig=hush"], provider, batch_size=2, workers=1) as data:
        stream = iter(data)

        def at_work() -> list[dict[str, Any]]:
            return [worker for worker in data.stats()["workers"] if worker["sample_seconds"] > 0.1]

        thread = threading.Thread(target=lambda: list(stream))
        thread.start()
        try:
            assert wait_until(lambda: bool(at_work()))
        finally:
            thread.join()
        (worker,) = [worker for worker in data.stats()["workers"] if worker["generator_seconds"]]
        assert worker["generator_seconds"] > 0.5
