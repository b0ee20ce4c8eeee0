"""What a worker does, from its chunks and its status row."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2.host.worker_activity import WorkerActivity, WorkerSeconds
from pydp2.protocol.messages import Chunk
from pydp2.protocol.worker_status import ATTEMPT, FIELD_COUNT, FILE, RUNNING, SAMPLE_INDEX, SINCE_NS, WorkerStatus

from ..runs import wait_until


def status(since: float = 0.0, **fields: int) -> WorkerStatus:
    row: Any = memoryview(bytearray(8 * FIELD_COUNT)).cast("q")
    row[FILE] = -1
    made = WorkerStatus(row)
    change(made, since, **fields)
    return made


def change(row: WorkerStatus, since: float = 0.0, *, file: int = -1, sample: int = 0, running: int = 0) -> None:
    for field, value in ((FILE, file), (ATTEMPT, 1), (SAMPLE_INDEX, sample), (RUNNING, running)):
        row.row[field] = value
    row.row[SINCE_NS] = int(since * 1e9)


def begun() -> WorkerActivity:
    activity = WorkerActivity(ready_at=1.0)
    activity.begin(1.0)
    return activity


def test_what_a_worker_says_with_a_chunk_counts() -> None:
    activity = begun()
    activity.report(WorkerSeconds.of_chunk(Chunk(0, [], [], 5_000_000, 2_000_000, 0, 4_000_000, 1_500_000)), 8.0)
    assert activity.seconds == WorkerSeconds(busy=5.0, idle=2.0, generator=2.5, storage=1.5)


def test_until_the_first_chunk_the_row_says_that_a_worker_has_nothing_to_do() -> None:
    activity = begun()
    activity.look(status(1.0), 1.5)
    activity.look(status(1.0), 31.0)
    assert activity.seconds == WorkerSeconds(idle=30.0)


def test_a_sample_under_way_counts_from_its_beginning_however_late_somebody_looks() -> None:
    activity = begun()
    activity.report(WorkerSeconds(busy=1.0, generator=0.9), 2.0)
    activity.look(status(2.25, file=0, sample=1, running=1), 17.0)
    assert activity.seconds == pytest.approx(WorkerSeconds(busy=16.0, generator=15.65))


def test_a_sample_that_waits_for_its_store_counts_as_storage() -> None:
    activity, row = begun(), status(1.0, file=0, sample=1, running=1)
    row.note_wait(True, 1)
    activity.look(row, 3.0)
    assert activity.seconds == WorkerSeconds(busy=2.0, storage=2.0)


def test_a_sample_that_is_packed_is_no_time_of_the_generator() -> None:
    activity = begun()
    activity.look(status(0.0, file=0, sample=1, running=1), 3.0)
    assert activity.seconds == WorkerSeconds(busy=2.0)


def test_the_next_chunk_replaces_what_looks_have_added() -> None:
    activity = begun()
    activity.look(status(1.0, file=0, sample=1, running=1), 5.0)
    activity.report(WorkerSeconds(busy=4.5, generator=4.25), 5.5)
    assert activity.seconds == WorkerSeconds(busy=4.5, generator=4.25)
    activity.look(status(5.5), 6.5)
    assert activity.seconds == WorkerSeconds(busy=4.5, idle=1.0, generator=4.25)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9), st.booleans(), st.booleans()), max_size=30))
def test_seconds_never_fall(events: list[tuple[float, float, bool, bool]]) -> None:
    activity, now = begun(), 1.0
    for passed, seconds, runs, reports in events:
        before, now = activity.seconds, now + passed
        if reports:
            activity.report(WorkerSeconds(seconds, seconds, seconds, seconds), now)
        else:
            activity.note((0, 1, 2) if runs else None, now, seconds)
        assert all(a <= b for a, b in zip(before, activity.seconds, strict=True))


def test_the_time_as_a_spare_worker_does_not_count() -> None:
    activity = WorkerActivity(ready_at=1.0)
    activity.look(status(1.0), 11.0)
    assert activity.seconds == WorkerSeconds()
    activity.begin(11.0)
    activity.look(status(1.0), 12.0)
    assert activity.seconds == WorkerSeconds(idle=1.0)
    activity.report(WorkerSeconds(busy=0.5, idle=11.0), 12.5)
    assert activity.seconds == WorkerSeconds(busy=0.5, idle=1.0)


def test_a_worker_is_at_the_sample_of_its_row() -> None:
    found = WorkerActivity().stats((0, 1, 3), ["a.txt"], 0.25, waits_for_store=True)
    assert (found["file"], found["sample"], found["sample_seconds"]) == ("a.txt", 3, 0.25)
    assert found["waits_for_store"]


def test_between_samples_a_worker_has_none() -> None:
    found = WorkerActivity().stats(status(file=0).running_sample, ["a"], 7.0)
    assert (found["file"], found["sample_seconds"]) == (None, 0.0)


def test_a_service_shows_the_sample_that_a_worker_is_at(provider_file: Callable[[str], str], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    provider = provider_file(f"""
        import os, time

        @provider(input_types=[integer_value(10)])
        def process(settings, filename):
            yield 1
            time.sleep(0.6)
            while not os.path.exists({str(seen)!r}):
                time.sleep(0.01)
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
            seen.touch()
            thread.join()
        (worker,) = [worker for worker in data.stats()["workers"] if worker["generator_seconds"]]
        assert worker["generator_seconds"] > 0.5


STAGES = """
import time

@provider(input_types=[dense_vector(1)], should_shuffle=False)
def sleeps(settings, filename):
    for i in range(1000):
        time.sleep(0.2)
        yield [i]

@provider(input_types=[dense_vector(1)], should_shuffle=False)
def computes(settings, filename):
    for i in range(1000000):
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        yield [i]

@provider(input_types=[dense_vector(20000)], should_shuffle=False)
def packs(settings, filename):
    sample = [float(i) for i in range(20000)]
    for i in range(1000000):
        yield sample
"""


@pytest.mark.parametrize(
    ("name", "samples", "least", "most"),
    [("sleeps", 1, 0.95, 1.0), ("computes", 50, 0.6, 1.0), ("packs", 100, 0.0, 0.5)],
)
def test_a_worker_spends_its_time_where_it_is(
    provider_file: Callable[[str], str], name: str, samples: int, least: float, most: float
) -> None:
    provider = provider_file(STAGES).removesuffix("process") + name
    with pydp2.load(["a"], provider, batch_size=samples, workers=1) as data:
        stream = iter(data)

        def spent() -> tuple[float, float]:
            next(stream)
            worker = next(worker for worker in data.stats()["workers"] if worker["active"])
            return worker["busy_seconds"], worker["generator_seconds"]

        def is_told() -> bool:
            busy, generator = spent()
            return busy > 0.5 and least <= generator / busy <= most

        # where the machine stops a worker, that counts for what it was at: the longer it goes on, the less of all it is
        assert wait_until(is_told), spent()


def test_a_worker_without_a_file_is_idle_from_the_beginning(provider_file: Callable[[str], str]) -> None:
    with pydp2.load(["a"], provider_file(STAGES).removesuffix("process") + "sleeps", batch_size=1, workers=2) as data:
        stream = iter(data)
        next(stream)

        def idle() -> list[float]:
            return [
                worker["idle_seconds"] for worker in data.stats()["workers"] if worker["active"] and not worker["files"]
            ]

        assert wait_until(lambda: bool(idle()) and idle()[0] > 1.0)
        asked, before, answered = time.monotonic(), idle()[0], time.monotonic()
        time.sleep(0.3)
        asked_again, after, answered_again = time.monotonic(), idle()[0], time.monotonic()
        # each figure is of some moment between the question and the answer
        assert asked_again - answered - 0.1 <= after - before <= answered_again - asked + 0.1
