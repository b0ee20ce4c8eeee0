"""Whatever becomes of the reader of its log, a service goes on, and ends with the exit code that it should."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pydp2

from ..runs import processes, wait_until

PROVIDER = """
from pydp2 import *

@provider(input_types=[integer_value(1 << 40)], check=True, check_fail_continue=True, should_shuffle=False)
def process(settings, filename):
    for i in range(500):
        print("reading", filename, i, "x" * 100)
        yield -1 if i % 2 else i
"""
FILES, GOOD = 8, 250
Serve = Callable[..., "Service"]


class Service:
    """``pydp2 serve`` in the folder of the test, with its log where ``stderr`` leads."""

    def __init__(self, folder: Path, stderr: Any, stdout: Any = subprocess.PIPE, *words: str, **options: Any) -> None:
        (folder / "talks.py").write_text(PROVIDER)
        (folder / "train.list").write_text("".join(f"{n}\n" for n in range(FILES)))
        self.bind = f"ipc://{folder}/s"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pydp2", "serve", "train.list", "--provider", "talks.process", "--workers", "2",
             "--bind", self.bind, "--json", *words],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True, **options,
        )  # fmt: skip

    def server(self) -> int:
        """The process number of the server, once it serves."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 30)[0]
        return int(json.loads(self.process.stdout.readline())["pid"])

    def read(self, passes: int = 2) -> None:
        """Be a trainer of some passes."""
        with pydp2.connect(self.bind, batch_size=100, timeout=30) as data:
            for _ in range(passes):
                assert sum(map(len, data)) == FILES * GOOD

    def ends(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal: it ends in order, soon, and with the exit code for that."""
        began = time.monotonic()
        self.process.send_signal(number)
        assert self.process.wait(30) == 128 + number
        assert time.monotonic() - began < 10
        assert wait_until(lambda: processes("pydp2-") == [])


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    made: list[Service] = []

    def start(*arguments: Any, **options: Any) -> Service:
        made.append(Service(tmp_path, *arguments, **options))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait(30)
        if each.process.stdout is not None:
            each.process.stdout.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    made = os.pipe()
    yield made
    for end in made:
        with contextlib.suppress(OSError):
            os.close(end)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_the_reader_of_its_log_goes_away(number: signal.Signals, serve: Serve, pipe: tuple[int, int]) -> None:
    service = serve(pipe[1])
    service.server()
    os.close(pipe[0])
    os.close(pipe[1])
    service.read()
    time.sleep(1.2)  # the command looks twice a second how it goes, and tells
    assert service.process.poll() is None
    service.read(1)
    service.ends(number)


def test_both_outputs_go_to_a_reader_that_goes_away(serve: Serve, pipe: tuple[int, int]) -> None:
    service = serve(pipe[1], pipe[1])
    os.close(pipe[1])
    text = b""
    while b'"pid"' not in text:
        text += os.read(pipe[0], 1 << 16)
    os.close(pipe[0])
    service.read()
    service.ends()


def test_nobody_reads_its_log(serve: Serve, pipe: tuple[int, int]) -> None:
    """As with a ``less`` that stands still: the pipe is full."""
    fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 4096)
    service = serve(pipe[1])
    service.server()
    os.close(pipe[1])
    began = time.monotonic()
    service.read()
    assert time.monotonic() - began < 30
    assert select.select([pipe[0]], [], [], 0)[0]
    service.ends()


def test_a_reader_that_wakes_up_again_gets_the_rest_and_is_told_what_is_missing(
    serve: Serve, pipe: tuple[int, int]
) -> None:
    service = serve(pipe[1])
    service.server()
    os.close(pipe[1])
    service.read(4)
    os.set_blocking(pipe[0], False)
    text = b""
    for _ in range(1000):
        with contextlib.suppress(BlockingIOError):
            text += os.read(pipe[0], 1 << 16)
        if b"left out here" in text or b"left out (more" in text:
            break
        time.sleep(0.01)
    assert b"left out" in text
    service.ends()


def test_its_disk_is_full(serve: Serve) -> None:
    with open("/dev/full", "w") as full:
        service = serve(full)
    service.server()
    service.read()
    service.ends()


def test_its_outputs_cannot_take_the_address_either(serve: Serve) -> None:
    with open("/dev/full", "w") as full:
        service = serve(full, full)
    service.read()
    service.ends()


@pytest.mark.parametrize("closed", [(2,), pytest.param((1, 2), marks=pytest.mark.slow), (0, 1, 2)])
def test_its_outputs_are_closed(closed: tuple[int, ...], serve: Serve, tmp_path: Path) -> None:
    def close() -> None:
        for each in closed:
            os.close(each)

    service = serve(None, None, preexec_fn=close)
    service.read()
    assert service.process.poll() is None
    service.ends()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["serve"], 2),
        (["serve", "none.list", "--provider", "x.y"], 1),
        (["serve", "train.list", "--provider", "talks.process", "--bind", "ipc:///nowhere/at/all"], 3),
        (["check", "train.list", "--provider", "talks.process"], 1),
    ],
)
@pytest.mark.parametrize("where", ["gone", "full", pytest.param("closed", marks=pytest.mark.slow)])
def test_exit_codes_do_not_depend_on_who_reads_why(words: list[str], code: int, where: str, tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(PROVIDER)
    (tmp_path / "train.list").write_text("1\n")
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pydp2", *words], cwd=tmp_path, timeout=60, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=full if where == "full" else write,
            preexec_fn=(lambda: os.close(2)) if where == "closed" else None,
        )  # fmt: skip
    os.close(write)
    assert done.returncode == code
