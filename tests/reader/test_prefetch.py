"""``buffered``: same entries, same order, ahead of the consumer; and nothing left when the consumer goes."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pydp2.reader import buffered

from ..runs import wait_until

Numbers = Callable[..., Callable[[], Iterator[int]]]


def readers_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pydp2 buffered")]


@pytest.mark.parametrize("size", range(20))
def test_rd_3_buffered_gives_all_entries_in_order_with_any_size(size: int, numbers: Numbers) -> None:
    assert list(buffered(numbers(10), size)()) == list(range(10))


def test_rd_4_what_was_read_ahead_while_the_consumer_paused_comes_at_once() -> None:
    read = threading.Semaphore(0)

    def slow() -> Iterator[int]:
        for i in range(10):
            time.sleep(0.01)
            read.release()
            yield i

    entries = buffered(slow, 10)()
    assert next(entries) == 0  # type: ignore[call-overload]
    for _ in range(10):  # the pause: until the source has given its last entry
        assert read.acquire(timeout=20)
    assert list(entries) == list(range(1, 10))


@pytest.mark.parametrize("error", [KeyError("gone"), SystemExit(3), StopIteration("not the end")])
def test_rd_5_what_the_source_raises_is_raised_at_its_place(error: BaseException, until_error: Any) -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise error

    got, raised = until_error(buffered(source, 5)())
    assert got == [1, 2]
    assert raised is not None
    assert raised is error or raised.__cause__ is error


def test_the_source_is_read_no_further_than_the_size_says(numbers: Numbers) -> None:
    asked = []

    def source() -> Iterator[int]:
        for i in range(100):
            asked.append(i)
            yield i

    entries = iter(buffered(source, 4)())
    next(entries)
    assert wait_until(lambda: len(asked) == 6)  # one given, four that wait, one in the thread's hand
    time.sleep(0.02)  # nothing is waited for: the claim is that no more comes
    assert len(asked) == 6


@pytest.mark.parametrize("leave", ["close", "forget", "cycle", "break"])
def test_the_thread_ends_when_the_consumer_leaves(leave: str) -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    if leave == "break":
        for _ in buffered(source, 2)():
            break
    else:
        entries = buffered(source, 2)()
        next(entries)  # type: ignore[call-overload]
        assert readers_threads()
        if leave == "close":
            entries.close()  # type: ignore[attr-defined]
        elif leave == "cycle":
            ring: list[object] = [entries]
            ring.append(ring)
            del ring
        del entries
    if leave == "cycle":
        gc.collect()
    assert closed.wait(20)
    assert wait_until(lambda: not readers_threads())


def test_no_thread_begins_before_the_first_entry_is_asked_for(numbers: Numbers) -> None:
    entries = buffered(numbers(3), 2)()
    assert not readers_threads()
    del entries


def test_one_in_the_other_ends_with_it() -> None:
    def source() -> Iterator[int]:
        while True:
            yield 1

    entries = buffered(buffered(buffered(source, 1), 0 + 3), 2)()
    next(entries)  # type: ignore[call-overload]
    assert len(readers_threads()) == 3
    entries.close()  # type: ignore[attr-defined]
    assert wait_until(lambda: not readers_threads())


def test_a_program_ends_although_a_source_never_gives_its_next_entry(program: Callable[[str], str]) -> None:
    out = program("""
        def source():
            yield 1
            threading.Event().wait()

        entries = buffered(source, 2)()
        print(next(entries))
    """)
    assert out == "1\n"


@pytest.mark.parametrize(
    "make",
    [
        "buffered(numbers(10**9), 2)",
        "xmap_readers(abs, numbers(10**9), 2, 4)",
        "xmap_readers(abs, numbers(10**9), 2, 4, processes=True)",
        "multiprocess_reader([numbers(10**9)] * 2)",
        "multiprocess_reader([numbers(10**9)] * 2, False)",
    ],
)
def test_a_program_ends_in_the_middle_of_a_pass_and_says_nothing(make: str, program: Callable[..., str]) -> None:
    assert program(f"entries = {make}(); print(next(entries) in (0, 1, 2, 3, 4, 5))") == "True\n"


def test_a_fork_of_the_consumer_may_drop_the_pass(program: Callable[[str], str]) -> None:
    out = program("""
        warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
        entries = buffered(numbers(10**9), 2)()
        print(next(entries), flush=True)
        pid = os.fork()
        if pid == 0:
            entries.close()
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), next(entries))
    """)
    assert out == "0\n7 1\n"
