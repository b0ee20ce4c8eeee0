"""Credit: what a file may be granted, and that the sum stays within the budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydp2.server.dispatch.credit import Credit
from pydp2.server.dispatch.ledger import FileLedger


def test_half_of_the_budget_is_reserved_in_equal_shares_and_the_rest_is_for_files_not_yet_bound() -> None:
    credit = Credit(3200, cycle_length=16, workers=2)
    assert (credit.share, credit.rest) == (100, 1600)
    credit.bind(0)
    assert credit.room(0) == 100
    assert credit.room(1) == credit.ahead == 100


def test_a_bound_file_comes_to_its_share_whatever_the_others_use() -> None:
    credit = Credit(3200, cycle_length=16, workers=2)
    for file in range(1, 17):
        credit.set_use(file, credit.room(file))
    assert credit.used == 1600
    assert credit.room(99) == 0
    credit.bind(0)
    assert credit.room(0) == 100


def test_use_moves_to_the_share_of_the_file_when_it_is_bound_and_makes_room_for_others() -> None:
    credit = Credit(400, cycle_length=2, workers=1)  # share 100, rest 200
    credit.set_use(1, 60)
    credit.set_use(2, 100)
    assert credit.room(3) == 40
    credit.bind(1)
    assert credit.room(1) == 40
    assert credit.room(3) == 100


def test_once_no_file_is_left_to_be_bound_the_shares_take_up_the_rest() -> None:
    credit = Credit(400, cycle_length=2, workers=1)
    credit.bind(1)
    credit.set_use(1, 100)
    assert credit.room(1) == 0
    credit.bind(2, last=True)
    assert [credit.room(file) for file in (1, 2)] == [100, 200]
    credit.resize(200)  # and that stays so when there are more jobs
    assert [credit.room(file) for file in (1, 2)] == [0, 100]


def waiting(credit: Credit, *, limit: int, spent: int, need: int = 0) -> FileLedger:
    """A bound file of which nothing is merged; ``need``: of the sample that its worker holds for lack of credit."""
    entry = FileLedger(0, 0, bound=True, limit=limit, spent_bytes=spent, need=need)
    credit.bind(0)
    credit.set_use(0, entry.use)
    return entry


def test_a_worker_that_waits_gets_credit_when_a_quarter_of_its_part_is_free_and_not_drop_by_drop() -> None:
    credit = Credit(1600, cycle_length=2, workers=1)  # share 400
    entry = waiting(credit, limit=400, spent=390, need=20)
    grants = []
    for merged in range(0, 400, 10):  # the merge takes one small sample after the other
        entry.merged = merged
        credit.set_use(0, entry.use)
        more = credit.grant_for(entry, pressing=False)
        if more:
            grants.append(more)
            entry.limit += more
            entry.spent_bytes = entry.limit - 10
            credit.set_use(0, entry.use)
    assert grants == [100, 100, 100]


def test_a_sample_larger_than_a_quarter_waits_until_it_fits() -> None:
    credit = Credit(1600, cycle_length=2, workers=1)
    entry = waiting(credit, limit=400, spent=400, need=250)
    due = []
    for merged in (100, 249, 250):
        entry.merged = merged
        credit.set_use(0, entry.use)
        due.append(credit.grant_for(entry, pressing=False))
    assert due == [0, 0, 250]


def test_where_the_merge_waits_any_room_is_granted_and_one_sample_beyond_the_share() -> None:
    credit = Credit(1600, cycle_length=2, workers=1)
    entry = waiting(credit, limit=400, spent=390, need=20)
    entry.merged = 10
    credit.set_use(0, entry.use)
    assert credit.grant_for(entry, pressing=True) == 10
    entry.merged, entry.need = 390, 5000
    credit.set_use(0, entry.use)
    assert credit.grant_for(entry, pressing=False) == 0
    assert credit.grant_for(entry, pressing=True) == 5000 - entry.unspent


def test_what_is_merged_or_returned_can_be_granted_again() -> None:
    credit = Credit(400, cycle_length=2, workers=1)
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
    credit = Credit(3200, cycle_length=1, workers=4)  # share 1600
    assert credit.ahead == 400
    for file in range(4):
        assert credit.room(file) == 400
        credit.set_use(file, 400)
    assert credit.room(4) == 0


def test_what_waits_at_a_worker_uses_at_most_half_of_the_worker_s_part_of_the_rest() -> None:
    credit = Credit(64 << 20, cycle_length=1, workers=4)
    assert (credit.ahead, credit.start, credit.max_waiting) == (8 << 20, 1 << 20, 4)
    credit.file_ended(50_000)
    credit.file_ended(30_000)
    assert (credit.start, credit.max_waiting) == (80_000, 52)  # two files of the usual size
    for size in (0, 10, 1000, 100_000, 10 << 20):
        for _ in range(1000):
            credit.file_ended(size)
        assert credit.start * credit.max_waiting <= credit.ahead // 2
        assert 2 <= credit.max_waiting <= 64


def test_a_file_not_yet_bound_is_granted_what_it_needs_soon_and_a_bound_one_all_of_its_share() -> None:
    credit = Credit(6400, cycle_length=1, workers=2)  # share 3200, ahead 1600
    entry = FileLedger(0, 0, limit=200, spent_bytes=100)
    credit.set_use(0, entry.use)
    assert credit.grant_for(entry, pressing=False) == 300
    assert credit.grant_for(entry, pressing=True) == 1400
    entry.need = 700
    assert credit.grant_for(entry, pressing=False) == 600
    entry.limit = 500
    assert credit.grant_for(entry, pressing=False) == 300
    entry.need = 0
    assert credit.grant_for(entry, pressing=False) == 0
    entry.bound = True
    credit.bind(0)
    assert credit.grant_for(entry, pressing=False) == 3000


def test_a_file_lacks_the_rest_only_while_others_use_it() -> None:
    credit = Credit(3200, cycle_length=1, workers=2)  # ahead 800
    entry = FileLedger(0, 0, limit=100, spent_bytes=100, need=300)
    credit.set_use(0, entry.use)
    assert not credit.lacks_rest(entry)
    for file in (1, 2):
        credit.set_use(file, 700)
    assert credit.room(0) == 100
    assert credit.grant_for(entry, pressing=False) == 0
    assert credit.lacks_rest(entry)
    credit.set_use(0, 600)
    assert not credit.lacks_rest(entry)  # it has come to what it may, whatever others do
    credit.set_use(0, 100)
    entry.bound = True
    assert not credit.lacks_rest(entry)  # it has a share of its own


def test_the_part_of_a_worker_follows_their_number() -> None:
    credit = Credit(3200, cycle_length=1, workers=4)
    before = credit.resizes
    credit.share_among(4)
    assert (credit.ahead, credit.resizes) == (400, before)
    credit.share_among(2)
    assert (credit.ahead, credit.resizes) == (800, before + 1)
    credit.share_among(0)
    assert credit.ahead == 1600


def test_a_budget_of_nothing_still_lets_the_merge_go_on_by_single_bytes() -> None:
    credit = Credit(0, cycle_length=3, workers=2)
    credit.bind(0)
    assert credit.room(0) == 1
    assert credit.room(1) == 0


def test_a_smaller_budget_takes_nothing_back_and_grants_nothing_before_less_is_used() -> None:
    credit = Credit(400, cycle_length=2, workers=1)  # share 100, rest 200
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


WHAT = ["use", "spend", "bind", "bind the last", "release"]
steps = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 9), st.floats(0, 1)))


@given(st.integers(40, 5000), st.integers(1, 10), st.integers(1, 8), steps)
def test_use_never_exceeds_the_budget_when_only_what_there_is_room_for_is_granted(
    budget: int, cycle_length: int, workers: int, steps: list[tuple[str, int, float]]
) -> None:
    credit = Credit(budget, cycle_length, workers)
    use: dict[int, int] = {}
    bound: set[int] = set()
    over = False  # no other file will be bound
    for what, file, part in steps:
        if over and file not in bound:
            continue
        if what == "use":
            use[file] = use.get(file, 0) + int(credit.room(file) * part)
            credit.set_use(file, use[file])
        elif what == "spend" and file in use:
            use[file] -= int(use[file] * part)
            credit.set_use(file, use[file])
        elif what.startswith("bind") and len(bound) < cycle_length and file not in bound:
            bound.add(file)
            over = what == "bind the last" and use.keys() <= bound
            credit.bind(file, last=over)
        elif what == "release":
            use.pop(file, None)
            bound.discard(file)
            credit.release(file)
        assert credit.used == sum(use.values()) <= budget
        assert all(credit.room(file) == credit.share - use.get(file, 0) for file in bound)
