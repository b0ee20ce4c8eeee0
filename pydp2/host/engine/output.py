"""Read the output of workers from their pipes, line by line, label it and limit it.

One thread does this, so that neither a flood of output nor a stopped terminal blocks the server's loop.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

from pydp2.system.log_events import LogFields

MAX_BYTES_PER_SECOND = 1_000_000
"""Number of bytes per second and worker that are shown; the rest is counted."""
_LINE = 8_192  # bytes; a longer line is shown in pieces
_WINDOW_SECONDS = 1.0


class OutputLine(NamedTuple):
    """Line to show. Of all lines with the same ``once`` (if it is not empty), only the first is shown. ``mark`` says
    where it was printed, ``fields`` the same by name."""

    mark: str
    text: bytes
    once: bytes = b""
    fields: LogFields = {}  # noqa: RUF012  # of a tuple: it is not changed


class LabelSource(Protocol):
    """Source of the labels that name the file of each line."""

    def current_file(self) -> int:
        """Return the file that prints now. It is called before new output is read."""
        ...

    def first_lines(self, lines: Sequence[bytes], file: int) -> int:
        """Return the file that printed the first line; ``file``: the result of :meth:`current_file` before."""
        ...

    def lines(self, lines: Sequence[bytes], file: int) -> tuple[list[OutputLine], int]:
        """Return the lines to show of ``lines``, and the file that prints after them; ``file``: the result of
        :meth:`current_file` before."""
        ...


@dataclass
class _Pipe:
    marks: LabelSource
    rest: bytes = b""  # the beginning of a line that is not complete
    current: int = 0  # the file that printed it
    shown: int = 0  # number of bytes that were shown in this second
    since: float = 0.0
    dropped: int = 0


class WriteOutput(Protocol):
    """Function that shows lines, printed where ``mark`` and ``fields`` say."""

    def __call__(self, mark: str, lines: Sequence[str], /, **fields: str | int) -> None: ...


class OutputPump:
    """Thread that reads pipes until they end. It calls ``write`` with whole lines; ``write`` may not raise."""

    def __init__(self, write: WriteOutput) -> None:
        self._write = write
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._new: list[tuple[int, _Pipe]] = []
        self._shown_once: set[bytes] = set()
        self._lock = threading.Lock()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="pydp2-output", daemon=True)
        self._thread.start()

    def add(self, descriptor: int, marks: LabelSource) -> None:
        """Show the output that comes through ``descriptor``, each line with its label."""
        os.set_blocking(descriptor, False)
        with self._lock:
            self._new.append((descriptor, _Pipe(marks)))
        os.write(self._wake_write, b"+")

    def close(self, deadline: float = 1.0) -> None:
        """Show the remaining output and end, within ``deadline`` seconds."""
        if self._stop:
            return
        self._stop = True
        os.write(self._wake_write, b"-")
        self._thread.join(deadline)
        if self._thread.is_alive():
            return  # the thread waits for a stopped terminal; the process ends without it
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        os.close(self._wake_write)

    def _run(self) -> None:
        while True:
            ready = self._selector.select(self._select_timeout())
            stop = self._stop
            if any(key.data is None for key, _ in ready):
                os.read(self._wake_read, 64)  # before the new pipes are taken: what wakes for a later one stays there
            with self._lock:
                for descriptor, pipe in self._new:
                    self._selector.register(descriptor, selectors.EVENT_READ, pipe)
                self._new.clear()
            if stop:
                ready = self._selector.select(0)
            for key, _ in ready:
                if key.data is not None:
                    self._read(key.fd, key.data)
            self._tell_dropped(at_once=stop)
            if stop:
                for pipe in self._pipes():
                    self._show_rest(pipe)
                return

    def _pipes(self) -> list[_Pipe]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _select_timeout(self) -> float | None:
        """Return the seconds to wait at most before a count of dropped bytes must be shown; None for no limit."""
        return _WINDOW_SECONDS if any(pipe.dropped for pipe in self._pipes()) else None

    def _tell_dropped(self, *, at_once: bool) -> None:
        now = time.monotonic()
        for pipe in self._pipes():
            if pipe.dropped and (at_once or now - pipe.since >= _WINDOW_SECONDS):
                self._show(pipe, [], pipe.marks.current_file())

    def _read(self, descriptor: int, pipe: _Pipe) -> None:
        file = pipe.marks.current_file()
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
            self._show_rest(pipe)
            return
        now = time.monotonic()
        if now - pipe.since >= _WINDOW_SECONDS:
            if pipe.dropped:
                self._show(pipe, [], file)
            pipe.since, pipe.shown = now, 0
        if pipe.dropped or pipe.shown + len(data) > MAX_BYTES_PER_SECOND:  # show nothing more in this second
            if pipe.rest:  # the end of this line is left out
                self._show(pipe, [pipe.rest], pipe.current)
                pipe.rest = b""
            pipe.dropped += len(data)
            return
        pipe.shown += len(data)
        if pipe.rest and pipe.marks.first_lines(data.split(b"\n")[:-1], file) != pipe.current:
            self._show(pipe, [pipe.rest], pipe.current)  # do not join it with a line of another file
            pipe.rest = b""
        *complete, pipe.rest = (pipe.rest + data).split(b"\n")
        lines, pipe.current = pipe.marks.lines(complete, file)
        if len(pipe.rest) > _LINE:
            *pieces, pipe.rest = _split_line(pipe.rest)
            lines += pipe.marks.lines(pieces, pipe.current)[0]
        self._print(lines)

    def _show_rest(self, pipe: _Pipe) -> None:
        """Show the last line of a pipe that has ended."""
        rest, pipe.rest = [pipe.rest] if pipe.rest else [], b""
        self._show(pipe, rest, pipe.current)

    def _show(self, pipe: _Pipe, lines: list[bytes], file: int) -> None:
        """Show ``lines``, and after them the number of bytes that were left out."""
        if pipe.dropped:
            lines = [
                *lines,
                f"… {pipe.dropped} bytes of output left out (more than {MAX_BYTES_PER_SECOND} a second) …".encode(),
            ]
            pipe.dropped = 0
        self._print(pipe.marks.lines(lines, file)[0])

    def _print(self, lines: list[OutputLine]) -> None:
        for mark, group in groupby(lines, key=lambda line: line.mark):
            same = [*group]
            texts = list[str]()
            for line in same:
                if line.once in self._shown_once:
                    continue
                if line.once:
                    self._shown_once.add(line.once)
                texts += [piece.decode(errors="replace").rstrip() for piece in _split_line(line.text)]
            if texts:
                self._write(mark, texts, **same[0].fields)


def _split_line(line: bytes) -> list[bytes]:
    pieces = []
    while len(line) > _LINE:
        cut = _cut_position(line)
        pieces.append(line[:cut])
        line = line[cut:]
    return [*pieces, line]


def _cut_position(line: bytes) -> int:
    """Return the index at which to cut ``line``: at most ``_LINE``, and not inside a character."""
    for cut in range(_LINE, _LINE - 4, -1):
        if line[cut] & 0xC0 != 0x80:
            return cut
    return _LINE
