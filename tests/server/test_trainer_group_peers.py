"""Peers: several trainers of one rank, which get the same batches, whatever happens to one of them."""

from __future__ import annotations

import pytest

from pydp2.errors import JobTaken, OptionError, Rewound
from pydp2.options.timing import DEFAULT_TIMING
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import BATCH_COST
from pydp2.server.jobs.delivery import RankedDelivery
from tests.simulated.trainer_group import Trainer, World


def begun(made: World) -> list[Trainer]:
    """All trainers of the job, which have begun the pass."""
    trainers = [made.come(number) for number in range(made.places.total)]
    for trainer in trainers:
        made.begin(trainer)
    return trainers


@pytest.mark.parametrize("peers", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("length", [0, 1, 5, 12])
def test_each_peer_of_a_rank_gets_all_batches_of_the_rank(world: int, peers: int, length: int) -> None:
    made = World(length, world, peers=peers)
    trainers = [made.come(number) for number in range(world * peers)]
    made.finish(trainers, 2)
    for number, trainer in enumerate(trainers):
        assert trainer.used == [(p, n) for p in range(2) for n in range(number // peers, length, world)]
    assert made.numbers.begun == [(0, 0), (1, 0)], "one stream is read"
    assert made.numbers.held_rows() == []


def test_a_batch_is_in_memory_once_for_all_peers() -> None:
    made = World(30, 2, peers=3)
    trainers = begun(made)
    rows = made.numbers.held_rows()
    held = [batch for member in made.group.registry.trainers.values() for batch in member.flow.in_flight]
    assert len(held) == 3 * len(rows)
    for trainer in trainers[:5]:
        made.next(trainer)
        made.next(trainer)
    assert any(each._holders == 1 for each in rows), "the last peer still has to use it"
    assert made.next(trainers[5]) == 1


def test_all_trainers_have_the_same_state_after_the_same_step() -> None:
    made = World(30, 2, peers=2)
    trainers = begun(made)
    for step in range(1, 9):
        assert [made.next(trainer) for trainer in trainers] == [2 * step - 2, 2 * step - 2, 2 * step - 1, 2 * step - 1]
        states = [trainer.position.to_dict() for trainer in trainers]
        assert all(state == states[0] for state in states)
        assert states[0]["batch"] == 2 * step


@pytest.mark.parametrize(("world", "peers"), [(1, 1), (4, 1), (2, 2), (1, 4), (3, 2)])
def test_a_state_of_two_ranks_with_two_peers_is_one_of_any_other_ranks_and_peers(world: int, peers: int) -> None:
    made = World(24, 2, peers=2)
    trainers = begun(made)
    for _ in range(3):
        for trainer in trainers:
            made.next(trainer)
    state = trainers[3].position
    assert state.batch == 6
    other = World(24, world, peers=peers)
    loaded = [other.come(number) for number in range(world * peers)]
    for trainer in loaded:
        other.begin(trainer, state)
    other.finish(loaded, 1)
    for peer in range(peers):
        used = sorted(pair for trainer in loaded if trainer.number % peers == peer for pair in trainer.used)
        assert used == [(0, n) for n in range(6, 24)]


def test_what_a_killed_peer_had_not_used_goes_to_the_next_that_takes_its_place() -> None:
    """Although the other peer of its rank has had it."""
    made = World(20, 2, peers=2)
    trainers = begun(made)
    dies = trainers[3]
    for trainer in (trainers[2], dies):
        assert [made.next(trainer), made.next(trainer)] == [1, 3]
    made.vanish(dies)  # with batch 3 in its hand
    comes = made.come(3)
    assert (comes.position.pass_id, comes.position.batch) == (0, 2)
    made.finish([*trainers[:3], comes], 1)
    assert comes.used == [(0, n) for n in range(3, 20, 2)]
    assert trainers[2].used == [(0, n) for n in range(1, 20, 2)]


@pytest.mark.parametrize("knows", [True, False])
def test_peers_go_on_at_different_batches_with_a_service_that_was_started_again(knows: bool) -> None:
    """Each gets what it has not had: the service has the state of the one that is behind, or asks all of them."""
    made = World(40, 2, peers=2)
    trainers = begun(made)
    for trainer, steps in zip(trainers, (1, 4, 2, 3), strict=True):
        for _ in range(steps):
            assert made.next(trainer) is not None
    if knows:
        made.write()
    else:
        made.disk.clear()
    made.crash()
    for trainer in trainers:
        made.next(trainer)
    made.finish(trainers, 1)
    for trainer in trainers:
        assert trainer.used == [(0, n) for n in range(trainer.rank, 40, 2)]


@pytest.mark.parametrize("loads", [0, 1])
def test_a_peer_that_is_not_at_the_state_that_the_other_loads_is_told_so(loads: int) -> None:
    made = World(24, 1, peers=2)
    trainers = begun(made)
    for _ in range(3):
        for trainer in trainers:
            made.next(trainer)
    state = trainers[0].position
    for trainer in trainers:
        made.next(trainer)
    made.begin(trainers[loads], state)
    assert made.next(trainers[loads]) == 3
    late = trainers[1 - loads]
    made.next(late)
    assert isinstance(late.error, Rewound), "it gets no batch of another place"
    assert "load the same state here, too" in str(late.error)
    late.hand = None
    made.begin(late, state)
    assert made.next(late) == 3


def test_peers_that_load_different_states_never_go_on_together() -> None:
    made = World(24, 1, peers=2)
    trainers = begun(made)
    states = []
    for _ in range(4):
        for trainer in trainers:
            made.next(trainer)
        states.append(trainers[0].position)
    made.begin(trainers[0], states[1])
    assert made.next(trainers[0]) == 2
    made.begin(trainers[1], states[2])
    assert made.next(trainers[1]) == 3
    made.next(trainers[0])
    assert isinstance(trainers[0].error, Rewound)


def test_a_peer_that_hangs_holds_the_others_up_and_is_named() -> None:
    made = World(100, 2, peers=2)
    trainers = [made.come(number) for number in range(3)]
    for trainer in trainers:
        made.begin(trainer)
    count = 0
    while made.next(trainers[0]) is not None:
        assert (made.next(trainers[1]), made.next(trainers[2])) == (2 * count, 2 * count + 1)
        count += 1
    assert 3 < count < 20, "a window, not the pass"
    made.group.check_leases(made.now)
    made.now += DEFAULT_TIMING.missing_rank + 1
    made.group.check_leases(made.now)
    assert made.logs == [
        "job 'default' waits for peer 1 of rank 1, which never came; connect with rank=1, world_size=2, "
        "share_along=(1, 2)"
    ]
    made.begin(last := made.come(3))
    made.finish([*trainers, last], 1)


def test_of_many_that_are_missing_a_few_are_named() -> None:
    made = World(100, 4, peers=2)
    made.begin(first := made.come(0))
    while made.next(first) is not None:
        pass
    made.group.check_leases(made.now)
    made.now += DEFAULT_TIMING.missing_rank + 1
    made.group.check_leases(made.now)
    assert made.logs == [
        "job 'default' waits for peer 1 of rank 0, peer 0 of rank 1, peer 1 of rank 1, peer 0 of rank 2 and 3 others, "
        "which never came; connect with rank=0, world_size=4, share_along=(1, 2)"
    ]


def test_a_batch_that_waits_for_several_peers_counts_once() -> None:
    made = World(40, 1, peers=4)
    made.begin(made.come(0))
    delivery = made.group.current
    assert isinstance(delivery, RankedDelivery)
    waiting, cost = delivery._unclaimed, len(delivery._unclaimed) * BATCH_COST
    assert waiting.nbytes >= cost > 0
    once = waiting.nbytes
    for number in (1, 2):
        made.come(number)
        assert waiting.nbytes == once, "the others still wait for it"
    made.come(3)
    assert (waiting.nbytes, len(waiting)) == (0, 0)


@pytest.mark.parametrize(("peer", "peer_count"), [(0, 1), (2, 3)])
def test_another_number_of_peers_or_a_place_for_two_is_refused(peer: int, peer_count: int) -> None:
    made = World(8, 2, peers=2)
    made.come(1)
    theirs = "no share_along" if peer_count == 1 else r"share_along=\(k, 3\)"
    other = m.Attach(m.WIRE_VERSION, "default", 0, 2, "s", {}, 1, peer=peer, peer_count=peer_count)
    with pytest.raises(OptionError, match=rf"job 'default' has share_along=\(k, 2\), this trainer says {theirs}"):
        made.group.attach(b"x", other, made.now)
    assert made.group.registry.replaced_by(other) is None
    with pytest.raises(JobTaken, match="peer 1 of rank 0 is taken"):
        made.come(1)


def test_a_job_without_peers_refuses_one_that_has_some() -> None:
    made = World(8, 2)
    made.come(0)
    other = m.Attach(m.WIRE_VERSION, "default", 1, 2, "s", {}, 1, peer=0, peer_count=2)
    with pytest.raises(OptionError, match=r"has no share_along, this trainer says share_along=\(k, 2\)"):
        made.group.attach(b"x", other, made.now)


def test_the_job_is_over_for_all_peers_at_once() -> None:
    """A peer that leaves its pass forfeits the rest of it, and the other one does not."""
    made = World(12, 1, peers=2)
    one, other = begun(made)
    made.next(one)
    made.leave(one)
    made.begin(one)
    assert made.next(one) is None, "the other one is in the pass before"
    while not other.over:
        made.next(other)
    assert other.used == [(0, n) for n in range(12)]
    made.begin(other)
    assert (made.receive(one), made.next(other)) == (0, 0)
