"""What a trainer shows to be used: one number says it, for one run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydp2.protocol import progress_word

runs = st.integers(1, 1 << 30)


@given(runs, st.integers(0, (1 << 40) - 1))
def test_what_is_packed_is_unpacked(run: int, used: int) -> None:
    word = progress_word.pack(run, used)
    assert 0 <= word < 1 << 64
    assert progress_word.unpack(word, run) == used


@given(runs, st.integers(1, 1 << 20), st.integers(0, 1 << 40))
def test_of_another_run_nothing_is_used(run: int, later: int, used: int) -> None:
    assert progress_word.unpack(progress_word.pack(run, used), run + later) == 0


@given(st.integers(0, (1 << 64) - 1), runs)
def test_any_number_says_something(word: int, run: int) -> None:
    assert 0 <= progress_word.unpack(word, run) < 1 << 40


def test_before_anything_is_written_nothing_is_used() -> None:
    assert progress_word.unpack(0, 0) == progress_word.unpack(0, 1) == progress_word.unpack(0, 1 << 24) == 0
