"""Access the disk in a thread of its own, step by step, because a disk may be slow."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_STALLED_SECONDS = 10.0  # seconds without progress after which the service does not wait for the disk any more
_CLOSE_SECONDS = 2.0  # seconds for the remaining work when the service ends
DISK_ERRORS = (OSError, MemoryError)
"""Errors of a disk, and of the data that are read from it or written to it."""

_Answer = TypeVar("_Answer")


class DiskThread(Generic[_Answer]):
    """Thread that takes steps in the order in which they were enqueued. :meth:`take_answers` returns answers once
    :attr:`wake_fd` can be read."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._condition = threading.Condition()
        self._steps: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._step_began: float | None = None  # time at which the thread began its present step
        self._stopping = False
        self._answers: deque[_Answer] = deque()
        self.wake_fd, self._wake_writer = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake_writer, False)
        self._thread: threading.Thread | None = None

    @property
    def is_stalled(self) -> bool:
        """True if there was no progress for long: then nothing should wait for the disk."""
        since = self._step_began
        return since is not None and time.monotonic() - since > _STALLED_SECONDS

    def take_answers(self) -> list[_Answer]:
        """Return the results since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)
        out = []
        while self._answers:
            out.append(self._answers.popleft())
        return out

    def stop(self) -> None:
        """Tell the thread to stop; no step may be enqueued afterwards."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def close(self) -> None:
        """Wait a short time for the remaining steps, and release the descriptors."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                return  # the thread ends with the process, and needs the pipe until then
        os.close(self.wake_fd)
        os.close(self._wake_writer)

    def _enqueue(self, step: Callable[..., None], *given: Any) -> None:
        with self._condition:
            self._steps.append((step, given))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_thread, name=self._name, daemon=True)
                self._thread.start()
            if len(self._steps) == 1:  # with more the thread is not waiting
                self._condition.notify_all()

    # -- the thread ------------------------------------------------------------------------------------------------
    def _run_thread(self) -> None:
        ready = False
        while True:
            with self._condition:
                self._step_began = None
                self._condition.wait_for(lambda: self._steps or self._stopping)
                if not self._steps:
                    break
                step, given = self._steps.popleft()
                self._step_began = time.monotonic()
            if not ready:
                self._prepare()
                ready = True
            step(*given)
        self._finish()

    def _prepare(self) -> None:
        """Prepare for the first step."""

    def _finish(self) -> None:
        """Clean up when the thread ends."""

    def _note_progress(self) -> None:
        self._step_began = time.monotonic()

    def _answer(self, answer: _Answer) -> None:
        self._answers.append(answer)
        with contextlib.suppress(BlockingIOError):  # the pipe is full: its reader is woken anyway
            os.write(self._wake_writer, b".")


def failure_text(error: Exception) -> str:
    """Return a short text that says why the disk failed."""
    return getattr(error, "strerror", None) or str(error) or "there is no memory for it"
