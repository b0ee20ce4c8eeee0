"""Serve the clients of a service: accept and answer their messages, open jobs, send batches."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.host_rows import RowServers
from pydp2.data.rowstore.region_layout import RegionLayout
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
from pydp2.options.service_spec import ServiceSpec
from pydp2.options.tables import JobOptions
from pydp2.order.sample_source import SampleRun
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.link_states import Link, LinkRole, LinkState, client_link
from pydp2.protocol.plain_data import pack_unchecked
from pydp2.server.actions import DEFAULT_JOB, Action, Log, SendRowsOf
from pydp2.server.available_memory import AvailableMemory, available_memory
from pydp2.server.cache.counts import CountStore
from pydp2.server.cache.disk import DiskCache
from pydp2.server.cache.disk_thread import DiskThread
from pydp2.server.cache.memory import MemoryCache
from pydp2.server.dispatch.cache_fill import CacheFill
from pydp2.server.dispatch.file_counts import FileCounts
from pydp2.server.dispatch.file_dispatcher import ReadContext
from pydp2.server.sessions.attach import (
    cache_origin,
    check_memory,
    check_same_options,
    requested_options,
)
from pydp2.server.sessions.job_session import JobSession, ServiceContext, combine_stats
from pydp2.server.sessions.outbox import drain
from pydp2.server.sessions.refused_peers import RefusedPeers
from pydp2.server.sessions.shared_pool import SharedPool, create_shared_pool
from pydp2.server.sessions.trainer import Trainer
from pydp2.server.sessions.vanished_peer import VanishedPeer
from pydp2.server.snapshots.snapshotter import Snapshotter
from pydp2.server.workers.cell_grants import CellGrants
from pydp2.server.workers.worker_pool import WorkerPool
from pydp2.transport import Hub, PeerGone, Poller, SharedRegion
from pydp2.transport.service_address import without_token

_MAX_PENDING = 64  # peers that ask for a job and have not been answered yet
_MAX_VANISHED = 64  # peers that vanished
_READ_AHEAD = 256 << 20  # bytes read ahead of the merge, where the memory limit allows,
_READ_AHEAD_WORKER = 16 << 20  # or so many for each worker, if that is more
_MAX_MESSAGES = 256  # taken in one round, so that a flood of them does not keep batches back


def read_ahead_budget(workers: int, memory_limit: int) -> int:
    """Return the number of bytes that ``workers`` workers may read ahead of the merge, with this memory limit."""
    return min(max(_READ_AHEAD, _READ_AHEAD_WORKER * workers), memory_limit // 2)


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
        self._links: dict[bytes, Link] = {}
        self._pending: list[tuple[bytes, m.Attach]] = []
        self._waiting: list[tuple[bytes, m.Attach, float]] = []  # since when, for a rank that another has
        self._schema: Schema | None = None
        self._source = ""
        self._cache: CacheFill | None = None
        self._pool_memory: CellGrants | SharedPool | None = None  # where the rows of pools lie, if trainers see it
        self._counts: FileCounts | None = None
        self._disk: DiskCache | None = None  # where the provider asks for one
        self.disk_threads: list[DiskThread[Any]] = []
        """Threads that read and write the cache and the counts on disk; :meth:`take_disk_answers` takes their
        answers."""
        self._available: AvailableMemory | None = None
        self._budget = read_ahead_budget(spec.workers, spec.memory_limit)
        self._sessions: dict[str, JobSession] = {}  # by name of the job
        self._at: dict[bytes, JobSession] = {}  # peers that are attached, and to which job
        self._vanished: dict[bytes, VanishedPeer] = {}
        self._refused = RefusedPeers(hub, log)
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

    def provider_ready(self, schema: Schema, source: str, cell_grants: CellGrants | None = None) -> None:
        """Note that the provider is known, and the cells of its samples: jobs can begin."""
        self._schema = schema
        self._source = source
        self._pool_memory = cell_grants
        if cell_grants is None and not schema.cached_in_memory:
            self._pool_memory = create_shared_pool(schema.slots)
        if self._pool_memory is not None:  # trainers on this machine gather for themselves
            self._hub.fd_offer.offered = self._pool_memory.for_trainers
        if schema.cache:
            self._cache = self._caches(schema)
        self._begin_counts(schema)
        if self._snapshotter.durable:
            self._snapshotter.restore(
                len(self._files), lambda kept: self._open_job(kept.name, kept.world, kept.options), time.monotonic()
            )
        pending, self._pending = self._pending, []
        for peer, attach in pending:
            if peer in self._links:  # it may have left meanwhile
                self._attach(peer, attach, time.monotonic())

    def _caches(self, schema: Schema) -> CacheFill:
        spec = self._spec
        if schema.cached_on_disk and self._source:
            origin = cache_origin(schema, spec, self._files, self._source)
            self._disk = DiskCache(spec.cache_dir, origin, spec.cache_size)
            self.disk_threads.append(self._disk)
        elif schema.cached_on_disk:
            self._log(
                "nothing is cached on disk: the provider is not in a file, so pydp2 could not notice when it changes",
                "",
            )
        return CacheFill(self._in_memory(schema) if schema.cached_in_memory else None, self._disk)

    def _begin_counts(self, schema: Schema) -> None:
        spec = self._spec
        store = None
        if spec.remember_counts and spec.cache_dir and self._source:
            store = CountStore(Path(spec.cache_dir), cache_origin(schema, spec, self._files, self._source))
            self.disk_threads.append(store)
        label = self._files.__getitem__
        self._counts = FileCounts(len(self._files), label, store, early_ends=spec.skip_errors)

    def _in_memory(self, schema: Schema) -> MemoryCache[SampleRun] | None:
        layout = RegionLayout(schema.slots, self._spec.memory_limit - self._budget)
        if not layout.max_rows:
            least = layout.min_row_bytes
            ahead = read_ahead_budget(self._spec.workers, 2 * least)
            self._log(
                f"the cache in memory cannot keep a single sample: one needs at least {least} bytes, and "
                f"the cache may have {layout.limit} of memory_limit={self._spec.memory_limit}; every pass reads its "
                f"files again; raise memory_limit to {least + ahead} or more",
                "cache",
            )
            return None
        row_store = None
        with contextlib.suppress(OSError):  # without that many addresses each file lies where it was read
            lasting = SharedRegion(layout.size)
            row_store = AppendOnlyStore(layout, lasting.memory, lasting.writable_descriptor)
            if lasting.read_only_descriptor is not None:  # here, too
                self._hub.fd_offer.offered = lasting.read_only_descriptor, layout.note
        return MemoryCache(layout.limit, row_store)

    def _rows_in_cache(self, peer: bytes, picked: BatchRows) -> int:
        shown = picked.shared_row_count
        return shown if shown and self._hub.fd_offer.is_used_by(peer) else 0

    def take_disk_answers(self) -> None:
        """Take what was found and done on the disk."""
        for each in (self._cache, self._counts):
            for said in () if each is None else each.take_disk_answers():
                self._log(said.text, said.kind)

    @property
    def caching(self) -> bool:
        """True if what comes from workers now is kept for later passes where it lies."""
        memory = None if self._cache is None else self._cache.memory
        return memory is not None and memory.row_store is None and not memory.full

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
                self._refused.refuse(peer, error, now)
                self._forget(peer)
            self.deliver(now)
        return True

    def _handle(self, peer: bytes, frames: list[memoryview], now: float) -> None:
        if peer in self._refused:
            return  # it has been told
        message, body = m.decode(self._hub.open_message(peer, frames))
        link = self._links.get(peer)
        if peer in self._vanished:
            if isinstance(message, m.Detach):
                self._detach_vanished(self._vanished[peer], message)
            return
        if link is None:
            link = client_link(LinkRole.SERVER)
            if not isinstance(message, m.Attach | m.AskStats):
                raise RemoteProtocolError(f"{type(message).__name__} from a client that is not attached")
            self._links[peer] = link
        link.check_received(message)
        match message:
            case m.Attach() if self._hub.role_of(peer) == "observer":
                no_role = OptionError(
                    "a trainer needs a key with the role trainer, this key has the role observer, which may only ask "
                    "for statistics; use another key"
                )
                self._hub.note_refusal(peer, "an observer that asked for batches", now)
                self._send(peer, m.Refused(to_wire(no_role)))
            case m.Attach() if self._schema is None:
                if len(self._pending) >= _MAX_PENDING:
                    raise RemoteProtocolError("too many ask for the job before it can begin")
                self._pending.append((peer, message))
            case m.Attach():
                self._attach(peer, message, now)
            case m.AskStats():
                self._send(peer, m.Stats(), [pack_unchecked(self.stats())])
            case m.Detach(run, done):
                self._detach(peer, run, done)
            case _:
                self._handle_in_pass(peer, message, body, now)
        self._forget_if_unattached(peer, link)

    def _handle_in_pass(self, peer: bytes, message: m.Message, body: Sequence[memoryview], now: float) -> None:
        job_session = self._at.get(peer)
        match message:
            case m.BeginPass(run):
                if job_session is None or job_session.trainers.registry.by_peer(peer) is None:
                    gone = Rewound("another process has the place of this trainer; connect again, or end this one")
                    self._send(peer, m.Failed(run, to_wire(gone)))
                else:
                    self._begin_pass(job_session, peer, message, body, now)
            case _ if job_session is None or job_session.trainers.registry.by_peer(peer) is None:
                pass  # of one whose place was taken: it has been told
            case m.LeavePass(run, done):
                job_session.trainers.leave(peer, run, done, now)
            case m.Need(_, _, _, waited, worked):
                job_session.count_trainer_time(waited, worked)
                job_session.trainers.need(peer, message, now)

    def _attach(self, peer: bytes, attach: m.Attach, now: float, since: float | None = None) -> None:
        """Give ``peer`` its rank. It has waited for that since ``since`` if another trainer has it."""
        assert self._schema is not None
        try:
            given = requested_options(attach, self._spec)
            job_session = self._sessions.get(attach.job)
            if job_session is not None:  # the trainer that has the rank may have vanished
                known = job_session.trainers.registry.by_rank(attach.rank)
                self._probe(known)
                self._note_used(job_session, known)
            if job_session is not None and job_session.trainers.registry.ends_with(attach.session, now):
                self._drop_job(job_session)
                job_session = None
            if job_session is None:
                job_session = self._open_job(attach.job, attach.world_size, given, attach.counting)
            if self._may_leave(job_session, attach) and len(self._waiting) < _MAX_PENDING // 2:
                self._waiting.append((peer, attach, now if since is None else since))
                return
            check_same_options(attach.job, job_session.options, given, job_session.trainers.registry.ending_reason(now))
            position = job_session.trainers.attach(peer, attach, now)
        except JobTaken as taken:
            since = now if since is None else since
            if now - since > self._spec.timing.taken_rank_notice or len(self._waiting) >= _MAX_PENDING:
                self._send(peer, m.Refused(to_wire(taken)))
            else:
                self._waiting.append((peer, attach, since))  # the trainer that has it may have vanished a moment ago
            return
        except Error as error:
            self._send(peer, m.Refused(to_wire(error)))
            return
        self._at[peer] = job_session
        self.deliver(now)  # before it knows its rank, that is written down: else it could not come back to it
        service = {
            "files": len(self._files), "workers": self._worker_pool.target, "shuffle": job_session.runner.plan.shuffle,
            "position": position, "stream_identity": job_session.stream_identity, "durable": self._snapshotter.durable,
            "counts": self._counts_summary(), "loss": self._snapshotter.loss,
        }  # fmt: skip
        self._send(peer, m.Welcome(self._schema.to_wire(), service))

    def _counts_summary(self) -> dict[str, Any]:
        return {} if self._counts is None else self._counts.summary()

    def _open_job(self, name: str, world: int, given: JobOptions, counting: str = "") -> JobSession:
        """Return the session of a job that begins. Raises OptionError when the machine cannot hold one more."""
        assert self._schema is not None
        if self._available is None:  # now: its processes have what they have, and no job has a pool yet
            self._available = available_memory()
        others = {each.name: each.options for each in self._sessions.values()}
        check_memory(name, given, others, self._spec, self._available, self._schema)
        job_session = self._sessions[name] = JobSession(
            name, world, given, self._context(), functools.partial(self._log_job, name), counting=counting
        )
        return job_session

    def _context(self) -> ServiceContext:
        assert self._schema is not None
        assert self._counts is not None
        spec = self._spec
        read = ReadContext(
            workers=spec.workers, budget=self._budget, label=lambda file: self._files[file],
            skip_errors=spec.skip_errors, error_budget=spec.error_budget, cache=self._cache,
            counts=self._counts, row_servers=self.row_servers,
        )  # fmt: skip
        return ServiceContext(
            schema=self._schema, spec=spec, files=self._files, source=self._source, read=read,
            store=None if self._pool_memory is None else self._pool_memory.store, worker_pool=self._worker_pool,
            act=lambda actions: self.outbox.extend(actions), remember_counts=self._counts.remember,
            is_forgetful=self._snapshotter.is_forgetful, loss=self._snapshotter.loss,
        )  # fmt: skip

    def _log_job(self, job: str, text: str, kind: str, *, names_job: bool = False) -> None:
        """Log ``text`` about ``job``, after its name, unless ``text`` has it or it is the default job alone."""
        named = names_job or (job == DEFAULT_JOB and len(self._sessions) < 2)
        self.outbox.append(Log(text if named else f"job {job!r}: {text}", kind))

    def _drop_job(self, job_session: JobSession) -> None:
        """Forget a job that is over."""
        job_session.trainers.stop()
        del self._sessions[job_session.name]
        if not self._sessions and self._pool_memory is not None:
            self._pool_memory.release_memory()
        self._at = {peer: at for peer, at in self._at.items() if at is not job_session}

    # -- passes ----------------------------------------------------------------------------------------------------
    def _begin_pass(
        self, job_session: JobSession, peer: bytes, begin: m.BeginPass, body: Sequence[memoryview], now: float
    ) -> None:
        try:
            start = StreamState.from_wire(begin, body, len(self._files))
        except (OptionError, StateMismatch) as error:
            self._send(peer, m.Failed(begin.request_id, to_wire(error)))
            return
        self._note_unreachable(job_session, peer, begin.unreachable)
        job_session.trainers.begin(peer, begin, start, now)

    def _note_unreachable(self, job_session: JobSession, peer: bytes, addresses: Sequence[Any]) -> None:
        """Note that ``peer`` could not fetch rows from row servers at ``addresses``: those hosts are to send theirs."""
        trainer = job_session.trainers.registry.by_peer(peer)
        if self.row_servers is None or trainer is None:
            return
        # One that is not found is gone, and that was seen here.
        hosts = {host: each for each in addresses if (host := self.row_servers.host_at(each)) is not None}
        # If another rank has told it before, the pass has been taken up without rows on that host.
        runner = job_session.trainers.runner
        told = [host for host in hosts if self.row_servers.turn_off(host) or runner.may_have_rows_on(host)]
        for host in told:
            self.outbox.append(SendRowsOf(host))
            self._log_job(
                job_session.name,
                f"rank {trainer.rank} cannot fetch rows at {without_token(hosts[host])}; the rows of that host come "
                "through the service from now on; let trainers reach that address, or start the host without a "
                "row server",
                "row server",
            )
        if told:
            job_session.trainers.take_up_again()

    def rows_lost(self) -> None:
        """Note that rows are lost that stayed on a host: passes are taken up where no trainer misses a batch."""
        for job_session in self._sessions.values():
            job_session.trainers.take_up_again()

    @property
    def trainer_keys(self) -> frozenset[str]:
        """Public keys of the trainers that are attached."""
        if self.row_servers is None or not len(self.row_servers):
            return frozenset()
        return frozenset(key for peer in self._at if (key := self._hub.key_of(peer)))

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
        for job_session in [each for each in self._sessions.values() if each.trainers.out]:
            for peer, message, frames, batches in drain(job_session.trainers.out, self._rows_in_cache):
                if self._send(peer, message, frames):
                    job_session.count_sent(batches, now)

    # -- whether they live -----------------------------------------------------------------------------------------
    def watch(self, now: float) -> None:
        """Look whether trainers are still there, now and then, and whose lease ran out."""
        self._drop_peers(now)
        if now - self._probed > self._spec.timing.trainer_probe:
            self._probed = now
            for _, trainer in self._trainers():
                self._probe(trainer)
        for gone in self._vanished.values():
            if gone.when and now - gone.when > self._spec.timing.trainer_last_words:
                gone.when = 0.0
                if gone.job_session is not None and gone.trainer is not None:
                    who = f"rank {gone.trainer.rank} is gone"
                    if gone.job_session.trainers.registry.alone:
                        who = "the trainer is gone; its job is free"
                    self._log_job(gone.job_session.name, who, "trainer")
        if now - self._retried > self._spec.timing.taken_rank_retry:
            self._retried = now
            waiting, self._waiting = self._waiting, []
            for peer, attach, since in waiting:
                if peer in self._links:
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
            self._send(peer, m.Closing("the key of this process was removed, or has another role now", {}, False))
            self._vanish(peer)

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
            self._note_used(job_session, trainer)
        self._snapshotter.write(self._sessions.values(), now, wait=wait)

    def _note_used(self, job_session: JobSession, trainer: Trainer | None) -> None:
        """Note what ``trainer`` shows to be used; that counts although its process has died."""
        if trainer is not None and trainer.peer:
            job_session.trainers.note_used(trainer, self._hub.progress_of(trainer.peer))

    def _may_leave(self, job_session: JobSession, attach: m.Attach) -> bool:
        """Return True if the trainer before that of ``attach`` vanished a moment ago: its last message, which says
        whether it left in order, may not have been read yet."""
        return any(gone.may_leave(job_session, attach) for gone in self._vanished.values())

    def _probe(self, trainer: Trainer | None) -> None:
        if trainer is not None and trainer.peer:
            self._send(trainer.peer, m.Probe())

    def _detach(self, peer: bytes, run: int, done: int) -> None:
        job_session = self._at.pop(peer, None)
        trainer = None if job_session is None else job_session.trainers.registry.by_peer(peer)
        if trainer is not None:
            self._detach_vanished(VanishedPeer(job_session, trainer, 0.0), m.Detach(run, done))

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

    def _vanish(self, peer: bytes) -> None:
        """Note that nothing can be sent to ``peer`` any more. Its last messages, a Detach for one, may still be
        under way."""
        now = time.monotonic()
        job_session = self._at.get(peer)
        trainer = None if job_session is None else job_session.trainers.registry.by_peer(peer)
        if job_session is not None:
            self._note_used(job_session, trainer)
        self._forget(peer)
        self._vanished[peer] = VanishedPeer(job_session, trainer, now if trainer is not None else 0.0)
        if job_session is not None and trainer is not None:
            job_session.trainers.connection_lost(trainer, now)
        if len(self._vanished) > _MAX_VANISHED:
            del self._vanished[next(iter(self._vanished))]

    def _send(self, peer: bytes, message: m.Message, frames: Sequence[Any] = ()) -> bool:
        link = self._links.get(peer)
        if link is None:
            return False
        link.check_sending(message)
        try:
            self._hub.send(peer, [m.encode(message), *frames])
        except PeerGone:
            self._vanish(peer)
            return False
        self._forget_if_unattached(peer, link)
        return True

    def _forget_if_unattached(self, peer: bytes, link: Link) -> None:
        """Forget a peer that only asked, was refused, or left."""
        if link.state is LinkState.NEW:
            self._forget(peer)

    def _forget(self, peer: bytes) -> None:
        self._links.pop(peer, None)
        self._at.pop(peer, None)
        self._hub.forget_peer(peer)

    def close(self, reason: str, error: Error | None, *, asked: bool) -> None:
        """Tell everybody that the service ends: ``error`` is what it could not survive. Unless its program ``asked``
        for that, it may be started again."""
        if self._snapshotter.durable:
            self._hear_last_words()
        self._write_snapshots(time.monotonic(), wait=True)
        if self._counts is not None:
            self._counts.remember()
        for each in self.disk_threads:
            each.stop()
        back = self._snapshotter.durable and not asked
        for peer in list(self._links):
            self._send(peer, m.Closing(reason, {} if error is None else to_wire(error), back))
        if self._pool_memory is not None:
            self._pool_memory.close()

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
        waited, worked = (sum(each.trainer_seconds[i] for each in sessions) for i in (0, 1))
        return sum(each.runner.total_samples for each in sessions), waited, worked, self._is_attached

    @property
    def _is_attached(self) -> bool:
        """True while a trainer is connected."""
        return any(not each.trainers.registry.empty for each in self._sessions.values())

    def stats(self) -> dict[str, Any]:
        """Return statistics as plain data."""
        now = time.monotonic()
        jobs = {name: job_session.stats(now) for name, job_session in self._sessions.items()}
        cache = None if self._cache is None else self._cache.memory
        kept: dict[str, Any] = {} if cache is None else {"files": len(cache), "bytes": cache.bytes}
        if self._disk is not None:
            kept |= {"disk": self._disk.figures()}
        have = self._available or available_memory()
        room = {"bytes": have.bytes, "where": have.where}
        figures = {"jobs": jobs, "cache": kept, "counts": self._counts_summary(), "memory_available": room}
        return combine_stats([*jobs.values()], self._budget) | figures | self.server_stats()
