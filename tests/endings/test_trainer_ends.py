"""The trainer ends, in order or not: its own service goes with it, another one stays for the next trainer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

import pydp2
from pydp2.transport import Hub, Line
from tests.transport.conftest import let_in

from ..runs import Program, processes, wait_until
from .programs import LAUNCH, LOAD, SERVER, TRAINER

Start = Callable[..., Program]
BOTH = pytest.mark.parametrize("code", [LOAD, LAUNCH], ids=["load", "launch"])


def gone() -> bool:
    return processes("pydp2-") == [] and processes("sleep") == []


@BOTH
def test_ctrl_c_at_the_trainer_ends_all_in_order(
    code: str, program: Start, run_directories: Callable[[], list[str]]
) -> None:
    """Python's own KeyboardInterrupt is all there is to read; Ctrl-C reaches the whole foreground group."""
    trainer = program(code)
    trainer.said("ready")
    os.killpg(trainer.pid, signal.SIGINT)
    assert trainer.ended() == -signal.SIGINT
    assert trainer.screen.count("Traceback") == 1
    assert trainer.screen.endswith("\nKeyboardInterrupt\n")
    assert "pydp2:" not in trainer.screen
    assert "worker" not in trainer.screen
    assert gone()
    assert run_directories() == []


@BOTH
def test_a_second_ctrl_c_ends_at_once(code: str, program: Start) -> None:
    trainer = program(code)
    trainer.said("ready")
    began = time.monotonic()
    for _ in range(20):
        if trainer.process.poll() is None:
            os.killpg(trainer.pid, signal.SIGINT)
        time.sleep(0.005)
    trainer.ended()
    assert time.monotonic() - began < 20
    assert "[worker" not in trainer.screen
    assert wait_until(gone)


@BOTH
def test_an_exception_in_the_trainer_ends_all_in_order(
    code: str, program: Start, run_directories: Callable[[], list[str]]
) -> None:
    trainer = program(code, "mistake")
    trainer.said("ready")
    assert trainer.ended() == 1
    assert trainer.screen.count("Traceback") == 1
    assert trainer.screen.endswith("\nZeroDivisionError: a mistake of the trainer's\n")
    assert "pydp2:" not in trainer.screen
    assert gone()
    assert run_directories() == []


@BOTH
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_trainer_that_is_killed_takes_its_service_along(
    number: signal.Signals, code: str, program: Start, run_directories: Callable[[], list[str]]
) -> None:
    """One line of the service says why it ends; what the user's code had started in workers goes too."""
    trainer = program(code)
    trainer.said("ready")
    assert wait_until(lambda: len(processes("sleep")) == 1)
    trainer.signal(number)
    assert trainer.ended() == -number
    assert trainer.screen == f"pydp2: the service ends: the program that started it (pid {trainer.pid}) is gone\n"
    assert gone()
    assert run_directories() == []


def test_a_program_that_forked_and_is_killed_takes_its_service_along(program: Start) -> None:
    """Its child holds the other end of the channel by which the service would notice."""
    trainer = program(
        "import os, time\n"
        + LOAD.replace("for i, batch", "child = os.fork()\nif not child:\n    time.sleep(1000)\nfor i, batch")
        .replace('print("ready"', 'print("ready", child')
    )  # fmt: skip
    child = int(trainer.said("ready").split()[1])
    try:
        trainer.signal(signal.SIGKILL)
        assert wait_until(gone)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "how", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("SIGINT", "SIGTERM")), "SIGKILL", "mistake"]
)
def test_a_service_outlives_a_trainer_that_only_connected(how: str, program: Start, tmp_path: Path) -> None:
    """Whatever became of it, the job is free for the next; of a death the service says one line."""
    server = program(SERVER, str(tmp_path / "s"))
    address = server.said("address").split()[1]
    trainer = program(TRAINER, address, *(["mistake"] if how == "mistake" else []))
    trainer.said("ready")
    if how != "mistake":
        trainer.signal(signal.Signals[how])
    trainer.ended()
    assert trainer.screen.count("Traceback") == (how in {"SIGINT", "mistake"})
    following = program(TRAINER, address)
    following.said("ready")
    killed = how in {"SIGTERM", "SIGKILL"}
    assert wait_until(lambda: server.screen.count("is gone") == killed)
    assert server.screen == "pydp2: trainer: the trainer is gone; its job is free\n" * killed
    told = [event for event in pydp2.stats(address)["events"] if event["event"] == "trainer_gone"]
    assert [event["about"] for event in told] == [{"job": "default", "rank": "0"}] * killed
    os.killpg(server.pid, signal.SIGINT)
    server.ended()
    assert following.ended() == 1
    assert gone()


def test_a_program_that_is_stopped_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Ctrl-Z, or a debugger, for longer than any heartbeat's patience: there are none, the kernel tells of deaths."""
    context = zmq.Context()
    hub = Hub(context, f"ipc://{tmp_path}/s", -1)
    line = let_in(hub, lambda: Line(context, hub.address))
    try:
        assert hub.handle.getsockopt(zmq.HEARTBEAT_IVL) == line.handle.getsockopt(zmq.HEARTBEAT_IVL) == 0
    finally:
        line.close()
        hub.close()
        context.term()
