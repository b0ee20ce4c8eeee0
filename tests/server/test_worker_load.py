"""Who has which files: what the merge takes of each worker's comes out alike, whatever it takes of one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydp2.server.dispatch.ledger import FileLedger
from pydp2.server.dispatch.worker_load import FileQueue, WorkerLoad


@given(st.lists(st.sampled_from([16, 23, 32, 45, 64]), max_size=60), st.integers(1, 5))
def test_files_given_to_the_idlest_leave_no_worker_more_than_one_file_behind(pulls: list[int], workers: int) -> None:
    crew = WorkerLoad()
    for worker in range(workers):
        crew.add_worker(worker)
    has: dict[int, list[FileLedger]] = {worker: [] for worker in range(workers)}
    for file in sorted(range(len(pulls)), key=pulls.__getitem__, reverse=True):
        worker = crew.least_loaded()
        has[worker].append(entry := FileLedger(file, file, pull=pulls[file]))
        crew.assign(worker, entry)
    sums = [sum(pulls[entry.file] for entry in entries) for entries in has.values()]
    assert max(sums) - min(sums) <= max(pulls, default=0)
    assert crew.total == len(pulls)
    for worker, entries in has.items():
        for entry in entries[::2]:
            crew.unassign(worker, entry)
            crew.unassign(worker, entry)  # it has it no more
    rest = {worker: sum(pulls[entry.file] for entry in entries[1::2]) for worker, entries in has.items()}
    assert rest[crew.least_loaded()] == min(rest.values())


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([16, 64]), st.booleans()), max_size=200))
def test_the_worker_with_the_least_is_found_whatever_came_and_went(steps: list[tuple[int, int, bool]]) -> None:
    crew = WorkerLoad()
    has: dict[int, list[FileLedger]] = {}
    crew.add_worker(99)
    has[99] = []
    for number, (worker, pull, comes) in enumerate(steps):
        if worker not in has:
            crew.add_worker(worker)
            has[worker] = []
        elif comes:
            has[worker].append(entry := FileLedger(number, number, pull=pull))
            crew.assign(worker, entry)
        elif has[worker]:
            crew.unassign(worker, has[worker].pop())
        else:
            crew.remove_worker(worker)
            del has[worker]
        load = {each: (sum(entry.pull for entry in entries), len(entries)) for each, entries in has.items()}
        assert load[crew.least_loaded()] == min(load.values())
        assert load[crew.fewest_files()][::-1] == min((count, pulled) for pulled, count in load.values())
        assert crew.total == sum(count for _, count in load.values())
        assert crew.has_idle == (0 in [count for _, count in load.values()])


def test_what_is_lost_with_a_worker_weighs_on_nobody() -> None:
    crew = WorkerLoad()
    for worker in (1, 2):
        crew.add_worker(worker)
    for worker, file in ((1, 3), (2, 1), (2, 1)):
        crew.assign(worker, FileLedger(file, 0, pull=10 * file))
    assert crew.least_loaded() == 2
    assert [entry.file for entry in crew.remove_worker(1)] == [3]
    crew.add_worker(3)
    assert (len(crew), list(crew), crew.least_loaded()) == (2, [2, 3], 3)
    crew.clear()
    assert not crew


def test_a_reserved_worker_is_passed_over_until_its_file_is_not_alone_any_more() -> None:
    crew, alone, other = WorkerLoad(), FileLedger(7, 7), FileLedger(8, 8)
    for worker in (1, 2):
        crew.add_worker(worker)
    crew.assign(1, alone)
    crew.reserve(1, 7)
    for file in range(3):
        assert crew.has_idle == (file == 0)
        assert (crew.least_loaded(), crew.fewest_files()) == (2, 2)
        crew.assign(2, FileLedger(file, file))
    crew.note_output(1, 8)
    assert crew.least_loaded() == 2
    crew.note_output(1, 7)
    assert (crew.least_loaded(), crew.fewest_files()) == (1, 1)
    crew.reserve(1, 7)
    crew.unassign(1, alone)
    assert crew.has_idle
    crew.assign(1, other)
    crew.reserve(1, 8)
    crew.retire(2)
    assert not crew.takes_files
    assert not crew.has_idle
    crew.retire(1)
    crew.note_output(1, 8)
    assert not crew.takes_files, "it leaves"
    crew.remove_worker(1)
    crew.add_worker(3)
    assert crew.has_idle


@given(st.lists(st.integers(0, 20), unique=True), st.sets(st.integers(0, 20)), st.integers(0, 25) | st.none())
def test_files_leave_in_order_as_many_as_may_and_those_that_a_merge_waits_for(
    files: list[int], urgent: set[int], most: int | None
) -> None:
    waiting = FileQueue()
    for file in [*files, *files]:  # none stands there twice
        waiting.push(FileLedger(file, position=100 - file))
    for file in urgent & set(files):
        waiting.prioritise(file)
    ordered = sorted(files, reverse=True)
    first = ordered if most is None else ordered[:most]
    found = waiting.pop(most)
    assert found[: len(first)] == first
    assert sorted(found[len(first) :]) == sorted(urgent & set(files) - set(first))
    assert bool(waiting) == (len(first) < len(files))
    assert waiting.pop(None) == ordered[len(first) :]
