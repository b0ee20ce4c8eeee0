"""The clients' side of a service: who is attached, what they are sent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydp2.cache.disk import DiskCache
from pydp2.cache.memory import PassCache
from pydp2.config import JobOptions
from pydp2.errors import Error, JobTaken, ProtocolError, RemoteProtocolError, Rewound, to_wire
from pydp2.files import FileList
from pydp2.inputs.declaration import Declaration
from pydp2.inputs.picked import Picked
from pydp2.inputs.shelf import Layout, Shelf
from pydp2.order import Run
from pydp2.order.saved import Saved
from pydp2.protocol import messages as m
from pydp2.protocol.facts import split
from pydp2.protocol.moves import Link, Role, State, client_link
from pydp2.server.actions import Action, Log
from pydp2.server.asked import asked, facts_of, has_room, numbers_of, origin_of, same
from pydp2.server.available import Available, available
from pydp2.server.claims import Claims
from pydp2.server.coordinator import Coordinator
from pydp2.server.desk import Desk, together
from pydp2.server.keeper import Keeper
from pydp2.server.member import Member
from pydp2.server.outbox import messages
from pydp2.server.placing import Placing
from pydp2.server.spec import ServiceSpec
from pydp2.transport import Gone, Hub, Lasting

_RETRY = 0.05  # seconds between looks whether a place that somebody waits for is free
_QUEUE = 64  # who asks for a job and has not been answered yet
_REMEMBERED = 64  # peers that vanished
_READ_AHEAD = 256 << 20  # bytes read ahead of the merge, where the memory limit allows
_POOL_FRAMES = 1024  # of 64 KiB: a pool of more samples than memory could hold
_MESSAGES = 256  # taken in one round, so that a flood of them does not keep batches back


class _Vanished:
    """Somebody who is gone, since ``when``; 0 once it was told."""

    def __init__(self, desk: Desk | None, member: Member | None, when: float) -> None:
        self.desk, self.member, self.when = desk, member, when


class Front:
    """The jobs of a service, the trainers of each, and anybody who asks for figures."""

    def __init__(
        self,
        spec: ServiceSpec,
        files: FileList,
        hub: Hub,
        coordinator: Coordinator,
        log: Callable[[str, str], None],
        keeper: Keeper,
    ) -> None:
        self._spec = spec
        self._files = files
        self._hub = hub
        self._coordinator = coordinator
        self._log = log
        self._keeper = keeper
        self._links: dict[bytes, Link] = {}
        self._pending: list[tuple[bytes, m.Attach]] = []
        self._waiting: list[tuple[bytes, m.Attach, float]] = []  # since when, for a place that somebody has
        self._declaration: Declaration | None = None
        self._source = ""
        self._cache: Claims | None = None
        self._placing: Placing | None = None
        self.disk: DiskCache | None = None
        """The cache on disk, where the provider asks for one."""
        self._available: Available | None = None
        self._budget = min(_READ_AHEAD, spec.memory_limit // 2)
        self._desks: dict[str, Desk] = {}  # by name of the job
        self._at: dict[bytes, Desk] = {}  # who is attached to which
        self._vanished: dict[bytes, _Vanished] = {}
        self._probed = self._retried = 0.0
        self.outbox: list[Action] = []
        """Actions for workers that followed from what clients said; the loop carries them out."""
        self.server_stats: Callable[[], dict[str, Any]] = dict

    def declared(self, declaration: Declaration, source: str, placing: Placing | None = None) -> None:
        """The provider is known, and where its samples have their places: jobs can begin."""
        self._declaration = declaration
        self._source = source
        self._placing = placing
        if placing is not None:  # trainers on this machine gather for themselves
            self._hub.gifts.gift = placing.for_trainers
        if declaration.cache:
            self._cache = self._caches(declaration)
        if self._keeper.durable:
            self._keeper.bring_back(
                len(self._files), lambda kept: self._open(kept.name, kept.world, kept.options), time.monotonic()
            )
        pending, self._pending = self._pending, []
        for peer, attach in pending:
            if peer in self._links:  # it may have left meanwhile
                self._attach(peer, attach, time.monotonic())

    def _caches(self, declaration: Declaration) -> Claims:
        spec = self._spec
        if declaration.kept_on_disk and self._source:
            origin = origin_of(declaration, spec, self._files, self._source)
            self.disk = DiskCache(Path(spec.cache_dir), origin, spec.cache_size)
        elif declaration.kept_on_disk:
            self._log(
                "nothing is kept on disk: the provider is not in a file, so nobody could tell when it changes", ""
            )
        return Claims(self._in_memory(declaration) if declaration.kept_in_memory else None, self.disk)

    def _in_memory(self, declaration: Declaration) -> PassCache[Run] | None:
        layout = Layout(declaration.slots, self._spec.memory_limit - self._budget)
        if not layout.rows:
            self._log(
                f"the cache in memory cannot keep a single sample: one needs at least {layout.row_bytes} bytes, and "
                f"the cache may have {layout.limit} of memory_limit={self._spec.memory_limit}; every pass reads its "
                f"files again; raise memory_limit to {layout.row_bytes + min(layout.row_bytes, _READ_AHEAD)} or more",
                "cache",
            )
            return None
        shelf = None
        with contextlib.suppress(OSError):  # without that many addresses each file lies where it was read
            lasting = Lasting(layout.size)
            shelf = Shelf(layout, lasting.memory)
            if lasting.descriptor is not None:  # here, too
                self._hub.gifts.gift = lasting.descriptor, layout.note
        return PassCache(layout.limit, shelf)

    def _kept(self, peer: bytes, picked: Picked) -> int:
        shown = picked.shown
        return shown if shown and self._hub.gifts.used(peer) else 0

    def disk_answered(self) -> None:
        """The cache on disk has found or done something."""
        if self._cache is not None:
            for said in self._cache.answered():
                self._log(said.text, said.kind)

    @property
    def caching(self) -> bool:
        """Whether what comes from workers now is kept in memory for later passes."""
        return self._cache is not None and self._cache.cache is not None and not self._cache.cache.full

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
                self._forget(peer)
            self._deliver(now)
        return True

    def _message(self, peer: bytes, frames: list[memoryview], now: float) -> None:
        message, body = m.decode(self._hub.open(peer, frames))
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
        desk = self._at.get(peer)
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
                if desk is None or desk.team.of(peer) is None:
                    gone = Rewound("another process has the place of this trainer; connect again, or end this one")
                    self._send(peer, m.Failed(run, to_wire(gone)))
                else:
                    self._begin(desk, peer, message, body, now)
            case _ if desk is None or desk.team.of(peer) is None:
                pass  # of one whose place was taken: it has been told
            case m.LeavePass(run, done):
                desk.team.leave(peer, run, done, now)
            case m.Need(_, _, _, waited, worked):
                desk.spent(waited, worked)
                desk.team.need(peer, message, now)
        self._forget_if_new(peer, link)

    def _attach(self, peer: bytes, attach: m.Attach, now: float, since: float | None = None) -> None:
        """Give ``peer`` its place. It has waited for that since ``since``, when somebody has it."""
        assert self._declaration is not None
        try:
            given = asked(attach, self._spec)
            desk = self._desks.get(attach.job)
            if desk is not None:  # whose place is taken by somebody who vanished has it
                self._probe(desk.team.holder(attach.rank))
            if desk is not None and desk.team.ends_with(attach.session, now):
                self._drop(desk)
                desk = None
            if desk is None:
                desk = self._open(attach.job, attach.world_size, given)
            same(attach.job, desk.options, given, desk.team.ending(now))
            position = desk.team.attach(peer, attach, now)
        except JobTaken as taken:
            since = now if since is None else since
            if now - since > self._spec.timing.patience or len(self._waiting) >= _QUEUE:
                self._send(peer, m.Refused(to_wire(taken)))
            else:
                self._waiting.append((peer, attach, since))  # who has the place may have vanished a moment ago
            return
        except Error as error:
            self._send(peer, m.Refused(to_wire(error)))
            return
        self._at[peer] = desk
        self._deliver(now)  # who knows that it has its place is written down, or it could not come back to it
        service = {
            "files": len(self._files), "workers": self._spec.workers, "shuffle": desk.job.plan.shuffle,
            "position": position, "fits": desk.fits, "durable": self._keeper.durable,
        }  # fmt: skip
        self._send(peer, m.Welcome(self._declaration.to_wire(), service))

    def _open(self, name: str, world: int, given: JobOptions) -> Desk:
        """The desk of a job that begins. Raises OptionError when the machine cannot hold one more."""
        assert self._declaration is not None
        if self._available is None:  # now: its processes have what they have, and no job has a pool yet
            self._available = available()
        others = {each.name: each.options for each in self._desks.values()}
        has_room(name, given, others, self._spec, self._available, self._declaration.slots.row_bytes)
        desk = self._desks[name] = Desk(
            name, world, given, self._declaration, self._spec, self._files, source=self._source, budget=self._budget,
            cache=self._cache, store=None if self._placing is None else self._placing.store,
            coordinator=self._coordinator, act=lambda actions: self.outbox.extend(actions),
            log=lambda text, kind: self._say(name, text, kind),
        )  # fmt: skip
        return desk

    def _say(self, job: str, text: str, kind: str) -> None:
        """Tell the user something of ``job``, by name where there are several."""
        named = text.startswith(f"job {job!r}") or len(self._desks) < 2
        self.outbox.append(Log(text if named else f"job {job!r}: {text}", kind))

    def _drop(self, desk: Desk) -> None:
        """The job is over."""
        desk.team.stop()
        del self._desks[desk.name]
        if not self._desks and self._placing is not None:
            self._placing.rest()
        self._at = {peer: at for peer, at in self._at.items() if at is not desk}

    # -- passes ----------------------------------------------------------------------------------------------------
    def _begin(self, desk: Desk, peer: bytes, begin: m.BeginPass, body: Sequence[memoryview], now: float) -> None:
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
        desk.team.begin(peer, begin, saved, facts, now)

    def serve(self, most: int, now: float) -> bool:
        """Send what trainers have credit for, about ``most`` batches; True when there may be more."""
        more = False
        for desk in list(self._desks.values()):
            more = desk.serve(max(1, most // len(self._desks))) or more
            self._deliver(now)
        return more

    def _deliver(self, now: float) -> None:
        """Send what the jobs have to say; what has to be written down is, before."""
        if self._keeper.durable and any(desk.team.to_keep for desk in self._desks.values()):
            self._keeper.keep(self._desks.values(), now, wait=True)
        for desk in self._desks.values():
            for peer, message, frames, batches in messages(desk.team.out, self._kept):
                if self._send(peer, message, frames):
                    desk.sent(batches, now)

    # -- whether they live -----------------------------------------------------------------------------------------
    def watch(self, now: float) -> None:
        """Look whether trainers are still there, now and then, and whose lease ran out."""
        if now - self._probed > self._spec.timing.probe:
            self._probed = now
            for member in [member for desk in self._desks.values() for member in desk.team.members.values()]:
                self._probe(member)
        for gone in self._vanished.values():
            if gone.when and now - gone.when > self._spec.timing.last_words:
                gone.when = 0.0
                if gone.desk is not None and gone.member is not None:
                    who = f"rank {gone.member.rank} is gone"
                    if gone.desk.team.alone:
                        who = "the trainer is gone; its job is free"
                    self._say(gone.desk.name, who, "trainer")
        if now - self._retried > _RETRY:
            self._retried = now
            waiting, self._waiting = self._waiting, []
            for peer, attach, since in waiting:
                if peer in self._links:
                    self._attach(peer, attach, now, since)
        for desk in list(self._desks.values()):
            desk.team.watch(now)
            self._deliver(now)
            if desk.team.ends_with(None, now):
                self._drop(desk)
        self._keeper.keep(self._desks.values(), now)

    def _probe(self, member: Member | None) -> None:
        if member is not None and member.peer:
            self._send(member.peer, m.Probe())

    def _detached(self, peer: bytes, run: int, done: int) -> None:
        desk = self._at.pop(peer, None)
        member = None if desk is None else desk.team.of(peer)
        if member is not None:
            self._left(_Vanished(desk, member, 0.0), m.Detach(run, done))

    def _left(self, gone: _Vanished, detach: m.Detach) -> None:
        """``gone`` left in order; it may have vanished before its last words were read."""
        gone.when = 0.0
        desk, member = gone.desk, gone.member
        if desk is None or member is None or self._desks.get(desk.name) is not desk:
            return
        if desk.team.members.get(member.rank) is member:
            desk.team.detach(member, detach.run, detach.done, time.monotonic())
        if desk.team.empty and not desk.team.awaited:
            self._drop(desk)

    def _vanish(self, peer: bytes) -> None:
        """Nothing can be sent to ``peer`` any more. What it said last may still be under way, Detach for one."""
        now = time.monotonic()
        desk = self._at.get(peer)
        self._forget(peer)
        member = None if desk is None else desk.team.of(peer)
        self._vanished[peer] = _Vanished(desk, member, now if member is not None else 0.0)
        if desk is not None and member is not None:
            desk.team.vanish(member, now)
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
            self._forget(peer)

    def _forget(self, peer: bytes) -> None:
        self._links.pop(peer, None)
        self._at.pop(peer, None)
        self._hub.drop(peer)

    def close(self, reason: str, error: Error | None, *, asked: bool) -> None:
        """Tell everybody that the service ends: ``error`` is what it could not survive. Unless its program ``asked``
        for that, it may be started again."""
        self._keeper.keep(self._desks.values(), time.monotonic(), wait=True)
        back = self._keeper.durable and not asked
        for peer in list(self._links):
            self._send(peer, m.Closing(reason, {} if error is None else to_wire(error), back))

    def stats(self) -> dict[str, Any]:
        """How it is going, as plain data."""
        now = time.monotonic()
        jobs = {name: desk.figures(now) for name, desk in self._desks.items()}
        cache = None if self._cache is None else self._cache.cache
        kept: dict[str, Any] = {} if cache is None else {"files": len(cache), "bytes": cache.bytes}
        if self.disk is not None:
            kept |= {"disk": self.disk.figures()}
        have = self._available or available()
        room = {"bytes": have.bytes, "where": have.where}
        figures = {"jobs": jobs, "cache": kept, "memory_available": room}
        return together([*jobs.values()], self._budget) | figures | self.server_stats()
