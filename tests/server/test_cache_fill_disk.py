"""Claims over a cache on disk: who is asked first, who waits for what, and what happens when the disk does not move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pydp2.data.columns.columns import Columns
from pydp2.data.schema.input_types import Slots, integer_value
from pydp2.order.sample_source import END
from pydp2.protocol.file_ranges import FILE_ENDED, FILE_OPEN
from pydp2.server.cache.disk_messages import DiskAnswer, DiskHit, DiskMiss, OfferSettled
from pydp2.server.cache.file_format import StoredPiece
from pydp2.server.cache.memory import MemoryCache
from pydp2.server.dispatch.cache_fill import LOOK_AHEAD, CacheFill
from tests.server.sources import source_of

from .test_cache_fill import assigned, reading, send, take

STAMP = (1, 2, 3)


class Scripted:
    """A disk that does nothing until it is told what it found and did."""

    def __init__(self) -> None:
        self.accepts_offers, self.is_stalled, self.takes = True, False, True
        self.asked: list[int] = []
        self.offered: dict[int, int] = {}
        self.complete_ones: list[int] = []
        self.dropped: list[int] = []
        self.said: list[DiskAnswer] = []

    def look_up(self, file: int) -> None:
        self.asked.append(file)

    def offer(self, file: int, stamp: tuple[int, ...], samples: Any, dropped: Sequence[Any]) -> bool:
        assert stamp == STAMP
        if self.takes and samples is not None:
            self.offered[file] = self.offered.get(file, 0) + samples.hi - samples.lo
        return self.takes

    def finish_file(self, file: int, stamp: tuple[int, ...], end: tuple[int, int]) -> None:
        self.complete_ones.append(file)

    def discard(self, file: int) -> None:
        self.dropped.append(file)

    def take_answers(self) -> list[DiskAnswer]:
        said, self.said = self.said, []
        return said


def found(file: int, rows: int) -> DiskHit:
    slots = Slots((integer_value(9),))
    columns = Columns(slots, rows, [[np.zeros(rows, np.int32)]])
    return DiskHit(file, (), [StoredPiece(columns, np.arange(rows), np.full(rows, 4), None)] if rows else [], ())


@pytest.fixture
def disk() -> Scripted:
    return Scripted()


@pytest.fixture
def cache_fill(disk: Scripted) -> CacheFill:
    return CacheFill(None, disk)


def answer(cache_fill: CacheFill, disk: Scripted, *answers: DiskAnswer) -> None:
    disk.said += answers
    cache_fill.take_disk_answers()


def test_the_disk_is_asked_before_a_worker_and_what_it_has_needs_none(cache_fill: CacheFill, disk: Scripted) -> None:
    one = reading(cache_fill, [4, 5], cycle_length=2)
    assert assigned(one.dispatch()) == []
    assert disk.asked == [4, 5]
    answer(cache_fill, disk, found(4, 3), DiskMiss(5, STAMP))
    assert assigned(one.dispatch()) == [5]
    assert take(one, 4) == [0, 1, 2]
    assert source_of(one).next_run(4) is END


def test_what_is_missing_is_read_ahead_too_and_goes_to_the_disk(cache_fill: CacheFill, disk: Scripted) -> None:
    one = reading(cache_fill, [0, 1, 2])
    answer(cache_fill, disk, DiskMiss(0, STAMP))
    one.dispatch()
    assert disk.asked == [0, 1, 2]
    answer(cache_fill, disk, found(1, 2), DiskMiss(2, STAMP))
    assert assigned(one.dispatch()) == [2]
    send(one, 0, 0, 4)
    send(one, 0, 4, 2, FILE_ENDED)
    assert (disk.offered, disk.complete_ones) == ({0: 6}, [0])


def test_of_two_one_reads_and_the_other_waits_until_it_is_written(cache_fill: CacheFill, disk: Scripted) -> None:
    one, other = reading(cache_fill, [0]), reading(cache_fill, [0])
    assert disk.asked == [0]
    answer(cache_fill, disk, DiskMiss(0, STAMP))
    assert assigned(one.dispatch()) == [0]
    assert assigned(other.dispatch()) == []
    send(one, 0, 0, 5, FILE_ENDED)
    other.want(0)
    assert assigned(other.dispatch()) == []
    answer(cache_fill, disk, OfferSettled(0))
    assert disk.asked == [0, 0]
    answer(cache_fill, disk, found(0, 5))
    assert take(other, 0) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_what_the_disk_was_asked_for_a_pass_that_is_over_is_not_believed_in_the_next(
    cache_fill: CacheFill, disk: Scripted, answered: int
) -> None:
    """Files may change between the two."""
    one = reading(cache_fill, [0, 1, 2], cycle_length=3)
    assert disk.asked == [0, 1, 2]
    late = [found(file, 3) for file in (0, 1, 2)]
    answer(cache_fill, disk, *late[:answered])
    one.end()
    answer(cache_fill, disk, *late[answered : answered + 1])
    other = reading(cache_fill, [0, 1, 2], cycle_length=3)
    assert disk.asked[3:] == [0, 1, 2]
    answer(cache_fill, disk, *late[answered + 1 :])
    assert assigned(other.dispatch()) == []
    answer(cache_fill, disk, *(DiskMiss(file, STAMP) for file in (0, 1, 2)))
    assert assigned(other.dispatch()) == [0, 1, 2]


def test_what_was_found_for_another_job_is_not_believed_by_a_pass_that_begins_later(
    cache_fill: CacheFill, disk: Scripted
) -> None:
    """The first job may stand in the middle of its pass for long."""
    one = reading(cache_fill, [0, 1, 2])
    answer(cache_fill, disk, DiskMiss(0, STAMP))
    one.dispatch()
    assert disk.asked == [0, 1, 2]
    answer(cache_fill, disk, found(1, 3))  # and 2 is still looked for
    other = reading(cache_fill, [1, 2], cycle_length=2)
    assert disk.asked[3:] == [1, 2]
    answer(cache_fill, disk, found(2, 3), DiskMiss(1, STAMP), DiskMiss(2, STAMP))
    assert assigned(other.dispatch()) == [1, 2]


def test_a_pass_that_is_over_takes_no_answer_from_one_that_waits(cache_fill: CacheFill, disk: Scripted) -> None:
    one, other = reading(cache_fill, [0, 1], cycle_length=2), reading(cache_fill, [0])
    one.end()
    answer(cache_fill, disk, found(0, 3), found(1, 3))
    assert take(other, 0) == [0, 1, 2]
    assert disk.asked == [0, 1]


def test_what_could_not_be_written_is_read_by_who_waited_for_it(cache_fill: CacheFill, disk: Scripted) -> None:
    one, other = reading(cache_fill, [0]), reading(cache_fill, [0])
    answer(cache_fill, disk, DiskMiss(0, STAMP))
    one.dispatch()
    send(one, 0, 0, 5, FILE_ENDED)
    answer(cache_fill, disk, OfferSettled(0), DiskMiss(0, STAMP))
    answer(cache_fill, disk, DiskMiss(0, STAMP))
    assert assigned(other.dispatch()) == [0]


def test_a_disk_that_does_not_keep_up_loses_the_file_and_nothing_else(cache_fill: CacheFill, disk: Scripted) -> None:
    one, other = reading(cache_fill, [0]), reading(cache_fill, [0])
    answer(cache_fill, disk, DiskMiss(0, STAMP))
    one.dispatch()
    send(one, 0, 0, 2)
    disk.takes = False
    send(one, 0, 2, 2)
    assert disk.dropped == [0]
    disk.takes = True
    answer(cache_fill, disk, DiskMiss(0, STAMP))  # the other one claims it now
    assert assigned(other.dispatch()) == [0]
    send(one, 0, 4, 2, FILE_ENDED)  # which must not get into what the other one offers
    assert (disk.offered, disk.complete_ones) == ({0: 2}, [])
    send(other, 0, 0, 6, FILE_ENDED)
    assert (disk.offered, disk.complete_ones) == ({0: 8}, [0])


@pytest.mark.parametrize("when", ["looking", "writing"])
def test_nobody_waits_for_a_disk_that_does_not_move(cache_fill: CacheFill, disk: Scripted, when: str) -> None:
    one, other = reading(cache_fill, [0]), reading(cache_fill, [0])
    if when == "writing":
        answer(cache_fill, disk, DiskMiss(0, STAMP))
        one.dispatch()
        send(one, 0, 0, 5, FILE_ENDED)
    other.want(0)
    assert assigned(other.dispatch()) == []
    disk.is_stalled = True
    other.want(0)
    assert assigned(other.dispatch()) == [0]
    assert assigned(reading(cache_fill, [1]).dispatch()) == [1]


def test_a_file_that_may_be_changing_or_that_has_no_room_is_read_and_not_kept(
    cache_fill: CacheFill, disk: Scripted
) -> None:
    one = reading(cache_fill, [0, 1], cycle_length=2)
    disk.accepts_offers = False
    answer(cache_fill, disk, DiskMiss(0, None), DiskMiss(1, STAMP))
    assert assigned(one.dispatch()) == [0, 1]
    send(one, 0, 0, 5, FILE_ENDED)
    send(one, 1, 0, 5, FILE_ENDED)
    assert (disk.offered, disk.complete_ones) == ({}, [])


def test_no_more_is_looked_for_than_is_wanted_soon(cache_fill: CacheFill, disk: Scripted) -> None:
    one = reading(cache_fill, list(range(1000)))
    for _ in range(50):
        answer(cache_fill, disk, *(found(file, 0) for file in disk.asked if file not in cache_fill._disk_answers))
        one.dispatch()
    assert len(disk.asked) <= LOOK_AHEAD + 2


def test_a_reading_that_ends_takes_its_claims_with_it(cache_fill: CacheFill, disk: Scripted) -> None:
    one, other = reading(cache_fill, [0]), reading(cache_fill, [0])
    answer(cache_fill, disk, DiskMiss(0, STAMP))
    one.dispatch()
    send(one, 0, 0, 2)
    one.end()
    assert disk.dropped == [0]
    answer(cache_fill, disk, DiskMiss(0, STAMP))
    assert assigned(other.dispatch()) == [0]


def test_what_was_on_its_way_to_memory_goes_to_the_disk_when_memory_is_full(disk: Scripted) -> None:
    cache_fill = CacheFill(MemoryCache(1000), disk)  # samples take 84 + 64 bytes there
    one = reading(cache_fill, [0, 1, 2], cycle_length=3)
    answer(cache_fill, disk, *(DiskMiss(file, STAMP) for file in range(3)))
    assert assigned(one.dispatch()) == [0, 1, 2]
    send(one, 0, 0, 2, FILE_ENDED)
    send(one, 1, 0, 3, FILE_OPEN)
    send(one, 2, 0, 4, FILE_ENDED)  # one too many
    assert cache_fill.memory is not None
    assert [cache_fill.memory.has(file) for file in range(3)] == [True, False, False]
    assert (disk.offered, disk.complete_ones) == ({1: 3, 2: 4}, [2])
    send(one, 1, 3, 1, FILE_ENDED)
    assert (disk.offered, disk.complete_ones) == ({1: 4, 2: 4}, [2, 1])
