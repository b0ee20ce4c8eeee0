"""Threads that read ahead: a bounded channel, the crew that fills it, and readers that are filled so.

It answers for how threads begin, wait and end; what they read is told by jobs. Nobody waits without a way out: a
channel that is stopped wakes all who wait at it; a crew is stopped when its reader begins anew, is closed, reaches the
end, fails, or is collected as garbage. Threads hold the channel and their job, never the reader, or it could not be.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydp2.errors import ClientUseError, EOFException
from pydp2.fluid import base
from pydp2.fluid.base import Reader, end, misplaced
from pydp2.fluid.tensors import Instance


@dataclass(frozen=True)
class _InstanceError:
    error: BaseException


class InstanceChannel:
    """At most ``size`` instances on their way from some producers to one reader; errors come in their place.

    All waits end when it is stopped. The lock can be taken twice by a thread, because collecting garbage may stop a
    channel at any line of this class.
    """

    def __init__(self, size: int, producers: int) -> None:
        self._size = size
        self._producers = producers
        self._items: deque[Instance | _InstanceError] = deque()
        self._stopped = False
        lock = threading.RLock()
        self._not_full, self._not_empty = threading.Condition(lock), threading.Condition(lock)

    @property
    def stopped(self) -> bool:
        """True if no instance is wanted any more."""
        return self._stopped

    def wait_for_room(self) -> bool:
        """Wait until something could be put; False once stopped."""
        with self._not_full:
            while len(self._items) >= self._size and not self._stopped:
                self._not_full.wait()
            return not self._stopped

    def put(self, instance: Instance) -> bool:
        """Wait for room, and put ``instance`` there; False once stopped."""
        with self._not_full:
            if not self.wait_for_room():
                return False
            self._items.append(instance)
            self._not_empty.notify_all()
            return True

    def put_error(self, error: BaseException) -> None:
        """``error`` behind all that is there; it needs no room."""
        with self._not_empty:
            self._items.append(_InstanceError(error))
            self._not_empty.notify_all()

    def producer_done(self) -> None:
        """A producer has no more."""
        with self._not_empty:
            self._producers -= 1
            self._not_empty.notify_all()

    def stop(self) -> None:
        """Drop everything, wake everybody."""
        with self._not_empty:
            self._stopped = True
            self._items.clear()
            self._not_empty.notify_all()
            self._not_full.notify_all()

    def wait(self) -> bool:
        """Wait until there is something to get; False at the end. Raises ClientUseError once stopped."""
        with self._not_empty:
            while not self._items:
                if self._stopped:
                    raise ClientUseError("the reader was closed while it was being read")
                if self._producers <= 0:
                    return False
                self._not_empty.wait()
            return True

    def get(self) -> Instance | BaseException:
        """Remove and return the first instance. Only after :meth:`wait` gave True, by the same thread."""
        with self._not_full:
            item = self._items.popleft()
            self._not_full.notify()
            return item.error if isinstance(item, _InstanceError) else item


Job = Callable[[InstanceChannel], None]
"""What a thread does: put instances, and return at the end or when a put gives False. What it raises is passed on."""


class PrefetchThreads:
    """Threads at their jobs, and the channel between them and the reader that owns them."""

    def __init__(self, owner: Reader, jobs: Sequence[Job], size: int, name: str) -> None:
        self._channel = InstanceChannel(size, len(jobs))
        self._threads = [
            threading.Thread(target=_work, args=(job, self._channel), name=f"{name}-{i}", daemon=True)
            for i, job in enumerate(jobs)
        ]
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(owner, _abandon, self._channel, self._owner)
        for thread in self._threads:
            thread.start()

    def has_next(self) -> bool:
        """Return True if there is another instance (or an error in place of one). Raises ClientUseError in a fork."""
        if os.getpid() != self._owner:
            raise ClientUseError(
                "the pass was begun before a fork, which its threads do not follow: begin one in the process that "
                "reads it"
            )
        return self._channel.wait()

    def next(self) -> Instance:
        """The next instance; raises the error that stands in its place, EOFException at the end."""
        if not self.has_next():
            raise end()
        item = self._channel.get()
        if isinstance(item, BaseException):
            self.request_stop()
            raise item
        return item

    def request_stop(self) -> None:
        """Tell the threads to end, without waiting for them."""
        _abandon(self._channel, self._owner)

    def stop(self, wait: float) -> None:
        """Tell the threads to end, and wait for that. Raises TimeoutError after ``wait`` seconds."""
        self._finalizer.detach()
        if os.getpid() != self._owner:
            return
        self.request_stop()
        deadline = time.monotonic() + wait
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        if busy := [thread.name for thread in self._threads if thread.is_alive()]:
            raise TimeoutError(
                f"{', '.join(busy)}: still inside a read {wait:g} s after being told to end; a file or reader that "
                "hangs cannot be interrupted"
            )


def _abandon(channel: InstanceChannel, owner: int) -> None:
    if os.getpid() == owner:  # in a fork there is nobody to tell, and the lock may be held by one who is not there
        channel.stop()


def _work(job: Job, channel: InstanceChannel) -> None:
    try:
        job(channel)
    except EOFException as error:
        channel.put_error(misplaced(error))
    except BaseException as error:  # whatever it is, it belongs to whoever reads
        channel.put_error(error)
    finally:
        channel.producer_done()


class PrefetchingReader(Reader):
    """A reader that threads fill. They begin with the first read of a pass, so a reader may be made before a fork."""

    def __init__(self, size: int, name: str) -> None:
        super().__init__()
        self._size = size
        self._name = name
        self._crew: PrefetchThreads | None = None

    @abstractmethod
    def _jobs(self) -> Sequence[Job]:
        """One job a thread, for one pass; they must not refer to this reader."""

    def _running(self) -> PrefetchThreads:
        if self._crew is None:
            self._crew = PrefetchThreads(self, self._jobs(), self._size, self._name)
        return self._crew

    def _read(self) -> Instance:
        return self._running().next()

    def _peek(self) -> bool:
        return self._running().has_next()

    def _restart(self) -> None:
        self._end()

    def _shut(self) -> None:
        self._end()

    def _interrupt(self) -> None:
        crew = self._crew
        if crew is not None:
            crew.request_stop()

    def _end(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.stop(base.STOP_SECONDS)
