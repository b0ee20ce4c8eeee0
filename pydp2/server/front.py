"""The clients' side of a service: who is attached, what they are sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from pydp2.cache import PassCache
from pydp2.config import job_options
from pydp2.errors import Error, JobTaken, OptionError, ProtocolError, RemoteProtocolError, StateMismatch, to_wire
from pydp2.files import FileList
from pydp2.inputs.declaration import Declaration
from pydp2.metrics import Rates, bottleneck
from pydp2.order import Run
from pydp2.order.saved import Saved
from pydp2.order.words import ORDER_VERSION
from pydp2.protocol import messages as m
from pydp2.protocol.facts import split, to_frames
from pydp2.protocol.moves import Link, Role, State, client_link
from pydp2.server.actions import Action, Log
from pydp2.server.buckets import chosen, fits, tight
from pydp2.server.coordinator import Coordinator
from pydp2.server.job import Broke, Job, JobPlan, Over, Ready
from pydp2.server.spec import ServiceSpec
from pydp2.transport import Gone, Hub

_PROBE = 2.0  # seconds between looks whether the trainer still lives
_LAST_WORDS = 0.2  # seconds in which what a vanished trainer said last arrives
_QUEUE = 64  # who asks for a job and has not been answered yet
_REMEMBERED = 64  # peers that vanished
_READ_AHEAD = 256 << 20  # bytes read ahead of the merge, where the memory limit allows
_POOL_FRAMES = 1024  # of 64 KiB: a pool of more samples than memory could hold
_MESSAGES = 256  # taken in one round, so that a flood of them does not keep batches back
_PLAN = ("batch_size", "seed", "order", "interleave", "pool_bytes", "last_batch")


class Front:
    """One trainer at a time, and anybody who asks for figures."""

    def __init__(
        self,
        spec: ServiceSpec,
        files: FileList,
        hub: Hub,
        coordinator: Coordinator,
        log: Callable[[str, str], None],
    ) -> None:
        self._spec = spec
        self._files = files
        self._hub = hub
        self._coordinator = coordinator
        self._log = log
        self._links: dict[bytes, Link] = {}
        self._pending: list[tuple[bytes, m.Attach]] = []
        self._waiting: list[tuple[bytes, m.Attach, float]] = []  # since when, for a job that somebody has
        self._declaration: Declaration | None = None
        self._source = ""
        self._cache: PassCache[Run] | None = None
        self._budget = min(_READ_AHEAD, spec.memory_limit // 2)
        self._job: Job | None = None
        self._trainer = b""
        self._vanished: dict[bytes, float] = {}  # peers that are gone, and since when, if nobody was told of it yet
        self._probed = 0.0
        self._samples = Rates()
        self._batches = Rates()
        self._waited = self._worked = 0.0
        self._warned_bytes = False
        self.outbox: list[Action] = []
        """Actions for workers that followed from what clients said; the loop carries them out."""
        self.server_stats: Callable[[], dict[str, Any]] = dict

    def declared(self, declaration: Declaration, source: str) -> None:
        """The provider is known: jobs can begin."""
        self._declaration = declaration
        self._source = source
        if declaration.cache:
            self._cache = PassCache(self._spec.memory_limit - self._budget)
        pending, self._pending = self._pending, []
        for peer, attach in pending:
            if peer in self._links:  # it may have left meanwhile
                self._attach(peer, attach)

    # -- what clients say ------------------------------------------------------------------------------------------
    def receive(self, now: float) -> bool:
        """Take what came; True when there may be more."""
        for _ in range(_MESSAGES):
            received = self._hub.receive()
            if received is None:
                return False
            peer, frames = received
            try:
                self._message(peer, frames, now)
            except ProtocolError as error:
                self._log(f"a client broke the protocol: {error}", "protocol")
                self._gone(peer)
                self._links.pop(peer, None)
        return True

    def _message(self, peer: bytes, frames: Sequence[memoryview], now: float) -> None:
        message, body = m.decode(frames)
        link = self._links.get(peer)
        if peer in self._vanished:
            if isinstance(message, m.Detach):
                self._vanished[peer] = 0.0  # it left in order
            return
        if link is None:
            link = client_link(Role.SERVER)
            if not isinstance(message, m.Attach | m.AskStats):
                raise RemoteProtocolError(f"{type(message).__name__} from somebody who is not attached")
            self._links[peer] = link
        link.received(message)
        match message:
            case m.Attach():
                if self._declaration is None:
                    if len(self._pending) >= _QUEUE:
                        raise RemoteProtocolError("too many ask for the job before it can begin")
                    self._pending.append((peer, message))
                elif self._trainer and len(self._waiting) < _QUEUE:  # the trainer may have vanished a moment ago
                    self._waiting.append((peer, message, now))
                else:
                    self._attach(peer, message)
            case m.BeginPass():
                self._begin(message, body)
            case m.LeavePass(run):
                if self._job is not None and self._job.run == run:
                    self._leave()
            case m.Need(run, count, waited, worked):
                self._waited += waited / 1e6
                self._worked += worked / 1e6
                if self._job is not None and self._job.run == run:
                    self._job.credit += count
            case m.Detach():
                self._gone(peer)
            case m.AskStats():
                self._send(peer, m.Stats(self.stats()))
        self._forget_if_new(peer, link)

    def _attach(self, peer: bytes, attach: m.Attach) -> None:
        assert self._declaration is not None
        try:
            if attach.version != m.WIRE_VERSION:
                raise OptionError(
                    f"the service speaks wire version {m.WIRE_VERSION}, the client {attach.version}; "
                    "use the same release of pydp2 on both sides"
                )
            if self._trainer:
                self._send(self._trainer, m.Probe())  # if it vanished, the job is free
            if self._trainer:
                raise JobTaken(
                    "another trainer reads this job; wait until it has closed its client, or start a service of its own"
                )
            plan = self._plan(attach.options)
        except Error as error:
            self._send(peer, m.Refused(to_wire(error)))
            return
        self._trainer = peer
        self._waited = self._worked = 0.0
        self._warned_bytes = False
        self._job = Job(
            plan,
            self._declaration,
            files=len(self._files),
            label=self._label,
            budget=self._budget,
            workers=self._spec.workers,
            skip_errors=self._spec.skip_errors,
            cache=self._cache,
            error_budget=self._spec.error_budget,
        )
        if -1 != self._declaration.pool_size < plan.batch_size:
            self._log(
                f"pool_size={self._declaration.pool_size} is smaller than batch_size={plan.batch_size}; the pool "
                f"holds {plan.batch_size} instead",
                "pool",
            )
        if warning := tight(plan.buckets, self._declaration.pool_size, plan.batch_size):
            self._log(warning, "pool")
        service = {
            "files": len(self._files), "workers": self._spec.workers, "shuffle": plan.shuffle,
            "fits": self._fits(plan),
        }  # fmt: skip
        self._send(peer, m.Welcome(self._declaration.to_wire(), service))

    def _fits(self, plan: JobPlan) -> dict[str, Any]:
        """What the stream of a job depends on: a state is only good where all of it is the same."""
        assert self._declaration is not None
        declared = self._declaration.to_wire()
        return {
            "order_version": ORDER_VERSION,
            "list": self._files.fingerprint(),
            "provider_source": self._source,
            "args": blake2b(self._spec.args, digest_size=8).hexdigest(),
            "is_train": self._spec.is_train,
            "on_error": "skip" if self._spec.skip_errors else "raise",
            **{name: getattr(plan, name) for name in ("shuffle", *_PLAN)},
            **{name: declared[name] for name in declared if name not in ("shuffle", "slots")},
            "slots": blake2b(repr(declared["slots"]).encode(), digest_size=8).hexdigest(),
            **fits(plan.buckets, self._declaration.slots),
        }

    def _plan(self, options: dict[str, Any]) -> JobPlan:
        given = job_options(**options)
        if given.pool_bytes + self._spec.memory_limit > self._spec.memory:
            raise OptionError(
                f"pool_bytes={given.pool_bytes} and memory_limit={self._spec.memory_limit} together exceed the "
                f"{self._spec.memory} bytes of this machine; lower one of them (pool_bytes is part of the order)"
            )
        assert self._declaration is not None
        shuffle = self._declaration.shuffle if given.shuffle is None else given.shuffle
        buckets = chosen(given, self._declaration.slots)
        return JobPlan(shuffle=shuffle, buckets=buckets, **{name: getattr(given, name) for name in _PLAN})

    def _label(self, file: int) -> str:
        return self._files[file]

    # -- passes ----------------------------------------------------------------------------------------------------
    def _begin(self, begin: m.BeginPass, body: Sequence[memoryview]) -> None:
        job = self._job
        assert job is not None
        if begin.run <= job.run:
            raise RemoteProtocolError(f"run {begin.run} begins after run {job.run}")
        if len(body) > _POOL_FRAMES:
            raise RemoteProtocolError(f"BeginPass: {len(body)} frames, at most {_POOL_FRAMES} are allowed")
        body, told = split("BeginPass", body, begin.facts)
        if bool(body) != bool(begin.saved):
            raise RemoteProtocolError("BeginPass: a point and its pool come together")
        self.outbox.extend(self._coordinator.read(None))
        try:
            saved = Saved.from_wire(begin.saved, b"".join(body), len(self._files)) if begin.saved else None
            facts = {f[0]: (f[1], f[2]) for f in (_fact(fact, len(self._files)) for fact in told)}
            reading = job.begin(
                begin.run, begin.pass_id, begin.credit, batch=begin.batch, saved=saved, facts=facts,
                buckets=begin.buckets,
            )  # fmt: skip
        except Error as error:
            self._send(self._trainer, m.Failed(begin.run, to_wire(error)))
            job.run = begin.run
            return
        self.outbox.extend(self._coordinator.read(reading))
        if begin.batch:
            at = 0 if saved is None else saved.index
            self._log(f"pass {begin.pass_id} is taken up at batch {begin.batch}, from its point before batch {at}", "")

    def _leave(self) -> None:
        if self._job is not None:
            self._job.leave()
        self.outbox.extend(self._coordinator.read(None))

    def _gone(self, peer: bytes) -> None:
        if peer == self._trainer and peer:
            self._leave()
            self._trainer = b""
            self._job = None

    def serve(self, most: int, now: float) -> bool:
        """Send what the trainer has credit for, at most ``most`` batches; True when there may be more."""
        job = self._job
        if job is None or not job.running:
            return False
        for _ in range(most):
            outcome = job.pull()
            if job.byte_limited and not self._warned_bytes:
                self._warned_bytes = True
                self._log(
                    f"pool_bytes={job.plan.pool_bytes} is reached before the pool has the size that was asked for; "
                    "batches are drawn from what fits",
                    "pool",
                )
            match outcome:
                case None:
                    return False
                case Ready(cut, columns, point, new_facts):
                    facts = to_frames(new_facts)
                    head = m.BatchHead(
                        job.run, cut.index, columns.rows, cut.size, cut.pool_weight, cut.padding, cut.gone,
                        {} if point is None else point.to_wire(), len(facts), job.bucket(cut),
                    )  # fmt: skip
                    self._samples.add(now, columns.rows)
                    self._batches.add(now, 1)
                    pool = () if point is None else (point.pool,)
                    if not self._send(self._trainer, head, [*columns.frames(), *pool, *facts]):
                        return False
                case Over(batches, samples, dropped, uniform):
                    self._send(self._trainer, m.PassEnd(job.run, batches, samples, dropped, uniform))
                    if said := job.said_of_padding():
                        self.outbox.append(Log(said))
                    self._leave()  # which tells of the last bad samples
                    if dropped:
                        what = "bad sample was" if dropped == 1 else "bad samples were"
                        self.outbox.append(Log(f"pass {job.pass_id}: {dropped} {what} dropped"))
                    if self._cache is not None and self._cache.full:
                        self._log(
                            f"the cache is full at {self._cache.limit} bytes: the files that did not fit are read "
                            "again in every pass; raise memory_limit to keep all",
                            "cache",
                        )
                    return False
                case Broke(error):
                    self._send(self._trainer, m.Failed(job.run, to_wire(error)))
                    self._leave()
                    return False
        return True

    # -- whether they live -----------------------------------------------------------------------------------------
    def watch(self, now: float) -> None:
        """Look whether the trainer is still there, now and then."""
        if self._trainer and now - self._probed > _PROBE:
            self._probed = now
            self._send(self._trainer, m.Probe())
        for peer in [peer for peer, left in self._vanished.items() if left and now - left > _LAST_WORDS]:
            self._vanished[peer] = 0.0
            self._log("the trainer is gone; its job is free", "trainer")
        if self._waiting and (not self._trainer or now - self._waiting[0][2] > _LAST_WORDS):
            peer, attach, _ = self._waiting.pop(0)
            if peer in self._links:
                self._attach(peer, attach)

    def _vanish(self, peer: bytes) -> None:
        """Nothing can be sent to ``peer`` any more. What it said last may still be under way, Detach for one."""
        trained = peer == self._trainer
        self._links.pop(peer, None)
        self._gone(peer)
        self._vanished[peer] = time.monotonic() if trained else 0.0
        if len(self._vanished) > _REMEMBERED:
            del self._vanished[next(iter(self._vanished))]

    def _send(self, peer: bytes, message: m.Message, frames: Sequence[Any] = ()) -> bool:
        link = self._links.get(peer)
        if link is None:
            return False
        link.sending(message)
        try:
            self._hub.send(peer, [m.encode(message), *frames])
        except Gone:
            self._vanish(peer)
            return False
        self._forget_if_new(peer, link)
        return True

    def _forget_if_new(self, peer: bytes, link: Link) -> None:
        """Who only asked, was refused, or left is as good as never seen: nothing is kept of it."""
        if link.state is State.NEW:
            self._links.pop(peer, None)

    def close(self, reason: str, error: Error | None) -> None:
        """Tell everybody that the service ends: ``error`` is what it could not survive."""
        for peer in list(self._links):
            self._send(peer, m.Closing(reason, {} if error is None else to_wire(error)))

    def stats(self) -> dict[str, Any]:
        """How it is going, as plain data."""
        now = time.monotonic()
        job = self._job
        data = {
            "pass": -1 if job is None else job.pass_id,
            "attached": bool(self._trainer),
            "samples": 0 if job is None else job.total_samples,
            "batches": 0 if job is None else job.total_batches,
            "samples_in_pass": 0 if job is None else job.samples,
            "batches_in_pass": 0 if job is None else job.batches,
            "samples_per_second": self._samples.per_second(now),
            "batches_per_second": self._batches.per_second(now),
            "dropped": 0 if job is None or job.reading is None else job.reading.losses.dropped,
            "pool": {} if job is None else job.pool(),
            "read_ahead": {
                "budget": self._budget,
                "used": 0 if job is None or job.reading is None else job.reading.credit.used,
            },
            "padding": {} if job is None else job.padding_figures(),
            "cache": {} if self._cache is None else {"files": len(self._cache), "bytes": self._cache.bytes},
            "trainer": {"waited_seconds": self._waited, "worked_seconds": self._worked},
            "bottleneck": bottleneck(self._waited, self._worked),
        }
        return data | self.server_stats()


def _fact(wire: Any, files: int) -> tuple[int, int, str]:
    if not isinstance(wire, list) or [type(value) for value in wire] != [int, int, str] or not 0 <= wire[0] < files:
        raise StateMismatch(f"the state has a fact that cannot be: {wire!r:.80}")
    return wire[0], max(0, wire[1]), wire[2]
