"""Handle Ctrl-C and SIGTERM, which end a command, as exceptions or as events to wait for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REPEAT_SECONDS = 0.1
"""Seconds in which a repeated signal counts only once: `timeout` sends it to its child, and then to the whole group."""
Handler = Callable[[int, FrameType | None], None]


class EndedBySignal(KeyboardInterrupt):
    """Exception for a signal that asks the command to end. It passes through the user's code as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


def signal_number(interrupt: KeyboardInterrupt) -> int:
    """Return the signal that caused ``interrupt``."""
    return interrupt.number if isinstance(interrupt, EndedBySignal) else signal.SIGINT


@contextlib.contextmanager
def _signals_handled_by(handler: Handler) -> Iterator[None]:
    """Let ``handler`` handle both signals, except ignored ones: a shell ignores Ctrl-C for background jobs."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, before[number])


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Let both signals raise :class:`EndedBySignal` inside the context."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise EndedBySignal(number)

    with _signals_handled_by(handler):
        yield


@contextlib.contextmanager
def signals_call(action: Callable[[], None]) -> Iterator[None]:
    """Let both signals call ``action`` inside the context, and nothing else."""
    with _signals_handled_by(lambda number, frame: action()):
        yield


class SignalWaiter:
    """Context that notes the first signal for :meth:`wait`. On a second signal, it calls ``on_second_signal`` and ends
    the process at once."""

    def __init__(self, on_second_signal: Callable[[], None]) -> None:
        self._on_second_signal = on_second_signal
        self._number: int | None = None
        self._noted_at = 0.0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> SignalWaiter:
        self._read, self._write = os.pipe()
        self._stack.enter_context(_signals_handled_by(self._note_signal))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        os.close(self._read)
        os.close(self._write)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            if time.monotonic() - self._noted_at < _REPEAT_SECONDS:
                return
            try:
                self._on_second_signal()
            finally:
                os._exit(128 + number)
        self._number, self._noted_at = number, time.monotonic()
        os.write(self._write, b"!")

    def wait(self, seconds: float) -> int | None:
        """Wait for a signal for at most ``seconds``; return it, or None if none came."""
        select.select([self._read], [], [], seconds)
        return self._number
