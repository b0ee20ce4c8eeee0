"""Run the workers of a host for a service elsewhere: start and end them as the service says, and pass on what both say.

The workers are those of any service, and talk to the agent as they would to a server. The agent decides nothing about
files: it watches its processes, keeps the order of what each worker sends, and ends all of them when the service is out
of reach. Then it joins again, with a new session, and nothing of the old one is kept (docs/hosts.md).

Theory of operation
-------------------
An agent has one session at a time, and a session is one meaning of worker numbers. Its states are in
:data:`AGENT_TRANSITIONS`.

* While the service is out of reach, it gives the files of this host to others: a worker that read on would read in
  vain, and what it sends could reach a later session under a number that means another worker there. So the end of a
  session is the end of all its workers, and the agent *rests* until the last of their exits was seen. To join at once
  and end the old ones meanwhile is the simple way that fails.
* A service and a host may each take the other for lost without telling: a cable says nothing. So both send beats, and
  each end decides alone after ``host_timeout``. Every session has an id that was never used before, so nothing that
  is still under way of an old one is taken for a part of the next.
* A host that is told to *leave* ends nothing: its workers begin no more files, finish those that they read, and the
  service closes the session once it has all of them. Files that were on their way when it asked are sent back by the
  worker. A service that goes away meanwhile does not change what the user wanted, so the agent ends then.
* The end of a worker is queued behind all that it sent (:mod:`pydp2.host.local_workers` gives it in that order, and
  the queue keeps it): the service commits what arrived before it gives the rest to another worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from pydp2.errors import (
    Error,
    ProtocolError,
    RemoteProtocolError,
    ServiceLost,
    ServiceUnreachable,
    from_wire,
    shorten,
    to_wire,
)
from pydp2.host.agent.row_server import RowServer, start_row_server
from pydp2.host.agent.service_link import ServiceLink
from pydp2.host.agent.setup import AgentSetup
from pydp2.host.engine import Engine
from pydp2.host.engine.local import LocalEngine
from pydp2.host.engine.output import OutputPump
from pydp2.host.fetching import Fetching
from pydp2.host.list_entries import opened_entries
from pydp2.host.local_workers import LocalWorkers
from pydp2.host.own_files import REMEDY, OwnFiles
from pydp2.host.watchdog import WorkerConnection
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import WorkerTerms, send_plain, status_rows
from pydp2.protocol import messages as m
from pydp2.protocol.figures import clip, microseconds
from pydp2.protocol.link_states import LinkState
from pydp2.protocol.state_table import next_state
from pydp2.remote.owner import FetchOptions
from pydp2.remote.remote_file import fetch_options
from pydp2.system.log_events import LogEvent
from pydp2.system.log_writer import unfailing_stderr, write_event
from pydp2.system.process_memory import resident_bytes
from pydp2.system.release import RELEASE
from pydp2.transport import Hub, Poller
from pydp2.transport.descriptors import raise_descriptor_limit
from pydp2.transport.keys import KeyPair
from pydp2.transport.service_address import ipc_path, without_token
from pydp2.transport.sockets import new_context, prepare_zero_copy

_MAX_MESSAGES = 256  # of workers taken in one round
_MAX_COMPRESSED = 16  # the same, where it takes up to 15 ms to compress one: the service is to hear in between
_REST_SECONDS = 0.2  # between two attempts to join: whoever waits longer is late behind a mended network
_LAST_WORDS_MS = 500  # for the last message to the service


class AgentState(Enum):
    """State of an agent."""

    RESTING = "resting"
    """It has no session; it waits until its old workers are gone and it is time to join again."""
    JOINING = "joining"
    WORKING = "working"
    LEAVING = "leaving"
    """It has asked to leave; its workers end their files."""
    ENDED = "ended"


class AgentEvent(Enum):
    """Event that changes the state of an agent."""

    CONNECT = "connect"
    ACCEPTED = "accepted"
    """The service sent its spec, and it is the one that this agent was started for."""
    SESSION_OVER = "session over"
    """The service is out of reach, or it has ended the session."""
    LEAVE = "leave"
    END = "end"


_S, _E = AgentState, AgentEvent

AGENT_TRANSITIONS: dict[tuple[AgentState, AgentEvent], AgentState] = {
    (_S.RESTING, _E.CONNECT): _S.JOINING,
    (_S.JOINING, _E.ACCEPTED): _S.WORKING,
    (_S.JOINING, _E.SESSION_OVER): _S.RESTING,
    (_S.WORKING, _E.SESSION_OVER): _S.RESTING,
    (_S.WORKING, _E.LEAVE): _S.LEAVING,
    **{(state, _E.END): _S.ENDED for state in _S},
}
"""State and event to the state after it."""


class AgentLife:
    """State of one agent."""

    def __init__(self) -> None:
        self.state: AgentState = AgentState.RESTING  # changed by move() alone

    def move(self, event: AgentEvent) -> None:
        """Change the state as ``event`` says. Raises IllegalTransition when the present state does not allow it."""
        self.state = next_state(AGENT_TRANSITIONS, self.state, event)


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """Reason why an agent ended. ``kind``: "closed" (the service ended), "left" (it was told to leave), "again" (the
    service is made from something else now: start anew)."""

    kind: str
    text: str


class Agent:
    """Agent of a host. It ends when ``control``, a descriptor, can be read or its other end is gone."""

    def __init__(
        self,
        setup: AgentSetup,
        terms: WorkerTerms,
        files: FileList,
        engine: Engine,
        hub: Hub,
        control: int,
        wakeup: int,
        rows: RowServer | None = None,
    ) -> None:
        self.fetching: Fetching | None = None
        """Fetch process of this host."""
        self._setup, self._timing, self._files, self._rows = setup, terms.timing, files, rows
        self._hub, self._control, self._wakeup = hub, control, wakeup
        self._name = without_token(setup.address)
        self._life = AgentLife()
        self._link: ServiceLink | None = None
        self._end: AgentEnd | None = None
        self._poll = Poller()
        self._workers = LocalWorkers(terms, files, engine, hub, self._poll, self._log)
        self._listeners = {*hub.listeners}
        hub.on_refusal = self._log_refused
        for handle in (control, wakeup, *hub.listeners):
            self._poll.add(handle)
        if rows is not None:
            for handle in (rows.hub.handle, *rows.hub.listeners):
                self._poll.add(handle)
            rows.hub.on_refusal = self._log_refused
        path = ipc_path(setup.worker_address)
        self._own_files = OwnFiles(self._timing.file_check, "" if path is None else str(Path(path).parent))
        self._rest_until = 0.0
        self._heard_at = self._out_of_reach_since = time.monotonic()
        self._beat_at = self._chores_at = 0.0
        self._beat_ns = 0
        self._opens_since = inf  # while it joins: when it began to open a connection for data
        self._round_trip = 0.0
        self._rate_from = (time.monotonic(), 0)

    def run(self) -> AgentEnd:
        """Run until the service ends, or until told to stop. Raises what keeps this host from running workers."""
        while self._end is None:
            self._round()
        return self._end

    # -- one round -------------------------------------------------------------------------------------------------
    def _round(self) -> None:
        ready = self._poll.wait(int(self._patience() * 1000))
        now = time.monotonic()
        if self._control in ready:
            self._finish("closed", "its program ended it")
            return
        if self._wakeup in ready:
            self._signalled(os.read(self._wakeup, 64))
        if not self._listeners.isdisjoint(ready):
            self._hub.accept(now)
        self._workers.receive(self, ready, now, _MAX_COMPRESSED if self._setup.compress else _MAX_MESSAGES)
        if self._rows is not None:
            self._rows.serve(now)
        if now >= self._chores_at:
            self._do_chores(now)
        if self._link is None:
            self._connect_if_due(now)
        else:
            self._serve_link(self._link, now)

    def _do_chores(self, now: float) -> None:
        """Look whether workers keep within their limits, how many descriptors are left, and whether the sockets are
        still where new workers find them."""
        self._chores_at = now + min(self._timing.descriptor_check, self._workers.patience)
        self._workers.watch(self, now)
        self._hub.accept(now)
        if self.fetching is not None:
            self.fetching.look(self._log)
        if self._own_files.is_look_due(now) and (text := self._own_files.look(now)) is not None:
            lines = f"this host goes on, but {text}; its workers stay, and no other one can start here: {REMEDY}"
            self._log(lines, LogEvent.SOCKET_MISSING)

    def _patience(self) -> float:
        seconds = min(self._workers.patience, self._timing.host_beat / 2)
        return min(seconds, _REST_SECONDS / 2) if self._life.state is AgentState.RESTING else seconds

    def _finish(self, kind: str, text: str) -> None:
        self._life.move(AgentEvent.END)
        self._end = AgentEnd(kind, text)

    def _signalled(self, numbers: bytes) -> None:
        """Leave in order at the first SIGTERM, at once at the second."""
        for _ in numbers:
            if self._life.state is AgentState.WORKING and self._link is not None:
                text = "leaving: the workers end the files that they read; a second signal ends them at once"
                self._log(text, LogEvent.HOST_LEAVING)
                self._link.send(m.Drain())
                self._life.move(AgentEvent.LEAVE)
                for connection in self._workers.connections.values():
                    self._retire_worker(connection)
            elif self._end is None:
                self._finish("left", "it was told to leave")

    # -- the service -----------------------------------------------------------------------------------------------
    def _connect_if_due(self, now: float) -> None:
        """Join when the old workers are gone and it is time."""
        if self._life.state is AgentState.ENDED or self._workers.connections or now < self._rest_until:
            return
        pair = KeyPair(self._setup.public_key, self._setup.secret_key)
        self._link = ServiceLink(self._setup.address, pair, compresses=bool(self._setup.compress))
        self._poll.add(self._link.handle)
        self._opens_since = inf
        self._life.move(AgentEvent.CONNECT)
        if self._rows is not None:
            self._rows.begin_session()
        self._heard_at = self._beat_at = now
        self._link.send(
            m.Join(
                m.WIRE_VERSION,
                RELEASE,
                self._setup.name,
                self._setup.worker_slots,
                self._link.session,
                self._setup.digest,
                _about_host(),
                self._setup.compress,
                "" if self._rows is None else self._rows.address,
            )
        )

    def _serve_link(self, link: ServiceLink, now: float) -> None:
        """Take what the service said, and send what is due."""
        ended = link.has_ended(now)  # before the look at messages, because the last one says why
        try:
            while self._link is link and self._end is None and (received := link.receive()) is not None:
                self._heard_at = now
                self._handle(link, *received, now)
        except ProtocolError as error:
            self._lose(f"the service broke the protocol: {error}", now)
        if self._link is not link or self._end is not None:
            return
        if ended:
            if link.was_refused:
                raise ServiceUnreachable(
                    f"the service at {self._name} does not admit the key of this host; it needs a key with the role "
                    "worker that the service allows"
                )
            self._lose("the connection ended", now)
        elif now - self._heard_at > self._timing.host_timeout:
            self._lose(f"nothing heard for {self._timing.host_timeout:g} s", now)
        elif now - self._opens_since > self._timing.host_timeout and self._life.state is AgentState.JOINING:
            self._lose(f"no connection for data in {self._timing.host_timeout:g} s", now)
        else:
            if now - self._beat_at >= self._timing.host_beat and link.data_connections:
                self._send_beat(link, now)
            link.flush()

    def _lose(self, why: str, now: float) -> None:
        """End the session: all workers with it, because the service gives their files to others."""
        if self._life.state is AgentState.LEAVING:
            self._finish("left", why)
            return
        if self._life.state is not AgentState.JOINING:
            text = f"the service at {self._name} is out of reach ({why}); this host joins again"
            self._log(text, LogEvent.SERVICE_UNREACHABLE)
            self._out_of_reach_since = now
        elif now - self._out_of_reach_since > self._setup.patience:
            raise ServiceLost(f"no service was at {self._name} for {self._setup.patience:g} s")
        self._life.move(AgentEvent.SESSION_OVER)
        self._close_link()
        for worker in self._workers.connections:
            self._workers.kill(worker)
        self._rest_until = now + _REST_SECONDS

    def _close_link(self) -> None:
        if self._link is not None:
            self._poll.remove(self._link.handle)
            self._link.close(_LAST_WORDS_MS if self._end is not None else 0)
            self._link = None

    def _handle(self, link: ServiceLink, message: m.Message, body: Sequence[Any], now: float) -> None:
        match message:
            case m.Spec(_, digest):
                if digest == self._setup.digest:
                    self._open_data(link, now)
                else:
                    self._finish("again", "the service is made from something else now")
            case m.DataOpened():
                self._data_opened(link, now)
            case m.StartWorker(worker, status_row):
                self._start(link, worker, status_row)
            case m.KillWorker(worker):
                self._workers.kill(worker)
            case m.ToWorker(worker):
                self._to_worker(link, worker, body)
            case m.RowReaders() | m.ReleaseRows() | m.SendRows() if self._rows is not None:
                self._rows.handle(message, body)
            case m.HostReceived(total, sent_ns):
                self._taken(link, total, sent_ns, now)
            case m.Refused(error):
                raise from_wire(error)
            case m.Closing(reason, error, will_restart):
                if will_restart:
                    self._lose(reason, now)
                else:
                    self._finish("left" if self._life.state is AgentState.LEAVING else "closed", reason)

    def _open_data(self, link: ServiceLink, now: float) -> None:
        link.open_data()
        self._opens_since = now

    def _data_opened(self, link: ServiceLink, now: float) -> None:
        """Open one more connection for data; once there are as many as there are to be, workers may be started."""
        if link.data_connections < self._setup.data_connections:
            self._open_data(link, now)
            return
        self._life.move(AgentEvent.ACCEPTED)
        self._rate_from = (time.monotonic(), 0)
        link.send(m.Prepared(opened_entries(self._files, Path(self._setup.root))))

    def _start(self, link: ServiceLink, worker: int, status_row: int) -> None:
        """Start a worker. Raises RemoteProtocolError if it was started already, or its status row is not free."""
        rows, workers = status_rows(self._setup.worker_slots), self._workers.connections
        if worker in workers or status_row >= rows or status_row in {each.status_row for each in workers.values()}:
            raise RemoteProtocolError(f"StartWorker: worker {worker} on status row {status_row} of {rows}")
        link.begin_worker(worker, status_row)
        self._workers.start(worker, status_row)

    def _taken(self, link: ServiceLink, total: int, sent_ns: int, now: float) -> None:
        """Note how much the service has taken, and fit the window to rate and round trip."""
        link.queue.taken(total)
        if sent_ns == self._beat_ns and sent_ns:
            self._round_trip, self._beat_ns = (time.monotonic_ns() - sent_ns) / 1e9, 0
        since, before = self._rate_from
        if now - since > self._timing.host_beat:
            link.queue.fit_window((total - before) / (now - since), self._round_trip)
            self._rate_from = (now, total)

    def _send_beat(self, link: ServiceLink, now: float) -> None:
        self._beat_at, self._beat_ns = now, clip(time.monotonic_ns())
        workers = self._workers.connections
        samples = ((worker, self._workers.running_sample(each)) for worker, each in workers.items())
        running = [[worker, *sample] for worker, sample in samples if sample is not None]
        since = [[worker, microseconds(self._workers.seconds(each, now))] for worker, each in workers.items()]
        figures = {
            "pid": os.getpid(),
            "memory": sum(resident_bytes(each.pid) for each in workers.values() if each.pid),
            "waiting_bytes": link.queue.waiting_bytes,
            "window_bytes": link.queue.window,
            "round_trip_ms": round(self._round_trip * 1e3, 3),
        }
        link.send(m.HostBeat(self._beat_ns, running, figures, since))

    def _to_worker(self, link: ServiceLink, worker: int, body: Sequence[Any]) -> None:
        connection = self._workers.connections.get(worker)
        if connection is None or not connection.peer:
            return
        if not body:
            raise RemoteProtocolError("ToWorker: no message in it")
        message, _ = m.decode(body)
        if self._rows is not None:
            self._rows.note_sent_to_worker(message)
        if isinstance(message, m.Want):
            link.queue.prefer(worker)
        self._workers.send(connection, message, body)

    # -- workers ---------------------------------------------------------------------------------------------------
    def _retire_worker(self, connection: WorkerConnection) -> None:
        """Have a worker begin no more files."""
        if connection.link.state is LinkState.READY:
            self._workers.send(connection, m.Retire(), [m.encode(m.Retire())])

    def worker_started(self, worker: int, pid: int) -> None:
        """Pass on that ``worker`` is process ``pid``."""
        if self._link is not None:
            self._link.queue_event(worker, m.WorkerStarted(worker, pid))

    def worker_sent(self, worker: int, connection: WorkerConnection, frames: list[memoryview], now: float) -> None:
        """Pass on what ``worker`` says; until it is ready, look at it too. Raises ProtocolError."""
        if connection.link.state is not LinkState.READY:
            message, _ = m.decode(frames)
            connection.link.check_received(message)
            if isinstance(message, m.Declared):
                self._workers.watchdog.check_first_worker(connection.pid)
                if self._rows is not None:
                    self._rows.note_provider(message.schema)
                if self._life.state is AgentState.LEAVING:  # files for it may be under way
                    self._retire_worker(connection)
        without_rows = None if self._rows is None else self._rows.keep(frames)
        if self._link is not None:
            self._link.queue_message(worker, frames if without_rows is None else without_rows)

    def worker_exited(self, exited: m.WorkerExited, connection: WorkerConnection) -> None:
        """Pass on that a worker has ended."""
        if self._link is not None:
            self._link.queue_event(exited.worker, exited)

    # -- the end ---------------------------------------------------------------------------------------------------
    def _log(self, text: str, event: LogEvent, /, **fields: str | int) -> None:
        write_event(shorten(text, 2000), event, **fields)

    def _log_refused(self, text: str, kind: str) -> None:
        """Log why a connection was refused."""
        self._log(f"{kind}: {text}" if kind else text, LogEvent.CONNECTION_REFUSED)

    def close(self) -> None:
        """Close the connections to the service."""
        self._close_link()


def _about_host() -> dict[str, Any]:
    """Return what a service may show of this host, as plain data."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "byteorder": sys.byteorder,
        "pid": os.getpid(),
    }


def run_agent(
    setup: AgentSetup,
    terms: WorkerTerms,
    files: FileList,
    engine: LocalEngine,
    pump: OutputPump,
    channel: socket.socket,
    wakeup: int,
) -> int:
    """Run workers from the fork of the supervisor on, until the service ends, or until told to stop; return the exit
    status. ``channel`` leads to the program that started this process, ``wakeup`` is readable when a signal has
    come."""
    zmq = new_context()
    hub: Hub | None = None
    rows: RowServer | None = None
    agent: Agent | None = None
    given = setup.remote_cache, setup.remote_cache_size, terms.remote_timeout
    fetching = Fetching(setup.fetch_address, fetch_options(*given) if setup.fetch_address else FetchOptions(""))
    outcome: dict[str, object] = {"end": "failed"}
    with contextlib.ExitStack() as log:
        try:
            log.enter_context(unfailing_stderr())
            raise_descriptor_limit()
            prepare_zero_copy()
            hub = Hub(zmq, setup.worker_address, -1, reserve=3)
            rows = start_row_server(zmq, setup.row_server) if setup.row_server else None
            agent = Agent(setup, terms, files, engine, hub, channel.fileno(), wakeup, rows)
            agent.fetching = fetching
            gc.freeze()
            end = agent.run()
            outcome = {"end": end.kind, "text": end.text}
        except Error as error:
            outcome = {"end": "refused", "error": to_wire(error)}
        except Exception:
            sys.excepthook(*sys.exc_info())  # here: the process ends even if its log is not read
        finally:
            if agent is not None:
                agent.close()
            engine.close()
            fetching.close()
            if hub is not None:
                hub.close()
            if rows is not None:
                rows.hub.close()
            zmq.term()
            pump.close()
            with contextlib.suppress(OSError):  # the program is gone
                send_plain(channel, outcome)
            channel.close()
    return 0 if outcome["end"] in ("closed", "left", "again") else 1
