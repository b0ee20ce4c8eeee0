"""An interpreter without its global lock is refused, by whoever would rely on it; the rest works there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROVIDER = """
from pydp2 import *

@provider(input_types=[integer_value(10)])
def process(settings, filename):
    yield 1
"""
WITHOUT = "import sys\nsys._is_gil_enabled = lambda: False\n"
WITH = "import sys\nsys._is_gil_enabled = lambda: True\n"
ONLY_THE_SERVER = "import sys\nsys._is_gil_enabled = lambda: '-P' not in sys.orig_argv\n"
"""As where the program was given its lock by ``-X gil=1``, which the processes that it starts do not have."""
CALLS = {
    "launch": 'pydp2.launch(["a"], "p.process")',
    "load": 'pydp2.load(["a"], "p.process", batch_size=1)',
    "connect": 'pydp2.connect("ipc://nobody", batch_size=1)',
    "check": 'pydp2.check(["a"], "p.process")',
    "peek": 'pydp2.peek(["a"], "p.process")',
    "bench": 'pydp2.bench(["a"], "p.process", seconds=1)',
}


def run(code: str, custom: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """``code`` in an interpreter that says what ``custom`` makes it say."""
    (folder / "sitecustomize.py").write_text(custom)
    (folder / "p.py").write_text(PROVIDER)
    (folder / "program.py").write_text(f"import pydp2\nif __name__ == '__main__':\n    {code}\n")
    return subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_free_threaded_interpreter_is_refused_with_the_remedy(call: str, tmp_path: Path) -> None:
    done = run(call, WITHOUT, tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("pydp2.errors.GuardError: pydp2 needs an interpreter with its global lock (GIL)")
    assert f"this one, {sys.executable} (Python 3." in last
    assert "set PYTHON_GIL=1 in the environment, or use a python3." in last


@pytest.mark.parametrize("call", ["launch", "load"])
def test_so_is_one_for_the_server_alone(call: str, tmp_path: Path) -> None:
    done = run(CALLS[call], ONLY_THE_SERVER, tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("pydp2.errors.GuardError: pydp2 needs an interpreter with its global lock (GIL)")


def test_one_that_has_its_lock_will_do(tmp_path: Path) -> None:
    done = run('print(sum(map(len, pydp2.load(["a"], "p.process", batch_size=1))))', WITH, tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_what_needs_no_worker_works_without(tmp_path: Path) -> None:
    code = "from pydp2 import reader; print(list(reader.firstn(reader.chain(lambda: iter([1, 2, 3])), 2)()))"
    done = run(code, WITHOUT, tmp_path)
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n"), done.stderr
