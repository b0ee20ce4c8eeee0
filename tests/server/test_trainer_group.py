"""Who gets which batch when trainers come, go, hang and go back: a job whose batches are numbers, random schedules."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from pydp2.data.columns.checksum_log import joined
from pydp2.errors import JobTaken, OptionError, ProviderError, Rewound, from_wire
from pydp2.options.timing import DEFAULT_TIMING
from pydp2.order.stream_state import StreamState
from pydp2.protocol import messages as m
from pydp2.protocol.batch_packing import BATCH_COST
from pydp2.server.snapshots.job_snapshot import PassState
from tests.seeds import each_seed
from tests.simulated.trainer_group import LEASE, LostPlace, Trainer, World, position_at

BYTES = [1, 3 * BATCH_COST, 1 << 20]
"""What a trainer may be sent and not have used: two batches, three, or more than it asks for."""


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
            world.group.check_leases(world.now)
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
        states = [trainer.position.to_dict() for trainer in trainers]
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
    made.group.check_leases(made.now)
    made.now += DEFAULT_TIMING.missing_rank + 1
    for _ in range(3):
        made.group.check_leases(made.now)
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


def used_batches(made: World) -> int:
    """How many batches of the pass are used, as far as the service knows now."""
    made.write()  # it looks at what trainers show
    assert made.group.current is not None
    made.group.current.note_unused()
    return made.numbers.used


@pytest.mark.parametrize(("world", "dynamic"), [(1, False), (2, False), (3, False), (2, True)])
def test_the_service_knows_which_batches_are_used_and_not_only_which_were_sent(world: int, dynamic: bool) -> None:
    made = World(60, 1 if dynamic else world, dynamic=dynamic, prefetch=8, shows=True)
    trainers = [made.come(0 if dynamic else rank) for rank in range(world)]
    for trainer in trainers:
        made.begin(trainer)
    for step in range(5):
        for trainer in trainers:
            made.next(trainer)
        used = [batch for trainer in trainers for batch in trainer.used]
        assert len(used) == world * step, "the last one of each is in its hand"
        # A sole trainer says it for several batches at once.
        assert used_batches(made) == len(used) or (world == 1 and 0 <= used_batches(made) <= len(used))
    run_out(made, trainers)
    assert (made.numbers.used, made.numbers.unused) == (60, 0)


def test_batches_that_nobody_wants_any_more_are_not_used() -> None:
    made = World(60, 1, prefetch=8)
    trainer = made.come(0)
    made.begin(trainer)
    for _ in range(4):
        made.next(trainer)
    made.leave(trainer)
    assert made.group.current is None
    assert made.numbers.used == 4


def test_the_pass_goes_on_as_if_a_rank_that_has_left_it_were_as_far_as_the_others() -> None:
    made = World(60, 2, prefetch=8)
    stays, leaves = made.come(0), made.come(1)
    made.begin(stays)
    made.begin(leaves)
    for _ in range(4):
        made.next(stays)
    made.next(leaves)
    made.leave(leaves)
    assert used_batches(made) == 6
    made.next(stays)
    assert used_batches(made) == 8
    run_out(made, [stays])
    assert made.numbers.used == 60


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
    assert isinstance(from_wire(other.inbox[-1][0].error), Rewound)
    with pytest.raises(LostPlace):
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


def test_what_a_rank_asks_for_before_its_pass_can_begin_is_sent_when_it_does() -> None:
    made = World(12, 2)
    one, other = made.come(0), made.come(1)
    run_out(made, [one])
    made.begin(one)
    made.group.need(made.member(one), m.Need(one.run, 3, 0, 0, 0), made.now)
    run_out(made, [other])
    made.begin(other)
    indices = [message.batch_index for message, _ in one.inbox if isinstance(message, m.BatchHead)]
    assert indices == [0, 2, 4, 6, 8], "two with the beginning, three later"


@pytest.mark.parametrize("killed", [False, True])
def test_a_rank_that_was_cut_off_while_a_pass_failed_is_told_when_others_are_in_the_next_one(killed: bool) -> None:
    """Also if the service was killed meanwhile and started again."""
    made = World(4, 2)
    made.numbers.errors = {0: ProviderError("of pass 0")}
    one, other = made.come(0), made.come(1)
    made.begin(one)
    made.begin(other)
    for trainer in (one, other, one, other, one, other):
        made.next(trainer)
    assert str(one.error) == str(other.error) == "of pass 0"
    assert made.logs == ["pass 0 ends with an error: of pass 0"], "once for all ranks"
    other.over, other.error = False, None  # the message has not reached it
    one.position = one.position.next_pass()
    made.begin(one)
    assert made.next(one) == 0
    if killed:
        made.crash()
        other.inbox.clear()
    else:
        made.reconnect(other)
    made.receive(other)
    assert str(other.error) == "of pass 0"


def test_a_pass_that_failed_and_is_read_again_ends_without_an_error() -> None:
    made = World(2, 2)
    made.numbers.errors = {0: ProviderError("of pass 0")}
    one, other = made.come(0), made.come(1)
    for trainer in (one, other):
        made.begin(trainer)
    while one.error is None or other.error is None:
        made.next(one)
        made.next(other)
    made.numbers.errors.clear()
    for trainer in (one, other):
        made.begin(trainer, StreamState(0))
    assert [made.next(one), made.next(other)] == [0, 1]
    at = other.position
    assert made.next(other) is None
    other.over, other.position = False, at  # the message has not reached it
    made.reconnect(other)
    made.receive(other)
    assert (other.over, other.error) == (True, None)


@pytest.mark.parametrize("text", ["of pass 3", ""])
@pytest.mark.parametrize(
    ("is_next_begun", "by_number", "killed"),
    [each for each in product([False, True], repeat=3) if each != (False, True, True)],
)
def test_a_rank_that_was_cut_off_before_it_had_anything_of_its_state_is_told_how_the_pass_ended(
    text: str, is_next_begun: bool, by_number: bool, killed: bool
) -> None:
    """It names the state again. The others wait for the next pass or are in it, and read nothing twice.

    A service that was started again takes the number of a pass that all have had for a new request.
    """
    made = World(0, 2)
    if text:
        made.numbers.errors = {3: ProviderError(text)}
    one, other = made.come(0), made.come(1)
    for trainer in (one, other):
        made.begin(trainer, StreamState(3), after_pass=by_number)
    assert made.next(one) is None
    assert str(one.error or "") == text
    if is_next_begun:
        one.position = StreamState(4)
        made.begin(one)
    if killed:
        made.crash()
        other.inbox.clear()
    else:
        made.reconnect(other)
    assert other.run_protocol.loaded.name, "not answered, as far as it knows"
    begun = [*made.numbers.begun]
    made.receive(other)
    assert (other.over, str(other.error or "")) == (True, text)
    assert made.numbers.begun == begun
    assert made.next(one) is None
    assert str(one.error or "") == ("" if is_next_begun else text)


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("killed", [False, True])
def test_a_state_that_is_loaded_again_by_a_request_that_nobody_heard_has_all_of_its_batches(
    is_new: bool, ranks: int, killed: bool
) -> None:
    """The request that is heard says that it repeats that one. It comes from the same process or from another one."""
    made = World(24, ranks)
    trainers = [made.come(rank) for rank in range(ranks)]
    for trainer in trainers:
        made.begin(trainer)
        made.next(trainer)
    state = trainers[0].position
    for trainer in trainers:
        made.begin(trainer, state)
    for trainer in trainers:
        assert [made.next(trainer) for _ in range(3)] == [ranks * n + trainer.rank for n in (1, 2, 3)]
    loads = trainers.pop()
    if is_new:
        made.vanish(loads)
        loads = made.come(loads.rank)
    loads.load(state)
    loads.enter()
    loads.run_protocol.begin()  # which nobody hears
    loads.hand = None
    if killed:
        made.write()
        made.crash()
        loads.inbox.clear()
    else:
        made.reconnect(loads)
    assert made.receive(loads) == ranks + loads.rank
    assert [made.next(loads) for _ in range(3)] == [ranks * n + loads.rank for n in (2, 3, 4)]
    for trainer in trainers:
        assert (made.next(trainer) or made.receive(trainer)) == 4 * ranks + trainer.rank
        assert trainer.error is None


def test_a_rank_without_a_batch_of_a_pass_learns_the_bounds_of_its_buckets() -> None:
    made = World(1, 2)
    made.numbers.known_buckets = {"bounds": [3, 9]}
    trainers = [made.come(rank) for rank in range(2)]
    run_out(made, trainers)
    assert [len(trainer.used) for trainer in trainers] == [1, 0]
    assert [trainer.position.buckets for trainer in trainers] == [{"bounds": [3, 9]}] * 2


def test_another_world_size_or_a_rank_for_two_is_refused() -> None:
    made = World(8, 2)
    made.come(0)
    with pytest.raises(OptionError, match=r"job 'default' has world_size=2, this trainer says 3"):
        made.group.attach(b"x", m.Attach(m.WIRE_VERSION, "default", 1, 3, "s", {}, 1), made.now)
    with pytest.raises(JobTaken, match="rank 0 is taken"):
        made.come(0)


def test_a_process_on_another_host_is_named_with_its_host() -> None:
    made = World(8, 2)
    made.group.attach(b"x", m.Attach(m.WIRE_VERSION, "default", 1, 2, "s", {}, 4711, 1, "node3"), made.now)
    with pytest.raises(JobTaken, match=r"rank 1 is taken \(process 4711 on node3, last heard of 0 s ago\)"):
        made.come(1)


def test_an_older_connection_of_a_process_does_not_take_the_place_of_a_later_one() -> None:
    made = World(8, 2)
    first, second = (m.Attach(m.WIRE_VERSION, "default", 1, 2, "s", {}, 1, number) for number in (1, 2))
    made.group.attach(b"second", second, made.now)
    with pytest.raises(Rewound, match="a later connection of the same process is rank 1 of job 'default'"):
        made.group.attach(b"first", first, made.now)
    assert made.group.registry.by_peer(b"second") is not None


def test_a_loaded_state_rewinds_all_and_those_who_load_it_too_join() -> None:
    made = World(40, 2)
    one, other = made.come(0), made.come(1)
    for trainer in (one, other):
        made.begin(trainer)
    for _ in range(5):
        made.next(one)
        made.next(other)
    state = one.position.to_dict()
    for _ in range(4):
        made.next(one)
        made.next(other)
    one.used.clear()
    other.used.clear()
    one.hand = other.hand = None
    made.begin(one, StreamState.from_dict(state))
    assert made.next(other) is None
    assert isinstance(other.error, Rewound)
    made.begin(other)
    made.next(other)
    assert isinstance(other.error, Rewound), "going on in the old generation"
    other.hand = None
    other.used.clear()
    made.begin(other, StreamState.from_dict(state))
    assert len(made.numbers.begun) == 2, "it joins"
    run_out(made, [one, other])
    assert made.used() == [(0, n) for n in range(10, 40)]
    made.begin(one, StreamState.from_dict(state))
    assert made.numbers.begun[-1] == (0, 10), "a second time opens the next generation"


def test_all_ranks_that_are_started_again_and_again_from_one_state_go_on_whichever_comes_first() -> None:
    made = World(24, 3)
    trainers = [made.come(rank) for rank in range(3)]
    for trainer in trainers:
        made.begin(trainer)
        made.next(trainer)
    state = trainers[0].position
    for rank in (1, 2):  # they load it, and one of them uses a batch, before all are killed once more
        for trainer in [*made.trainers]:
            made.vanish(trainer)
        trainers = [made.come(each) for each in range(3)]
        made.begin(trainers[rank], state)
        made.next(trainers[rank])
        made.next(trainers[rank])
    for trainer in [*made.trainers]:
        made.vanish(trainer)
    trainers = [made.come(each) for each in range(3)]
    for rank in (0, 2, 1):
        made.begin(trainers[rank], state)
        assert made.next(trainers[rank]) == 3 + rank, "before the last of them has come"
    made.finish(trainers, 1)
    assert [trainer.error for trainer in trainers] == [None] * 3
    assert made.used() == [(0, number) for number in range(3, 24)]


def test_a_rank_that_comes_with_its_state_to_a_service_started_again_is_not_held_for_one_that_has_ended() -> None:
    """The pass has nothing for its predecessor, which was killed before anybody had loaded the state."""
    made = World(1, 2)
    for trainer in (made.come(0), made.come(1)):
        made.begin(trainer)
        made.vanish(trainer)
    one, state = made.come(0), StreamState(0)
    made.begin(one, state)
    made.write()
    made.crash()
    one.inbox.clear()
    assert made.receive(one) == 0
    other = made.come(1)
    made.begin(other, state)
    made.finish([one, other], 1)
    assert (one.error, other.error) == (None, None)
    assert made.used() == [(0, 0)]


def begun_from_a_state(length: int) -> tuple[World, Trainer, Trainer, StreamState]:
    """Two ranks that have loaded the state behind their first step, and that state."""
    made = World(length, 2)
    one, other = made.come(0), made.come(1)
    for trainer in (one, other):
        made.begin(trainer)
        made.next(trainer)
    state = one.position
    made.begin(other, state)
    made.begin(one, state)
    return made, one, other, state


def test_a_rank_that_goes_on_by_itself_finds_the_early_ends_that_it_knows() -> None:
    made, one, other, state = begun_from_a_state(22)
    assert [made.next(other), made.next(one), made.next(one)] == [3, 2, 4]
    made.numbers.early_ends = {7: (40, "it killed its workers")}  # which may have come to the other rank
    made.begin(one, state)
    assert made.numbers.early_ends == {7: (40, "it killed its workers")}
    run_out(made, [one, other])
    assert (one.error, other.error) == (None, None)
    assert made.numbers.begun[:3] == [(0, 0), (0, 2), (0, 2)]
    for trainer in (one, other):
        made.begin(trainer)
    assert made.numbers.early_ends == {}, "another pass has its own"


def test_early_ends_that_a_trainer_knows_are_not_sent_again_and_those_that_the_pass_lacks_are_refused() -> None:
    made = World(20, 2)
    one, other = made.come(0), made.come(1)
    made.begin(one, StreamState(0, early_ends={7: (3, "it killed its workers")}))
    assert made.member(one).feed.known_early_ends == {7}
    made.begin(other, StreamState(0, early_ends={8: (3, "it killed its workers")}))
    made.receive(other)
    assert "does not know any more what rank 1 of job 'default' needs" in str(other.error)


def test_a_rank_that_has_had_the_pass_and_left_can_load_its_state_after_another_has_gone_back_there() -> None:
    made, one, other, state = begun_from_a_state(6)
    while other.position.pass_id == 0:
        made.next(other)
    made.close(other)
    assert [made.next(one), made.next(one)] == [2, 4]
    made.vanish(one)
    one = made.come(0)
    made.begin(one, state)
    assert made.next(one) == 2
    other = made.come(1)
    made.begin(other, state)
    run_out(made, [one, other])
    assert (one.error, other.error) == (None, None)
    assert made.used() == [(0, number) for number in range(2, 6)]


def test_a_rank_that_has_had_the_pass_and_left_is_not_waited_for_when_another_goes_back_there() -> None:
    made, one, other, state = begun_from_a_state(6)
    while other.position.pass_id == 0:
        made.next(other)
    made.close(other)
    assert [made.next(one), made.next(one)] == [2, 4]
    made.begin(one, state)
    made.finish([one], 1)
    assert made.group.current is None, "the pass is over"


def test_a_rank_that_goes_on_in_the_next_pass_after_another_has_gone_back_takes_nobody_back_when_that_begins() -> None:
    made, one, other, state = begun_from_a_state(6)
    while one.position.pass_id == 0:
        made.next(one)
    made.begin(one)
    assert [made.next(other), made.next(other)] == [3, 5]
    made.vanish(other)
    other = made.come(1)
    made.begin(other, state)
    assert made.next(one) is None, "it waits for the next pass"
    run_out(made, [one, other], passes=2)
    assert (one.error, other.error) == (None, None)
    assert other.run_protocol.loaded.rejoin(state.name), "it was not told to go back once more"
    assert made.used() == sorted([(0, 0), (0, 2), (0, 3), (0, 4), (0, 5), *((1, number) for number in range(6))])
    assert made.numbers.begun == [(0, 0), (0, 2), (0, 2), (1, 0)]


def test_a_rank_that_leaves_its_pass_after_another_has_gone_back_leaves_no_pass_of_the_new_generation() -> None:
    """Its word that it leaves may come later than the state that the other has loaded: it is another process."""
    made, one, other, _ = begun_from_a_state(12)
    assert [made.next(one), made.next(other)] == [2, 3]
    start = StreamState()
    made.begin(one, start)
    made.leave(other)
    made.begin(other, start)
    assert [made.next(one), made.next(other)] == [0, 1]
    assert other.error is None


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


def test_dynamic_trainers_that_left_in_order_are_nowhere_remembered() -> None:
    """A job may last for months, with other trainers every day."""
    made = World(30, 1, dynamic=True)
    stays = made.come()
    made.begin(stays)
    for _ in range(3):
        trainer = made.come()
        made.begin(trainer)
        made.next(trainer)
        made.close(trainer)
    assert made.group.generation.begun_from_state == {made.member(stays).number}
    assert [*made.group.registry.trainers] == [made.member(stays).number]


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
    made.group.check_leases(made.now)
    made.serve()
    made.receive(goes_on)
    while not goes_on.over:
        made.next(goes_on)
    assert sorted(goes_on.used) == [(0, n) for n in range(30)]
    assert "batches of a silent trainer go to others" in made.logs[0]
    hangs.hand = None
    assert made.next(hangs) is None, "it wakes, and what lies in its box is not its any more"
    assert hangs.used == []


def test_dynamic_a_silent_trainer_is_sent_nothing_until_it_asks_anew() -> None:
    made = World(3, 1, dynamic=True)
    hangs, waits = made.come(prefetch=7), made.come()
    made.begin(hangs)
    made.begin(waits)
    made.now += LEASE + 1
    made.beat(waits)
    made.group.check_leases(made.now)
    made.serve()
    assert not made.member(hangs).flow.in_flight
    assert made.receive(waits) == 0


def test_dynamic_a_trainer_that_only_seems_silent_gets_no_batch_twice() -> None:
    """It said in time that it lives: the message came late, or the service stood still. It knows of no silence."""
    made = World(3, 1, dynamic=True)
    trainer = made.come()
    made.begin(trainer)
    for _ in range(3):
        made.group.check_leases(made.now + LEASE + 1)
    made.beat(trainer)
    assert [made.next(trainer) for _ in range(3)] == [0, 1, 2]
    assert len(made.logs) == 1


def test_dynamic_a_trainer_that_only_seems_silent_while_it_waits_goes_on() -> None:
    made = World(2, 1, dynamic=True)
    has_all, waits = made.come(prefetch=7), made.come()
    made.begin(has_all)
    made.begin(waits)
    assert made.next(waits) is None
    made.now += LEASE + 1
    made.beat(has_all)
    waits.run_protocol.spoke_at = made.now  # the message is late
    made.group.check_leases(made.now)
    made.beat(waits)
    made.close(has_all)
    assert [made.next(waits) for _ in range(2)] == [0, 1]


def test_dynamic_of_the_batches_that_were_taken_back_the_first_goes_out_first() -> None:
    made = World(12, 1, dynamic=True)
    first, second, third = [made.come() for _ in range(3)]
    for trainer in (first, second, third):
        made.begin(trainer)
        assert made.next(trainer) is not None
    for silent, others in ((second, [first, third]), (first, [third])):
        made.vanish(silent)
        made.now += LEASE + 1
        for trainer in others:
            made.beat(trainer)
        made.group.check_leases(made.now)
    assert [made.next(third) for _ in range(10)] == [7, 8, 1, 2, 3, 4, 5, 9, 10, 11]  # 0 was used: first asked on


def test_ranks_are_sent_the_checksums_from_batch_to_batch_also_where_a_point_lies_between() -> None:
    """A worker of a framework makes states between its own batches, with the point that it knew before."""
    made = World(40, 3)
    ranks = [made.come(rank) for rank in range(3)]
    for rank in ranks:
        made.begin(rank)
    for _ in range(13):
        for rank in ranks:
            before = rank.position
            assert made.next(rank) is not None
            first = 0 if before.point is None else before.point.batch_index
            known = joined([before.checksums, rank.position.checksums]).by_file()
            assert {*range(first, rank.position.batch)} <= {*known.files.tolist()}


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_first_batch_of_a_run_brings_the_checksums_from_the_state_on_though_a_point_lies_between(
    dynamic: bool,
) -> None:
    made = World(40, 1, dynamic=dynamic)
    trainer = made.come()
    made.begin(trainer, position_at(6))
    before = trainer.position
    assert made.next(trainer) == 6
    assert trainer.position.point is not None or dynamic
    known = joined([before.checksums, trainer.position.checksums]).by_file()
    assert {*range(7)} <= {*known.files.tolist()}


def test_ranks_go_on_behind_their_last_batch_when_rows_are_lost_with_a_host() -> None:
    made = World(30, 2)
    one, other = made.come(0), made.come(1)
    made.begin(one)
    made.begin(other)
    assert [made.next(one) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert made.next(other) == 1
    made.lose_rows()
    assert made.numbers.begun == [(0, 0), (0, 0)], "at the last point that no rank is beyond"
    assert made.logs[-1] == "rows of pass 0 are lost with their host and are read again"
    run_out(made, [one, other])
    assert made.used() == [(0, n) for n in range(30)]
    assert [each.error for each in (one, other)] == [None, None]


def test_a_sole_rank_says_where_it_is_when_rows_are_lost() -> None:
    made = World(30, 1)
    trainer = made.come()
    made.begin(trainer)
    assert [made.next(trainer) for _ in range(10)] == [*range(10)]
    made.lose_rows()
    assert [made.next(trainer) for _ in range(2)] == [10, 11]
    assert made.numbers.begun == [(0, 0), (0, 10)]
    run_out(made, [trainer])
    assert [n for _, n in trainer.used] == [*range(30)]


def test_ranks_that_have_ended_or_left_a_pass_stay_so_when_rows_are_lost() -> None:
    made = World(30, 3)
    ends, leaves, reads = (made.come(rank) for rank in range(3))
    for trainer in (ends, leaves, reads):
        made.begin(trainer)
    assert made.next(reads) == 2
    made.leave(leaves)
    while ends.position.pass_id == 0:
        made.next(ends)
        made.serve()
        if made.next(reads) is None:
            break
    made.lose_rows()
    run_out(made, [ends, reads])
    assert [n for _, n in ends.used] == [*range(0, 30, 3)]
    assert [n for _, n in reads.used] == [*range(2, 30, 3)]


def test_a_rank_hears_why_its_pass_failed_though_rows_are_lost_before_it_heard_it() -> None:
    made = World(1, 2)
    made.numbers.errors[0] = ProviderError("a file raised")
    reads, told = made.come(0), made.come(1)
    made.begin(reads)
    made.begin(told)
    assert [type(message) for message, _ in told.inbox] == [m.Failed]
    made.lose_rows()
    made.reconnect(told)
    made.receive(told)
    assert isinstance(told.error, ProviderError)
    assert [made.next(reads), made.next(reads)] == [0, None]
    assert isinstance(reads.error, ProviderError)


def test_nothing_is_taken_up_again_where_no_rows_are_lost_or_no_pass_is_under_way() -> None:
    made = World(10, 2)
    one, other = made.come(0), made.come(1)
    made.lose_rows()
    made.begin(one)
    made.begin(other)
    made.numbers.memory.has_lost_rows = False
    made.lose_rows()
    assert made.numbers.begun == [(0, 0)]
    assert made.logs == []


@each_seed(150)
def test_each_batch_is_used_once_however_trainers_come_and_go(seed: int) -> None:
    """Kills (what a killed one had in hand counts as not used), broken connections, silence, rows that are lost,
    passes that fail."""
    choose = Random(seed)
    dynamic = choose.random() < 0.4
    world = 1 if dynamic else choose.choice([1, 2, 3])
    length = choose.choice([0, 1, 3, 10, 40])
    made = World(length, world, dynamic=dynamic, seed=seed, prefetch_bytes=choose.choice(BYTES))
    if choose.random() < 0.5:
        made.numbers.errors[choose.choice([0, 1, 2])] = ProviderError("a file raised")
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
            trainer.catch(ProviderError)
            if trainer.position.pass_id < 3:
                made.begin(trainer)
        elif act < 0.03 and len(trainers) > 1:
            used += trainer.used
            made.vanish(trainer)
            del trainers[rank]
        elif act < 0.06:
            made.reconnect(trainer)
        elif act < 0.08 and not dynamic:
            made.lose_rows()
        elif act < 0.09:
            made.now += LEASE + 5
            for each in trainers.values():
                if each.waits:
                    made.beat(each)
            made.group.check_leases(made.now)
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
    made.finish(trainers.values(), 3, catch=(ProviderError,))
    for trainer in trainers.values():
        assert trainer.error is None
        used += trainer.used
    assert sorted(used) == [(p, n) for p in range(3) for n in range(length)]
    assert all(member.state is PassState.BEFORE for member in made.group.registry.trainers.values())
