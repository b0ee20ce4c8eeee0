"""One service for the tests of a file: each stream over it is a job of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pydp2
from tests.runs import NUMBERS, NUMBERS_OPTIONS, eventually, processes

FILES = [str(n) for n in range(8)]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("provider") / "prov.py"
    file.write_text("from pydp2 import *\n" + NUMBERS)
    return f"{file}:process"


@pytest.fixture(scope="module")
def service(provider: str) -> Iterator[pydp2.Service]:
    with pydp2.launch(FILES, provider, workers=1) as service:
        # one of them stands by; a process that came in the middle of a test would count as left behind by it
        assert eventually(lambda: len(processes("pydp2-worker")) == 2)
        yield service


@pytest.fixture(scope="module")
def expected(provider: str) -> list[list[list[int]]]:
    """The samples of the batches of the first three passes, as a client has them."""
    with pydp2.load(FILES, provider, workers=1, **NUMBERS_OPTIONS) as data:
        return [[batch[0].tolist() for batch in data] for _ in range(3)]
