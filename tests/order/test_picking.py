"""Words and picks: both forms give what the rules say (docs/order.md, "Random words", "Pick")."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Philox

from pydp2.order.pool import pick, pick_in_python
from pydp2.order.random_bits import ORDER_VERSION, RandomBits, permutation


@given(seed=st.integers(0, 2**63 - 1), pass_id=st.integers(0, 9), n=st.none() | st.integers(0, 2**40), data=st.data())
def test_words_are_those_of_philox_however_they_are_drawn(seed: int, pass_id: int, n: int | None, data: Any) -> None:
    counts = data.draw(st.lists(st.integers(0, 40), max_size=6))
    words = RandomBits(seed, pass_id, "pick", n)
    drawn = [word for count in counts for word in words.draw(count).tolist()]
    name = f"{ORDER_VERSION}|{seed}|{pass_id}|pick" + ("" if n is None else f"|{n}")
    key = int.from_bytes(blake2b(name.encode(), digest_size=16).digest(), "little")
    assert drawn == Philox(key=key).random_raw(sum(counts)).tolist()


@pytest.mark.parametrize("form", [pick, pick_in_python])
def test_a_pick_takes_the_place_that_its_word_says_and_the_last_one_moves_there(form: Callable[..., Any]) -> None:
    @given(rows=st.lists(st.integers(0, 2**62), max_size=40), data=st.data())
    def check(rows: list[int], data: Any) -> None:
        words = data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=len(rows)))
        left = array("q", rows)
        picked = form(left, np.array(words, np.uint64))
        expected, rest = [], list(rows)
        for word in words:
            j = word * len(rest) >> 64
            expected.append(rest[j])
            last = rest.pop()
            if j < len(rest):
                rest[j] = last
        assert picked.tolist() == expected
        assert left.tolist() == rest

    check()


def test_a_permutation_is_the_stable_one_also_where_words_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    few = np.array([3, 1, 3, 2, 1, 3] * 50, np.uint64)
    monkeypatch.setattr(RandomBits, "draw", lambda self, count: few[:count])
    for count in (0, 1, 2, 4, 300):
        assert permutation(1, 0, "tail", count).tolist() == np.argsort(few[:count], kind="stable").tolist()
