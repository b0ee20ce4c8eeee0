"""The lines that a user writes are counted as one would by hand, and the job of pydp2 goes on where it stopped."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.same_job.__main__ import LOADERS, code_lines, lines_of, steps_of

SOURCE = '''"""A module
that says what it is."""

# A comment.
import os  # counts


def work(
    name,
):
    """Say what it does."""
    text = """two
lines"""
    return os.path.join(name, text)  # the last
'''


def test_blank_lines_comments_and_docstrings_do_not_count() -> None:
    assert code_lines(SOURCE) == 7
    assert code_lines("") == code_lines("# nothing\n") == 0


def test_pydp2_takes_the_fewest_lines() -> None:
    assert min(LOADERS, key=lines_of) == "pydp2"


def test_the_job_goes_on_with_the_steps_that_are_left(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for file in Path("sample_data/digits").iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    whole = steps_of("pydp2", sys.executable, tmp_path, "none")
    first = steps_of("pydp2", sys.executable, tmp_path, "state", 60)
    assert len(first) == 60
    assert first + steps_of("pydp2", sys.executable, tmp_path, "state") == whole
