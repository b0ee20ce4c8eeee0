"""Models that train on the batches of the loaders, and what a run of them says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks import data, training  # noqa: E402
from benchmarks.job import Job  # noqa: E402
from benchmarks.peers import repeated  # noqa: E402

RANDOM = np.random.default_rng(1)
STARTS = np.array([0, 3, 40, 41, 90], np.int64)
BATCHES = {
    "jpeg": {
        "picture": RANDOM.integers(0, 256, (4, 256, 256, 3), np.uint8),
        "label": np.array([1, 2, 3, 4]),
    },
    "words": {"ids": RANDOM.integers(0, 30_000, 90), "starts": STARTS, "label": np.array([0, 1, 0, 1])},
}


@pytest.mark.parametrize("workload", BATCHES)
def test_a_model_learns_a_batch(workload: str) -> None:
    model = training.Training(workload, "cpu")
    losses = [model.step(BATCHES[workload]) for _ in range(40)]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.8 * losses[0]


def test_ids_behind_the_end_of_a_text_count_neither_as_input_nor_as_target() -> None:
    model = training.Training("words", "cpu")
    first = model._loss_of_ids(BATCHES["words"]).item()
    longer = BATCHES["words"]["ids"].copy()
    longer[3 + 16 : 40] = 7  # of the second text what the model does not see
    assert model._loss_of_ids(BATCHES["words"] | {"ids": longer}).item() == first


def test_a_run_has_one_pass_of_the_measured_steps(tmp_path: Path) -> None:
    folder = data.make("words", tmp_path, 0.001)
    job = Job("repeated", "words", str(folder), options=(("train", True), ("steps", 5)))
    (found,) = repeated.measure(job)
    assert found["felt"]["steps"] == 5
    assert 0 <= found["felt"]["exposed"] < 0.5
    assert 0 < found["samples"] <= 5 * 128
    assert np.isclose(found["felt"]["step"], found["felt"]["work"], rtol=0.5)
