"""Epochs: one at a time; and threads that prepare batches ahead and end with them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.mx import ArrayDataProvider
from pydp2.mx.epochs import ahead

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


@given(st.lists(st.integers(), max_size=30), st.integers(1, 5))
def test_ahead_gives_everything_in_its_order(items: list[int], depth: int) -> None:
    assert list(ahead(lambda: iter(items), depth)) == items


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

    taking = ahead(items, 2)
    assert next(taking) == 1
    assert enough.wait(DEADLINE)
    taking.close()
    assert made == 4


def test_an_error_comes_behind_what_came_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise LookupError("the third is missing")

    taking = ahead(items, 5)
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

    taking = ahead(items, 3)
    next(taking)
    before = [thread for thread in threading.enumerate() if thread.name == "pydp2-mx-ahead"]
    assert len(before) == 1
    del taking
    assert closed.is_set()
    assert not before[0].is_alive()


def test_a_program_that_ends_in_the_middle_of_an_epoch_ends() -> None:
    code = """
from pydp2.mx.epochs import ahead
def items():
    while True:
        yield bytes(100)
held = ahead(items, 2)
next(held)
print("ends")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
