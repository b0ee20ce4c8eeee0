"""What the user's code changes around itself: put back, or told of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydp2.host.engine.base import StatusPage
from pydp2.host.worker.process_state import ProcessState
from pydp2.protocol.worker_status import FILE


@pytest.fixture
def output() -> Iterator[tuple[int, int]]:
    """The two ends of the pipe that stdout and stderr of a worker lead to."""
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    yield ends
    for end in ends:
        os.close(end)


def test_without_its_working_directory_a_worker_says_so_and_goes_on(
    output: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root := tmp_path / "root").mkdir()
    monkeypatch.chdir(root)
    page = StatusPage(1)
    state = ProcessState(0, page.row(0), output[1], str(root))
    root.rmdir()
    state.switch_file(3)
    assert page.row(0)[FILE] == 3
    said = os.read(output[0], 10_000).decode()
    assert f"the working directory {root}, where the entries of the list are looked up, cannot be used any more" in said
    assert "No such file or directory" in said
    root.mkdir()
    state.switch_file(4)
    assert Path.cwd() == root, "it is there again"
