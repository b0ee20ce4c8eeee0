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
        self._peeked: dict[threading.Thread, Instance] = {}

    def _read(self) -> Instance:
        peeked = self._peeked.pop(threading.current_thread(), None)
        return self._new() if peeked is None else peeked

    def _new(self) -> Instance:
        try:
            return self.underlying.read_next()
        except EOFException:
            for thread in self._peeked:
                if not thread.is_alive():  # it called has_next(), and ended without reading
                    return self._peeked.pop(thread)
            raise

    def _peek(self) -> bool:
        me = threading.current_thread()
        if me not in self._peeked:
            try:
                self._peeked[me] = self._new()
            except EOFException:
                return False
            except Exception:
                return True  # read_next() of this thread raises the error
        return True

    def _restart(self) -> None:
        self._peeked.clear()
        super()._restart()


def threaded(reader: Source) -> ThreadedReader:
    """Return a reader that gives each instance of ``reader`` to one of several threads.

    Several threads may read any Fluid reader. In addition, ``has_next()`` of this reader keeps an instance for the
    thread that called it, so ``while reader.has_next(): reader.read_next()`` is correct in each thread. If a thread
    ends and has not read its instance, another thread gets it. See docs/fluid.md.
    """
    return ThreadedReader(reader)
