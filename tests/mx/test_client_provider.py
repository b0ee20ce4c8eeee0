"""A service's stream as a data provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pydp2
from pydp2.mx import ClientProvider
from tests.provider_code import numbers, yields
from tests.runs import in_ranks

CODE = """
from pydp2 import scalar

@provider(input_types={"pixel": dense_vector(6, dtype="uint8", shape=(2, 3)), "label": integer_value(10),
                       "bag": sparse_binary_vector(9), "weight": dense_vector(1),
                       "target": scalar("float64")})
def process(settings, filename):
    for i in range(5):
        yield {"pixel": [i] * 6, "label": i, "bag": [i], "weight": [i / 2], "target": i / 2}
"""


@pytest.fixture
def client(provider_file: Callable[..., str]) -> Iterator[pydp2.Client]:
    with pydp2.load(["a", "b"], provider_file(CODE), batch_size=4, is_train=False, workers=1) as data:
        yield data


def test_the_slots_that_are_named_become_data_and_labels(client: pydp2.Client) -> None:
    assert ClientProvider(client, data=["pixel"], label=["target"]).provide_label == [("target", (4,))]
    provider = ClientProvider(client, data=["pixel", "weight"], label=["label"])
    assert provider.batch_size == 4
    assert provider.provide_data == [("pixel", (4, 2, 3)), ("weight", (4, 1))]
    assert provider.provide_label == [("label", (4,))]
    for _ in range(2):
        batches = list(provider)
        assert [batch.count for batch in batches] == [4, 4, 2]
        numbers = [x for batch in batches for x in batch.label[0][: batch.count].tolist()]
        assert numbers == [0, 1, 2, 3, 4] * 2
        for batch in batches:
            assert (provider.get(batch, "pixel") == batch.label[0][:, None, None]).all()
            assert (provider.get(batch, "weight")[:, 0] * 2 == batch.label[0]).all()
            assert [array.dtype for array in (*batch.data, *batch.label)] == [np.uint8, np.float32, np.int32]
        assert batches[-1].label[0].tolist() == [3, 4, 0, 0]


def test_a_rank_without_a_sample_in_the_last_step_gets_a_batch_of_padding(provider_file: Callable[..., str]) -> None:
    counts: dict[int, list[int]] = {}
    with pydp2.launch(["a", "b"], provider_file(CODE), workers=1) as service:

        def train(rank: int) -> None:
            with service.connect(batch_size=4, last_batch="pad", rank=rank, world_size=2) as data:
                provider = ClientProvider(data, data=["pixel"], label=["label"])
                batches = list(provider)
                assert all(len(batch.data[0]) == 4 for batch in batches)
                counts[rank] = [provider.count_samples(batch) for batch in batches]

        in_ranks(train)
    assert counts == {0: [4, 2], 1: [4, 0]}


def test_an_epoch_that_is_left_is_a_pass_that_is_left(client: pydp2.Client) -> None:
    provider = ClientProvider(client, data=[0], label=[1])
    for _ in provider:
        break
    assert sum(batch.count for batch in provider) == 10
    held = iter(provider)
    next(held)
    with pytest.raises(RuntimeError, match="in the middle of an epoch"):
        iter(provider)


def test_the_state_of_the_client_is_that_of_the_provider(client: pydp2.Client) -> None:
    provider = ClientProvider(client, data=["pixel"], label=["label"])
    epoch = iter(provider)
    next(epoch)
    state = client.state_dict()
    rest = [batch.label[0].tolist() for batch in epoch]
    client.load_state_dict(state)
    assert [batch.label[0].tolist() for batch in provider] == rest == [[4, 0, 1, 2], [3, 4, 0, 0]]


def test_what_cannot_be_an_array_of_fixed_shape_is_refused_by_name(client: pydp2.Client) -> None:
    with pytest.raises(ValueError, match=r"'bag' is .*, which has no fixed shape; leave it out"):
        ClientProvider(client, label=["label"])
    for data, label, words in (
        (["none"], [], "no slot 'none'.*pixel"), ([9], [], "no slot 9"), (["pixel"], ["pixel"], "different slots"),
        ([], ["label"], "at least one"), ([True], [], "no slot True"), ([-1], [], "no slot -1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            ClientProvider(client, data=data, label=label)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="label must be a list"):
        ClientProvider(client, "label")
    with pytest.raises(TypeError, match=r"pydp2\.connect"):
        ClientProvider([])  # type: ignore[arg-type]


def test_slots_without_names_are_called_by_their_positions(provider_file: Callable[..., str]) -> None:
    code = yields("[dense_vector(2), integer_value(2**40)]", "[([1, 2], 2**39)]")
    with pydp2.load(["a"], provider_file(code), batch_size=1, is_train=False, workers=1) as client:
        provider = ClientProvider(client, label=[1])
        assert provider.provide_data == [("slot0", (1, 2))]
        assert provider.provide_label == [("slot1", (1,))]
        (batch,) = provider
        assert (batch.data[0].tolist(), batch.label[0].tolist()) == ([[1, 2]], [2**39])


def test_rows_that_were_only_filled_up_are_not_counted(provider_file: Callable[..., str]) -> None:
    code = numbers(5)
    options = {"batch_size": 3, "is_train": False, "workers": 1, "last_batch": "pad"}
    with pydp2.load(["a"], provider_file(code), **options) as client:
        assert [(b.count, len(b.data[0])) for b in ClientProvider(client)] == [(3, 3), (2, 3)]


def test_a_batch_with_more_rows_than_its_size_is_refused(provider_file: Callable[..., str]) -> None:
    code = numbers(5, "calc_batch_size=lambda sample: 0")
    with (
        pydp2.load(["a"], provider_file(code), batch_size=3, is_train=False, workers=1) as client,
        pytest.raises(ValueError, match=r"has 5 rows, more than batch_size=3: where calc_batch_size weighs"),
    ):
        list(ClientProvider(client))
