"""``pydp2 serve`` ends, or is ended: one line says why, in its terminal and in the trainer's exception."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..runs import Program, processes, wait_until
from .programs import SERVE, TRAINER

Start = Callable[..., Program]


def gone() -> bool:
    return processes("pydp2-") == [] and processes("sleep") == []


@pytest.fixture
def code() -> str:
    """That of the command."""
    return SERVE


@pytest.fixture
def serving(program: Start, code: str, tmp_path: Path) -> tuple[Program, Program]:
    """A command that serves, and a trainer that reads from it."""
    serve = program(code, str(tmp_path / "s"))
    trainer = program(TRAINER, serve.said("ipc://"))
    trainer.said("ready")
    assert wait_until(lambda: len(processes("sleep")) == 1)
    return serve, trainer


def words(serve: Program) -> list[str]:
    """What the command and its service said of their end."""
    said = [line for line in serve.screen.splitlines() if line.startswith(("pydp2: ", "Error"))]
    return [line for line in said if ", memory " not in line]  # how it is going


def reason(trainer: Program) -> str:
    """What the trainer was told."""
    assert trainer.ended() == 1
    assert trainer.screen.count("Traceback") == 1
    return trainer.screen.splitlines()[-1].removeprefix("pydp2.errors.ServiceLost: the service at ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_service_in_order(
    number: signal.Signals, serving: tuple[Program, Program], run_directories: Callable[[], list[str]], tmp_path: Path
) -> None:
    serve, trainer = serving
    os.killpg(serve.pid, number)
    assert serve.ended() == 128 + number
    assert words(serve) == [f"pydp2: ending the service ({number.name})"]
    assert "Traceback" not in serve.screen
    assert reason(trainer) == f"ipc://{tmp_path}/s ended: its program closed it"
    assert gone()
    assert run_directories() == []
    assert not (tmp_path / "s").exists()


def test_a_second_signal_ends_it_at_once(serving: tuple[Program, Program]) -> None:
    serve, trainer = serving
    for _ in range(10):
        if serve.process.poll() is None:
            os.killpg(serve.pid, signal.SIGINT)
            time.sleep(0.15)
    serve.ended()
    assert "Traceback" not in serve.screen
    assert reason(trainer)
    assert wait_until(gone)


PATIENT = "import pydp2_cli.signals\npydp2_cli.signals._REPEAT_SECONDS = 60.0\n" + SERVE


@pytest.mark.parametrize("code", [PATIENT], ids=[""])  # whatever the machine does between the two
def test_a_signal_that_comes_twice_at_once_ends_the_service_in_order(
    serving: tuple[Program, Program], run_directories: Callable[[], list[str]], tmp_path: Path
) -> None:
    """As coreutils' timeout sends it."""
    serve, trainer = serving
    serve.signal(signal.SIGTERM)
    os.killpg(serve.pid, signal.SIGTERM)
    assert serve.ended() == 128 + signal.SIGTERM
    assert words(serve) == ["pydp2: ending the service (SIGTERM)"]
    assert reason(trainer) == f"ipc://{tmp_path}/s ended: its program closed it"
    assert gone()
    assert run_directories() == []
    assert not (tmp_path / "s").exists()


def test_a_command_that_is_killed_takes_its_service_along(serving: tuple[Program, Program], tmp_path: Path) -> None:
    serve, trainer = serving
    serve.signal(signal.SIGKILL)
    serve.ended()
    text = f"the program that started it (pid {serve.pid}) is gone"
    assert words(serve) == [f"pydp2: the service ends: {text}"]
    assert reason(trainer) == f"ipc://{tmp_path}/s ended: {text}"
    assert gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_process_that_is_ended_ends_the_command(
    number: signal.Signals, serving: tuple[Program, Program], tmp_path: Path
) -> None:
    serve, trainer = serving
    os.kill(processes("pydp2-server")[0], number)
    assert serve.ended() == 1
    assert "Traceback" not in serve.screen
    assert len(words(serve)) == (2 if number is signal.SIGTERM else 1)
    assert any("server process" in line for line in words(serve))
    silent = "ended without a message; see the last lines of its log"
    how = "ended: it received SIGTERM" if number is signal.SIGTERM else silent
    assert reason(trainer) == f"ipc://{tmp_path}/s {how}"
    assert wait_until(gone)
