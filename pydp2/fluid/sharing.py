"""Threaded: one reader for several threads that ask ``has_next`` before they read."""

from __future__ import annotations

import threading

from pydp2.errors import EOFException
from pydp2.fluid.base import DecoratedReader, Source
from pydp2.fluid.tensors import Instance


class ThreadedReader(DecoratedReader):
    """See :func:`threaded`."""

    def __init__(self, underlying: Source) -> None:
        super().__init__(underlying)
        self._kept: dict[threading.Thread, Instance] = {}

    def _read(self) -> Instance:
        kept = self._kept.pop(threading.current_thread(), None)
        return self._new() if kept is None else kept

    def _new(self) -> Instance:
        try:
            return self.underlying.read_next()
        except EOFException:
            for thread in self._kept:
                if not thread.is_alive():  # it asked, and ended without reading
                    return self._kept.pop(thread)
            raise

    def _peek(self) -> bool:
        me = threading.current_thread()
        if me not in self._kept:
            try:
                self._kept[me] = self._new()
            except EOFException:
                return False
            except Exception:
                return True  # it is told again when this thread reads
        return True

    def _restart(self) -> None:
        self._kept.clear()
        super()._restart()


def threaded(reader: Source) -> ThreadedReader:
    """``reader`` for several threads at a time, each instance to one of them.

    Every reader here may be read by several threads. What this one adds: ``has_next()`` keeps an instance for the
    thread that asked, so that ``while reader.has_next(): reader.read_next()`` is right in each of them. What a thread
    asked for and did not read is given to others when that thread has ended. See docs/fluid.md.
    """
    return ThreadedReader(reader)
