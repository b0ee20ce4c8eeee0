"""Serve the clients of a service: accept and answer their messages, hand them to jobs, send batches."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

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
from pydp2.options.job_options import JobOptions
from pydp2.options.service_spec import ServiceSpec
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.plain_data import pack_unchecked
from pydp2.protocol.trainer_numbers import TrainerNumbers
from pydp2.server.gateway.attach import check_same_options, requested_options
from pydp2.server.gateway.job_table import JobTable
from pydp2.server.gateway.peers import Peers, VanishedPeer
from pydp2.server.jobs.membership import Trainer
from pydp2.server.jobs.session import JobSession
from pydp2.server.snapshots.snapshotter import Snapshotter
from pydp2.server.tracing import TraceRecorder
from pydp2.system.log_events import LogEvent, WriteLog
from pydp2.transport import Hub, Poller

_MAX_PENDING = 64  # peers that ask for a job and have not been answered yet
_MOST_SAMPLE_BYTES = 16 << 20  # of rows that somebody looks at
_MAX_MESSAGES = 256  # taken in one round, so that a flood of them does not keep batches back


class ClientGateway:
    """Clients of a service: the trainers of ``jobs``, and the peers that ask for ``stats``."""

    def __init__(
        self,
        spec: ServiceSpec,
        hub: Hub,
        jobs: JobTable,
        log: WriteLog,
        snapshotter: Snapshotter,
        stats: Callable[[], dict[str, Any]],
        trace: TraceRecorder,
    ) -> None:
        self._spec = spec
        self._hub = hub
        self._jobs = jobs
        self._sessions = jobs.sessions
        self._log = log
        self._snapshotter = snapshotter
        self._stats = stats
        self._trace = trace
        self._peers = Peers(hub, log)
        # until the provider is known, or since when, for a rank that another has
        self._waiting: list[tuple[bytes, m.Attach, float | None]] = []
        self._probed = self._retried = 0.0
        self._has_unread = False  # more came than was read in one turn

    # -- what clients say ------------------------------------------------------------------------------------------
    def receive(self) -> bool:
        """Take what came; True when there may be more."""
        self._has_unread = True
        for _ in range(_MAX_MESSAGES):
            received = self._hub.receive()
            if received is None:
                self._has_unread = False
                return False
            now = time.monotonic()  # not when the turn began: if this process stood still since, no trainer was silent
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
            case m.Attach() if self._jobs.resources is None:
                if len(self._waiting) >= _MAX_PENDING:
                    raise RemoteProtocolError("too many ask for the job before it can begin")
                self._waiting.append((peer, message, None))
            case m.Attach():
                self._attach(peer, message, now)
            case m.AskStats() | m.AskFiles() | m.AskSamples() | m.AskTrace() | m.SetWeights():
                self._answer(peer, message)
            case m.Detach(run, done):
                self._detach(peer, run, done)
            case _:
                self._handle_in_pass(peer, message, body, now)
        self._peers.forget_if_unattached(peer)

    def _answer(self, peer: bytes, message: m.Message) -> None:
        """Answer a peer that needs no place in a job for what it asks."""
        match message:
            case m.AskStats():
                self._peers.send(peer, m.Stats(), [pack_unchecked(self._stats())])
            case m.AskFiles():
                self._peers.send(peer, m.Files(), self._jobs.files.to_buffers())
            case m.AskSamples(job, count):
                self._peers.send(peer, *self._samples(peer, job, count))
            case m.AskTrace(duration_ms):
                self._ask_trace(peer, duration_ms / 1000)
            case m.SetWeights(job, weights):
                self._peers.send(peer, self._set_weights(peer, job, weights))

    def _handle_in_pass(self, peer: bytes, message: m.Message, body: Sequence[memoryview], now: float) -> None:
        found = self._peers.trainer_of(peer)
        if found is None:  # its place was taken, and it has been told
            if isinstance(message, m.BeginPass):
                replaced = Rewound("another process has the place of this trainer; connect again, or end this one")
                self._peers.send(peer, m.Failed(message.request_id, to_wire(replaced)))
            return
        job_session, trainer = found
        match message:
            case m.BeginPass():
                self._begin_pass(job_session, trainer, message, body, now)
            case m.RecordedSpans():
                self._trace.add(peer, message, body)
            case m.RowsUnreachable(addresses):
                self._jobs.rows_unreachable(job_session, trainer, addresses)
            case m.LeavePass(run, done):
                job_session.trainers.leave(trainer, run, done, now)
            case m.Need():
                job_session.count_trainer_time(trainer, message)
                job_session.trainers.need(trainer, message, now)
                job_session.note_used(trainer, now)

    def _samples(self, peer: bytes, job: str, count: int) -> tuple[m.Message, list[Any]]:
        """Return the answer to AskSamples: the first rows of a batch that a trainer of ``job`` has not used yet. They
        are there for as long as it may be sent again."""
        job_session = self._sessions.get(job)
        if self._hub.role_of(peer) == "observer":
            no_role = OptionError("samples need a key with the role trainer, this key has the role observer")
            return m.Refused(to_wire(no_role)), []
        if job_session is None:
            return m.Refused(to_wire(OptionError(f"there is no job {job!r:.80} now"))), []
        schema = job_session.stream.schema.to_wire()
        for trainer in job_session.trainers.registry.trainers.values():
            for held in trainer.flow.in_flight:
                rows = held.batch.rows
                ids = rows.row_ids[: min(count, len(rows))]
                if rows.store.split(ids) is not None:  # they stay on another host
                    continue
                columns = rows.store.take(ids)
                if columns.nbytes <= _MOST_SAMPLE_BYTES:
                    pass_id = job_session.stream.pass_id
                    return m.Samples(schema, columns.rows, pass_id, held.index), [*columns.frames()]
        return m.Samples(schema, 0, 0, 0), []

    def _set_weights(self, peer: bytes, job: str, weights: m.Plain) -> m.Message:
        """Change the weights of a mixture for ``peer``. Return the answer."""
        try:
            if self._hub.role_of(peer) == "observer":
                raise OptionError("set_weights() needs a key with the role trainer, this key has the role observer")
            job_session = self._sessions.get(job)
            if job_session is None:
                raise OptionError(f"there is no job {job!r:.80} now, whose weights could be changed")
            place = job_session.set_weights(weights)
        except Error as error:
            return m.Refused(to_wire(error))
        return m.WeightsSet(*place)

    # -- traces ----------------------------------------------------------------------------------------------------
    def _ask_trace(self, peer: bytes, seconds: float) -> None:
        self._check_trace_peer()
        try:
            self._trace.ask(peer, seconds)
        except OptionError as error:
            self._peers.send(peer, m.Refused(to_wire(error)))

    def _check_trace_peer(self) -> None:
        """Abandon the trace if the peer that asked for it is gone."""
        if self._trace.is_recording and not self._peers.send(self._trace.peer, m.Probe()):
            self._trace.abandon()

    def record(self, on: bool) -> None:
        """Tell all trainers to record spans, or to stop."""
        for job_session, trainer in self._trainers():
            if trainer.peer and on:
                self._record(job_session, trainer)
            elif trainer.peer:
                self._peers.send(trainer.peer, m.RecordSpans(on=False))
        if not on:
            self._trace.drop_trainers({trainer.peer for _, trainer in self._trainers()})

    def _record(self, job_session: JobSession, trainer: Trainer) -> None:
        """Tell one trainer to record spans."""
        label = {"kind": "trainer", "job": job_session.name, "rank": trainer.rank, "number": trainer.number}
        self._trace.add_source(trainer.peer, label | {"pid": trainer.pid, "host": trainer.host})
        self._peers.send(trainer.peer, m.RecordSpans(on=True))

    def send_trace(self) -> None:
        """Send the trace that is over to the peer that asked for it."""
        peer = self._trace.peer
        self._peers.send(peer, m.Trace(), self._trace.take())

    # -- trainers that attach --------------------------------------------------------------------------------------
    def answer_waiting(self, now: float) -> None:
        """Answer those who have asked for a job and had to wait."""
        waiting, self._waiting = self._waiting, []
        for peer, attach, since in waiting:
            if peer in self._peers:  # it may have left meanwhile
                self._attach(peer, attach, now, since)

    def _attach(self, peer: bytes, attach: m.Attach, now: float, since: float | None = None) -> None:
        """Give ``peer`` its rank. It has waited for that since ``since`` if another trainer has it."""
        since = now if since is None else since
        try:
            given = requested_options(attach, self._spec)
            job_session = self._job_of(attach, given, now)
            if self._peers.may_still_detach(job_session, attach) and len(self._waiting) < _MAX_PENDING // 2:
                self._waiting.append((peer, attach, since))
                return
            check_same_options(attach.job, job_session.options, given, job_session.trainers.registry.ending_reason(now))
            position = job_session.trainers.attach(peer, attach, now)
        except JobTaken as taken:
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
        self._welcome(peer, job_session, position)

    def _job_of(self, attach: m.Attach, given: JobOptions, now: float) -> JobSession:
        """Return the job that ``attach`` asks for; if it is not there, it begins with the options ``given``. Raises
        OptionError."""
        job_session = self._sessions.get(attach.job)
        if job_session is not None:  # the trainer that has the rank may have vanished
            known = job_session.trainers.registry.replaced_by(attach)
            self._peers.probe(known)
            self._peers.note_used(job_session, known)
            if job_session.trainers.registry.ends_with(attach.session, now):
                self._drop_job(job_session)
                job_session = None
        if job_session is None:
            numbers = TrainerNumbers(attach.world_size, attach.peer_count)
            job_session = self._jobs.open(attach.job, numbers, given, attach.counting)
        return job_session

    def _welcome(self, peer: bytes, job_session: JobSession, position: dict[str, Any]) -> None:
        """Tell ``peer`` what it is attached to, and where its rank stands."""
        resources = self._jobs.resources
        assert resources is not None
        service = {
            "files": len(self._jobs.files),
            "workers": self._jobs.worker_pool.target,
            "shuffle": job_session.stream.plan.shuffle,
            "position": position,
            "stream_identity": job_session.stream_identity,
            "durable": self._snapshotter.durable,
            "counts": resources.counts.summary(),
            "loss": self._snapshotter.loss,
            "rows": job_session.row_kind,
            "sources": job_session.sources,
        }
        self._peers.send(peer, m.Welcome(job_session.stream.schema.to_wire(), service))
        trainer = job_session.trainers.registry.by_peer(peer)
        if trainer is not None and self._trace.is_recording:
            self._record(job_session, trainer)

    def _drop_job(self, job_session: JobSession) -> None:
        """Forget a job that is over."""
        self._jobs.drop(job_session)
        self._peers.forget_job(job_session)

    # -- passes ----------------------------------------------------------------------------------------------------
    def _begin_pass(
        self, job_session: JobSession, trainer: Trainer, begin: m.BeginPass, body: Sequence[memoryview], now: float
    ) -> None:
        try:
            start = StreamState.from_wire(begin, body, len(self._jobs.files))
        except (OptionError, StateMismatch) as error:
            self._peers.send(trainer.peer, m.Failed(begin.request_id, to_wire(error)))
            return
        job_session.trainers.begin(trainer, begin, start, now)

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
            job_session.trainers.outbox.snapshot_due for job_session in self._sessions.values()
        ):
            self._write_snapshots(now, wait=True)
        if self._jobs.resources is None:
            return
        rows_in_cache = self._jobs.resources.rows_in_cache
        for job_session in list(self._sessions.values()):
            for peer, message, frames, batches in job_session.trainers.outbox.drain(rows_in_cache):
                if self._peers.send(peer, message, frames) and batches:
                    job_session.note_sent(now)

    # -- whether they live -----------------------------------------------------------------------------------------
    def watch(self, now: float) -> None:
        """Look whether trainers, and who asked for a trace, are still there, now and then, and whose lease ran out."""
        self._drop_peers(now)
        if now - self._probed > self._spec.timing.trainer_probe:
            self._probed = now
            for _, trainer in self._trainers():
                self._peers.probe(trainer)
            self._check_trace_peer()
        for job_session, trainer in self._peers.silent_since(now - self._spec.timing.trainer_last_words):
            alone = job_session.trainers.registry.is_single_rank
            text = "the trainer is gone; its job is free" if alone else f"{trainer.name} is gone"
            self._jobs.log_job(job_session.name, text, LogEvent.TRAINER_GONE, rank=trainer.rank)
        if now - self._retried > self._spec.timing.taken_rank_retry:
            self._retried = now
            if self._jobs.resources is not None:
                self.answer_waiting(now)
        for job_session in list(self._sessions.values()):
            if self._has_unread:  # perhaps a message of the trainer that seems to be silent
                continue
            job_session.trainers.check_leases(now)
            self.deliver(now)
            if job_session.trainers.registry.ends_with(None, now):
                self._drop_job(job_session)
        self._write_snapshots(now)

    def _drop_peers(self, now: float) -> None:
        """Part from the peers whose key was removed."""
        for peer in self._hub.take_dropped():
            self._log("the connection of a peer ends: its key was removed", LogEvent.KEY_REMOVED)
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

    def note_used(self) -> None:
        """Note what trainers show to be used and have not said yet."""
        for job_session, trainer in self._trainers():
            self._peers.note_used(job_session, trainer)

    def _write_snapshots(self, now: float, *, wait: bool = False) -> None:
        """Write down how the jobs stand, with what trainers show to be used and have not said yet; if it is time, or
        (``wait``) before this returns."""
        if not (wait or self._snapshotter.is_due(now)):
            return
        self.note_used()
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
        if job_session.trainers.registry.trainers.get(trainer.number) is trainer and trainer.session == gone.session:
            job_session.trainers.detach(trainer, detach.request_id, detach.used_batches, time.monotonic())
        if job_session.trainers.registry.empty and not job_session.trainers.awaits_ranks:
            self._drop_job(job_session)

    def close(self, reason: str, error: Error | None, *, asked: bool) -> None:
        """Tell everybody that the service ends: ``error`` is what it could not survive. Unless its program ``asked``
        for that, it may be started again."""
        if self._snapshotter.durable:
            self._hear_last_words()
        self._write_snapshots(time.monotonic(), wait=True)
        resources = self._jobs.resources
        if resources is not None:
            resources.close()
        back = self._snapshotter.durable and not asked
        for peer in self._peers.all():
            self._peers.send(peer, m.Closing(reason, {} if error is None else to_wire(error), back))
        if resources is not None and resources.pool_memory is not None:
            resources.pool_memory.close()

    def _hear_last_words(self) -> None:
        """Note which trainers have just left: a service that is started again would wait for them."""
        poller = Poller()
        poller.add(self._hub.handle)
        now = time.monotonic()
        give_up = now + self._spec.timing.trainer_last_words
        while self._jobs.is_attached and now < give_up:
            received = self._hub.receive()
            if received is None and not poller.wait(int((give_up - now) * 1000)):
                return
            if received is not None:
                with contextlib.suppress(ProtocolError):
                    message = m.decode(self._hub.open_message(*received))[0]
                    if isinstance(message, m.Detach):
                        self._detach(received[0], message.request_id, message.used_batches)
            now = time.monotonic()
