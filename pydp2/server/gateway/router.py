"""Serve the clients of a service: accept and answer their messages, open jobs, send batches."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from pydp2.data.rowstore.host_rows import RowServers
from pydp2.data.rowstore.pool_memory import PoolMemory
from pydp2.data.schema.provider_schema import Schema
from pydp2.errors import (
    Error,
    JobTaken,
    OptionError,
    ProtocolError,
    RemoteProtocolError,
    Rewound,
    StateMismatch,
    to_wire,
)
from pydp2.options.file_list import FileList
from pydp2.options.job_options import JobOptions
from pydp2.options.service_spec import ServiceSpec
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.plain_data import pack_unchecked
from pydp2.server.actions import DEFAULT_JOB, Action, Log, SendToHost
from pydp2.server.cache.disk_thread import DiskThread
from pydp2.server.gateway.attach import (
    check_memory,
    check_same_options,
    requested_options,
)
from pydp2.server.gateway.outbox import drain
from pydp2.server.gateway.peers import Peers, VanishedPeer
from pydp2.server.gateway.resources import Resources, memory_figures, read_ahead_budget
from pydp2.server.jobs.membership import Trainer
from pydp2.server.jobs.session import JobSession, ServiceContext, combine_stats
from pydp2.server.snapshots.snapshotter import Snapshotter
from pydp2.server.workers.cell_grants import CellGrants
from pydp2.server.workers.worker_pool import WorkerPool
from pydp2.transport import Hub, Poller
from pydp2.transport.service_address import without_token

_MAX_PENDING = 64  # peers that ask for a job and have not been answered yet
_MAX_MESSAGES = 256  # taken in one round, so that a flood of them does not keep batches back


class ClientGateway:
    """Jobs of a service, the trainers of each, and the peers that ask for statistics."""

    def __init__(
        self,
        spec: ServiceSpec,
        files: FileList,
        hub: Hub,
        worker_pool: WorkerPool,
        log: Callable[[str, str], None],
        snapshotter: Snapshotter,
    ) -> None:
        self._spec = spec
        self._files = files
        self._hub = hub
        self._worker_pool = worker_pool
        self._log = log
        self._snapshotter = snapshotter
        self._peers = Peers(hub, log)
        self._pending: list[tuple[bytes, m.Attach]] = []
        self._waiting: list[tuple[bytes, m.Attach, float]] = []  # since when, for a rank that another has
        self._resources: Resources | None = None  # until the provider is known
        self._budget = read_ahead_budget(spec.workers, spec.memory_limit)
        self._sessions: dict[str, JobSession] = {}  # by name of the job
        self._probed = self._retried = 0.0
        self.outbox: list[Action] = []
        """Actions for workers that followed from what clients said; the loop carries them out."""
        self.server_stats: Callable[[], dict[str, Any]] = dict
        self.row_servers: RowServers | None = None
        """Row servers of other hosts; None: there are no other hosts."""

    def fit_budget(self) -> None:
        """Let as many workers as there are now read ahead."""
        self._budget = read_ahead_budget(self._worker_pool.target, self._spec.memory_limit)
        self._worker_pool.fit_budget(self._budget)
        if self._resources is not None:
            self._resources.budget = self._budget

    def provider_ready(self, schema: Schema, source: str, cell_grants: CellGrants | None = None) -> None:
        """Note that the provider is known, and the cells of its samples: jobs can begin."""
        self._resources = Resources(
            self._spec, self._files, self._hub, self._log, self._budget, schema, source, cell_grants
        )
        if self._snapshotter.durable:
            self._snapshotter.restore(
                len(self._files), lambda kept: self._open_job(kept.name, kept.world, kept.options), time.monotonic()
            )
        pending, self._pending = self._pending, []
        for peer, attach in pending:
            if peer in self._peers:  # it may have left meanwhile
                self._attach(peer, attach, time.monotonic())

    @property
    def disk_threads(self) -> list[DiskThread[Any]]:
        """Threads that read and write the cache and the counts on disk; :meth:`take_disk_answers` takes their
        answers."""
        return [] if self._resources is None else self._resources.disk_threads

    def take_disk_answers(self) -> None:
        """Take what was found and done on the disk."""
        if self._resources is not None:
            self._resources.take_disk_answers()

    @property
    def caching(self) -> bool:
        """True if what comes from workers now is kept for later passes where it lies."""
        return self._resources is not None and self._resources.is_caching

    # -- what clients say ------------------------------------------------------------------------------------------
    def receive(self, now: float) -> bool:
        """Take what came; True when there may be more."""
        for _ in range(_MAX_MESSAGES):
            received = self._hub.receive()
            if received is None:
                return False
            peer, frames = received
            try:
                self._handle(peer, frames, now)
            except ProtocolError as error:
                self._detach(peer, 0, 0)
                self._peers.refuse(peer, error, now)
            self.deliver(now)
        return True

    def _handle(self, peer: bytes, frames: list[memoryview], now: float) -> None:
        if self._peers.is_refused(peer):
            return  # it has been told
        message, body = m.decode(self._hub.open_message(peer, frames))
        if peer in self._peers.vanished:
            if isinstance(message, m.Detach):
                self._detach_vanished(self._peers.vanished[peer], message)
            return
        self._peers.check_received(peer, message)
        match message:
            case m.Attach() if self._hub.role_of(peer) == "observer":
                no_role = OptionError(
                    "a trainer needs a key with the role trainer, this key has the role observer, which may only ask "
                    "for statistics; use another key"
                )
                self._hub.note_refusal(peer, "an observer that asked for batches", now)
                self._peers.send(peer, m.Refused(to_wire(no_role)))
            case m.Attach() if self._resources is None:
                if len(self._pending) >= _MAX_PENDING:
                    raise RemoteProtocolError("too many ask for the job before it can begin")
                self._pending.append((peer, message))
            case m.Attach():
                self._attach(peer, message, now)
            case m.AskStats():
                self._peers.send(peer, m.Stats(), [pack_unchecked(self.stats())])
            case m.Detach(run, done):
                self._detach(peer, run, done)
            case _:
                self._handle_in_pass(peer, message, body, now)
        self._peers.forget_if_unattached(peer)

    def _handle_in_pass(self, peer: bytes, message: m.Message, body: Sequence[memoryview], now: float) -> None:
        found = self._peers.trainer_of(peer)
        if found is None:  # its place was taken, and it has been told
            if isinstance(message, m.BeginPass):
                replaced = Rewound("another process has the place of this trainer; connect again, or end this one")
                self._peers.send(peer, m.Failed(message.request_id, to_wire(replaced)))
            return
        job_session, _ = found
        match message:
            case m.BeginPass():
                self._begin_pass(job_session, peer, message, body, now)
            case m.RowsUnreachable(addresses):
                self._rows_unreachable(job_session, peer, addresses)
            case m.LeavePass(run, done):
                job_session.trainers.leave(peer, run, done, now)
            case m.Need(_, _, _, waited, worked):
                job_session.count_trainer_time(waited, worked)
                job_session.trainers.need(peer, message, now)

    def _attach(self, peer: bytes, attach: m.Attach, now: float, since: float | None = None) -> None:
        """Give ``peer`` its rank. It has waited for that since ``since`` if another trainer has it."""
        assert self._resources is not None
        try:
            given = requested_options(attach, self._spec)
            job_session = self._sessions.get(attach.job)
            if job_session is not None:  # the trainer that has the rank may have vanished
                known = job_session.trainers.registry.by_rank(attach.rank)
                self._peers.probe(known)
                self._peers.note_used(job_session, known)
            if job_session is not None and job_session.trainers.registry.ends_with(attach.session, now):
                self._drop_job(job_session)
                job_session = None
            if job_session is None:
                job_session = self._open_job(attach.job, attach.world_size, given, attach.counting)
            if self._peers.may_still_detach(job_session, attach) and len(self._waiting) < _MAX_PENDING // 2:
                self._waiting.append((peer, attach, now if since is None else since))
                return
            check_same_options(attach.job, job_session.options, given, job_session.trainers.registry.ending_reason(now))
            position = job_session.trainers.attach(peer, attach, now)
        except JobTaken as taken:
            since = now if since is None else since
            if now - since > self._spec.timing.taken_rank_notice or len(self._waiting) >= _MAX_PENDING:
                self._peers.send(peer, m.Refused(to_wire(taken)))
            else:
                self._waiting.append((peer, attach, since))  # the trainer that has it may have vanished a moment ago
            return
        except Error as error:
            self._peers.send(peer, m.Refused(to_wire(error)))
            return
        self._peers.jobs[peer] = job_session
        self.deliver(now)  # before it knows its rank, that is written down: else it could not come back to it
        service = {
            "files": len(self._files),
            "workers": self._worker_pool.target,
            "shuffle": job_session.runner.plan.shuffle,
            "position": position,
            "stream_identity": job_session.stream_identity,
            "durable": self._snapshotter.durable,
            "counts": self._resources.counts.summary(),
            "loss": self._snapshotter.loss,
        }
        self._peers.send(peer, m.Welcome(self._resources.schema.to_wire(), service))

    def _open_job(self, name: str, world: int, given: JobOptions, counting: str = "") -> JobSession:
        """Return the session of a job that begins. Raises OptionError when the machine cannot hold one more."""
        resources = self._resources
        assert resources is not None
        others = {job.name: job.options for job in self._sessions.values()}
        check_memory(name, given, others, self._spec, resources.available, resources.schema)
        job_session = self._sessions[name] = JobSession(
            name, world, given, self._context(resources), functools.partial(self._log_job, name), counting=counting
        )
        return job_session

    def _context(self, resources: Resources) -> ServiceContext:
        shared = None if resources.pool_memory is None else resources.pool_memory.rows
        return ServiceContext(
            schema=resources.schema,
            spec=self._spec,
            files=self._files,
            source=resources.source,
            read=resources.read_context(),
            memory=functools.partial(PoolMemory, resources.schema.slots, shared, self.row_servers),
            worker_pool=self._worker_pool,
            act=lambda actions: self.outbox.extend(actions),
            remember_counts=resources.counts.remember,
            loss=self._snapshotter.loss,
        )

    def _log_job(self, job: str, text: str, kind: str, *, names_job: bool = False) -> None:
        """Log ``text`` about ``job``, after its name, unless ``text`` has it or it is the default job alone."""
        named = names_job or (job == DEFAULT_JOB and len(self._sessions) < 2)
        self.outbox.append(Log(text if named else f"job {job!r}: {text}", kind))

    def _drop_job(self, job_session: JobSession) -> None:
        """Forget a job that is over."""
        job_session.trainers.stop()
        del self._sessions[job_session.name]
        if not self._sessions and self._resources is not None and self._resources.pool_memory is not None:
            self._resources.pool_memory.release_memory()
        self._peers.forget_job(job_session)

    # -- passes ----------------------------------------------------------------------------------------------------
    def _begin_pass(
        self, job_session: JobSession, peer: bytes, begin: m.BeginPass, body: Sequence[memoryview], now: float
    ) -> None:
        try:
            start = StreamState.from_wire(begin, body, len(self._files))
        except (OptionError, StateMismatch) as error:
            self._peers.send(peer, m.Failed(begin.request_id, to_wire(error)))
            return
        job_session.trainers.begin(peer, begin, start, now)

    def _rows_unreachable(self, job_session: JobSession, peer: bytes, addresses: Sequence[Any]) -> None:
        """Have the hosts send their rows that ``peer`` cannot fetch from row servers at ``addresses``."""
        trainer = job_session.trainers.registry.by_peer(peer)
        if trainer is None:
            return
        for host, address in job_session.runner.memory.give_up(addresses).items():
            self.outbox.append(SendToHost(host, m.SendRows()))
            self._log_job(
                job_session.name,
                f"rank {trainer.rank} cannot fetch rows at {without_token(address)}; the rows of that host come "
                "through the service from now on; let trainers reach that address, or start the host without a "
                "row server",
                "row server",
            )
        job_session.trainers.restart_from_resume_point()

    def restart_broken_passes(self) -> None:
        """Take up passes that have lost rows where no trainer misses a batch."""
        for job_session in self._sessions.values():
            job_session.trainers.restart_from_resume_point()

    def trainer_keys(self) -> frozenset[str]:
        """Return the public keys of the trainers that are attached."""
        return frozenset(key for peer in self._peers.jobs if (key := self._hub.key_of(peer)))

    def serve(self, most: int) -> bool:
        """Cut about ``most`` batches that trainers have credit for; :meth:`deliver` sends them. True: more may come."""
        more = False
        for job_session in list(self._sessions.values()):
            more = job_session.serve(max(1, most // len(self._sessions))) or more
        return more

    def deliver(self, now: float) -> None:
        """Send what the jobs have to say; what has to be written down is, before."""
        if self._snapshotter.durable and any(
            job_session.trainers.snapshot_due for job_session in self._sessions.values()
        ):
            self._write_snapshots(now, wait=True)
        if self._resources is None:
            return
        rows_in_cache = self._resources.rows_in_cache
        for job_session in [job for job in self._sessions.values() if job.trainers.out]:
            for peer, message, frames, batches in drain(job_session.trainers.out, rows_in_cache):
                if self._peers.send(peer, message, frames):
                    job_session.count_sent(batches, now)

    # -- whether they live -----------------------------------------------------------------------------------------
    def watch(self, now: float) -> None:
        """Look whether trainers are still there, now and then, and whose lease ran out."""
        self._drop_peers(now)
        if now - self._probed > self._spec.timing.trainer_probe:
            self._probed = now
            for _, trainer in self._trainers():
                self._peers.probe(trainer)
        for job_session, trainer in self._peers.silent_since(now - self._spec.timing.trainer_last_words):
            alone = job_session.trainers.registry.is_single_rank
            text = "the trainer is gone; its job is free" if alone else f"rank {trainer.rank} is gone"
            self._log_job(job_session.name, text, "trainer")
        if now - self._retried > self._spec.timing.taken_rank_retry:
            self._retried = now
            waiting, self._waiting = self._waiting, []
            for peer, attach, since in waiting:
                if peer in self._peers:
                    self._attach(peer, attach, now, since)
        for job_session in list(self._sessions.values()):
            job_session.trainers.check_leases(now)
            self.deliver(now)
            if job_session.trainers.registry.ends_with(None, now):
                self._drop_job(job_session)
        self._write_snapshots(now)

    def _drop_peers(self, now: float) -> None:
        """Part from the peers whose key was removed."""
        for peer in self._hub.take_dropped():
            self._log("the connection of a peer ends: its key was removed", "refused")
            self._hub.note_refusal(peer, "its key was removed", now)
            self._peers.send(peer, m.Closing("the key of this process was removed, or has another role now", {}, False))
            self._peers.vanish(peer)

    def _trainers(self) -> list[tuple[JobSession, Trainer]]:
        """Return all trainers, with the job of each."""
        return [
            (job_session, trainer)
            for job_session in self._sessions.values()
            for trainer in job_session.trainers.registry.trainers.values()
        ]

    def _write_snapshots(self, now: float, *, wait: bool = False) -> None:
        """Write down how the jobs stand, with what trainers show to be used and have not said yet; if it is time, or
        (``wait``) before this returns."""
        if not (wait or self._snapshotter.is_due(now)):
            return
        for job_session, trainer in self._trainers():
            self._peers.note_used(job_session, trainer)
        self._snapshotter.write(self._sessions.values(), now, wait=wait)

    def _detach(self, peer: bytes, run: int, done: int) -> None:
        found = self._peers.trainer_of(peer)
        self._peers.jobs.pop(peer, None)
        if found is not None:
            self._detach_vanished(VanishedPeer(*found, 0.0), m.Detach(run, done))

    def _detach_vanished(self, gone: VanishedPeer, detach: m.Detach) -> None:
        """Detach ``gone``, which left in order; it may have vanished before its last message was read."""
        gone.when = 0.0
        job_session, trainer = gone.job_session, gone.trainer
        if job_session is None or trainer is None or self._sessions.get(job_session.name) is not job_session:
            return
        if job_session.trainers.registry.trainers.get(trainer.rank) is trainer and trainer.session == gone.session:
            job_session.trainers.detach(trainer, detach.request_id, detach.used_batches, time.monotonic())
        if job_session.trainers.registry.empty and not job_session.trainers.awaits_ranks:
            self._drop_job(job_session)

    def close(self, reason: str, error: Error | None, *, asked: bool) -> None:
        """Tell everybody that the service ends: ``error`` is what it could not survive. Unless its program ``asked``
        for that, it may be started again."""
        if self._snapshotter.durable:
            self._hear_last_words()
        self._write_snapshots(time.monotonic(), wait=True)
        if self._resources is not None:
            self._resources.close()
        back = self._snapshotter.durable and not asked
        for peer in self._peers.all():
            self._peers.send(peer, m.Closing(reason, {} if error is None else to_wire(error), back))
        if self._resources is not None and self._resources.pool_memory is not None:
            self._resources.pool_memory.close()

    def _hear_last_words(self) -> None:
        """Note which trainers have just left: a service that is started again would wait for them."""
        poller = Poller()
        poller.add(self._hub.handle)
        now = time.monotonic()
        give_up = now + self._spec.timing.trainer_last_words
        while self._is_attached and now < give_up:
            received = self._hub.receive()
            if received is None and not poller.wait(int((give_up - now) * 1000)):
                return
            if received is not None:
                with contextlib.suppress(ProtocolError):
                    message = m.decode(self._hub.open_message(*received))[0]
                    if isinstance(message, m.Detach):
                        self._detach(received[0], message.request_id, message.used_batches)
            now = time.monotonic()

    def trainer_totals(self) -> tuple[int, float, float, bool]:
        """Return the samples that trainers got, the seconds that they waited and worked, and whether one is there."""
        sessions = [*self._sessions.values()]
        waited, worked = (sum(job.trainer_seconds[i] for job in sessions) for i in (0, 1))
        return sum(job.runner.total_samples for job in sessions), waited, worked, self._is_attached

    @property
    def _is_attached(self) -> bool:
        """True while a trainer is connected."""
        return any(not job.trainers.registry.empty for job in self._sessions.values())

    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data."""
        now = time.monotonic()
        jobs = {name: job_session.stats(now) for name, job_session in self._sessions.items()}
        shared: dict[str, Any] = {"cache": {}, "counts": {}, "memory_available": {}}
        shared |= {"memory_available": memory_figures()} if self._resources is None else self._resources.figures()
        return combine_stats([*jobs.values()], self._budget) | {"jobs": jobs} | shared | self.server_stats()
