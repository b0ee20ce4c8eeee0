"""What workers print: read from their pipes line by line, marked, bounded, written to stderr.

One thread does it, so that neither a flood of output nor a terminal that stands still reaches the server's loop.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

RATE = 1_000_000
"""Bytes per second and worker that are shown; the rest is counted."""
_LINE = 8_192  # a longer line is shown in pieces


@dataclass
class _Pipe:
    mark: Callable[[], str]
    rest: bytes = b""
    allowed: float = RATE
    at: float = field(default_factory=time.monotonic)
    dropped: int = 0


class OutputPump:
    """Reads the pipes that it is given until they end."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or _to_stderr
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._new: list[tuple[int, _Pipe]] = []
        self._lock = threading.Lock()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="pydp2-output", daemon=True)
        self._thread.start()

    def add(self, descriptor: int, mark: Callable[[], str]) -> None:
        """Show what comes through ``descriptor``; ``mark()`` says, when a line comes, what stands before it."""
        os.set_blocking(descriptor, False)
        with self._lock:
            self._new.append((descriptor, _Pipe(mark)))
        os.write(self._wake_write, b"+")

    def close(self, deadline: float = 1.0) -> None:
        """Show what is there and end, within ``deadline`` seconds."""
        self._stop = True
        os.write(self._wake_write, b"-")
        self._thread.join(deadline)

    def _run(self) -> None:
        while True:
            ready = self._selector.select()
            stop = self._stop
            with self._lock:
                for descriptor, pipe in self._new:
                    self._selector.register(descriptor, selectors.EVENT_READ, pipe)
                self._new.clear()
            if stop:
                ready = self._selector.select(0)
            for key, _ in ready:
                if key.data is None:
                    os.read(self._wake_read, 64)
                else:
                    self._read(key.fd, key.data)
            if stop:
                return

    def _read(self, descriptor: int, pipe: _Pipe) -> None:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
            if pipe.rest:
                self._show(pipe, [pipe.rest])
            return
        now = time.monotonic()
        pipe.allowed = min(RATE, pipe.allowed + (now - pipe.at) * RATE)
        pipe.at = now
        if len(data) > pipe.allowed:
            pipe.dropped += len(data)
            return
        pipe.allowed -= len(data)
        *lines, pipe.rest = (pipe.rest + data).split(b"\n")
        if len(pipe.rest) > _LINE:
            lines.append(pipe.rest)
            pipe.rest = b""
        self._show(pipe, lines)

    def _show(self, pipe: _Pipe, lines: list[bytes]) -> None:
        mark = pipe.mark()
        if pipe.dropped:
            lines.insert(0, f"… {pipe.dropped} bytes of output left out (more than {RATE} a second) …".encode())
            pipe.dropped = 0
        text = "".join(f"[{mark}] {line.decode(errors='replace').rstrip()}\n" for line in lines)
        if text:
            self._write(text)


def _to_stderr(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed stderr must not end the service
        sys.stderr.write(text)
        sys.stderr.flush()
