"""The channel between threads and their reader: room, errors in place, stopping from anywhere."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from pydp2 import fluid
from pydp2.errors import ClientUseError
from pydp2.fluid.prefetching import InstanceChannel

from ..conftest import wait_until

ONE = (fluid.LoDTensor(np.zeros((1, 1))),)


def started(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_what_was_put_comes_out_in_order_then_the_error_then_the_end() -> None:
    channel = InstanceChannel(3, producers=1)
    instances = [(fluid.LoDTensor(np.full((1, 1), i)),) for i in range(3)]
    assert all(channel.put(instance) for instance in instances)
    error = KeyError("broken")
    channel.put_error(error)  # it needs no room
    channel.producer_done()
    for expected in (*instances, error):
        assert channel.wait()
        assert channel.get() is expected
    assert not channel.wait()


@pytest.mark.parametrize("wait", ["put", "wait_for_room", "wait"])
def test_stopping_wakes_whoever_waits(wait: str) -> None:
    channel, found = InstanceChannel(1, producers=1), list[object]()
    if wait != "wait":
        channel.put(ONE)

    def work() -> None:
        try:
            found.append(channel.put(ONE) if wait == "put" else getattr(channel, wait)())
        except ClientUseError as error:
            found.append(str(error))

    thread = started(work)
    waiting = (channel._not_empty if wait == "wait" else channel._not_full)._waiters  # type: ignore[attr-defined]
    assert wait_until(lambda: len(waiting) == 1)
    channel.stop()
    thread.join(10)
    assert found == ["the reader was closed while it was being read" if wait == "wait" else False]
    assert not channel.put(ONE)


def test_collecting_garbage_may_stop_a_channel_whose_lock_its_thread_holds() -> None:
    channel, through = InstanceChannel(1, producers=1), threading.Event()

    def work() -> None:
        with channel._not_empty:
            channel.stop()
        through.set()

    started(work)
    assert through.wait(10)


def test_the_end_comes_when_the_last_producer_has_left() -> None:
    channel = InstanceChannel(1, producers=2)
    channel.producer_done()
    channel.put(ONE)
    assert channel.wait()
    channel.get()
    ended: list[bool] = []
    thread = started(lambda: ended.append(channel.wait()))
    assert wait_until(lambda: len(channel._not_empty._waiters) == 1)  # type: ignore[attr-defined]
    assert ended == []
    channel.producer_done()
    thread.join(10)
    assert ended == [False]


PROGRAM = """
import os, sys
import numpy as np
from pydp2 import fluid

@fluid.register_file_reader("endless")
def read(filename, shapes):
    while True:
        yield [np.zeros((1, 1))]

files = fluid.open_files(["a.endless", "b.endless"], [[1, 1]], thread_num=2)
reader = fluid.double_buffer(fluid.shuffle(files, 3))
reader.read_next()
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise SystemExit(4)", 4),
        ("pid = os.fork()\nif pid:\n    _, status = os.waitpid(pid, 0)\n    sys.exit(status)", 0),
        ("for again in range(3):\n    reader.reinit()\n    reader.read_next()\nreader.close()", 0),
    ],
)
def test_a_program_ends_in_the_middle_of_a_pass(end: str, code: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
