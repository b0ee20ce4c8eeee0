"""Write text to a terminal, a pipe or a file that may fail or block, without raising or waiting for long.

A log is worth less than the program that writes it: a reader that has ended, a full disk or a stopped terminal must not
end or block a service.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import IO, Any

from pydp2.errors import without_secrets
from pydp2.system.log_events import ERROR, INFO, LogEvent, LogFields

LOG_TIMES = "PYDP2_LOG_TIMES"
"""Variable that decides whether lines of the log begin with the time."""
LOG_FORMAT = "PYDP2_LOG_FORMAT"
"""Variable with the form of the lines of the log: one of :data:`LOG_FORMATS`; without it, the first."""
LOG_FORMATS = ("text", "json")
MAX_WAITING_BYTES = 1 << 20
"""Largest number of bytes that wait to be written. The rest is left out, and a line says so once half of them are
written."""
_WRITE_SIZE = 4096  # bytes that a pipe with room always accepts
_CLOSED_ERRORS = (errno.EPIPE, errno.EBADF)
_FINISH_SECONDS = 1.0  # seconds to write the waiting text at the end


class LogWriter(io.RawIOBase):
    """Raw part of a stream to ``descriptor``, written by a thread that is started when it is first needed.

    ``write_timeout``: seconds that a write may wait for its end, so that stdout and stderr keep their order if both are
    read; 0: a write does not wait. After a write that took longer, writes do not wait until the reader has caught up.
    """

    def __init__(self, descriptor: int, write_timeout: float = 0.0) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._write_timeout = write_timeout
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._queue: deque[tuple[bytes, int]] = deque()  # pairs of a text, and its count if it is left out
        self._waiting_bytes = 0  # bytes that wait or are being written
        self._dropped_bytes = 0
        self._last_write_failed = self._is_stuck = self._reader_closed = self._is_finished = False
        self._thread: threading.Thread | None = None

    # -- as a raw stream -------------------------------------------------------------------------------------------
    @property
    def name(self) -> int:
        """The descriptor, as in other streams over descriptors."""
        return self._descriptor

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return True if the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Write ``data``, or leave it out. Never raises OSError."""
        data = bytes(data)
        if self._is_finished or os.getpid() != self._pid:  # the thread has ended, or does not exist in this fork
            self._write_nowait(data)
            return len(data)
        with self._changed:
            if self._waiting_bytes + len(data) > (MAX_WAITING_BYTES // 2 if self._dropped_bytes else MAX_WAITING_BYTES):
                self._dropped_bytes += len(data)
            elif not self._reader_closed:
                self._report_dropped()
                self._enqueue(data, len(data))
            if self._thread is None and not self._start_thread():
                self._write_waiting()
            self._changed.notify_all()
            if self._write_timeout and not self._is_stuck:
                self._is_stuck = not self._changed.wait_for(lambda: not self._waiting_bytes, self._write_timeout)
        return len(data)

    def _start_thread(self) -> bool:
        """Start the thread. Return False if there is no memory for one now."""
        thread = threading.Thread(target=self._run, name="pydp2-log", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _write_waiting(self) -> None:
        """Write waiting text without the thread, as far as there is room."""
        for data, _ in self._queue:
            self._write_nowait(data)
        self._queue.clear()
        self._waiting_bytes = 0

    # -- the end ---------------------------------------------------------------------------------------------------
    def finish(self, deadline: float = _FINISH_SECONDS) -> bool:
        """Write the waiting text, within ``deadline`` seconds. Return False if the thread is still writing after them.

        A later write is done at once, if there is room.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes, deadline)
            self._is_finished = True
            self._changed.notify_all()
            done = not self._waiting_bytes  # if not, the thread hangs in a write, and the process ends without it
        if done and self._thread is not None:
            self._thread.join(deadline)
        return done

    def _write_nowait(self, data: bytes) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        with contextlib.suppress(OSError):
            while data and (os.getpid() != self._pid or poll.poll(0)):
                data = data[os.write(self._descriptor, data[:_WRITE_SIZE]) :]

    # -- the thread ------------------------------------------------------------------------------------------------
    def _enqueue(self, data: bytes, counts: int) -> None:
        self._queue.append((data, counts))
        self._waiting_bytes += len(data)

    def _report_dropped(self) -> None:
        if self._dropped_bytes:
            count = self._dropped_bytes
            text = f"{count} bytes that could not be written are left out here"
            line = _json_line(text, LogEvent.OUTPUT_DROPPED, {"bytes": count}) if is_json() else f"… {text} …\n"
            self._enqueue(line.encode(), count)
            self._dropped_bytes = 0

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._dropped_bytes and not self._queue and not self._last_write_failed and not self._is_finished:
                    self._report_dropped()
                self._changed.wait_for(lambda: self._queue or self._is_finished)
                if not self._queue:
                    return
                data, counts = self._queue.popleft()
            number = self._write_all(data)
            with self._changed:
                self._waiting_bytes -= len(data)
                self._is_stuck = False
                self._last_write_failed = number != 0
                if self._last_write_failed:
                    self._dropped_bytes += counts
                if number in _CLOSED_ERRORS:
                    self._reader_closed = True
                    self._waiting_bytes = 0
                    self._queue.clear()
                self._changed.notify_all()

    def _write_all(self, data: bytes) -> int:
        """Write ``data``; return 0, or the errno if not all of it could be written."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # another process that shares the descriptor may have made it non-blocking
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            except OSError as error:
                return error.errno or errno.EIO
        return 0


def log_stream(
    descriptor: int, write_timeout: float = 0.0, encoding: str | None = None
) -> tuple[io.TextIOWrapper, LogWriter]:
    """Return a text stream to ``descriptor`` that never raises OSError, and its writer; see :class:`LogWriter`."""
    writer = LogWriter(descriptor, write_timeout)
    return io.TextIOWrapper(writer, encoding, "backslashreplace", write_through=True), writer


@contextlib.contextmanager
def unfailing_stderr() -> Iterator[None]:
    """Send the output of this process to ``sys.stderr`` through a :class:`LogWriter` while the context is active.

    If ``sys.stderr`` is not the interpreter's own stream, do nothing.
    """
    before = sys.stderr
    if not isinstance(before, io.TextIOWrapper) or before is not sys.__stderr__:
        yield
        return
    before.flush()
    sys.stderr, writer = log_stream(before.fileno(), encoding=before.encoding)
    try:
        yield
    finally:
        writer.finish()
        sys.stderr = before


def is_json() -> bool:
    """Return True if lines of the log are JSON."""
    return os.environ.get(LOG_FORMAT) == "json"


def write_event(text: str, event: LogEvent, /, **fields: str | int) -> None:
    """Write a line of the log to ``sys.stderr``, if possible, and without secrets. ``fields``: what it is about. It
    never raises, although a program may have replaced the stream by any object.

    In text, the time is before the line if that is not a terminal. In JSON, a line is an object with "time", "level",
    "event", "message" and the fields (docs/logs.md).
    """
    about = {name: without_secrets(value) if isinstance(value, str) else value for name, value in fields.items()}
    _write_line(without_secrets(text), event, about)


def write_secret(text: str, event: LogEvent) -> None:
    """Write a line as :func:`write_event` does, with a token in it that the user needs."""
    _write_line(text, event, {})


def _write_line(text: str, event: LogEvent, fields: LogFields) -> None:
    if is_json():
        _write(_json_line(text, event, fields))
    else:
        _write(with_times(f"pydp2: {f'{event.label}: ' if event.label else ''}{text}\n", sys.stderr))


def _json_line(text: str, event: LogEvent, fields: LogFields) -> str:
    """Return a line of the log as JSON. It is ASCII where stderr has another encoding than UTF-8, the only one of JSON:
    the stream would put escapes of Python into it."""
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    line = {"time": now, "level": event.level, "event": event.event_name, "message": text, **fields}
    is_utf8 = str(getattr(sys.stderr, "encoding", None)).lower() in ("utf-8", "utf8")
    return json.dumps(line, ensure_ascii=not is_utf8) + "\n"


def write_output(mark: str, lines: Sequence[str], /, **fields: str | int) -> None:
    """Write lines that the user's code printed, as :func:`write_event` does; in text after ``mark``, which says where
    they were printed."""
    if is_json():
        for line in lines:
            write_event(line, LogEvent.WORKER_OUTPUT, **fields)
    else:
        _write(with_times(without_secrets("".join(f"[{mark}] {line}\n" for line in lines)), sys.stderr))


def log_event(logger: str, text: str, event: LogEvent, /, **fields: str | int) -> None:
    """Write a line of the log in the user's process: to the logger ``logger`` of :mod:`logging`, with the name of the
    event and the fields as ``extra``, if the program has set up handlers for it; otherwise as :func:`write_event`
    does."""
    logging = sys.modules.get("logging")  # a program that has not imported it has no handlers
    if logging is None or not (found := logging.getLogger(logger)).hasHandlers():
        write_event(text, event, **fields)
        return
    level = {INFO: logging.INFO, ERROR: logging.ERROR}.get(event.level, logging.WARNING)
    about = {name: without_secrets(str(value)) for name, value in fields.items()}
    found.log(level, "%s", without_secrets(text), extra={"event": event.event_name, "about": about})


def _write(text: str) -> None:
    if sys.stderr is not None and text:
        with contextlib.suppress(Exception):
            sys.stderr.write(text)
            sys.stderr.flush()


def with_times(text: str, stream: IO[str] | None) -> str:
    """Return ``text`` in the form for ``stream``. If it is not a terminal, each line begins with the local time, as in
    ``2026-03-01T12:00:00+01:00``, except in the journal of systemd, which has its own times. The variable
    :data:`LOG_TIMES` overrides that: "0", without times; "1", with times."""
    if (os.environ.get(LOG_TIMES) or str(int(not _shows_times(stream)))) == "0":
        return text
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return "".join(f"{now} {line}" if line.strip() else line for line in text.splitlines(keepends=True))


def _shows_times(stream: Any) -> bool:
    """Return True if ``stream`` is a terminal, where the user sees when a line comes, or the journal of systemd."""
    try:
        known = os.fstat(stream.fileno())
        is_terminal = stream.isatty()
    except Exception:  # it has no descriptor, as in a notebook, or has only write()
        return False
    return is_terminal or os.environ.get("JOURNAL_STREAM") == f"{known.st_dev}:{known.st_ino}"
