"""The processes of a run: told by their mark, also when nobody is their parent any more."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from benchmarks import processes

from ..runs import wait_until

ORPHAN = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nos._exit(0)"
WORKS = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.3: pass"
RUNS = f"subprocess.run([sys.executable, '-c', {WORKS!r}])"
PARENT = f"import subprocess, sys, time\n{RUNS}\nprint(flush=True)\ntime.sleep(600)"
HOLDS = "import time\nheld = b'x' * (64 << 20)\nprint(flush=True)\ntime.sleep(600)"


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    processes.end(mark)


def start(code: str, mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, processes.MARK: mark}, stdout=subprocess.PIPE
    )


def test_an_orphan_in_a_session_of_its_own_is_found_and_ended(mark: str) -> None:
    with start(ORPHAN, mark) as process:
        process.wait(10)
        assert wait_until(lambda: len(list(processes.of(mark))) == 1)
        assert processes.end(mark) == 1
    assert list(processes.of(mark)) == []


def test_time_of_children_that_ended_is_counted(mark: str) -> None:
    with start(PARENT, mark) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 0.3 <= processes.cpu(mark) < 5
        processes.end(mark)


def test_memory_is_what_the_processes_hold(mark: str) -> None:
    with start(HOLDS, mark) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 64 << 20 <= processes.pss(mark) < 128 << 20
        processes.end(mark)
    assert processes.pss(mark) == 0


def test_what_others_take_is_told_from_what_the_run_takes(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.MARK, mark)
    for marked in (True, False):
        meter = processes.Meter()
        before = processes.busy()
        with start(f"{WORKS}\nprint(flush=True)\ntime.sleep(600)", mark if marked else "somebody else's") as process:
            assert process.stdout is not None
            process.stdout.readline()
            cost = meter.stop()
            assert processes.busy() - before >= 0.25
            process.kill()
        assert (cost["cpu"] >= 0.28) == marked
        assert marked or cost["others"] > 0


def test_the_server_and_the_trainer_are_told_from_the_rest_of_the_run(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(processes.MARK, mark)
    meter = processes.Meter()
    named = f"open('/proc/self/comm', 'w').write({processes.SERVER!r})\n{WORKS}\nprint(flush=True)\ntime.sleep(600)"
    with start(named, mark) as server, start(f"{WORKS}\nprint(flush=True)\ntime.sleep(600)", mark) as other:
        for process in (server, other):
            assert process.stdout is not None
            process.stdout.readline()
        sum(range(3_000_000))
        cost = meter.stop()
        server.kill()
        other.kill()
    assert cost["server_cpu"] is not None
    assert cost["cpu"] is not None
    assert 0.28 <= cost["server_cpu"] <= cost["cpu"] - 0.28
    assert cost["trainer_cpu"] is not None
    assert 0.01 <= cost["trainer_cpu"] < 5
    assert processes.Meter().stop()["server_cpu"] is None
