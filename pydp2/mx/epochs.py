"""One epoch after the other: what all providers of this part share as iterators, and preparing batches ahead.

It answers for who may iterate when (docs/mxnet.md, "Epochs"), and for the threads that prepare batches: whose they
are, and that they end with the epoch. What is in a batch is no business of this module.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

from pydp2.errors import ClientUseError
from pydp2.mx.interface import DataBatch, DataProvider

T = TypeVar("T")


class Epoch(Iterator[DataBatch]):
    """The batches of one epoch. Dropping it, or ``close()``, leaves it and ends whatever prepares its batches.

    Threads may share one, each batch goes to one of them; processes may not: after a fork it is over in the child.
    """

    def __init__(self, batches: Generator[DataBatch, None, None]) -> None:
        self._batches = batches
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self.over = False

    def __next__(self) -> DataBatch:
        """The next batch. Raises ClientUseError in a fork, and whatever the batches raise."""
        try:
            _same_process(self._owner)  # first: of a fork, somebody who is not there may hold the lock
            with self._lock:
                return next(self._batches)
        except BaseException:
            self.over = True  # after an error there is nothing to go on with
            raise

    def close(self) -> None:
        """Leave the epoch: its rest is not wanted. A thread that is waiting for a batch gets it first."""
        self.over = True
        if os.getpid() == self._owner:
            with self._lock:
                self._batches.close()


class EpochProvider(DataProvider):
    """A provider with one epoch at a time, as all providers of this part are."""

    def __init__(self) -> None:
        self._current: weakref.ref[Epoch] | None = None

    @abstractmethod
    def _batches(self) -> Generator[DataBatch, None, None]:
        """The batches of the next epoch. Called once for each; what it begins it also ends."""

    def eachbatch(self) -> Epoch:
        """The batches of the next epoch.

        Raises:
            ClientUseError: another epoch of this provider is not over and still held (a RuntimeError).
        """
        current = self._current() if self._current is not None else None
        if current is not None and not current.over:
            raise ClientUseError(
                "this provider is in the middle of an epoch: a second iteration would mix two; leave the first loop, "
                "close() its iterator, or make a second provider"
            )
        epoch = Epoch(self._batches())
        self._current = weakref.ref(epoch)
        return epoch


def _same_process(owner: int) -> None:
    if os.getpid() != owner:
        raise ClientUseError(
            "the epoch was begun before a fork, which its threads do not follow: begin one in the process that reads it"
        )


class _Buffer(Generic[T]):
    """What one thread has prepared and another has not taken yet, and why there will be no more."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._left = self._ended = False
        self._error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Wait for room; False when nobody wants anything any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._left or len(self._items) < self._depth)
            self._items.append(item)
            self._changed.notify_all()
            return not self._left

    def end(self, error: BaseException | None) -> None:
        """There is no more, because of ``error`` if there was one."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def take(self) -> tuple[T] | None:
        """Wait for the next item, None behind the last one; or raise what ended them."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or bool(self._items))
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return (item,)
            error, self._error = self._error, None
        if error is None:
            return None
        try:
            raise error
        finally:
            del error  # its traceback leads here: else both, and open files, would wait for the collector

    def leave(self) -> None:
        """Nothing more is wanted."""
        with self._changed:
            self._left = True
            self._changed.notify_all()


def ahead(items: Callable[[], Iterator[T]], depth: int) -> Generator[T, None, None]:
    """What ``items()`` gives, in its order, up to ``depth`` of it prepared in a thread while the caller computes.

    An exception of the iterator is raised in its place. The thread ends with the generator: at the end, when it is
    closed or dropped, or when the program ends.

    Raises:
        ClientUseError: in a child of a fork, where there is no such thread (a RuntimeError).
    """
    owner = os.getpid()
    buffer: _Buffer[T] = _Buffer(depth)
    # A daemon, because the interpreter waits for all others before it calls what ends this one.
    thread = threading.Thread(target=_prepare, args=(items, buffer), name="pydp2-mx-ahead", daemon=True)

    def end() -> None:
        if os.getpid() != owner:
            return  # nobody is there to be told, and the lock may be held by one who is not there either
        buffer.leave()
        if thread is not threading.current_thread():  # the collector runs where it likes
            thread.join()  # it ends with what it is preparing now

    atexit.register(end)
    thread.start()
    try:
        while (taken := buffer.take()) is not None:
            yield taken[0]
            _same_process(owner)
    finally:
        end()
        atexit.unregister(end)


def _prepare(items: Callable[[], Iterator[T]], buffer: _Buffer[T]) -> None:
    error: BaseException | None = None
    try:
        iterator = items()
        try:
            for item in iterator:
                if not buffer.put(item):
                    break
        finally:
            if isinstance(iterator, Generator):
                iterator.close()  # here, not in whatever thread drops it last
    except BaseException as exc:
        error = exc
    finally:
        buffer.end(error)
        del error  # as above
