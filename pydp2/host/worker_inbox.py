"""Take in what the workers of one machine say, for the server of a service or for the agent of a host.

A peer of the hub is a worker once it has said so, in the process that the engine started. What it says goes to a
function, in the order in which it came; one that breaks the protocol is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydp2.errors import ProtocolError, RemoteProtocolError, shorten
from pydp2.host.early_hellos import EarlyHellos
from pydp2.host.engine import Engine
from pydp2.host.watch_state import WatchEvent
from pydp2.host.watchdog import WorkerConnection
from pydp2.protocol import messages as m
from pydp2.transport import Hub

_SHOWN = 200  # characters of what was wrong with a message

Handle = Callable[[int, WorkerConnection, list[memoryview], float], None]
"""Take a message, its header first, of a worker that was started; the last argument is the time. Its link has not been
asked yet whether the message may come. Raises RemoteProtocolError."""


class WorkerInbox:
    """Messages of the workers on ``connections``, which come by ``hub``.

    ``may_begin``: False of a worker that has ended already, so that its first message is too late; raises
    RemoteProtocolError of one that was not started.
    """

    def __init__(
        self,
        hub: Hub,
        engine: Engine,
        connections: Mapping[int, WorkerConnection],
        handle: Handle,
        may_begin: Callable[[int], bool],
        log: Callable[[str, str], None],
    ) -> None:
        self._hub, self._engine, self._connections = hub, engine, connections
        self._handle, self._may_begin, self._log = handle, may_begin, log
        self._number: dict[bytes, int] = {}
        self._early = EarlyHellos()

    def receive(self, now: float, most: int | None = None) -> bool:
        """Take what came, ``most`` messages of it (None: all). Return True if there may be more."""
        taken = 0
        while most is None or taken < most:
            received = self._hub.receive()
            if received is None:
                return False
            taken += 1
            peer, frames = received
            worker = self._number.get(peer)
            try:
                if worker is None:
                    self._first_message(peer, frames, now)
                else:
                    self._handle(worker, self._connections[worker], self._hub.open_message(peer, frames), now)
            except ProtocolError as error:
                self._broke_protocol(worker, error)
        return True

    def _first_message(self, peer: bytes, frames: list[memoryview], now: float) -> None:
        """Take a message of a peer that is no worker yet."""
        if len(frames) > 1:
            return  # a worker that is gone, and its memory is let go of; its files are with others
        message, _ = m.decode(frames)
        if isinstance(message, m.Hello):
            self._hub.note_connected(message.pid)
            self._hello(peer, message, now)
        else:
            self._early.add(peer, message)

    def _hello(self, peer: bytes, hello: m.Hello, now: float) -> None:
        if not self._may_begin(hello.worker):
            return
        connection = self._connections.get(hello.worker)
        if connection is None or not connection.pid:  # the engine has not told yet that it started
            self._early.hold(peer, hello)
            return
        if connection.pid != hello.pid:
            raise RemoteProtocolError(
                f"Hello from worker {hello.worker} in process {hello.pid}, it is in {connection.pid}"
            )
        self._handle(hello.worker, connection, [memoryview(m.encode(hello))], now)
        connection.peer = peer
        self._number[peer] = hello.worker

    def started(self, worker: int, pid: int, now: float) -> None:
        """Take what ``worker`` said before the engine told that it is process ``pid``."""
        peer, messages = self._early.take(worker, pid)
        try:
            for message in messages:
                if isinstance(message, m.Hello):
                    self._hello(peer, message, now)
                else:
                    self._handle(worker, self._connections[worker], [memoryview(m.encode(message))], now)
        except ProtocolError as error:
            self._broke_protocol(worker, error)

    def _broke_protocol(self, worker: int | None, error: ProtocolError) -> None:
        self._log(f"worker {worker} broke the protocol: {error}", "protocol")
        if worker is not None:
            self._connections[worker].begin_end(WatchEvent.BREAK_PROTOCOL, break_text(error))
            self._engine.kill(worker)

    def forget(self, connection: WorkerConnection) -> None:
        """Forget the peer of a worker that is gone."""
        self._number.pop(connection.peer, None)
        self._hub.forget_peer(connection.peer)


def break_text(error: ProtocolError) -> str:
    """Return in words how a worker ended whose message raised ``error``."""
    return f"broke the protocol: {shorten(str(error), _SHOWN)}"
