"""The threads that make pictures: order, errors, and that they end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.mx import ImageRecordIter
from pydp2.mx.pictures import in_threads, pieces, threads

from .conftest import Write, drawing

DEADLINE = 30.0


def parts_of(batch: list[int]) -> list[Callable[[], int]]:
    return [lambda x=x: x * x for x in batch]  # type: ignore[misc]  # a default that binds


@given(st.lists(st.lists(st.integers(), max_size=5), max_size=12), st.integers(1, 4))
def test_batches_and_parts_come_in_their_order(batches: list[list[int]], count: int) -> None:
    assert list(in_threads(batches, parts_of, count)) == [(batch, [x * x for x in batch]) for batch in batches]


@given(st.integers(0, 200))
def test_pieces_cover_a_batch(count: int) -> None:
    assert [i for piece in pieces(count) for i in range(count)[piece]] == list(range(count))


def test_the_first_part_that_failed_is_the_one_that_is_told() -> None:
    later = threading.Event()

    def parts(batch: int) -> list[Callable[[], Any]]:
        def fails_late() -> None:
            assert later.wait(DEADLINE)
            raise LookupError(f"{batch}, the first")

        def fails_early() -> None:
            later.set()
            raise KeyError(f"{batch}, the second")

        return [] if batch < 3 else [fails_late, fails_early]

    taking = in_threads(range(100), parts, 2)
    assert [next(taking)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError, match="3, the first"):
        next(taking)


def test_threads_are_up_to_half_of_the_processors_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, wanted, given_ in ((1, 4, 2), (2, 4, 2), (2, 1, 1), (8, 4, 4), (8, 16, 4), (64, 16, 16)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert threads(wanted) == given_


def test_an_epoch_that_is_left_ends_all_of_its_threads(write_records: Write) -> None:
    provider = ImageRecordIter(path_imgrec=write_records([drawing()] * 40), data_shape=(3, 64, 64), batch_size=2)
    held = provider.eachbatch()
    next(held)
    names = {thread.name.rpartition("_")[0] or thread.name for thread in threading.enumerate()}
    assert {"pydp2-mx-prefetch", "pydp2-mx-picture"} <= names
    held.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("pydp2-mx")] == []
    assert sum(batch.count for batch in provider) == 40


def test_a_program_that_ends_in_the_middle_of_an_epoch_of_pictures_ends(write_records: Write) -> None:
    path = write_records([drawing()] * 200)
    code = f"""
from pydp2.mx import ImageRecordIter
held = iter(ImageRecordIter(path_imgrec={path!r}, data_shape=(3, 64, 64), batch_size=2, max_rotate_angle=9))
next(held)
print("ends")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
