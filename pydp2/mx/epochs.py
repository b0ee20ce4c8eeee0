"""Iterate over one epoch after the other, and prefetch batches. All providers of this package use this module.

This module enforces the rule of one epoch at a time (docs/mxnet.md, "Epochs"), and ends the threads that prepare
batches together with their epoch. It does not look into batches.
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
from pydp2.system.prefetch import PrefetchQueue, prefetched
from pydp2.system.single_pass import check_process

T = TypeVar("T")

_JOIN_SECONDS = 60.0  # for which a thread may still prepare its last item, from files that the next epoch reads


class Epoch(Iterator[DataBatch]):
    """An iterator over the batches of one epoch. ``close()`` ends the epoch and the thread that prepares its batches;
    so does the loss of the last reference.

    Threads may share one; each batch goes to one of them. Processes may not: after a fork, the epoch is over in the
    child.
    """

    def __init__(self, batches: Generator[DataBatch, None, None]) -> None:
        self._batches = batches
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self.over = False

    def __next__(self) -> DataBatch:
        """Return the next batch. Raises ClientUseError in the child of a fork, and the errors of the batches."""
        try:
            check_process(self._owner)  # before the lock: after a fork, a thread that does not exist here may hold it
            with self._lock:
                return next(self._batches)
        except BaseException:
            self.over = True  # the epoch cannot continue after an error
            raise

    def close(self) -> None:
        """End the epoch. A thread that waits for a batch gets this batch first."""
        self.over = True
        if os.getpid() == self._owner:
            with self._lock:
                self._batches.close()


class EpochProvider(DataProvider):
    """A provider with one epoch at a time; the base class of all providers of this package."""

    def __init__(self) -> None:
        self._current: weakref.ref[Epoch] | None = None

    @abstractmethod
    def _batches(self) -> Generator[DataBatch, None, None]:
        """Return the batches of the next epoch. Called once for each epoch; the generator ends everything that it
        starts."""

    def eachbatch(self) -> Epoch:
        """Return an iterator over the batches of the next epoch.

        Raises:
            ClientUseError: the caller still holds another epoch of this provider that has not ended (a RuntimeError).
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


def prefetch(items: Callable[[], Iterator[T]], depth: int) -> Generator[T, None, None]:
    """Yield the items of ``items()`` in their order. A thread prepares up to ``depth`` of them while the caller
    computes.

    An exception of the iterator is raised at its place. The thread ends with the generator: at its end, when it is
    closed, when nothing refers to it any more, or when the program ends.

    Raises:
        ClientUseError: the caller is in the child of a fork, which does not have the thread (a RuntimeError).
        TimeoutError: the thread did not end in time.
    """
    return prefetched(partial(_put_all, items), depth, "pydp2-mx-prefetch", join_seconds=_JOIN_SECONDS)


def _put_all(items: Callable[[], Iterator[T]], queue: PrefetchQueue[T]) -> None:
    iterator = items()
    try:
        for item in iterator:
            queue.put(item)
    finally:
        if isinstance(iterator, Generator):
            iterator.close()  # here, not in the thread that drops the last reference
