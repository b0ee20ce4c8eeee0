"""set_epoch: the next iteration is that pass, with its own order, in all ranks of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.errors import ClientUseError, OptionError, OptionTypeError, ProviderError, Rewound

from ..provider_code import numbers

FILES = ["a", "b", "c", "d"]
CODE = """
@provider(input_types=[integer_value(1000)], pool_size=60)
def process(settings, filename):
    yield from range(100 * FILES.index(filename), 100 * FILES.index(filename) + 50)
"""
OPTIONS = {"batch_size": 16, "seed": 5}
Seen = list[tuple[int, list[int]]]


@pytest.fixture
def service(provider_file: Callable[[str], str]) -> Iterator[pydp2.Service]:
    with pydp2.launch(FILES, provider_file(f"FILES = {FILES}\n{CODE}"), workers=2) as made:
        yield made


@pytest.fixture
def passes(service: pydp2.Service) -> list[Seen]:
    """The batches of passes 0 to 4, one after the other."""
    with service.connect(job="all", **OPTIONS) as data:
        return [seen(data) for _ in range(5)]


def seen(batches: Any) -> Seen:
    return [(batch.index, batch[0].tolist()) for batch in batches]


def test_each_pass_can_be_had_by_its_number(service: pydp2.Service, passes: list[Seen]) -> None:
    with service.connect(**OPTIONS) as data:
        for number in (3, 4, 0, 0, 1, np.int64(2), 4):
            data.set_epoch(number)
            assert seen(data) == passes[number]
        assert data.state_dict()["pass"] == 5


def test_a_pass_that_failed_is_begun_again_by_its_number(provider_file: Callable[[str], str]) -> None:
    code = numbers(101, "should_shuffle=False", before="if i == 100: raise ValueError('planned')")
    with pydp2.load(["a"], provider_file(code), workers=1, batch_size=20) as data:
        for number in (0, 0, 3, 3, 1):
            data.set_epoch(number)
            batches = iter(data)
            assert next(batches).pass_id == number
            with pytest.raises(ProviderError, match="planned"):
                list(batches)


def test_the_pass_that_comes_anyway_stays_as_it_is(service: pydp2.Service, passes: list[Seen]) -> None:
    """As in a loop over epochs that calls it before each, also where one is left."""
    with service.connect(**OPTIONS) as data:
        for number in range(4):
            data.set_epoch(number)
            for batch in data:
                assert seen([batch]) == [passes[number][batch.index]]
                if number == 1:
                    break
        one = iter(data)
        assert seen([next(one) for _ in passes[4]]) == passes[4]
        data.set_epoch(5)  # its end was not asked for yet
        assert list(one) == []


def test_a_state_after_a_pass_that_was_left_begins_the_pass_that_comes(
    service: pydp2.Service, passes: list[Seen]
) -> None:
    with service.connect(**OPTIONS) as data:
        for batch in data:
            if batch.index == 3:
                break
        data.set_epoch(1)
        state = data.state_dict()
        assert seen(data) == passes[1]
    with service.connect(**OPTIONS) as data:
        data.load_state_dict(state)
        assert seen(data) == passes[1]


def test_ranks_that_leave_a_pass_at_different_steps_go_on_together_with_the_one_that_comes(
    service: pydp2.Service, passes: list[Seen]
) -> None:
    def train(rank: int) -> list[Seen]:
        with service.connect(rank=rank, world_size=2, **OPTIONS) as data:
            found = []
            for number in range(4):
                data.set_epoch(number)
                state = data.state_dict()
                assert (state["pass"], state["batch"]) == (number, 0)
                batches = iter(data)
                steps = rank + 1 if number % 2 else len(passes[number])
                found.append(seen(batch for _, batch in zip(range(steps), batches, strict=False)))
                batches.close()  # type: ignore[attr-defined]  # it is a Pass
            return found

    with ThreadPoolExecutor(2) as pool:
        ranks = [*pool.map(train, range(2))]
    for rank, found in enumerate(ranks):
        for number, part in enumerate(found):
            assert part == passes[number][rank::2][: rank + 1 if number % 2 else None]


def test_a_state_in_the_middle_of_the_pass_keeps_its_place(service: pydp2.Service, passes: list[Seen]) -> None:
    with service.connect(**OPTIONS) as data:
        data.set_epoch(2)
        for batch in data:
            if batch.index == 6:
                state = data.state_dict()
                break
        data.load_state_dict(state)
        data.set_epoch(2)
        assert seen(data) == passes[2][7:]
        data.load_state_dict(state)
        data.set_epoch(1)
        data.set_epoch(4)
        assert seen(data) == passes[4]
        data.load_state_dict(state)
        data.set_epoch(3)
        data.load_state_dict(state)
        assert seen(data) == passes[2][7:]


def test_the_state_of_a_pass_that_was_gone_to_resumes_there(service: pydp2.Service, passes: list[Seen]) -> None:
    with service.connect(**OPTIONS) as data:
        data.set_epoch(3)
        before = data.state_dict()
        for batch in data:
            if batch.index == 2:
                inside = data.state_dict()
                break
    with service.connect(**OPTIONS) as data:
        data.load_state_dict(inside)
        assert seen(data) == passes[3][3:]
        data.load_state_dict(before)
        assert seen(data) == passes[3]


def test_in_the_middle_of_a_loop_it_is_refused(service: pydp2.Service, passes: list[Seen]) -> None:
    with service.connect(**OPTIONS) as data:
        one = iter(data)
        next(one)
        for number in (0, 4):
            with pytest.raises(ClientUseError, match=rf"set_epoch\({number}\) needs a client between two loops"):
                data.set_epoch(number)
        assert seen(one) == passes[0][1:]
        del one
    with pytest.raises(ClientUseError, match="closed"):
        data.set_epoch(1)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (-1, OptionError),
        (1 << 40, OptionError),
        (1.0, OptionTypeError),
        ("1", OptionTypeError),
        (True, OptionTypeError),
    ],
)
def test_what_is_no_pass_is_refused(service: pydp2.Service, number: Any, error: type[Exception]) -> None:
    with service.connect(**OPTIONS) as data, pytest.raises(error, match="a pass has a number from 0"):
        data.set_epoch(number)


def test_ranks_go_there_together_whoever_is_first(service: pydp2.Service, passes: list[Seen]) -> None:
    """The same again and again, as for a validation that is to be the same each time."""
    plan = (3, 4, 0, 0, 0, 2, 3)

    def train(rank: int) -> list[Seen]:
        with service.connect(rank=rank, world_size=3, **OPTIONS) as data:
            found = []
            for number in plan:
                data.set_epoch(number)
                found.append(seen(data))
            return found

    with ThreadPoolExecutor(3) as pool:
        ranks = [*pool.map(train, range(3))]
    for turn, number in enumerate(plan):
        assert [ranks[rank][turn] for rank in range(3)] == [passes[number][rank::3] for rank in range(3)]


def test_ranks_that_do_not_agree_are_told(service: pydp2.Service) -> None:
    with (
        service.connect(rank=0, world_size=2, **OPTIONS) as one,
        service.connect(rank=1, world_size=2, **OPTIONS) as other,
    ):
        one.set_epoch(2)
        ahead = iter(one)
        next(ahead)
        with pytest.raises(Rewound, match=r"call set_epoch\(\) with the same number"):
            next(iter(other))
        other.set_epoch(2)
        assert next(iter(other)).index == 1


def test_a_rank_that_is_told_to_go_there_does_so_although_that_pass_comes_anyway(service: pydp2.Service) -> None:
    with (
        service.connect(rank=0, world_size=2, **OPTIONS) as one,
        service.connect(rank=1, world_size=2, **OPTIONS) as other,
    ):
        left = iter(other)
        next(left)
        left.close()
        for each in (one, other):
            each.set_epoch(1)
        ahead = iter(one)
        next(ahead)
        with pytest.raises(Rewound, match=r"call set_epoch\(\) with the same number"):
            next(iter(other))
        other.set_epoch(1)
        assert next(iter(other)).index == 1


@pytest.mark.parametrize("kind", ["client", "mixture"])
def test_a_rank_that_was_told_to_load_a_state_and_did_keeps_its_place(kind: str, service: pydp2.Service) -> None:
    """Its loop calls set_epoch() with the number of the pass of the state, as before each epoch."""

    def rank(number: int) -> Any:
        options: Any = {**OPTIONS, "batch_size": 4, "last_batch": "drop", "rank": number, "world_size": 2}
        if kind == "mixture":
            return pydp2.mix({"all": 1}, address=service.address, **options)
        return service.connect(**options)

    one, other = rank(0), rank(1)
    passes = [iter(each) for each in (one, other)]
    for _ in range(3):
        for each in passes:
            next(each)
    states = [each.state_dict() for each in (one, other)]
    expected = [next(each)[0].tolist() for each in passes]
    for each in passes:
        each.close()
    one.load_state_dict(states[0])
    assert next(iter(one))[0].tolist() == expected[0]
    with pytest.raises(Rewound):
        next(iter(other))
    other.load_state_dict(states[1])
    other.set_epoch(0)
    assert next(iter(other))[0].tolist() == expected[1]
    for each in (one, other):
        each.close()


def test_dynamic_trainers_go_there_together(service: pydp2.Service, passes: list[Seen]) -> None:
    def train(data: pydp2.Client) -> Seen:
        data.set_epoch(3)
        return seen(data)

    clients = [service.connect(share="dynamic", **OPTIONS) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        parts = [*pool.map(train, clients)]
    for data in clients:
        data.close()
    assert sorted(parts[0] + parts[1]) == passes[3]
