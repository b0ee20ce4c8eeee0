"""Who gets which batch when trainers come, go, hang and go back: a job whose batches are numbers, random schedules."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest

from pydp2.client.position import Position
from pydp2.errors import JobTaken, OptionError, RemoteProtocolError, Rewound, from_wire
from pydp2.inputs import Columns, Packer, Slots, integer_value
from pydp2.inputs.names import encode
from pydp2.order import Cut
from pydp2.order.saved import Saved
from pydp2.protocol import messages as m
from pydp2.server.job import Group, Over, Ready
from pydp2.server.member import Stands
from pydp2.server.missing import MISSED
from pydp2.server.team import Team

SLOTS = Slots((integer_value(1 << 20),), ("n",))
LEASE = 30.0
EMPTY = encode(np.empty(0, np.int64), np.empty(0, np.int64))


def columns(number: int) -> Columns:
    packer = Packer(SLOTS, strict=False)
    packer.add([number])
    return packer.cut().columns


class Numbers:
    """A job whose batch n of a pass holds the number n; every seventh is a point from which it can be taken up."""

    def __init__(self, length: int, last_batch: str = "keep") -> None:
        self.length = length
        self.last_batch = last_batch
        self.pass_id = -1
        self.running = False
        self.begun: list[tuple[int, int]] = []
        self.again = (0, 0)

    def begin(
        self, pass_id: int, *, batch: int, saved: Saved | None, facts: Mapping[int, Any], beyond: Collection[int],
        buckets: Mapping[str, Any], world: int,
    ) -> str:  # fmt: skip
        assert not self.running
        assert saved is None or saved.index <= batch
        self.pass_id, self._next, self._beyond, self._world = pass_id, batch, set(beyond), world
        self._point = saved
        self.running = True
        self.begun.append((pass_id, batch))
        return "a reading"

    def knows(self, facts: Mapping[int, Any]) -> bool:
        return True

    def leave(self) -> None:
        self.running = False

    def said_of_padding(self) -> str:
        return ""

    def next(self) -> Group | Over | None:
        assert self.running
        while self._next in self._beyond:
            self._next += 1
        group = [*range(self._next, min(self.length, self._next + self._world))]
        short = len(group) < self._world
        if not group or (short and self.last_batch == "drop"):
            return Over(self._next, 0, 0, True)
        self._next += len(group)
        if self._next // 7 * 7 > (0 if self._point is None else self._point.index):
            self._point = Saved(self._next // 7 * 7, EMPTY, False, 0, 0, 0, 0, [], 0, 0)
        cuts = [Ready(Cut(n, np.zeros(1, np.int64), 1, 1), columns(n), {}) for n in group]
        return Group(cuts, self._next, 0, self._point, [])


@dataclass
class Trainer:
    """A client as the rules want it. ``used``: what it was given and asked on after."""

    session: str
    rank: int
    peer: bytes = b""
    position: Position = field(default_factory=Position)
    run: int = 0
    done: int = 0
    inbox: list[m.Message] = field(default_factory=list)
    hand: int | None = None
    used: list[tuple[int, int]] = field(default_factory=list)
    over: bool = True
    waits: bool = False
    error: Exception | None = None
    spoke: float = 0.0


class World:
    """A team and its trainers."""

    def __init__(self, length: int, world: int, *, dynamic: bool = False, last_batch: str = "keep", seed: int = 0):
        self.random = Random(seed)
        self.numbers = Numbers(length, last_batch)
        self.logs: list[str] = []
        self.ended: list[Over] = []
        self.readings: list[Any] = []
        self.team = Team(
            self.numbers,  # type: ignore[arg-type]
            name="default", world=world, dynamic=dynamic, lease=LEASE,
            read=self.readings.append, over=self.ended.append, log=lambda text, kind: self.logs.append(text),
        )  # fmt: skip
        self.now = 1.0
        self.trainers: list[Trainer] = []
        self._peers = 0

    def come(self, rank: int = 0, session: str = "") -> Trainer:
        """A trainer connects."""
        self._peers += 1
        trainer = Trainer(session or f"session {self._peers}", rank, f"peer {self._peers}".encode())
        self._attach(trainer)
        self.trainers.append(trainer)
        return trainer

    def _attach(self, trainer: Trainer) -> None:
        attach = m.Attach(1, "default", trainer.rank, self.team.world, trainer.session, {}, 1)
        place = self.team.attach(trainer.peer, attach, self.now)
        trainer.position = Position.from_welcome(place)
        self.deliver()

    def begin(self, trainer: Trainer, loaded: Position | None = None) -> None:
        """It begins to iterate, or goes on after ``loaded``."""
        if loaded is not None:
            trainer.position = loaded
        trainer.over, trainer.error = False, None
        self._ask(trainer, "" if loaded is None else loaded.name)

    def _ask(self, trainer: Trainer, loaded: str = "") -> None:
        trainer.run += 1
        trainer.done = 0
        at = trainer.position
        saved = None if at.point is None else Saved.from_wire(at.point.saved, at.point.pool, 1)
        point = {} if at.point is None else at.point.saved
        begin = m.BeginPass(trainer.run, at.pass_id, at.batch, 2, point, 0, at.beyond, loaded)
        self.team.begin(trainer.peer, begin, saved, {}, self.now)
        trainer.spoke = self.now
        self.serve()

    def next(self, trainer: Trainer) -> int | None:
        """``__next__``: the number, or None when there is nothing yet, or nothing more."""
        if trainer.hand is not None:
            trainer.used.append((trainer.position.pass_id, trainer.hand))
            trainer.hand = None
        if self.now - trainer.spoke > LEASE:
            self._ask(trainer)
        self.team.need(trainer.peer, m.Need(trainer.run, 1, trainer.done, 0, 0), self.now)
        trainer.spoke = self.now
        self.serve()
        trainer.waits = True
        return self.receive(trainer)

    def receive(self, trainer: Trainer) -> int | None:
        """The batch that ``next`` waits for, if it is there."""
        if self.now - trainer.spoke > LEASE / 4:
            self.beat(trainer)
        for message in trainer.inbox:
            if isinstance(message, m.Failed) and message.run == trainer.run:
                trainer.inbox = [message]
                break
        while trainer.inbox:
            message = trainer.inbox.pop(0)
            if getattr(message, "run", None) != trainer.run:
                continue
            match message:
                case m.BatchHead(index=index):
                    trainer.waits = False
                    trainer.position.taken(message, EMPTY, [])
                    trainer.hand = index
                    trainer.done += 1
                    return index
                case m.PassEnd():
                    trainer.waits = False
                    trainer.position = Position(trainer.position.pass_id + 1)
                    trainer.over = True
                    return None
                case m.Failed(error=error):
                    trainer.over, trainer.waits, trainer.error = True, False, from_wire(error)
                    return None
        return None

    def beat(self, trainer: Trainer) -> None:
        """It waits for a batch, and says so now and then."""
        self.team.need(trainer.peer, m.Need(trainer.run, 0, trainer.done, 0, 0), self.now)
        trainer.spoke = self.now

    def leave(self, trainer: Trainer) -> None:
        """Out of its loop."""
        self.team.leave(trainer.peer, trainer.run, trainer.done, self.now)
        self._settle_hand(trainer)
        trainer.over = True
        trainer.position = Position(trainer.position.pass_id + 1)
        self.serve()

    def close(self, trainer: Trainer) -> None:
        member = self.team.of(trainer.peer)
        assert member is not None
        self.team.detach(member, trainer.run, trainer.done)
        self._settle_hand(trainer)
        self.trainers.remove(trainer)
        self.serve()

    def _settle_hand(self, trainer: Trainer) -> None:
        if trainer.hand is not None:
            trainer.used.append((trainer.position.pass_id, trainer.hand))
            trainer.hand = None

    def vanish(self, trainer: Trainer) -> None:
        """Killed: what it had in hand is not used."""
        member = self.team.of(trainer.peer)
        assert member is not None
        self.team.vanish(member, self.now)
        self.trainers.remove(trainer)
        self.serve()

    def reconnect(self, trainer: Trainer) -> None:
        """Its connection broke: it comes back as who it was, and knows what it has had."""
        member = self.team.of(trainer.peer)
        assert member is not None
        self.team.vanish(member, self.now)
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
        while self.team.out:
            peer, message, _ = self.team.out.popleft()
            for trainer in self.trainers:
                if trainer.peer == peer:
                    trainer.inbox.append(message)

    def used(self) -> list[tuple[int, int]]:
        return sorted(pair for trainer in self.trainers for pair in trainer.used)


def run_out(world: World, trainers: list[Trainer], passes: int = 1) -> None:
    """All of ``trainers`` to the end of pass number ``passes`` - 1."""
    for _ in range(10_000):
        going = [t for t in trainers if t.position.pass_id < passes]
        if not going:
            return
        for trainer in going:
            if trainer.over:
                world.begin(trainer)
            world.next(trainer)
            world.team.watch(world.now)
            world.serve()
    raise AssertionError("no end")


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("length", [0, 1, 5, 12])
def test_batches_go_to_the_ranks_in_turn(world: int, length: int) -> None:
    made = World(length, world)
    trainers = [made.come(rank) for rank in range(world)]
    run_out(made, trainers, passes=2)
    for rank, trainer in enumerate(trainers):
        assert trainer.used == [(p, n) for p in range(2) for n in range(rank, length, world)]
    assert made.numbers.begun == [(0, 0), (1, 0)]
    assert len(made.ended) == 2


def test_all_ranks_say_the_same_position_after_the_same_step() -> None:
    made = World(30, 3)
    trainers = [made.come(rank) for rank in range(3)]
    for trainer in trainers:
        made.begin(trainer)
    for step in range(1, 9):
        assert [made.next(trainer) for trainer in trainers] == [3 * step - 3, 3 * step - 2, 3 * step - 1]
        states = [trainer.position.to_state({}) for trainer in trainers]
        assert states[0] == states[1] == states[2]
        assert states[0]["batch"] == 3 * step


def test_the_others_go_on_until_their_window_is_full_and_it_is_said_who_is_missing() -> None:
    made = World(100, 3)
    first, second = made.come(0), made.come(1)
    made.begin(first)
    made.begin(second)
    count = 0
    while made.next(first) is not None:
        assert made.next(second) is not None
        count += 1
    assert 3 < count < 20, "a window, not the pass"
    made.team.watch(made.now)
    made.now += MISSED + 1
    for _ in range(3):
        made.team.watch(made.now)
    assert made.logs == ["job 'default' waits for rank 2, which never came; connect with rank=2, world_size=3"]
    third = made.come(2)
    made.begin(third)
    run_out(made, [first, second, third])
    assert made.used() == [(0, n) for n in range(100)]


def test_what_a_killed_rank_had_not_used_goes_to_the_next_that_takes_its_place() -> None:
    made = World(20, 2)
    stays, dies = made.come(0), made.come(1)
    made.begin(stays)
    made.begin(dies)
    assert [made.next(dies), made.next(dies)] == [1, 3]
    made.vanish(dies)  # with batch 3 in its hand, and more on the way
    comes = made.come(1)
    assert (comes.position.pass_id, comes.position.batch) == (0, 2)
    run_out(made, [stays, comes])
    assert comes.used == [(0, n) for n in range(3, 20, 2)]
    assert stays.used == [(0, n) for n in range(0, 20, 2)]


def test_a_place_is_taken_from_one_who_is_silent_and_from_nobody_else() -> None:
    made = World(20, 2)
    one, other = made.come(0), made.come(1)
    made.begin(one)
    made.begin(other)
    assert made.next(other) == 1
    made.now += LEASE - 1
    with pytest.raises(JobTaken, match=r"rank 1 is taken \(process 1, last heard of 29 s ago\); .* lease=30 s"):
        made.come(1)
    made.now += 1
    taker = made.come(1)
    assert isinstance(from_wire(other.inbox[-1].error), Rewound)  # type: ignore[attr-defined]
    with pytest.raises(RemoteProtocolError, match="lost its place"):
        made.next(other)
    made.trainers.remove(other)
    run_out(made, [one, taker])
    assert made.used() == [(0, n) for n in range(20)]


def test_the_next_pass_begins_when_all_have_ended_or_left_this_one() -> None:
    made = World(8, 2)
    one, other = made.come(0), made.come(1)
    made.begin(one)
    made.begin(other)
    while not one.over:
        made.next(one)
    made.begin(one)
    assert made.next(one) is None
    assert made.numbers.begun == [(0, 0)]
    made.next(other)
    made.leave(other)
    assert made.numbers.begun == [(0, 0), (1, 0)]
    made.begin(other)
    run_out(made, [one, other], passes=2)
    assert [n for p, n in other.used if p == 0] == [1], "it forfeits the rest"
    assert [n for p, n in one.used + other.used if p == 1] == [0, 2, 4, 6, 1, 3, 5, 7]


def test_another_world_size_or_a_rank_for_two_is_refused() -> None:
    made = World(8, 2)
    made.come(0)
    with pytest.raises(OptionError, match=r"job 'default' has world_size=2, this trainer says 3"):
        made.team.attach(b"x", m.Attach(1, "default", 1, 3, "s", {}, 1), made.now)
    with pytest.raises(JobTaken, match="rank 0 is taken"):
        made.come(0)


def test_a_loaded_state_rewinds_all_and_those_who_load_it_too_join() -> None:
    made = World(40, 2)
    one, other = made.come(0), made.come(1)
    for trainer in (one, other):
        made.begin(trainer)
    for _ in range(5):
        made.next(one)
        made.next(other)
    state = one.position.to_state({})
    for _ in range(4):
        made.next(one)
        made.next(other)
    one.used.clear()
    other.used.clear()
    one.hand = other.hand = None
    made.begin(one, Position.from_state(state, {}))
    assert made.next(other) is None
    assert isinstance(other.error, Rewound)
    made.begin(other)
    made.next(other)
    assert isinstance(other.error, Rewound), "going on in the old generation"
    other.hand = None
    other.used.clear()
    made.begin(other, Position.from_state(state, {}))
    assert len(made.numbers.begun) == 2, "it joins"
    run_out(made, [one, other])
    assert made.used() == [(0, n) for n in range(10, 40)]
    made.begin(one, Position.from_state(state, {}))
    assert made.numbers.begun[-1] == (0, 10), "a second time opens the next generation"


def test_dynamic_batches_go_to_whoever_asks_first_and_each_is_used_once() -> None:
    made = World(30, 1, dynamic=True)
    slow, fast = made.come(), made.come()
    made.begin(slow)
    made.begin(fast)
    made.next(slow)
    for _ in range(5):
        made.next(fast)
    run_out(made, [fast, slow])
    assert made.used() == [(0, n) for n in range(30)]
    assert len(fast.used) > len(slow.used)


def test_dynamic_what_a_silent_trainer_has_goes_to_the_others_when_its_lease_is_over() -> None:
    made = World(30, 1, dynamic=True)
    hangs, goes_on = made.come(), made.come()
    made.begin(hangs)
    made.begin(goes_on)
    first = made.next(hangs)
    assert first is not None
    while made.next(goes_on) is not None:
        pass
    assert not goes_on.over, "it waits for the others' batches to be used"
    made.now += LEASE + 1
    made.team.watch(made.now)
    made.serve()
    made.receive(goes_on)
    while not goes_on.over:
        made.next(goes_on)
    assert sorted(goes_on.used) == [(0, n) for n in range(30)]
    assert "batches of a silent trainer go to others" in made.logs[0]
    hangs.hand = None
    assert made.next(hangs) is None, "it wakes, and what lies in its box is not its any more"
    assert hangs.used == []


def test_dynamic_one_who_wakes_before_anybody_took_its_batches_goes_on_with_them() -> None:
    made = World(10, 1, dynamic=True)
    trainer = made.come()
    made.begin(trainer)
    assert [made.next(trainer), made.next(trainer)] == [0, 1]
    made.now += LEASE + 1
    made.team.watch(made.now)
    run_out(made, [trainer])
    assert trainer.used == [(0, n) for n in range(10)]


@pytest.mark.parametrize("seed", range(int(os.environ.get("PYDP2_SIMULATIONS", "150"))))
def test_each_batch_is_used_once_however_trainers_come_and_go(seed: int) -> None:
    """Kills (what a killed one had in hand counts as not used), broken connections, silence."""
    choose = Random(seed)
    dynamic = choose.random() < 0.4
    world = 1 if dynamic else choose.choice([1, 2, 3])
    length = choose.choice([0, 1, 3, 10, 40])
    made = World(length, world, dynamic=dynamic, seed=seed)
    used: list[tuple[int, int]] = []
    ranks = range(choose.choice([1, 2, 3]) if dynamic else world)
    trainers = {rank: made.come(0 if dynamic else rank) for rank in ranks}
    for _ in range(choose.choice([30, 300])):
        rank = choose.choice([*ranks])
        trainer = trainers.get(rank)
        made.now += choose.choice([0.0, 0.1, 1.0])
        if trainer is None:
            trainers[rank] = made.come(0 if dynamic else rank)
            continue
        act = choose.random()
        if trainer.over:
            if trainer.position.pass_id < 3:
                made.begin(trainer)
        elif act < 0.03 and len(trainers) > 1:
            used += trainer.used
            made.vanish(trainer)
            del trainers[rank]
        elif act < 0.06:
            made.reconnect(trainer)
        elif act < 0.07:
            made.now += LEASE + 5
            for each in trainers.values():
                if each.waits:
                    made.beat(each)
            made.team.watch(made.now)
            made.serve()
            for hung in [key for key, each in trainers.items() if dynamic and each.hand is not None]:
                used += trainers.pop(hung).used  # connected, and never heard of again
        elif trainer.waits:
            made.receive(trainer)
        else:
            made.next(trainer)
    for rank in ranks:
        if rank not in trainers:
            trainers[rank] = made.come(0 if dynamic else rank)
    for _ in range(5000):
        going = [t for t in trainers.values() if t.position.pass_id < 3]
        if not going:
            break
        made.now += 1.0
        for trainer in going:
            if trainer.over:
                made.begin(trainer)
            if trainer.waits:
                made.receive(trainer)
            else:
                made.next(trainer)
        made.team.watch(made.now)
        made.serve()
    else:
        raise AssertionError("no end")
    for trainer in trainers.values():
        used += trainer.used
    assert sorted(used) == [(p, n) for p in range(3) for n in range(length)]
    assert all(member.stands is Stands.BEFORE for member in made.team.members)
