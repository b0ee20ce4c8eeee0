"""What stays of a process that has imported a provider, when the program ends, forks, or does not use it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ..runs import Program, is_dead, processes, wait_until

NAME = "pydp2-prepared"
IMPORTER = "pydp2-importer"
SLOW = """
import os, time
from pydp2 import *

with open("imports", "a") as log:
    log.write(f"{os.getpid()}\\n")
time.sleep(0.6)

@provider(input_types=[integer_value(1000)], pool_size=64)
def process(settings, filename):
    for i in range(50):
        yield i
"""
PROGRAM = """
import os, sys, time, pydp2
def load():
    return pydp2.load(["a", "b"], "prov.py:process", batch_size=10, workers=1)
load().close()
data = load()
for batch in data:
    break
CODE
print("ready", flush=True)
if "wait" in sys.argv:
    time.sleep(1000)
"""
FORK = """
pid = os.fork()
if pid == 0:
    mine = load()
    print("samples", sum(len(batch) for batch in mine), flush=True)
    mine.close()
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_the_process_ends_with_a_program_however_that_ends(
    program: Callable[..., Program], tmp_path: Path, number: int
) -> None:
    """And with it all that it has forked; ``number``: of the signal that ends the program, 0 for none."""
    (tmp_path / "prov.py").write_text(SLOW)
    running = program(PROGRAM.replace("CODE", ""), *(["wait"] if number else []))
    running.said("ready", 60)
    if number:
        assert len(processes(NAME)) == 1
        running.signal(number)
    assert running.ended() == -number
    assert wait_until(lambda: not processes("pydp2-"))


def test_a_fork_of_the_program_imports_for_itself(program: Callable[..., Program], tmp_path: Path) -> None:
    (tmp_path / "prov.py").write_text(SLOW)
    running = program(PROGRAM.replace("CODE", FORK))
    assert running.said("samples", 60) == "samples 100"
    assert running.ended() == 0
    assert len((tmp_path / "imports").read_text().splitlines()) == 2


EARLY = """
import os, subprocess, sys, time
open("began", "a").close()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", "of_the_import"])
time.sleep(1000)
"""
PREPARING = """
import os, sys, time, pydp2
pydp2.prepare("prov.py:process")
while not os.path.exists("began"):
    time.sleep(0.005)
CODE
print("ready", flush=True)
if "wait" in sys.argv:
    time.sleep(1000)
if "load" in sys.argv:
    pydp2.load(["a"], "prov.py:process", batch_size=10, workers=1)
"""


@pytest.mark.parametrize("word", ["wait", "load", ""])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_import_that_is_under_way_ends_with_the_program(
    program: Callable[..., Program], tmp_path: Path, word: str, number: int
) -> None:
    """And with it what the import has started. ``number``: of the signal that ends the program, if it waits."""
    (tmp_path / "prov.py").write_text(EARLY)
    running = program(PREPARING.replace("CODE", ""), *([word] if word else []))
    running.said("ready", 60)
    if word:
        running.signal(number)
    assert running.ended() == (-number if word else 0)
    assert wait_until(lambda: not processes("pydp2-") and not processes("python"))


def test_a_fork_of_the_program_leaves_an_import_to_it(program: Callable[..., Program], tmp_path: Path) -> None:
    """And the fork does not keep it alive."""
    (tmp_path / "prov.py").write_text(EARLY)
    pid = tmp_path / "pid"
    named = f"os.symlink(str(os.getpid()), {str(pid)!r})"  # whole at once, and not amid what the program prints
    fork = f"if os.fork() == 0: {named}; os.close(1); os.close(2); time.sleep(1000)"
    running = program(PREPARING.replace("CODE", fork), "wait")
    assert wait_until(pid.is_symlink, 60)
    child = int(pid.readlink().name)
    try:
        running.said("ready", 60)
        assert len(processes(IMPORTER)) == 1
        running.signal(signal.SIGKILL)
        assert wait_until(lambda: not processes(IMPORTER))
        assert not is_dead(child)
    finally:
        os.kill(child, signal.SIGKILL)


UNUSED = """
import os, socket, time
from pydp2.host.engine import prepared
prepared._IDLE_SECONDS = 0.2
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
supervisor = os.fork()
if supervisor == 0:
    if os.fork() == 0:
        copy = prepared.PreparedCopy(theirs.fileno(), lambda *_: None)
        copy.begin_import()
        time.sleep(0.6)
        copy.end_import("imported")
        os._exit(0)
    os.wait()
    time.sleep(0.5)  # a service, as long as which the copy stays
    os._exit(0)
theirs.close()
print(ours.recv(16), flush=True)
os.waitpid(supervisor, 0)
print(ours.recv(16), "in the end", flush=True)
"""


def test_a_process_that_no_service_uses_ends_after_a_while(program: Callable[..., Program]) -> None:
    running = program(UNUSED)
    assert running.ended() == 0, running.screen
    assert running.lines == ["b'done'", "b'' in the end"]
