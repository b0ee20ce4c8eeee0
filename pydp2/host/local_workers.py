"""Run the workers of one machine: start and watch their processes, receive their messages, and report their ends.

The server of a service does this for its own machine, the agent of a host for another one. They decide which files a
worker reads, and handle its messages; this module has only processes and connections.

Theory of operation
-------------------
There are two sources of events about a worker, without a common order: the *engine* reports starts and ends of
processes, and the *hub* has their messages. Both sources are local sockets, and either may be ahead.

* The hub may be first: a process sends Hello before the engine has reported its start. Any process of this user can
  send one. If it were believed, a stranger could take a worker's files; if it were refused, the real worker could be
  lost. So the first few messages wait (:class:`EarlyHellos`), and are handled once the engine names the same process.
* The engine may be first: a process has ended, and its last messages are still in the hub's queue. The simple way, to
  report the exit at once, fails twice. Files of the worker would be read again elsewhere although their samples are
  here, which is only slow. But a worker that cannot start the provider sends the error in its last message
  (``Broken``) and ends with status 0, and the user would read "ended with exit code 0" in place of the error. So all
  messages in the hub are read before an exit counts.
* For a worker that ended in order before it was ready, that is not enough: its message may still be in the hub's own
  threads, where the loop cannot see it. Its exit is reported ``worker_last_words`` seconds later, and a message that
  comes before is handled as if the worker were alive. There is a deadline because such a process need not have sent
  anything: user code may call ``os._exit(0)`` during its import, and a service must report that.
* A worker that was killed has not sent an explanation, and may have been in the middle of a message. Its exit counts at
  once.

What stays true: messages of one worker are passed on in the order in which it sent them, all of them before its exit,
and none after it, not even a late Hello. An exit is reported once, with all that is known about the cause: the status
row, which survives the process, and the reason if the watchdog ended it.

A worker that breaks the protocol is killed and gets no answer, because it runs code of the user, which may have
overwritten anything. Its connection stays until the exit, because its earlier messages are valid.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Sequence
from typing import Any, Protocol

from pydp2.errors import ProtocolError, RemoteProtocolError, ServiceLost
from pydp2.host.engine import Engine, EngineLost, EngineNote, Exited, Started
from pydp2.host.watchdog import Watchdog, WorkerConnection
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import WorkerTerms
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import LinkState
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.system.log_events import LogEvent, WriteLog
from pydp2.transport import Hub, PeerGone, Poller

_NOT_READY = (LinkState.NEW, LinkState.STARTING)
_MAX_EARLY_PEERS = 64  # few real workers start at the same time
_MAX_EARLY_MESSAGES = 4  # a worker sends no more before it gets an answer


class WorkerOwner(Protocol):
    """Receiver of the events of the workers of this machine: the server of a service, or the agent of a host."""

    def worker_started(self, worker: int, pid: int) -> None:
        """Note that ``worker`` is process ``pid``. This call comes before those for its messages."""
        ...

    def worker_sent(self, worker: int, connection: WorkerConnection, frames: list[memoryview], now: float) -> None:
        """Handle a message of a worker; ``frames`` begin with its header. The link has not checked it yet. Raises
        ProtocolError, which ends the worker."""
        ...

    def worker_exited(self, exited: m.WorkerExited, connection: WorkerConnection) -> None:
        """Note that a worker has ended. This call comes after those for its messages."""
        ...


class EarlyHellos:
    """Peers that sent Hello before the engine reported their process, and their first messages. Pure."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[m.Hello, list[m.Message]]] = {}

    def hold(self, peer: bytes, hello: m.Hello) -> None:
        """Keep ``hello`` of ``peer`` until the engine reports the process of its worker."""
        if len(self._waiting) < _MAX_EARLY_PEERS:
            self._waiting[peer] = hello, []

    def add(self, peer: bytes, message: m.Message) -> None:
        """Keep ``message`` too, if ``peer`` is waiting."""
        if peer in self._waiting and len(self._waiting[peer][1]) < _MAX_EARLY_MESSAGES:
            self._waiting[peer][1].append(message)

    def take(self, worker: int, pid: int) -> tuple[bytes, list[m.Message]]:
        """Return the peer of ``worker``, which is process ``pid`` according to the engine, and its messages; b"" and
        an empty list if it has sent none. Forget other peers that claimed to be this worker."""
        named = {peer: self._waiting.pop(peer) for peer in [*self._waiting] if self._waiting[peer][0].worker == worker}
        return next(((peer, [hello, *rest]) for peer, (hello, rest) in named.items() if hello.pid == pid), (b"", []))


class LocalWorkers:
    """Workers that ``engine`` runs on this machine under ``terms``, and that connect to ``hub``.

    ``poll``: wakes the loop of the owner when :meth:`receive` has something to do. The owner itself polls the
    descriptors for new peers (``hub.listeners``).
    """

    def __init__(
        self,
        terms: WorkerTerms,
        files: FileList,
        engine: Engine,
        hub: Hub,
        poll: Poller,
        log: WriteLog,
    ) -> None:
        self.hub, self._files = hub, files
        self.connections: dict[int, WorkerConnection] = {}
        """Workers that were started and have not ended, by number."""
        self.watchdog = Watchdog(terms, files, engine, self.connections, log)
        self.patience = self.watchdog.interval
        """Seconds between two calls of :meth:`watch`, and so the longest time that a loop may wait for events."""
        self._last_words = terms.timing.worker_last_words
        self._engine, self._poll, self._log = engine, poll, log
        self._engine_descriptor = engine.fileno()
        self._lacks_descriptor = False  # True if the engine waits for a free descriptor, which no event announces
        self._number_of: dict[bytes, int] = {}  # worker number by peer
        self._early = EarlyHellos()
        self._started = -1  # largest number of a started worker: lower ones without a connection have ended
        self._ended: dict[int, float] = {}  # ended workers whose last message may still come, with the deadline
        for handle in (hub.handle, self._engine_descriptor):
            poll.add(handle)

    # -- requests of the owner -------------------------------------------------------------------------------------
    def start(self, worker: int, status_row: int) -> None:
        """Start a worker on a free status row. Its number must be larger than those before."""
        self._started = max(self._started, worker)
        self.connections[worker] = WorkerConnection(status_row=status_row)
        self._engine.start(worker, status_row)

    def kill(self, worker: int) -> None:
        """End a worker at once."""
        self._engine.kill(worker)

    def send(self, connection: WorkerConnection, message: m.Message, frames: Sequence[Any]) -> None:
        """Send ``frames``, the encoded ``message`` and its raw frames, to a worker. Raises LocalProtocolError."""
        connection.link.check_sending(message)
        with contextlib.suppress(PeerGone):  # its exit will be reported
            self.hub.send(connection.peer, frames)

    def running_sample(self, connection: WorkerConnection) -> tuple[int, int, int] | None:
        """Return file, attempt and sample index of the sample that a worker is asking for; None between samples."""
        return WorkerStatus(self._engine.row(connection.status_row)).running_sample

    def seconds(self, connection: WorkerConnection, now: float) -> float:
        """Return :meth:`WorkerStatus.seconds` of a worker."""
        return WorkerStatus(self._engine.row(connection.status_row)).seconds(now)

    def look(self, now: float) -> None:
        """Look at what each worker is doing; see :mod:`.worker_activity`."""
        for connection in self.connections.values():
            connection.activity.look(WorkerStatus(self._engine.row(connection.status_row)), now)

    def activity(self, connection: WorkerConnection, now: float) -> dict[str, Any]:
        """Return what a worker is doing as plain data; see :data:`.worker_activity.NO_ACTIVITY`."""
        status = WorkerStatus(self._engine.row(connection.status_row))
        return connection.activity.stats(
            status.running_sample, self._files, status.seconds(now), waits_for_store=status.waits_for_store
        )

    # -- events ----------------------------------------------------------------------------------------------------
    def receive(self, owner: WorkerOwner, ready: Container[Any], now: float, most: int) -> bool:
        """Pass events on to ``owner``: at most ``most`` messages, but more if a worker has ended. ``ready``: handles
        that can be read. Return True if there may be more."""
        if self._engine_descriptor in ready or self._lacks_descriptor:
            self._take_engine_events(owner, now)
        return self._take_messages(owner, now, most)

    def watch(self, owner: WorkerOwner, now: float) -> None:
        """Do the checks that no message triggers: end workers that break a limit, and report ended workers whose last
        message did not come. Call it every :attr:`patience` seconds."""
        self.watchdog.check(now)
        for worker in [worker for worker, until in self._ended.items() if now > until]:
            del self._ended[worker]
            self._exited(owner, worker, 0)

    def _take_engine_events(self, owner: WorkerOwner, now: float) -> None:
        try:
            events = self._engine.events()
        except EngineLost as lost:
            raise ServiceLost(str(lost)) from None
        for event in events:
            match event:
                case Started(worker, pid):
                    self._process_known(owner, worker, pid, now)
                case Exited(worker, _, status):
                    self._take_messages(owner, now, None)
                    connection = self.connections.get(worker)
                    if status == 0 and connection is not None and connection.link.state in _NOT_READY:
                        self._ended[worker] = now + self._last_words
                    else:
                        self._exited(owner, worker, status)
                case EngineNote(text, log_event):
                    self._log(text, log_event)
        if self._engine.out_of_descriptors != self._lacks_descriptor:
            # An event that has to wait for a descriptor must not wake the loop until there is one.
            self._lacks_descriptor = self._engine.out_of_descriptors
            (self._poll.remove if self._lacks_descriptor else self._poll.add)(self._engine_descriptor)

    def _process_known(self, owner: WorkerOwner, worker: int, pid: int, now: float) -> None:
        """Note that ``worker`` is process ``pid``, and handle the messages that it sent before the engine's report."""
        connection = self.connections.get(worker)
        if connection is None:
            return
        connection.pid = pid
        owner.worker_started(worker, pid)
        peer, messages = self._early.take(worker, pid)
        try:
            for message in messages:
                if isinstance(message, m.Hello):
                    self._hello(owner, peer, message, now)
                else:
                    owner.worker_sent(worker, connection, [memoryview(m.encode(message))], now)
        except ProtocolError as error:
            self._broke_protocol(worker, error)

    def _take_messages(self, owner: WorkerOwner, now: float, most: int | None) -> bool:
        """Pass ``most`` messages (None: all) on to ``owner``. Return True if there may be more."""
        taken = 0
        while most is None or taken < most:
            received = self.hub.receive()
            if received is None:
                return False
            taken += 1
            peer, frames = received
            worker = self._number_of.get(peer)
            try:
                if worker is None:
                    self._first_message(owner, peer, frames, now)
                else:
                    owner.worker_sent(worker, self.connections[worker], self.hub.open_message(peer, frames), now)
            except ProtocolError as error:
                self._broke_protocol(worker, error)
        return True

    def _first_message(self, owner: WorkerOwner, peer: bytes, frames: list[memoryview], now: float) -> None:
        """Handle a message of a peer that is not a worker yet, or no longer one."""
        if len(frames) > 1:
            return  # rows of a worker that has ended: its memory was released, and others have its files
        message, _ = m.decode(frames)
        if isinstance(message, m.Hello):
            self.hub.note_connected(message.pid)
            self._hello(owner, peer, message, now)
        else:
            self._early.add(peer, message)

    def _hello(self, owner: WorkerOwner, peer: bytes, hello: m.Hello, now: float) -> None:
        connection = self.connections.get(hello.worker)
        if connection is None and hello.worker <= self._started:
            return  # the worker was killed while it started, and its exit came before its first message
        if connection is None:
            raise RemoteProtocolError(f"Hello from worker {hello.worker}, which was not started")
        if not connection.pid:
            self._early.hold(peer, hello)
            return
        if connection.pid != hello.pid:
            raise RemoteProtocolError(
                f"Hello from worker {hello.worker} in process {hello.pid}, it is in {connection.pid}"
            )
        owner.worker_sent(hello.worker, connection, [memoryview(m.encode(hello))], now)
        connection.peer = peer
        self._number_of[peer] = hello.worker

    def _broke_protocol(self, worker: int | None, error: ProtocolError) -> None:
        about = {} if worker is None else {"worker": worker}
        self._log(f"worker {worker} broke the protocol: {error}", LogEvent.PROTOCOL_BROKEN, **about)
        if worker is not None:
            self.connections[worker].break_protocol(error)
            self._engine.kill(worker)

    def _exited(self, owner: WorkerOwner, worker: int, status: int) -> None:
        connection = self.connections.pop(worker, None)
        if connection is None:
            return
        self._number_of.pop(connection.peer, None)
        self.hub.forget_peer(connection.peer)
        row = WorkerStatus(self._engine.row(connection.status_row))
        # After a violation of the protocol, the sample in the status row has nothing to do with it.
        sample = row.last_sample if connection.broke_protocol else row.running_sample
        running = [] if sample is None else [*sample]
        reason, over_memory = connection.kill_reason, connection.over_memory
        owner.worker_exited(
            m.WorkerExited(worker, status, running, reason, over_memory, connection.timed_out), connection
        )
