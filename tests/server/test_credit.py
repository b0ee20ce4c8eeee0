"""Credit: what a file may be granted, and that the sum stays within the budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydp2.server.credit import Credit


def test_half_of_the_budget_is_reserved_in_equal_shares_and_the_rest_is_for_files_not_yet_bound() -> None:
    credit = Credit(3200, lanes=16, workers=2)
    assert (credit.share, credit.rest) == (100, 1600)
    credit.bind(0)
    assert credit.room(0) == 100
    assert credit.room(1) == credit.ahead == 100


def test_a_bound_file_comes_to_its_share_whatever_the_others_use() -> None:
    credit = Credit(3200, lanes=16, workers=2)
    for file in range(1, 17):
        credit.set_use(file, credit.room(file))
    assert credit.used == 1600
    assert credit.room(99) == 0
    credit.bind(0)
    assert credit.room(0) == 100


def test_use_moves_to_the_share_of_the_file_when_it_is_bound_and_makes_room_for_others() -> None:
    credit = Credit(400, lanes=2, workers=1)  # share 100, rest 200
    credit.set_use(1, 60)
    credit.set_use(2, 100)
    assert credit.room(3) == 40
    credit.bind(1)
    assert credit.room(1) == 40
    assert credit.room(3) == 100


def test_what_is_merged_or_returned_can_be_granted_again() -> None:
    credit = Credit(400, lanes=2, workers=1)
    credit.bind(1)
    credit.set_use(1, 100)
    assert credit.room(1) == 0
    credit.set_use(1, 30)
    assert credit.room(1) == 70
    credit.release(1)
    assert credit.used == 0
    credit.set_use(2, 100)
    credit.release(2)  # a file that was never bound
    assert credit.room(3) == 100


def test_several_workers_read_ahead_side_by_side() -> None:
    credit = Credit(3200, lanes=1, workers=4)  # share 1600
    assert credit.ahead == 400
    for file in range(4):
        assert credit.room(file) == 400
        credit.set_use(file, 400)
    assert credit.room(4) == 0


def test_a_budget_of_nothing_still_lets_the_merge_go_on_by_single_bytes() -> None:
    credit = Credit(0, lanes=3, workers=2)
    credit.bind(0)
    assert credit.room(0) == 1
    assert credit.room(1) == 0


def test_a_smaller_budget_takes_nothing_back_and_grants_nothing_before_less_is_used() -> None:
    credit = Credit(400, lanes=2, workers=1)  # share 100, rest 200
    credit.bind(1)
    credit.set_use(1, 80)
    credit.set_use(2, 100)
    credit.set_use(3, 100)
    credit.resize(200)  # share 50, rest 100
    assert [credit.room(file) for file in (1, 2, 3, 4)] == [0, 0, 0, 0]
    credit.set_use(1, 30)
    assert credit.room(1) == 20
    credit.set_use(2, 0)
    assert credit.room(4) == 0
    credit.set_use(3, 40)
    assert credit.room(4) == 50
    credit.resize(400)
    assert credit.room(1) == 70


steps = st.lists(st.tuples(st.sampled_from(["use", "spend", "bind", "release"]), st.integers(0, 9), st.floats(0, 1)))


@given(st.integers(40, 5000), st.integers(1, 10), st.integers(1, 8), steps)
def test_use_never_exceeds_the_budget_when_only_what_there_is_room_for_is_granted(
    budget: int, lanes: int, workers: int, steps: list[tuple[str, int, float]]
) -> None:
    credit = Credit(budget, lanes, workers)
    use: dict[int, int] = {}
    bound: set[int] = set()
    for what, file, part in steps:
        if what == "use":
            use[file] = use.get(file, 0) + int(credit.room(file) * part)
            credit.set_use(file, use[file])
        elif what == "spend" and file in use:
            use[file] -= int(use[file] * part)
            credit.set_use(file, use[file])
        elif what == "bind" and len(bound) < lanes and file not in bound:
            bound.add(file)
            credit.bind(file)
        elif what == "release":
            use.pop(file, None)
            bound.discard(file)
            credit.release(file)
        assert credit.used == sum(use.values()) <= budget
        assert all(credit.room(file) == credit.share - use.get(file, 0) for file in bound)
