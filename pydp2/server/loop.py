"""Join worker pool and jobs to sockets, processes, clock and terminal. The loop itself decides nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import Error, HostRefused, ProtocolError, RemoteProtocolError, ServiceLost, from_wire
from pydp2.host.engine.base import Engine, EngineLost, EngineNote, Exited, Started
from pydp2.host.own_files import REMEDY, OwnFiles
from pydp2.host.watch_state import WatchEvent
from pydp2.host.watchdog import Watchdog, WorkerConnection
from pydp2.host.worker_inbox import WorkerInbox, break_text
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import ServiceSpec
from pydp2.protocol import messages as m
from pydp2.protocol.file_ranges import check_ints
from pydp2.protocol.link_states import LinkRole, LinkState, worker_link
from pydp2.protocol.worker_status import WorkerStatus
from pydp2.server.actions import (
    THIS_HOST,
    Action,
    Fatal,
    Log,
    Loss,
    Send,
    SendRowsOf,
    Spawn,
    TurnAway,
    WorkerBroken,
    WorkerGone,
    WorkerReady,
)
from pydp2.server.available_memory import release_free_heap
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
from pydp2.server.scaling import ScalingAdvisor, Totals
from pydp2.server.sessions.attach import provider_identity
from pydp2.server.sessions.gateway import ClientGateway
from pydp2.server.snapshots.snapshotter import Snapshotter
from pydp2.server.workers.cell_grants import CellGrants, create_cell_grants
from pydp2.server.workers.chunk_decoder import commit_chunk, decode_chunk
from pydp2.server.workers.worker_pool import WorkerPool
from pydp2.system.log_writer import write_stderr
from pydp2.system.process_memory import resident_bytes
from pydp2.transport import Hub, PeerGone, Poller
from pydp2.transport.hub import LACKS_DESCRIPTORS

if TYPE_CHECKING:
    from pydp2.server.metrics_endpoint import MetricsEndpoint

_ADVISE_SECONDS = 1.0  # between two looks at how many workers there should be
_RELEASE_SHARE = 0.001  # of the time is for giving memory back, which takes long with many gaps in a large heap,
_LATEST_RELEASE = 60.0  # but it happens after so many seconds
_SHOWN = 5  # of each kind of log line, so many are shown in full
_BURST = 32  # batches sent before messages are looked for again
_MAX_MESSAGES = 256  # of workers taken in one round, so that trainers are served in between


def start_endpoint(address: str) -> MetricsEndpoint:
    """Return an endpoint for metrics at ``address``. Only services that have one import what it needs."""
    from pydp2.server.metrics_endpoint import MetricsEndpoint

    return MetricsEndpoint(address)


class ServiceStop(Exception):
    """The service ends; the text says why. ``asked``: the program asked for it and needs no word."""

    def __init__(self, reason: str, *, asked: bool = False) -> None:
        super().__init__(reason)
        self.requested = asked


class Server:
    """Server of one service. It ends when ``control``, a descriptor, can be read or its other end is gone."""

    def __init__(
        self,
        spec: ServiceSpec,
        files: FileList,
        engine: Engine,
        workers: Hub,
        clients: Hub,
        control: int,
        wakeup: int,
        hosts: HostGateway | None = None,
    ) -> None:
        self._spec = spec
        self._hosts = hosts
        self._timing = spec.timing
        self._files = files
        self._engine = engine
        self._hub = workers
        self._connections: dict[int, WorkerConnection] = {}
        self._worker_pool = WorkerPool(spec.workers)
        self._inbox = WorkerInbox(workers, engine, self._connections, self._handle_worker, self._may_begin, self.log)
        self._watchdog = Watchdog(spec, files, engine, self._connections, self._worker_pool.status_row_of, self.log)
        self._snapshotter = Snapshotter(spec.state_dir, self.log, spec.timing)
        self._gateway = ClientGateway(spec, files, clients, self._worker_pool, self.log, self._snapshotter)
        self._gateway.server_stats = self.stats
        self._gateway.row_servers = None if hosts is None else hosts.row_servers
        self._quarantine = Quarantine(spec.quarantine, self.log)
        self.own_files = OwnFiles(spec.timing.file_check, spec.run_dir, spec.client_address, spec.state_dir)
        self._control = control
        self._parent = os.getppid()
        self._wakeup = wakeup
        self._disk_fds: set[int] = set()  # can be read when what works on the disk has something to say
        self._unheard: dict[int, float] = {}  # workers that ended, and until when their last words may come
        self._logged: Counter[str] = Counter()
        self._schema: Schema | None = None
        self._early: list[tuple[int, WorkerConnection, m.Declared]] = []
        """Declarations of workers of other hosts that came before the first one of this machine: a host is compared
        with the service, and not the service with a host."""
        self._cell_grants: CellGrants | None = None
        self._poll = Poller()
        self._clients = clients
        workers.before_admitting = partial(clients.pause_accepting, self._timing.worker_connects)
        self._hubs = [workers, clients, *([] if hosts is None else [hosts.hub])]
        self._lacked = -spec.timing.descriptor_notice
        self._listeners: set[Any] = set()
        for hub in self._hubs:
            hub.on_refusal = self._log_refused
            self._listeners.update(hub.listeners)
            self._poll.add(hub.handle)
        for handle in (control, wakeup, *self._listeners):
            self._poll.add(handle)
        if hosts is not None:
            hosts.begin(self.log)
        self._accepted = 0.0
        self._starved = False  # the engine waits for a descriptor: it looks by itself, without an event
        self._poll.add(engine.fileno())
        self._began = time.monotonic()
        self._release_at = self._began + self._timing.heap_release
        self._scaling = ScalingAdvisor()
        self._endpoint: MetricsEndpoint | None = None
        self._advised_at = self._busy_seconds = 0.0
        self._read_samples = self._worker_busy_us = self._worker_idle_us = 0

    # -- running ---------------------------------------------------------------------------------------------------
    def started(self, show: Callable[[str], None]) -> None:
        """Start the workers of this machine, if there are to be some, and wait for the first that is ready; call
        ``show`` with what the user's code does meanwhile. Raises what keeps the service from starting."""
        if self._spec.metrics is not None:
            self._endpoint = start_endpoint(self._spec.metrics)
        self._apply(self._worker_pool.start())
        while self._schema is None and self._spec.workers:
            self._round(self._timing.tick)
            show(self._engine.progress)

    def run(self) -> None:
        """Serve until Stop or an error that the service cannot survive."""
        timeout = 0.0
        while True:
            timeout = 0.0 if self._round(timeout) else self._patience()

    def _patience(self) -> float:
        limit = self._spec.sample_timeout
        tick = self._timing.tick if self._spec.worker_memory is None else self._timing.memory_check
        return tick if limit is None else min(tick, limit / 4)

    def _round(self, timeout: float) -> bool:
        """Do one turn: take what came, do what follows, send what can be sent. Return True if more can be done at
        once."""
        ready = self._poll.wait(int(timeout * 1000))
        now = time.monotonic()
        if self._control in ready and self._stop_requested():
            raise ServiceStop("its program closed it", asked=True)
        if self._control in ready or os.getppid() != self._parent:
            # the second look is for a program that forked: its children hold the other end of the control channel too
            raise ServiceStop(f"the program that started it (pid {self._parent}) is gone")
        if self._wakeup in ready:
            number = os.read(self._wakeup, 1)
            raise ServiceStop(f"it received {signal.Signals(number[0]).name}")
        if not self._disk_fds.isdisjoint(ready):
            self._gateway.take_disk_answers()
        if self._engine.fileno() in ready or self._starved:
            self._engine_events()
        if not ready.isdisjoint(self._listeners) or now - self._accepted > self._timing.descriptor_check:
            self._accept(now)
        more = self._inbox.receive(now, _MAX_MESSAGES)
        if self._hosts is not None:
            more = self._host_events(self._hosts, now) or more
        more = self._gateway.receive(now) or more
        self._apply_deferred()
        more = self._gateway.serve(_BURST) or more
        self._apply_deferred()
        self._gateway.deliver(now)  # what was lost is written down before a trainer hears of it
        self._gateway.watch(now)
        self._watchdog.check(now)
        for worker in [worker for worker, until in self._unheard.items() if now > until]:
            del self._unheard[worker]
            self._exited(worker, 0)
        if now - self._advised_at > _ADVISE_SECONDS:
            self._advise(now)
        if self.own_files.is_look_due(now):
            self._look_at_files(now)
        if now > self._release_at:
            began = time.thread_time()
            release_free_heap()
            took = time.thread_time() - began
            self._release_at = now + min(max(self._timing.heap_release, took / _RELEASE_SHARE), _LATEST_RELEASE)
        self._busy_seconds += time.monotonic() - now
        return more

    def _advise(self, now: float) -> None:
        """Give the scaling advisor what was counted until now."""
        self._advised_at = now
        samples, waited, worked, attached = self._gateway.trainer_totals()
        totals = Totals(
            samples, waited, worked, self._read_samples, self._worker_busy_us / 1e6, self._worker_idle_us / 1e6,
            self._busy_seconds,
        )  # fmt: skip
        self._scaling.add(now, totals, self._worker_pool.target, attached=attached)
        if self._endpoint is not None:
            self._endpoint.publish(self._gateway.stats(), ready=bool(self._worker_pool.active))

    def _look_at_files(self, now: float) -> None:
        """Look whether the sockets are still where others find them."""
        if (text := self.own_files.look(now)) is not None:
            self.log(f"the service goes on, but {text}; who is connected stays, nobody else can connect: {REMEDY}", "")
            if not self.own_files.is_at_place(self._spec.worker_address):
                self._worker_pool.no_replacement = ServiceLost(f"no worker can be replaced, because {text}; {REMEDY}")

    def _accept(self, now: float) -> None:
        """Let workers and trainers in."""
        self._accepted = now
        for hub in self._hubs:
            hub.accept(now)

    def _log_refused(self, text: str, kind: str) -> None:
        """Log why a connection was refused, whenever the hub says so; a lack of descriptors once, until there has been
        none for a while."""
        if kind != LACKS_DESCRIPTORS:
            self.log(f"{kind}: {text}", "")
            return
        now = time.monotonic()
        if now - self._lacked > self._timing.descriptor_notice:
            self.log(text, "")
        self._lacked = now

    def _stop_requested(self) -> bool:
        """Return True if the program asked for the end. If it sent no word, it is gone."""
        try:
            return bool(os.read(self._control, 16))
        except OSError:
            return False

    # -- workers ---------------------------------------------------------------------------------------------------
    def _engine_events(self) -> None:
        try:
            events = self._engine.events()
        except EngineLost as lost:
            raise ServiceLost(str(lost)) from None
        for event in events:
            match event:
                case Started(worker, pid):
                    self._connections.setdefault(worker, WorkerConnection(b"", worker_link(LinkRole.SERVER))).pid = pid
                    self._inbox.started(worker, pid, time.monotonic())
                case Exited(worker, _, status):
                    self._inbox.receive(time.monotonic())  # all that it had sent, before others get its files
                    connection = self._connections.get(worker)
                    if status == 0 and (
                        connection is None or connection.link.state in (LinkState.NEW, LinkState.STARTING)
                    ):
                        # it ended in order before it was ready: why, it has said, and that is still under way
                        self._unheard[worker] = time.monotonic() + self._timing.worker_last_words
                    else:
                        self._exited(worker, status)
                case EngineNote(text, kind):
                    self.log(text, kind)
        if (
            self._engine.out_of_descriptors != self._starved
        ):  # what cannot be taken now must not wake us until it can be
            self._starved = self._engine.out_of_descriptors
            (self._poll.remove if self._starved else self._poll.add)(self._engine.fileno())

    def _exited(self, worker: int, status: int) -> None:
        connection = self._connections.pop(worker, None)
        status_row = self._worker_pool.status_row_of(worker)
        if connection is not None:
            self._inbox.forget(connection)
        if self._cell_grants is not None:
            self._cell_grants.worker_gone(worker)
        self._look_at_files(time.monotonic())  # it may have ended because it could not connect
        watched = connection or WorkerConnection(b"", worker_link(LinkRole.SERVER))
        running = None
        if status_row is not None:
            row = WorkerStatus(self._engine.row(status_row))
            running = row.last_sample if watched.broke_protocol else row.running_sample
        self._apply(
            self._worker_pool.handle(
                WorkerGone(
                    worker, running, watched.kill_reason or _describe_exit(status),
                    not _is_sigkill(status) or bool(watched.kill_reason), watched.over_memory, watched.sample_timeout,
                    broke_protocol=watched.broke_protocol,
                )
            )
        )  # fmt: skip

    def _handle_worker(self, worker: int, connection: WorkerConnection, frames: list[memoryview], now: float) -> None:
        message, body = m.decode(frames)
        connection.link.check_received(message)
        match message:
            case m.Declared():
                self._declared(worker, connection, message)
            case m.Broken(error):
                self._apply(self._worker_pool.handle(WorkerBroken(worker, from_wire(error))))
            case m.Chunk():
                self._chunk(worker, connection, message, body, now)
            case m.ReturnFiles(attempts):
                self._worker_pool.return_files(worker, set(check_ints("ReturnFiles", attempts, len(attempts))))

    def _declared(self, worker: int, connection: WorkerConnection, message: m.Declared) -> None:
        """Compare what the provider declares in ``worker`` with what others had, and let the worker read."""
        schema, source = message.schema, message.source_fingerprint
        declared = Schema.from_wire(schema)
        if self._schema is None and connection.host and self._spec.workers:
            self._early.append((worker, connection, message))
            return
        if self._hosts is not None:
            try:
                if connection.host and not self._check_host_provider(connection.host, declared, source):
                    return
                self._hosts.check_source(connection.host, source, message.modules)
            except HostRefused as error:
                self._apply(self._worker_pool.handle(WorkerBroken(worker, error)))
                return
        if self._schema is None:
            for note in message.warnings:
                self.log(str(note), "")
            if not connection.host:
                self._watchdog.check_first_worker(connection.pid)
            self._schema = declared
            self._cell_grants = create_cell_grants(self._schema, self._spec.memory_limit, self._spec.workers)
            if self._cell_grants is not None:
                self._hub.fd_offer.offered = self._cell_grants.for_workers
            self._gateway.provider_ready(self._schema, source, self._cell_grants)
            for each in self._gateway.disk_threads:
                self._disk_fds.add(each.wake_fd)
                self._poll.add(each.wake_fd)
        self._apply(self._worker_pool.handle(WorkerReady(worker, schema)))
        early, self._early = self._early, []
        for other, its, said in early:
            if self._connections.get(other) is its:  # it was not lost meanwhile
                self._declared(other, its, said)

    def _check_host_provider(self, host: int, declared: Schema, source: str) -> bool:
        """Return False if ``host``, which has a worker with this provider, was turned away meanwhile. Raises
        HostRefused if it is the first one, and the state directory was written with another provider."""
        assert self._hosts is not None
        session = self._hosts.sessions.get(host)
        if session is not None and self._schema is None:
            wrong = self._snapshotter.provider_differences(
                len(self._files), lambda options: provider_identity(options, declared, self._spec, self._files, source)
            )
            check_state_directory(session.name, wrong)
        return session is not None

    def _may_begin(self, worker: int) -> bool:
        """Return False if ``worker`` was killed as it began, and its exit was noticed before its first message came."""
        if not self._worker_pool.was_started(worker):
            raise RemoteProtocolError(f"Hello from worker {worker}, which was not started")
        return self._worker_pool.status_row_of(worker) is not None

    def _chunk(
        self, worker: int, connection: WorkerConnection, chunk: m.Chunk, body: Sequence[memoryview], now: float
    ) -> None:
        self._read_samples += chunk.rows
        self._worker_busy_us += max(0, chunk.busy_us - connection.last_busy)
        self._worker_idle_us += max(0, chunk.idle_us - connection.idle)
        connection.last_busy, connection.idle = chunk.busy_us, chunk.idle_us
        if self._schema is None:
            return
        worker_pool = self._worker_pool
        keep, grants = self._gateway.caching, self._cell_grants
        taken = None if grants is None or connection.host else partial(grants.claim, worker)
        servers = None if self._hosts is None else self._hosts.row_servers
        on_host = None
        if servers is not None and connection.host in servers:
            on_host = partial(servers.accept, connection.host)
        decoded = decode_chunk(
            chunk, body, self._schema, worker_pool.wanted_samples, keep=keep, taken=taken, on_host=on_host
        )
        commit_chunk(decoded, partial(worker_pool.commit, worker))
        self._grant_cells(worker)
        connection.rates.add(now, chunk.rows)
        for item in chunk.blocked:
            if not (isinstance(item, list) and len(item) == 4 and all(type(v) is int and v >= 0 for v in item)):
                raise RemoteProtocolError("Chunk: malformed blocked entry")
            worker_pool.worker_blocked(worker, *item)

    # -- workers on other hosts ------------------------------------------------------------------------------------
    def _host_events(self, hosts: HostGateway, now: float) -> bool:
        """Take what came from other hosts. Return True if there may be more."""
        events, more = hosts.receive(now, _MAX_MESSAGES)
        for event in [*events, *hosts.watch(now)]:
            self._host_event(hosts, event, now)
        for session in hosts.draining():
            is_empty = self._worker_pool.is_drained(session.host) and not hosts.row_servers.row_count(session.host)
            if is_empty or now > session.drain_until:
                hosts.release(session.host)
                more = True
        hosts.release_rows()
        hosts.allow_readers(self._gateway.trainer_keys)
        return more

    def _host_event(self, hosts: HostGateway, event: HostEvent, now: float) -> None:
        match event:
            case HostReady(host, worker_slots):
                self._apply(self._worker_pool.add_host(host, worker_slots))
                self._gateway.fit_budget()
            case HostLeaves(host):
                self._worker_pool.drain_host(host)
                hosts.send_rows(host)
            case HostGone(host, running, how, rows_lost):
                for worker in self._worker_pool.workers_of(host):
                    self._connections.pop(worker, None)
                self._worker_pool.remove_host(host, running, how)
                self._gateway.fit_budget()
                if rows_lost:
                    self._gateway.rows_lost()
            case RemoteStarted(host, worker, pid):
                if self._worker_pool.host_of(worker) == host:
                    self._remote(host, worker).pid = pid
            case RemoteMessage(host, worker, frames):
                if self._worker_pool.host_of(worker) == host:
                    self._remote_message(hosts, host, worker, frames, now)
            case RemoteExited(host, exited, running_sample):
                if self._worker_pool.host_of(exited.worker) == host:
                    self._remote_exited(exited, running_sample)

    def _remote(self, host: int, worker: int) -> WorkerConnection:
        return self._connections.setdefault(worker, WorkerConnection(b"", worker_link(LinkRole.SERVER), host=host))

    def _remote_message(self, hosts: HostGateway, host: int, worker: int, frames: list[memoryview], now: float) -> None:
        connection = self._remote(host, worker)
        try:
            self._handle_worker(worker, connection, frames, now)
        except ProtocolError as error:
            self.log(f"worker {worker} broke the protocol: {error}", "protocol")
            connection.begin_end(WatchEvent.BREAK_PROTOCOL, break_text(error))
            hosts.kill(host, worker, now)

    def _remote_exited(self, exited: m.WorkerExited, running: tuple[int, int, int] | None) -> None:
        connection = self._connections.pop(exited.worker, None)
        known = "" if connection is None else connection.kill_reason
        reason = known or exited.kill_reason
        self._apply(
            self._worker_pool.handle(
                WorkerGone(
                    exited.worker, running, reason or _describe_exit(exited.status),
                    not _is_sigkill(exited.status) or bool(reason), exited.over_memory,
                    self._spec.sample_timeout if exited.timed_out else None,
                    broke_protocol=connection is not None and connection.broke_protocol,
                )
            )
        )  # fmt: skip

    # -- doing what the pure part decided --------------------------------------------------------------------------
    def _apply(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(worker, message, frames):
                    self._send(worker, message, frames)
                case Spawn(worker, status_row, host):
                    if host == THIS_HOST:
                        self._engine.start(worker, status_row)
                    elif self._hosts is not None:
                        self._hosts.start(host, worker, status_row)
                case TurnAway() | SendRowsOf():
                    self._apply_to_host(action)
                case Log(text, kind):
                    self.log(text, kind)
                case Loss():
                    self._quarantine.write(action)
                case Fatal(error):
                    raise error

    def _apply_to_host(self, action: TurnAway | SendRowsOf) -> None:
        match action:
            case _ if self._hosts is None:
                pass
            case TurnAway(host, error):
                self._hosts.turn_away(host, error)
            case SendRowsOf(host):
                self._hosts.send_rows(host)

    def _apply_deferred(self) -> None:
        actions, self._gateway.outbox = self._gateway.outbox, []
        self._apply(actions)
        self._apply(self._worker_pool.dispatch())

    def _send(self, worker: int, message: m.Message, frames: Sequence[Any] = ()) -> None:
        connection = self._connections.get(worker)
        if connection is None or connection.link.state is not LinkState.READY:
            return
        if isinstance(message, m.Assign):
            self._grant_cells(worker)
        connection.link.check_sending(message)
        if connection.host and self._hosts is not None:
            self._hosts.send(connection.host, worker, [m.encode(message), *frames])
            return
        with contextlib.suppress(PeerGone):  # its exit is on the way, and its files go to another
            self._hub.send(connection.peer, [m.encode(message), *frames])

    def _grant_cells(self, worker: int) -> None:
        """Grant ``worker`` cells for what it sends next, if it sees their memory."""
        if self._cell_grants is None or self._connections[worker].host:
            return
        if (cells := self._cell_grants.next_grant(worker)) is not None:
            self._send(worker, m.GrantCells(), [cells])

    def log(self, text: str, kind: str) -> None:
        """Write a line to stderr. Of each kind (but '') the first few are written, then a count at every power of
        two."""
        if kind:
            self._logged[kind] += 1
            count = self._logged[kind]
            if count > _SHOWN:
                if count & (count - 1) == 0:
                    write_stderr(f"pydp2: {kind}: {count} so far")
                return
            text = f"{kind}: {text}"
        write_stderr(f"pydp2: {text}")

    def close(self, reason: str, error: Error | None = None, *, asked: bool = False) -> None:
        """Tell everybody, of ``error`` too if that is why, and end the workers. ``asked``: its program wanted that."""
        self._worker_pool.close()
        self._gateway.close(reason, error, asked=asked)
        if self._hosts is not None:
            self._hosts.close(reason, error, will_restart=self._snapshotter.durable and not asked)
        self._snapshotter.close()
        self._engine.close()
        self._quarantine.close()
        for each in self._gateway.disk_threads:
            each.close()
        if self._cell_grants is not None:
            self._cell_grants.close()
        if self._endpoint is not None:
            self._endpoint.close()

    def stats(self) -> dict[str, Any]:
        """Return statistics of the workers as plain data."""
        now = time.monotonic()
        return {
            "workers": [
                {
                    "worker": number, "pid": connection.pid, "active": self._worker_pool.is_active(number),
                    "files": self._worker_pool.files_of(number),
                    "samples_per_second": connection.rates.per_second(now),
                    "busy_seconds": connection.last_busy / 1e6, "idle_seconds": connection.idle / 1e6,
                    "memory": 0 if connection.host else resident_bytes(connection.pid), "host": connection.host,
                }
                for number, connection in sorted(self._connections.items())
            ],
            "metrics": None if self._endpoint is None else self._endpoint.address,
            "scaling": self._scaling.advice.to_plain(self._worker_pool.target),
            "hosts": [] if self._hosts is None else self._hosts.stats(now),
            "refused": self._refused(now),
            "memory": resident_bytes(os.getpid()),
            "workers_lost": self._worker_pool.workers_lost, "removed_files": self.own_files.missing,
            "uptime_seconds": now - self._began,
        }  # fmt: skip

    def _refused(self, now: float) -> list[dict[str, Any]]:
        """Return the peers that were not let in, as plain data, by the port that they came to."""
        ports = {"workers": self._hub, "trainers": self._clients}
        if self._hosts is not None:
            ports["hosts"] = self._hosts.hub
        found = [{"port": port, **each} for port, hub in ports.items() for each in hub.refusals.to_plain(now)]
        return sorted(found, key=lambda each: each["seconds_ago"])


def _is_sigkill(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _describe_exit(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = number in {int(each) for each in signal.Signals}  # real-time signals have no names
        return f"was killed by {signal.Signals(number).name if known else f'signal {number}'}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
