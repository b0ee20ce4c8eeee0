"""Rows that are copied beside the thread that decides where they go: they are there once they were waited for, and what
they are copied from lives until then and no longer."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from random import Random

import numpy as np
import pytest

from pydp2.data.native import is_active
from pydp2.data.rowstore.row_copier import RowCopier
from tests.seeds import each_seed

WIDTH = 4096  # floats of a row


def rows_of(number: int, count: int) -> np.ndarray:
    return np.full((count, WIDTH), number, np.float32) + np.arange(count, dtype=np.float32)[:, None] / 1000


@each_seed(40, few=8)
def test_rows_that_were_waited_for_are_there_and_a_place_has_its_last_one(seed: int) -> None:
    choose = Random(seed)
    into = np.zeros((300, WIDTH), np.float32)
    copier, want = RowCopier(len(into)), into.copy()
    free, used = [*range(len(into))], list[int]()
    choose.shuffle(free)
    for number in range(60):
        if choose.random() < 0.6 and len(free) >= 40:
            places = np.array([free.pop() for _ in range(choose.randint(1, 40))])
            rows = rows_of(number, len(places))
            want[places] = rows
            copier.put(rows, into, places)
            used += places.tolist()
            del rows, places
        elif used:
            choose.shuffle(used)
            some = np.array(used[: choose.randint(1, len(used))])
            copier.wait_for(some)
            assert (into[some] == want[some]).all()
            del used[: len(some)]
            free += some.tolist()
    copier.wait_for(np.arange(len(into)))
    assert (into == want).all()


def test_what_is_copied_lives_until_it_is_copied_and_no_longer() -> None:
    into = np.zeros((64, WIDTH), np.float32)
    copier = RowCopier(len(into))
    rows, places = rows_of(1, 64), np.arange(64)
    want = rows.copy()
    kept = weakref.ref(rows)
    copier.put(rows, into, places)
    del rows, places
    copier.wait_for(np.array([0]))
    assert (into == want).all()
    gc.collect()
    assert kept() is None


IN_A_CYCLE = """
import gc, mmap
import numpy as np
from pydp2.data.native._array_kernels import CopyThread

class Owner: pass

def leave():
    thread, memory = CopyThread(), mmap.mmap(-1, 1 << 27)  # older than what it belongs to
    rows = np.ones(1 << 27, np.uint8)
    thread.submit(rows, np.arange(128), 1 << 20, np.frombuffer(memory, np.uint8))
    owner = Owner()
    owner.owner, owner.thread = owner, thread

gc.disable()
leave()
gc.collect()
"""


@pytest.mark.skipif(not is_active(), reason="needs the compiled form")
def test_what_is_copied_lives_until_it_is_copied_where_the_collector_finds_all_of_it() -> None:
    subprocess.run([sys.executable, "-c", IN_A_CYCLE], check=True, timeout=60)


def test_a_place_outside_the_memory_is_refused_and_nothing_is_copied() -> None:
    into = np.zeros((64, WIDTH), np.float32)
    copier = RowCopier(len(into))
    for wrong in (64, -65):
        with pytest.raises(IndexError):
            copier.put(rows_of(1, 64), into, np.array([*range(63), wrong]))
    copier.wait_for(np.arange(64))
    assert not into.any()


@pytest.mark.skipif(not is_active(), reason="needs the compiled form")
def test_more_copies_than_can_wait_are_taken_one_after_the_other() -> None:
    into = np.zeros((16 * 200, WIDTH), np.float32)
    copier = RowCopier(len(into))
    for number in range(200):
        copier.put(rows_of(number, 16), into, np.arange(16) + 16 * number)
    copier.wait_for(np.arange(len(into)))
    assert (into == np.concatenate([rows_of(number, 16) for number in range(200)])).all()


def test_nothing_is_waited_for_where_nothing_was_put() -> None:
    copier = RowCopier(10)
    copier.wait_for(np.arange(10))
