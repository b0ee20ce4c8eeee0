"""Where stdout leads: a full disk, a pipe that its reader closed, an encoding that lacks characters."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import DEADLINE, PROGRAM

LIST = ["train.list", "--provider", "numbers_provider.process"]
COMMANDS = [
    ["check", *LIST], ["peek", *LIST, "--json"], ["--version"], ["--help"],
    pytest.param(["check", "--help"], marks=pytest.mark.slow),
]  # fmt: skip
pytestmark = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


def run(command: list[str], folder: Path, stdout: int, **more: str) -> tuple[int, bytes, bytes]:
    """Status of the program, and what it wrote to stdout (where that is a pipe) and stderr."""
    options: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    done = subprocess.run([*PROGRAM, *command], stdout=stdout, timeout=DEADLINE, env=os.environ | more, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_disk_is_told_in_one_line(command: list[str], unbuffered: str, folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        status, _, said = run(command, folder, full.fileno(), PYTHONUNBUFFERED=unbuffered)
    assert (status, said.decode()) == (
        1, "Error: stdout cannot be written: No space left on device; make room, or send it elsewhere\n",
    )  # fmt: skip


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_pipe_that_its_reader_closed_has_a_status_of_its_own(
    command: list[str], unbuffered: str, folder: Path
) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert run(command, folder, write, PYTHONUNBUFFERED=unbuffered) == (141, None, b"")
    finally:
        os.close(write)


@pytest.mark.parametrize(
    "more",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "1"},
    ],
    ids=["latin-1", "ASCII", "UTF-8 mode"],
)
def test_characters_that_the_encoding_lacks_are_escaped(command: list[str], more: dict[str, str], folder: Path) -> None:
    status, out, said = run(command, folder, subprocess.PIPE, **more)
    assert (status, b"Traceback" in said) == (0, False), said
    if command[0] == "check" and "--help" not in command:
        shown = "1 … 3" if "PYTHONUTF8" in more and more["PYTHONUTF8"] == "1" else r"1 \u2026 3"
        assert shown.encode() in out
