"""The loader through whole services: what it gives, where it goes on, what it refuses; one device, in this process.

Devices and processes: `test_devices.py`, `test_processes.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydp2_samples import path

import pydp2
from pydp2.errors import OptionError, OptionTypeError

jax: Any = pytest.importorskip("jax")
import pydp2.jax  # noqa: E402 - it is there

jax.devices()  # what it opens stays open
DIGITS: dict[str, Any] = {"root": path("digits"), "batch_size": 32, "seed": 7, "workers": 1}


def digits(**options: Any) -> pydp2.jax.JaxLoader:
    return pydp2.jax.loader("train.list", "digits_provider.process", **DIGITS | options)


def raw(values: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(values)]


def test_a_pass_has_the_whole_batches_of_the_service_as_arrays() -> None:
    with pydp2.load("train.list", "digits_provider.process", **DIGITS, last_batch="drop") as plain:
        expected = [raw(dict(batch)) for batch in plain]
    with digits() as data:
        assert data.batch_size == 32
        assert len(data) == 44, "the samples were counted above"
        seen = [raw(values) for values in data]
    assert seen == expected


def test_a_mixture_and_packed_sequences_give_arrays() -> None:
    def mixture(last_batch: Any) -> pydp2.Client:
        lists = {"train.list": 0.7, "test.list": 0.3}
        options: dict[str, Any] = DIGITS | {"last_batch": last_batch}
        return pydp2.mix(lists, "digits_provider.process", **options)

    with mixture("drop") as plain:
        expected = [raw(dict(batch)) for batch in plain]
    everywhere = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pydp2.jax.loader(mixture("drop"), sharding=everywhere) as data:
        assert len(data) == len(expected)
        assert [raw(values) for values in data] == expected
    with mixture("keep") as kept, pytest.raises(OptionError, match="the same rows"):
        pydp2.jax.loader(kept, sharding=everywhere)
    options: dict[str, Any] = {"root": path("sequence"), "args": {"dictionary": "dictionary.txt"}, "batch_size": 16}
    sentences = pydp2.load("train.list", "sequence_provider.process", **options, workers=1)
    packed = pydp2.pack_sequences(sentences, slot="words", length=32, batch_size=4, last_batch="drop")
    with pydp2.jax.loader(packed, sharding=everywhere) as data:
        shapes = {tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(values)) for values in data}
    assert shapes == {(((4, 32), "int32"),) * 3}


def test_a_stream_of_buckets_is_padded_to_their_bounds() -> None:
    options: dict[str, Any] = {"root": path("sequence"), "args": {"dictionary": "dictionary.txt"}, "batch_size": 16}
    client = pydp2.load(
        "train.list", "sequence_provider.process", **options, seed=1, workers=1, bucket_by="words",
        bucket_bounds=[8, 16],
    )  # fmt: skip
    with pydp2.jax.loader(client, pad_to=32) as data:
        assert {values["words"].values.shape[1] for values in data} == {8, 16, 32}


def test_steps_are_compiled_once_for_all_batches_of_several_passes() -> None:
    traced = []

    @jax.jit
    def step(values: Any) -> Any:
        traced.append(jax.tree.map(lambda leaf: leaf.shape, values))
        return values["pixel"].sum() + values["label"].sum()

    with digits(last_batch="pad", mask="real") as data:
        totals = [[float(step(values)) for values in data] for _ in range(2)]
    assert traced == [{"pixel": (32, 64), "label": (32,), "real": (32,)}]
    assert len(totals[0]) == len(totals[1]) == 45


def test_lengths_of_buckets_and_pad_are_all_that_is_compiled() -> None:
    shapes = set()
    options: dict[str, Any] = {"root": path("sequence"), "args": {"dictionary": "dictionary.txt"}, "batch_size": 16}
    with pydp2.jax.loader(
        "train.list", "sequence_provider.process", **options, seed=1, workers=1, bucket_by="words",
        bucket_bounds=[8, 16], pad_to=32,
    ) as data:  # fmt: skip
        for values in data:
            shapes.add(values["words"].values.shape)
            assert data.batch is not None
            assert values["words"].lengths.max() <= (data.batch.bucket or 32)
    assert shapes == {(16, 8), (16, 16), (16, 32)}


def test_an_address_is_enough() -> None:
    with (
        pydp2.launch("train.list", "digits_provider.process", root=path("digits"), workers=1) as service,
        pydp2.jax.loader(service.address, batch_size=64, job="look", sharding=jax.devices()[0]) as data,
    ):
        values = next(iter(data))
        assert values["pixel"].devices() == {jax.devices()[0]}
        assert service.stats()["jobs"]["look"]["attached"] == 1


def test_samples_with_weights_give_batches_of_any_number_of_rows_without_a_sharding_only() -> None:
    nested: dict[str, Any] = {"root": path("nested"), "batch_size": 300, "workers": 1}
    with pydp2.jax.loader("train.list", "nested_provider.process", **nested) as data:
        rows = {len(values["label"]) for values in data}
    assert len(rows) > 1
    with (
        pydp2.jax.loader("train.list", "nested_provider.process", **nested, sharding=jax.devices()[0]) as data,
        pytest.raises(OptionError, match=r"must have batch_size=300 rows.*provider weighs samples; leave"),
    ):
        next(iter(data))


def test_a_pass_without_a_whole_batch_says_so() -> None:
    with digits(batch_size=4096) as data, pytest.raises(OptionError, match="fewer samples than batch_size=4096"):
        list(data)
    with digits(batch_size=4096, last_batch="pad", mask="real") as data:
        (values,) = data
        assert int(values["real"].sum()) == 1438


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"sharding": "data"}, OptionTypeError, "sharding must be a jax.sharding.Sharding.*got 'data'"),
        ({"ahead": -1}, OptionError, "ahead must be a number of batches from 0 on, got -1"),
        ({"pad_to": 64}, OptionError, "no slot has any; leave it out"),
        ({"mask": "label"}, OptionError, "a name that no slot has; slots: pixel, label"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_stays_behind(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        digits(**options)


def test_help_shows_the_options_of_services_and_jobs() -> None:
    import inspect

    parameters: Callable[..., Any] = inspect.signature(pydp2.jax.loader).parameters
    assert {"sharding", "ahead", "pad_to", "mask", "workers", "seed", "bucket_by"} <= set(parameters)
    assert "options" not in parameters


def test_beside_long_steps_numbers_of_64_bits_keep_them(provider_file: Callable[[str], str]) -> None:
    """Another thread converts them meanwhile, in which the context of the loop does not hold."""
    provider = provider_file(
        "@provider(input_types=[integer_value_sequence(2**40)], should_shuffle=False)\n"
        "def process(settings, filename):\n    yield from ([2**35 + n] * (n % 300 + 1) for n in range(600))"
    )
    with jax.enable_x64(True), pydp2.jax.loader(["x"], provider, batch_size=16, workers=1) as data:
        for (words,) in data:
            assert words.values.dtype == np.int64
            assert int(words.values[:, 0].min()) >= 2**35
            time.sleep(0.006)
