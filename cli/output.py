"""Write results to stdout and everything else to stderr, and redirect the output of other code meanwhile."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from pydp2.system.log_writer import LogWriter

_NO_TERMINAL_WIDTH = 200  # columns without a terminal, so that a program can read full lines
_WRITE_TIMEOUT = 1.0  # longest time that a command waits for its terminal, in seconds
_RELAY_END_SECONDS = 2.0
_ESCAPES = "pydp2-escapes"  # name of an error handler for codecs


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """Keep stdin, stdout and stderr open inside the context, let no write to stderr fail, and write characters that the
    encoding of stdout lacks as escapes.

    At the end, discard output that could not be written to stdout, so that it does not change the exit code.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # the parent closed it, and the next file that is opened would get its number
            os.open(os.devnull, os.O_RDWR)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115  # it is the process's stream
            setattr(sys, f"__{name}__", getattr(sys, name))
    with _unfailing_stderr(), _escaping_stdout():
        try:
            yield
        finally:
            try:
                sys.stdout.flush()
            except OSError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.close(nowhere)


def is_json_log() -> bool:
    """Return True if stderr is a log of JSON, where each line is an object."""
    from pydp2.system.log_writer import is_json

    return bool(is_json())


def write_failure(text: str, *, mark: str = "Error: ") -> None:
    """Write the error with which a command ends to stderr, after ``mark`` where stderr is no log of JSON."""
    _write_message(mark, text, "COMMAND_FAILED")


def write_warning(text: str) -> None:
    """Write a warning of a command to stderr."""
    _write_message("Warning: ", text, "COMMAND_WARNING")


def _write_message(mark: str, text: str, event: str) -> None:
    if not is_json_log():
        click.echo(f"{mark}{text}", err=True)
        return
    from pydp2.system.log_events import LogEvent
    from pydp2.system.log_writer import write_event

    write_event(text, LogEvent[event])


def stdout_failure(error: Exception) -> OSError | None:
    """Return the error because of which stdout cannot be written, if ``error`` comes from that, otherwise None."""
    if not isinstance(error, OSError):
        return None
    try:
        sys.stdout.flush()  # raises again, because the data are still in its buffer
    except OSError as again:
        return again
    unbuffered = getattr(sys.stdout, "write_through", False)
    return error if unbuffered and error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC) else None


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """Encode characters that a codec cannot: bytes of a file name as they were, others as escapes."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


@contextlib.contextmanager
def _escaping_stdout() -> Iterator[None]:
    """Write characters that the encoding of stdout lacks as escapes inside the context, unless the user has chosen
    another error handler."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper) or stream.errors not in ("strict", "surrogateescape"):
        yield
        return
    before = stream.errors
    codecs.register_error(_ESCAPES, _escaped)
    stream.reconfigure(errors="backslashreplace" if before == "strict" else _ESCAPES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):  # the stream cannot be written, or was closed
            stream.reconfigure(errors=before)


class _LazyLogWriter(io.RawIOBase):
    """Writer over ``descriptor`` that imports :class:`pydp2.system.log_writer.LogWriter` at the first write, so
    ``--help`` and the completion of a shell are quick."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = self.name = descriptor
        self._importing = False
        self.writer: LogWriter | None = None

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self._importing:  # the import itself writes, for example a warning
            with contextlib.suppress(OSError):
                os.write(self._descriptor, data)
            return len(data)
        if self.writer is None:
            self._importing = True
            from pydp2.system.log_writer import LogWriter

            self.writer, self._importing = LogWriter(self._descriptor, _WRITE_TIMEOUT), False
        return self.writer.write(data)


@contextlib.contextmanager
def _unfailing_stderr() -> Iterator[None]:
    """Make writes to stderr never fail inside the context, unless other code has replaced the stream."""
    before = sys.stderr
    if not isinstance(before, io.TextIOWrapper) or before is not sys.__stderr__:
        yield
        return
    late = _LazyLogWriter(before.fileno())
    sys.stderr = io.TextIOWrapper(late, before.encoding, "backslashreplace", write_through=True)
    try:
        yield
    finally:
        if late.writer is not None:
            late.writer.finish()
        sys.stderr = before


def stdout_console() -> Console:
    """Return a console on stdout, for tables."""
    from rich.console import Console

    class StdoutConsole(Console):
        def on_broken_pipe(self) -> None:
            """Raise again, because the program has an exit code for it; rich would end with 1."""
            raise  # rich calls this while it handles the exception

    return StdoutConsole(file=sys.stdout, width=None if sys.stdout.isatty() else _NO_TERMINAL_WIDTH, highlight=False)


def stderr_console() -> Console:
    """Return a console on stderr, for everything but results."""
    from rich.console import Console

    return Console(file=sys.stderr, width=None if sys.stderr.isatty() else _NO_TERMINAL_WIDTH, highlight=False)


def can_redraw(console: Console) -> bool:
    """Return True if ``console`` is a terminal that can redraw lines."""
    return console.is_terminal and not console.is_dumb_terminal


def count_text(number: int, singular: str, plural: str = "") -> str:
    """Return ``number`` and its noun, "2,000 files". ``plural``: default: ``singular`` and an s."""
    import pydp2

    text: str = pydp2.errors.count_text(number, singular, plural, ",")
    return text


def size_text(count: float) -> str:
    """Return ``count`` bytes as readable text, such as 1.5 GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@contextlib.contextmanager
def user_output_to_stderr(results_only: bool) -> Iterator[None]:
    """Send output of the user's code in this process to stderr inside the context, so that stdout has only results.

    If stdout is a terminal and ``results_only`` is false, the output stays on stdout, for the prompt of a debugger.
    """
    if not results_only and sys.stdout.isatty():
        yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


class StderrRelay:
    """Relay for the output of other processes to this stderr, line by line through ``show``, so that it does not mix
    with a redrawn line. It relays processes started inside :meth:`diverted`; :meth:`close` waits for their end."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="pydp2-relay", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def diverted(self) -> Iterator[None]:
        """Divert descriptor 2 to the relay inside the context, for processes to inherit."""
        sys.stderr.flush()
        from pydp2.system.log_writer import LOG_TIMES

        saved = os.dup(2)
        os.dup2(self._write, 2)
        times = os.environ.get(LOG_TIMES)
        os.environ[LOG_TIMES] = times or "0"  # the other process does not know that its lines go to a terminal
        try:
            yield
        finally:
            if times is None:
                del os.environ[LOG_TIMES]
            os.dup2(saved, 2)
            os.close(saved)
            self._close_write_end()

    def _close_write_end(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def _run(self) -> None:
        with open(self._read, errors="replace", newline="\n") as lines:
            for line in lines:
                self._show(line.rstrip("\r\n"))

    def close(self) -> None:
        """Show the remaining lines, and end the relay."""
        self._close_write_end()
        self._thread.join(_RELAY_END_SECONDS)
