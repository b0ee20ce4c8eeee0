"""Trainers that load a state and pass over some of the batches behind it, while they and the service die."""

from __future__ import annotations

from random import Random

from tests.seeds import each_seed
from tests.server.test_trainer_group_restarts import run
from tests.simulated.trainer_group import World, position_at


@each_seed(300)
def test_all_batches_but_those_that_are_passed_over_come_once_whoever_dies(seed: int) -> None:
    choose = Random(-seed - 1)
    world = choose.choice([1, 2, 3])
    made = World(
        choose.choice([3, 10, 40]), world, seed=seed, prefetch_bytes=choose.choice([1, 4096, 1 << 20]),
        last_batch=choose.choice(["keep", "drop"]),
    )  # fmt: skip
    length = made.numbers.length // world * world if made.numbers.last_batch == "drop" else made.numbers.length
    at = choose.randrange(length // world + 1) * world
    numbers = [n for n in range(at, length) if choose.random() < 0.3]
    state = position_at(at).without(numbers, world)
    steps = {n // world for n in numbers}
    used = run(made, seed, range(world), snapshot=-1, passes=2, kills=choose.random() < 0.5, state=state)
    first = [n for n in range(at, length) if n // world not in steps]
    assert sorted(used) == [*((0, n) for n in first), *((1, n) for n in range(length))]
