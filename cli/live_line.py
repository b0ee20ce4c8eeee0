"""Redraw one line at the bottom of a terminal, never longer than the terminal is wide; other output appears above it.

A wrapped line can only be erased if its number of rows is known. So each line is cut to the present width of the
terminal. If the terminal became narrower since, it has wrapped the line, and the number of rows follows from the new
width.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

_REDRAW_SECONDS = 0.1  # least number of seconds between two drawings by update()
_SEPARATOR = " · "
_ERASE, _ERASE_ABOVE = "\r\x1b[2K", "\x1b[1A\x1b[2K"


class LiveLine:
    """Line that is redrawn on ``file``, a terminal."""

    def __init__(self, file: TextIO, *, bold: bool = False) -> None:
        self._file = file
        self._begin, self._end = ("\x1b[1m", "\x1b[0m") if bold else ("", "")
        self._parts: Sequence[str] = ()
        self._drawn_cells = 0  # width of the drawn line in cells
        self._drawn_at = 0.0
        self._lock = threading.RLock()

    def show(self, parts: Sequence[str]) -> None:
        """Draw as many of ``parts`` as fit, the first ones first."""
        with self._lock:
            self._parts = parts
            self._drawn_at = time.monotonic()
            self._write(self._erased() + self._line())

    def update(self, parts: Sequence[str]) -> None:
        """Draw as :meth:`show` does, unless a line was drawn less than 0.1 s ago."""
        if time.monotonic() - self._drawn_at > _REDRAW_SECONDS:
            self.show(parts)

    def clear(self) -> None:
        """Erase the line."""
        with self._lock:
            self._parts = ()
            self._write(self._erased())

    @contextlib.contextmanager
    def printing_above(self) -> Iterator[None]:
        """Erase the line inside the context, so that other lines can be written above it."""
        with self._lock:
            self._write(self._erased())
            try:
                yield
            finally:
                self._write(self._line())

    @property
    def _width(self) -> int:
        with contextlib.suppress(OSError):
            if columns := os.get_terminal_size(self._file.fileno()).columns:
                return columns
        return shutil.get_terminal_size().columns  # the terminal does not say: use COLUMNS

    def _erased(self) -> str:
        drawn, self._drawn_cells = self._drawn_cells, 0
        return _ERASE + _ERASE_ABOVE * (-(-drawn // self._width) - 1) if drawn else ""

    def _line(self) -> str:
        from rich.cells import cell_len, set_cell_size

        if not self._parts:
            return ""
        room = self._width - 1  # the last column is for the cursor
        text, *rest = self._parts
        if cell_len(text) > room:
            text = set_cell_size(text, room - 1) + "…" if room > 1 else ""
            rest = []
        for part in rest:
            if cell_len(text) + len(_SEPARATOR) + cell_len(part) > room:
                break
            text += _SEPARATOR + part
        self._drawn_cells = cell_len(text)
        return f"{self._begin}{text}{self._end}" if text else ""

    def _write(self, text: str) -> None:
        if text:
            self._file.write(text)
            self._file.flush()
