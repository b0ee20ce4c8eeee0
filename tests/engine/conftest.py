"""Engines fork, so each runs in an interpreter of its own: code that is given as text, with a few words made for it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

PRELUDE = '''
import faulthandler, os, signal, subprocess, sys, time
from pathlib import Path
signal.alarm(40)  # a hang ends here
from pydp2.host.engine import EngineLost, Exited, Started
from pydp2.host.engine import EngineNote
from pydp2.host.engine.local import LocalEngine

ONCE = MODE
outputs = {}

class Ready:
    def __init__(self, main, is_usable=True):
        self.main, self.is_usable = main, is_usable

def engine_of(main, seats=2, prepare=None, once=ONCE):
    """Workers run ``main(worker, row)``, in processes in which ``prepare(worker or None)`` ran."""
    def ready(worker, show):
        is_usable = prepare is None or prepare(worker) is not False
        return Ready(lambda worker, row, output: main(worker, row), is_usable)
    def on_output(worker, seat, descriptor):
        outputs["zygote" if seat is None else worker] = descriptor
    return LocalEngine(ready, seats, on_output, once=once)

def wait(engine, kind, worker, seconds=10.0):
    """The event of this kind for this worker ; others are kept for later calls."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for event in engine.events():
            (notes if isinstance(event, EngineNote) else seen).append(event)
        for event in seen:
            if isinstance(event, kind) and event.worker == worker:
                seen.remove(event)
                return event
        time.sleep(0.001)
    raise SystemExit(f"no {kind.__name__} of worker {worker}, only {seen}")

seen, notes = [], []

def noted(engine):
    """The next note."""
    until(lambda: notes.extend(e for e in engine.events() if isinstance(e, EngineNote)) or notes)
    return notes.pop(0).text

def until(what, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise SystemExit(f"it did not come true: {what.__code__.co_firstlineno}")
        time.sleep(0.005)

def alive(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

def text_of(worker):
    """All that a worker wrote; waits for its end."""
    data = b""
    while block := os.read(outputs[worker], 65536):
        data += block
    os.close(outputs.pop(worker))
    return data.decode()

def sleeper():
    """A process that the user's code starts."""
    return subprocess.Popen(["sleep", "1000"]).pid

def children(pid):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(entry.name))
            except OSError:
                pass
    return found

def forever(worker, row):
    row[0] = os.getpid()
    time.sleep(1000)
'''


@pytest.fixture(params=["once", "each"])
def mode(request: pytest.FixtureRequest) -> str:
    """Whether workers are forked from a process made ready for all of them."""
    return str(request.param)


@pytest.fixture
def run(mode: str) -> Callable[..., str]:
    """``run(code)`` runs ``code`` in an interpreter of its own; its output. Fails when the code does."""

    def run(code: str, *, fails: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE.replace("MODE", str(mode == "once")) + textwrap.dedent(code)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # as a server has it: numpy's BLAS would start threads
        )
        assert (done.returncode != 0) == fails, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + (done.stderr if fails else "")

    return run
