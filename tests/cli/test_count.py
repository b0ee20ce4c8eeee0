"""``pydp2 count``: what it prints, what it reads again, and its exit codes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import pydp2

COUNT = ("count", "train.list", "--provider", "numbers_provider.process", "--workers", 2, "--cache_dir", "cache")


@pytest.fixture
def folder(folder: Path) -> Path:
    time.sleep(0.03)  # a file that changed a moment ago might change again, and look the same
    return folder


def test_files_are_counted_once_and_a_service_knows_the_length(folder: Path, cli: Callable[..., Result]) -> None:
    result = cli(*COUNT)
    assert result.exit_code == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[:3] == [["file", "samples", "dropped"], ["a.txt", "3", "-"], ["b.txt", "3", "-"]]
    assert rows[3] == ["6", "samples", "(2", "files", "read,", "2", "files", "counted)"]
    assert "6 samples (0 files read, 2 files counted)" in cli(*COUNT).stdout
    assert "6 samples (2 files read, 2 files counted)" in cli(*COUNT, "--again").stdout
    with pydp2.load(
        "train.list", "numbers_provider.process", workers=1, batch_size=4, root=folder, cache_dir=folder / "cache"
    ) as data:
        assert len(data) == 2


def test_only_what_changed_is_read_again(folder: Path, cli: Callable[..., Result]) -> None:
    cli(*COUNT)
    (folder / "b.txt").write_text("4\n")
    time.sleep(0.03)
    result = cli(*COUNT, "--json")
    plain = json.loads(result.stdout)
    assert (plain["samples"], plain["read"], plain["missing"], plain["plain"]) == (4, 1, 0, True)
    assert [each["samples"] for each in plain["files"]] == [3, 1]


def test_a_file_that_cannot_be_read_ends_it_and_the_others_stay_counted(
    folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "b.txt").write_text("4\nfive\n6\n")
    time.sleep(0.03)
    result = cli(*COUNT, "--workers", 1)
    assert result.exit_code == 1
    assert "Error: file b.txt, sample 1: process raised ValueError" in result.stderr
    result = cli(*COUNT, "--on_error", "skip")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()][2] == ["b.txt", "1", "-", "ended", "early"]
    assert "4 samples (1 file read, 2 files counted)" in result.stdout, "the other file was read before"


def test_a_file_whose_time_of_change_lies_ahead_is_counted(folder: Path, cli: Callable[..., Result]) -> None:
    ahead = time.time() + 1000
    os.utime(folder / "b.txt", (ahead, ahead))
    time.sleep(0.03)
    result = cli(*COUNT)
    assert result.exit_code == 0, result.stderr
    assert "6 samples (0 files read, 2 files counted)" in cli(*COUNT).stdout


def test_samples_with_weights_are_counted_with_them(folder: Path, cli: Callable[..., Result]) -> None:
    code = (folder / "numbers_provider.py").read_text()
    code = code.replace("should_shuffle=False", "calc_batch_size=lambda sample: 5, can_over_batch_size=False")
    (folder / "numbers_provider.py").write_text(code)
    result = cli(*COUNT)
    assert result.exit_code == 0, result.stderr
    assert [line.split() for line in result.stdout.splitlines()][1] == ["a.txt", "3", "-", "15"]
    assert "not every sample weighs 1" in result.stdout


def test_a_count_that_cannot_be_remembered_makes_the_exit_code_1(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "cache").write_text("no folder")
    result = cli(*COUNT)
    assert result.exit_code == 1
    assert "cannot be remembered" in result.stderr
    assert "0 samples (2 files read, 0 files counted)" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "said", "batches"),
    [
        (["--batch-size", 4], "2 batches in a pass (batch_size=4)", [2]),
        (["--batch-size", 4, "--last-batch", "drop"], "1 batch in a pass (batch_size=4, last_batch=drop)", [1]),
        (
            ["--batch-size", 2, "--world-size", 2],
            "3 batches in a pass (batch_size=2); each of 2 ranks gets 1 or 2",
            [2, 1],
        ),
        (
            ["--batch-size", 2, "--world-size", 2, "--last-batch", "pad"],
            "4 batches in a pass (batch_size=2, last_batch=pad); each of 2 ranks gets 2",
            [2, 2],
        ),
    ],
)
def test_with_a_batch_size_it_says_how_many_batches_there_are(
    given: list[Any], said: str, batches: list[int], folder: Path, cli: Callable[..., Result]
) -> None:
    assert cli(*COUNT, *given).stdout.splitlines()[-1] == said
    assert json.loads(cli(*COUNT, *given, "--json").stdout)["batches"] == batches


def test_an_empty_list_has_no_batches_and_is_warned_of_once(folder: Path, cli: Callable[..., Result]) -> None:
    (folder / "train.list").write_text("")
    for given in ([], ["--last-batch", "pad"], ["--world-size", 2]):
        result = cli(*COUNT, "--batch-size", 2, *given)
        assert result.exit_code == 0
        assert "0 batches in a pass (batch_size=2" in result.stdout.splitlines()[-1]
        assert result.stderr == "Warning: the file list train.list is empty: a pass over it has no samples\n"


def test_a_configuration_that_buckets_says_why_the_number_of_batches_is_not_known(
    folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "run.toml").write_text(
        'provider = "numbers_provider.process"\n[train]\nlist = "train.list"\n[job]\nbatch_size = 2\nbucket_by = 0\n'
    )
    result = cli("count", "--config", "run.toml", "--workers", 2, "--cache_dir", "cache")
    assert "with bucket_by it is known after one full pass" in result.stdout
    assert "batches" not in json.loads(
        cli("count", "--config", "run.toml", "--workers", 2, "--cache_dir", "cache", "--json").stdout
    )


def test_a_configuration_that_remembers_no_counts_is_overridden_by_the_flag(
    folder: Path, cli: Callable[..., Result]
) -> None:
    (folder / "run.toml").write_text(
        'provider = "numbers_provider.process"\n[train]\nlist = "train.list"\n[service]\nremember_counts = false\n'
    )
    given = ("count", "--config", "run.toml", "--workers", 2, "--cache_dir", "cache")
    refused = cli(*given)
    assert refused.exit_code != 0
    assert "got remember_counts=False" in refused.stderr
    assert "6 samples" in cli(*given, "--remember-counts").stdout


def test_an_empty_list_of_arguments_is_wrong_usage(folder: Path, cli: Callable[..., Result]) -> None:
    assert cli("count").exit_code == 2
    assert cli(*COUNT, "--workers", "none").exit_code == 2
    refused = cli(*COUNT, "--world_size", "3")
    assert refused.exit_code == 2
    assert "add --batch_size" in refused.stderr
