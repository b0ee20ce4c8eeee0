"""Fill a reader of Fluid from threads (:mod:`pydp2.system.prefetch`).

The threads end when their reader is restarted or closed, reaches the end, fails, or is garbage collected. A thread
refers to the queue and to its source, and never to the reader; otherwise the reader could not be collected.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from pydp2.errors import ClientUseError, EOFException
from pydp2.fluid import base
from pydp2.fluid.base import Reader, end, misplaced
from pydp2.fluid.tensors import Instance
from pydp2.system.prefetch import PrefetchQueue, PrefetchThreads, QueueClosed, QueueEnd, produce

InstanceQueue = PrefetchQueue[Instance]
PutInstances = Callable[[InstanceQueue], None]
"""The function that a thread runs: it puts instances into the queue and returns at the end. The reader raises its
exceptions."""


class PrefetchingReader(Reader):
    """A reader that threads fill. The threads start with the first read of a pass, so you may make a reader before a
    fork."""

    def __init__(self, size: int, name: str) -> None:
        super().__init__()
        self._size = size
        self._name = name
        self._running: tuple[InstanceQueue, PrefetchThreads] | None = None

    @abstractmethod
    def _producers(self) -> Sequence[PutInstances]:
        """Return the functions that the threads of one pass run. They must not refer to this reader."""

    def _queue(self) -> InstanceQueue:
        if self._running is None:
            producers = self._producers()
            queue = InstanceQueue(self._size, len(producers))
            # no waiting at garbage collection: it may run in a thread of the reader above
            threads = PrefetchThreads(queue, patience=0.0)
            self._running = queue, threads
            for i, put_instances in enumerate(producers):
                threads.start(f"{self._name}-{i}", produce, queue, _without_end(put_instances))
        return self._running[0]

    def _read(self) -> Instance:
        queue = self._queue()
        try:
            return queue.get()
        except QueueEnd:
            raise end() from None
        except QueueClosed:
            raise _closed() from None
        except ClientUseError:
            raise  # after a fork
        except BaseException:
            queue.close()
            raise

    def _peek(self) -> bool:
        try:
            return self._queue().wait_for_item()
        except QueueClosed:
            raise _closed() from None

    def _restart(self) -> None:
        self._end()

    def _shut(self) -> None:
        self._end()

    def _interrupt(self) -> None:
        running = self._running
        if running is not None:
            running[0].close()

    def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running[1].close()
            running[1].join(base.STOP_SECONDS)


def _closed() -> ClientUseError:
    return ClientUseError("the reader was closed while it was being read")


def _without_end(put_instances: PutInstances) -> PutInstances:
    """Return ``put_instances``, changed so that an EOFException from it becomes a RuntimeError. Otherwise it would look
    like the end of the data."""

    def put(queue: InstanceQueue) -> None:
        try:
            put_instances(queue)
        except EOFException as error:
            queue.put_error(misplaced(error))

    return put
