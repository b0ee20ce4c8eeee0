"""Ranks that come late, read late, leave early: each comes to the end of a pass without waiting for those who are
behind, as far as the window reaches, and gets what it would get in step with them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from pydp2.server.jobs.delivery import _WINDOW, RankedDelivery
from pydp2.server.snapshots.job_snapshot import PassState
from tests.seeds import each_seed
from tests.simulated.trainer_group import LEASE, Trainer, World


def delivery(made: World) -> RankedDelivery:
    """How the batches of the pass under way come to their ranks."""
    assert isinstance(made.group.current, RankedDelivery)
    return made.group.current


def window(prefetch: int) -> int:
    """Groups that may wait for a rank."""
    return _WINDOW + 2 * prefetch


def read_all(made: World, trainer: Trainer, pass_id: int = 0) -> list[int]:
    """What ``trainer`` gets of a pass while nobody else does anything."""
    made.begin(trainer)
    for _ in range(1000):
        if trainer.over:
            break
        if trainer.waits:
            made.receive(trainer)
            assert not trainer.waits or trainer.over, f"rank {trainer.rank} waits after {trainer.used}"
        else:
            made.next(trainer)
    assert trainer.over
    return [n for at, n in trainer.used if at == pass_id]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("prefetch", [1, 2, 5])
@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_ranks_that_come_one_after_another_each_end_a_short_pass(world: int, prefetch: int, last_batch: str) -> None:
    for length in range(world * (window(prefetch) + 1) + 1):
        made = World(length, world, last_batch=last_batch)
        ends = length if last_batch == "keep" else length // world * world
        for rank in Random(length).sample(range(world), world):
            trainer = made.come(rank, prefetch=prefetch)
            assert trainer.position.pass_id == 0
            assert read_all(made, trainer) == [*range(rank, ends, world)], (length, rank)
            made.close(trainer)
        assert made.numbers.begun in ([(0, 0)], []), "one job, one pass"


def test_a_rank_that_left_in_the_middle_keeps_nobody_from_the_end() -> None:
    made = World(2 * window(2) + 1, 2)
    first = made.come(0)
    made.begin(first)
    assert made.next(first) == 0
    made.close(first)
    assert made.group.awaits_ranks
    again = made.come(0)
    assert again.position.pass_id == 1, "it forfeits the rest"
    late = made.come(1)
    assert read_all(made, late) == [*range(1, 2 * window(2) + 1, 2)]
    made.begin(again)
    assert made.next(again) == 0


def test_a_job_ends_a_lease_after_its_last_trainer_left_a_pass_that_not_all_had() -> None:
    made = World(4, 2)
    first = made.come(0)
    assert read_all(made, first) == [0, 2]
    made.close(first)
    made.now += LEASE - 1
    assert not made.group.registry.ends_with(None, made.now)
    made.now += 2
    assert made.group.registry.ends_with(None, made.now)
    late = made.come(1)
    assert (late.position.pass_id, read_all(made, late)) == (0, [1, 3])
    assert made.group.registry.trainers.keys() == {1}, "another job"


def play(made: World, choose: Random, order: Sequence[int], prefetches: Sequence[int]) -> dict[int, list[int]]:
    """All ranks to the end of a pass: each comes when it is drawn, or when those who are there wait, and goes when it
    has ended. What each used."""
    used: dict[int, list[int]] = {}
    there: list[Trainer] = []
    coming = [*order]
    idle = 0
    for _ in range(20_000):
        if coming and (not there or idle > 3 * len(there) or choose.random() < 0.01):
            rank = coming.pop(0)
            there.append(made.come(rank, prefetch=prefetches[rank]))
            made.begin(there[-1])
        if not there:
            return used
        trainer = choose.choice(there)
        before = len(trainer.used), trainer.over, trainer.hand
        if trainer.waits:
            made.receive(trainer)
        else:
            made.next(trainer)
        assert trainer.error is None
        idle = 0 if (len(trainer.used), trainer.over, trainer.hand) != before else idle + 1
        if trainer.over:
            used[trainer.rank] = [n for _, n in trainer.used]
            made.close(trainer)
            there.remove(trainer)
            idle = 4 * len(order)  # the next may come
        made.now += 0.01
        made.group.check_leases(made.now)
        made.serve()
    raise AssertionError(f"no end: {[(t.rank, t.position, t.waits) for t in there]}")


@each_seed(200)
def test_whenever_ranks_come_read_and_leave_all_end_and_each_has_its_own(seed: int) -> None:
    choose = Random(seed)
    world = choose.choice([2, 3, 4])
    prefetches = [choose.choice([1, 2, 4]) for _ in range(world)]
    length = choose.randint(0, world * (window(max(prefetches)) + 3))
    last_batch = choose.choice(["keep", "drop"])
    made = World(length, world, last_batch=last_batch, seed=seed, prefetch_bytes=choose.choice([1, 4096, 1 << 20]))
    used = play(made, choose, choose.sample(range(world), world), prefetches)
    ends = length if last_batch == "keep" else length // world * world
    assert used == {rank: [*range(rank, ends, world)] for rank in range(world)}


@each_seed(100)
def test_no_queue_is_longer_than_its_window_and_the_last_group(seed: int) -> None:
    choose = Random(seed)
    prefetch = choose.choice([1, 2, 4])
    made = World(choose.randint(0, 60), 3, seed=seed)
    trainers = [made.come(rank, prefetch=prefetch) for rank in choose.sample(range(3), 2)]
    for trainer in trainers:
        made.begin(trainer)
    for _ in range(100):
        trainer = choose.choice(trainers)
        if trainer.waits:
            made.receive(trainer)
        elif not trainer.over:
            made.next(trainer)
        assert (
            max(
                len(delivery(made)._unclaimed),
                *(len(m.flow.in_flight) for m in made.group.registry.trainers.values()),
            )
            <= window(prefetch) + 1
        )
    assert len(delivery(made)._ahead) <= 2
    assert all(member.state in (PassState.IN, PassState.ENDED) for member in made.group.registry.trainers.values())


def test_a_rank_that_is_behind_is_named_each_time_that_the_others_wait_for_it() -> None:
    made = World(8, 2)  # all fit into the window: nobody waits within a pass
    ranks = [made.come(rank) for rank in range(2)]

    def read(trainer: Trainer) -> None:
        while not trainer.over:
            made.next(trainer)

    for slow in (1, 0, 1):
        for trainer in ranks:
            if trainer.over:
                made.begin(trainer)
        read(ranks[1 - slow])
        made.begin(ranks[1 - slow])
        for _ in range(20):
            made.now += 0.5
            made.beat(ranks[slow])
            made.group.check_leases(made.now)
        read(ranks[slow])
        made.group.check_leases(made.now)
    assert made.logs == [
        f"job 'default' waits for rank {rank}, which is behind the others (process 1)" for rank in (1, 0, 1)
    ]
    assert made.fields == [{"rank": 1}, {"rank": 0}, {"rank": 1}]


# -- many ranks --------------------------------------------------------------------------------------------------------
def test_ranks_that_are_not_there_are_nowhere_remembered_one_by_one() -> None:
    made = World(2, 65_536)
    one = made.come(40_000)
    made.begin(one)
    assert made.next(one) is None
    assert one.over, "there is no batch for it"
    assert made.group.registry.trainers.keys() == {40_000}
    assert len(delivery(made)._unclaimed) == 1
    assert sum(map(len, delivery(made)._unclaimed._groups)) == 2
    made.write()
    assert len(made.disk[-1]) < 2000
    made.close(one)
    assert made.group.registry.trainers == {}
    for rank in (1, 0):
        assert read_all(made, made.come(rank)) == [rank]


def test_only_some_of_many_missing_ranks_are_named() -> None:
    made = World(300, 100)
    one = made.come(3)
    for _ in range(3):
        if one.over:
            made.begin(one)
        while made.next(one) is not None:
            pass
    assert one.position.pass_id == 1
    for _ in range(10):
        made.now += 1.0
        made.beat(one)
        made.group.check_leases(made.now)
    assert made.logs == [
        "job 'default' waits for ranks 0, 1, 2, 4 and 95 others, which never came; connect with rank=0, world_size=100"
    ]


def test_what_waits_for_ranks_that_are_not_there_has_the_bytes_of_the_pool_together() -> None:
    """However many they are; who is there adds what it may have itself."""
    made = World(10_000, 10, prefetch_bytes=20 * 1024)
    made.numbers.plan.pool_bytes = 40 * 1024
    first = made.come(0)
    made.begin(first)
    seen = 0
    while made.next(first) is not None:
        seen += 1
    assert delivery(made)._unclaimed.nbytes <= (40 + 20 + 10) * 1024
    assert 0 < seen < window(2)
    others = [made.come(rank) for rank in range(1, 10)]
    for trainer in others:
        made.begin(trainer)
    assert made.receive(first) is not None
    assert len(delivery(made)._unclaimed) == 0


def test_dynamic_what_dead_trainers_have_not_used_goes_to_one_that_begins_the_pass_later() -> None:
    made = World(6, 1, dynamic=True)
    dies, late = made.come(), made.come()
    made.begin(dies)
    assert [made.next(dies) for _ in range(3)] == [0, 1, 2]
    made.vanish(dies)
    made.now += LEASE + 1
    made.group.check_leases(made.now)
    made.finish([late], 1)
    assert [n for _, n in late.used] == [2, 3, 4, 5]
