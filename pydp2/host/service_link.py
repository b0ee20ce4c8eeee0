"""Hold the two connections of a host to its service: one for what both ends decide, one for what workers send."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pydp2.host.outgoing import OutgoingQueue
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import LinkRole, host_link
from pydp2.transport import Line
from pydp2.transport.compression import FrameCompressor
from pydp2.transport.keys import KeyPair
from pydp2.transport.sockets import new_context

_FAREWELL_SECONDS = 1.0
"""A service that ends closes both connections at once. What it says last comes over the one for control, and may come
after the end of the other one."""


class ServiceLink:
    """Connections to the service at ``address``, as ``pair``. ``session`` is fresh for each of them. ``compresses``:
    frames of workers go compressed, if that makes them smaller."""

    def __init__(self, address: str, pair: KeyPair, *, compresses: bool = False) -> None:
        self.session = os.urandom(16).hex()
        self.queue = OutgoingQueue()
        """Messages of workers that wait for the service, with their bytes as they go over the connection."""
        self._compressor = FrameCompressor() if compresses else None
        self._zmq = new_context()
        self._lines: list[Line] = []
        try:
            for _ in range(2):
                self._lines.append(Line(self._zmq, address, watch=True, key_pair=pair))
        except BaseException:
            self.close()
            raise
        self._control, self._data = self._lines
        self._data_lost_at: float | None = None
        self._link, self._data_link = host_link(LinkRole.HOST), host_link(LinkRole.HOST)

    @property
    def handle(self) -> Any:
        """Handle that is readable when the service has said something."""
        return self._control.handle

    @property
    def is_lost(self) -> bool:
        """True if one of the connections has ended."""
        return any(line.is_lost for line in self._lines)

    def has_ended(self, now: float) -> bool:
        """Return True if no message of the service can be expected any more. What came before it can still be
        received."""
        if self._data_lost_at is None and self._data.is_lost:
            self._data_lost_at = now
        late = self._data_lost_at is not None and now - self._data_lost_at > _FAREWELL_SECONDS
        return late or self._control.is_lost

    @property
    def was_refused(self) -> bool:
        """True if the service did not admit the key of this host; of a link that is lost."""
        refusals = [line.read_refusal for line in self._lines]  # of both: reading takes what is there
        return any(refusals)

    def send(self, message: m.Message) -> None:
        """Send a message of the host."""
        self._link.check_sending(message)
        self._control.send([m.encode(message)])

    def open_data(self) -> None:
        """Say which session the data belongs to."""
        self._put_data(m.OpenData(self.session))

    def queue_event(self, worker: int, message: m.Message) -> None:
        """Queue what the service is to learn of ``worker``, behind all that the worker has sent."""
        self._data_link.check_sending(message)
        self.queue.push(worker, [m.encode(message)])

    def queue_message(self, worker: int, frames: Sequence[Any]) -> None:
        """Queue a message of ``worker``, its header first."""
        header, *body = frames
        sizes: list[int] = []
        if self._compressor is not None:
            body, sizes = self._compressor.compress(body)
        head = m.FromWorker(worker, sizes)
        self._data_link.check_sending(head)
        self.queue.push(worker, [m.encode(head), header, *body])

    def flush(self) -> None:
        """Send what the window lets through."""
        while (frames := self.queue.pop()) is not None:
            self._data.send(frames)

    def _put_data(self, message: m.Message) -> None:
        self._data_link.check_sending(message)
        self._data.send([m.encode(message)])

    def receive(self) -> tuple[m.Message, Sequence[Any]] | None:
        """Return the next message of the service, with its frames; None: there is none. Raises RemoteProtocolError."""
        frames = self._control.receive(0)
        if frames is None:
            return None
        message, body = m.decode(frames)
        self._link.check_received(message)
        return message, body

    def wait(self, timeout_ms: int) -> None:
        """Wait until the service has said something, or the connection for it has ended."""
        self._control.wait(timeout_ms)

    def close(self, linger_ms: int = 0) -> None:
        """Close; what is queued in the connections has ``linger_ms`` to leave."""
        for line in self._lines:
            line.close(linger_ms)
        self._zmq.term()
