"""A dataset under torch's DataLoader: the order of a loader, whatever the number of workers."""

from __future__ import annotations

import copy
import gc
import time
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

import pydp2.torch  # noqa: E402
from pydp2.errors import ClientUseError  # noqa: E402
from tests.provider_code import numbers  # noqa: E402
from tests.torch.conftest import DIGITS, TRAIN, digest  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:'set_vital' is deprecated")


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (2, True), (3, False)])
def test_the_order_is_that_of_a_loader_and_no_epoch_is_lost_or_read_twice(
    passes: list[list[str]], workers: int, persistent: bool
) -> None:
    with pydp2.torch.dataset(*TRAIN, **DIGITS) as dataset:
        steps = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=persistent)
        assert [[digest(step) for step in steps] for _ in range(2)] == passes[:2]
        for _ in steps:
            break  # of the third
        for epoch in (0, 2):
            dataset.set_epoch(epoch)
            assert [digest(step) for step in steps] == passes[epoch]
        del steps


def test_the_processes_of_a_spawned_loader_find_the_service(passes: list[list[str]]) -> None:
    with pydp2.torch.dataset(*TRAIN, **DIGITS) as dataset:
        assert copy.deepcopy(dataset)._shares._end is None, "it travels without the service"
        steps = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
        assert [digest(step) for step in steps] == passes[0]
        del steps


def test_a_state_of_the_main_process_is_not_loaded_by_each_worker_in_each_epoch(passes: list[list[str]]) -> None:
    with pydp2.torch.dataset(*TRAIN, **DIGITS) as dataset:
        values = iter(DataLoader(dataset, batch_size=None, num_workers=0))
        for _ in range(5):
            next(values)
        state = dataset.state_dict()
        del values
        dataset.load_state_dict(state)
        through = iter(DataLoader(dataset, batch_size=None, num_workers=2))
        with pytest.raises(ClientUseError, match="a state was loaded in the process of the DataLoader") as raised:
            next(through)
        del through, raised
        gc.collect()
        assert [digest(step) for step in DataLoader(dataset, batch_size=None, num_workers=0)] == passes[0][5:]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stateful_loader_that_is_left_is_followed_by_the_next_pass_at_once(
    passes: list[list[str]], workers: int
) -> None:
    """It still has the workers of the iterator before when it starts those of the next one."""
    loaders: Any = pytest.importorskip("torchdata.stateful_dataloader")
    with pydp2.torch.dataset(*TRAIN, **DIGITS) as dataset:
        steps = loaders.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)
        began = time.monotonic()
        for epoch in range(3):
            for done, step in enumerate(steps):
                assert digest(step) == passes[epoch][done]
                if done == 3:
                    break
        assert time.monotonic() - began < 25, "as long as a lease, it would have waited for the older ones"
        del steps


def test_bounds_of_buckets_that_workers_found_are_those_of_the_next_passes(tmp_path: Path) -> None:
    (tmp_path / "lengths.py").write_text(
        "from pydp2 import integer_value_sequence, provider\n"
        "@provider(input_types={'words': integer_value_sequence(10)}, pool_size=16)\n"
        "def process(settings, filename):\n"
        "    for i in range(30):\n"
        "        yield {'words': [1] * (int(filename) * 10 + i % 7 + 1)}\n"
    )
    source = [str(number) for number in range(10)], str(tmp_path / "lengths.py") + ":process"
    options: dict[str, Any] = {
        "batch_size": 4, "seed": 1, "bucket_by": 0, "num_buckets": 3, "last_batch": "pad", "workers": 1,
    }  # fmt: skip

    def shapes(steps: Any) -> list[Any]:
        return [tuple(step["words"].values.shape) for step in steps]

    def steps_of(dataset: Any, *, persistent: bool) -> Any:
        return DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)

    with pydp2.torch.dataset(*source, pad=0, **options) as dataset:
        steps = steps_of(dataset, persistent=True)  # one job, which knows the bounds
        shapes(steps)
        expected = shapes(steps)
        del steps
    with pydp2.torch.dataset(*source, pad=0, **options) as dataset:
        steps = steps_of(dataset, persistent=False)
        for _ in steps:
            break
        assert shapes(steps) == expected
        del steps


def test_the_main_process_has_no_state_of_what_workers_read(passes: list[list[str]]) -> None:
    with pydp2.torch.dataset(*TRAIN, **DIGITS) as dataset:
        steps = DataLoader(dataset, batch_size=None, num_workers=2)
        assert len(dataset) == len(passes[0])
        before = dataset.state_dict()
        for done, step in enumerate(steps):
            assert digest(step) == passes[0][done]
            with pytest.raises(ClientUseError, match="only they know how far they are: take the state of torchdata's"):
                dataset.state_dict()
        dataset.set_epoch(0)
        assert dataset.state_dict()["now"]["batch"] == before["now"]["batch"] == 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [3, 14, 15])
def test_a_state_before_the_first_step_of_an_epoch_begins_that_epoch(
    passes: list[list[str]], workers: int, done: int
) -> None:
    """Whatever the workers, which stay, have had of the epoch before."""
    loaders: Any = pytest.importorskip("torchdata.stateful_dataloader")

    def loader_of(dataset: Any) -> Any:
        stay = workers > 0
        return loaders.StatefulDataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=stay)

    states = []
    with pydp2.torch.dataset(*TRAIN, **DIGITS) as dataset:
        steps = loader_of(dataset)
        for number, _ in enumerate(steps, 1):
            if number == done:
                break
        values = iter(steps)
        for _ in range(2):
            states.append(steps.state_dict())
            next(values)
        del steps, values
        for taken, state in enumerate(states):
            steps = loader_of(dataset)
            steps.load_state_dict(state)
            assert [digest(step) for step in steps] == passes[1][taken:]
            del steps


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_that_stay_go_to_any_epoch(passes: list[list[str]], workers: int) -> None:
    loaders: Any = pytest.importorskip("torchdata.stateful_dataloader")
    with pydp2.torch.dataset(*TRAIN, **DIGITS) as dataset:
        stay = workers > 0
        steps = loaders.StatefulDataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=stay)
        for epoch in (0, 0):
            dataset.set_epoch(epoch)
            assert [digest(step) for step in steps] == passes[epoch]
        if not workers:
            dataset.set_epoch(0)
            assert dataset.state_dict()["now"]["pass"] == 0
        del steps


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_a_loader_that_has_just_gone_on_has_the_state_of_its_step(passes: list[list[str]], workers: int) -> None:
    """Although not all of its workers have given a batch."""
    loaders: Any = pytest.importorskip("torchdata.stateful_dataloader")
    done = 5
    with pydp2.torch.dataset(*TRAIN, **DIGITS) as dataset:
        steps = loaders.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)
        values = iter(steps)
        for _ in range(done):
            next(values)
        for more in range(3):
            state = steps.state_dict()
            del steps, values  # with the workers, whose places in the job are taken as long
            steps = loaders.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)
            steps.load_state_dict(state)
            values = iter(steps)
            for taken in range(more):
                assert digest(next(values)) == passes[0][done + taken]
            done += more
        assert [digest(step) for step in values] == passes[0][done:]
        del steps, values


@pytest.mark.parametrize("is_open", [False, True])
def test_a_state_that_was_loaded_is_that_of_the_dataset_before_it_is_used(
    passes: list[list[str]], is_open: bool
) -> None:
    with pydp2.torch.dataset(*TRAIN, **DIGITS) as dataset:
        dataset.set_epoch(1)
        values = iter(DataLoader(dataset, batch_size=None))
        for _ in range(5):
            next(values)
        state = dataset.state_dict()
        del values
    with pydp2.torch.dataset(*TRAIN, **DIGITS) as dataset:
        steps = DataLoader(dataset, batch_size=None)
        assert not is_open or len(steps) == len(passes[0])
        dataset.load_state_dict(state)
        assert dataset.state_dict() == state
        dataset.set_epoch(1)
        assert dataset.state_dict() == state
        iter(steps)
        assert dataset.state_dict()["now"] == state["now"], "nothing was asked for yet"
        assert [digest(step) for step in steps] == passes[1][5:]
        for epoch, warns in ((2, False), (0, True)):
            dataset.load_state_dict(state)
            if warns:
                with pytest.warns(UserWarning, match=r"set_epoch\(0\) drops the state .* in pass 1"):
                    dataset.set_epoch(epoch)
            else:
                dataset.set_epoch(epoch)
            assert [dataset.state_dict()["now"][key] for key in ("pass", "batch")] == [epoch, 0]
            assert [digest(step) for step in steps] == passes[epoch]


def test_a_loop_that_was_left_needs_no_state_where_the_order_is_relaxed() -> None:
    with pydp2.torch.dataset(*TRAIN, **DIGITS, order="relaxed") as dataset:
        steps = DataLoader(dataset, batch_size=None)
        for _ in range(2):
            for _ in steps:
                break
        for _ in steps:
            pass
        assert [dataset.state_dict()["now"][key] for key in ("pass", "batch")] == [3, 0]


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"shuffle": True}])
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (pydp2.load, r"use pydp2\.torch\.loader\(…\) in place of the DataLoader"),
        (pydp2.torch.loader, "takes the place of a DataLoader, and needs none around it"),
    ],
)
def test_a_data_loader_over_what_is_no_dataset_says_what_to_write(
    kind: Any, says: str, options: dict[str, Any]
) -> None:
    with kind(*TRAIN, **DIGITS) as data:
        count = sum(1 for _ in data)
        with pytest.raises(TypeError, match=says):
            next(iter(DataLoader(data, **options)))
        assert sum(1 for _ in data) == count, "it is iterated as before"


def test_a_data_loader_over_a_client_of_unknown_length_says_so_too(tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text(
        "from pydp2 import integer_value, provider\n"
        "@provider(input_types=[integer_value(10)])\n"
        "def process(settings, filename):\n    yield [1]\n"
    )
    with (
        pydp2.load(["a", "b"], str(tmp_path / "reader.py") + ":process", batch_size=1, workers=1) as client,
        pytest.raises(TypeError, match="torch's DataLoader takes no client"),
    ):
        next(iter(DataLoader(client)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: {**state, "now": 3}, lambda state: {"now": state["now"]}, lambda state: [state],
        lambda state: {**state, "now": {**state["now"], "stream": "{"}},
        lambda state: {**state, "now": {**state["now"], "batch": 99}},
        lambda state: {**state, "before": {}}, lambda state: "x",
        lambda state: {**state, "now": {**state["now"], "stream": "[" * 100_000}},
    ],
)  # fmt: skip
def test_a_damaged_state_of_a_dataset_or_loader_is_refused(damage: Any, provider_file: Any) -> None:
    address = provider_file(numbers(100))
    with pydp2.torch.dataset(["a"], address, batch_size=10) as data:
        stream = iter(data)
        next(stream), next(stream)
        state = data.state_dict()
        with pytest.raises(pydp2.errors.StateMismatch):
            data.load_state_dict(damage(state))
        assert len(list(stream)) == 8
