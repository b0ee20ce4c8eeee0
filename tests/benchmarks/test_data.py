"""The data of the benchmarks: the same for everybody, and what they say about themselves is so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from benchmarks import data, prepared
from benchmarks.job import BATCH, PREPARED, WORKLOADS, Job, Total
from benchmarks.peers import provided

SCALE = 0.001
needs_pillow = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="no Pillow")
ALL = [pytest.param(name, marks=needs_pillow if name == "jpeg" else ()) for name in WORKLOADS]


def job_of(workload: str, folder: Path) -> Job:
    return Job("bare", workload, str(data.make(workload, folder, SCALE)))


def elements(value: Any) -> int:
    return value.size if hasattr(value, "size") else len(value)


@pytest.mark.parametrize("workload", ALL)
def test_data_are_seeded(workload: str, data_folder: Path, tmp_path: Path) -> None:
    once, again = (data.make(workload, folder, SCALE) for folder in (data_folder, tmp_path))
    assert {file.name: file.read_bytes() for file in once.iterdir()} == {
        file.name: file.read_bytes() for file in again.iterdir()
    }
    parts = [file.read_bytes() for file in once.glob("part-*")]
    assert len(set(parts)) == len(parts) == data.FILES


@pytest.mark.parametrize("workload", ALL)
def test_a_pass_of_the_reader_amounts_to_what_the_data_say(workload: str, data_folder: Path) -> None:
    job = job_of(workload, data_folder)
    read = job.reader()
    samples = [sample for file in job.files() for sample in read(file)]
    counted = sum(elements(value) for sample in samples for value in sample[:-1])
    assert job.total() == Total(len(samples), sum(sample[-1] for sample in samples), counted)
    assert len(samples) >= data.FILES


@pytest.mark.parametrize("workload", ALL)
def test_the_readers_are_providers_whose_samples_hold(workload: str, data_folder: Path) -> None:
    job = job_of(workload, data_folder)
    args = {"workload": workload, "folder": job.folder}
    report = pydp2.check(job.files()[:2], f"{provided.__file__}:{workload}", args=args)
    assert report.ok
    assert report.samples == sum(1 for file in job.files()[:2] for _ in job.reader()(file))


@pytest.mark.parametrize("workload", PREPARED)
def test_a_pass_of_what_is_prepared_amounts_to_what_the_data_say(workload: str, data_folder: Path) -> None:
    job = job_of(workload, data_folder)
    part = job.files()[:2]
    batches = list(job.batches()(part, 1))
    samples = sum(len(batch["label"]) for batch in batches)
    labels = sum(int(batch["label"].sum()) for batch in batches)
    counted = sum(batch[name].size for batch in batches for name in job.kind.counted)
    whole = job.total()
    assert [n * data.FILES // 2 for n in (samples, labels, counted)] == [whole.samples, whole.labels, whole.elements]
    assert {len(batch["label"]) for batch in batches} == {BATCH}
    assert list(Path(job.folder).iterdir()) == [Path(job.folder) / "meta.json"]


@pytest.mark.parametrize("workload", PREPARED)
def test_what_is_prepared_is_a_provider_whose_samples_hold(workload: str, data_folder: Path) -> None:
    job = job_of(workload, data_folder)
    args = {"workload": workload, "folder": job.folder}
    report = pydp2.check(job.files()[:1], f"{provided.__file__}:{workload}", args=args)
    assert report.ok
    assert report.samples == job.total().samples // data.FILES


@pytest.mark.parametrize("kind", prepared.KINDS)
@pytest.mark.parametrize("size", [1, 7, 128])
def test_parts_of_what_is_prepared_hold_its_samples(kind: str, size: int) -> None:
    whole = prepared.arrays(kind)
    samples = prepared.samples(kind, whole)
    parts = prepared.parts(whole, size)
    again = [sample for part in parts for sample in prepared.samples(kind, part)]
    assert len(samples) == len(again) == prepared.count(kind)
    assert all(
        np.array_equal(a, b) for one, other in zip(samples, again, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert all(np.shares_memory(part["label"], whole["label"]) for part in parts)


def test_the_name_of_a_workload_tells_its_kind_and_form() -> None:
    assert prepared.kind_and_form("rows_u8_single") == ("rows_u8", "single")
    assert [prepared.kind_and_form(name) for name in WORKLOADS] == [(name, None) for name in WORKLOADS]
    assert [prepared.named(*prepared.kind_and_form(name)) for name in PREPARED] == list(PREPARED)


def test_data_that_are_there_are_not_made_again_and_halves_of_them_are(tmp_path: Path) -> None:
    folder = data.make("ctr", tmp_path, SCALE)
    first = folder / "part-00.txt"
    whole = first.read_bytes()
    first.write_bytes(b"mine")
    assert data.make("ctr", tmp_path, SCALE) == folder
    assert first.read_bytes() == b"mine"
    (folder / "meta.json").unlink()  # as when it was interrupted
    data.make("ctr", tmp_path, SCALE)
    assert first.read_bytes() == whole
