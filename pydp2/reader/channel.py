"""A queue between threads that can be closed, and the threads that fill it: what every waiting in this part is made of.

A consumer may go away at any moment: it breaks out of its loop, its generator is collected, the program ends. Closing
the channel then wakes everybody who waits at it, and each thread ends by itself as soon as it looks at it again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pydp2.reader.contract import Reader, iterating

_PATIENCE = 1.0  # seconds that the end of a pass waits for its threads; one in the user's code for longer is a daemon

ITEM, END, RAISED = "item", "end", "raised"
ReaderMessage = tuple[str, Any]
"""What travels between those who read and those who consume: an item, the end, or the exception that was raised."""


class ChannelClosed(Exception):
    """The channel is closed: whoever was on the other side has gone."""


class Channel:
    """First in, first out. ``size``: how many wait in it at most, 0 for any number."""

    def __init__(self, size: int = 0) -> None:
        self._size = size
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: object) -> None:
        """Add ``item``, as soon as there is room. Raises ChannelClosed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._size or len(self._items) < self._size)
            if self._closed:
                raise ChannelClosed
            self._items.append(item)
            self._changed.notify_all()

    def get(self, wait: bool = True) -> Any:
        """The next item, as soon as there is one. Raises ChannelClosed; without ``wait`` IndexError where there is
        none."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._closed or self._items)
            if self._closed:
                raise ChannelClosed
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Wake all who wait; what was not taken is dropped. Closing twice is fine."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


class PassHelper(Protocol):
    """Helper of a pass beside threads, as a process is."""

    def stop(self) -> None:
        """Nothing is wanted any more: wake whoever waits for it."""

    def close(self) -> None:
        """End it; no thread uses it any more."""


class PassThreads:
    """Threads and other members that work for one pass. They end by :meth:`close`, with this object, or the program:
    first ``channels`` are closed and members told, so that threads end; then members are closed."""

    def __init__(self, *channels: Channel) -> None:
        self._threads: list[threading.Thread] = []
        self._helpers: list[PassHelper] = []
        self._end = weakref.finalize(self, _end, channels, self._helpers, self._threads, os.getpid())

    def add_helper(self, helper: PassHelper) -> None:
        """Take ``helper`` in."""
        self._helpers.append(helper)

    def start(self, name: str, target: Callable[..., None], *args: Any) -> None:
        """Run ``target(*args)`` in a thread. That a channel is closed ends it, and is no error."""
        thread = threading.Thread(target=_quietly, args=(target, *args), name=f"pydp2 {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """End all of them, and wait a moment for the threads. Closing twice is fine."""
        self._end()


def _quietly(target: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(ChannelClosed):
        target(*args)


def _end(channels: Sequence[Channel], members: list[PassHelper], threads: list[threading.Thread], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork: the threads are not here, and one of them may have held a lock
    for channel in channels:
        channel.close()
    for member in members:
        member.stop()
    deadline = time.monotonic() + _PATIENCE
    for thread in threads:
        if thread is not threading.current_thread():  # a collection of garbage may run in any thread, in one of these
            thread.join(max(deadline - time.monotonic(), 0))
    for member in members:
        member.close()


def read_into(reader: Reader, put: Callable[[ReaderMessage], None]) -> None:
    """Put the entries of a pass as messages, then its end or what it raised. Raises ChannelClosed."""
    try:
        with iterating(reader) as (entries,):
            for entry in entries:
                put((ITEM, entry))
    except ChannelClosed:
        raise
    except BaseException as error:  # a KeyboardInterrupt or SystemExit of the reader is the consumer's affair, too
        put((RAISED, error))
    else:
        put((END, None))
