"""Starts of workers are counted: those that did what they should, that failed, and that hang."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import forks
from benchmarks.fork_provider import PLACES, USES

from ..runs import DEADLINE


@pytest.mark.real_starts
@pytest.mark.parametrize("place", PLACES)
def test_starts_that_do_what_they_should_are_good(place: str, tmp_path: Path) -> None:
    USES["numpy"].write(tmp_path / "data")
    got = forks.count_starts("numpy", place, tmp_path / "data", forks.WORKERS, DEADLINE)
    assert (got.good, got.hangs, got.errors, got.apart) == (forks.WORKERS, 0, {}, "")


@pytest.mark.real_starts
def test_a_start_that_fails_is_an_error_and_no_hang(tmp_path: Path) -> None:
    got = forks.count_starts("numpy", "process", tmp_path / "absent", forks.WORKERS, DEADLINE)
    assert (got.good, got.hangs, sum(got.errors.values())) == (0, 0, forks.WORKERS)
    assert "absent" in str(got.errors)


def test_a_program_that_says_nothing_more_is_given_up_at_the_deadline() -> None:
    code = "import time\nprint('good', flush=True)\ntime.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert select.select([program.stdout], [], [], DEADLINE)[0]  # however long the interpreter takes to start
            assert forks.watch(program, 0.5) == (1, False)
        finally:
            program.kill()
