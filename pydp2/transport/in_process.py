"""Connect two ends in one process, for tests: the same as the sockets, without ZeroMQ and without waiting for it.

What is sent is there at once. What a hub (:mod:`.hub`) or a line (:mod:`.line`) refuses, drops or loses, these refuse,
drop or lose too. Ends may be used from different threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

from pydp2.transport.refusals import Refusals
from pydp2.transport.slabs import plain_frames
from pydp2.transport.sockets import Frames, PeerGone


class _Mailbox:
    """Queue of items to be received. ``readable``: a descriptor that can be read while there are any."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._change = threading.Condition()
        self._closed = False
        self.readable, self._wake_descriptor = os.pipe()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> None:
        with self._change:
            if self._closed:
                return
            if not self._items:
                os.write(self._wake_descriptor, b"+")
            self._items.append(item)
            self._change.notify_all()

    def get(self) -> Any:
        with self._change:
            if not self._items:
                return None
            item = self._items.popleft()
            if not self._items:
                os.read(self.readable, 1)
            return item

    def wait(self, seconds: float | None, line: InProcessLine) -> bool:
        """Wait until there is an item, or ``line`` is seen to be lost."""
        with self._change:
            return self._change.wait_for(lambda: bool(self._items) or line.is_lost, seconds)

    def wake(self) -> None:
        with self._change:
            self._change.notify_all()

    def close(self) -> None:
        with self._change:
            if not self._closed:
                self._closed = True
                os.close(self.readable)
                os.close(self._wake_descriptor)


class InProcessHub:
    """Server's end; lines are made with it."""

    def __init__(self, max_frame: int = -1) -> None:
        self.address = f"memory://{id(self)}"
        self.refusals = Refusals()
        self.before_admitting = lambda: None  # nobody asks to be let in
        self._max_frame = max_frame
        self._box = _Mailbox()
        self._lines: dict[bytes, InProcessLine] = {}
        self._count = 0

    @property
    def handle(self) -> int:
        return self._box.readable

    @property
    def listeners(self) -> list[int]:
        """Empty list: lines are connected as soon as they are made."""
        return []

    def accept(self, now: float) -> None:
        """Do nothing: lines are connected as soon as they are made."""

    def note_connected(self, process: int) -> None:
        """Do nothing: lines are connected as soon as they are made."""

    def pause_accepting(self, seconds: float) -> None:
        """Do nothing: lines are connected as soon as they are made."""

    @property
    def pending(self) -> int:
        """Number of messages that wait to be received."""
        return len(self._box)

    def send(self, peer: bytes, frames: Frames) -> None:
        line = self._lines.get(peer)
        if line is None:
            raise PeerGone
        line._box.put(_copied(frames))

    def receive(self) -> tuple[bytes, list[memoryview]] | None:
        received: tuple[bytes, list[memoryview]] | None = self._box.get()
        return received

    def open_message(self, peer: bytes, frames: list[memoryview]) -> list[memoryview]:
        return frames

    def role_of(self, peer: bytes) -> str:
        """Return the role of a peer: there are no keys."""
        return "trainer"

    def take_dropped(self) -> list[bytes]:
        """Return an empty list: there are no keys."""
        return []

    def note_refusal(self, peer: bytes, reason: str, now: float) -> None:
        """Do nothing: everybody is let in."""

    def end_peer(self, peer: bytes) -> None:
        """Do nothing: there are no keys."""

    def progress_of(self, peer: bytes) -> int:
        """Return 0: no memory is shared with a peer."""
        return 0

    def forget_peer(self, peer: bytes) -> None:
        """Do nothing: no memory is shared with a peer."""

    def close(self, linger_ms: int = 0) -> None:
        for line in list(self._lines.values()):
            self._disconnect(line)
        self._box.close()

    def _join(self, line: InProcessLine) -> bytes:
        self._count += 1
        peer = self._count.to_bytes(5, "big")
        self._lines[peer] = line
        return peer

    def _deliver(self, line: InProcessLine, frames: list[memoryview]) -> None:
        if self._lines.get(line._peer) is not line:
            return
        if self._max_frame >= 0 and any(len(frame) > self._max_frame for frame in frames):
            self._disconnect(line)
        elif frames:
            self._box.put((line._peer, frames))

    def _disconnect(self, line: InProcessLine) -> None:
        if self._lines.pop(line._peer, None) is not None:
            line._connected = False
            line._box.wake()


class InProcessLine:
    """Peer's end of a connection to ``hub``."""

    def __init__(self, hub: InProcessHub, watch: bool = False) -> None:
        self._hub = hub
        self._box = _Mailbox()
        self._watch = watch
        self._connected = True
        self._peer = hub._join(self)

    @property
    def handle(self) -> int:
        return self._box.readable

    def send(self, frames: Frames) -> None:
        self._hub._deliver(self, _copied(frames))

    def receive(self, timeout_ms: int = 0) -> list[memoryview] | None:
        if timeout_ms:
            self._box.wait(None if timeout_ms < 0 else timeout_ms / 1000, self)
        received: list[memoryview] | None = self._box.get()
        return received

    @property
    def is_lost(self) -> bool:
        return self._watch and not self._connected

    def wait(self, timeout_ms: int) -> bool:
        return self._box.wait(timeout_ms / 1000, self)

    def close(self, linger_ms: int = 0) -> None:
        self._hub._disconnect(self)
        self._box.close()


def _copied(frames: Frames) -> list[memoryview]:
    return [memoryview(bytearray(memoryview(frame).cast("B"))) for frame in plain_frames(frames)]
