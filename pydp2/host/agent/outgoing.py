"""Queue what the workers of a host send to the service, within a window. Pure.

If all of it were handed to a connection at once, what the service waits for would stand behind megabytes that it does
not need yet. So at most a window of bytes is under way that the service has not taken; what is left waits here, in a
queue for each worker, and a worker that a merge waits for comes first. The messages of one worker keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

MIN_WINDOW = 8 << 20
MAX_WINDOW = 64 << 20
_LEAST_SECONDS = 0.05  # of a round trip: data wait for busy loops at both ends, which a short message does not show


class OutgoingQueue:
    """Queues of messages, and the window of bytes that may be under way: at first ``window``."""

    def __init__(self, window: int = MIN_WINDOW) -> None:
        self.window = window
        self._queues: dict[int, deque[tuple[Sequence[Any], int]]] = {}
        self._wanted: dict[int, None] = {}
        self._turns: deque[int] = deque()  # workers with something to send
        self._sent = self._taken = 0
        self.waiting_bytes = 0
        """Bytes that wait here."""

    @property
    def bytes_under_way(self) -> int:
        """Number of bytes that were sent and that the service has not taken yet."""
        return self._sent - self._taken

    def push(self, worker: int, frames: Sequence[Any]) -> None:
        """Queue a message of ``worker``."""
        size = sum(len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes for frame in frames)
        queue = self._queues.setdefault(worker, deque())
        if not queue:
            self._turns.append(worker)
        queue.append((frames, size))
        self.waiting_bytes += size

    def prefer(self, worker: int) -> None:
        """Send the messages of ``worker`` before those of others, until its queue is empty."""
        if self._queues.get(worker):
            self._wanted[worker] = None

    def has(self, worker: int) -> bool:
        """Return True if messages of ``worker`` wait here."""
        return worker in self._queues

    def pop(self) -> tuple[int, Sequence[Any]] | None:
        """Return the message that is sent next, and the worker that it is of; None: there is none, or the window is
        full."""
        if not self._turns:
            return None
        worker = next(iter(self._wanted), self._turns[0])
        frames, size = self._queues[worker][0]
        if self.bytes_under_way and self.bytes_under_way + size > self.window:
            return None
        self._queues[worker].popleft()
        self._turns.remove(worker)
        if self._queues[worker]:
            self._turns.append(worker)
        else:
            del self._queues[worker]
            self._wanted.pop(worker, None)
        self._sent += size
        self.waiting_bytes -= size
        return worker, frames

    def taken(self, total: int) -> None:
        """Note that the service has taken ``total`` bytes since the beginning."""
        self._taken = max(self._taken, min(total, self._sent))

    def fit_window(self, bytes_per_second: float, round_trip: float) -> None:
        """Set the window to twice what is on the way: a rate times a round trip in seconds."""
        seconds = max(round_trip, _LEAST_SECONDS)
        self.window = int(min(MAX_WINDOW, max(MIN_WINDOW, 2 * bytes_per_second * seconds)))
