"""What a framework's own loader gets of pydp2 in its worker processes, whichever framework it is.

In turn, workers give the batches of one client, from any step on. Each test here runs for the workers of each framework
that is installed, and for shares that are read in turn in this process.
"""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any, Protocol

import numpy as np
import pytest

import pydp2
from pydp2.errors import OptionError, OptionTypeError, ProviderError, StateMismatch
from pydp2.frameworks.shared_service import Ranks
from pydp2.frameworks.worker_passes import WorkerPasses
from tests.conftest import nothing_stays
from tests.provider_code import numbers
from tests.runs import NUMBERS, NUMBERS_OPTIONS, wait_until

from .conftest import FILES, in_turn

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("framework workers")]
Samples = list[int]
Passes = list[list[Samples]]
Step = tuple[Samples, Any]
_numbers = count()


class Reader(Protocol):
    """A dataset of pydp2 under a framework's loader with some number of workers."""

    def read(self) -> Iterator[Step]:
        """One pass: samples of each step, and the state behind it."""

    def load(self, state: Any, **allow: Any) -> None: ...

    def close(self) -> None: ...


class InTurn:
    """Shares of a pass, read in turn in this process, as a framework's loader takes them from its workers."""

    def __init__(self, source: Any, provider: Any, workers: int, *, rank: int = 0, world_size: int = 1, **options: Any):
        ranks = Ranks(rank, world_size, world_size, "run")
        self.passes = WorkerPasses(source, provider, ranks, **{"job": "in turn"} | options)
        self.workers = workers
        self.load, self.close = self.passes.load_state_dict, self.passes.close

    def read(self) -> Iterator[Step]:
        return in_turn(self.passes, self.workers)


class OfTorch:
    """A StatefulDataLoader of torchdata, which has the states of its workers."""

    def __init__(self, source: Any, provider: Any, workers: int, **options: Any) -> None:
        import pydp2.torch

        loaders: Any = pytest.importorskip("torchdata.stateful_dataloader")
        self.dataset = pydp2.torch.dataset(source, provider, **options)
        self.steps = loaders.StatefulDataLoader(self.dataset, batch_size=None, num_workers=workers)

    def read(self) -> Iterator[Step]:
        for step in self.steps:
            yield step[0].tolist(), self.steps.state_dict()

    def load(self, state: Any, **allow: Any) -> None:
        if allow:  # the state of one worker, which reads in this process
            self.dataset.load_state_dict(state["dataset_state"], **allow)
        else:
            self.steps.load_state_dict(state)

    def close(self) -> None:
        del self.steps
        gc.collect()
        self.dataset.close()


class OfPaddle:
    """Paddle's DataLoader, whose batches carry their states."""

    def __init__(self, source: Any, provider: Any, workers: int, **options: Any) -> None:
        import paddle

        import pydp2.paddle

        self.dataset = pydp2.paddle.dataset(source, provider, state="state", **options)
        self.steps = paddle.io.DataLoader(self.dataset, batch_size=None, num_workers=workers)
        self.load, self.close = self.dataset.load_state_dict, self.dataset.close

    def read(self) -> Iterator[Step]:
        for step in self.steps:
            yield np.asarray(step[0]).tolist(), self.dataset.state_dict(step)


@dataclass(frozen=True)
class Kind:
    name: str
    needs: str | None
    make: Callable[..., Reader]
    workers: tuple[int, ...]

    @contextmanager
    def open(self, source: Any, provider: Any = None, *, workers: int, **options: Any) -> Iterator[Reader]:
        if isinstance(source, pydp2.Service):
            options = {"job": f"workers {next(_numbers)}", **NUMBERS_OPTIONS} | options
            source = source.address
        made = self.make(source, provider, workers, **options)
        try:
            yield made
        finally:
            made.close()


KINDS = [
    Kind("in turn", None, InTurn, (1, 2, 3)),
    Kind("torch", "torch", OfTorch, (0, 1, 2, 3)),
    Kind("paddle", "paddle", OfPaddle, (0, 1, 2, 3)),
]
INSTALLED = [kind for kind in KINDS if kind.needs is None or importlib.util.find_spec(kind.needs) is not None]
with_workers = pytest.mark.parametrize(
    ("kind", "workers"),
    [pytest.param(kind, workers, id=f"{kind.name}-{workers}") for kind in INSTALLED for workers in kind.workers],
)
with_two = pytest.mark.parametrize("kind", INSTALLED, ids=lambda kind: kind.name)


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """torch and Paddle keep descriptors and threads of their own, but no workers."""
    if request.node.callspec.params["kind"].needs is None:
        with nothing_stays():
            yield
        return
    yield
    gc.collect()
    if not wait_until(lambda: not multiprocessing.active_children()):
        for child in multiprocessing.active_children():  # Paddle keeps the workers of a loop that was left
            child.kill()
            child.join()


def load_and_read(reader: Reader, state: Any) -> Step:
    """Some loaders look at a state where it is loaded, others where the first step is asked for."""
    reader.load(state)
    return next(reader.read())


@with_workers
def test_the_order_is_that_of_one_client_and_no_pass_is_lost_or_read_twice(
    kind: Kind, workers: int, service: pydp2.Service, expected: Passes
) -> None:
    with kind.open(service, workers=workers) as reader:
        for epoch in range(3):
            assert [step for step, _ in reader.read()] == expected[epoch]


@with_workers
def test_the_state_behind_any_step_goes_on_there(
    kind: Kind, workers: int, service: pydp2.Service, expected: Passes
) -> None:
    with kind.open(service, workers=workers) as reader:
        states = [state for _, state in reader.read()]
    for done in (1, 2, len(states) // 2, len(states) - 1):
        with kind.open(service, workers=workers) as reader:
            reader.load(states[done - 1])
            assert [step for step, _ in reader.read()] == expected[0][done:]
            assert [step for step, _ in reader.read()] == expected[1]


@with_two
@pytest.mark.parametrize("workers", [2, 4])
def test_batches_that_are_padding_alone_are_left_out_as_a_loader_has_none(
    kind: Kind, workers: int, service: pydp2.Service, expected: Passes
) -> None:
    assert len(expected[0]) % workers, "else none is made up"
    with kind.open(service, workers=workers, last_batch="pad") as reader:
        for epoch in range(2):
            found = [step for step, _ in reader.read()]
            assert [step[: len(real)] for step, real in zip(found, expected[epoch], strict=True)] == expected[epoch]


@with_two
def test_states_are_loaded_again_and_again(kind: Kind, service: pydp2.Service, expected: Passes) -> None:
    with kind.open(service, workers=2) as reader:
        states = [state for _, state in islice(reader.read(), 8)]
        for done in (7, 3, 6, 3):
            reader.load(states[done - 1])
            assert [step for step, _ in islice(reader.read(), 4)] == expected[0][done : done + 4]
        reader.load(states[4])
        assert [step for step, _ in reader.read()] == expected[0][5:]


@with_two
def test_a_pass_that_is_left_is_followed_by_the_next(kind: Kind, service: pydp2.Service, expected: Passes) -> None:
    with kind.open(service, workers=2) as reader:
        assert [step for step, _ in islice(reader.read(), 1)] == expected[0][:1]
        gc.collect()
        assert [step for step, _ in reader.read()] == expected[1]


@with_two
def test_the_share_of_each_rank_does_not_depend_on_the_number_of_its_workers(
    kind: Kind, service: pydp2.Service, expected: Passes
) -> None:
    found = {}
    for workers in (1, 2):
        job = f"ranks {next(_numbers)}"
        ranks = [kind.open(service, workers=workers, rank=rank, world_size=2, job=job) for rank in range(2)]
        with ranks[0] as first, ranks[1] as second:
            steps = list(zip(first.read(), second.read(), strict=True))
        found[workers] = [rank[0] for step in steps for rank in step]
        missing = set(map(tuple, expected[0][:-1])) - set(map(tuple, found[workers]))
        assert not missing, "of those that nothing was added to"
    assert found[2][: len(expected[0]) - 1] == found[1][: len(expected[0]) - 1] == expected[0][:-1]


@with_two
def test_changed_code_that_yields_the_same_samples_is_allowed_in_all_workers(
    kind: Kind, provider_file: Callable[[str], str], expected: Passes
) -> None:
    options: dict[str, Any] = {"workers": 1 if kind.needs is None else 0, "provider": provider_file(NUMBERS)}
    make = partial(kind.open, FILES, **NUMBERS_OPTIONS)
    with make(**options) as reader:
        states = [state for _, state in islice(reader.read(), 4)]
    provider_file(NUMBERS + "# a comment\n")
    with make(**options) as reader, pytest.raises(StateMismatch, match=r'pass allow=\["provider_source"\]'):
        load_and_read(reader, states[-1])
    with make(**options) as reader:
        reader.load(states[-1], allow=["provider_source"])
        assert [step for step, _ in reader.read()] == expected[0][4:]
        assert [step for step, _ in reader.read()] == expected[1]


@with_two
@pytest.mark.parametrize("is_alone", [True, False])
def test_an_error_of_the_data_is_raised_where_its_step_is_asked_for(
    kind: Kind, is_alone: bool, provider_file: Callable[[str], str]
) -> None:
    """A framework's loader alone may wait for ever."""
    broken = provider_file(numbers(100, "should_shuffle=False", before="if i == 60: raise KeyError('nothing there')"))
    workers = kind.workers[0] if is_alone else 2
    with kind.open(["a"], broken, workers=workers, batch_size=16) as reader:
        steps = reader.read()
        assert [samples for samples, _ in islice(steps, 3)] == [[*range(n, n + 16)] for n in (0, 16, 32)]
        with pytest.raises(ProviderError, match="file a, sample 60: process raised KeyError"):
            next(steps)
        steps.close()  # type: ignore[attr-defined]  # it is a generator
        del steps


@with_two
def test_what_cannot_be_read_is_refused(kind: Kind, provider: str) -> None:
    refusal = pytest.raises((OptionError, OptionTypeError), match="batch_size")
    for options in ({"batch_size": 0}, {"batchsize": 4}):
        with refusal, kind.open(FILES, provider, workers=kind.workers[0], **options) as reader:
            next(reader.read())
    with (
        pydp2.load(FILES, provider, **NUMBERS_OPTIONS, workers=1) as client,
        pytest.raises((OptionError, OptionTypeError), match="address"),
    ):
        kind.make(client, None, 2)
