"""The benchmark of formats: its files hold what they say, whatever reads them, and its tables say what was measured."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.formats import comparison, consumer, files, libraries, loaders, single_run, worker

SCALE = 0.001
WORKLOADS = [name for name in files.SAMPLES if not name.startswith("tfrecord")]


def made(workload: str, folder: Path) -> str:
    return str(files.make(workload, folder, SCALE)[0])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_worker_and_the_library_read_the_samples_of_each_file(workload: str, data_folder: Path) -> None:
    path = made(workload, data_folder)
    expected = files.count(workload, SCALE) // files.FILES
    assert sum(worker.chunks(workload, path)) == sum(libraries.blocks(workload, path)) == expected
    assert len(list(libraries.samples(workload, path))) == expected


@pytest.mark.parametrize("workload", ["tfrecord_tokens", "tfrecord_images"])
def test_a_worker_reads_the_tfrecord_files(workload: str, data_folder: Path) -> None:
    expected = files.count(workload, SCALE) // files.FILES
    assert sum(worker.chunks(workload, made(workload, data_folder))) == expected


@pytest.mark.parametrize("workload", WORKLOADS)
def test_files_are_made_once_from_a_seed(workload: str, data_folder: Path, tmp_path: Path) -> None:
    again = Path(made(workload, tmp_path))
    for path in [again] if again.is_file() else sorted(again.rglob("*.jpg")):
        twin = Path(made(workload, data_folder)).parent / path.relative_to(again.parent)
        assert path.read_bytes() == twin.read_bytes()
    time = again.stat().st_mtime_ns
    assert Path(made(workload, tmp_path)).stat().st_mtime_ns == time


def test_a_shuffle_buffer_gives_each_sample_once() -> None:
    samples = [np.full(3, i) for i in range(1000)]
    batches = list(loaders.shuffled_batches(samples, 300, 1))
    assert [len(batch["data"]) for batch in batches[:-1]] == [consumer.BATCH] * 7
    assert sorted(np.concatenate([batch["data"] for batch in batches])[:, 0].tolist()) == list(range(1000))


def test_a_pass_that_lacks_a_sample_is_refused() -> None:
    def batches() -> Iterator[dict[str, Any]]:
        yield {"data": np.zeros((3, 2))}

    assert consumer.measure(3, batches, consumer.size_of)["samples"] == 3
    with pytest.raises(AssertionError, match="must deliver 4 samples, got 3"):
        consumer.measure(4, batches, consumer.size_of)


def test_a_loader_that_is_not_installed_or_has_no_way_for_a_workload_is_absent() -> None:
    run = {"what": "webdataset", "workload": "tokens", "files": [], "workers": 1, "samples": 1}
    assert list(single_run.do(run)) == ["absent"]


def test_the_tables_have_ratios_within_rounds() -> None:
    def runs(*figures: tuple[float, float]) -> list[dict[str, Any]]:
        return [{"samples": 100, "cpu": cpu, "seconds": seconds, "versions": {}} for cpu, seconds in figures]

    results = comparison.Results(
        {
            "tokens": {
                "library": runs((1.0, 1.0), (2.0, 1.0), (4.0, 1.0)),
                "worker": runs((1.1, 1.0), (2.0, 1.0), (4.8, 1.0)),
                "pydp2": runs((1.0, 1.0), (1.0, 2.0), (1.0, 4.0)),
                "torch": runs((1.0, 1.1), (1.0, 2.2), (1.0, 8.0)),
            }
        }
    )
    assert results.ratio("tokens", "worker", "library", "cpu", "samples") == pytest.approx(1.1)
    assert results.ratio("tokens", "pydp2", "torch", "samples", "seconds") == pytest.approx(1.1)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(comparison.worker_table(results), comparison.loader_table(results))
    text = console.export_text()
    assert "yes" in text.split("loader")[0]
    assert "no" in text.split("loader")[1]


@pytest.mark.slow
def test_the_command_measures_pydp2_alone(tmp_path: Path) -> None:
    given = ["--workload", "tokens", "--loader", "pydp2", "--rounds", "1", "--scale", "0.01", "--data", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks", "formats", *given]
    done = subprocess.run(command, cwd=comparison.ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "medians of 1 alternating rounds, 2 workers, data at scale 0.01" in done.stdout
    assert "pydp2" in done.stdout
