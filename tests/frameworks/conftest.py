"""What the tests of loaders share: a service for those of a file, in which each stream is a job of its own, the passes
of workers in turn, and ranks that each have a machine of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

import pydp2
from pydp2.client.stream import Stream
from pydp2.frameworks.shared_service import Ranks
from pydp2.frameworks.worker_passes import WorkerPasses
from tests.runs import NUMBERS, NUMBERS_OPTIONS, processes, wait_until

FILES = [str(n) for n in range(8)]
HERE = "127.0.0.1:29500"
"""Where ranks reach a store on this machine."""
STEP = 0.004  # seconds of a step in which the next batch is converted
_epochs = count()


class DictStore:
    """A store in this process."""

    def __init__(self, endpoint: str = "") -> None:
        self.endpoint = endpoint
        self.texts: dict[str, str] = {}

    def put(self, key: str, text: str) -> None:
        self.texts[key] = text

    def take(self, key: str) -> str | None:
        return self.texts.get(key)


def of_machines(name: str, store: DictStore, world_size: int = 2) -> list[Ranks]:
    """Ranks that each run on a machine of their own."""
    return [Ranks(rank, world_size, 1, f"{name} {rank}", 0, store) for rank in range(world_size)]


def samples(batch: pydp2.Batch) -> list[int]:
    """The numbers of a batch, without what only fills it up."""
    found: list[int] = batch[0].tolist()
    return found[: len(batch) - batch.padding]


def long_step(client: Stream, seconds: float = STEP) -> None:
    """A step that lasts until the thread that prepares the next batch has come to it and is done."""
    time.sleep(seconds)
    ahead = client._session.look_ahead
    if ahead._is_asked_for:
        assert wait_until(lambda: bool(ahead._running) and (ahead._offer is None or ahead._offer.is_over))


def in_turn(passes: WorkerPasses, workers: int) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Give the batches of a pass as a loader with ``workers`` processes takes them, in this process."""
    epoch = f"epoch {next(_epochs)}"
    shares = [passes.read(worker, workers, epoch, with_state=True) for worker in range(workers)]
    try:
        while shares:
            for share in list(shares):
                try:
                    batch, state = next(share)
                except StopIteration:
                    shares.remove(share)
                else:
                    assert state is not None
                    yield samples(batch), state
    finally:
        for share in shares:
            share.close()


@contextmanager
def launched(files: Any, provider: str) -> Iterator[pydp2.Service]:
    """A service with one worker, and one that stands by: a process that came in the middle of a test would count as
    left behind by it."""
    before = len(processes("pydp2-worker"))
    with pydp2.launch(files, provider, workers=1) as service:
        assert wait_until(lambda: len(processes("pydp2-worker")) == before + 2)
        yield service


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("provider") / "prov.py"
    file.write_text("from pydp2 import *\n" + NUMBERS)
    return f"{file}:process"


@pytest.fixture(scope="module")
def service(provider: str) -> Iterator[pydp2.Service]:
    with launched(FILES, provider) as service:
        yield service


@pytest.fixture(scope="module")
def expected(provider: str) -> list[list[list[int]]]:
    """The samples of the batches of the first three passes, as a client has them."""
    with pydp2.load(FILES, provider, workers=1, **NUMBERS_OPTIONS) as data:
        return [[batch[0].tolist() for batch in data] for _ in range(3)]
