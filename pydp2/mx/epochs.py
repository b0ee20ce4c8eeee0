"""Iterate over one epoch after the other, and prefetch batches: what all providers of this part share.

It answers for who may iterate when (docs/mxnet.md, "Epochs"), and for the threads that prepare batches: whose they
are, and that they end with the epoch. What is in a batch is no business of this module.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TypeVar

from pydp2.errors import ClientUseError
from pydp2.mx.interface import DataBatch, DataProvider
from pydp2.prefetch import PrefetchQueue, PrefetchThreads, produce

T = TypeVar("T")

_JOIN_SECONDS = 60.0  # that a thread has to end what it is preparing


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


def prefetch(items: Callable[[], Iterator[T]], depth: int) -> Generator[T, None, None]:
    """Yield what ``items()`` gives, in its order, up to ``depth`` of it prepared in a thread while the caller computes.

    An exception of the iterator is raised in its place. The thread ends with the generator: at the end, when it is
    closed or dropped, or when the program ends.

    Raises:
        ClientUseError: in a child of a fork, where there is no such thread (a RuntimeError).
        TimeoutError: the thread did not end in time.
    """
    queue = PrefetchQueue[T](depth)
    threads = PrefetchThreads(queue)
    threads.start("pydp2-mx-prefetch", produce, queue, partial(_put_all, items))
    try:
        while queue.wait_for_item():
            yield queue.get()
    finally:
        threads.close()
        threads.join(_JOIN_SECONDS)  # what it is preparing now still uses the files of the next epoch


def _put_all(items: Callable[[], Iterator[T]], queue: PrefetchQueue[T]) -> None:
    iterator = items()
    try:
        for item in iterator:
            queue.put(item)
    finally:
        if isinstance(iterator, Generator):
            iterator.close()  # here, not in whatever thread drops it last
