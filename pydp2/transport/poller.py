"""Wait for sockets of ZeroMQ and file descriptors together."""

from __future__ import annotations

from typing import Any

import zmq


class Poller:
    """Set of sockets and file descriptors to wait for together."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()

    def add(self, handle: Any) -> None:
        """Watch a hub's or line's handle, or a file descriptor, for input."""
        self._poller.register(handle, zmq.POLLIN)

    def remove(self, handle: Any) -> None:
        """Stop watching ``handle``."""
        self._poller.unregister(handle)

    def wait(self, timeout_ms: int) -> set[Any]:
        """Return the handles that are readable, after at most ``timeout_ms``."""
        return {handle for handle, _ in self._poller.poll(timeout_ms)}
