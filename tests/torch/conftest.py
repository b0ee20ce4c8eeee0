"""What the tests of torch share: torch itself, or they are skipped; the digits, and what a step got."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

import pytest
from pydp2_samples import path

torch: Any = pytest.importorskip("torch")
resource_tracker.ensure_running()  # of spawned workers, and of libraries; it ends with this process
DIGITS: dict[str, Any] = {"batch_size": 100, "seed": 7, "root": path("digits"), "workers": 1}
TRAIN = ("train.list", "digits_provider.process")


def digest(step: Any) -> str:
    """What a step got, in short."""
    return hashlib.blake2b(step["label"].numpy().tobytes() + step["pixel"].numpy().tobytes(), digest_size=6).hexdigest()


@pytest.fixture(autouse=True)
def _few_threads() -> Iterator[None]:
    """Torch does what is asked of it in this thread: threads of its own would stay behind."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def passes(_warm_starts: object) -> list[list[str]]:
    """What the steps of the first three passes over the digits get."""
    import pydp2.torch

    with pydp2.torch.loader(*TRAIN, **DIGITS) as data:
        return [[digest(step) for step in data] for _ in range(3)]


@pytest.fixture
def model() -> Callable[[], Any]:
    """``model()`` is a small classifier, always with the same weights."""

    def make() -> Any:
        torch.manual_seed(7)
        return torch.nn.Linear(64, 10)

    return make
