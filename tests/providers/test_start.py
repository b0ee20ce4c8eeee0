"""A provider with a parameter ``start`` begins at any sample, and draws the random numbers that a whole reading did."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies

from pydp2 import dense_vector, integer_value, provider, rows
from pydp2.errors import OptionTypeError
from pydp2.providers.local_reader import LocalReader
from pydp2.providers.started_provider import StartedProvider

SAMPLES = 40


@provider(input_types={"y": integer_value(1000), "drawn": dense_vector(3, dtype=np.float64)})
def draws(settings: Any, filename: str, start: int) -> Any:
    for y in range(start, SAMPLES):
        for _ in range(y % 3):  # as many as the sample needs
            random.random()
        yield {"y": y, "drawn": [random.random(), settings.rng.random(), np.random.random()]}


@provider(input_types={"y": integer_value(1000)})
def selects(settings: Any, filename: str, start: int, indices: Any) -> Any:
    for y in range(start, SAMPLES) if indices is None else indices.tolist():
        yield {"y": y}


def values(started: StartedProvider, **more: Any) -> list[Any]:
    opened = started.open_file("file", file_index=3, seed=7, pass_id=1, **more)
    try:
        return list(opened)
    finally:
        opened.close()


@given(start=strategies.integers(0, SAMPLES))
def test_a_start_gives_the_samples_and_the_random_numbers_of_a_whole_reading(start: int) -> None:
    started = draws.start()
    assert values(started, start=start) == values(started)[start:]


def test_each_sample_has_random_numbers_of_its_own() -> None:
    drawn = [number for sample in values(draws.start()) for number in sample["drawn"]]
    assert len(set(drawn)) == 3 * SAMPLES


def test_files_that_are_open_together_draw_what_each_draws_alone() -> None:
    started = draws.start()
    both = [started.open_file("file", file_index=number, seed=7, pass_id=1) for number in (3, 4)]
    turns = [[next(opened) for opened in both] for _ in range(SAMPLES)]
    assert [turn[0] for turn in turns] == values(started)
    assert turns[0][0]["drawn"] != turns[0][1]["drawn"]
    for opened in both:
        opened.close()


def test_the_numbers_of_a_yield_of_many_samples_are_those_of_its_first() -> None:
    @provider(input_types=[dense_vector(1, dtype=np.float64)])
    def blocks(settings: Any, filename: str, start: int) -> Any:
        for _first in range(start, 12, 4):
            yield rows(settings.rng.random((4, 1)))

    started = blocks.start()
    assert np.array_equal(values(started, start=4), values(started)[4:])


def test_only_chosen_samples_are_yielded_if_process_takes_indices() -> None:
    started = selects.start()
    assert started.can_select
    assert [sample["y"] for sample in values(started, start=3, indices=np.array([3, 5, 9]))] == [3, 5, 9]
    assert len(values(started)) == SAMPLES


def test_a_provider_of_two_parameters_cannot_start() -> None:
    @provider(input_types=[integer_value(2)])
    def plain(settings: Any, filename: str) -> Any:
        yield 1

    assert not plain.start().can_start
    assert draws.start().can_start
    assert not draws.start().can_select


def test_a_local_reader_numbers_samples_from_the_start() -> None:
    started = draws.start()
    reader = LocalReader(started, started.open_file("file", file_index=0, seed=0, pass_id=0, start=38), count=8)
    assert [samples.indices for samples in reader] == [[38, 39]]
    assert reader.drawn == SAMPLES
    reader.close()


def test_closing_runs_the_finally_blocks_of_the_generator() -> None:
    closed = []

    @provider(input_types=[integer_value(2)])
    def process(settings: Any, filename: str, start: int) -> Any:
        try:
            yield 1
        finally:
            closed.append(filename)

    opened = process.start().open_file("file", file_index=0, seed=0, pass_id=0)
    next(opened)
    opened.close()
    assert closed == ["file"]


def test_another_third_parameter_is_refused_with_what_a_provider_may_take() -> None:
    with pytest.raises(
        OptionTypeError, match=r"\(settings, filename, start\) if it can begin at any sample; .* offset"
    ):

        @provider(input_types=[integer_value(2)])
        def process(settings: Any, filename: str, offset: int) -> Any:
            yield offset


def test_indices_without_start_are_refused() -> None:
    with pytest.raises(OptionTypeError, match="needs start before it"):

        @provider(input_types=[integer_value(2)])
        def process(settings: Any, filename: str, indices: Any) -> Any:
            yield 1
