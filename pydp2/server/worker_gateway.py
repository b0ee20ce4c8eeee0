"""Exchange messages with the workers of a service, on this machine and on other hosts: carry out the decisions of the
pool, and pass the chunks of workers to the dispatchers.

A worker of another host is a worker like any other. Its messages come through its host, in the same order as from a
local worker, and its end comes behind them. The only difference is that the agent there starts, kills and watches it.

The service begins with the declaration of the first worker that is ready. If the service has local workers, it waits
for one of them, because the program is waiting for it too, and because each host must be compared with the service and
not the service with a host. Declarations from hosts before that have to wait.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any, Protocol

from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import HostRefused, ProtocolError, RemoteProtocolError, from_wire
from pydp2.host.local_workers import LocalWorkers
from pydp2.host.watchdog import WorkerConnection
from pydp2.host.worker_activity import NO_ACTIVITY, WorkerSeconds
from pydp2.options.service_spec import ServiceSpec
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import check_ints
from pydp2.protocol.link_states import LinkState
from pydp2.server.actions import (
    THIS_HOST,
    Action,
    Fatal,
    Log,
    Loss,
    Send,
    SendToHost,
    Spawn,
    TurnAway,
    WorkerBroken,
    WorkerGone,
    WorkerReady,
)
from pydp2.server.gateway.job_table import JobTable
from pydp2.server.gateway.router import ClientGateway
from pydp2.server.hosts.host_gateway import (
    HostEvent,
    HostGateway,
    HostGone,
    HostLeaves,
    HostReady,
    RemoteExited,
    RemoteMessage,
    RemoteStarted,
)
from pydp2.server.hosts.host_sessions import check_state_directory
from pydp2.server.quarantine import Quarantine
from pydp2.server.tracing import TraceRecorder
from pydp2.server.workers.cell_grants import CellGrants, create_cell_grants
from pydp2.server.workers.chunk_decoder import commit_chunk, decode_chunk
from pydp2.server.workers.worker_pool import WorkerPool
from pydp2.system.log_events import LogEvent, LogFields
from pydp2.system.process_memory import resident_bytes
from pydp2.system.processors import core_seconds

_MAX_MESSAGES = 256  # messages that are read in one turn, so that trainers are served in between


class ServiceSide(Protocol):
    """Interface of the server that the worker gateway needs."""

    def log(self, text: str, event: LogEvent, /, **fields: str | int) -> None:
        """Write a line to the log."""
        ...

    def provider_ready(self, schema: Schema, source: str, cell_grants: CellGrants | None) -> None:
        """Begin to serve, with the provider that the first worker declared."""
        ...

    def provider_differences(self, schema: Schema, source: str) -> list[str]:
        """Return texts with the differences between that provider and the one of the state directory."""
        ...

    def look_at_files(self) -> None:
        """Check whether the socket files are still there: a worker may have ended because they are missing."""
        ...


class WorkerGateway:
    """Gateway to the workers of a service: ``local`` ones, and those of ``hosts`` (None: there are no other hosts).

    ``pool`` decides which workers run and read, and the ``clients`` of ``jobs`` get what they read.
    """

    def __init__(
        self,
        spec: ServiceSpec,
        pool: WorkerPool,
        local: LocalWorkers,
        hosts: HostGateway | None,
        jobs: JobTable,
        clients: ClientGateway,
        service: ServiceSide,
        trace: TraceRecorder,
    ) -> None:
        self._spec, self._pool, self._local, self._hosts = spec, pool, local, hosts
        self._jobs, self._clients, self._service = jobs, clients, service
        self._trace = trace
        self._quarantine = Quarantine(spec.quarantine, service.log)
        self._remote: dict[int, WorkerConnection] = {}
        self.schema: Schema | None = None
        """Declaration of the provider; None until the first worker is ready."""
        self._early: list[tuple[int, WorkerConnection, m.Declared]] = []  # declarations from hosts before that
        self._cell_grants: CellGrants | None = None
        self.read_samples = 0
        """Number of samples that workers have sent."""
        self._ended_busy = self._ended_idle = self._ended_computed = 0.0  # seconds of workers that are gone

    # -- rounds ----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the workers of this machine, if it shall have any."""
        self.apply(self._pool.start())

    def receive(self, ready: Container[Any], now: float) -> bool:
        """Handle the starts, ends and messages of workers. ``ready``: handles that can be read. Return True if there
        may be more."""
        more = self._local.receive(self, ready, now, _MAX_MESSAGES)
        if self._hosts is not None:
            more = self._receive_from_hosts(self._hosts, now) or more
        return more

    def dispatch(self, now: float) -> None:
        """Carry out the actions that followed from requests of trainers, and assign files and credit."""
        actions, self._jobs.actions = self._jobs.actions, []
        self.apply([*actions, *self._pool.dispatch(now)])

    def watch(self, now: float) -> None:
        """Do the checks that no message triggers."""
        self._local.watch(self, now)

    # -- actions of the pool ---------------------------------------------------------------------------------------
    def apply(self, actions: Sequence[Action]) -> None:
        """Carry out ``actions``. Raises the error of a Fatal action."""
        for action in actions:
            match action:
                case Send(worker, message, frames):
                    self._send(worker, message, frames)
                case Spawn(worker, status_row, host):
                    self._spawn(worker, status_row, host)
                case TurnAway(host, error) if self._hosts is not None:
                    self._hosts.turn_away(host, error)
                case SendToHost(host, message) if self._hosts is not None:
                    self._hosts.send(host, message)
                case Log(text, log_event, fields):
                    self._service.log(text, log_event, **self._with_host_name(fields))
                case Loss():
                    self._quarantine.write(action)
                case Fatal(error):
                    raise error

    def _with_host_name(self, fields: LogFields) -> LogFields:
        """Return ``fields`` with the name of a host in place of its number, and without the number of this one."""
        host = fields.get("host")
        if not isinstance(host, int):
            return fields
        session = None if self._hosts is None else self._hosts.sessions.get(host)
        rest = {name: value for name, value in fields.items() if name != "host"}
        return rest if session is None else rest | {"host": session.name}

    def _spawn(self, worker: int, status_row: int, host: int) -> None:
        if host == THIS_HOST:
            self._local.start(worker, status_row)
        elif self._hosts is not None:
            self._hosts.send(host, m.StartWorker(worker, status_row))

    def _send(self, worker: int, message: m.Message, frames: Sequence[Any] = ()) -> None:
        connection = self._local.connections.get(worker) or self._remote.get(worker)
        if connection is None or connection.link.state is not LinkState.READY:
            return
        if isinstance(message, m.Assign):
            self._grant_cells(worker)
        if connection.host and self._hosts is not None:
            connection.link.check_sending(message)
            self._hosts.send(connection.host, m.ToWorker(worker), [m.encode(message), *frames])
        else:
            self._local.send(connection, message, [m.encode(message), *frames])

    def _grant_cells(self, worker: int) -> None:
        """Grant ``worker`` cells for its next rows, if it has mapped their memory."""
        if self._cell_grants is None or worker in self._remote:
            return
        if (cells := self._cell_grants.next_grant(worker)) is not None:
            self._send(worker, m.GrantCells(), [cells])

    # -- events of workers -----------------------------------------------------------------------------------------
    def worker_started(self, worker: int, pid: int) -> None:
        """Do nothing: the pool has known the worker since it requested the start."""

    def worker_sent(self, worker: int, connection: WorkerConnection, frames: list[memoryview], now: float) -> None:
        """Handle a message of a worker; ``frames`` begin with its header. Raises ProtocolError."""
        message, body = m.decode(frames)
        connection.link.check_received(message)
        match message:
            case m.Declared():
                connection.activity.ready_at = now
                self._declared(worker, connection, message)
            case m.Broken(error):
                self.apply(self._pool.handle(WorkerBroken(worker, from_wire(error))))
            case m.Chunk():
                self._chunk(worker, connection, message, body, now)
            case m.RecordedSpans():
                self._trace.add(worker, message, body)
            case m.ReturnFiles(attempts):
                self._pool.return_files(worker, set(check_ints("ReturnFiles", attempts, len(attempts))))

    def worker_exited(self, exited: m.WorkerExited, connection: WorkerConnection) -> None:
        """Handle the end of a worker: other workers get its files."""
        if not connection.host:
            if self._cell_grants is not None:
                self._cell_grants.worker_gone(exited.worker)
            self._service.look_at_files()
        self._trace.drop_source(exited.worker)
        self._keep_seconds(connection)
        running = None
        if exited.running:
            file, attempt, sample_index = exited.running
            running = file, attempt, sample_index
        reason = connection.kill_reason or exited.kill_reason
        event = WorkerGone(
            exited.worker,
            running,
            reason or _describe_exit(exited.status),
            voluntary=bool(reason) or not _is_sigkill(exited.status),
            over_memory=exited.over_memory,
            sample_timeout=self._spec.sample_timeout if exited.timed_out else None,
            broke_protocol=connection.broke_protocol,
        )
        self.apply(self._pool.handle(event))

    def _chunk(
        self, worker: int, connection: WorkerConnection, chunk: m.Chunk, body: Sequence[memoryview], now: float
    ) -> None:
        self.read_samples += chunk.rows
        connection.activity.report(WorkerSeconds.of_chunk(chunk), now)
        if self.schema is None:
            return
        pool = self._pool
        claim: Callable[..., Any] | None = None  # claims rows that are in cells or stay on the host
        if connection.host and self._hosts is not None:
            claim = self._hosts.claim_of(connection.host)
        elif self._cell_grants is not None and not connection.host:
            claim = partial(self._cell_grants.claim, worker)
        copy = self._jobs.resources is not None and self._jobs.resources.is_caching
        decoded = decode_chunk(chunk, body, self.schema, pool.wanted_samples, copy=copy, claim=claim)
        commit_chunk(decoded, partial(pool.commit, worker))
        self._grant_cells(worker)
        connection.rates.add(now, chunk.rows)
        for item in chunk.blocked:
            if not (isinstance(item, list) and len(item) == 4 and all(type(v) is int and v >= 0 for v in item)):
                raise RemoteProtocolError("Chunk: malformed blocked entry")
            pool.worker_blocked(worker, *item)

    # -- the provider ----------------------------------------------------------------------------------------------
    def _declared(self, worker: int, connection: WorkerConnection, message: m.Declared) -> None:
        """Compare the declaration of ``worker`` with that of the first worker, and let it read."""
        declared = Schema.from_wire(message.schema)
        if message.source_fingerprint.count(",") != len(self._spec.sources) - 1:
            raise RemoteProtocolError("Declared: one fingerprint for each source is needed")
        if self.schema is None and connection.host and self._spec.workers:
            self._early.append((worker, connection, message))
            return
        try:
            if not self._is_accepted(connection.host, declared, message):
                return
        except HostRefused as error:
            self.apply(self._pool.handle(WorkerBroken(worker, error)))
            return
        if self.schema is None:
            self._begin(connection, declared, message)
        self.apply(self._pool.handle(WorkerReady(worker, message.schema)))
        if self._trace.is_recording:
            self._record(worker, connection)
        early, self._early = self._early, []
        for declaration in early:
            if self._remote.get(declaration[0]) is declaration[1]:  # not if the worker was lost meanwhile
                self._declared(*declaration)

    def _is_accepted(self, host: int, declared: Schema, message: m.Declared) -> bool:
        """Return False if ``host``, which has a worker with this provider, was turned away meanwhile. Raises
        HostRefused if its code differs, or if it is the first one and the state directory was written with another
        provider."""
        if self._hosts is None:
            return True
        source = message.source_fingerprint
        if host:
            session = self._hosts.sessions.get(host)
            if session is None:
                return False
            if self.schema is None:
                check_state_directory(session.name, self._service.provider_differences(declared, source))
        self._hosts.check_source(host, source, message.modules)
        return True

    def _begin(self, connection: WorkerConnection, declared: Schema, message: m.Declared) -> None:
        """Begin to serve, with the declaration of the first worker."""
        for note in message.warnings:
            self._service.log(str(note), LogEvent.PROVIDER_WARNING)
        if not connection.host:
            self._local.watchdog.check_first_worker(connection.pid)
        self.schema = declared
        self._cell_grants = create_cell_grants(declared, self._spec.memory_limit, self._spec.workers)
        if self._cell_grants is not None:
            self._local.hub.fd_offer.offered = self._cell_grants.for_workers
        self._service.provider_ready(declared, message.source_fingerprint, self._cell_grants)

    # -- other hosts -----------------------------------------------------------------------------------------------
    def _receive_from_hosts(self, hosts: HostGateway, now: float) -> bool:
        """Handle the events of other hosts. Return True if there may be more."""
        events, more = hosts.receive(now, _MAX_MESSAGES)
        for event in [*events, *hosts.watch(now)]:
            self._host_event(hosts, event, now)
        for session in hosts.draining():
            # trainers may still need rows that it keeps
            is_empty = self._pool.is_drained(session.host) and not hosts.row_servers.row_count(session.host)
            if is_empty or now > session.drain_until:
                hosts.release(session.host)
                more = True
        hosts.send_updates(self._clients.trainer_keys)
        return more

    def _host_event(self, hosts: HostGateway, event: HostEvent, now: float) -> None:
        match event:
            case HostReady(host, worker_slots):
                self.apply(self._pool.add_host(host, worker_slots))
                self._jobs.fit_budget()
            case HostLeaves(host):
                self._pool.drain_host(host)
            case HostGone():
                self._host_gone(event)
            case RemoteStarted(host, worker, pid):
                if self._pool.host_of(worker) == host:
                    self._remote_connection(host, worker).pid = pid
            case RemoteMessage(host, worker, frames):
                if self._pool.host_of(worker) == host:
                    self._remote_sent(hosts, host, worker, frames, now)
            case RemoteExited(host, exited):
                if self._pool.host_of(exited.worker) == host:
                    connection = self._remote_connection(host, exited.worker)
                    del self._remote[exited.worker]
                    if (session := hosts.sessions.get(host)) is not None:
                        session.activities.pop(exited.worker, None)
                    self.worker_exited(exited, connection)

    def _host_gone(self, event: HostGone) -> None:
        for worker in self._pool.workers_of(event.host):
            if (connection := self._remote.pop(worker, None)) is not None:
                self._keep_seconds(connection)
            self._trace.drop_source(worker)
        self._pool.remove_host(event.host, event.running, event.how)
        self._jobs.fit_budget()
        self._jobs.restart_broken_passes()

    def _remote_connection(self, host: int, worker: int) -> WorkerConnection:
        if (connection := self._remote.get(worker)) is None:
            connection = self._remote[worker] = WorkerConnection(host=host)
            if self._hosts is not None and (session := self._hosts.sessions.get(host)) is not None:
                session.activities[worker] = connection.activity
        return connection

    def _remote_sent(self, hosts: HostGateway, host: int, worker: int, frames: list[memoryview], now: float) -> None:
        connection = self._remote_connection(host, worker)
        try:
            self.worker_sent(worker, connection, frames, now)
        except ProtocolError as error:
            self._service.log(f"worker {worker} broke the protocol: {error}", LogEvent.PROTOCOL_BROKEN, worker=worker)
            connection.break_protocol(error)
            hosts.kill(host, worker, now)

    # -- traces ----------------------------------------------------------------------------------------------------
    def record(self, on: bool) -> None:
        """Tell all workers to record spans, or to stop."""
        for worker, connection in sorted({**self._local.connections, **self._remote}.items()):
            if not on:
                self._send(worker, m.RecordSpans(on=False))
            elif connection.link.state is LinkState.READY:
                self._record(worker, connection)

    def _record(self, worker: int, connection: WorkerConnection) -> None:
        """Tell one worker to record spans."""
        session = self._hosts.sessions.get(connection.host) if self._hosts is not None and connection.host else None
        host = "" if session is None else session.name
        label = {"kind": "worker", "worker": worker, "pid": connection.pid, "host": host}
        self._trace.add_source(worker, label | {"is_spare": not self._pool.is_active(worker)})
        self._send(worker, m.RecordSpans(on=True))

    # -- statistics, the end ---------------------------------------------------------------------------------------
    def busy_and_idle(self) -> tuple[float, float]:
        """Return the seconds, of all workers together, in which they were busy with samples, and in which they had
        nothing to do."""
        seconds = [
            connection.activity.seconds for connection in (*self._local.connections.values(), *self._remote.values())
        ]
        return (
            self._ended_busy + sum(worker.busy for worker in seconds),
            self._ended_idle + sum(worker.idle for worker in seconds),
        )

    def computed_seconds(self) -> float:
        """Return the seconds in which workers of this machine that have begun computed, or waited for a core."""
        connections = self._local.connections.values()
        for connection in connections:
            if connection.pid and connection.activity.has_begun:
                connection.computed = max(connection.computed, core_seconds(connection.pid))
        return self._ended_computed + sum(connection.computed for connection in connections)

    def _keep_seconds(self, connection: WorkerConnection) -> None:
        """Keep the seconds of a worker that is gone."""
        self._ended_busy += connection.activity.seconds.busy
        self._ended_idle += connection.activity.seconds.idle
        self._ended_computed += connection.computed

    def stats(self, now: float) -> list[dict[str, Any]]:
        """Return statistics of each worker as plain data, with the times up to ``now``."""
        self.look(now)
        running = {
            worker: connection for worker, connection in self._local.connections.items() if connection.pid
        } | self._remote
        return [
            {
                "worker": number,
                "pid": connection.pid,
                "active": self._pool.is_active(number),
                "files": self._pool.files_of(number),
                "samples_per_second": connection.rates.per_second(now),
                "memory": 0 if connection.host else resident_bytes(connection.pid),
                "host": connection.host,
            }
            | self._activity(number, connection, now)
            for number, connection in sorted(running.items())
        ]

    def _activity(self, worker: int, connection: WorkerConnection, now: float) -> dict[str, Any]:
        """Return what a worker is doing: by its status row, or by the beats of its host."""
        if not connection.host:
            return self._local.activity(connection, now)
        session = None if self._hosts is None else self._hosts.sessions.get(connection.host)
        if session is None:
            return NO_ACTIVITY
        running = session.running.get(worker)
        is_known = running is not None and running[0] < len(self._jobs.files)
        seconds = now - session.since.get(worker, now)
        return connection.activity.stats(running if is_known else None, self._jobs.files, seconds)

    def look(self, now: float) -> None:
        """Look at what the workers of this machine are doing, and which of all workers have begun."""
        for worker in self._pool.active:
            if (connection := self._local.connections.get(worker) or self._remote.get(worker)) is not None:
                connection.activity.begin(now)
        self._local.look(now)

    def close(self) -> None:
        """Close the quarantine and the memory of cells."""
        self._quarantine.close()
        if self._cell_grants is not None:
            self._cell_grants.close()


def _is_sigkill(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _describe_exit(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = number in {int(member) for member in signal.Signals}  # real-time signals have no names
        return f"was killed by {signal.Signals(number).name if known else f'signal {number}'}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
