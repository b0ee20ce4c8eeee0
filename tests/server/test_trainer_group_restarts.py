"""A service that is killed and started again: what was written down, and what trainers know, give the same stream."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from random import Random

import pytest

from pydp2.errors import ProviderError, Rewound
from pydp2.order.stream_state import StreamState
from pydp2.server.jobs.resume import take_snapshot
from pydp2.server.snapshots.job_snapshot import PassState
from tests.seeds import each_seed
from tests.simulated.trainer_group import LEASE, NoEnd, Trainer, World, position_at


def run(
    made: World, seed: int, ranks: range, *, snapshot: int, passes: int, kills: bool, state: StreamState | None = None
) -> list[tuple[int, int]]:
    """Trainers iterate, all of them from ``state`` on, while the service, and with ``kills`` they too, are killed; then
    in peace to the end. What was used."""
    choose = Random(seed)
    used: list[tuple[int, int]] = []
    trainers = {rank: made.come(rank) for rank in ranks}
    for trainer in trainers.values() if state is not None else ():
        made.begin(trainer, deepcopy(state))
    for _ in range(choose.choice([30, 300])):
        rank = choose.choice([*ranks])
        trainer = trainers.get(rank)
        made.now += choose.choice([0.0, 0.1, 1.0])
        if trainer is None:
            trainers[rank] = made.come(rank)
            continue
        act = choose.random()
        if act < 0.03:
            made.crash(snapshot)
        elif act < 0.06:
            made.write()
        elif act < 0.08 and not any(each.away for each in made.trainers):
            made.now += LEASE / 2
            for member in made.group.registry.trainers.values():
                member.last_heard = (
                    made.now if member.peer else member.last_heard
                )  # all who are there are heard of in time
            for each in made.trainers:
                each.run_protocol.spoke_at = made.now
            made.group.check_leases(made.now)
            made.serve()
        elif trainer.over:
            if trainer.error is None and trainer.position.pass_id < passes:
                made.begin(trainer)
        elif act < 0.10 and kills and len(trainers) > 1 and not trainer.away:
            used += trainer.used
            made.vanish(trainer)
            del trainers[rank]
        elif trainer.waits:
            made.receive(trainer)
        else:
            made.next(trainer)
    for rank in ranks:
        if rank not in trainers:
            trainers[rank] = made.come(rank)
    made.finish(trainers.values(), passes, close=True)
    for trainer in trainers.values():
        used += trainer.used
        if trainer.error is not None:
            raise trainer.error
    assert len(made.bounds) <= 1
    return used


def drawn(seed: int, *, shared: float = 0.0, lengths: Sequence[int] = (0, 1, 3, 10, 40)) -> tuple[Random, World]:
    """A job, and what its further choices are drawn from; ``shared``: how many of them are dynamic."""
    choose = Random(-seed - 1)
    dynamic = choose.random() < shared
    world = 1 if dynamic else choose.choice([2, 3])
    return choose, World(
        choose.choice(lengths), world, dynamic=dynamic, seed=seed, prefetch_bytes=choose.choice([1, 4096, 1 << 20])
    )


def everything(made: World) -> list[tuple[int, int]]:
    return [(p, n) for p in range(3) for n in range(made.numbers.length)]


@each_seed(300)
def test_no_batch_is_lost_or_repeated_whoever_dies(seed: int) -> None:
    _, made = drawn(seed)
    used = run(made, seed, range(made.group.registry.world), snapshot=-1, passes=3, kills=True)
    assert sorted(used) == everything(made)


@each_seed(300)
def test_a_job_of_one_rank_needs_nothing_written_down(seed: int) -> None:
    made = World(Random(seed).choice([0, 1, 3, 10, 40]), 1, seed=seed)
    made.write = lambda: None  # type: ignore[method-assign]
    used = run(made, seed, range(1), snapshot=-1, passes=3, kills=False)
    assert used == everything(made)


@each_seed(300)
def test_from_an_older_snapshot_the_stream_is_the_same_or_is_refused(seed: int) -> None:
    _, made = drawn(seed)
    try:
        used = run(made, seed, range(made.group.registry.world), snapshot=-2, passes=3, kills=False)
    except Rewound:
        return
    assert sorted(used) == everything(made)


@each_seed(300)
def test_without_any_snapshot_the_stream_is_the_same_or_is_refused(seed: int) -> None:
    """Unless a rank that had all of its passes left: nobody knows that any more, so the others wait for it, and the
    log names it."""
    _, made = drawn(seed, lengths=(1, 3, 10, 40))
    try:
        used = run(made, seed, range(made.group.registry.world), snapshot=-9, passes=3, kills=False)
    except Rewound:
        return
    except NoEnd:
        waits = {trainer.rank for trainer in made.trainers}
        left = [who for text in made.logs for who in re.findall(r"waits for ranks? ([\d, ]+), which left", text)]
        named = {int(rank) for who in left for rank in who.split(", ")}
        assert named
        assert waits.isdisjoint(named)
        return
    assert sorted(used) == everything(made)


def test_a_rank_that_needs_what_was_used_before_the_snapshot_is_refused() -> None:
    """It never lacks these batches by itself: another process has had them as this rank."""
    made = World(60, 2)
    trainers = begun(made)
    before = deepcopy(trainers[1].position)
    for _ in range(10):
        for trainer in trainers:
            made.next(trainer)
    made.write()
    made.crash()
    behind = trainers[1]
    behind.position = before
    made.begin(behind)
    made.receive(behind)
    assert isinstance(behind.error, Rewound)
    assert "does not know any more what rank 1 of job 'default' needs" in str(behind.error)


def begun(made: World) -> list[Trainer]:
    """Two ranks that have begun the pass."""
    trainers = [made.come(0), made.come(1)]
    for trainer in trainers:
        made.begin(trainer)
    return trainers


def test_a_rank_without_a_batch_has_the_bounds_of_its_buckets_from_a_service_that_was_started_again() -> None:
    made = World(1, 2)
    trainers = begun(made)
    assert [made.next(trainers[0]) for _ in range(2)] == [0, None]
    made.crash()
    trainers[1].inbox.clear()  # the end of the pass is lost
    made.finish(trainers[1:], 1)
    assert [trainer.position.buckets for trainer in trainers] == [{"bounds": [0, 1]}] * 2


def test_a_rank_without_a_batch_of_a_pass_that_failed_has_the_bounds_of_its_buckets() -> None:
    made = World(1, 2)
    made.numbers.errors[0] = ProviderError("a file raised")
    trainers = begun(made)
    assert made.next(trainers[0]) == 0
    assert [made.next(trainer) for trainer in trainers] == [None, None]
    assert [type(trainer.error) for trainer in trainers] == [ProviderError] * 2
    assert [trainer.position.buckets["bounds"] for trainer in trainers] == [[0, 1]] * 2


def test_bounds_of_buckets_are_written_down_before_a_rank_has_a_batch() -> None:
    """Ranks that leave the pass while the service is away may not know them."""
    made = World(8, 2)
    made.numbers.is_read = False
    trainers = [made.come(1), made.come(0)]
    for trainer in trainers:
        made.begin(trainer)
    made.numbers.is_read = True
    assert made.next(trainers[1]) == 0
    made.crash()
    for trainer in trainers:
        made.leave(trainer)
    for trainer in trainers:
        made.begin(trainer)
    made.finish(trainers, 2)
    assert made.bounds == {(0, 1)}


def test_ranks_that_come_back_together_know_the_bounds_of_buckets_that_any_of_them_knows() -> None:
    made = World(1, 2)
    made.numbers.errors[0] = ProviderError("a file raised")
    trainers = begun(made)
    assert made.next(trainers[0]) == 0
    for trainer in trainers:
        made.next(trainer)
        assert isinstance(trainer.error, ProviderError)
        trainer.position = trainer.position.next_pass()
    made.disk.clear()
    made.crash()
    for trainer in reversed(trainers):
        made.begin(trainer)
    made.finish(trainers, 2)
    assert made.bounds == {(0, 1)}


def test_a_job_that_was_restored_stands_where_it_stood() -> None:
    made = World(30, 3)
    reads, leaves, closes = (made.come(rank) for rank in range(3))
    for trainer in (reads, leaves, closes):
        made.set_epoch(trainer, 4)
        made.next(trainer)
    made.next(reads)
    made.next(reads)
    made.leave(leaves)
    made.close(closes)
    made.write()
    before = take_snapshot(made.group, made.options, {}).to_plain()
    made.crash()
    assert take_snapshot(made.group, made.options, {}).to_plain() == before
    assert made.group.registry.passed_through == {2: PassState.LEFT}
    assert made.group.generation.loaded == StreamState(4).name
    assert made.group.registry.trainers[0].first_unused == 6


def test_a_rank_that_left_its_pass_before_it_had_anything_of_it_may_go_there_once_more() -> None:
    made = World(30, 2)
    leaves, waits = made.come(0), made.come(1)
    for trainer in (leaves, waits):
        made.set_epoch(trainer, 4)
    made.leave(leaves)
    made.crash()
    states = {rank: member.unconfirmed_state for rank, member in made.group.registry.trainers.items()}
    assert states == {0: "", 1: StreamState(4).name}


def test_the_pass_that_all_had_ended_before_they_went_to_another_is_written_down() -> None:
    made = World(2, 2)
    trainers = begun(made)
    made.finish(trainers, 1)
    made.set_epoch(trainers[0], 4)
    made.write()
    made.crash()
    assert made.group.generation.previous_pass == 0


def test_a_rank_that_has_not_begun_the_pass_does_not_begin_it_when_rows_are_lost() -> None:
    made = World(30, 2)
    made.begin(made.come(0))
    made.come(1)
    made.lose_rows()
    assert made.group.registry.trainers[1].state is PassState.BEFORE


def gathering() -> tuple[World, Trainer, Trainer]:
    """Two ranks of a service that was started again and knows nothing: it waits for the second."""
    made = World(20, 2)
    trainers = begun(made)
    for trainer in trainers:
        made.next(trainer)
    made.disk.clear()
    made.crash()
    for trainer in trainers:
        trainer.inbox.clear()
    made.receive(trainers[0])
    return made, trainers[0], trainers[1]


def test_a_rank_that_leaves_is_not_waited_for_any_more() -> None:
    made, waits, leaves = gathering()
    made.close(leaves)
    made.group.check_leases(made.now)
    made.serve()
    assert made.receive(waits) == 2


def test_a_rank_that_waits_for_the_others_is_told_when_one_of_them_loads_a_state() -> None:
    made, waits, loads = gathering()
    made.begin(loads, position_at(4))
    made.receive(waits)
    assert isinstance(waits.error, Rewound)


def test_a_rank_that_is_cut_off_when_the_last_one_comes_is_sent_nothing() -> None:
    made, gone, comes = gathering()
    made.group.connection_lost(made.member(gone), made.now)
    made.receive(comes)
    states = {rank: member.state for rank, member in made.group.registry.trainers.items()}
    assert states == {0: PassState.BEFORE, 1: PassState.IN}


def test_a_rank_that_began_a_pass_asks_anew_when_another_shows_that_it_is_over() -> None:
    made = World(1, 2)
    trainers = begun(made)
    assert [made.next(trainers[0]) for _ in range(2)] == [0, None]
    made.begin(trainers[0])
    assert made.next(trainers[0]) == 0
    made.disk.clear()
    made.crash()
    trainers[1].inbox.clear()  # the end of pass 0 is lost
    made.numbers.is_read = False
    assert made.next(trainers[1]) is None  # it begins pass 0 once more
    made.next(trainers[0])
    made.numbers.is_read = True
    made.finish(trainers, 2)
    assert made.used() == [(0, 0), (1, 0)]


def test_a_rank_that_waits_for_the_next_pass_asks_anew_when_another_shows_that_it_began() -> None:
    made = World(2, 2)
    trainers = begun(made)
    assert [made.next(trainers[0]) for _ in range(2)] == [0, None]
    older = made.disk[-1]
    assert [made.next(trainers[1]) for _ in range(2)] == [1, None]
    for trainer in trainers:
        made.begin(trainer)
    assert made.next(trainers[1]) == 1
    made.disk = [older]
    made.crash()
    trainers[0].inbox.clear()
    assert made.next(trainers[0]) is None  # the service waits for the other
    made.next(trainers[1])
    made.finish(trainers, 2)
    assert made.used() == [(p, n) for p in range(2) for n in range(2)]


@pytest.mark.parametrize("passes", [1, 2])
def test_a_rank_that_was_not_told_of_the_end_is_told_when_the_others_have_left(passes: int) -> None:
    made = World(1, 2)
    first, second = made.come(0), made.come(1)
    made.begin(first)
    assert made.next(first) == 0
    made.begin(second)
    assert made.next(first) is None
    assert first.over
    if passes == 2:
        made.begin(first)  # the next one begins, because both have ended this one
        made.crash()
        second.inbox.clear()
        made.finish([first], 2)
    else:
        member = made.group.registry.by_peer(second.peer)
        assert member is not None
        made.group.connection_lost(member, made.now)
        second.inbox.clear()
        second.away = True
    made.close(first)
    assert made.group.awaits_ranks
    begun = len(made.numbers.begun)
    made.finish([second], passes)
    assert second.error is None
    assert len(made.numbers.begun) == begun, "nothing begins anew"
    made.close(second)
    assert not made.group.awaits_ranks
