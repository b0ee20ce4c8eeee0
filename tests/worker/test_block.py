"""Pieces of what came in one yield: as large as rows, room and credit allow, and no sample lost or seen twice."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pydp2 import rows
from pydp2.inputs import Ragged, Rows, Slots, integer_value, integer_value_sequence
from pydp2.protocol.ranges import SAMPLE_COST
from pydp2.worker.block import FEW, Block

EQUAL = Slots((integer_value(100_000),))
UNEQUAL = Slots((integer_value(100_000), integer_value_sequence(10)), ("id", "words"))


def some_rows(count: int, equal: bool) -> Rows:
    ids = np.arange(count)
    if equal:
        return rows(ids)
    lengths = ids % 4
    return rows(id=ids, words=Ragged(np.zeros(lengths.sum(), np.int64), np.concatenate([[0], np.cumsum(lengths)])))


def size_of(i: int, equal: bool) -> int:
    return 4 if equal else 4 + 4 + 4 * (i % 4)


@given(st.integers(0, 10_000), st.booleans(), st.integers(0, 2**32).map(random.Random))
def test_pieces_keep_within_what_is_allowed_and_are_no_smaller_than_they_need(
    count: int, equal: bool, choose: random.Random
) -> None:
    block = Block(some_rows(count, equal), EQUAL if equal else UNEQUAL, equal)
    assert block.left == count
    at = 0
    while at < count:
        most, room, credit = (choose.choice([-1, 7, 8, 50, scale]) for scale in (6000, 40_000, 400_000))
        room, credit = room * 10, credit * 100
        laid = block.take(most, room, credit)
        if laid is None:
            sample: Any = block.next()
            assert (sample if equal else sample["id"]) == at
            at += 1
        else:
            assert laid.arrays[0][0].tolist() == list(range(at, at + laid.rows))
            sizes = [size_of(i, equal) for i in range(at, at + laid.rows)]
            assert FEW <= laid.rows <= most
            assert sum(sizes[:-1]) < room
            cost = sum(sizes) + SAMPLE_COST * laid.rows
            assert cost <= credit
            at += laid.rows
            more = at < count and laid.rows < most and sum(sizes) < room
            more = more and cost + size_of(at, equal) + SAMPLE_COST <= credit
            assert not more or not equal, "only a window of what differs in size ends earlier"
        assert block.left == count - at
    assert block.take(100, 1000, 100_000) is None


def test_what_is_given_back_goes_one_by_one_and_what_comes_after_it_together() -> None:
    block = Block(some_rows(100, equal=True), EQUAL, single=True)
    laid = block.take(20, 10_000, 100_000)
    assert laid is not None
    block.give_back(laid.rows)
    for i in range(20):
        assert block.take(20, 10_000, 100_000) is None
        assert block.next() == i
    laid = block.take(100, 10_000, 100_000)
    assert laid is not None
    assert laid.arrays[0][0].tolist() == list(range(20, 100))


def test_few_samples_go_one_by_one() -> None:
    block = Block(some_rows(FEW - 1, equal=True), EQUAL, single=True)
    assert block.take(100, 10_000, 100_000) is None
    assert block.next() == 0


def test_what_does_not_fit_is_looked_at_once_and_not_for_each_sample() -> None:
    looked = []

    class Watched(Rows):
        __slots__ = ()

        def columns(self, slots: Slots, lo: int, hi: int) -> Any:
            looked.append((lo, hi))
            return super().columns(slots, lo, hi)

    given_ = some_rows(1000, equal=True)
    watched = Watched(None, given_._slots, len(given_))
    words = Slots((integer_value_sequence(5),))
    for slots in (words, Slots((integer_value(5), integer_value(5)))):
        looked.clear()
        block = Block(watched, slots, single=True)
        while block.left:
            assert block.take(4096, 10_000_000, 10_000_000) is None
            block.next()
        assert looked == [(0, 1000)]
