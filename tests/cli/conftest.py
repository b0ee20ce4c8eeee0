"""Running the program: in this process, or as one of its own."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydp2_cli import main, picture

DEADLINE = 60.0  # seconds; what lasts longer hangs
PROGRAM = [sys.executable, "-m", "pydp2"]
LINES = """
    from pydp2 import *

    @provider(input_types={"n": integer_value(1000)}, should_shuffle=False)
    def process(settings, filename):
        with open(filename) as lines:
            for line in lines:
                yield {"n": int(line)}
"""


@pytest.fixture(scope="session", autouse=True)
def _fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib, where it is installed, keeps the files of fonts open that it has used."""
    if picture.can_draw():
        looks = [picture.Look(float(second), {}, 0.0, 0.0, 0, 0) for second in range(2)]
        picture.draw_stats(tmp_path_factory.mktemp("fonts") / "x.svg", looks)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Result]]:
    """``cli("check", …)`` runs the program in this process, in the folder of the test."""

    def run(*arguments: object) -> Result:
        monkeypatch.chdir(tmp_path)
        return CliRunner().invoke(main, [str(a) for a in arguments], prog_name="pydp2", terminal_width=80)

    yield run
    for name, module in list(sys.modules.items()):  # the next test has another module by this name
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files of three numbers, their list, and a provider."""
    (tmp_path / "a.txt").write_text("1\n2\n3\n")
    (tmp_path / "b.txt").write_text("4\n5\n6\n")
    (tmp_path / "train.list").write_text("a.txt\nb.txt\n")
    (tmp_path / "numbers_provider.py").write_text(textwrap.dedent(LINES))
    return tmp_path


class Running:
    """A program that runs. Its output is read by deadline, never for ever."""

    def __init__(self, arguments: list[str], folder: Path, **options: Any) -> None:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        self.process = subprocess.Popen([*PROGRAM, *arguments], cwd=folder, stdin=subprocess.DEVNULL, **options)
        self._read = {"stdout": b"", "stderr": b""}

    def until(self, stream: str, text: str) -> str:
        """What ``stream`` gave so far, once ``text`` is in it."""
        pipe = getattr(self.process, stream)
        deadline = time.monotonic() + DEADLINE
        while text.encode() not in self._read[stream]:
            ready = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]
            data = os.read(pipe.fileno(), 1 << 16) if ready else b""
            assert data, f"{stream} never had {text!r}, but: {self._read}"
            self._read[stream] += data
        return self._read[stream].decode()

    def address(self) -> str:
        """The first line of stdout."""
        return self.until("stdout", "\n").splitlines()[0]

    def ended(self, seconds: float = DEADLINE) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, all of them, at the latest after ``seconds``."""
        out, err = self.process.communicate(timeout=seconds)
        return (
            self.process.returncode,
            (self._read["stdout"] + (out or b"")).decode(),
            (self._read["stderr"] + (err or b"")).decode(),
        )


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """``running("serve", …)`` starts the program in the folder of the test; it is killed if the test leaves it."""
    started: list[Running] = []

    def start(*arguments: object, **options: Any) -> Running:
        started.append(Running([str(a) for a in arguments], tmp_path, **options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.send_signal(signal.SIGKILL)
        each.process.communicate(timeout=DEADLINE)
