"""Ranks that go to a pass by its number: all to the same, after the pass that others are still in."""

from __future__ import annotations

from random import Random

import pytest

from pydp2.errors import Rewound
from pydp2.server.snapshots.job_snapshot import PassState
from tests.seeds import each_seed
from tests.simulated.trainer_group import Trainer, World


def run_pass(world: World, trainers: list[Trainer], pass_id: int) -> None:
    """All of ``trainers`` go to ``pass_id`` and to its end."""
    for trainer in trainers:
        world.set_epoch(trainer, pass_id)
    for _ in range(1000):
        going = [each for each in trainers if not each.over]
        if not going:
            return
        for trainer in going:
            world.next(trainer)
    raise AssertionError("no end")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_pass_by_its_number_has_all_of_its_batches_forward_and_backward(ranks: int) -> None:
    made = World(7, ranks)
    trainers = [made.come(rank) for rank in range(ranks)]
    for pass_id in (5, 6, 2, 2, 0, 1):
        run_pass(made, trainers, pass_id)
    assert made.numbers.begun == [(p, 0) for p in (5, 6, 2, 2, 0, 1)]
    for rank, trainer in enumerate(trainers):
        assert trainer.error is None
        assert trainer.used == [(p, n) for p in (5, 6, 2, 2, 0, 1) for n in range(rank, 7, ranks)]


def test_who_is_first_waits_until_the_others_have_ended_their_pass() -> None:
    made = World(8, 2)
    one, other = made.come(0), made.come(1)
    made.begin(one)
    made.begin(other)
    while not one.over:
        made.next(one)
    made.set_epoch(one, 0)
    assert made.next(one) is None
    assert made.numbers.begun == [(0, 0)]
    while not other.over:
        made.next(other)
    assert made.numbers.begun == [(0, 0), (0, 0)]
    run = [other]
    made.set_epoch(other, 0)
    for _ in range(8):
        for trainer in (one, *run):
            made.receive(trainer) if trainer.waits else made.next(trainer)
    assert one.used == [(0, n) for n in range(0, 8, 2)] * 2
    assert other.used == [(0, n) for n in range(1, 8, 2)] * 2


@pytest.mark.parametrize("others", [1, 7, 3])
@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_do_not_agree_are_told(others: int, first: int) -> None:
    """Pass 1 would come anyway: rank 1 does not call set_epoch then."""
    made = World(8, 2)
    trainers = [made.come(0), made.come(1)]
    run_pass(made, trainers, 0)
    for rank in (first, 1 - first):
        made.set_epoch(trainers[rank], (5, others)[rank])
    for _ in range(20):
        for trainer in trainers:
            if trainer.error is None and not trainer.over:
                made.receive(trainer) if trainer.waits else made.next(trainer)
    errors = [trainer.error for trainer in trainers]
    assert sum(isinstance(error, Rewound) for error in errors) == 1
    assert "call set_epoch() with the same number" in str(errors[0] or errors[1])
    if others == 1:
        assert errors[1] is not None, "the one that stayed in the order of passes"


@each_seed(3000)
def test_whatever_happens_all_ranks_have_the_passes_that_they_go_to(seed: int) -> None:
    """Connections break, the service is killed and started again, ranks leave loops; all call set_epoch alike.

    Where a rank has no batch of a pass, a service that was started again cannot tell whether it has had its end, and
    says so to others: there it is not killed here.
    """
    random = Random(seed)
    ranks, length = random.randint(1, 4), random.choice([0, 1, 5, 9, 20])
    plan = [random.choice([0, 0, 3])]
    while len(plan) < 5:
        plan.append(plan[-1] + 1 if random.random() < 0.5 else random.randint(0, 4))
    made = World(length, ranks, seed=seed, shows=random.random() < 0.5)
    trainers = [made.come(rank) for rank in range(ranks)]
    turn = [-1] * ranks
    begun: list[list[int]] = [[] for _ in trainers]
    left: set[tuple[int, int]] = set()
    breaks = kills = 3
    for step in range(20_000):
        going = [each for each in trainers if turn[each.rank] < len(plan)]
        if not going:
            break
        trainer = going[step % len(going)] if step > 10_000 else random.choice(going)
        rank = trainer.rank
        what = random.random()
        if trainer.over:
            turn[rank] += 1
            begun[rank].append(len(trainer.used))
            if turn[rank] < len(plan):
                made.set_epoch(trainer, plan[turn[rank]])
        elif what < 0.02 and breaks and not trainer.away:
            breaks -= 1
            made.reconnect(trainer)
        elif what < 0.03 and kills and 1 < ranks <= length and made.disk:
            kills -= 1
            made.crash()
        elif what < 0.05 and trainer.hand is not None and not trainer.away:
            left.add((rank, turn[rank]))
            made.leave(trainer)
        else:
            made.receive(trainer) if trainer.waits else made.next(trainer)
        assert trainer.error is None, trainer.error
        made.now += 0.01
        if step % 50 == 0:
            for member in made.group.registry.trainers.values():
                member.last_heard = made.now
            for each in trainers:
                each.run_protocol.spoke_at = made.now
            made.group.check_leases(made.now)
            made.serve()
    else:
        raise AssertionError(
            f"no end: {plan} {turn} {[(t.position.pass_id, t.position.batch, t.waits) for t in trainers]}"
        )
    for trainer in trainers:
        rank = trainer.rank
        for number, pass_id in enumerate(plan):
            had = trainer.used[begun[rank][number] : begun[rank][number + 1]]
            expected = [(pass_id, n) for n in range(rank, length, ranks)]
            assert had == expected[: len(had)]
            assert had == expected or (rank, number) in left
    assert all(each.state is not PassState.IN for each in made.group.registry.trainers.values())
