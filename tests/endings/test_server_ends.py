"""The server, its supervisor, a worker or everybody ends: the others say what happened, and nothing is left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import pydp2

from ..provider_code import one
from ..runs import Program, is_dead, processes, service, wait_until
from .programs import LAUNCH, LOAD, SERVER, TRAINER

Start = Callable[..., Program]
BOTH = pytest.mark.parametrize("code", [LOAD, LAUNCH], ids=["load", "launch"])


def gone() -> bool:
    return processes("pydp2-") == [] and processes("sleep") == []


def last_line(program: Program) -> str:
    return program.screen.splitlines()[-1]


@BOTH
def test_sigterm_at_the_server_ends_all_in_order(code: str, program: Start) -> None:
    """The service says why in one line, and the trainer's exception says the same."""
    trainer = program(code)
    trainer.said("ready")
    os.kill(processes("pydp2-server")[0], signal.SIGTERM)
    assert trainer.ended() == 1
    assert trainer.screen.splitlines()[0] == "pydp2: the service ends: it received SIGTERM"
    assert trainer.screen.count("Traceback") == 1
    assert last_line(trainer).startswith("pydp2.errors.ServiceLost: the service at ipc://")
    assert last_line(trainer).endswith(" ended: it received SIGTERM")
    assert gone()


@BOTH
def test_a_server_that_is_killed_is_missed_by_its_trainer(
    code: str, program: Start, run_directories: Callable[[], list[str]]
) -> None:
    trainer = program(code)
    trainer.said("ready")
    assert wait_until(lambda: len(processes("sleep")) == 1)
    os.kill(processes("pydp2-server")[0], signal.SIGKILL)
    assert trainer.ended() == 1
    assert trainer.screen.count("Traceback") == 1
    assert "ServiceLost: the service at ipc://" in last_line(trainer)
    assert last_line(trainer).endswith(" ended without a message; see the last lines of its log")
    assert "pydp2:" not in trainer.screen
    assert wait_until(gone)
    assert run_directories() == []


@BOTH
def test_a_nursery_that_is_killed_ends_the_service_with_a_word(code: str, program: Start) -> None:
    trainer = program(code)
    trainer.said("ready")
    os.kill(processes("pydp2-supervise")[0], signal.SIGKILL)
    assert trainer.ended() == 1
    text = "the process that forks workers is gone; no worker can be replaced any more"
    assert trainer.screen.splitlines()[0] == f"pydp2: the service ends: {text}"
    assert trainer.screen.count("Traceback") == 1
    assert last_line(trainer) == f"pydp2.errors.ServiceLost: {text}"
    assert wait_until(gone)


@BOTH
def test_a_worker_that_is_killed_is_replaced_with_a_line(code: str, program: Start) -> None:
    """The trainer goes on; what the user's code had started in the worker is gone with it."""
    trainer = program(code)
    trainer.said("ready")
    assert wait_until(lambda: len(processes("sleep")) == 1)
    service(2)
    before = processes("pydp2-worker")
    child = processes("sleep")[0]
    os.kill(os.getpgid(child), signal.SIGKILL)
    assert wait_until(lambda: "pydp2: worker lost: worker " in trainer.screen)
    assert wait_until(lambda: len(processes("pydp2-worker")) == 3 and processes("pydp2-worker") != before)
    assert wait_until(lambda: child not in processes("sleep"))
    assert trainer.process.poll() is None
    os.killpg(trainer.pid, signal.SIGINT)
    trainer.ended()
    assert "was killed by SIGKILL" in trainer.screen.splitlines()[0]
    assert gone()


@BOTH
def test_everybody_is_killed_at_once(
    code: str, program: Start, run_directories: Callable[[], list[str]], tmp_path: Path
) -> None:
    """No process is left; the run directory is, until the next start of any service removes it."""
    trainer = program(code)
    trainer.said("ready")
    assert wait_until(lambda: len(processes("sleep")) == 1)
    everybody = [trainer.pid, *service(2), *processes("sleep")]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)  # so that none has the time to clean up after another
    for pid in everybody:
        os.kill(pid, signal.SIGKILL)
    trainer.ended()
    assert wait_until(lambda: all(map(is_dead, everybody)))
    (left,) = run_directories()
    with pydp2.launch(["a"], f"{tmp_path}/endless.py:process", workers=1):
        assert left not in run_directories()
        assert len(run_directories()) == 1
    assert run_directories() == []


def test_sigterm_at_a_service_of_its_own_reaches_trainers_of_other_programs(program: Start, tmp_path: Path) -> None:
    server = program(SERVER, str(tmp_path / "s"))
    trainer = program(TRAINER, server.said("address").split()[1])
    trainer.said("ready")
    os.kill(processes("pydp2-server")[0], signal.SIGTERM)
    assert trainer.ended() == 1
    assert last_line(trainer) == (
        f"pydp2.errors.ServiceLost: the service at ipc://{tmp_path}/s ended: it received SIGTERM"
    )
    assert server.ended() == 1
    assert server.screen == "pydp2: the service ends: it received SIGTERM\nthe service ended: 0\n"
    assert gone()
    assert not (tmp_path / "s").exists()


def test_ctrl_c_at_a_service_of_its_own_reaches_trainers_of_other_programs(program: Start, tmp_path: Path) -> None:
    server = program(SERVER, str(tmp_path / "s"))
    trainer = program(TRAINER, server.said("address").split()[1])
    trainer.said("ready")
    os.killpg(server.pid, signal.SIGINT)
    assert trainer.ended() == 1
    assert last_line(trainer).endswith(" ended: its program closed it")
    assert server.ended() == -signal.SIGINT
    assert server.screen.count("Traceback") == 1
    assert gone()


def test_a_program_that_is_killed_while_it_starts_leaves_nothing(program: Start, tmp_path: Path) -> None:
    """The hook of its provider takes long: nobody waits for it."""
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pydp2 import *\n"
        "@provider(input_types=[integer_value(1)], init_hook=lambda settings, **kwargs: time.sleep(1000))\n"
        "def process(settings, filename):\n    yield 0\n"
    )
    trainer = program("import pydp2\npydp2.launch(['a'], 'slow.process', workers=2)\n")
    assert wait_until(lambda: len(processes("pydp2-zygote")) == 1, 20)
    trainer.signal(signal.SIGKILL)
    trainer.ended()
    assert wait_until(gone)


def test_a_server_that_does_not_answer_any_more_is_killed(program: Start) -> None:
    """Its program asks it to end, waits, and goes without its consent; nothing is left all the same."""
    trainer = program(LAUNCH)
    trainer.said("ready")
    os.kill(processes("pydp2-server")[0], signal.SIGSTOP)
    trainer.signal(signal.SIGINT)
    assert trainer.ended(30) == -signal.SIGINT
    assert trainer.screen.count("Traceback") == 1
    assert wait_until(gone)


ONE = one()


@pytest.mark.parametrize("is_stopped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_service_ends_although_an_interrupt_has_left_the_lock_of_its_process_taken(
    is_stopped: bool, provider_file: Callable[[str], str]
) -> None:
    """A second Ctrl-C may come right behind the point where Popen takes its lock, which nobody frees then."""
    made = pydp2.launch(["a"], provider_file(ONE), workers=1)
    assert made._process._waitpid_lock.acquire(timeout=30)  # type: ignore[attr-defined]
    if is_stopped:
        os.kill(made.pid, signal.SIGSTOP)
    closing = threading.Thread(target=made.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    assert made._process.returncode == (-signal.SIGKILL if is_stopped else 0)
    assert wait_until(gone)


def test_a_timeout_of_the_program_s_own_while_a_service_starts_ends_the_start(
    provider_file: Callable[..., str],
) -> None:
    """A TimeoutError is an OSError, and yet says nothing of the server."""
    address = provider_file("""
    import time
    time.sleep(30)

    @provider(input_types=[integer_value(10)])
    def process(settings, filename):
        yield 1
    """)

    def stop(number: int, frame: object) -> None:
        raise TimeoutError("the program has waited enough")

    before = processes("pydp2-server")
    handler = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(TimeoutError, match="the program has waited enough"):
            pydp2.launch(["a"], address, workers=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert wait_until(lambda: processes("pydp2-server") == before)
