"""The loader that all adapters share: its passes, its states, and what ends with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pydp2
from pydp2.errors import ClientUseError
from pydp2.frameworks.loader import FrameworkLoader
from tests.runs import NUMBERS

FILES = [str(n) for n in range(8)]
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 5}


def index(batch: pydp2.Batch) -> int:
    return batch.index


@pytest.fixture
def provider(provider_file: Callable[[str], str]) -> str:
    return provider_file(NUMBERS)


def test_the_state_behind_values_that_were_taken_is_the_one_of_that_time(provider: str) -> None:
    with FrameworkLoader(pydp2.load(FILES, provider, workers=1, **OPTIONS), index) as data:
        then = {number: data.state_dict() for number, _ in enumerate(data, 1)}
        assert {number: data.state_dict(taken=number) for number in then} == then
        for taken in (0, len(then) + 1):
            with pytest.raises(ClientUseError, match=f"behind value {taken}"):
                data.state_dict(taken=taken)


def test_where_a_framework_reads_ahead_only_the_number_that_was_taken_gives_a_state(provider: str) -> None:
    with FrameworkLoader(pydp2.load(FILES, provider, workers=1, **OPTIONS), index) as data:
        ahead = data.iterate(index, reads_ahead=True)
        assert [next(ahead), next(ahead), next(ahead)] == [0, 1, 2]
        with pytest.raises(ClientUseError, match="taken="):
            data.state_dict()
        state = data.state_dict(taken=1)
        ahead.close()  # type: ignore[attr-defined]  # it is a generator
        data.load_state_dict(state)
        assert next(iter(data)) == 1


def test_a_service_that_was_given_outlives_the_loader(provider: str) -> None:
    with pydp2.launch(FILES, provider, workers=1) as service:
        for _ in range(2):
            with FrameworkLoader(service.connect(**OPTIONS), index) as data:
                assert next(iter(data)) == 0
