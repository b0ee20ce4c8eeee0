"""A team whose job has numbers for batches, and trainers that behave as clients do, for random schedules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np

from pydp2.data.columns.checksum_log import NO_CHECKSUMS, ChecksumLog, FileChecksum
from pydp2.data.columns.sample_set import encode_set
from pydp2.data.packers.packer import Packer
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.errors import Error, from_wire
from pydp2.options.job_options import JobOptions
from pydp2.order.batcher import BatchCut
from pydp2.order.snapshot import SnapshotPoint, encode_pool
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol import progress_word
from pydp2.server.jobs.group import TrainerGroup
from pydp2.server.jobs.membership import GroupOptions
from pydp2.server.jobs.membership import Trainer as Member
from pydp2.server.jobs.pass_stream import BatchGroup, CutBatch, PassBroken, PassEnded
from pydp2.server.jobs.resume import restart_pass, restore, take_snapshot
from pydp2.server.snapshots.job_snapshot import JobSnapshot

SLOTS = Slots((integer_value(1 << 20),), ("n",))
LEASE = 30.0
OPTIONS = JobOptions(batch_size=1)
NONE = np.empty(0, np.int64)
EMPTY = encode_pool(encode_set(NONE, NONE), NONE, NONE)


def picked(number: int) -> BatchRows:
    packer = Packer(SLOTS, strict=False)
    packer.add([number])
    store = HeapStore(SLOTS)
    return BatchRows(store, store.append(packer.finish().columns))


class Numbers:
    """A job whose batch n of a pass holds the number n; every seventh is a point from which it can be taken up. The
    bounds of its buckets are the number of the pass, and one more, in which the first batch was cut."""

    def __init__(self, length: int, last_batch: str = "keep") -> None:
        self.length = length
        self.last_batch = last_batch
        self.pass_id = -1
        self.is_read = True
        """False while nothing is there that a batch could be cut from."""
        self.running = False
        self.dispatcher = "what is read"
        self.begun: list[tuple[int, int]] = []
        self.memory = SimpleNamespace(has_lost_rows=True)
        self.more = self.pool_over_limit = False
        self.plan = SimpleNamespace(order="strict", pool_bytes=1 << 20)
        self.known_buckets: dict[str, Any] = {}
        self.errors: dict[int, Error] = {}
        """How passes end, by number, that do not end well."""
        self.early_ends: dict[int, tuple[int, str]] = {}
        """Files of the present pass that are known to end early."""
        self._rows: list[BatchRows] = []

    def held_rows(self) -> list[BatchRows]:
        """Rows of batches that somebody holds."""
        self._rows = [rows for rows in self._rows if rows._holders]
        return self._rows

    @property
    def job(self) -> Numbers:
        """Job of the pass under way, which is the same object."""
        return self

    def open(self, start: StreamState, world: int) -> Numbers:
        assert not self.running
        pass_id, batch, saved = start.pass_id, start.batch, start.point
        assert saved is None or saved.batch_index <= batch
        self.pass_id, self._next, self._ahead, self._world = pass_id, batch, set(start.acknowledged_ahead), world
        self._point = saved
        self._log, self._log_before = ChecksumLog(start.checksums), NO_CHECKSUMS
        self.known_buckets = self.known_buckets | {k: v for k, v in start.buckets.items() if k == "bounds"}
        self.running, self.early_ends = True, {**start.early_ends}
        self.begun.append((pass_id, batch))
        return self

    @property
    def buckets(self) -> dict[str, Any]:
        return {**self.known_buckets, "group": self._world} if self.known_buckets else {}

    def describe_start(self) -> str:
        return ""

    def has_early_ends(self, early_ends: Mapping[int, Any]) -> bool:
        return all(file in self.early_ends for file in early_ends)

    def close(self) -> None:
        self.running, self.early_ends = False, {}

    def next_group(self, pulls: int = 1, room: float = inf) -> BatchGroup | PassEnded | PassBroken | None:
        assert self.running
        self.pool_over_limit = room <= 0
        if self.pool_over_limit or not self.is_read:
            return None
        first = self._next
        while self._next in self._ahead:
            self._next += 1
        group = [*range(self._next, min(self.length, self._next + self._world))]
        short = len(group) < self._world
        if not group or (short and self.last_batch == "drop"):
            if self.pass_id in self.errors:
                return PassBroken(self.errors[self.pass_id])
            return PassEnded(self._next, 0, 0, True)
        self._next += len(group)
        self.known_buckets = self.known_buckets or {"bounds": [self.pass_id, self.pass_id + 1]}
        if self._next // 7 * 7 > (0 if self._point is None else self._point.batch_index):
            self._point = SnapshotPoint(self._next // 7 * 7, EMPTY, False, 0, 0, 0, 0, [], 0, 0)
            self._note(range(first, self._point.batch_index))
            self._log_before, self._log = self._log.view(), ChecksumLog()
            first = self._point.batch_index
        self._note(range(first, self._next))
        cuts = [CutBatch.of(BatchCut(n, np.zeros(1, np.int64), 1, 1), picked(n), self.buckets) for n in group]
        self._rows += [cut.rows for cut in cuts]
        after = StreamState(self.pass_id, self._next, point=self._point, checksums=self._log.view())
        return BatchGroup(cuts, after, self._log_before)

    def _note(self, batches: Iterable[int]) -> None:
        """Each batch is a file of its own."""
        for n in batches:
            self._log.note(n, FileChecksum(1, n, True))


@dataclass
class Trainer:
    """A client as the rules want it. ``used``: what it was given and asked on after."""

    session: str
    rank: int
    peer: bytes = b""
    position: StreamState = field(default_factory=StreamState)
    run: int = 0
    done: int = 0
    inbox: list[m.Message] = field(default_factory=list)
    records: dict[int, bytes] = field(default_factory=dict)  # of checksums, by the id of their message
    hand: int | None = None
    used: list[tuple[int, int]] = field(default_factory=list)
    over: bool = True
    waits: bool = False
    error: Exception | None = None
    spoke: float = 0.0
    away: bool = False  # its service was killed, and it has not come back yet
    loaded: str = ""
    named: bool = False
    origin: str = ""  # the state that it loaded last, if it may go back to that
    had: int = 0  # batches since then
    answered: bool = False
    lacks: bool = False  # it was told to load a state that another one has loaded
    after_pass: bool = False  # it went to another pass, once the others have ended theirs
    prefetch: int = 2
    shows: bool = False  # the service can read what it has used, so it says that seldom
    word: int = 0  # what can be read
    asked: int = 0  # batches of the run
    said: int = 0  # of them, which it has said to be used

    def catch(self, *errors: type[Error]) -> None:
        """Go on with the next pass if one has failed with one of ``errors``."""
        if isinstance(self.error, errors):
            self.error, self.position = None, self.position.next_pass()


def position_at(batch: int) -> StreamState:
    """The position of a state behind that many batches of the first pass."""
    log = ChecksumLog()
    for n in range(batch):
        log.note(n, FileChecksum(1, n, True))
    return StreamState(0, batch, checksums=log.view())


def check_checksums(at: StreamState) -> None:
    """A position has the checksums of all that was read since its point."""
    first = 0 if at.point is None else at.point.batch_index
    assert {*range(first, at.batch), *at.acknowledged_ahead} <= {*at.checksums.by_file().files.tolist()}


class LostPlace(Exception):
    """Another process has the rank of a trainer."""


class NoEnd(AssertionError):
    """Trainers wait for ever."""


class World:
    """A team and its trainers."""

    def __init__(
        self, length: int, world: int, *, dynamic: bool = False, last_batch: str = "keep", seed: int = 0,
        prefetch_bytes: int = 1 << 20, shows: bool = False, prefetch: int = 2, relaxed: bool = False,
    ) -> None:  # fmt: skip
        self.relaxed = relaxed
        self._shows, self._prefetch = shows, prefetch
        self.random = Random(seed)
        self.logs: list[str] = []
        self.ended: list[PassEnded] = []
        self.readings: list[Any] = []
        self._of = length, last_batch, world, dynamic
        self._prefetch_bytes = prefetch_bytes
        self._new()
        self.disk: list[bytes] = []
        self.now = 1.0
        self.trainers: list[Trainer] = []
        self.bounds: set[tuple[int, ...]] = set()
        """Of the buckets of all batches that trainers were given."""
        self._peers = 0

    def _new(self) -> None:
        length, last_batch, world, dynamic = self._of
        self.numbers = Numbers(length, last_batch)
        self.numbers.plan.order = self._options.order
        self.team = TrainerGroup(
            self.numbers,  # type: ignore[arg-type]
            GroupOptions(
                name="default", world=world, dynamic=dynamic, lease=LEASE, prefetch_bytes=self._prefetch_bytes
            ),
            on_begin=self.readings.append, on_end=self.ended.append,
            log=lambda text, kind, **how: self.logs.append(text),
        )  # fmt: skip

    @property
    def _options(self) -> JobOptions:
        return replace(OPTIONS, order="relaxed" if self.relaxed else "strict")

    def write(self) -> None:
        """What is known is written down: nothing of a dynamic job."""
        for trainer in self.trainers:
            self._read_word(trainer)
        if self.team.registry.dynamic:
            return
        self.disk = [
            *self.disk[-1:],
            msgpack.packb(take_snapshot(self.team, self._options, {"list": "the same"}).to_plain()),
        ]

    def crash(self, snapshot: int = -1) -> None:
        """The service is killed and started again from the last ``snapshot``, or the one before (-2). Of what it sent
        last, trainers get a part."""
        self._new()
        if len(self.disk) >= -snapshot:
            kept = JobSnapshot.from_plain(msgpack.unpackb(self.disk[snapshot]), self.numbers.length)
            assert kept.stream_identity == {"list": "the same"}
            assert kept.options == self._options
            restore(self.team, kept, self.now)
        for trainer in self.trainers:
            trainer.away = True
            del trainer.inbox[self.random.randint(0, len(trainer.inbox)) :]

    def _come_back(self, trainer: Trainer) -> None:
        self._peers += 1
        trainer.away, trainer.peer = False, f"peer {self._peers}".encode()
        at = trainer.position
        self._attach(trainer)
        trainer.position = at

    def _read_word(self, trainer: Trainer) -> None:
        """The service looks at what the trainer shows."""
        member = self.team.registry.by_peer(trainer.peer)
        if member is not None and not trainer.away:
            self.team.note_used(member, trainer.word)

    def member(self, trainer: Trainer) -> Member:
        """What the service knows of ``trainer``."""
        member = self.team.registry.by_peer(trainer.peer)
        if member is None:
            raise LostPlace(trainer.session)
        return member

    def come(self, rank: int = 0, session: str = "", prefetch: int | None = None) -> Trainer:
        """A trainer connects."""
        if self.team.registry.ends_with(session, self.now):
            self._new()
        self._peers += 1
        trainer = Trainer(
            session or f"session {self._peers}", rank, f"peer {self._peers}".encode(), shows=self._shows,
            prefetch=self._prefetch if prefetch is None else prefetch,
        )  # fmt: skip
        self._attach(trainer)
        self.trainers.append(trainer)
        return trainer

    def _attach(self, trainer: Trainer) -> None:
        attach = m.Attach(m.WIRE_VERSION, "default", trainer.rank, self.team.registry.world, trainer.session, {}, 1)
        place = self.team.attach(trainer.peer, attach, self.now)
        trainer.position = StreamState.from_welcome(place)
        self.deliver()

    def lose_rows(self) -> None:
        """A host is lost, and the rows of batches that wait with it."""
        restart_pass(self.team)
        self.deliver()
        self.serve()

    def set_epoch(self, trainer: Trainer, pass_id: int) -> None:
        """It begins to iterate over pass ``pass_id``, or goes on in it."""
        if trainer.position.pass_id == pass_id:
            self.begin(trainer)
        else:
            self.begin(trainer, trainer.position.before_pass(pass_id), after_pass=True)

    def begin(self, trainer: Trainer, loaded: StreamState | None = None, *, after_pass: bool = False) -> None:
        """It begins to iterate, or goes on after ``loaded``."""
        if loaded is not None:
            trainer.position = loaded
        trainer.over, trainer.error = False, None
        if loaded is not None:
            trainer.loaded, trainer.named, trainer.origin = loaded.name, False, loaded.name
            trainer.after_pass, trainer.had = after_pass, 0
        self._ask(trainer)

    def _ask(self, trainer: Trainer) -> None:
        if trainer.away:
            trainer.inbox.clear()
            self._come_back(trainer)
        trainer.run += 1
        trainer.done = trainer.said = 0
        trainer.asked = trainer.prefetch
        at = trainer.position
        begin, frames = at.to_wire(trainer.run, trainer.prefetch)
        begin = replace(
            begin, state_name=trainer.loaded, is_repeat=trainer.named, after_pass=trainer.after_pass,
            was_answered=trainer.answered,
        )  # fmt: skip
        trainer.named = bool(trainer.loaded)
        self.team.begin(
            self.member(trainer), begin, StreamState.from_wire(begin, frames, self.numbers.length), self.now
        )
        trainer.spoke = self.now
        self.serve()

    def next(self, trainer: Trainer) -> int | None:
        """``__next__``: the number, or None when there is nothing yet, or nothing more."""
        if trainer.hand is not None:
            trainer.used.append((trainer.position.pass_id, trainer.hand))
            trainer.hand = None
        if trainer.away:
            trainer.waits = True
            return self.receive(trainer)
        if self.now - trainer.spoke > LEASE:
            self._ask(trainer)
        trainer.word = progress_word.pack(trainer.run, trainer.done)
        missing = trainer.prefetch + 1 - (trainer.asked - trainer.done)
        if not trainer.shows or max(missing, trainer.done - trainer.said) >= (trainer.prefetch + 1) // 2:
            self._need(trainer)
            self.serve()
        trainer.waits = True
        return self.receive(trainer)

    def _need(self, trainer: Trainer) -> None:
        """It says what it has used, and what it takes beyond what it asked for."""
        missing = trainer.prefetch + 1 - (trainer.asked - trainer.done) if trainer.shows else 1
        self.team.need(self.member(trainer), m.Need(trainer.run, missing, trainer.done, 0, 0), self.now)
        trainer.asked, trainer.said = trainer.asked + missing, trainer.done
        trainer.spoke = self.now

    def receive(self, trainer: Trainer) -> int | None:
        """The batch that ``next`` waits for, if it is there."""
        if trainer.away and not any(getattr(each, "request_id", None) == trainer.run for each in trainer.inbox):
            self._ask(trainer)
            self._need(trainer)
            self.serve()
        if trainer.shows and not trainer.inbox and not trainer.away and trainer.done > trainer.said:
            self._need(trainer)
            self.serve()
        if self.now - trainer.spoke > LEASE / 4 and not trainer.away:
            self.beat(trainer)
        for message in trainer.inbox:
            if isinstance(message, m.Failed | m.BeginAgain) and message.request_id == trainer.run:
                trainer.inbox = [message]
                break
        left, dynamic = False, self.team.registry.dynamic
        while trainer.inbox:
            message = trainer.inbox.pop(0)
            if getattr(message, "request_id", None) != trainer.run:
                left = left or isinstance(message, m.BatchHead)
                continue
            trainer.loaded, trainer.named, trainer.answered = "", False, True
            match message:
                case m.BatchHead(batch_index=index):
                    trainer.waits = False
                    trainer.position = trainer.position.after(message, EMPTY, [], trainer.records.pop(id(message)))
                    check_checksums(trainer.position)
                    trainer.hand = index
                    self.bounds.add(tuple(message.bucket["bounds"]))
                    trainer.done += 1
                    trainer.had += 1
                    return index
                case m.PassEnd():
                    trainer.waits = False
                    trainer.origin = "" if dynamic else trainer.origin
                    trainer.position = trainer.position.with_buckets(message.buckets).next_pass()
                    trainer.over = True
                    return None
                case m.BeginAgain():
                    self._ask(trainer)
                case m.Failed(state_name=name) if name and name == trainer.origin and not (dynamic and trainer.had):
                    trainer.loaded, trainer.named, trainer.origin = name, True, ""
                    self._ask(trainer)
                case m.Failed(error=error, buckets=buckets, state_name=name):
                    trainer.lacks = name != ""
                    trainer.position = trainer.position.with_buckets(buckets)
                    trainer.over, trainer.waits, trainer.error = True, False, from_wire(error)
                    return None
        if left and not trainer.away:  # that was read, and more may come
            self.beat(trainer)
            self.serve()
        return None

    def beat(self, trainer: Trainer) -> None:
        """It waits for a batch, and says so now and then."""
        self.team.need(self.member(trainer), m.Need(trainer.run, 0, trainer.done, 0, 0), self.now)
        trainer.spoke = self.now

    def leave(self, trainer: Trainer) -> None:
        """Out of its loop."""
        if not trainer.away:
            self.team.leave(self.member(trainer), trainer.run, trainer.done, self.now)
        self._settle_hand(trainer)
        trainer.over = True
        trainer.position = trainer.position.next_pass()
        self.serve()

    def close(self, trainer: Trainer) -> None:
        if trainer.away:
            self._come_back(trainer)
        member = self.member(trainer)
        self.team.detach(member, trainer.run, trainer.done, self.now)
        self._settle_hand(trainer)
        self.trainers.remove(trainer)
        if self.team.registry.empty and not self.team.awaits_ranks:  # the job is over
            self.team.stop()
            self._new()
        self.serve()

    def _settle_hand(self, trainer: Trainer) -> None:
        if trainer.hand is not None:
            trainer.used.append((trainer.position.pass_id, trainer.hand))
            trainer.hand = None

    def vanish(self, trainer: Trainer) -> None:
        """Killed: what it had in hand is not used."""
        if not trainer.away:
            member = self.member(trainer)
            self._read_word(trainer)
            self.team.connection_lost(member, self.now)
        self.trainers.remove(trainer)
        self.serve()

    def reconnect(self, trainer: Trainer) -> None:
        """Its connection broke: it comes back as who it was, and knows what it has had."""
        member = self.member(trainer)
        self._read_word(trainer)
        self.team.connection_lost(member, self.now)
        self._peers += 1
        trainer.peer = f"peer {self._peers}".encode()
        trainer.inbox.clear()
        at = trainer.position
        self._attach(trainer)
        trainer.position = at
        if not trainer.over:
            if trainer.hand is not None:
                trainer.used.append((at.pass_id, trainer.hand))
                trainer.hand = None
            self._ask(trainer)

    def serve(self) -> None:
        while self.team.serve(4):
            self.deliver()
        self.deliver()

    def deliver(self) -> None:
        if self.team.outbox.snapshot_due:
            self.write()
        while self.team.outbox.messages:
            peer, message, frames = self.team.outbox.messages.popleft()
            if isinstance(message, m.BatchHead):
                frames[0].release()  # it is sent
            for trainer in self.trainers:
                if trainer.peer == peer:
                    trainer.inbox.append(message)
                    if isinstance(message, m.BatchHead):
                        trainer.records[id(message)] = frames[1]

    def finish(
        self, trainers: Collection[Trainer], passes: int, *, close: bool = False, catch: tuple[type[Error], ...] = ()
    ) -> None:
        """In peace to the end of so many passes, also if they fail with an error of ``catch``; with ``close`` each
        leaves that has had them, or was refused."""
        for _ in range(5000):
            for trainer in trainers:
                trainer.catch(*catch)
            going = [t for t in trainers if t.position.pass_id < passes and t.error is None]
            if not going:
                return
            for trainer in [each for each in self.trainers if close and each not in going]:
                self.close(trainer)
            self.now += 1.0
            for trainer in going:
                if trainer.over:
                    self.begin(trainer)
                if trainer.waits:
                    self.receive(trainer)
                else:
                    self.next(trainer)
            self.team.check_leases(self.now)
            self.serve()
        raise NoEnd(f"no end: {[(t.rank, t.position, t.waits, t.away) for t in trainers]}")

    def used(self) -> list[tuple[int, int]]:
        return sorted(pair for trainer in self.trainers for pair in trainer.used)
