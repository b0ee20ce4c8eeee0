"""Jobs over the same files, and the stream that each of them has alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pydp2

FILES = [str(n) for n in range(12)]
PROVIDER = """
@provider(input_types=[integer_value(100000)], pool_size=200{arguments})
def process(settings, filename):
    with open({log!r}, "a") as log:
        log.write(filename + "\\n")
    for i in range(int(filename) * 29 % 97 + 20):
        {pause}
        yield int(filename) * 1000 + i
"""
JOBS: dict[str, dict[str, Any]] = {
    "train": {"batch_size": 16, "seed": 5},
    "eval": {"batch_size": 7, "seed": 6, "interleave": 3, "last_batch": "pad"},
    "peek": {"batch_size": 30, "shuffle": False},
}
Stream = list[list[int]]


class Data:
    """A provider over FILES, and how often it has read each."""

    def __init__(self, provider_file: Callable[..., str], log: Path) -> None:
        self._write, self._log = provider_file, log
        self._log.touch()

    def address(self, *, cached: bool = False, slow: bool = False) -> str:
        return self._write(
            PROVIDER.format(
                arguments=", cache=CacheType.CACHE_PASS_IN_MEM" if cached else "",
                log=str(self._log),
                pause="__import__('time').sleep(0.001)" if slow else "",
            ),
            name=f"prov_{'cached' if cached else 'plain'}_{'slow' if slow else 'fast'}",
        )

    def opened(self) -> Counter[str]:
        """How often each file was read since this was asked last."""
        found = Counter(self._log.read_text().split())
        self._log.write_text("")
        return found


@pytest.fixture
def data(provider_file: Callable[..., str], tmp_path: Path) -> Data:
    return Data(provider_file, tmp_path / "opened")


@pytest.fixture
def service(data: Data) -> Iterator[pydp2.Service]:
    with pydp2.launch(FILES, data.address(), workers=2) as service:
        yield service


@pytest.fixture
def cached(data: Data) -> Iterator[pydp2.Service]:
    """A service that keeps its files in memory."""
    with pydp2.launch(FILES, data.address(cached=True), workers=2) as service:
        yield service


def stream(client: pydp2.Client, passes: int = 2) -> Stream:
    """Whole passes."""
    return [batch[0].tolist() for _ in range(passes) for batch in client]


@pytest.fixture(scope="session")
def _streams(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Stream]]:
    """The stream of each job on a service of its own, without the cache and with it."""
    folder = tmp_path_factory.mktemp("alone")

    def write(code: str, name: str) -> str:
        path = folder / f"{name}.py"
        path.write_text("from pydp2 import *\n" + code)
        return f"{path}:process"

    found: dict[bool, dict[str, Stream]] = {False: {}, True: {}}
    for cached in found:
        address = Data(write, folder / "opened").address(cached=cached)
        for name, options in JOBS.items():
            with pydp2.load(FILES, address, workers=2, **options) as client:
                found[cached][name] = stream(client)
    return found


@pytest.fixture
def alone(_streams: dict[bool, dict[str, Stream]]) -> dict[str, Stream]:
    return _streams[False]


@pytest.fixture
def alone_cached(_streams: dict[bool, dict[str, Stream]]) -> dict[str, Stream]:
    return _streams[True]
