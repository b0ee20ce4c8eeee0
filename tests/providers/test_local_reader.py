"""One reader of files without a service: what it finds, and that all that read through it say the same of a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pydp2
from pydp2 import dense_vector, integer_value, provider
from pydp2.errors import Error
from pydp2.providers import StartedProvider
from pydp2.providers.local_reader import LocalReader

TYPES = [integer_value(10), dense_vector(1)]


def started(*samples: Any, **options: Any) -> StartedProvider:
    """A provider that yields ``samples``, and raises those that are exceptions."""

    @provider(input_types=TYPES, **options)
    def process(settings: Any, filename: str) -> Any:
        for sample in samples:
            if isinstance(sample, Exception):
                raise sample
            yield sample

    return process.start()


def reader(running: StartedProvider, **options: Any) -> LocalReader:
    return LocalReader(running, running.open_file("f", file_index=0, seed=0, pass_id=0), **options)


GOOD, LATE, EARLY = (1, [0.5]), (10, [0.5]), (1, [])  # a bad number is found with others, a bad length at once


@pytest.mark.parametrize("count", [1, 2, 100])
def test_good_samples_and_errors_are_the_same_however_many_are_judged_together(count: int) -> None:
    running = started(GOOD, LATE, EARLY, GOOD, LATE, OSError("gone"), GOOD)
    lots = list(reader(running, count=count))
    assert [index for lot in lots for index in lot.indices] == [0, 3]
    errors = [(index, type(error).__name__) for lot in lots for index, error in lot.errors]
    assert errors == [(1, "BadSample"), (2, "BadSample"), (4, "BadSample"), (5, "OSError")]
    assert [lot.raised for lot in lots] == [False] * (len(lots) - 1) + [True]
    assert sum(lot.packed.columns.rows for lot in lots) == 2
    assert len(lots) == {1: 6, 2: 3, 100: 1}[count]


def test_no_more_is_drawn_than_is_asked_for_and_the_position_is_that_of_the_next_sample() -> None:
    position = [0]
    read = reader(started(GOOD, GOOD, OSError()), limit=2, position=position)
    assert next(read).indices == [0]
    assert position == [1]
    assert [lot.indices for lot in read] == [[1]]
    assert read.drawn == 2


def test_a_sample_without_a_weight_is_an_error_and_has_no_row() -> None:
    running = started((1, [0.5]), (0, [0.5]), (2, [0.5]), calc_batch_size=lambda sample: 6 // sample[0])
    (lot,) = reader(running, count=10)
    assert (lot.indices, lot.weights, lot.packed.columns.rows) == ([0, 2], [6, 3], 2)
    assert "calc_batch_size raised ZeroDivisionError" in str(lot.errors[0][1])


WRONG = {
    "number": "(10, [0.5])",
    "length": "(1, [])",
    "type": "('one', [0.5])",
    "how many": "(1,)",
    "raises": "(Odd(), [0.5])",
    "process": "1 // 0",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_whatever_reads_a_file_says_the_same_of_a_sample(wrong: str, provider_file: Callable[[str], str]) -> None:
    address = provider_file(
        f"""
        class Odd:
            def __index__(self):
                raise KeyError("odd")
        @provider(input_types=[integer_value(10), dense_vector(1)])
        def process(settings, filename):
            yield 1, [0.5]
            yield {WRONG[wrong]}
        """
    )
    process = pydp2.providers.resolve(address)
    with pytest.raises(Error) as raised:
        list(process.samples("f"))
    with pytest.raises(Error) as delivered, pydp2.load(["f"], address, batch_size=4, workers=1) as data:
        list(data)
    seen = pydp2.peek(["f"], address).error
    (found,) = pydp2.check(["f"], address, repeat=False).findings
    first_lines = {str(error).splitlines()[0] for error in (raised.value, delivered.value, seen, found.text)}
    assert len(first_lines) == 1, first_lines
    assert type(raised.value).__name__ == type(seen).__name__ == type(delivered.value).__name__
