"""The clients' side of a service: who is attached, what they are sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pydp2.cache import PassCache
from pydp2.config import JobOptions
from pydp2.errors import Error, JobTaken, ProtocolError, RemoteProtocolError, Rewound, to_wire
from pydp2.files import FileList
from pydp2.inputs.declaration import Declaration
from pydp2.metrics import Rates, bottleneck
from pydp2.order import Run
from pydp2.order.saved import Saved
from pydp2.protocol import messages as m
from pydp2.protocol.facts import split
from pydp2.protocol.moves import Link, Role, State, client_link
from pydp2.server.actions import Action, Log
from pydp2.server.asked import asked, facts_of, fits, numbers_of, plan_of, same
from pydp2.server.buckets import tight
from pydp2.server.coordinator import Coordinator
from pydp2.server.job import Job, Over
from pydp2.server.member import Member
from pydp2.server.reading import Reading
from pydp2.server.spec import ServiceSpec
from pydp2.server.team import Team
from pydp2.transport import Gone, Hub

_PROBE = 2.0  # seconds between looks whether trainers still live
_LAST_WORDS = 0.2  # seconds in which what a vanished trainer said last arrives
_RETRY = 0.05  # seconds between looks whether a place that somebody waits for is free
_PATIENCE = 1.0  # seconds that somebody waits for a place that is taken before that is said
_QUEUE = 64  # who asks for a job and has not been answered yet
_REMEMBERED = 64  # peers that vanished
_READ_AHEAD = 256 << 20  # bytes read ahead of the merge, where the memory limit allows
_POOL_FRAMES = 1024  # of 64 KiB: a pool of more samples than memory could hold
_MESSAGES = 256  # taken in one round, so that a flood of them does not keep batches back


class _Vanished:
    """Somebody who is gone, since ``when``; 0 once it was told."""

    def __init__(self, team: Team | None, member: Member | None, when: float) -> None:
        self.team, self.member, self.when = team, member, when


class Front:
    """The trainers of a service, and anybody who asks for figures."""

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
        self._waiting: list[tuple[bytes, m.Attach, float]] = []  # since when, for a place that somebody has
        self._declaration: Declaration | None = None
        self._source = ""
        self._cache: PassCache[Run] | None = None
        self._budget = min(_READ_AHEAD, spec.memory_limit // 2)
        self._team: Team | None = None
        self._options: JobOptions | None = None
        self._vanished: dict[bytes, _Vanished] = {}
        self._probed = self._retried = 0.0
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
                self._attach(peer, attach, time.monotonic())

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
                self._detached(peer, 0, 0)
                self._links.pop(peer, None)
            self._deliver(now)
        return True

    def _message(self, peer: bytes, frames: Sequence[memoryview], now: float) -> None:
        message, body = m.decode(frames)
        link = self._links.get(peer)
        if peer in self._vanished:
            if isinstance(message, m.Detach):
                self._left(self._vanished[peer], message)
            return
        if link is None:
            link = client_link(Role.SERVER)
            if not isinstance(message, m.Attach | m.AskStats):
                raise RemoteProtocolError(f"{type(message).__name__} from somebody who is not attached")
            self._links[peer] = link
        link.received(message)
        team = self._team
        match message:
            case m.Attach():
                if self._declaration is None:
                    if len(self._pending) >= _QUEUE:
                        raise RemoteProtocolError("too many ask for the job before it can begin")
                    self._pending.append((peer, message))
                else:
                    self._attach(peer, message, now)
            case m.AskStats():
                self._send(peer, m.Stats(self.stats()))
            case m.Detach(run, done):
                self._detached(peer, run, done)
            case m.BeginPass(run):
                if team is None or team.of(peer) is None:
                    gone = Rewound("another process has the place of this trainer; connect again, or end this one")
                    self._send(peer, m.Failed(run, to_wire(gone)))
                else:
                    self._begin(team, peer, message, body, now)
            case _ if team is None or team.of(peer) is None:
                pass  # of one whose place was taken: it has been told
            case m.LeavePass(run, done):
                team.leave(peer, run, done, now)
            case m.Need(_, _, _, waited, worked):
                self._waited += waited / 1e6
                self._worked += worked / 1e6
                team.need(peer, message, now)
        self._forget_if_new(peer, link)

    def _attach(self, peer: bytes, attach: m.Attach, now: float, since: float | None = None) -> None:
        """Give ``peer`` its place. It has waited for that since ``since``, when somebody has it."""
        assert self._declaration is not None
        try:
            given = asked(attach, self._spec)
            self._probe()  # whose place is taken by somebody who vanished has it
            if self._team is not None and self._team.ends_with(attach.session, now):
                self._drop()
            if self._team is None:
                self._make_team(attach, given)
            assert self._team is not None
            assert self._options is not None
            if attach.job != self._team.name:
                raise JobTaken(
                    f"the service reads job {self._team.name!r} and no second one; start a service of its own for "
                    f"{attach.job!r}"
                )
            same(attach.job, self._options, given)
            position = self._team.attach(peer, attach, now)
        except JobTaken as taken:
            since = now if since is None else since
            if now - since > _PATIENCE or len(self._waiting) >= _QUEUE:
                self._send(peer, m.Refused(to_wire(taken)))
            else:
                self._waiting.append((peer, attach, since))  # who has the place may have vanished a moment ago
            return
        except Error as error:
            self._send(peer, m.Refused(to_wire(error)))
            return
        plan = self._team.job.plan
        service = {
            "files": len(self._files), "workers": self._spec.workers, "shuffle": plan.shuffle, "position": position,
            "fits": fits(plan, self._declaration, self._spec, self._files, self._source),
        }  # fmt: skip
        self._send(peer, m.Welcome(self._declaration.to_wire(), service))

    def _make_team(self, attach: m.Attach, given: JobOptions) -> None:
        assert self._declaration is not None
        self._waited = self._worked = 0.0
        self._warned_bytes = False
        plan = plan_of(given, self._declaration)
        job = Job(
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
        self._options = given
        self._team = Team(
            job,
            name=attach.job,
            world=attach.world_size,
            dynamic=given.share == "dynamic",
            lease=given.lease,
            read=self._read,
            over=self._over,
            log=lambda text, kind: self.outbox.append(Log(text, kind)),
        )
        if -1 != self._declaration.pool_size < plan.batch_size:
            self._log(
                f"pool_size={self._declaration.pool_size} is smaller than batch_size={plan.batch_size}; the pool "
                f"holds {plan.batch_size} instead",
                "pool",
            )
        if warning := tight(plan.buckets, self._declaration.pool_size, plan.batch_size):
            self._log(warning, "pool")

    def _label(self, file: int) -> str:
        return self._files[file]

    def _drop(self) -> None:
        """The job is over."""
        if self._team is not None:
            self._team.stop()
        self._team = self._options = None

    # -- passes ----------------------------------------------------------------------------------------------------
    def _read(self, reading: Reading | None) -> None:
        self.outbox.extend(self._coordinator.read(reading))

    def _begin(self, team: Team, peer: bytes, begin: m.BeginPass, body: Sequence[memoryview], now: float) -> None:
        if len(body) > _POOL_FRAMES:
            raise RemoteProtocolError(f"BeginPass: {len(body)} frames, at most {_POOL_FRAMES} are allowed")
        body, told = split("BeginPass", body, begin.facts)
        if bool(body) != bool(begin.saved):
            raise RemoteProtocolError("BeginPass: a point and its pool come together")
        try:
            saved = Saved.from_wire(begin.saved, b"".join(body), len(self._files)) if begin.saved else None
            facts = facts_of(told, len(self._files))
            numbers_of(begin)
        except Error as error:
            self._send(peer, m.Failed(begin.run, to_wire(error)))
            return
        team.begin(peer, begin, saved, facts, now)

    def _over(self, end: Over) -> None:
        assert self._team is not None
        if end.dropped:
            what = "bad sample was" if end.dropped == 1 else "bad samples were"
            self.outbox.append(Log(f"pass {self._team.job.pass_id}: {end.dropped} {what} dropped"))
        if self._cache is not None and self._cache.full:
            self._log(
                f"the cache is full at {self._cache.limit} bytes: the files that did not fit are read "
                "again in every pass; raise memory_limit to keep all",
                "cache",
            )

    def serve(self, most: int, now: float) -> bool:
        """Send what trainers have credit for, about ``most`` batches; True when there may be more."""
        team = self._team
        if team is None:
            return False
        more = team.serve(most)
        if team.job.byte_limited and not self._warned_bytes:
            self._warned_bytes = True
            self._log(
                f"pool_bytes={team.job.plan.pool_bytes} is reached before the pool has the size that was asked for; "
                "batches are drawn from what fits",
                "pool",
            )
        self._deliver(now)
        return more

    def _deliver(self, now: float) -> None:
        """Send what the job has to say."""
        while self._team is not None and self._team.out:
            peer, message, frames = self._team.out.popleft()
            if self._send(peer, message, frames) and isinstance(message, m.BatchHead):
                self._samples.add(now, message.rows)
                self._batches.add(now, 1)

    # -- whether they live -----------------------------------------------------------------------------------------
    def watch(self, now: float) -> None:
        """Look whether trainers are still there, now and then, and whose lease ran out."""
        if now - self._probed > _PROBE:
            self._probed = now
            self._probe()
        for gone in self._vanished.values():
            if gone.when and now - gone.when > _LAST_WORDS:
                gone.when = 0.0
                if gone.team is not None and gone.member is not None:
                    who = f"rank {gone.member.rank} is gone"
                    if gone.team.alone:
                        who = "the trainer is gone; its job is free"
                    self._log(who, "trainer")
        if now - self._retried > _RETRY:
            self._retried = now
            waiting, self._waiting = self._waiting, []
            for peer, attach, since in waiting:
                if peer in self._links:
                    self._attach(peer, attach, now, since)
        if self._team is not None:
            self._team.watch(now)
            self._deliver(now)
            if self._team is not None and self._team.ends_with(None, now):
                self._drop()

    def _probe(self) -> None:
        for member in list(self._team.members) if self._team is not None else ():
            if member.peer:
                self._send(member.peer, m.Probe())

    def _detached(self, peer: bytes, run: int, done: int) -> None:
        member = None if self._team is None else self._team.of(peer)
        if self._team is not None and member is not None:
            self._left(_Vanished(self._team, member, 0.0), m.Detach(run, done))

    def _left(self, gone: _Vanished, detach: m.Detach) -> None:
        """``gone`` left in order; it may have vanished before its last words were read."""
        gone.when = 0.0
        if gone.team is None or gone.member is None or gone.team is not self._team:
            return
        if gone.member in gone.team.members:
            gone.team.detach(gone.member, detach.run, detach.done)
        if gone.team.empty:
            self._drop()

    def _vanish(self, peer: bytes) -> None:
        """Nothing can be sent to ``peer`` any more. What it said last may still be under way, Detach for one."""
        now = time.monotonic()
        self._links.pop(peer, None)
        member = None if self._team is None else self._team.of(peer)
        self._vanished[peer] = _Vanished(self._team, member, now if member is not None else 0.0)
        if self._team is not None and member is not None:
            self._team.vanish(member, now)
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
        job = None if self._team is None else self._team.job
        data = {
            "pass": -1 if job is None else job.pass_id,
            "attached": self._team is not None and not self._team.empty,
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
            "run_again": dict(zip(("files", "samples"), (0, 0) if job is None else job.again, strict=True)),
            "padding": {} if job is None else job.padding_figures(),
            "cache": {} if self._cache is None else {"files": len(self._cache), "bytes": self._cache.bytes},
            "trainer": {"waited_seconds": self._waited, "worked_seconds": self._worked},
            "bottleneck": bottleneck(self._waited, self._worked),
        }
        return data | self.server_stats()
