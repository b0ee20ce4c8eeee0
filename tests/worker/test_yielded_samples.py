"""Pieces of what came in one yield: as large as rows, room and credit allow, and no sample lost or seen twice."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pydp2 import rows
from pydp2.data.columns.batch import Ragged
from pydp2.data.packers.many_samples import ManySamples
from pydp2.data.schema.input_types import Slots, integer_value, integer_value_sequence
from pydp2.host.worker.yielded_samples import MIN_TOGETHER, YieldedSamples
from pydp2.protocol.file_ranges import SAMPLE_COST

EQUAL = Slots((integer_value(100_000),))
UNEQUAL = Slots((integer_value(100_000), integer_value_sequence(10)), ("id", "words"))


def some_rows(count: int, equal: bool) -> ManySamples:
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
    block = YieldedSamples(some_rows(count, equal), EQUAL if equal else UNEQUAL, equal)
    assert block.remaining == count
    at = 0
    while at < count:
        most, room, credit = (choose.choice([-1, 7, 8, 50, scale]) for scale in (6000, 40_000, 400_000))
        room, credit = room * 10, credit * 100
        laid = block.take_columns(most, room, credit)
        if laid is None:
            sample: Any = block.next_sample()
            assert (sample if equal else sample["id"]) == at
            at += 1
        else:
            assert laid.arrays[0][0].tolist() == list(range(at, at + laid.rows))
            sizes = [size_of(i, equal) for i in range(at, at + laid.rows)]
            assert MIN_TOGETHER <= laid.rows <= most
            assert sum(sizes[:-1]) < room
            cost = sum(sizes) + SAMPLE_COST * laid.rows
            assert cost <= credit
            at += laid.rows
            more = at < count and laid.rows < most and sum(sizes) < room
            more = more and cost + size_of(at, equal) + SAMPLE_COST <= credit
            assert not more or not equal, "only a window of what differs in size ends earlier"
        assert block.remaining == count - at
    assert block.take_columns(100, 1000, 100_000) is None


def test_what_is_given_back_goes_one_by_one_and_what_comes_after_it_together() -> None:
    block = YieldedSamples(some_rows(100, equal=True), EQUAL, is_single_slot=True)
    laid = block.take_columns(20, 10_000, 100_000)
    assert laid is not None
    block.unpack_last(laid.rows)
    for i in range(20):
        assert block.take_columns(20, 10_000, 100_000) is None
        assert block.next_sample() == i
    laid = block.take_columns(100, 10_000, 100_000)
    assert laid is not None
    assert laid.arrays[0][0].tolist() == list(range(20, 100))


def test_few_samples_go_one_by_one() -> None:
    block = YieldedSamples(some_rows(MIN_TOGETHER - 1, equal=True), EQUAL, is_single_slot=True)
    assert block.take_columns(100, 10_000, 100_000) is None
    assert block.next_sample() == 0


def test_what_does_not_fit_is_looked_at_once_and_not_for_each_sample() -> None:
    looked = []

    class Watched(ManySamples):
        __slots__ = ()

        def columns(self, slots: Slots, lo: int, hi: int) -> Any:
            looked.append((lo, hi))
            return super().columns(slots, lo, hi)

    given_ = some_rows(1000, equal=True)
    watched = Watched(None, given_._slots, len(given_))
    words = Slots((integer_value_sequence(5),))
    for slots in (words, Slots((integer_value(5), integer_value(5)))):
        looked.clear()
        block = YieldedSamples(watched, slots, is_single_slot=True)
        while block.remaining:
            assert block.take_columns(4096, 10_000_000, 10_000_000) is None
            block.next_sample()
        assert looked == [(0, 1000)]
