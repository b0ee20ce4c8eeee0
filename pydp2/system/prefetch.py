"""Prefetch with threads: the bounded queue between producers and a consumer, and the lifetime of the threads.

A consumer may stop at any moment: it breaks out of its loop, its generator is collected, the program ends. Closing the
queue then wakes every thread that waits for it, and each producer ends by itself as soon as it uses the queue again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pydp2.system.single_pass import check_process

T = TypeVar("T")


class QueueClosed(Exception):
    """The queue is closed: its consumer wants no more items."""


class QueueEnd(Exception):
    """The queue is empty, and all its producers have ended."""


@dataclass(frozen=True)
class _Raised:
    error: BaseException


class PrefetchQueue(Generic[T]):
    """Queue of at most ``size`` items (0: of any number) from ``producers`` threads. Errors keep their order among the
    items.

    Every wait ends when the queue is closed. The lock is reentrant, because the garbage collector may close the queue
    at any line of this class.
    """

    def __init__(self, size: int = 0, producers: int = 1) -> None:
        self._size = size or sys.maxsize
        self._producers = producers
        self._items: deque[T | _Raised] = deque()
        self._closed = False
        self._process = os.getpid()
        lock = threading.RLock()
        self._not_full, self._not_empty = threading.Condition(lock), threading.Condition(lock)

    @property
    def closed(self) -> bool:
        """True if the queue is closed."""
        return self._closed

    def wait_for_room(self) -> None:
        """Wait until there is room for an item. Raises QueueClosed."""
        with self._not_full:
            while len(self._items) >= self._size and not self._closed:
                self._not_full.wait()
            if self._closed:
                raise QueueClosed

    def put(self, item: T) -> None:
        """Wait for room, and put ``item`` at the end. Raises QueueClosed."""
        with self._not_full:
            if self._closed or len(self._items) >= self._size:
                self.wait_for_room()
            self._items.append(item)
            self._not_empty.notify_all()

    def put_error(self, error: BaseException) -> None:
        """Put ``error`` at the end, for :meth:`get` to raise. It needs no room."""
        with self._not_empty:
            self._items.append(_Raised(error))
            self._not_empty.notify_all()

    def producer_done(self) -> None:
        """Note that a producer has ended."""
        with self._not_empty:
            self._producers -= 1
            self._not_empty.notify_all()

    def wait_for_item(self) -> bool:
        """Wait until there is an item or an error to get, and return True; False at the end.

        Raises QueueClosed, and ClientUseError in a fork of the process that made the queue.
        """
        check_process(self._process)  # before the lock is taken, which a thread may have held at the fork
        with self._not_empty:
            while not self._items and not self._closed:
                if self._producers <= 0:
                    return False
                self._not_empty.wait()
            if self._closed:
                raise QueueClosed
            return True

    def get(self, block: bool = True) -> T:
        """Remove and return the first item, as soon as there is one. If it is an error, raise it.

        Raises QueueEnd at the end, QueueClosed and ClientUseError as :meth:`wait_for_item` does, and without ``block``
        :class:`queue.Empty` if there is no item now.
        """
        check_process(self._process)
        with self._not_full:
            if self._closed or not self._items:
                if not block and not self._closed:
                    raise queue.Empty
                if not self.wait_for_item():
                    raise QueueEnd
            try:
                item = self._items.popleft()
            except IndexError:  # the garbage collector has just closed the queue
                raise QueueClosed from None
            self._not_full.notify_all()
        if not isinstance(item, _Raised):
            return item
        error = item.error
        try:
            raise error
        finally:
            del error, item  # break the cycle through its traceback, which would keep objects and files open

    def close(self) -> None:
        """Drop all items and wake all threads that wait. In a fork, do nothing. Closing twice is allowed."""
        if os.getpid() != self._process:
            return  # a fork has no threads, and one of them may have held the lock
        with self._not_empty:
            self._closed = True
            self._items.clear()
            self._not_empty.notify_all()
            self._not_full.notify_all()


def produce(into: PrefetchQueue[T], put_items: Callable[[PrefetchQueue[T]], None]) -> None:
    """Call ``put_items(into)`` as one of the producers: put its exception into the queue, then note its end."""
    try:
        put_items(into)
    except QueueClosed:
        pass
    except BaseException as error:  # the consumer also gets a KeyboardInterrupt or SystemExit of the source
        into.put_error(error)
    finally:
        into.producer_done()


def prefetched(
    put_items: Callable[[PrefetchQueue[T]], None], size: int, name: str, *, join_seconds: float = 0.0
) -> Generator[T, None, None]:
    """Yield the items that ``put_items`` puts into a queue of ``size`` items (0: any number), in a thread ``name``.

    The thread starts with the first request for an item, and ends with the generator: at its end, when it is closed or
    collected, or with the program. ``join_seconds``: seconds to wait for the end of the thread; after them, raise
    TimeoutError. Raises the errors of ``put_items`` in order, and ClientUseError in a fork.
    """
    queue = PrefetchQueue[T](size)
    threads = PrefetchThreads(queue)
    try:
        threads.start(name, produce, queue, put_items)
        with contextlib.suppress(QueueEnd):
            while True:
                yield queue.get()  # not in a variable, which would keep the item while the consumer has the next one
    finally:
        threads.close()
        if join_seconds:
            threads.join(join_seconds)


class PrefetchHelper(Protocol):
    """Helper of a pass beside threads, such as a process."""

    def stop(self) -> None:
        """Stop working, and wake every thread that waits for this helper."""

    def close(self) -> None:
        """End the helper, which no thread uses any more."""


class PrefetchThreads:
    """Threads and helpers that work for one pass.

    They end by :meth:`close`, with this object, or with the program: ``queues`` are closed and helpers stopped, so that
    threads end; ``patience`` seconds later at the latest, helpers are closed. Threads are daemons, because the user's
    code may run longer. Threads have references to queues and sources, but never to the owner of this object, which
    could not be collected then.
    """

    def __init__(self, *queues: PrefetchQueue[Any], patience: float = 1.0) -> None:
        self._threads: list[threading.Thread] = []
        self._helpers: list[PrefetchHelper] = []
        self._process = os.getpid()
        self._end = weakref.finalize(self, _end, queues, self._helpers, self._threads, self._process, patience)

    def add_helper(self, helper: PrefetchHelper) -> None:
        """Stop and close ``helper`` with the threads."""
        self._helpers.append(helper)

    def start(self, name: str, target: Callable[..., None], *args: Any) -> None:
        """Run ``target(*args)`` in a thread. If it raises QueueClosed, the thread ends without an error."""
        thread = threading.Thread(target=_quietly, args=(target, *args), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """End threads and helpers. Closing twice is allowed."""
        self._end()

    def join(self, seconds: float) -> None:
        """Wait until the threads, which were told to end, have ended. Raises TimeoutError after ``seconds``."""
        if os.getpid() != self._process:
            return
        _join(self._threads, seconds)
        if busy := [thread.name for thread in self._threads if _is_other_and_alive(thread)]:
            raise TimeoutError(
                f"{', '.join(busy)}: still inside a read {seconds:g} s after being told to end; a file or reader that "
                "hangs cannot be interrupted"
            )


def _quietly(target: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(QueueClosed):
        target(*args)


def _is_other_and_alive(thread: threading.Thread) -> bool:
    return thread is not threading.current_thread() and thread.is_alive()


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        if _is_other_and_alive(thread):  # the garbage collector may run in one of these threads
            thread.join(max(deadline - time.monotonic(), 0))


def _end(
    queues: Sequence[PrefetchQueue[Any]],
    helpers: Sequence[PrefetchHelper],
    threads: Sequence[threading.Thread],
    process: int,
    patience: float,
) -> None:
    if os.getpid() != process:
        return  # in a fork, threads and helpers belong to the parent
    for waiting in queues:
        waiting.close()
    for helper in helpers:
        helper.stop()
    _join(threads, patience)
    for helper in helpers:
        helper.close()
