"""From figures to the sentence that says what bounds a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.native import COMPILED, PackingForm
from pydp2.diagnostics.advice import (
    STAGES,
    TOLERANCE,
    Measured,
    Slot,
    advise,
    contradiction,
    most_workers,
    shares,
    workers_for,
)

PLAIN = Measured(cores=8, workers=2, files=100, bare=1000.0, packed=950.0, moved=930.0, pooled=910.0)
NO_COMPILER = PackingForm(
    "in Python, because there was no C compiler at the installation", False, "install pydp2 where there is one"
)
rates = st.floats(1e-3, 1e9)
measured = st.builds(
    Measured,
    cores=st.integers(1, 256),
    workers=st.integers(1, 256),
    files=st.integers(1, 10_000),
    bare=rates,
    packed=rates,
    moved=rates,
    pooled=st.one_of(st.just(0.0), rates),
    busy=st.floats(0.001, 1.0),
    waits=st.floats(0.0, 1.0),
    batch_size=st.integers(1, 1 << 16),
    step=st.none() | st.floats(1e-6, 1e3),
    trainer_waits=st.none() | st.floats(0.0, 1.0),
    sample_bytes=st.floats(0.0, 1e9),
    slot=st.none() | st.builds(Slot, st.text(), st.text(), st.sampled_from(["", "float64", "float32"]),
                               st.just("float32"), st.floats(0, 1)),
    packing=st.sampled_from([COMPILED, NO_COMPILER]),
    largest=st.none() | st.floats(0.0, 1.0),
    cached=st.none() | rates,
)  # fmt: skip


def said(**changes: Any) -> tuple[str, str]:
    advice = advise(replace(PLAIN, **changes))
    return advice.cause, advice.sentence


def test_the_time_of_a_sample_is_shared_out_among_the_stages() -> None:
    assert shares(replace(PLAIN, bare=400.0, packed=200.0, moved=200.0, pooled=100.0)) == {
        "process": 0.25, "packing": 0.25, "transport": 0.0, "pool": 0.5,
    }  # fmt: skip


def test_a_stage_that_seems_slower_than_a_later_one_is_as_quick_as_that() -> None:
    assert shares(replace(PLAIN, bare=90.0, packed=80.0, moved=50.0, pooled=100.0))["process"] == 1.0


@given(measured)
def test_shares_are_of_one_whole(m: Measured) -> None:
    parts = shares(m)
    assert list(parts) == list(STAGES)
    assert all(part >= 0 for part in parts.values())
    assert sum(parts.values()) == pytest.approx(1.0 if m.pooled else 0.0)


def test_process_is_named_with_its_share_and_the_workers_that_would_feed_the_step() -> None:
    cause, sentence = said(step=0.064, trainer_waits=0.5, batch_size=192)
    assert cause == "process"
    assert sentence == "parsing in process() takes 91 % of a worker; 7 workers would feed your 64 ms step"


def test_more_workers_than_cores_are_never_advised_without_saying_so() -> None:
    cause, sentence = said(step=0.064, trainer_waits=0.5, batch_size=192, cores=2)
    assert cause == "process"
    assert sentence.startswith(
        "parsing in process() takes 91 % of a worker; your 64 ms step would need 7 workers, more than the 2 cores here "
        "can run: make process() faster, or "
    )


def test_without_a_step_it_is_said_how_many_workers_have_a_core() -> None:
    assert "more workers help, up to 8 have a core here" in said()[1]
    assert "all 2 cores are taken: make process() faster" in said(cores=2)[1]
    assert "the only core is taken" in said(cores=1, workers=1)[1]


def test_a_long_file_is_named_beside_what_bounds_a_worker() -> None:
    assert said(largest=0.8)[1].endswith("; and split the file with 80 % of all bytes: one worker reads it")
    assert "split" not in said(largest=0.8, workers=1)[1]


def test_a_generator_that_waits_is_told_from_one_that_computes() -> None:
    cause, sentence = said(waits=0.7, busy=0.3, step=0.001, trainer_waits=0.9, cores=2)
    assert cause == "waiting"
    assert "waits for the disk, the network or another process 70 % of the time: more workers help" in sentence
    assert sentence.endswith("more than the 6 that the 2 cores here can run")


def test_a_trainer_that_is_fed_needs_nothing() -> None:
    cause, sentence = said(step=0.5, trainer_waits=0.02)
    assert cause == "trainer"
    assert sentence == (
        "the trainer is the limit: with a 500 ms step it waits 2 % of its time, samples could come 3.6 times as fast; "
        "nothing to change"
    )


def test_samples_that_come_unevenly_are_no_lack_of_workers() -> None:
    assert said(step=0.5, trainer_waits=0.3)[0] == "uneven"


def test_too_few_files_are_named_before_all_that_follows_from_them() -> None:
    cause, sentence = said(files=1, workers=3)
    assert cause == "files"
    assert sentence == (
        "the list has 1 file for 3 workers, and a file is read by one worker: 2 have nothing to read; split the files"
    )


@pytest.mark.parametrize(
    ("slot", "packing", "remedy"),
    [
        (
            Slot("slot x", "list of 64", "", "float32", 1.0),
            COMPILED,
            "yield lists of plain numbers, or float32 arrays",
        ),
        (
            Slot("slot x", "list of 64", "", "float32", 0.0),
            NO_COMPILER,
            "because there was no C compiler at the installation: install pydp2 where there is one",
        ),
        (
            Slot("slot x", "list of 64", "", "float32", 0.0),
            PackingForm("in Python, because PYDP2_PURE_PYTHON is set", False, "unset it"),
            "because PYDP2_PURE_PYTHON is set: unset it",
        ),
        (
            Slot("slot x", "list of 64", "", "float32", 0.0),
            PackingForm(
                "in Python, because it was never built: pip install -e /x does, where there is a C compiler", False
            ),
            "never built: pip install -e /x does, where there is a C compiler",
        ),
        (Slot("slot x", "a (9,)", "float64", "float32", 0.0), COMPILED, "have to be converted: yield float32 arrays"),
        (Slot("slot x", "list of 64", "", "float32", 0.0), COMPILED, "yield float32 arrays, where you have them"),
        (Slot("slot x", "a (9,)", "float32", "float32", 0.0), COMPILED, "many samples in one yield (pydp2.rows)"),
    ],
)
def test_packing_names_the_slot_and_the_form_that_is_quicker(slot: Slot, packing: PackingForm, remedy: str) -> None:
    cause, sentence = said(bare=4000.0, packed=1000.0, slot=slot, packing=packing)
    assert cause == "packing"
    assert "slot x" in sentence
    assert remedy in sentence


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"sample_bytes": 3e6}, "with 3.0 MB a sample: yield less"),
        ({"batch_size": 4}, "in batches of 4: ask for larger ones"),
        ({"cores": 2}, "try workers=1"),
        ({}, "the server is the limit"),
    ],
)
def test_transport_is_bounded_by_large_samples_small_batches_or_cores(changes: dict[str, Any], remedy: str) -> None:
    cause, sentence = said(bare=4000.0, packed=3900.0, moved=1000.0, pooled=990.0, **changes)
    assert cause == "transport"
    assert remedy in sentence


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"largest": 0.9}, "one file has 90 % of all bytes"),
        ({"files": 5}, "5 files keep 2 workers no longer busy; split the files"),
        ({}, 'order="relaxed" would give 3,800 samples/s'),
    ],
)
def test_the_pool_waits_for_a_long_file_for_few_files_or_for_the_order(changes: dict[str, Any], remedy: str) -> None:
    cause, sentence = said(bare=4000.0, packed=3900.0, moved=3800.0, pooled=990.0, **changes)
    assert cause == "pool"
    assert remedy in sentence


def test_a_pool_that_was_not_full_in_time_is_said_to_be_that() -> None:
    cause, sentence = said(pooled=0.0, filled=7000, seconds=5.0)
    assert cause == "filling"
    assert "no batch came within 5 s, in which 7,000 samples of the pool were there" in sentence


def test_later_passes_out_of_a_cache_are_told_beside_it() -> None:
    assert "later ones come out of the cache with 90,000 samples/s" in said(cached=90_000.0)[1]


RATES = ("bare", "packed", "moved", "pooled")


@given(measured.filter(lambda m: m.pooled > 0))
def test_stages_contradict_each_other_where_a_later_one_is_much_faster_and_nowhere_else(m: Measured) -> None:
    m = replace(m, step=None)
    given = [getattr(m, name) for name in RATES]
    faster = max(other / one for i, one in enumerate(given) for other in given[i + 1 :])
    assert (advise(m).cause == "unclear") == (faster > TOLERANCE)
    assert (contradiction(m) is not None) == (faster > TOLERANCE)


def test_the_two_stages_that_contradict_each_other_most_are_named_and_nothing_is_advised() -> None:
    advice = advise(replace(PLAIN, bare=1000.0, packed=1200.0, moved=4000.0, pooled=3900.0))
    assert (advice.cause, advice.workers) == ("unclear", None)
    assert advice.sentence.startswith(
        "no advice, because the stages contradict each other: transport gives 4,000 samples/s, 4.0 times as many as "
        "process() alone, which does less; "
    )
    assert "run it again, with nothing beside it and for longer" in advice.sentence


@pytest.mark.parametrize(("waits", "unclear"), [(0.02, True), (0.5, False)])
def test_a_trainer_that_hardly_waits_contradicts_a_stream_that_is_too_slow_for_it(waits: float, unclear: bool) -> None:
    """128 samples in 10 ms are 12,800 a second."""
    cause, sentence = said(bare=4000.0, packed=3900.0, moved=3800.0, pooled=3700.0, step=0.01, trainer_waits=waits)
    assert (cause == "unclear") == unclear
    takes = "the trainer takes 12,800 samples/s and waits only 2 % of its time, but order and pool give 3,700"
    assert (takes in sentence) == unclear


@given(measured)
def test_every_figure_has_one_sentence_and_a_known_cause(m: Measured) -> None:
    advice = advise(m)
    assert advice.cause in {"trainer", "uneven", "filling", "files", "waiting", "unclear", *STAGES}
    assert advice.sentence
    assert not advice.sentence.endswith(".")


@given(measured.filter(lambda m: m.pooled > 0), st.floats(1e-6, 1e3))
def test_so_many_workers_do_feed_the_step_and_fewer_do_not(m: Measured, step: float) -> None:
    """By the same reckoning: each delivers what one of those delivers that the cores run at once."""
    each = m.pooled / max(1.0, min(m.units, m.cores / m.busy))
    need = workers_for(m, step)
    assert need * each * step >= m.batch_size * (1 - 1e-6)
    assert need == 1 or (need - 1) * each * step <= m.batch_size * (1 + 1e-6)


@given(measured.filter(lambda m: m.pooled > 0), st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_a_shorter_step_never_needs_fewer_workers(m: Measured, one: float, other: float) -> None:
    assert workers_for(m, min(one, other)) >= workers_for(m, max(one, other))


@given(measured.filter(lambda m: m.pooled > 0), st.integers(1, 1 << 16))
def test_a_larger_batch_never_needs_fewer_workers(m: Measured, more: int) -> None:
    assert workers_for(replace(m, batch_size=m.batch_size + more), 0.01) >= workers_for(m, 0.01)


@given(measured)
def test_a_need_beyond_the_cores_is_always_said(m: Measured) -> None:
    advice = advise(m)
    if advice.workers is not None and advice.workers > most_workers(m):
        assert f"more than the {m.cores:,} core" in advice.sentence


@given(measured.filter(lambda m: m.pooled > 0), st.floats(1.01, 1e3))
def test_a_trainer_that_is_not_fed_is_advised_more_workers_than_it_has(m: Measured, times: float) -> None:
    """Or what it would need is more than the cores can run, which is said."""
    m = replace(m, files=max(m.files, m.workers), step=m.batch_size / m.pooled / times)
    advice = advise(m)
    if advice.workers is not None:
        assert advice.workers > min(m.workers, most_workers(m))
