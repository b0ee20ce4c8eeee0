"""Hold a reader that may be made later."""

from __future__ import annotations

from collections.abc import Callable

from pydp2.errors import OptionError
from pydp2.fluid.base import Reader, Source, reader_of
from pydp2.fluid.tensors import Instance


class ReaderHolder(Reader):
    """A reader that forwards every call to the reader that it holds.

    ``reader``: the reader that it holds from the beginning; None: no reader yet. An empty holder raises OptionError (a
    ValueError) when it is used. See docs/fluid.md.
    """

    def __init__(self, reader: Source | None = None) -> None:
        super().__init__()
        self._held = None if reader is None else reader_of(reader)

    def create(self, make: Callable[[], Source]) -> Reader:
        """Return the reader that is held. If there is none, call ``make()`` and hold its result; otherwise do not call
        it."""
        with self._lock:
            self._check_open()
            if self._held is None:
                self._held = reader_of(make())
            return self._held

    def get(self) -> Reader:
        """Return the reader that is held. Raises OptionError if there is none."""
        if self._held is None:
            raise OptionError("the holder has no reader yet; give it one with create()")
        return self._held

    def _dirty(self) -> bool:
        return self._held is not None and self._held._dirty()

    def _pass_number(self) -> int:
        return self.get()._pass_number()

    def _skip(self, passes: int) -> None:
        self.get()._skip(passes)

    def _begin(self) -> None:
        self._check_open()  # the reader that is held knows all the rest

    def _fail(self, error: BaseException) -> None:
        pass  # the reader that is held keeps the error, and drops it at reinit()

    def _read(self) -> Instance:
        return self.get().read_next()

    def _peek(self) -> bool:
        return self.get().has_next()

    def _restart(self) -> None:
        self.get().reinit()

    def _shut(self) -> None:
        if self._held is not None:
            self._held.close()

    def _interrupt(self) -> None:
        if self._held is not None:
            self._held._interrupt()
