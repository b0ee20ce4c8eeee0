"""threaded: several threads, each instance once."""

from __future__ import annotations

import threading
from itertools import chain
from typing import Any

import numpy as np
import pytest

from pydp2 import fluid

from .conftest import SHAPES, flat, numbers, rest


def in_threads(count: int, work: Any) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_cf_25_four_threads_that_ask_and_read_get_every_instance_once(nums: Any) -> None:
    found: list[list[Any]] = [[] for _ in range(4)]
    with fluid.threaded(fluid.open_files(nums(100, 50, 70), SHAPES, thread_num=2)) as reader:
        for _ in range(3):

            def work(i: int) -> None:
                while reader.has_next():
                    assert reader.has_next()
                    found[i].append(reader.read_next())

            in_threads(4, work)
            assert sorted(flat(chain(*found))) == [*range(220)]
            for mine in found:
                mine.clear()
            reader.reinit()


@pytest.mark.parametrize("decorate", [fluid.threaded, lambda r: fluid.batch(r, 1), lambda r: fluid.double_buffer(r)])
def test_cf_25_four_threads_that_read_until_the_end_get_every_instance_once(decorate: Any) -> None:
    """Which any reader can, because its lock is held while it reads."""
    found: list[list[Any]] = [[] for _ in range(4)]
    with decorate(numbers(*range(300))) as reader:

        def work(i: int) -> None:
            try:
                while True:
                    found[i].append(reader.read_next())
            except fluid.EOFException:
                return

        in_threads(4, work)
    assert sorted(flat(chain(*found))) == [*range(300)]


def test_what_a_thread_asked_for_is_kept_for_it() -> None:
    with fluid.threaded(numbers(1, 2)) as reader:
        asked, go = threading.Event(), threading.Event()
        got: list[Any] = []

        def other() -> None:
            assert reader.has_next()
            asked.set()
            assert go.wait(20)
            got.append(reader.read_next())

        thread = threading.Thread(target=other)
        thread.start()
        assert asked.wait(20)
        assert rest(reader) == [2]
        assert not reader.has_next()
        go.set()
        thread.join(20)
        assert flat(got) == [1]


def test_what_a_thread_asked_for_and_never_read_is_given_to_others_when_it_has_ended() -> None:
    with fluid.threaded(numbers(1, 2, 3)) as reader:
        in_threads(2, lambda i: reader.has_next())
        assert sorted(rest(reader)) == [1, 2, 3]


def test_an_error_is_raised_in_the_thread_that_reads() -> None:
    def source() -> Any:
        yield (np.zeros((1, 1)),)
        raise KeyError("broken")

    with fluid.threaded(source) as reader:
        reader.read_next()
        assert reader.has_next()
        with pytest.raises(KeyError, match="broken"):
            reader.read_next()
