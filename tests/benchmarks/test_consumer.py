"""The consumer of every run: a pass that is not each sample once is refused."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.consumer import WrongPass, consume
from benchmarks.job import BATCH, WORKLOADS, Total, Workload, shuffled_batches

WORDS = WORKLOADS["words"]
SAMPLES = [([n, n + 1], n % 7) for n in range(300)]
TOTAL = Total(300, sum(label for _, label in SAMPLES), 600)


def deliver(samples: list[Any], convert: Any = None) -> dict[str, Any]:
    batches = [WORDS.collate(samples[i : i + BATCH]) for i in range(0, len(samples), BATCH)]
    return consume(lambda: batches, WORDS, TOTAL, convert)


def test_each_sample_once_passes_in_any_order() -> None:
    result = deliver(SAMPLES[::-1])
    assert result["samples"] == 300
    assert 0 < result["first"] <= result["seconds"]
    assert result["steady"] > 0


@given(st.integers(0, 299), st.integers(0, 299))
def test_a_sample_that_is_lost_or_comes_twice_is_refused(lost: int, twice: int) -> None:
    with pytest.raises(WrongPass):
        deliver([sample for n, sample in enumerate(SAMPLES) if n != lost])
    with pytest.raises(WrongPass):
        deliver([*SAMPLES, SAMPLES[twice]])
    if SAMPLES[lost][1] != SAMPLES[twice][1]:  # one lost for one that comes twice: the labels tell
        with pytest.raises(WrongPass):
            deliver([*(sample for n, sample in enumerate(SAMPLES) if n != lost), SAMPLES[twice]])


def test_a_value_too_much_is_refused() -> None:
    with pytest.raises(WrongPass, match=r"elements=600.*elements=601"):
        deliver([([0, 1, 2], 0), *SAMPLES[1:]])


def test_the_call_that_makes_the_batches_belongs_to_the_time() -> None:
    def slow() -> list[Any]:
        time.sleep(0.05)
        return [WORDS.collate(SAMPLES)]

    result = consume(slow, WORDS, TOTAL)
    assert result["seconds"] >= result["first"] >= 0.05


@given(st.integers(0, 2000), st.integers(1, 300), st.integers(0, 5))
def test_the_peers_shuffle_buffer_gives_each_sample_once_in_whole_batches(count: int, pool: int, seed: int) -> None:
    workload = Workload("numbers", lambda settings, filename: iter(()), lambda samples: {"n": samples}, ("n",), pool)  # type: ignore[arg-type, dict-item]
    batches = [batch["n"] for batch in shuffled_batches(range(count), workload, seed)]
    assert Counter(n for batch in batches for n in batch) == Counter(range(count))
    assert all(len(batch) == BATCH for batch in batches[:-1])


def test_the_peers_shuffle_buffer_mixes() -> None:
    first = next(shuffled_batches(((([n], 0)) for n in range(20_000)), WORDS, 1))
    assert first["ids"].max() > 1000
