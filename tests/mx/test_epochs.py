"""Epochs: one at a time; and threads that prepare batches ahead and end with them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import ClientUseError
from pydp2.mx import ArrayDataProvider, CSVIter
from pydp2.mx.epochs import EpochProvider, prefetch
from pydp2.mx.interface import DataBatch

DEADLINE = 20.0


def test_a_second_iteration_in_the_middle_of_one_is_refused() -> None:
    provider = ArrayDataProvider(np.arange(6), batch_size=2)
    for _ in provider:
        with pytest.raises(RuntimeError, match="in the middle of an epoch"):
            iter(provider)
    assert len(list(provider)) == 3


def test_a_loop_that_was_left_does_not_stand_in_the_way() -> None:
    provider = ArrayDataProvider(np.arange(6), batch_size=2)
    for _ in provider:
        break
    assert [batch.data[0].tolist() for batch in provider] == [[0, 1], [2, 3], [4, 5]]


def test_an_iterator_that_is_held_can_be_closed() -> None:
    provider = ArrayDataProvider(np.arange(6), batch_size=2)
    held = provider.eachbatch()
    next(held)
    held.close()
    assert list(held) == []
    assert len(list(provider)) == 3


def test_an_epoch_that_is_over_stays_over() -> None:
    held = ArrayDataProvider(np.arange(6), batch_size=2).eachbatch()
    assert len(list(held)) == 3
    assert list(held) == []


# -- threads and processes that share an epoch -------------------------------------------------------------------------
class Slow(EpochProvider):
    """One batch, for which it waits until it may go on."""

    batch_size = 1  # type: ignore[assignment]
    provide_data = [("x", (1,))]  # type: ignore[assignment]  # noqa: RUF012
    provide_label = []  # type: ignore[assignment]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.go = threading.Event(), threading.Event()

    def _batches(self) -> Generator[DataBatch, None, None]:
        self.inside.set()
        assert self.go.wait(DEADLINE)
        yield DataBatch([np.zeros(1)], [], 1)


def test_a_thread_that_waits_for_another_one_s_batch_does_not_end_the_epoch() -> None:
    provider = Slow()
    epoch = provider.eachbatch()
    found: list[object] = []

    def take() -> None:
        try:
            found.append(next(epoch, None))
        except BaseException as exc:
            found.append(exc)

    threads = [threading.Thread(target=take, daemon=True) for _ in range(2)]
    threads[0].start()
    assert provider.inside.wait(DEADLINE)
    threads[1].start()
    assert found == []
    with pytest.raises(ClientUseError, match="in the middle of an epoch"):
        provider.eachbatch()
    provider.go.set()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(type(x).__name__ for x in found) == ["DataBatch", "NoneType"]
    assert epoch.over


def test_threads_that_share_an_epoch_get_each_batch_once() -> None:
    epoch = ArrayDataProvider(np.arange(2000), batch_size=1).eachbatch()
    found: list[float] = []

    def take() -> None:
        for batch in epoch:
            found.append(batch.data[0][0])

    threads = [threading.Thread(target=take, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(found) == list(range(2000))


def in_a_fork(child: Callable[[], str]) -> str:
    """What ``child`` says in a forked process, which has ended in the usual way within the deadline."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"nothing"
        try:
            said = child().encode()
        except BaseException as exc:
            said = f"{type(exc).__name__}: {exc}".encode()
        finally:
            os.write(into, said)
            os._exit(0)
    os.close(into)
    try:
        with open(out, "rb") as pipe:
            assert select.select([pipe], [], [], DEADLINE)[0], "the child hangs"
            return pipe.read().decode()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_epoch_that_was_begun_before_a_fork_is_an_error_in_the_child(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("".join(f"{i}\n" for i in range(100)))
    provider = CSVIter(data_csv=path, data_shape=(1,), batch_size=1, prefetch_buffer=2)
    epoch = provider.eachbatch()
    raw = prefetch(lambda: iter(range(100)), 2)
    assert next(epoch).data[0].tolist() == [[0]]
    assert next(raw) == 0

    def child() -> str:
        for left in (epoch, raw):
            with pytest.raises(ClientUseError, match="begun before a fork"):
                next(left)
            left.close()
        anew = [batch.data[0][0, 0] for batch in provider]
        return f"{len(anew)} from {anew[0]:g} on"

    assert in_a_fork(child) == "100 from 0 on"
    assert [batch.data[0][0, 0] for batch in epoch] == list(range(1, 100))
    assert list(raw) == list(range(1, 100))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_that_ends_while_it_has_an_epoch_of_its_parent_ends() -> None:
    code = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from pydp2.mx.epochs import prefetch
held = prefetch(lambda: iter(range(100)), 2)
next(held)
if pid := os.fork():
    assert os.waitpid(pid, 0)[1] == 0
    assert list(held) == list(range(1, 100))
    print("ends")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


# -- prefetch ----------------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(), max_size=30), st.integers(1, 5))
def test_prefetch_gives_everything_in_its_order(items: list[int], depth: int) -> None:
    assert list(prefetch(lambda: iter(items), depth)) == items


def test_no_more_is_prepared_than_asked_for() -> None:
    made = 0
    enough = threading.Event()

    def items() -> Iterator[int]:
        nonlocal made
        while True:
            made += 1
            if made == 4:
                enough.set()  # two in the buffer, one taken, one that waits for room
            yield made

    taking = prefetch(items, 2)
    assert next(taking) == 1
    assert enough.wait(DEADLINE)
    taking.close()
    assert made == 4


def test_an_error_comes_behind_what_came_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise LookupError("the third is missing")

    taking = prefetch(items, 5)
    assert [next(taking), next(taking)] == [1, 2]
    with pytest.raises(LookupError, match="the third is missing"):
        next(taking)
    with pytest.raises(StopIteration):
        next(taking)


def test_an_iterator_that_is_dropped_ends_its_thread_and_what_it_reads() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    taking = prefetch(items, 3)
    next(taking)
    before = [thread for thread in threading.enumerate() if thread.name == "pydp2-mx-prefetch"]
    assert len(before) == 1
    del taking
    assert closed.is_set()
    assert not before[0].is_alive()


def test_a_program_that_ends_in_the_middle_of_an_epoch_ends() -> None:
    code = """
from pydp2.mx.epochs import prefetch
def items():
    while True:
        yield bytes(100)
held = prefetch(items, 2)
next(held)
print("ends")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
