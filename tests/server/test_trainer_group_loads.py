"""Trainers that share a job in no fixed order and load a state: those who come late go on where the others are, and a
service that was started again with too little sends nobody a batch that another one has had."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import pytest

from pydp2.errors import ProviderError, Rewound
from pydp2.order.stream_state import StreamState
from tests.checkpoints import Checkpoints
from tests.seeds import each_seed
from tests.server.test_trainer_group_restarts import drawn
from tests.simulated.trainer_group import LEASE, Trainer, World, position_at


def begun(made: World, count: int = 2) -> list[Trainer]:
    """So many trainers that have begun the pass."""
    trainers = [made.come() for _ in range(count)]
    for trainer in trainers:
        made.begin(trainer)
    return trainers


def loaded_by_one_of_two(length: int, at: int) -> tuple[World, Trainer, Trainer, StreamState]:
    """A job in which one of two trainers has loaded the state before batch ``at``."""
    made = World(length, 1, dynamic=True)
    one, other = begun(made)
    for _ in range(at):
        made.next(one)
    state = position_at(at)
    one.hand, one.used = None, []
    made.begin(one, deepcopy(state))
    return made, one, other, state


def wait_for_a_lease(made: World, *others: Trainer) -> None:
    """The leases of all but the ``others``, who wait for batches, run out."""
    for _ in range(4):
        made.now += LEASE / 3
        for other in others:
            made.beat(other)
        made.group.check_leases(made.now)


def away_for_a_lease(made: World, trainer: Trainer, *others: Trainer) -> None:
    """The connection of ``trainer`` is cut until its lease is over; ``others`` wait."""
    member = made.group.registry.by_peer(trainer.peer)
    assert member is not None
    made.group.connection_lost(member, made.now)
    trainer.inbox.clear()
    wait_for_a_lease(made, *others)
    assert member.number not in made.group.registry.trainers
    made.come_back(trainer)


def ask_after_a_kill(made: World, trainer: Trainer) -> None:
    """``trainer`` has lost what was sent to it, and asks a service that was started again."""
    trainer.inbox.clear()
    made.next(trainer)
    made.receive(trainer)


def test_after_a_restart_who_loads_another_state_or_none_is_told_which_one_the_others_have_loaded() -> None:
    made = World(10, 1, dynamic=True)
    one, other = begun(made)
    assert (made.next(one), made.next(other)) == (0, 2)
    made.crash()
    for trainer in (one, other):
        trainer.inbox.clear()
        trainer.hand = None
    new = made.come()
    made.begin(new)
    assert made.next(new) == 0, "it knows of nothing that came before"
    made.begin(one, position_at(2))
    made.begin(other, position_at(4))
    for trainer in (new, one):
        trainer.hand = None
        made.next(trainer)
        assert isinstance(trainer.error, Rewound)
        assert trainer.is_lacking
        made.begin(trainer, position_at(4))
    for trainer in made.trainers:
        trainer.used.clear()
    made.finish([one, other, new], 1)
    assert made.used() == [(0, n) for n in range(4, 10)]


def test_after_a_restart_who_was_never_answered_begins_anew() -> None:
    made = World(10, 1, dynamic=True)
    made.numbers.is_read = False
    trainer = made.come()
    made.begin(trainer)
    made.crash()
    made.finish([trainer], 1)
    assert trainer.used == [(0, n) for n in range(10)]


def test_who_came_to_the_others_without_a_state_and_loads_it_goes_back_there_with_them() -> None:
    """It has had batches since."""
    made, one, _, state = loaded_by_one_of_two(10, 4)
    assert made.next(one) == 4
    comes = made.come()
    made.begin(comes)
    assert made.next(comes) == 7
    made.begin(comes, deepcopy(state))
    assert made.next(comes) == 4
    made.next(one)
    assert isinstance(one.error, Rewound)


def test_a_new_process_that_loads_the_state_joins_those_who_came_without_it() -> None:
    made, one, _, state = loaded_by_one_of_two(10, 4)
    assert [made.next(one), made.next(one)] == [4, 5]
    plain = made.come()
    made.begin(plain)
    made.close(one)
    comes = made.come()
    made.begin(comes, deepcopy(state))
    made.finish([plain, comes], 1)
    assert (plain.error, comes.error) == (None, None)
    assert sorted(n for trainer in (plain, comes) for _, n in trainer.used) == [6, 7, 8, 9]


def test_who_comes_back_after_its_lease_goes_on() -> None:
    """Nobody has gone back to a state meanwhile, and its batches went to others."""
    made = World(10, 1, dynamic=True)
    one, other = begun(made)
    assert [made.next(other), made.next(other)] == [2, 3]
    away_for_a_lease(made, other, one)
    other.use_hand()
    made.begin(other)
    made.finish([one, other], 1)
    assert (one.error, other.error) == (None, None)
    assert {n for _, n in made.used()} == {*range(10)}


@pytest.mark.parametrize("begun", [True, False])
def test_who_was_away_for_its_lease_before_it_had_anything_of_its_state_takes_nobody_back(begun: bool) -> None:
    made, one, other, state = loaded_by_one_of_two(12, 4)
    comes = made.come()
    if begun:
        made.begin(comes, deepcopy(state))
    assert made.next(one) == 4
    away_for_a_lease(made, comes, one, other)
    if begun:
        made.ask(comes)
    else:
        made.begin(comes, deepcopy(state))
    made.receive(comes)
    made.next(one)
    assert (comes.error, one.error) == (None, None)


def test_why_a_relaxed_pass_failed_is_told_after_it_was_cut_off() -> None:
    made = World(2, 2, relaxed=True)
    made.numbers.errors[0] = ProviderError("a file raised")
    one, other = made.come(0), made.come(1)
    for trainer in (one, other):
        made.begin(trainer)
    assert made.next(one) == 0
    assert made.next(one) is None
    made.write()
    made.crash()
    made.begin(one)
    made.receive(one)
    assert isinstance(one.error, ProviderError)


def test_a_relaxed_pass_that_was_cut_off_is_not_over_for_who_had_nothing_of_it() -> None:
    made = World(10, 2, relaxed=True)
    one, other = made.come(0), made.come(1)
    for trainer in (one, other):
        made.begin(trainer)
    assert made.next(one) == 0
    made.write()
    made.crash()
    ask_after_a_kill(made, other)
    assert isinstance(other.error, Rewound)
    assert "in the middle of pass 0 of job 'default', which has no state there" in str(other.error)


@each_seed(3000, few=150)
def test_who_is_told_to_load_a_state_goes_on_from_it_and_each_batch_comes_once(seed: int) -> None:
    """Trainers save states, and all load the latest once one is told to: the batches before it and those that come
    then are those of the stream, whatever the service knows when it is started again."""
    choose, made = drawn(seed, shared=0.7, lengths=(1, 3, 10, 40))
    count = choose.choice([2, 3]) if made.group.registry.dynamic else made.group.registry.world
    kept = Checkpoints[StreamState, tuple[int, int]](count, shared=made.group.registry.dynamic)
    trainers = [made.come(0 if kept.shared else rank) for rank in range(count)]
    for who, trainer in enumerate(trainers):
        kept.save(who, deepcopy(trainer.position), (0, 0))
    kills = choose.choice([1, 4, 8])
    for _ in range(20_000):
        who = choose.randrange(count)
        step(made, kept, trainers, who)
        if kills and all(trainer.run for trainer in trainers) and choose.random() < 0.02:
            kills -= 1
            # a service that knows nothing cannot know either that who does not come back has had its passes
            knows = any(trainer.over and trainer.position.pass_id >= 2 for trainer in trainers)
            made.crash(-1 if knows else choose.choice([-1, -2, -9]))
        ended = (trainer.over and trainer.position.pass_id >= 2 for trainer in trainers)
        if not kills and all(ended) and all(map(kept.is_present, range(count))):
            break
    else:
        assert not kept.shared
        assert any(trainer.over for trainer in trainers), "nobody knows any more that it has had its passes"
        return
    batches = sorted(batch for who in range(count) for batch in kept.given(who))
    assert batches == [(p, n) for p in range(2) for n in range(made.numbers.length)]


def step(made: World, kept: Checkpoints[StreamState, tuple[int, int]], trainers: Sequence[Trainer], who: int) -> None:
    """What ``who`` does next, as a program does that saves states and loads them where it has to."""
    trainer = trainers[who]
    made.now += 0.1
    if not kept.is_present(who):  # another one was told
        trainer.hand, trainer.waits = None, False
        made.begin(trainer, deepcopy(kept.follow(who)))
    elif trainer.over:
        if trainer.position.pass_id < 2:
            made.begin(trainer)
        return
    number = made.receive(trainer) if trainer.waits else made.next(trainer)
    if number is not None:
        at = trainer.position
        kept.give(who, at.pass_id, number, (at.pass_id, number))
        kept.save(who, deepcopy(at), (at.pass_id, at.batch), at.acknowledged_ahead)
    if isinstance(trainer.error, Rewound):
        if not trainer.is_lacking:
            kept.go_back(who)
        made.begin(trainer, deepcopy(kept.follow(who)))
    elif trainer.error is not None:
        raise trainer.error
    made.group.check_leases(made.now)
    made.serve()


def test_what_was_used_of_an_earlier_run_says_nothing_of_the_batches_of_the_last_one() -> None:
    made = World(6, 1, dynamic=True)
    one, other = begun(made)
    assert made.next(other) == 2
    made.reconnect(other)
    made.receive(other)
    made.group.detach(made.member(other), other.run - 1, 1, made.now)
    made.trainers.remove(other)
    made.finish([one], 1)
    assert [n for _, n in one.used] == [0, 1, 3, 4, 5]


def test_who_was_cut_off_keeps_its_batches_until_its_lease_ends() -> None:
    """It may have used them, and says so when it comes back."""
    made = World(6, 1, dynamic=True)
    one, other = begun(made)
    assert [made.next(other), made.next(other)] == [2, 3]
    member = made.member(other)
    made.group.connection_lost(member, made.now)
    other.inbox.clear()
    assert [made.next(one) for _ in range(3)] == [0, 1, None]
    made.come_back(other)
    other.use_hand()
    made.begin(other)
    made.finish([one, other], 1)
    assert made.used() == [(0, n) for n in range(6)]
