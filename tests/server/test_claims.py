"""Several readings over one cache: who reads a file, who waits for it, and who does not wait any more."""

from __future__ import annotations

import numpy as np
import pytest

from pydp2.cache.memory import PassCache
from pydp2.errors import Error, to_wire
from pydp2.order import END, WAIT, Failure, Run
from pydp2.protocol.messages import Assign, Want
from pydp2.protocol.ranges import ENDED, OPEN, RAISED, Assignment, Part
from pydp2.server.actions import Action, Send
from pydp2.server.attempts import Attempts
from pydp2.server.claims import Claims
from pydp2.server.reading import Reading

WORKER = 1


def reading(claims: Claims, order: list[int], *, lanes: int = 1, budget: int = 4000) -> Reading:
    made = Reading(
        pass_id=0, seed=1, order=np.array(order), lanes=lanes, budget=budget, workers=1, label=str, cache=claims
    )
    for file in order[:lanes]:
        made.bind(file)
    made.join(WORKER)
    return made


def assigned(actions: list[Action]) -> list[int]:
    return [
        Assignment.from_wire(item).file
        for act in actions
        if isinstance(act, Send) and isinstance(act.message, Assign)
        for item in act.message.items
    ]


def send(made: Reading, file: int, first: int, rows: int, state: int = OPEN) -> None:
    """Samples of 84 bytes: with what the ledger needs, each costs 100."""
    error = to_wire(Error("as it has to be")) if state == RAISED else {}
    part = Part(file, made.entries[file].attempt, first, rows, rows, state, [first + rows], [], error)
    made.commit(WORKER, part, Run(None, 0, rows, np.arange(first, first + rows), np.full(rows, 84), None))


def take(made: Reading, file: int) -> list[int]:
    found: list[int] = []
    while isinstance(front := made.front(file), Run):
        found += front.ordinals[front.lo : front.hi].tolist()
        made.take(file, front.hi - front.lo)
    return found


@pytest.fixture
def claims() -> Claims:
    return Claims(PassCache(1 << 20))


def test_of_two_that_come_to_a_file_one_reads_it_and_the_other_has_it_from_the_cache(claims: Claims) -> None:
    one, other = reading(claims, [0, 1]), reading(claims, [1, 0])
    assert assigned(one.dispatch()) == [0]
    assert assigned(other.dispatch()) == [1]
    send(one, 0, 0, 5, ENDED)
    send(other, 1, 0, 3, ENDED)
    for made, order in ((one, [0, 1]), (other, [1, 0])):
        assert take(made, order[0]) == list(range((5, 3)[order[0]]))
        made.finish(order[0])
        made.bind(order[1])
        assert take(made, order[1]) == list(range((5, 3)[order[1]]))
        assert made.front(order[1]) is END
        assert assigned(made.dispatch()) == []


def test_who_comes_while_it_is_read_waits_without_a_worker_and_urges_its_reader(claims: Claims) -> None:
    one = reading(claims, [0])
    one.dispatch()
    other = reading(claims, [0])
    assert assigned(other.dispatch()) == []
    assert other.front(0) is WAIT
    other.want(0)
    assert one.dispatch() == [Send(WORKER, Want(one.entries[0].attempt, 1))]
    send(one, 0, 0, 4)
    assert other.front(0) is WAIT, "only whole files are in the cache"
    send(one, 0, 4, 1, ENDED)
    assert take(other, 0) == [0, 1, 2, 3, 4]
    assert other.credit.used == 0


def test_who_waits_for_one_that_stands_still_for_credit_reads_by_himself(claims: Claims) -> None:
    one = reading(claims, [0], budget=500)
    one.dispatch()
    other = reading(claims, [0], budget=500)
    send(one, 0, 0, 5)
    other.want(0)
    assert assigned(other.dispatch()) == [], "it goes on, as far as is known"
    one.blocked(WORKER, 0, one.entries[0].attempt, 5, 100)
    other.want(0)
    assert assigned(other.dispatch()) == [0]
    send(other, 0, 0, 2)
    take(one, 0)
    send(one, 0, 5, 1, ENDED)
    send(other, 0, 2, 4, ENDED)
    assert take(other, 0) == [0, 1, 2, 3, 4, 5]
    assert claims.cache is not None
    assert [len(run.ordinals) for run in claims.cache.runs(0)] == [5, 1], "what one of them read, once"


@pytest.mark.parametrize("how", ["is over", "raises", "fills the cache", "is done with it"])
def test_a_claim_that_comes_to_nothing_passes_to_who_waits(how: str) -> None:
    claims = Claims(PassCache(300 if how == "fills the cache" else 1 << 20))
    one = reading(claims, [0])
    one.dispatch()
    other, third = reading(claims, [0]), reading(claims, [0])
    send(one, 0, 0, 1)
    if how == "is over":
        one.end()
    elif how == "raises":
        send(one, 0, 1, 1, RAISED)
    elif how == "fills the cache":
        send(one, 0, 1, 3)
    else:
        one.finish(0)
    assert assigned(other.dispatch()) == [0]
    assert assigned(third.dispatch()) == ([0] if how == "fills the cache" else [])
    send(other, 0, 0, 2, ENDED)
    assert take(other, 0) == [0, 1]
    if how != "fills the cache":
        assert take(third, 0) == [0, 1], "and it was offered once more, from its start"
    if how == "raises":
        take(one, 0)
        assert isinstance(one.front(0), Failure)


def test_a_file_whose_reader_lost_its_worker_is_given_out_at_once_where_another_one_waits(claims: Claims) -> None:
    one = reading(claims, [0, 1, 2, 3], lanes=4)
    assert assigned(one.dispatch()) == [0, 1, 2, 3]
    other = reading(claims, [3])
    one.lose(WORKER, None, "was killed")
    one.join(2)
    one._workers = 4  # of which three are starting, and get their share of the files
    assert assigned(one.dispatch(expecting=3)) == [0]
    other.want(3)
    assert assigned(one.dispatch(expecting=3)) == [3]


def test_a_reading_that_ends_while_it_waits_is_not_told_of_what_comes(claims: Claims) -> None:
    one, attempts = reading(claims, [0]), Attempts[Reading]()
    one.attempts = attempts
    one.dispatch()
    other = reading(claims, [0])
    other.end()
    send(one, 0, 0, 2, ENDED)
    assert not other.entries[0].runs
    assert claims.comes(0)
