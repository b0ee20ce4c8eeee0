"""``pydp2.count``: the counts that a pass would find, and how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pydp2
from pydp2.errors import OptionError
from tests.runs import alarm

CODE = """
def hook(settings, **kwargs):
    pass

@provider(input_types=[{types}], init_hook=hook, check=True, check_fail_continue=True, cache=CacheType.{cache})
def process(settings, filename):
    with open(filename) as lines:
        for line in lines:
            yield {value}
"""
CONTENTS = [range(40), range(7), range(0), range(300)]
KINDS = {
    "numbers": {"types": "integer_value(250)", "value": "int(line)", "cache": "NO_CACHE"},
    "in memory": {"types": "integer_value(250)", "value": "int(line)", "cache": "CACHE_PASS_IN_MEM"},
    "on disk": {"types": "integer_value(250)", "value": "int(line)", "cache": "CACHE_PASS_ON_DISK"},
    "in cells": {"types": "dense_vector(2000)", "value": "[1.0] * (2000 - int(line) // 250)", "cache": "NO_CACHE"},
}


@pytest.fixture
def files(text_files: Callable[..., list[str]]) -> list[str]:
    made = text_files(CONTENTS)
    time.sleep(0.03)  # a file that changed a moment ago might change again, and look the same
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_counts_is_what_a_pass_delivers(
    kind: str, files: list[str], tmp_path: Path, provider_file: Callable[..., str]
) -> None:
    """Also with equal entries, which are counted each for itself."""
    provider, options = provider_file(CODE.format(**KINDS[kind])), {"workers": 2, "cache_dir": tmp_path / "cache"}
    listed = [*files, files[0]]
    told: list[tuple[int, int, int]] = []
    with alarm(60):
        counted = pydp2.count(listed, provider, progress=lambda *figures: told.append(figures), **options)
        again = pydp2.count(listed, provider, **options)
        with pydp2.load(listed, provider, batch_size=10, **options) as data:
            assert len(data) == len(list(data)) == 34
    assert [counted.batches(batch_size=10, rank=rank, world_size=3) for rank in range(3)] == [12, 11, 11]
    with pytest.raises(TypeError, match="batch_size is needed"):
        counted.batches()  # type: ignore[call-arg]
    assert [each.samples for each in counted.files] == [40, 7, 0, 250, 40]
    assert [each.dropped for each in counted.files] == [0, 0, 0, 50, 0]
    assert [each.file for each in counted.files] == listed
    assert (counted.samples, counted.missing, counted.plain, counted.read) == (337, [], True, 5)
    assert (again.files, again.read) == (counted.files, 0)
    assert all(done <= total == 5 for done, total, _ in told)


def test_the_files_of_a_service_without_workers_of_its_own_are_counted_here(
    files: list[str], tmp_path: Path, provider_file: Callable[..., str]
) -> None:
    provider = provider_file(CODE.format(**KINDS["numbers"]))
    with alarm(60):
        assert pydp2.count(files, provider, workers=0, cache_dir=tmp_path / "cache").samples == 297


def test_counting_what_is_counted_does_not_say_that_there_are_no_samples(
    files: list[str], tmp_path: Path, provider_file: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    provider, options = provider_file(CODE.format(**KINDS["numbers"])), {"workers": 1, "cache_dir": tmp_path / "cache"}
    with alarm(60):
        pydp2.count(files, provider, **options)
        assert pydp2.count(files, provider, **options).read == 0
    assert "no samples" not in capfd.readouterr().err


def test_to_count_and_not_to_remember_it_is_refused(files: list[str], provider_file: Callable[..., str]) -> None:
    with pytest.raises(OptionError, match="got remember_counts=False; leave it out"):
        pydp2.count(files, provider_file(CODE.format(**KINDS["numbers"])), workers=1, remember_counts=False)


def test_a_provider_that_is_in_no_file_cannot_be_counted(files: list[str], tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("zipped.py", "from pydp2 import *\n" + CODE.format(**KINDS["numbers"]))
    import sys

    sys.path.insert(0, str(tmp_path / "code.zip"))
    try:
        options: dict[str, Any] = {"workers": 1, "cache_dir": tmp_path / "cache"}
        with alarm(60), pytest.raises(OptionError, match="for a provider in a file only"):
            pydp2.count(files, "zipped.process", **options)
    finally:
        sys.path.remove(str(tmp_path / "code.zip"))
