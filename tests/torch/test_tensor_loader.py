"""The loader of tensors: options, devices, states, places among the ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import pydp2  # noqa: E402
import pydp2.torch  # noqa: E402
from pydp2.errors import OptionError, OptionTypeError  # noqa: E402
from pydp2.frameworks.shared_service import Ranks  # noqa: E402
from pydp2.torch.ranks import find_ranks  # noqa: E402
from tests.torch.conftest import DIGITS, TRAIN, digest  # noqa: E402


def test_a_state_is_plain_and_resumes_in_another_process_or_client(passes: list[list[str]]) -> None:
    with pydp2.torch.loader(*TRAIN, **DIGITS) as data:
        for _ in islice(data, 4):
            state = json.loads(json.dumps(data.state_dict()))
        assert (state["pass"], state["batch"]) == (0, 4)
        assert set(state) == set(pydp2.torch.loader(data.client).state_dict()), "the same keys at every place"
    with pydp2.torch.loader(*TRAIN, **DIGITS) as data:
        data.load_state_dict(state)
        assert [digest(step) for step in data] == passes[0][4:]
        data.load_state_dict(json.loads(state["stream"]))  # what a client says
        assert [digest(step) for step in data] == passes[0][4:]
    with pydp2.load(*TRAIN, **DIGITS) as client:
        client.load_state_dict(json.loads(state["stream"]))
        assert next(iter(client)).index == 4


def test_steps_get_dicts_or_tuples_and_the_batch_says_what_is_padding(provider_file: Callable[[str], str]) -> None:
    address = provider_file(
        "@provider(input_types=[integer_value(9), dense_vector(1)], should_shuffle=False)\n"
        "def process(settings, filename):\n    yield from ((n, [n / 2]) for n in range(5))"
    )
    with pydp2.torch.loader(["x"], address, batch_size=3, last_batch="pad", workers=1) as data:
        seen = [(number.tolist(), half.flatten().tolist(), data.batch.padding) for number, half in data]  # type: ignore[union-attr]
    assert seen == [([0, 1, 2], [0.0, 0.5, 1.0], 0), ([3, 4, 3], [1.5, 2.0, 1.5], 1)]


def test_a_device_that_there_is_not_is_an_error_of_the_call_and_ends_the_service() -> None:
    with pytest.raises((RuntimeError, AssertionError), match=r"(?i)cuda|device"):
        pydp2.torch.loader(*TRAIN, **DIGITS, device="cuda:99")
    with pydp2.torch.loader(*TRAIN, **DIGITS, device="meta") as data:
        assert next(iter(data))["pixel"].device.type == "meta"  # type: ignore[call-overload]


def test_options_are_those_of_load_and_unknown_ones_are_named() -> None:
    with pytest.raises(OptionTypeError, match="num_workers"):
        pydp2.torch.loader(*TRAIN, **DIGITS, num_workers=4)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="rank and world_size belong together"):
        pydp2.torch.loader(*TRAIN, **DIGITS, rank=1)


TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_ERROR_FILE": "/t/a/attempt_0/3/e.json",
}  # fmt: skip


def test_the_place_of_a_rank_is_that_of_the_environment_and_each_run_has_a_name_of_its_own() -> None:
    assert find_ranks({}) == Ranks()
    found = find_ranks(TORCHRUN)
    assert found[:3] == (3, 4, 2)
    beside = find_ranks(TORCHRUN | {"RANK": "2", "TORCHELASTIC_ERROR_FILE": "/t/a/attempt_0/2/e.json"})
    assert beside.run == found.run
    later = [{"TORCHELASTIC_ERROR_FILE": "/t/b/attempt_0/3/e.json"}, {"TORCHELASTIC_RESTART_COUNT": "1"}]
    assert found.run not in [find_ranks(TORCHRUN | each).run for each in later]


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"WORLD_SIZE": "2"}, "no RANK says which this is"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "does not say how many of them run on this machine"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a number, got 'two'"),
    ],
)
def test_an_environment_that_says_half_of_it_is_an_error(environment: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        find_ranks(environment)
