"""Trainers that share a job in no fixed order and load a state: those who come late go on where the others are, and a
service that was started again with too little sends nobody a batch that another one has had."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from pydp2.client.position import Position
from pydp2.errors import Rewound
from tests.checkpoints import Checkpoints
from tests.seeds import each_seed
from tests.server.teams import Trainer, World
from tests.server.test_trainer_group_restarts import drawn


def begun(made: World, count: int = 2) -> list[Trainer]:
    """So many trainers that have begun the pass."""
    trainers = [made.come() for _ in range(count)]
    for trainer in trainers:
        made.begin(trainer)
    return trainers


def read_on(made: World, trainer: Trainer, pass_id: int = 0) -> list[int]:
    """What ``trainer`` gets of a pass from now on, while nobody else does anything."""
    before = len(trainer.used)
    while not trainer.over:
        if trainer.waits:
            made.receive(trainer)
            assert not trainer.waits, f"it waits after {trainer.used}"
        else:
            made.next(trainer)
    return [n for at, n in trainer.used[before:] if at == pass_id]


def loaded_by_one_of_two(length: int, at: int) -> tuple[World, Trainer, Trainer, Position]:
    """A job in which one of two trainers has loaded the state before batch ``at``."""
    made = World(length, 1, dynamic=True)
    one, other = begun(made)
    for _ in range(at):
        made.next(one)
    state = Position(0, at)
    one.hand, one.used = None, []
    made.begin(one, deepcopy(state))
    return made, one, other, state


def test_who_loads_the_state_when_the_others_have_had_the_rest_of_its_pass_gets_nothing_of_it() -> None:
    made, one, other, state = loaded_by_one_of_two(10, 4)
    assert read_on(made, one) == [4, 5, 6, 7, 8, 9]
    made.next(other)
    assert isinstance(other.error, Rewound)
    made.begin(other, deepcopy(state))
    assert read_on(made, other) == []
    assert other.error is None
    assert other.position.pass_id == 1


def test_who_loads_the_state_when_the_others_are_in_the_next_pass_goes_on_there() -> None:
    made, one, other, state = loaded_by_one_of_two(10, 8)
    assert read_on(made, one) == [8, 9]
    made.begin(one)
    assert made.next(one) == 0
    made.next(other)
    made.begin(other, deepcopy(state))
    assert read_on(made, other) == []
    made.finish([one, other], 2)
    assert (one.error, other.error) == (None, None)
    assert sorted(n for p, n in made.used() if p == 1) == [*range(10)]


def test_a_new_process_that_loads_the_state_beside_others_goes_on_where_they_are() -> None:
    made, one, _, state = loaded_by_one_of_two(10, 8)
    assert read_on(made, one) == [8, 9]
    comes = made.come()
    made.begin(comes, deepcopy(state))
    assert read_on(made, comes) == []
    assert comes.error is None


def test_a_new_process_that_loads_the_state_and_finds_nobody_has_all_of_its_batches() -> None:
    """All were killed, and started again from the same checkpoint, before their leases were over."""
    made, one, other, state = loaded_by_one_of_two(10, 4)
    assert [made.next(one), made.next(one)] == [4, 5]
    made.vanish(one)
    made.vanish(other)
    comes = made.come()
    made.begin(comes, deepcopy(state))
    made.finish([comes], 1)
    assert [n for _, n in comes.used] == [4, 5, 6, 7, 8, 9]


def test_a_trainer_of_a_service_that_knew_nothing_is_not_taken_for_one_that_is_known() -> None:
    """It was connected, and had begun nothing there, when that one was killed, too."""
    made = World(10, 1, dynamic=True)
    one, other = begun(made)
    state = deepcopy(one.position)
    assert made.next(one) == 0
    assert [made.next(other) for _ in range(3)] == [2, 3, 5]
    made.crash(-9)
    for trainer in (one, other):
        trainer.inbox.clear()
    made.next(one)
    assert isinstance(one.error, Rewound)
    made.begin(one, state)
    assert made.next(one) == 0
    made._come_back(other)
    made.write()
    made.crash()
    other.inbox.clear()
    made.next(other)
    made.receive(other)
    assert isinstance(other.error, Rewound)


def test_an_old_snapshot_stays_old_when_it_is_written_down_again() -> None:
    made = World(10, 1, dynamic=True)
    one, other = begun(made)
    old = made.disk[-1]
    while not (one.over and other.over):
        for trainer in (one, other):
            made.receive(trainer) if trainer.waits else None if trainer.over else made.next(trainer)
    for trainer in (one, other):
        made.begin(trainer)
    assert (made.next(one), made.next(other)) == (0, 2)
    made.disk = [old, made.disk[-1]]
    made.crash(-2)
    made.write()
    made.crash()
    for trainer in (one, other):
        trainer.inbox.clear()
        made.next(trainer)
        made.receive(trainer)
        assert isinstance(trainer.error, Rewound)


def test_a_state_that_may_have_been_asked_for_before_is_refused_by_a_service_that_knows_nothing() -> None:
    """Others may have had what follows it, and left: only who loads it once more means to have that again."""
    made, one, other, state = loaded_by_one_of_two(10, 4)
    made.next(other)
    made.begin(other, deepcopy(state))
    assert made.next(one) == 4
    made.crash(-9)
    other.inbox.clear()
    made.next(other)
    made.receive(other)
    assert isinstance(other.error, Rewound)
    made.begin(other, deepcopy(state))
    assert read_on(made, other) == [4, 5, 6, 7, 8, 9]


def test_who_is_told_to_load_a_state_and_does_not_is_told_again() -> None:
    made = World(10, 1, dynamic=True)
    _, other = begun(made)
    assert made.next(other) == 2
    made.crash(-9)
    other.inbox.clear()
    made.next(other)
    assert isinstance(other.error, Rewound)
    made.begin(other)
    made.next(other)
    assert isinstance(other.error, Rewound)


@each_seed(3000, few=150)
def test_who_is_told_to_load_a_state_goes_on_from_it_and_each_batch_comes_once(seed: int) -> None:
    """Trainers save states, and all load the latest once one is told to: the batches before it and those that come
    then are those of the stream, whatever the service knows when it is started again."""
    choose, made = drawn(seed, shared=0.7, lengths=(1, 3, 10, 40))
    count = choose.choice([2, 3]) if made.team.registry.dynamic else made.team.registry.world
    kept = Checkpoints[Position, tuple[int, int]](count, shared=made.team.registry.dynamic)
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


def step(made: World, kept: Checkpoints[Position, tuple[int, int]], trainers: Sequence[Trainer], who: int) -> None:
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
        if not trainer.lacks:
            kept.go_back(who)
        made.begin(trainer, deepcopy(kept.follow(who)))
    elif trainer.error is not None:
        raise trainer.error
    made.team.check_leases(made.now)
    made.serve()
