"""Share one reader between several threads that call ``has_next`` before they read."""

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
                if not thread.is_alive():  # it called has_next(), and ended without reading
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
                return True  # read_next() of this thread raises the error
        return True

    def _restart(self) -> None:
        self._kept.clear()
        super()._restart()


def threaded(reader: Source) -> ThreadedReader:
    """Return a reader that gives each instance of ``reader`` to one of several threads.

    Several threads may read any Fluid reader. In addition, ``has_next()`` of this reader keeps an instance for the
    thread that called it, so ``while reader.has_next(): reader.read_next()`` is correct in each thread. If a thread
    ends and has not read its instance, another thread gets it. See docs/fluid.md.
    """
    return ThreadedReader(reader)
