"""Running providers and programs as a user does, and what is seen of it: batches, errors, the screen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import Error

from .provider_code import numbers
from .warm_starts import TEMPLATE, start_program

DEADLINE = 240  # seconds; what lasts longer hangs

NUMBERS = numbers("int(filename) * 29 % 97 + 20", "pool_size=200", first="1000 * int(filename)", below=100000)
"""A provider over files that are numbers: each of another length, every sample another number."""
NUMBERS_OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 5}
Numbered = tuple[int, list[int]]


def numbered(batch: pydp2.Batch) -> Numbered:
    """Its number, and its samples without what only pads."""
    return batch.index, batch[0].tolist()[: len(batch) - batch.padding]


@dataclass
class Seen:
    """What a trainer got of a pass: the first slot of each batch (where it is one array), and what ended it."""

    batches: list[list[Any]] = field(default_factory=list)
    error: Error | None = None

    @property
    def samples(self) -> list[Any]:
        return [value for batch in self.batches for value in batch]

    @property
    def text(self) -> str:
        return str(self.error)


def consume(data: pydp2.Client, each: Callable[[pydp2.Batch], object] = len) -> Seen:
    """The next pass of ``data``; ``each`` is called with every batch as it comes."""
    seen = Seen()
    try:
        for batch in data:
            seen.batches.append(batch[0].tolist() if isinstance(batch[0], np.ndarray) else [])
            each(batch)
    except Error as error:
        seen.error = error
    return seen


def one_pass(files: Sequence[str] | str | Path, provider: str, **options: Any) -> Seen:
    """One unshuffled pass of a service of two workers, in batches of 4."""
    with pydp2.load(files, provider, **{"batch_size": 4, "workers": 2, "shuffle": False} | options) as data:
        return consume(data)


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """What does not end within ``seconds`` fails its test instead of hanging the whole run."""

    def expired(*_: object) -> None:
        raise TimeoutError(f"the test hangs: it did not end within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def no_hang() -> Iterator[None]:
    """What never ends fails its test instead of the whole run."""
    with alarm(DEADLINE):
        yield


def threads_of(pid: int) -> list[str]:
    """What each thread of a process is doing, and which signals it has not taken."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        lines = (task / "status").read_text().splitlines()
        words = [line for line in lines if line.startswith(("State", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"))]
        found.append(f"{task.name} in {(task / 'wchan').read_text()}: {', '.join(words)}")
    return found


class Program:
    """A program of the user's that runs: a Python process with its own session, whose output is collected."""

    def __init__(self, code: str, folder: Path, *words: str) -> None:
        script = folder / "program.py"
        script.write_text(code)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        main = threading.current_thread() is threading.main_thread()  # no other one may change handlers
        usual = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGHUP: signal.SIG_DFL,
            signal.SIGQUIT: signal.SIG_DFL,
        }
        before = {number: signal.signal(number, handler) for number, handler in usual.items() if main}
        self.process = start_program([str(script), *words], folder, environment)
        for number, handler in before.items():  # a shell has the background ignore SIGINT and SIGQUIT, and nohup SIGHUP
            signal.signal(number, handler)
        self.pid = self.process.pid
        self.lines: list[str] = []
        self.screen = ""
        """What it and its processes wrote to stderr."""
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_out, self._read_err)]
        for reader in self._readers:
            reader.start()

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.screen += line

    def said(self, beginning: str, seconds: float = 30.0) -> str:
        """The first line of stdout that begins so, once it is there."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if line.startswith(beginning):
                    return line
            if self.process.poll() is not None and not self._readers[0].is_alive():
                break
            time.sleep(0.005)
        raise AssertionError(f"no line {beginning!r}; stdout: {self.lines}, stderr: {self.screen}")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 30.0) -> int:
        """Wait for its end; its status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {seconds} s: {threads_of(self.pid)}") from None

    def ended(self, seconds: float = 30.0) -> int:
        """Its exit status, once it has ended and nothing writes to its output any more: its service ended too."""
        status = self.wait(seconds)
        for reader in self._readers:
            reader.join(seconds)
            assert not reader.is_alive(), f"its output is still open; stderr so far: {self.screen}"
        return status

    def close(self) -> None:
        self.process.wait()
        for reader in self._readers:
            reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """``program(code, *words)`` starts a program in the test's folder; it is killed when the test ends."""
    started: list[Program] = []

    def start(code: str, *words: str) -> Program:
        folder = tmp_path / f"program-{len(started)}" if started else tmp_path
        folder.mkdir(exist_ok=True)
        started.append(Program(code, folder, *words))
        return started[-1]

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            each.process.kill()
    for pid in (*processes("pydp2-"), *processes("sleep")):  # only of a test that failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for each in started:
        each.close()


def is_dead(pid: int) -> bool:
    """Whether a process is gone, or has let go of everything and only waits to be reaped."""
    try:
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))  # the first may have ended before the others
        return threads <= 1 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def processes(name: str) -> list[int]:
    """Processes of this test run whose name begins so: ``pydp2-server``, ``pydp2-supervise``, ``pydp2-worker-…``."""
    mark = f"PYDP2_TEST_RUN={os.environ['PYDP2_TEST_RUN']}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            number = int(entry.name)
            comm = (entry / "comm").read_text().strip()
            named = comm.startswith(name) and comm != TEMPLATE
            if named and not is_dead(number) and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(number)
    return sorted(found)


def service(workers: int) -> list[int]:
    """All processes of a service with ``workers`` workers, once nobody is being forked in it any more."""
    assert wait_until(lambda: len(processes("pydp2-worker")) == workers + 1)  # the one in reserve
    return processes("pydp2-")


def at_rest(pids: Sequence[int]) -> bool:
    """Whether all of these processes wait for something, however often one looks; one that lacks a core does not."""
    with contextlib.suppress(OSError):
        files = [Path(f"/proc/{pid}/stat") for _ in range(30) for pid in pids]
        return {file.read_text().rpartition(")")[2].split()[0] for file in files} == {"S"}
    return False


def wait_until(what: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether ``what()`` became true within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def in_ranks(train: Callable[[int], None], ranks: int = 2) -> None:
    """Run ``train(rank)`` for so many ranks side by side."""
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            train(rank)
        except BaseException as error:  # raised in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(90)
    if errors:
        raise errors[0]
    assert not any(each.is_alive() for each in threads)
