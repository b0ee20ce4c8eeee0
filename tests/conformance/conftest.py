"""What the tests of the semantics share: providers written as users write them, run by a real service."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pydp2

Deliver = Callable[..., list[list[pydp2.Batch]]]

NUMBERS = """
def hook(settings, log=None, **kwargs):
    settings.log = log

def note(settings, *words):
    if settings.log:
        with open(settings.log, "a") as log:
            log.write(" ".join(map(str, words)) + "\\n")

@provider(input_types=[integer_value(1_000_000_000)], init_hook=hook, {arguments})
def process(settings, filename):
    note(settings, "open", filename)
    with open(filename) as lines:
        for line in lines:
            yield int(line)
    note(settings, "end", filename)
"""


@pytest.fixture
def deliver(provider_file: Callable[..., str]) -> Deliver:
    """``deliver(code, files, passes=1, **options)``: the batches of each pass over ``files``, from a service with two
    workers whose provider is ``code``. Shuffling is off unless ``is_train=True`` or ``shuffle=True`` is given."""

    def run(
        code: str, files: Sequence[str] | str | Path = ("f",), passes: int = 1, **options: Any
    ) -> list[list[pydp2.Batch]]:
        given = {"batch_size": 100, "workers": 2, "is_train": False} | options
        with pydp2.load(files, provider_file(code), **given) as data:
            return [list(data) for _ in range(passes)]

    return run


@pytest.fixture
def numbers() -> Callable[..., str]:
    """``numbers("pool_size=4")``: code of a provider of one integer a line, with these arguments. With ``args`` that
    hold a ``log``, it writes there which files it opened and which it read to their end."""
    return lambda arguments="": NUMBERS.replace("{arguments}", arguments)


@pytest.fixture
def flat() -> Callable[[Sequence[pydp2.Batch]], list[int]]:
    """``flat(batches)``: the integers of the first slot, one batch after the other."""
    return lambda batches: [int(x) for batch in batches for x in batch[0]]


@pytest.fixture
def exact() -> Callable[[Sequence[pydp2.Batch]], list[tuple[int, ...]]]:
    """``exact(batches)``: what there is to compare in batches: index, rows, size, pool weight, CRC of the data."""

    def one(batch: pydp2.Batch) -> tuple[int, ...]:
        crc = 0
        for value in batch:
            for array in _arrays(value):
                crc = zlib.crc32(np.ascontiguousarray(array), crc)
        return batch.index, len(batch), batch.size, batch.pool_weight, crc

    return lambda batches: [one(batch) for batch in batches]


@pytest.fixture
def until_error() -> Callable[..., tuple[list[pydp2.Batch], BaseException | None]]:
    """``until_error(data, each)``: the batches of the next pass and what ended it, None for its end. ``each`` is called
    with every batch as it comes."""

    def run(
        data: pydp2.Client, each: Callable[[pydp2.Batch], object] = len
    ) -> tuple[list[pydp2.Batch], BaseException | None]:
        batches = []
        try:
            for batch in data:
                batches.append(batch)
                each(batch)
        except pydp2.errors.Error as error:
            return batches, error
        return batches, None

    return run


def _arrays(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, pydp2.Ragged):
        nested = value.sub_sequence_start_positions
        return [*_arrays(value.values), value.sequence_start_positions, *([] if nested is None else [nested])]
    if isinstance(value, pydp2.Csr):
        return [value.indptr, value.indices, *([] if value.values is None else [value.values])]
    return [value]
