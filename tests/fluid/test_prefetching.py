"""Readers that threads fill: a program may end in the middle of a pass."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
import numpy as np
from pydp2 import fluid

@fluid.register_file_reader("endless")
def read(filename, shapes):
    while True:
        yield [np.zeros((1, 1))]

files = fluid.open_files(["a.endless", "b.endless"], [[1, 1]], thread_num=2)
reader = fluid.double_buffer(fluid.shuffle(files, 3))
reader.read_next()
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise SystemExit(4)", 4),
        ("pid = os.fork()\nif pid:\n    _, status = os.waitpid(pid, 0)\n    sys.exit(status)", 0),
        ("for again in range(3):\n    reader.reinit()\n    reader.read_next()\nreader.close()", 0),
    ],
)
def test_a_program_ends_in_the_middle_of_a_pass(end: str, code: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
