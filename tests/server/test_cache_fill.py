"""Several readings over one cache: who reads a file, who waits for it, and who does not wait any more."""

from __future__ import annotations

import numpy as np
import pytest

from pydp2.errors import Error, to_wire
from pydp2.order.sample_source import END, WAIT, FileFailure, SampleRun
from pydp2.protocol.file_ranges import FILE_ENDED, FILE_OPEN, FILE_RAISED, FileAssignment, FileRange
from pydp2.protocol.messages import Assign, Want
from pydp2.server.actions import Action, Send, WorkerGone
from pydp2.server.cache.memory import MemoryCache
from pydp2.server.dispatch.cache_fill import CacheFill
from pydp2.server.dispatch.file_dispatcher import CycleReading, FileDispatcher, ReadContext
from pydp2.server.dispatch.ledger import Attempts
from tests.server.sources import source_of

WORKER = 1


def reading(cache_fill: CacheFill, order: list[int], *, cycle_length: int = 1, budget: int = 4000) -> FileDispatcher:
    context = ReadContext(workers=1, budget=budget, label=str, cache=cache_fill)
    made = FileDispatcher(context, CycleReading(length=cycle_length), pass_id=0, seed=1, order=np.array(order))
    for file in order[:cycle_length]:
        made.open_file(file)
    made.add_worker(WORKER)
    return made


def assigned(actions: list[Action]) -> list[int]:
    return [
        FileAssignment.from_wire(item).file
        for act in actions
        if isinstance(act, Send) and isinstance(act.message, Assign)
        for item in act.message.items
    ]


def send(made: FileDispatcher, file: int, first: int, rows: int, state: int = FILE_OPEN) -> None:
    """Samples of 84 bytes: with what the ledger needs, each costs 100."""
    error = to_wire(Error("as it has to be")) if state == FILE_RAISED else {}
    part = FileRange(file, made.ledgers[file].attempt, first, rows, rows, state, [first + rows], [], error)
    made.commit(WORKER, part, SampleRun(None, 0, rows, np.arange(first, first + rows), np.full(rows, 84), None))


def take(made: FileDispatcher, file: int) -> list[int]:
    """Take all that is there of ``file``."""
    found, source = list[int](), source_of(made)
    while isinstance(front := source.next_run(file), SampleRun):
        found += front.sample_indices[front.lo : front.hi].tolist()
        source.consume(file, front.hi - front.lo)
    return found


@pytest.fixture
def cache_fill() -> CacheFill:
    return CacheFill(MemoryCache(1 << 20))


def test_of_two_that_come_to_a_file_one_reads_it_and_the_other_has_it_from_the_cache(cache_fill: CacheFill) -> None:
    one, other = reading(cache_fill, [0, 1]), reading(cache_fill, [1, 0])
    assert assigned(one.dispatch()) == [0]
    assert assigned(other.dispatch()) == [1]
    send(one, 0, 0, 5, FILE_ENDED)
    send(other, 1, 0, 3, FILE_ENDED)
    for made, order in ((one, [0, 1]), (other, [1, 0])):
        assert take(made, order[0]) == list(range((5, 3)[order[0]]))
        made.close_file(order[0])
        made.open_file(order[1])
        assert take(made, order[1]) == list(range((5, 3)[order[1]]))
        assert source_of(made).next_run(order[1]) is END
        assert assigned(made.dispatch()) == []


def test_who_comes_while_it_is_read_waits_without_a_worker_and_urges_its_reader(cache_fill: CacheFill) -> None:
    one = reading(cache_fill, [0])
    one.dispatch()
    other = reading(cache_fill, [0])
    assert assigned(other.dispatch()) == []
    assert source_of(other).next_run(0) is WAIT
    other.want(0)
    assert one.dispatch() == [Send(WORKER, Want(one.ledgers[0].attempt, 1))]
    send(one, 0, 0, 4)
    assert source_of(other).next_run(0) is WAIT, "only whole files are in the cache"
    send(one, 0, 4, 1, FILE_ENDED)
    assert take(other, 0) == [0, 1, 2, 3, 4]
    assert other.credit.used == 0


def test_who_waits_for_one_that_stands_still_for_credit_reads_by_himself(cache_fill: CacheFill) -> None:
    one = reading(cache_fill, [0], budget=500)
    one.dispatch()
    other = reading(cache_fill, [0], budget=500)
    send(one, 0, 0, 5)
    other.want(0)
    assert assigned(other.dispatch()) == [], "it goes on, as far as is known"
    one.worker_blocked(WORKER, 0, one.ledgers[0].attempt, 5, 100)
    other.want(0)
    assert assigned(other.dispatch()) == [0]
    send(other, 0, 0, 2)
    take(one, 0)
    send(one, 0, 5, 1, FILE_ENDED)
    send(other, 0, 2, 4, FILE_ENDED)
    assert take(other, 0) == [0, 1, 2, 3, 4, 5]
    assert cache_fill.memory is not None
    assert [len(run.sample_indices) for run in cache_fill.memory.runs_of(0)] == [5, 1], "what one of them read, once"


@pytest.mark.parametrize("how", ["is over", "raises", "fills the cache", "is done with it"])
def test_a_claim_that_comes_to_nothing_passes_to_who_waits(how: str) -> None:
    cache_fill = CacheFill(MemoryCache(300 if how == "fills the cache" else 1 << 20))
    one = reading(cache_fill, [0])
    one.dispatch()
    other, third = reading(cache_fill, [0]), reading(cache_fill, [0])
    send(one, 0, 0, 1)
    if how == "is over":
        one.end()
    elif how == "raises":
        send(one, 0, 1, 1, FILE_RAISED)
    elif how == "fills the cache":
        send(one, 0, 1, 3)
    else:
        one.close_file(0)
    assert assigned(other.dispatch()) == [0]
    assert assigned(third.dispatch()) == ([0] if how == "fills the cache" else [])
    send(other, 0, 0, 2, FILE_ENDED)
    assert take(other, 0) == [0, 1]
    if how != "fills the cache":
        assert take(third, 0) == [0, 1], "and it was offered once more, from its start"
    if how == "raises":
        take(one, 0)
        assert isinstance(source_of(one).next_run(0), FileFailure)


def test_a_file_whose_reader_lost_its_worker_is_given_out_at_once_where_another_one_waits(
    cache_fill: CacheFill,
) -> None:
    one = reading(cache_fill, [0, 1, 2, 3], cycle_length=4)
    assert assigned(one.dispatch()) == [0, 1, 2, 3]
    other = reading(cache_fill, [3])
    one.worker_lost(WorkerGone(WORKER, None, "was killed"))
    one.add_worker(2)
    assert assigned(one.dispatch(expecting=3)) == [0], "those that are starting get their share of the files"
    other.want(3)
    assert assigned(one.dispatch(expecting=3)) == [3]


def test_a_reading_that_ends_while_it_waits_is_not_told_of_what_comes(cache_fill: CacheFill) -> None:
    one, attempts = reading(cache_fill, [0]), Attempts[FileDispatcher]()
    one.attempts = attempts
    one.dispatch()
    other = reading(cache_fill, [0])
    other.end()
    send(one, 0, 0, 2, FILE_ENDED)
    assert not other.ledgers[0].runs
    assert cache_fill.is_coming(0)
