"""The queue between threads that read ahead and their consumer: room, errors in place, closing from anywhere."""

from __future__ import annotations

import gc
import os
import queue
import select
import threading
import time
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import ClientUseError
from pydp2.system.prefetch import PrefetchQueue, PrefetchThreads, QueueClosed, QueueEnd, produce

from ..runs import wait_until


def waiting(condition: threading.Condition) -> int:
    return len(condition._waiters)  # type: ignore[attr-defined]


def drained(of: PrefetchQueue[int]) -> list[int]:
    found = []
    while of.wait_for_item():
        found.append(of.get())
    return found


def test_items_come_out_in_order_then_the_error_then_the_end() -> None:
    of = PrefetchQueue[int](3)
    for i in range(3):
        of.put(i)
    of.put_error(KeyError("broken"))  # it needs no room
    of.producer_done()
    assert [of.get(), of.get(), of.get()] == [0, 1, 2]
    assert of.wait_for_item()
    with pytest.raises(KeyError, match="broken"):
        of.get()
    assert not of.wait_for_item()
    for _ in range(2):
        with pytest.raises(QueueEnd):
            of.get()


@given(
    items=st.lists(st.lists(st.integers(), max_size=20), min_size=1, max_size=3),
    size=st.integers(0, 4),
    failing=st.sets(st.integers(0, 2)),
    taken=st.none() | st.integers(0, 10),
)
def test_each_item_of_each_producer_comes_once_and_in_its_order(
    items: list[list[int]], size: int, failing: set[int], taken: int | None
) -> None:
    of = PrefetchQueue[tuple[int, int]](size, producers=len(items))
    threads = PrefetchThreads(of)

    def source(number: int) -> Callable[[PrefetchQueue[tuple[int, int]]], None]:
        def put(into: PrefetchQueue[tuple[int, int]]) -> None:
            for item in items[number]:
                into.put((number, item))
            if number in failing:
                raise LookupError(number)

        return put

    for number in range(len(items)):
        threads.start("pydp2 test", produce, of, source(number))
    found: list[list[int]] = [[] for _ in items]
    failed = []
    try:
        while taken is None or sum(map(len, found)) < taken:
            try:
                number, item = of.get()
                found[number].append(item)
            except LookupError as error:
                failed.append((error.args[0], list(found[error.args[0]])))
    except QueueEnd:
        assert found == items
        expected = failing & set(range(len(items)))
        assert sorted(failed) == [(number, items[number]) for number in sorted(expected)]  # behind what came before
    else:
        assert all(some == all_of[: len(some)] for some, all_of in zip(found, items, strict=True))
    threads.close()
    threads.join(10)


def test_no_more_than_its_size_waits_in_a_queue_and_0_is_no_bound() -> None:
    of = PrefetchQueue[int](2)
    threads = PrefetchThreads(of)
    put = []

    def produces(into: PrefetchQueue[int]) -> None:
        for i in range(10):
            into.put(i)
            put.append(i)

    threads.start("pydp2 test", produce, of, produces)
    assert wait_until(lambda: waiting(of._not_full) == 1)
    assert put == [0, 1]
    assert drained(of) == list(range(10))
    threads.close()
    endless = PrefetchQueue[int]()
    for i in range(10_000):
        endless.put(i)
    assert endless.get() == 0


def test_a_consumer_may_look_without_waiting() -> None:
    of = PrefetchQueue[int]()
    with pytest.raises(queue.Empty):
        of.get(block=False)
    of.put(1)
    assert of.get(block=False) == 1
    of.close()
    with pytest.raises(QueueClosed):
        of.get(block=False)


@pytest.mark.parametrize("wait", ["put", "wait_for_room", "wait_for_item", "get"])
def test_closing_wakes_every_thread_that_waits_and_drops_what_is_there(wait: str) -> None:
    of, found = PrefetchQueue[int](1), list[str]()
    fills = wait in ("put", "wait_for_room")
    if fills:
        of.put(1)

    def work() -> None:
        try:
            of.put(2) if wait == "put" else getattr(of, wait)()
        except QueueClosed:
            found.append("closed")

    started = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in started:
        thread.start()
    assert wait_until(lambda: waiting(of._not_full if fills else of._not_empty) == 2)
    assert not of.closed
    of.close()
    for thread in started:
        thread.join(10)
    assert found == ["closed", "closed"]
    assert of.closed
    for use in (of.get, of.wait_for_item, of.wait_for_room, lambda: of.put(3)):
        with pytest.raises(QueueClosed):
            use()
    of.close()


def test_items_that_waited_are_freed_when_the_queue_is_closed() -> None:
    class Item:
        """Something that a weak reference can lead to."""

    of = PrefetchQueue[Item]()
    item = Item()
    waits = weakref.ref(item)
    of.put(item)
    del item
    of.close()
    assert waits() is None


def test_collecting_garbage_may_close_a_queue_whose_lock_its_thread_holds() -> None:
    of, through = PrefetchQueue[int](1), threading.Event()

    def work() -> None:
        with of._not_empty:
            of.close()
        through.set()

    threading.Thread(target=work, daemon=True).start()
    assert through.wait(10)


def test_the_end_comes_when_the_last_producer_has_ended() -> None:
    of = PrefetchQueue[int](1, producers=2)
    of.producer_done()
    of.put(1)
    assert of.get() == 1
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(of.wait_for_item()), daemon=True)
    thread.start()
    assert wait_until(lambda: waiting(of._not_empty) == 1)
    assert ended == []
    of.producer_done()
    thread.join(10)
    assert ended == [False]


def test_an_error_is_freed_with_its_traceback_when_it_was_handled() -> None:
    class Held:
        pass

    def fails(into: PrefetchQueue[int]) -> None:
        held = Held()
        references.append(weakref.ref(held))
        raise LookupError

    references: list[weakref.ref[Held]] = []
    of = PrefetchQueue[int]()
    gc.disable()
    try:
        thread = threading.Thread(target=produce, args=(of, fails))
        thread.start()
        thread.join(10)
        with pytest.raises(LookupError):
            of.get()
        assert references[0]() is None
    finally:
        gc.enable()


def test_threads_end_with_the_object_that_owns_them() -> None:
    of = PrefetchQueue[int](1)
    threads = PrefetchThreads(of, patience=30.0)

    def endless(into: PrefetchQueue[int]) -> None:
        while True:
            into.put(1)

    threads.start("pydp2 test owned", produce, of, endless)
    started = [thread for thread in threading.enumerate() if thread.name == "pydp2 test owned"]
    assert len(started) == 1
    del threads
    assert not started[0].is_alive()
    assert of.closed


def test_helpers_are_stopped_before_the_threads_are_waited_for_and_closed_after() -> None:
    told, stopped = [], threading.Event()

    class Helper:
        def stop(self) -> None:
            told.append("stop")
            stopped.set()

        def close(self) -> None:
            told.append("close")

    def waits_for_the_helper() -> None:
        assert stopped.wait(10)
        told.append("thread")

    threads = PrefetchThreads(patience=30.0)
    threads.add_helper(Helper())
    threads.start("pydp2 test", waits_for_the_helper)
    threads.close()
    threads.close()
    assert told == ["stop", "thread", "close"]


def test_a_thread_that_hangs_in_a_read_is_named_after_a_deadline() -> None:
    release = threading.Event()
    threads = PrefetchThreads(patience=0.0)
    threads.start("pydp2 test read", release.wait)
    threads.close()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"^pydp2 test read: still inside a read 0.01 s after being told to end"):
        threads.join(0.01)
    assert time.monotonic() - began < 20
    release.set()
    threads.join(10)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_can_neither_wait_for_threads_that_it_does_not_have_nor_end_them() -> None:
    of = PrefetchQueue[int](1)
    threads = PrefetchThreads(of)

    def counts(into: PrefetchQueue[int]) -> None:
        for i in range(100):
            into.put(i)

    threads.start("pydp2 test", produce, of, counts)
    assert of.get() == 0
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "nothing"
        try:
            lock = threading.Lock()
            of._not_empty = of._not_full = threading.Condition(lock)
            lock.acquire()  # a thread may have held it at the fork
            for use in (of.get, of.wait_for_item):
                with pytest.raises(ClientUseError, match="begun before a fork"):
                    use()
            of.close()
            threads.close()
            threads.join(1)
            said = "refused"
        finally:
            os.write(into, said.encode())
            os._exit(0)
    os.close(into)
    with open(out, "rb") as pipe:
        assert select.select([pipe], [], [], 20)[0], "the child hangs"
        assert pipe.read() == b"refused"
    os.waitpid(pid, 0)
    assert drained(of) == list(range(1, 100))
    threads.close()
