"""The trainers of a job alone: a real trainer group whose batches are numbers, and the real rules of clients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np

from pydp2.client.progress import LoopHandle, LoopState, PassStart, Progress
from pydp2.client.received import ReceivedBatch
from pydp2.client.run_protocol import ClientAction, PrefetchWindow, RunProtocol
from pydp2.data.columns.checksum_log import NO_CHECKSUMS, ChecksumLog, FileChecksum
from pydp2.data.columns.columns import Columns
from pydp2.data.columns.sample_set import encode_set
from pydp2.data.packers.packer import Packer
from pydp2.data.rowstore.batch_rows import BatchRows
from pydp2.data.rowstore.heap import HeapStore
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.errors import Error, ServiceLost
from pydp2.options.job_options import JobOptions
from pydp2.order.batcher import BatchCut
from pydp2.order.snapshot import PoolChecks, SnapshotPoint, encode_pool
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol import progress_word
from pydp2.protocol.trainer_numbers import TrainerNumbers
from pydp2.server.jobs.group import TrainerGroup
from pydp2.server.jobs.groups import BatchGroup, CutBatch, PassBroken, PassEnded
from pydp2.server.jobs.membership import GroupOptions
from pydp2.server.jobs.membership import Trainer as Member
from pydp2.server.jobs.resume import restart_pass, restore, take_snapshot
from pydp2.server.snapshots.job_snapshot import JobSnapshot
from pydp2.system.log_events import LogEvent

SLOTS = Slots((integer_value(1 << 20),), ("n",))
LEASE = 30.0
NO_ROWS = Columns.empty(SLOTS)
NONE = np.empty(0, np.int64)
EMPTY = encode_pool(encode_set(NONE, NONE), PoolChecks(NONE, NONE))


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
        self._cut = self.unused = 0
        """Batches of the present pass that were cut, and those of them that are not used."""

    @property
    def used(self) -> int:
        """Batches of the present pass that are used, as far as the service knows."""
        return self._cut - self.unused

    def note_unused(self, count: int) -> None:
        self.unused = count

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
        self._cut, self.unused = batch + len(self._ahead), 0
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
        self._cut += len(group)
        self.known_buckets = self.known_buckets or {"bounds": [self.pass_id, self.pass_id + 1]}
        if self._next // 7 * 7 > (0 if self._point is None else self._point.batch_index):
            self._point = SnapshotPoint(self._next // 7 * 7, EMPTY, False, 0, 0, 0, 0, [], 0, 0)
            self._note(range(first, self._point.batch_index))
            self._log_before, self._log = self._log.view(), ChecksumLog()
            first = self._point.batch_index
        self._note(range(first, self._next))
        cuts = [CutBatch.of(BatchCut(n, np.zeros(1, np.int64), 1, 1), picked(n), self.buckets) for n in group]
        self._rows += [cut.rows for cut in cuts]
        ahead = sorted(n for n in self._ahead if n >= self._next)
        after = StreamState(self.pass_id, self._next, ahead, point=self._point, checksums=self._log.view())
        return BatchGroup(cuts, after, self._log_before)

    def _note(self, batches: Iterable[int]) -> None:
        """Each batch is a file of its own."""
        for n in batches:
            self._log.note(n, FileChecksum(1, n, True))


class Trainer:
    """A trainer: the rules of a client, for which the world hands messages over. ``used``: what it was given and asked
    on after. ``shows``: the service can read what it has used."""

    def __init__(self, attach: m.Attach, peer: bytes, position: dict[str, Any], *, shows: bool) -> None:
        self.attach, self.peer, self.rank, self.shows = attach, peer, attach.rank, shows
        self.number = TrainerNumbers(attach.world_size, attach.peer_count).of(attach.rank, attach.peer)
        self.is_damaged = False
        self.progress = Progress(StreamState())
        self.inbox: list[Any] = []
        options = attach.options
        welcome = m.Welcome({}, {"position": position, "stream_identity": {"order": options["order"]}})
        self.run_protocol = run_protocol = RunProtocol(self, self.inbox, attach, welcome, high_latency=False)
        run_protocol.window = PrefetchWindow(
            options["prefetch"], options["prefetch_bytes"], report_each=run_protocol.is_shared,
            may_exceed_prefetch=False,
        )  # fmt: skip
        self.hand: int | None = None
        self.used: list[tuple[int, int]] = []
        self.waits = False
        self.error: Error | None = None
        self.progress_word = 0

    @property
    def position(self) -> StreamState:
        return self.progress.position

    @position.setter
    def position(self, position: StreamState) -> None:
        self.progress = self.progress._replace(position=position)

    @property
    def run(self) -> int:
        return self.progress.run

    @property
    def over(self) -> bool:
        """Whether it is in no loop."""
        return self.error is not None or self.progress.state not in (LoopState.RUNNING, LoopState.ENTERED)

    @over.setter
    def over(self, over: bool) -> None:
        self.progress = self.progress._replace(state=LoopState.BETWEEN if over else LoopState.ENTERED)

    @property
    def away(self) -> bool:
        """Whether its service was killed, or its connection cut, and it has not come back yet."""
        return self.run_protocol.lost is not None

    @away.setter
    def away(self, away: bool) -> None:
        self.run_protocol.lost = ServiceLost("the connection is cut") if away else None

    @property
    def is_lacking(self) -> bool:
        """Whether it was told to load a state that another one has loaded."""
        return self.run_protocol.loaded.is_lacking

    def load(self, state: StreamState, *, after_pass: bool = False) -> None:
        self.position = state
        self.run_protocol.loaded.load(state.name, after_pass=after_pass)

    def enter(self) -> None:
        """Begin a loop."""
        self.error = None
        self.progress = self.progress._replace(
            state=LoopState.RUNNING, loop=LoopHandle(), calls=0, start=PassStart(self.position.batch)
        )

    def take(self, batch: ReceivedBatch) -> int:
        assert self.progress.loop is not None
        self.progress = self.run_protocol.take(batch, self.progress.loop)
        at = self.position
        check_checksums(at, at.acknowledged_ahead if self.attach.options["share"] == "dynamic" else [])
        self.hand, self.waits = batch.head.batch_index, False
        return self.hand

    def use_hand(self) -> None:
        """Be done with the batch in hand."""
        if self.hand is not None:
            self.used.append((self.position.pass_id, self.hand))
            self.hand = None

    def fail(self, error: Error) -> None:
        assert self.progress.loop is not None
        self.run_protocol.note_error(self.progress.loop)
        self.error, self.waits = error, False

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


def check_checksums(at: StreamState, used_ahead: Sequence[int] = ()) -> None:
    """A position has the checksums of all that was read since its point, up to the batches ``used_ahead`` of it."""
    first = 0 if at.point is None else at.point.batch_index
    assert {*range(first, at.batch), *used_ahead} <= {*at.checksums.by_file().files.tolist()}


class LostPlace(Exception):
    """Another process has the rank of a trainer."""


class NoEnd(AssertionError):
    """Trainers wait for ever."""


class World:
    """A trainer group and its trainers. ``shows``: as in :class:`Trainer`."""

    def __init__(
        self, length: int, world: int, *, dynamic: bool = False, last_batch: str = "keep", seed: int = 0,
        prefetch_bytes: int = 1 << 20, shows: bool = False, prefetch: int = 2, relaxed: bool = False, peers: int = 1,
    ) -> None:  # fmt: skip
        self.options = JobOptions(
            batch_size=1, order="relaxed" if relaxed else "strict", share="dynamic" if dynamic else "ranks",
            last_batch=last_batch, lease=LEASE, prefetch=prefetch, prefetch_bytes=prefetch_bytes,
        )  # fmt: skip
        self._length, self._shows = length, shows
        self.places = TrainerNumbers(world, peers)
        self.random = Random(seed)
        self.logs: list[str] = []
        self.fields: list[dict[str, Any]] = []
        self.ended: list[PassEnded] = []
        self.disk: list[bytes] = []
        self.now = 1.0
        self.trainers: list[Trainer] = []
        self.bounds: set[tuple[int, ...]] = set()
        """Of the buckets of all batches that trainers were given."""
        self._peers = 0
        self._new()

    def _new(self) -> None:
        options = self.options
        self.numbers = Numbers(self._length, options.last_batch)
        self.numbers.plan.order = options.order
        self.group = TrainerGroup(
            self.numbers,  # type: ignore[arg-type]
            GroupOptions(
                name="default", numbers=self.places, dynamic=options.share == "dynamic", lease=LEASE,
                prefetch_bytes=options.prefetch_bytes,
            ),
            on_end=self.ended.append,
            log=self._log,
        )  # fmt: skip

    def _log(self, text: str, event: LogEvent, /, *, names_job: bool = False, **fields: str | int) -> None:
        self.logs.append(text)
        self.fields.append(fields)

    # -- the service -----------------------------------------------------------------------------------------------
    def serve(self) -> None:
        while self.group.serve(4):
            self.deliver()
        self.deliver()

    def deliver(self) -> None:
        if self.group.outbox.snapshot_due:
            self.write()
        while self.group.outbox.messages:
            peer, message, frames = self.group.outbox.messages.popleft()
            if isinstance(message, m.BatchHead):
                frames[0].release()  # it is sent
            for trainer in self.trainers:
                if trainer.peer == peer:
                    trainer.inbox.append((message, frames))

    def write(self) -> None:
        """Write a snapshot: nothing of a dynamic job."""
        for trainer in self.trainers:
            self._read_progress(trainer)
        if not self.group.registry.dynamic:
            snapshot = take_snapshot(self.group, self.options, {"list": "the same"}).to_plain()
            self.disk = [*self.disk[-1:], msgpack.packb(snapshot)]

    def crash(self, snapshot: int = -1) -> None:
        """The service is killed and started again from the last ``snapshot``, or the one before (-2). Of what it sent
        last, trainers get a part."""
        self._new()
        if len(self.disk) >= -snapshot:
            restored = JobSnapshot.from_plain(msgpack.unpackb(self.disk[snapshot]), self.numbers.length)
            assert restored.stream_identity == {"list": "the same"}
            assert restored.options == self.options
            restore(self.group, restored, self.now)
        for trainer in self.trainers:
            trainer.away = True
            del trainer.inbox[self.random.randint(0, len(trainer.inbox)) :]

    def lose_rows(self) -> None:
        """A host is lost, and the rows of batches that wait with it."""
        restart_pass(self.group)
        self.deliver()
        self.serve()

    def _read_progress(self, trainer: Trainer) -> None:
        """The service looks at what the trainer shows."""
        member = self.group.registry.by_peer(trainer.peer)
        if member is not None and not trainer.away:
            self.group.note_used(member, trainer.progress_word)

    def member(self, trainer: Trainer) -> Member:
        """What the service knows of ``trainer``."""
        member = self.group.registry.by_peer(trainer.peer)
        if member is None:
            raise LostPlace(trainer.attach.session)
        return member

    # -- trainers that come and go ---------------------------------------------------------------------------------
    def come(self, number: int = 0, session: str = "", prefetch: int | None = None) -> Trainer:
        """Trainer ``number`` connects; without peers that is its rank."""
        if self.group.registry.ends_with(session, self.now):
            self._new()
        options = replace(self.options, prefetch=prefetch or self.options.prefetch)
        session = session or f"session {self._peers + 1}"
        world, peers = self.places
        attach = m.Attach(
            m.WIRE_VERSION, "default", number // peers, world, session, asdict(options), 1, peer=number % peers,
            peer_count=peers,
        )  # fmt: skip
        peer, position = self._connect(attach)
        trainer = Trainer(attach, peer, position, shows=self._shows)
        self.trainers.append(trainer)
        self.deliver()
        return trainer

    def _connect(self, attach: m.Attach) -> tuple[bytes, dict[str, Any]]:
        """Return the peer and the position that one with ``attach`` gets."""
        self._peers += 1
        peer = f"peer {self._peers}".encode()
        return peer, self.group.attach(peer, attach, self.now)

    def come_back(self, trainer: Trainer) -> None:
        """It connects again, as who it was, and knows what it has had."""
        trainer.peer, _ = self._connect(trainer.attach)
        trainer.away = False
        self.deliver()

    def reconnect(self, trainer: Trainer) -> None:
        """Its connection broke."""
        self.cut_off(trainer)
        trainer.inbox.clear()
        self.come_back(trainer)
        if not trainer.over:
            trainer.use_hand()
            self.ask(trainer)

    def cut_off(self, trainer: Trainer) -> None:
        """The service loses its connection."""
        member = self.member(trainer)
        self._read_progress(trainer)
        self.group.connection_lost(member, self.now)

    def vanish(self, trainer: Trainer) -> None:
        """Killed: what it had in hand is not used."""
        if not trainer.away:
            self.cut_off(trainer)
        self.trainers.remove(trainer)
        self.serve()

    def close(self, trainer: Trainer) -> None:
        if trainer.away:
            self.come_back(trainer)
        self.group.detach(self.member(trainer), trainer.run, trainer.progress.done, self.now)
        trainer.use_hand()
        self.trainers.remove(trainer)
        if self.group.registry.empty and not self.group.awaits_ranks:  # the job is over
            self.group.stop()
            self._new()
        self.serve()

    # -- what a client does ----------------------------------------------------------------------------------------
    def begin(self, trainer: Trainer, loaded: StreamState | None = None, *, after_pass: bool = False) -> None:
        """It begins to iterate, or goes on after ``loaded``."""
        if loaded is not None:
            trainer.load(loaded, after_pass=after_pass)
        trainer.enter()
        if trainer.away:
            trainer.inbox.clear()
            self.come_back(trainer)
        self.ask(trainer)

    def set_epoch(self, trainer: Trainer, pass_id: int) -> None:
        """It begins to iterate over pass ``pass_id``, or goes on in it."""
        if trainer.position.pass_id == pass_id:
            self.begin(trainer)
        else:
            self.begin(trainer, trainer.position.before_pass(pass_id), after_pass=True)

    def ask(self, trainer: Trainer) -> None:
        """It begins a run."""
        begin, frames = trainer.run_protocol.begin()
        if not trainer.away:
            start = StreamState.from_wire(begin, frames, self.numbers.length)
            self.group.begin(self.member(trainer), begin, start, self.now)
        trainer.run_protocol.spoke_at, trainer.is_damaged = self.now, False
        self.serve()

    def next(self, trainer: Trainer) -> int | None:
        """``__next__``: the number, or None when there is nothing yet, or nothing more."""
        trainer.use_hand()
        trainer.waits = True
        if trainer.run_protocol.must_begin(self.now):
            self.ask(trainer)
        self._ask_for_more(trainer)
        return self.receive(trainer)

    def _ask_for_more(self, trainer: Trainer, *, waits: bool = False) -> None:
        rules = trainer.run_protocol
        if rules.is_shared and trainer.shows:
            trainer.progress_word = progress_word.pack(trainer.run, trainer.progress.done)
            rules.window.report_at_once(self.group.registry.dynamic)
        if (need := rules.need(self.now, waits=waits)) is not None:
            self._send(trainer, need)

    def _send(self, trainer: Trainer, need: m.Need) -> None:
        if trainer.run_protocol.must_begin(self.now):
            self.ask(trainer)
            return
        if not trainer.away:
            self.group.need(self.member(trainer), need, self.now)
        trainer.run_protocol.note_sent(need, self.now)
        self.serve()

    def beat(self, trainer: Trainer) -> None:
        """It waits for a batch, and says so now and then."""
        self._send(trainer, m.Need(trainer.run, 0, trainer.progress.done, 0, 0))

    def receive(self, trainer: Trainer) -> int | None:
        """The batch that ``next`` waits for, if it is there."""
        rules, inbox = trainer.run_protocol, trainer.inbox
        while not trainer.over:
            try:
                action = rules.next_action(has_read=True)
            except Error as error:
                trainer.fail(error)
                return None
            match action:
                case ReceivedBatch():
                    index = trainer.take(action)
                    self.bounds.add(tuple(action.head.bucket["bounds"]))
                    return index
                case ClientAction.UNPACK:
                    head, frames = inbox[0]
                    inbox[0] = ReceivedBatch(head, NO_ROWS, trainer.progress.done, pool=EMPTY, checksums=frames[2])
                case ClientAction.DROP:
                    del inbox[0]
                case ClientAction.BEGIN:
                    self.ask(trainer)
                case ClientAction.RECONNECT:
                    self.come_back(trainer)
                    self.ask(trainer)
                    self._ask_for_more(trainer)
                case ClientAction.END:
                    trainer.progress, trainer.waits = rules.end_pass(), False
                    return None
                case _:
                    before = len(inbox)
                    self._ask_for_more(trainer, waits=True)
                    if (need := rules.sign_of_life(self.now)) is not None:
                        self._send(trainer, need)
                    if len(inbox) == before:
                        return None
        return None

    def leave(self, trainer: Trainer) -> None:
        """Out of its loop."""
        message = trainer.run_protocol.leave()
        if message is not None and not trainer.away:
            self.group.leave(self.member(trainer), message.request_id, message.used_batches, self.now)
        trainer.use_hand()
        trainer.over, trainer.position = True, trainer.position.next_pass()
        self.serve()

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
            for trainer in [trainer for trainer in self.trainers if close and trainer not in going]:
                self.close(trainer)
            self.now += 1.0
            for trainer in going:
                if trainer.over:
                    self.begin(trainer)
                if trainer.waits:
                    self.receive(trainer)
                else:
                    self.next(trainer)
            self.group.check_leases(self.now)
            self.serve()
        raise NoEnd(f"no end: {[(t.rank, t.position, t.waits, t.away) for t in trainers]}")

    def used(self) -> list[tuple[int, int]]:
        return sorted(pair for trainer in self.trainers for pair in trainer.used)
