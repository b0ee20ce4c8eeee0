"""A block list in memory: a set of samples, by file."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.block_list import BlockList

NAMES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1 << 40)), max_size=40)


def of(names: list[tuple[int, int]]) -> BlockList:
    return BlockList.of_samples(*np.array(names, np.int64).reshape(-1, 2).T)


@given(NAMES, st.randoms())
def test_a_list_has_each_sample_once_in_whatever_order_and_however_often_it_was_given(
    names: list[tuple[int, int]], random: object
) -> None:
    made = of(names)
    assert len(made) == len({*names})
    for file in range(10):
        found = made.of(file)
        assert ([] if found is None else found.tolist()) == sorted({y for f, y in names if f == file})
        assert found is None or len(found)
    shuffled = [*names, *names[:3]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    again = of(shuffled)
    assert (again.encoded, again.fingerprint) == (made.encoded, made.fingerprint)
    assert [BlockList(made.encoded).digest_of(file) for file in range(10)] == [made.digest_of(f) for f in range(10)]


@given(NAMES, NAMES)
def test_other_samples_have_other_fingerprints(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    first, second = of(one), of(other)
    assert (first.fingerprint == second.fingerprint) == ({*one} == {*other})
    for file in range(10):
        same = [y for f, y in sorted({*one}) if f == file] == [y for f, y in sorted({*other}) if f == file]
        assert (first.digest_of(file) == second.digest_of(file)) == same


def test_an_empty_list_has_no_fingerprint_and_blocks_nothing() -> None:
    made = of([])
    assert (made.encoded, made.fingerprint, len(made), made.of(0), made.digest_of(0)) == (b"", "", 0, None, "")
    assert not made
