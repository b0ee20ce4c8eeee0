"""What counts as lost, from where on it is too much, and what is told of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.errors import (
    BadSample,
    BudgetExceeded,
    Error,
    FileCondemned,
    NotRepeatable,
    RemoteError,
    from_wire,
    provider_error,
    to_wire,
)
from pydp2.order.snapshot import FilePosition, SnapshotPoint
from pydp2.server.actions import Log, Loss
from pydp2.server.cache.file_format import DroppedSample
from pydp2.server.dispatch.losses import MIN_SAMPLES_FOR_SHARE, Losses
from pydp2.system.log_events import LogEvent

FACT = (7, "file f2, sample 7: process raised KeyError")


def losses(budget: float | None = None, early_ends: Any = (), saved: SnapshotPoint | None = None) -> Losses:
    return Losses(3, lambda file: f"f{file}", budget, dict(early_ends), saved, np.array([4, 2, 0, 1, 3]))


def dropped_sample(y: int) -> DroppedSample:
    return y, "bits", "expected 2, got 3"


def test_a_dropped_sample_is_counted_told_and_written_down() -> None:
    made = losses()
    about = {"file": "f2", "sample": 5, "slot": "bits"}
    assert made.drop(2, dropped_sample(5)) == [
        Log("file f2, sample 5, slot bits: expected 2, got 3", LogEvent.SAMPLE_DROPPED, about),
        Loss(3, "f2", 5, "bits", "expected 2, got 3", "dropped"),
    ]
    assert (made.dropped, made.early_ends, made.error) == (1, {}, None)


def _cause(error: Error) -> tuple[str, float | None]:
    return ("KeyError" if isinstance(error, KeyError) else "", getattr(error, "sample_timeout", None))


@pytest.mark.parametrize(
    ("error", "kind", "slot"),
    [
        (provider_error("file f2, sample 7: process raised KeyError", "KeyError"), "raised", ""),
        (FileCondemned("file f2, sample 7: three workers died"), "condemned", ""),
        (FileCondemned("file one sample took longer than sample_timeout=3 s: three workers died"), "condemned", ""),
        (FileCondemned("file f2, sample 7: three workers died", sample_timeout=3.0), "timed out", ""),
        (NotRepeatable("file f2: process() did not repeat itself"), "not repeated", ""),
        (BadSample("file f2, sample 7, slot bits: expected 2", slot="bits"), "bad sample", "bits"),
    ],
)
def test_a_file_that_ends_early_becomes_a_fact_and_its_kind_is_written_down(error: Error, kind: str, slot: str) -> None:
    made = losses()
    told = made.end(2, 7, error)
    assert told == [
        Log(f"the rest of a file is left out: {error}", LogEvent.FILE_ENDED_EARLY, {"file": "f2", "sample": 7}),
        Loss(3, "f2", 7, slot, str(error), kind, *_cause(error)),
    ]
    assert made.early_ends == {2: (7, str(error))}
    assert (made.dropped, made.ended) == (0, 1)


def test_a_file_that_ends_in_order_is_no_loss() -> None:
    made = losses(budget=0)
    assert made.end(2, 7, None) == []
    assert (made.ended, made.early_ends, made.error) == (0, {}, None)


def test_long_reasons_are_cut_in_facts_and_in_the_quarantine() -> None:
    made = losses()
    _, loss = made.end(0, 1, RemoteError("x" * 100_000))
    assert isinstance(loss, Loss)
    assert len(loss.reason) == 4000
    assert len(made.early_ends[0][1]) == 300


def test_a_known_fact_counts_when_the_merge_meets_it_and_is_not_logged_again() -> None:
    made = losses(early_ends={2: FACT})
    assert made.ended == 0
    assert made.end(2, 7, None) == [Loss(3, "f2", 7, "", FACT[1], "ended early")]
    assert made.ended == 1


def test_a_pass_that_is_taken_up_goes_on_counting_and_knows_which_ends_were_met() -> None:
    """Of files in the order 4, 2, 0, 1, 3 three were bound; 0 is still a file of the cycle, so its end is not met."""
    cycle_length = [FilePosition(0, 2, 0, [])]
    saved = SnapshotPoint(9, b"", False, 0, 3, 0, 5, cycle_length, merged=100, dropped=6)
    made = losses(budget=8, early_ends={2: FACT, 0: (5, "why"), 3: (1, "later")}, saved=saved)
    assert (made.dropped, made.taken, made.ended) == (6, 100, 1)
    assert made.met == [[2, *FACT]]
    made.end(0, 5, None)
    assert made.met == [[2, *FACT], [0, 5, "why"]], "not of file 3, which comes later"
    assert made.error is None
    made.end(3, 1, None)
    assert isinstance(made.error, BudgetExceeded)


@pytest.mark.parametrize(
    ("budget", "allowed"), [(0, 0), (1, 1), (100, 100), (0.001, MIN_SAMPLES_FOR_SHARE), (0.5, MIN_SAMPLES_FOR_SHARE)]
)
def test_the_first_loss_that_is_one_too_many_is_an_error(budget: float, allowed: int) -> None:
    made = losses(budget)
    for y in range(allowed):
        made.drop(1, dropped_sample(y))
    assert made.error is None
    made = losses(budget)
    made.taken = 5
    for y in range(allowed + 1):
        made.drop(1, dropped_sample(y))
    assert isinstance(made.error, BudgetExceeded)
    assert str(made.error).endswith(f"The last one: file f1, sample {allowed}, slot bits: expected 2, got 3")


def test_a_share_is_one_of_all_samples_that_the_merge_has_met() -> None:
    made = losses(0.1)
    made.taken = 180
    for y in range(20):
        made.drop(0, dropped_sample(y))
    assert made.error is None  # 20 of 200
    made.drop(0, dropped_sample(20))
    assert isinstance(made.error, BudgetExceeded)


def test_the_error_says_what_is_allowed_what_there_was_what_to_do_and_who_was_the_last() -> None:
    made = losses(1)
    made.taken = 1200
    made.drop(0, dropped_sample(4))
    made.end(2, 7, RemoteError("file f2, sample 7: no"))
    assert str(made.error) == (
        "pass 3 has lost more than error_budget=1 allows: of 1,202 samples so far 1 bad one was dropped, and 1 file "
        "ended early; mend the data (quarantine=PATH lists each loss, `pydp2 check` shows them all), or raise "
        "error_budget. The last one: file f2, sample 7: no"
    )
    assert type(from_wire(to_wire(made.error or Error()))) is BudgetExceeded


@given(
    st.sampled_from([None, 0, 1, 3, 12, 0.01, 0.2, 0.5]), st.integers(0, 100), st.integers(0, 15),
    st.lists(st.booleans(), max_size=60),
)  # fmt: skip
def test_a_run_goes_exactly_to_where_its_samples_one_by_one_would(
    budget: float | None, taken: int, dropped: int, good: list[bool]
) -> None:
    """However it is cut: the samples before the dropped sample that is one too many, and none behind it."""
    made, slow = losses(budget), losses(budget)
    made.taken = slow.taken = taken
    made.dropped = slow.dropped = dropped
    sample_indices = np.flatnonzero(good)
    dropped_samples = [dropped_sample(y) for y, it in enumerate(good) if not it]
    if len(sample_indices):
        dropped_samples = [h for h in dropped_samples if h[0] > sample_indices[0]]  # those before were passed
        expected = 0
        for y in range(int(sample_indices[0]), len(good)):
            if good[y]:
                slow.taken += 1
                expected += 1
                continue
            if y > sample_indices[-1]:
                break
            slow.drop(0, dropped_sample(y))
            if slow.error:
                break
        assert made.allowed_samples(dropped_samples, sample_indices) == expected
