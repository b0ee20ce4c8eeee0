"""What a loader over a client does for the frameworks that need it; for what all share see test_loader_contract.py."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2.client import look_ahead
from pydp2.client.look_ahead import LookAhead
from pydp2.frameworks.loader import FrameworkLoader
from tests.runs import NUMBERS_OPTIONS, wait_until

from .conftest import FILES, STEP, long_step, samples

_jobs = count()


@contextmanager
def loader(service: pydp2.Service, convert: Any = samples, **options: Any) -> Iterator[FrameworkLoader[Any]]:
    job = f"loader {next(_jobs)}"
    with FrameworkLoader(service.connect(job=job, **NUMBERS_OPTIONS), convert, **options) as data:
        yield data


def test_where_the_loop_reads_ahead_the_state_is_that_of_the_value_in_training(
    service: pydp2.Service, expected: list[list[list[int]]], provider: str, tmp_path: Path
) -> None:
    """As Lightning does it as long as the length is not known: a value is fetched before the one before it is used."""
    nothing_counted = pydp2.launch(FILES, provider, workers=1, cache_dir=tmp_path / "cache")
    with nothing_counted as new, loader(new, reads_ahead=1) as data:
        assert not data._has_length()
        values = iter(data)
        in_training, states = next(values), []
        while in_training is not None:
            following = next(values, None)
            states.append(data.state_dict())
            in_training = following
    for done in (1, 2, len(expected[0]) - 1):
        with loader(service) as data:
            data.load_state_dict(states[done - 1])
            assert list(data) == expected[0][done:]


def test_a_loop_that_converts_otherwise_goes_on_in_a_pass_that_was_interrupted(
    service: pydp2.Service, expected: list[list[list[int]]]
) -> None:
    def interrupted(batch: pydp2.Batch) -> int:
        if batch.index == 3:
            raise KeyboardInterrupt
        return batch.index

    with loader(service, samples, ahead=2) as data:
        values = data.iterate(interrupted)
        assert next(values) == 0
        with pytest.raises(KeyboardInterrupt):
            next(values)
        assert list(data) == expected[0][1:]


# -- beside long steps -------------------------------------------------------------------------------------------------
ROWS = """
@provider(
    input_types=[dense_vector(WIDTH), integer_value_sequence(100000)], pool_size=64, cache=CacheType.CACHE_PASS_IN_MEM
)
def process(settings, filename):
    for i in range(2000 if WIDTH < 100 else 300):
        yield [i] * WIDTH, [i] * (i % 5)
"""
ROWS_OPTIONS: dict[str, Any] = {"batch_size": 16, "workers": 1, "seed": 4}


class Converter:
    """Sums up the values of each batch, and notes the threads that do it. ``fails``: not in another one than that
    which made it."""

    def __init__(self, fails: bool = False) -> None:
        self.mine, self._fails = threading.get_ident(), fails
        self.threads: list[int] = []

    def __call__(self, batch: pydp2.Batch) -> tuple[int, float, int]:
        self.threads.append(threading.get_ident())
        if self._fails and threading.get_ident() != self.mine:
            raise ValueError("no")
        rows, words = batch
        assert isinstance(rows, np.ndarray)
        assert isinstance(words, pydp2.Ragged)
        return batch.index, float(rows.sum()), len(words.values)

    @property
    def ahead(self) -> int:
        """How many were converted in another thread."""
        return len(self.threads) - self.threads.count(self.mine)


@pytest.fixture
def rows(provider_file: Callable[[str], str]) -> Iterator[pydp2.Client]:
    """Batches that wait for nobody: they are in the cache."""
    with pydp2.load(["a", "b"], provider_file(ROWS.replace("WIDTH", "20000")), **ROWS_OPTIONS) as client:
        list(client)
        yield client


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("width", [4, 20_000], ids=["small batches that come together", "large ones"])
def test_beside_long_steps_batches_are_converted_in_another_thread_and_the_values_are_the_same(
    width: int, ahead: int, provider_file: Callable[[str], str]
) -> None:
    provider = provider_file(ROWS.replace("WIDTH", str(width)))
    with pydp2.load(["a", "b"], provider, **ROWS_OPTIONS) as client:
        expected = [Converter()(batch) for batch in client]
    convert = Converter()
    with FrameworkLoader(
        pydp2.load(["a", "b"], provider, **ROWS_OPTIONS), convert, ahead=ahead, context=lambda: 0
    ) as data:
        found, state = [], {}
        for number, value in enumerate(data):
            found.append(value)
            if number == 20:
                state = data.state_dict()
            assert data.batch is not None
            assert (data.batch.pass_id, data.batch.index, data.batch._ready) == (0, number, None)
            long_step(data.client)
        assert found == expected
        assert convert.ahead
        assert len(convert.threads) == len(expected), "each of them once"
        data.load_state_dict(state)
        assert list(data) == expected[21:]


def test_only_for_a_loop_that_gives_them_values_are_made_ahead(rows: pydp2.Client) -> None:
    convert, other = Converter(), Converter()
    data = FrameworkLoader(rows, convert, context=lambda: 0)
    for steps in (data, rows, data.iterate(other)):
        before = len(convert.threads)
        for _ in steps:  # type: ignore[attr-defined]  # one of three kinds
            long_step(rows)
        assert (len(convert.threads) > before) == (steps is data)
    assert convert.ahead
    assert not other.ahead


def test_a_loader_that_says_nothing_of_threads_converts_in_that_of_the_call(rows: pydp2.Client) -> None:
    convert = Converter()
    for _ in FrameworkLoader(rows, convert):
        long_step(rows)
    assert len(convert.threads) > 20
    assert not convert.ahead


def test_only_values_of_the_context_of_their_loop_are_made_ahead(
    rows: pydp2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass goes on in a context that the other thread has not, in one where it must not, and in the first one."""
    monkeypatch.setattr(look_ahead, "_SKIPPED_STEPS", 2)
    mine = threading.get_ident()
    context: str | None = "everywhere"
    convert = Converter()
    data = FrameworkLoader(rows, convert, context=lambda: context if threading.get_ident() == mine else "everywhere")
    ahead = []
    steps = iter(data)
    for context in ("everywhere", "here alone", None, "everywhere"):
        for _ in islice(steps, 2):  # the first of them may have been converted in a step of the context before
            long_step(rows)
        before, step = convert.ahead, STEP
        for _ in islice(steps, 9 if context == "everywhere" else 5):
            long_step(rows, step)
            if convert.ahead > before:
                break
            if context == "everywhere":
                step *= 2  # where the machine is busy, the batch does not come in a shorter one
        ahead.append((context, convert.ahead > before))
    assert ahead == [("everywhere", True), ("here alone", False), (None, False), ("everywhere", True)]


def test_what_could_not_be_made_ahead_for_a_while_is_made_ahead_again(
    rows: pydp2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program changed for a moment what values depend on everywhere."""
    monkeypatch.setattr(look_ahead, "_SKIPPED_STEPS", 2)
    convert, asked = Converter(), [0]

    def context() -> int:
        is_first = threading.get_ident() != convert.mine and asked[0] < 3
        asked[0] += is_first
        return int(is_first)

    for _ in FrameworkLoader(rows, convert, context=context):
        long_step(rows)
    assert asked[0] == 3
    assert convert.ahead


def test_values_that_were_made_ahead_go_with_the_pass(rows: pydp2.Client) -> None:
    """Whoever leaves a pass may wait for long before the next one."""
    made: list[weakref.ref[set[int]]] = []

    def convert(batch: pydp2.Batch) -> set[int]:
        value = {batch.index}
        made.append(weakref.ref(value))
        return value

    data = FrameworkLoader(rows, convert, context=lambda: 0)
    steps, taken = iter(data), 0
    while len(made) == taken:
        next(steps)
        taken += 1
        long_step(rows)
    assert [each for each in made if each() is not None], "one is ahead"
    steps.close()  # type: ignore[attr-defined]  # it is a loop
    assert wait_until(lambda: not [each for each in made if each() is not None])


def test_the_thread_is_not_woken_for_what_it_cannot_convert(
    provider_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small batches come together, so in most steps there is nothing else to do for it."""
    given: list[float] = []
    give = LookAhead.give

    def noted(self: LookAhead, work: Callable[[], None], *, delay: float = 0.0) -> None:
        given.append(delay)
        give(self, work, delay=delay)

    monkeypatch.setattr(LookAhead, "give", noted)
    counts: dict[str, int] = {}
    contexts = {"none": None, "not now": lambda: None, "not there": threading.get_ident}
    with pydp2.load(["a"], provider_file(ROWS.replace("WIDTH", "4")), **ROWS_OPTIONS) as client:
        list(client)
        for name, context in contexts.items():
            given.clear()
            for _ in FrameworkLoader(client, lambda batch: batch.index, context=context):
                time.sleep(STEP)
            counts[name] = len(given)
    assert set(counts) == set(contexts)
    assert max(counts.values()) < 30, "of 125 steps each"


def test_after_an_interruption_nothing_is_made_ahead_for_a_loop_that_converts_otherwise(rows: pydp2.Client) -> None:
    convert, other = Converter(), Converter()

    def interrupted(batch: pydp2.Batch) -> Any:
        if not convert.threads:
            convert.threads.append(threading.get_ident())
            raise KeyboardInterrupt
        return convert(batch)

    data = FrameworkLoader(rows, interrupted, context=lambda: 0)
    with pytest.raises(KeyboardInterrupt):
        next(iter(data))
    for _ in data.iterate(other):
        long_step(rows)
    assert len(convert.threads) == 1
    assert not other.ahead


def test_a_conversion_that_raises_ahead_is_done_again_by_the_call(rows: pydp2.Client) -> None:
    convert = Converter(fails=True)
    for number, (index, *_) in enumerate(FrameworkLoader(rows, convert, context=lambda: 0)):
        assert number == index
        long_step(rows)
    assert convert.ahead
