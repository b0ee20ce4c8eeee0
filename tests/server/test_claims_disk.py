"""Claims over a cache on disk: who is asked first, who waits for what, and what happens when the disk does not move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pydp2.cache.entry import Piece
from pydp2.cache.memory import PassCache
from pydp2.cache.terms import Answer, Found, Missing, Settled
from pydp2.inputs import Columns, Slots, integer_value
from pydp2.order import END
from pydp2.protocol.ranges import ENDED, OPEN
from pydp2.server.claims import AHEAD, Claims

from .test_claims import assigned, reading, send, take

STAMP = (1, 2, 3)


class Scripted:
    """A disk that does nothing until it is told what it found and did."""

    def __init__(self) -> None:
        self.keeps, self.stuck, self.takes = True, False, True
        self.asked: list[int] = []
        self.offered: dict[int, int] = {}
        self.complete_ones: list[int] = []
        self.dropped: list[int] = []
        self.said: list[Answer] = []

    def look(self, file: int) -> None:
        self.asked.append(file)

    def offer(self, file: int, stamp: tuple[int, ...], samples: Any, holes: Sequence[Any]) -> bool:
        assert stamp == STAMP
        if self.takes and samples is not None:
            self.offered[file] = self.offered.get(file, 0) + samples.hi - samples.lo
        return self.takes

    def complete(self, file: int, stamp: tuple[int, ...]) -> None:
        self.complete_ones.append(file)

    def drop(self, file: int) -> None:
        self.dropped.append(file)

    def answers(self) -> list[Answer]:
        said, self.said = self.said, []
        return said


def found(file: int, rows: int) -> Found:
    slots = Slots((integer_value(9),))
    columns = Columns(slots, rows, [[np.zeros(rows, np.int32)]])
    return Found(file, [Piece(columns, np.arange(rows), np.full(rows, 4), None)] if rows else [], ())


@pytest.fixture
def disk() -> Scripted:
    return Scripted()


@pytest.fixture
def claims(disk: Scripted) -> Claims:
    return Claims(None, disk)


def answer(claims: Claims, disk: Scripted, *answers: Answer) -> None:
    disk.said += answers
    claims.answered()


def test_the_disk_is_asked_before_a_worker_and_what_it_has_needs_none(claims: Claims, disk: Scripted) -> None:
    one = reading(claims, [4, 5], lanes=2)
    assert assigned(one.dispatch()) == []
    assert disk.asked == [4, 5]
    answer(claims, disk, found(4, 3), Missing(5, STAMP))
    assert assigned(one.dispatch()) == [5]
    assert take(one, 4) == [0, 1, 2]
    assert one.front(4) is END


def test_what_is_missing_is_read_ahead_too_and_goes_to_the_disk(claims: Claims, disk: Scripted) -> None:
    one = reading(claims, [0, 1, 2])
    answer(claims, disk, Missing(0, STAMP))
    one.dispatch()
    assert disk.asked == [0, 1, 2]
    answer(claims, disk, found(1, 2), Missing(2, STAMP))
    assert assigned(one.dispatch()) == [2]
    send(one, 0, 0, 4)
    send(one, 0, 4, 2, ENDED)
    assert (disk.offered, disk.complete_ones) == ({0: 6}, [0])


def test_of_two_one_reads_and_the_other_waits_until_it_is_written(claims: Claims, disk: Scripted) -> None:
    one, other = reading(claims, [0]), reading(claims, [0])
    assert disk.asked == [0]
    answer(claims, disk, Missing(0, STAMP))
    assert assigned(one.dispatch()) == [0]
    assert assigned(other.dispatch()) == []
    send(one, 0, 0, 5, ENDED)
    other.want(0)
    assert assigned(other.dispatch()) == []
    answer(claims, disk, Settled(0))
    assert disk.asked == [0, 0]
    answer(claims, disk, found(0, 5))
    assert take(other, 0) == [0, 1, 2, 3, 4]


def test_what_could_not_be_written_is_read_by_who_waited_for_it(claims: Claims, disk: Scripted) -> None:
    one, other = reading(claims, [0]), reading(claims, [0])
    answer(claims, disk, Missing(0, STAMP))
    one.dispatch()
    send(one, 0, 0, 5, ENDED)
    answer(claims, disk, Settled(0), Missing(0, STAMP))
    answer(claims, disk, Missing(0, STAMP))
    assert assigned(other.dispatch()) == [0]


def test_a_disk_that_does_not_keep_up_loses_the_file_and_nothing_else(claims: Claims, disk: Scripted) -> None:
    one, other = reading(claims, [0]), reading(claims, [0])
    answer(claims, disk, Missing(0, STAMP))
    one.dispatch()
    send(one, 0, 0, 2)
    disk.takes = False
    send(one, 0, 2, 2)
    assert disk.dropped == [0]
    disk.takes = True
    answer(claims, disk, Missing(0, STAMP))  # the other one claims it now
    assert assigned(other.dispatch()) == [0]
    send(one, 0, 4, 2, ENDED)  # which must not get into what the other one offers
    assert (disk.offered, disk.complete_ones) == ({0: 2}, [])
    send(other, 0, 0, 6, ENDED)
    assert (disk.offered, disk.complete_ones) == ({0: 8}, [0])


@pytest.mark.parametrize("when", ["looking", "writing"])
def test_nobody_waits_for_a_disk_that_does_not_move(claims: Claims, disk: Scripted, when: str) -> None:
    one, other = reading(claims, [0]), reading(claims, [0])
    if when == "writing":
        answer(claims, disk, Missing(0, STAMP))
        one.dispatch()
        send(one, 0, 0, 5, ENDED)
    other.want(0)
    assert assigned(other.dispatch()) == []
    disk.stuck = True
    other.want(0)
    assert assigned(other.dispatch()) == [0]
    assert assigned(reading(claims, [1]).dispatch()) == [1]


def test_a_file_that_may_be_changing_or_that_has_no_room_is_read_and_not_kept(claims: Claims, disk: Scripted) -> None:
    one = reading(claims, [0, 1], lanes=2)
    disk.keeps = False
    answer(claims, disk, Missing(0, None), Missing(1, STAMP))
    assert assigned(one.dispatch()) == [0, 1]
    send(one, 0, 0, 5, ENDED)
    send(one, 1, 0, 5, ENDED)
    assert (disk.offered, disk.complete_ones) == ({}, [])


def test_no_more_is_looked_for_than_is_wanted_soon(claims: Claims, disk: Scripted) -> None:
    one = reading(claims, list(range(1000)))
    for _ in range(50):
        answer(claims, disk, *(found(file, 0) for file in disk.asked if file not in claims._known))
        one.dispatch()
    assert len(disk.asked) <= AHEAD + 2


def test_a_reading_that_ends_takes_its_claims_with_it(claims: Claims, disk: Scripted) -> None:
    one, other = reading(claims, [0]), reading(claims, [0])
    answer(claims, disk, Missing(0, STAMP))
    one.dispatch()
    send(one, 0, 0, 2)
    one.end()
    assert disk.dropped == [0]
    answer(claims, disk, Missing(0, STAMP))
    assert assigned(other.dispatch()) == [0]


def test_what_was_on_its_way_to_memory_goes_to_the_disk_when_memory_is_full(disk: Scripted) -> None:
    claims = Claims(PassCache(1000), disk)  # samples take 84 + 64 bytes there
    one = reading(claims, [0, 1, 2], lanes=3)
    answer(claims, disk, *(Missing(file, STAMP) for file in range(3)))
    assert assigned(one.dispatch()) == [0, 1, 2]
    send(one, 0, 0, 2, ENDED)
    send(one, 1, 0, 3, OPEN)
    send(one, 2, 0, 4, ENDED)  # one too many
    assert claims.cache is not None
    assert [claims.cache.has(file) for file in range(3)] == [True, False, False]
    assert (disk.offered, disk.complete_ones) == ({1: 3, 2: 4}, [2])
    send(one, 1, 3, 1, ENDED)
    assert (disk.offered, disk.complete_ones) == ({1: 4, 2: 4}, [2, 1])
