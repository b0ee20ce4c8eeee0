"""What the tests of ranks and their peers share: a service over files that are numbers, and its pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import pydp2
from tests.runs import NUMBERS, Numbered, numbered
from tests.runs import NUMBERS_OPTIONS as OPTIONS

FILES = [str(n) for n in range(12)]


@pytest.fixture
def address(provider_file: Callable[[str], str]) -> str:
    return provider_file(NUMBERS)


@pytest.fixture
def service(address: str) -> Iterator[pydp2.Service]:
    with pydp2.launch(FILES, address, workers=2) as service:
        yield service


@pytest.fixture
def alone(address: str) -> list[Numbered]:
    """The pass as one trainer sees it."""
    with pydp2.load(FILES, address, workers=2, **OPTIONS) as data:
        return [numbered(batch) for batch in data]
