"""Run the workers of one machine: start and watch their processes, take in what they send, and report their ends.

The server of a service does this for the machine that it is on, the agent of a host for another one. Which files a
worker reads, and what becomes of its messages, is theirs to decide; here are processes and connections.

Theory of operation
-------------------
A worker is known by two sources that have no common order: the *engine* tells which process was started and which one
has ended, and the *hub* brings what a process sent. Both sources are local sockets, and either may be ahead.

* The hub may be first: a process says Hello before the engine has told that it exists. Any process of this user can
  say so, and to believe it would let a stranger take a worker's files. To answer "unknown worker" would lose the real
  one. So the first few words wait (:class:`EarlyHellos`), and are taken once the engine names the same process.
* The engine may be first: a process has ended, and what it sent before is still in the hub's queue. The simple way,
  to report the exit at once, is wrong twice. Files of the worker would begin anew elsewhere although their samples
  are here, and that is only slow; but a worker that was unable to start the provider says why in its last message
  (``Broken``) and ends with status 0, and the user would read "ended with exit code 0" in place of the error. So
  before an exit counts, all that the hub has is read.
* For a worker that ended in order before it was ready, that is not enough: its message may still be on its way
  through the hub's own threads, where nobody can look. Its exit is reported ``worker_last_words`` seconds later, and
  the message is taken as if it lived. There is a deadline because such a process need not have said anything: user
  code may call ``os._exit(0)`` while it is imported, and a service must not wait for ever to say so.
* A worker that was killed sent nothing that explains its death, and may have been in the middle of a message. Its
  exit counts at once.

What stays true: messages of one worker are handed on in the order in which it sent them, all of them before its exit,
and after the exit none, not even a Hello that was late. An exit is reported once, with what is known of the cause:
the status row that outlives the process, and the reason if the watchdog ended it.

A worker that breaks the protocol is killed, not answered: it runs code of the user, who may have written over
anything. Its connection stays until the exit, because what it had sent before is good.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

from pydp2.errors import ProtocolError, RemoteProtocolError, ServiceLost
from pydp2.host.engine import Engine, EngineLost, EngineNote, Exited, Started
from pydp2.host.watchdog import Watchdog, WorkerConnection
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import WorkerTerms
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import LinkState
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.transport import Hub, PeerGone, Poller

_NOT_READY = (LinkState.NEW, LinkState.STARTING)
_MAX_EARLY_PEERS = 64  # real workers are few at a time
_MAX_EARLY_MESSAGES = 4  # a worker says no more before it is answered


class WorkerOwner(Protocol):
    """Receiver of what the workers of this machine do: the server of a service, or the agent of a host."""

    def worker_started(self, worker: int, pid: int) -> None:
        """Note that ``worker`` is process ``pid``; nothing that it sent came before."""
        ...

    def worker_sent(self, worker: int, connection: WorkerConnection, frames: list[memoryview], now: float) -> None:
        """Take a message, its header first. Its link has not been asked yet whether the message may come. Raises
        ProtocolError, which ends the worker."""
        ...

    def worker_exited(self, exited: m.WorkerExited, connection: WorkerConnection) -> None:
        """Note that a worker has ended; all that it sent came before."""
        ...


class EarlyHellos:
    """Peers that said which worker they are before the engine did, and what they said after it. Pure."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[m.Hello, list[m.Message]]] = {}

    def hold(self, peer: bytes, hello: m.Hello) -> None:
        """Keep what ``peer`` says until the engine has told of its worker."""
        if len(self._waiting) < _MAX_EARLY_PEERS:
            self._waiting[peer] = hello, []

    def add(self, peer: bytes, message: m.Message) -> None:
        """Keep ``message`` too, if ``peer`` is one that waits."""
        if peer in self._waiting and len(self._waiting[peer][1]) < _MAX_EARLY_MESSAGES:
            self._waiting[peer][1].append(message)

    def take(self, worker: int, pid: int) -> tuple[bytes, list[m.Message]]:
        """Return the peer that is ``worker``, which the engine says is process ``pid``, and all that it said: b"" and
        nothing if it has not spoken yet. Others that said so are forgotten."""
        named = {peer: self._waiting.pop(peer) for peer in [*self._waiting] if self._waiting[peer][0].worker == worker}
        return next(((peer, [hello, *rest]) for peer, (hello, rest) in named.items() if hello.pid == pid), (b"", []))


class LocalWorkers:
    """Workers that ``engine`` runs on this machine under ``terms``, and that connect to ``hub``.

    ``poll``: wakes the loop of the owner when something has come for :meth:`receive`. Descriptors that tell of peers
    that are not connected yet (``hub.listeners``) are the owner's.
    """

    def __init__(
        self,
        terms: WorkerTerms,
        files: FileList,
        engine: Engine,
        hub: Hub,
        poll: Poller,
        log: Callable[[str, str], None],
    ) -> None:
        self.hub = hub
        self.connections: dict[int, WorkerConnection] = {}
        """Workers that were started and have not ended, by number."""
        self.watchdog = Watchdog(terms, files, engine, self.connections, log)
        self.patience = self.watchdog.interval
        """Seconds between two calls of :meth:`watch`: so long may a loop wait for something to come."""
        self._last_words = terms.timing.worker_last_words
        self._engine, self._poll, self._log = engine, poll, log
        self._engine_descriptor = engine.fileno()
        self._lacks_descriptor = False  # the engine waits for one: it looks by itself, without an event
        self._number_of: dict[bytes, int] = {}  # peers that are workers
        self._early = EarlyHellos()
        self._started = -1  # numbers only grow: up to this one, who is not connected has ended
        self._ended: dict[int, float] = {}  # workers whose last words may still come, and until when
        for handle in (hub.handle, self._engine_descriptor):
            poll.add(handle)

    # -- what the owner wants --------------------------------------------------------------------------------------
    def start(self, worker: int, status_row: int) -> None:
        """Start a worker on a free status row. Numbers grow from one worker to the next."""
        self._started = max(self._started, worker)
        self.connections[worker] = WorkerConnection(status_row=status_row)
        self._engine.start(worker, status_row)

    def kill(self, worker: int) -> None:
        """End a worker at once."""
        self._engine.kill(worker)

    def send(self, connection: WorkerConnection, message: m.Message, frames: Sequence[Any]) -> None:
        """Send ``message``, which ``frames`` are with its header first, to a worker. Raises LocalProtocolError."""
        connection.link.check_sending(message)
        with contextlib.suppress(PeerGone):  # its exit is on the way
            self.hub.send(connection.peer, frames)

    def running_sample(self, connection: WorkerConnection) -> tuple[int, int, int] | None:
        """Return file, attempt and sample index of the sample that a worker is asking for; None between samples."""
        return WorkerStatus(self._engine.row(connection.status_row)).running_sample

    # -- what came -------------------------------------------------------------------------------------------------
    def receive(self, owner: WorkerOwner, ready: Container[Any], now: float, most: int) -> bool:
        """Hand on what happened: of ``most`` messages, and more where a worker has ended. ``ready``: the handles that
        can be read. Return True if there may be more."""
        if self._engine_descriptor in ready or self._lacks_descriptor:
            self._take_engine_events(owner, now)
        return self._take_messages(owner, now, most)

    def watch(self, owner: WorkerOwner, now: float) -> None:
        """Do what no message announces: end workers that break a limit, and report those whose last words did not
        come. To be called every :attr:`patience` seconds."""
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
                case EngineNote(text, kind):
                    self._log(text, kind)
        if self._engine.out_of_descriptors != self._lacks_descriptor:
            # what cannot be taken now must not wake the loop until it can be
            self._lacks_descriptor = self._engine.out_of_descriptors
            (self._poll.remove if self._lacks_descriptor else self._poll.add)(self._engine_descriptor)

    def _process_known(self, owner: WorkerOwner, worker: int, pid: int, now: float) -> None:
        """Note that ``worker`` is process ``pid``, and take what it said before the engine told so."""
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
        """Hand on ``most`` messages (None: all). Return True if there may be more."""
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
        """Take a message of a peer that is no worker yet, or not any more."""
        if len(frames) > 1:
            return  # rows of a worker that has ended: its memory is given up, and others have its files
        message, _ = m.decode(frames)
        if isinstance(message, m.Hello):
            self.hub.note_connected(message.pid)
            self._hello(owner, peer, message, now)
        else:
            self._early.add(peer, message)

    def _hello(self, owner: WorkerOwner, peer: bytes, hello: m.Hello, now: float) -> None:
        connection = self.connections.get(hello.worker)
        if connection is None and hello.worker <= self._started:
            return  # it was killed as it began, and its exit came before its first word
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
        self._log(f"worker {worker} broke the protocol: {error}", "protocol")
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
        # where the protocol was broken, which sample it runs by now is chance
        sample = row.last_sample if connection.broke_protocol else row.running_sample
        running = [] if sample is None else [*sample]
        reason, over_memory = connection.kill_reason, connection.over_memory
        owner.worker_exited(
            m.WorkerExited(worker, status, running, reason, over_memory, connection.timed_out), connection
        )
