"""Hold the connections of a host to its service: one for what both ends decide, others for what workers send.

The thread of ZeroMQ that encrypts carries less than the rest of a host can send. So there may be several connections
for data, each with a thread of its own. A worker stays on one of them, which keeps the order of its messages.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pydp2.host.agent.outgoing import OutgoingQueue
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import Link, LinkRole, host_link
from pydp2.transport import Line
from pydp2.transport.compression import FrameCompressor
from pydp2.transport.keys import KeyPair
from pydp2.transport.sockets import new_context

_FAREWELL_SECONDS = 1.0
"""A service that ends closes all connections at once. What it says last comes over the one for control, and may come
after the end of the others."""


class ServiceLink:
    """Connections to the service at ``address``, as ``pair``. ``session`` is fresh for each object. ``compresses``:
    frames of workers go compressed, if that makes them smaller. Raises ServiceUnreachable, as :meth:`open_data` does.
    """

    def __init__(self, address: str, pair: KeyPair, *, compresses: bool = False) -> None:
        self.session = os.urandom(16).hex()
        self.queue = OutgoingQueue()
        """Messages of workers that wait for the service, with their bytes as they go over the connection."""
        self._compressor = FrameCompressor() if compresses else None
        self._address, self._pair = address, pair
        self._contexts: list[Any] = []  # each has one such thread
        self._lines: list[Line] = []
        try:
            self._control = self._connect()
        except BaseException:
            self.close()
            raise
        self._data: list[tuple[Line, Link]] = []
        self._data_lost_at: float | None = None
        self._link = host_link(LinkRole.HOST)
        self._number_of: dict[int, int] = {}  # which connection of those for data a worker is on
        self._ended: set[int] = set()  # workers that send nothing more

    def _connect(self) -> Line:
        self._contexts.append(new_context())
        self._lines.append(Line(self._contexts[-1], self._address, watch=True, key_pair=self._pair))
        return self._lines[-1]

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
        if self._data_lost_at is None and any(line.is_lost for line, _ in self._data):
            self._data_lost_at = now
        late = self._data_lost_at is not None and now - self._data_lost_at > _FAREWELL_SECONDS
        return late or self._control.is_lost

    @property
    def was_refused(self) -> bool:
        """True if the service did not admit the key of this host; of a link that is lost."""
        refusals = [line.read_refusal for line in self._lines]  # of all: reading takes what is there
        return any(refusals)

    def send(self, message: m.Message) -> None:
        """Send a message of the host."""
        self._link.check_sending(message)
        self._control.send([m.encode(message)])

    @property
    def data_connections(self) -> int:
        """Number of connections for data."""
        return len(self._data)

    def open_data(self) -> None:
        """Open a connection for data, and say which session it belongs to. The service answers once it has come; one
        more is opened after that, so that the service can see which of its threads has the least to do."""
        line, link = self._connect(), host_link(LinkRole.HOST)
        self._data.append((line, link))
        message = m.OpenData(self.session)
        link.check_sending(message)
        line.send([m.encode(message)])

    def begin_worker(self, worker: int, slot: int) -> None:
        """Note that ``worker`` runs in worker slot ``slot`` of this host: workers in slots that follow each other are
        on connections that do."""
        self._number_of[worker] = slot % len(self._data)

    def queue_event(self, worker: int, message: m.WorkerStarted | m.WorkerExited) -> None:
        """Queue what the service is to learn of ``worker``, behind all that the worker has sent."""
        self._push(worker, message)
        if isinstance(message, m.WorkerExited):
            self._ended.add(worker)

    def queue_message(self, worker: int, frames: Sequence[Any]) -> None:
        """Queue a message of ``worker``, its header first."""
        header, *body = frames
        sizes: list[int] = []
        if self._compressor is not None:
            body, sizes = self._compressor.compress(body)
        self._push(worker, m.FromWorker(worker, sizes), [header, *body])

    def _push(self, worker: int, message: m.Message, frames: Sequence[Any] = ()) -> None:
        self._data[self._number_of[worker]][1].check_sending(message)
        self.queue.push(worker, [m.encode(message), *frames])

    def flush(self) -> None:
        """Send what the window lets through."""
        while (popped := self.queue.pop()) is not None:
            worker, frames = popped
            self._data[self._number_of[worker]][0].send(frames)
            if worker in self._ended and not self.queue.has(worker):
                self._ended.remove(worker)
                del self._number_of[worker]

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
        for context in self._contexts:
            context.term()
