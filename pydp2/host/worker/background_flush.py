"""Send what a worker has built while its main thread is in the user's code, however long that takes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from pydp2.host.worker.loop import FLUSH, WorkerLoop
from pydp2.system.stdlib import _thread, os, signal, time

_STOP_SECONDS = 1.0  # seconds that stopping waits for the thread


class _BackgroundFlusher:
    """Thread that is not one of :mod:`threading`: in the stacks that users see it has no frame but ours, and their
    code does not meet it."""

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self._stopping = False
        self._ended = _thread.allocate_lock()

    def start(self) -> None:
        self._ended.acquire()
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        self._stopping = True
        self._ended.acquire(timeout=_STOP_SECONDS)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the main thread
        try:
            while not self._stopping:
                time.sleep(FLUSH)
                self._loop.flush_overdue()
        except MemoryError as error:
            self._loop.report_no_memory(error)
            os._exit(1)
        except BaseException:
            # the main thread would end with this; but it may be in the user's code for hours
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        finally:
            self._ended.release()


@contextlib.contextmanager
def background_flush(loop: WorkerLoop) -> Iterator[None]:
    """Flush in the background while ``loop`` runs."""
    sender = _BackgroundFlusher(loop)
    sender.start()
    try:
        yield
    finally:
        sender.stop()
