"""Programs that end in every way, and the watch over what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pydp2.api import rundir

from ..runs import processes, wait_until

PROVIDER = """
from pydp2 import *
import subprocess

@provider(input_types=[integer_value(1 << 40)], pool_size=64)
def process(settings, filename):
    if filename == "with a child":
        subprocess.Popen(["sleep", "1000"])
    for i in range(10**9):
        yield i
"""


@pytest.fixture(autouse=True)
def _no_memory_left() -> Iterator[None]:
    """No segment of shared memory outlives a test."""
    shared = Path("/dev/shm")
    before = {entry.name for entry in shared.iterdir()}
    yield

    def nothing_new() -> bool:  # what another process of the tests has for a moment goes again
        return {entry.name for entry in shared.iterdir() if not entry.name.startswith("sem.")} <= before

    assert wait_until(nothing_new)


@pytest.fixture(autouse=True)
def _slow_provider(tmp_path: Path) -> None:
    """A provider that never comes to an end, beside the program."""
    (tmp_path / "endless.py").write_text(PROVIDER)


@pytest.fixture
def run_directories() -> Callable[[], list[str]]:
    """Names of the run directories that there are when it is asked (``run_directories()``). One that begins with a dot
    was being made by a program that another test has killed; a later start removes it."""
    return lambda: sorted(e.name for e in rundir.run_directories().iterdir() if not e.name.startswith("."))


@pytest.fixture(autouse=True)
def _nobody_before() -> None:
    """Each test finds its own processes by their names."""
    assert processes("pydp2-") == []
