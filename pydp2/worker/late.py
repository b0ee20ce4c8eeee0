"""Sends what a worker has built while its main thread is in the user's code, however long that takes."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

from pydp2.worker.runner import FLUSH, Runner

_END = 1.0  # seconds


class _Sender:
    """A plain thread, not one of :mod:`threading`: in the stacks that users see it has no frame but ours, and their
    code does not meet it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._over = False
        self._ended = _thread.allocate_lock()

    def start(self) -> None:
        self._ended.acquire()
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        self._over = True
        self._ended.acquire(timeout=_END)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
        try:
            while not self._over:
                time.sleep(FLUSH)
                self._runner.send_late()
        except MemoryError as error:
            self._runner.starve(error)
            os._exit(1)
        except BaseException:
            # the main thread would end with this; but it may be in the user's code for hours
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        finally:
            self._ended.release()


@contextlib.contextmanager
def sending_late(runner: Runner) -> Iterator[None]:
    """While ``runner`` runs."""
    sender = _Sender(runner)
    sender.start()
    try:
        yield
    finally:
        sender.stop()
