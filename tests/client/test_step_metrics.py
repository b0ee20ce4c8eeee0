"""Scalars about the steps of a training loop, for TensorBoard, W&B and MLflow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pydp2
from pydp2.client.step_metrics import StepMetrics
from tests.runs import wait_until

PROVIDER = """
import time

@provider(input_types=[integer_value(1000)], pool_size=8)
def process(settings, filename):
    for i in range(64):
        time.sleep(float(filename))
        yield i
"""


def test_scalars_are_those_of_the_steps_since_the_last_call() -> None:
    steps = StepMetrics()
    for began in (10.0, 20.0):
        steps.begin_step(began, began + 1.0, rows=32)
        assert steps.end_step(began + 4.0) == 3.0
    found = steps.take(30.0)
    assert found == {
        "data/exposed": 0.25, "data/exposed_p50": 0.25, "data/exposed_p99": 0.25, "data/step_ms": 4000.0,
        "data/wait_ms": 1000.0, "data/samples_per_second": 64 / 20, "data/steps": 2.0,
    }  # fmt: skip
    steps.begin_step(30.0, 31.0, rows=5)
    assert steps.take(40.0)["data/samples_per_second"] == 0.5
    assert set(steps.take(40.0).values()) == {0.0}


def test_means_are_of_all_steps_however_many_there_are() -> None:
    steps, now = StepMetrics(), 0.0
    for number in range(5600):
        seconds = 0.006 if number < 600 else 0.001
        steps.begin_step(now, now + seconds, rows=1)
        steps.end_step(now := now + 2 * seconds)
    found = steps.take(now)
    assert found["data/step_ms"] == pytest.approx(2 * (600 * 6 + 5000 * 1) / 5600)
    assert found["data/exposed"] == pytest.approx(0.5)
    assert found["data/steps"] == 5600


def test_a_wait_for_the_end_of_a_pass_is_a_wait() -> None:
    steps = StepMetrics()
    steps.begin_step(0.0, 1.0, rows=8)
    steps.end_step(4.0)
    steps.end_pass(4.0, 10.0)
    found = steps.take(10.0)
    assert (found["data/exposed"], found["data/steps"]) == (0.7, 1.0)


def test_any_thread_may_take_the_scalars_while_steps_go_on() -> None:
    steps, is_over = StepMetrics(), threading.Event()
    taken: list[float] = []

    def take() -> None:
        while not is_over.is_set():
            taken.append(steps.take(0.0)["data/steps"])

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(take)
        for _ in range(20_000):
            steps.begin_step(0.0, 0.0, rows=1)
            steps.end_step(0.0)
        is_over.set()
        other.result(60)
    assert taken


def test_a_trainer_that_waits_is_exposed_and_one_that_works_is_not(provider_file: Callable[[str], str]) -> None:
    with pydp2.load(["0.004"], provider_file(PROVIDER), batch_size=8, workers=1, job="slow") as data:
        for _ in data:
            pass
        found = data.metrics()
        assert found["data/steps"] == 8
        assert found["data/exposed"] > 0.9
        (rank,) = data.stats()["jobs"]["slow"]["ranks"]
        assert rank["exposed"] > 0.9
        assert rank["steps"] >= 7
    with pydp2.load(["0"], provider_file(PROVIDER), batch_size=8, workers=1) as data:
        for number, _ in enumerate(data):
            if number == 1:
                data.metrics()  # the first batch has to be waited for
            time.sleep(0.02)
        assert data.metrics()["data/exposed_p50"] < 0.5


def test_a_wait_under_way_counts_before_it_ends(provider_file: Callable[[str], str]) -> None:
    """Also that for another rank. A trainer with batches, and one that asks for none, do not wait."""
    with (
        pydp2.launch(["0"] * 64, provider_file(PROVIDER), workers=1) as service,
        service.connect(batch_size=8, rank=1, world_size=2) as second,
        service.connect(batch_size=8, rank=0, world_size=2) as first,
    ):
        seen: list[list[float]] = []

        def job() -> dict[str, Any]:
            found: dict[str, Any] = service.stats()["jobs"]["default"]
            seen.append([found["trainer"]["waited_seconds"], *(rank["waiting_seconds"] for rank in found["ranks"])])
            return found

        ahead = iter(second)
        next(ahead)
        assert job()["ranks"][1]["waiting_seconds"] == 0.0
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(lambda: len([*first]))
            assert wait_until(lambda: job()["ranks"][0]["waiting_seconds"] > 0.5)
            assert job()["trainer"]["waited_seconds"] > 0.5
            assert wait_until(lambda: job()["ranks"][0]["exposed"] > 0.3)
            assert job()["ranks"][1]["waiting_seconds"] == 0.0
            assert len([*ahead]) + 1 == rest.result(60) == 256
        assert wait_until(lambda: not any(rank["waiting_seconds"] for rank in job()["ranks"]))
        assert [waited for waited, *_ in seen] == sorted(waited for waited, *_ in seen)


def test_ranks_are_told_apart(provider_file: Callable[[str], str]) -> None:
    with (
        pydp2.launch(["0"] * 8, provider_file(PROVIDER), workers=1) as service,
        service.connect(batch_size=8, rank=1, world_size=2, job="two") as second,
        service.connect(batch_size=8, rank=0, world_size=2, job="two") as first,
    ):
        stream = iter(second)
        for _ in range(4):
            next(stream)
        for _ in first:
            pass
        ranks = service.stats()["jobs"]["two"]["ranks"]
        named = [(rank["rank"], rank["name"], rank["connected"]) for rank in ranks]
        assert named == [(0, "rank 0", True), (1, "rank 1", True)]
        assert ranks[0]["steps"] > ranks[1]["steps"] > 0
        assert ranks[1]["batches_ahead"] > 0


def test_a_client_without_a_step_has_zeros(provider_file: Callable[[str], str]) -> None:
    with pydp2.load(["0"], provider_file(PROVIDER), batch_size=8, workers=1) as data:
        assert set(data.metrics().values()) == {0.0}


def test_metrics_of_a_loader_count_the_conversion_as_waiting(provider_file: Callable[[str], str]) -> None:
    from pydp2.frameworks.loader import FrameworkLoader

    def convert(batch: pydp2.Batch) -> int:
        time.sleep(0.005)
        return len(batch)

    with pydp2.load(["0"], provider_file(PROVIDER), batch_size=8, workers=1) as data:
        loader = FrameworkLoader(data, convert)
        assert sum(loader) == 64
        found = loader.metrics()
        assert found["data/steps"] == 8
        assert found["data/wait_ms"] >= 5.0
        assert found["data/exposed_p50"] == pytest.approx(1.0, abs=0.2)
