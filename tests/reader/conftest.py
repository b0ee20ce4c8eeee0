"""What tests of readers share: an end to every hang, readers to try things with, and programs that may fork."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..warm_starts import run_program

_DEADLINE = 120

PRELUDE = """
import os, signal, sys, threading, time, warnings
from pydp2.errors import *
from pydp2.reader import *

warnings.simplefilter("error")  # a fall-back to threads would be one
signal.alarm(100)  # a hang ends here


def numbers(n, first=0):
    return lambda: iter(range(first, first + n))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(what, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)
"""


@pytest.fixture
def numbers() -> Callable[..., Callable[[], Iterator[int]]]:
    """``numbers(n, first=0)``: a reader of n numbers."""
    return lambda n, first=0: lambda: iter(range(first, first + n))


@pytest.fixture
def until_error() -> Callable[[Iterable[Any]], tuple[list[Any], BaseException | None]]:
    """``until_error(entries)``: the entries that came, and what ended them, None for their end."""

    def run(entries: Iterable[Any]) -> tuple[list[Any], BaseException | None]:
        got = []
        try:
            for entry in entries:
                got.append(entry)
        except BaseException as error:
            return got, error
        return got, None

    return run


@pytest.fixture
def program() -> Callable[..., str]:
    """``program(code)`` runs code in an interpreter of its own, which has one thread and so may fork; its output."""

    def run(code: str, *words: Any) -> str:
        done = run_program(["-c", PRELUDE + textwrap.dedent(code), *map(str, words)], Path.cwd(), _DEADLINE)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout

    return run
