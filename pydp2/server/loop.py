"""Run the one loop of a server: it waits for sockets and processes, lets each part handle its input, and sends the
results. The loop itself decides nothing.

Theory of operation
-------------------
All decisions of a service are made in this thread, one event after the other, so no part needs a lock, and no part sees
another halfway through a change. A turn goes through the parts in a fixed order, and they rely on this order:

1. *Workers* come before trainers, and the starts and ends of processes before their messages
   (:mod:`pydp2.host.local_workers`). If a chunk that has arrived completes a batch, the batch is cut in this turn.
2. The requests of trainers are read. Then the messages for workers that follow from them are sent, before batches are
   made: workers read on while the server is busy with the batches.
3. Batches are made, a bounded number of them. Then the credit that they free is sent, for the same reason.
4. Only then the batches are sent to trainers: a loss is in the quarantine before the first trainer can see its effect.
5. Timers come last: a trainer counts as silent only after all messages that have arrived were read, each with the time
   at which it was read. Otherwise a server that was itself stopped for a minute, by a signal, would find every trainer
   late.

A turn waits only in its first line, and reads a bounded number of messages of each kind, so that a flood from one side
does not block the others. If a part stopped at its bound, the next turn begins at once. The simple way, to empty each
queue before the next part has its turn, lets a fast worker starve the trainers.

The loop polls for changes that no descriptor announces: whether its program still runs (its parent's pid, once a turn),
and several times a second the checks in :meth:`Server._do_chores`.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pydp2.data.columns.columns import free_kept_memory
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import Error, ServiceLost, without_secrets
from pydp2.host.engine import Engine
from pydp2.host.fetching import Fetching
from pydp2.host.local_workers import LocalWorkers
from pydp2.host.own_files import REMEDY, OwnFiles
from pydp2.host.worker_activity import LOOK_SECONDS
from pydp2.options.file_list import FileList
from pydp2.options.service_spec import ServiceSpec
from pydp2.protocol.spans import SpanKind
from pydp2.server.available_memory import release_free_heap
from pydp2.server.gateway.job_table import JobTable
from pydp2.server.gateway.router import ClientGateway
from pydp2.server.hosts.host_gateway import HostGateway
from pydp2.server.jobs.plan import provider_identity
from pydp2.server.scaling import Limits, ScalingAdvisor, Totals
from pydp2.server.snapshots.snapshotter import Snapshotter
from pydp2.server.tracing import TraceRecorder, TraceState
from pydp2.server.worker_gateway import WorkerGateway
from pydp2.server.workers.cell_grants import CellGrants
from pydp2.server.workers.worker_pool import WorkerPool
from pydp2.system.log_events import LogEvent, LogFields
from pydp2.system.log_writer import write_event
from pydp2.system.process_memory import resident_bytes
from pydp2.system.processors import cores
from pydp2.transport import Hub, Poller
from pydp2.transport.hub import LACKS_DESCRIPTORS

if TYPE_CHECKING:
    from pydp2.server.metrics_endpoint import MetricsEndpoint

_ADVISE_SECONDS = 1.0  # seconds between two updates of the scaling advice
_RELEASE_SHARE = 0.001  # share of the time for releasing free heap memory, which is slow for a heap with many gaps
_LATEST_RELEASE = 60.0  # seconds after which memory is released in any case
_SHOWN = 5  # lines of each kind that the log shows in full
_EVENTS = 50  # last lines of the log that the statistics show
_BURST = 32  # batches that are sent before messages are read again


def start_endpoint(address: str) -> MetricsEndpoint:
    """Return an endpoint for metrics at ``address``. The import is here, so that only services with metrics do it."""
    from pydp2.server.metrics_endpoint import MetricsEndpoint

    return MetricsEndpoint(address)


class ServiceStop(Exception):
    """The service ends; the text says why. ``asked``: the program asked for it and needs no message."""

    def __init__(self, reason: str, *, asked: bool = False) -> None:
        super().__init__(reason)
        self.requested = asked


class Server:
    """Server of one service. It ends when the descriptor ``control`` can be read, or its other end is closed."""

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
        self._spec, self._timing, self._files, self._engine = spec, spec.timing, files, engine
        self._control, self._wakeup = control, wakeup
        self._parent = os.getppid()
        self._poll = Poller()
        self._hosts = hosts
        self.fetching: Fetching | None = None
        """Fetch process of this machine."""
        self._logged: Counter[str] = Counter()
        self._events: deque[tuple[float, LogEvent, str, LogFields]] = deque(maxlen=_EVENTS)
        self.pool = WorkerPool(spec.workers)
        """Pool of the workers, on all hosts."""
        self._snapshotter = Snapshotter(spec.state_dir, self.log, spec.timing)
        row_servers = None if hosts is None else hosts.row_servers
        self._jobs = JobTable(spec, files, clients, self.pool, self.log, self._snapshotter, row_servers)
        self._trace = TraceRecorder(files)
        self._gateway = ClientGateway(spec, clients, self._jobs, self.log, self._snapshotter, self.stats, self._trace)
        local = LocalWorkers(spec, files, engine, workers, self._poll, self.log)
        self._patience = local.patience
        self.workers = WorkerGateway(spec, self.pool, local, hosts, self._jobs, self._gateway, self, self._trace)
        """Gateway to the worker processes of the pool."""
        self.own_files = OwnFiles(spec.timing.file_check, spec.run_dir, spec.client_address, spec.state_dir)
        self._disk_fds: set[int] = set()  # readable when a disk thread has answers
        workers.before_admitting = partial(clients.pause_accepting, spec.timing.worker_connects)
        self._hubs = {"workers": workers, "trainers": clients} | ({} if hosts is None else {"hosts": hosts.hub})
        self._lacked = -spec.timing.descriptor_notice
        self._listeners: set[Any] = set()
        for hub in self._hubs.values():
            hub.on_refusal = self._log_refused
            self._listeners.update(hub.listeners)
        for handle in (clients.handle, control, wakeup, *self._listeners):
            self._poll.add(handle)
        if hosts is not None:
            self._poll.add(hosts.hub.handle)
            hosts.begin(self.log)
        self._began = time.monotonic()
        self._chores_at = self._look_at = self._advised_at = self._busy_seconds = 0.0
        self._release_at = self._began + self._timing.heap_release
        self._scaling = ScalingAdvisor()
        self._cores = cores()
        self._endpoint: MetricsEndpoint | None = None

    # -- running ---------------------------------------------------------------------------------------------------
    def started(self, show: Callable[[str], None]) -> None:
        """Start the workers of this machine, if it shall have any, and wait until one is ready. Meanwhile call ``show``
        with texts that say what the user's code is doing. Raises the error that keeps the service from starting."""
        if self._spec.metrics is not None:
            self._endpoint = start_endpoint(self._spec.metrics)
        self.workers.start()
        while self.workers.schema is None and self._spec.workers:
            self._round(self._timing.tick)
            show(self._engine.progress)

    def run(self) -> None:
        """Serve until Stop or an error that the service cannot survive."""
        timeout = 0.0
        while True:
            timeout = 0.0 if self._round(timeout) else self._patience

    def _round(self, timeout: float) -> bool:
        """Do one turn, after at most ``timeout`` seconds of waiting. Return True if more can be done at once."""
        ready = self._poll.wait(int(timeout * 1000))
        now, mark = time.monotonic(), self._trace.own.mark
        mark(None)
        self._check_program(ready)
        if not self._disk_fds.isdisjoint(ready) and self._jobs.resources is not None:
            self._jobs.resources.take_disk_answers()
        if not self._listeners.isdisjoint(ready):
            self._accept(now)
        more = self.workers.receive(ready, now)
        mark(SpanKind.RECEIVE)
        more = self._gateway.receive() or more
        self.workers.dispatch(now)
        mark(SpanKind.OTHER)
        more = self._gateway.serve(_BURST) or more
        mark(SpanKind.CUT)
        self.workers.dispatch(now)
        self._gateway.deliver(now)  # after the losses were recorded: a trainer must not see their effect before
        mark(SpanKind.DELIVER)
        self._gateway.watch(now)
        if self._trace.is_due(now):
            self._go_on_with_trace(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self.workers.look(now)
        if now >= self._chores_at:
            self._do_chores(now)
        mark(SpanKind.OTHER)
        self._busy_seconds += time.monotonic() - now
        return more

    def _go_on_with_trace(self, now: float) -> None:
        """Do the next step of the trace that is being recorded."""
        match self._trace.state:
            case TraceState.ASKED:
                self.workers.record(on=True)
                self._gateway.record(on=True)
                self._trace.start(now)
            case TraceState.STARTING:
                self._trace.begin(now)
            case TraceState.RECORDING | TraceState.ABANDONED:
                self._trace.end(now)
                self.workers.record(on=False)
                self._gateway.record(on=False)
            case TraceState.ENDING:
                self._gateway.send_trace()

    def _check_program(self, ready: set[Any]) -> None:
        """Raise ServiceStop if the program asked for the end or has ended, or a signal came."""
        if self._control in ready and self._stop_requested():
            raise ServiceStop("its program closed it", asked=True)
        if self._control in ready or os.getppid() != self._parent:
            # The parent's pid is for a program that forked: its children keep the other end of the channel open.
            raise ServiceStop(f"the program that started it (pid {self._parent}) is gone")
        if self._wakeup in ready:
            number = os.read(self._wakeup, 1)
            raise ServiceStop(f"it received {signal.Signals(number[0]).name}")

    def _stop_requested(self) -> bool:
        """Return True if the program asked for the end, False if it has ended without a message."""
        try:
            return bool(os.read(self._control, 16))
        except OSError:
            return False

    def _accept(self, now: float) -> None:
        """Accept new workers, trainers and hosts."""
        for hub in self._hubs.values():
            hub.accept(now)

    # -- several times a second ------------------------------------------------------------------------------------
    def _do_chores(self, now: float) -> None:
        """Check the limits of workers, the number of free descriptors, the number of workers that would be right, and
        whether the socket files exist; release free memory."""
        self._chores_at = now + min(self._timing.descriptor_check, self._patience)
        self.workers.watch(now)
        self._accept(now)
        if self.fetching is not None:
            self.fetching.look(self.log)
        if now - self._advised_at > _ADVISE_SECONDS:
            self._advise(now)
        if self.own_files.is_look_due(now):
            self.look_at_files()
        if now > self._release_at:
            began = time.thread_time()
            free_kept_memory()
            release_free_heap()
            took = time.thread_time() - began
            self._release_at = now + min(max(self._timing.heap_release, took / _RELEASE_SHARE), _LATEST_RELEASE)

    def _advise(self, now: float) -> None:
        """Give the present totals to the scaling advisor."""
        self._advised_at = now
        workers = self.workers
        samples, waited, worked, attached = self._jobs.trainer_totals()
        totals = Totals(
            samples,
            waited,
            worked,
            workers.read_samples,
            *workers.busy_and_idle(),
            self._busy_seconds,
            workers.computed_seconds(),
        )
        limits = Limits(self._jobs.readable_files, None if self._hosts is not None else self._cores)
        self._scaling.add(now, totals, self.pool.target, attached=attached, limits=limits)
        if self._endpoint is not None:
            self._endpoint.publish(self.stats(), ready=bool(self.pool.active))

    def look_at_files(self) -> None:
        """Check whether the socket files are still there, where others find them."""
        if (text := self.own_files.look(time.monotonic())) is not None:
            lines = f"the service goes on, but {text}; who is connected stays, nobody else can connect: {REMEDY}"
            self.log(lines, LogEvent.SOCKET_MISSING)
            if not self.own_files.is_at_place(self._spec.worker_address):
                self.pool.no_replacement = ServiceLost(f"no worker can be replaced, because {text}; {REMEDY}")

    # -- the provider ----------------------------------------------------------------------------------------------
    def provider_ready(self, schema: Schema, source: str, cell_grants: CellGrants | None) -> None:
        """Begin to serve, with the provider that the first worker declared."""
        resources = self._jobs.provider_ready(schema, source, cell_grants)
        self._gateway.answer_waiting(time.monotonic())
        for thread in resources.disk_threads:
            self._disk_fds.add(thread.wake_fd)
            self._poll.add(thread.wake_fd)

    def provider_differences(self, schema: Schema, source: str) -> list[str]:
        """Return texts with the differences between that provider and the one of the state directory."""
        return self._snapshotter.provider_differences(
            len(self._files), lambda options: provider_identity(options, schema, self._spec, self._files, source)
        )

    # -- reports to the user ---------------------------------------------------------------------------------------
    def log(self, text: str, event: LogEvent, /, **fields: str | int) -> None:
        """Write a line to stderr. Of an event with a label, the first few lines are written, then a count at every
        power of two."""
        self._events.append((time.monotonic(), event, text, fields))
        if event is LogEvent.PASS_FAILED and self._jobs.is_read_by(str(fields["job"]), self._spec.program_pid):
            return  # this program, which has the same stderr, gets the error as an exception
        if event.label:
            self._logged[event.label] += 1
            count = self._logged[event.label]
            if count > _SHOWN:
                if count & (count - 1) == 0:
                    write_event(f"{count} so far", event, count=count)
                return
        write_event(text, event, **fields)

    def _log_refused(self, text: str, kind: str) -> None:
        """Log why a connection was refused. A lack of descriptors is logged once, and again only after there were
        enough of them for a while."""
        if kind != LACKS_DESCRIPTORS:
            self.log(f"{kind}: {text}", LogEvent.CONNECTION_REFUSED)
            return
        now = time.monotonic()
        if now - self._lacked > self._timing.descriptor_notice:
            self.log(text, LogEvent.CONNECTION_REFUSED)
        self._lacked = now

    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data: of the jobs, and of the server and its workers."""
        now = time.monotonic()
        self._gateway.note_used()
        refused = [{"port": port, **peer} for port, hub in self._hubs.items() for peer in hub.refusals.to_plain(now)]
        return self._jobs.stats() | {
            "workers": self.workers.stats(now),
            "metrics": None if self._endpoint is None else self._endpoint.address,
            "scaling": self._scaling.advice.to_plain(self.pool.target),
            "hosts": [] if self._hosts is None else self._hosts.stats(now),
            "remote": None if self.fetching is None else self.fetching.stats(),
            "refused": sorted(refused, key=lambda peer: peer["seconds_ago"]),
            "events": [
                {
                    "seconds_ago": now - when,
                    "event": event.event_name,
                    "level": event.level,
                    "kind": event.label,
                    "text": without_secrets(text),
                    "about": {name: without_secrets(str(value)) for name, value in fields.items()},
                }
                for when, event, text, fields in self._events
            ],
            "memory": resident_bytes(os.getpid()),
            "busy_seconds": self._busy_seconds,
            "workers_lost": self.pool.workers_lost,
            "removed_files": self.own_files.missing,
            "uptime_seconds": now - self._began,
        }

    # -- the end ---------------------------------------------------------------------------------------------------
    def close(self, reason: str, error: Error | None = None, *, asked: bool = False) -> None:
        """End the service: tell all peers the ``reason``, and the ``error`` if there is one, and end the workers.
        ``asked``: the program asked for the end."""
        self.pool.close()
        self._gateway.close(reason, error, asked=asked)
        if self._hosts is not None:
            self._hosts.close(reason, error, will_restart=self._snapshotter.durable and not asked)
        self._snapshotter.close()
        self._engine.close()
        self.workers.close()
        for thread in () if self._jobs.resources is None else self._jobs.resources.disk_threads:
            thread.close()
        if self._endpoint is not None:
            self._endpoint.close()
