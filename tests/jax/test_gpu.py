"""Arrays on a GPU: what a step gets there while copies and steps lag behind the program, where the arrays lie, states.
The same is done with the CPU as the device, so it is tried where there is no GPU.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from pydp2_samples import path

import pydp2

jax: Any = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402 - it is there
from jax.sharding import NamedSharding, SingleDeviceSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import pydp2.jax  # noqa: E402
import pydp2.jax.device_put as device_put_module  # noqa: E402
from pydp2.data.columns.columns import aligned_empty  # noqa: E402
from pydp2.jax.device_put import make_put  # noqa: E402
from pydp2.jax.placement import ProcessPlacement  # noqa: E402


def found(platform: str) -> list[Any]:
    """The devices of a platform, none where jax does not have it."""
    try:
        return list(jax.devices(platform))
    except RuntimeError:
        return []


BY_NAME = {platform: found(platform) for platform in ("cpu", "gpu")}  # what jax opens stays open
needs_gpu = pytest.mark.skipif(not BY_NAME["gpu"], reason="jax has no GPU")
needs_cpu = pytest.mark.skipif(not BY_NAME["cpu"], reason="jax has no CPU beside the GPU")
everywhere = pytest.mark.parametrize(
    "name", [pytest.param("cpu", marks=needs_cpu), pytest.param("gpu", marks=needs_gpu)]
)
both_places = pytest.mark.parametrize("is_committed", [False, True], ids=["default", "sharding"])
# Drivers warn, and open descriptors whenever they like.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.may_leave(descriptors=False)]

DIGITS: dict[str, Any] = {"root": path("digits"), "batch_size": 32, "seed": 7, "workers": 1}
FILES = [str(number) for number in range(4)]
_BATCHES = 240  # of four passes of `WIDE`, 256 KiB each
KINDS = """
    import numpy as np

    @provider(
        input_types={
            "pixel": dense_vector(64), "half": dense_vector(6, dtype="float16", shape=(2, 3)),
            "double": dense_vector(3, dtype="float64"), "big": dense_vector(3, dtype="int64"),
            "flag": dense_vector(1, dtype="bool"), "label": integer_value(10),
            "bag": sparse_binary_vector(40), "weights": sparse_float_vector(40),
            "words": integer_value_sequence(50), "frames": dense_vector_sequence(3),
            "texts": integer_value_sub_sequence(9),
        },
    )
    def process(settings, filename):
        random = np.random.default_rng(int(filename))

        def ids():
            return random.permutation(40)[: random.integers(0, 20)].tolist()

        for i in range(80):
            yield {
                "pixel": random.random(64, np.float32), "half": random.random(6).astype(np.float16),
                "double": random.random(3), "big": random.integers(-99, 99, 3), "flag": random.random(1) < 0.5,
                "label": i % 10, "bag": ids(), "weights": [(k, k / 8) for k in ids()],
                "words": random.integers(0, 50, random.integers(0, 30)),
                "frames": random.random((random.integers(0, 5), 3), np.float32),
                "texts": [random.integers(0, 9, random.integers(0, 4)).tolist() for _ in range(random.integers(0, 4))],
            }
"""
WIDE = """
    import numpy as np

    @provider(
        input_types={"row": dense_vector(1024), "label": integer_value(1000), "big": dense_vector(2, dtype="int64")},
        cache=CacheType.CACHE_PASS_IN_MEM,
    )
    def process(settings, filename):
        random = np.random.default_rng(int(filename))
        for i in range(64 * 15):
            yield {"row": random.random(1024, np.float32), "label": i, "big": [i, int(filename)]}
"""


def place(name: str, is_committed: bool) -> Any:
    """A sharding over one device, or none."""
    return SingleDeviceSharding(BY_NAME[name][0]) if is_committed else None


def host(values: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(values)]


def same(seen: list[list[Any]], expected: list[list[Any]]) -> bool:
    return len(seen) == len(expected) and all(
        len(one) == len(other)
        and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        for one, other in zip(seen, expected, strict=True)
    )


@jax.jit  # type: ignore[untyped-decorator]
def late(busy: Any, values: Any) -> tuple[Any, Any]:
    """Copies of the values, made once a device is done with much else."""
    busy = jax.lax.fori_loop(0, 30, lambda _, x: jnp.sin(x) + 1, busy)
    return busy, jax.tree.map(lambda leaf: leaf + (busy[0] * 0).astype(leaf.dtype), values)


@everywhere
@both_places
@pytest.mark.parametrize("ahead", [0, 2, 5])
def test_values_on_a_device_have_the_numbers_of_the_batches_whatever_the_slots(
    provider_file: Callable[[str], str], name: str, is_committed: bool, ahead: int
) -> None:
    options: dict[str, Any] = {"batch_size": 16, "seed": 3, "workers": 1}
    with (
        jax.default_device(BY_NAME[name][0]),
        pydp2.jax.loader(
            FILES, provider_file(KINDS), **options, ahead=ahead, sharding=place(name, is_committed)
        ) as data,
    ):
        count = 0
        values: Any
        for values in data:
            count += 1
            assert {device for leaf in jax.tree.leaves(values) for device in leaf.devices()} == {BY_NAME[name][0]}
            batch: Any = data.batch
            assert batch.index == count - 1
            for slot in ("pixel", "half", "double", "big", "flag", "label"):
                assert np.array_equal(values[slot], batch[slot].astype(values[slot].dtype)), slot
            for slot in ("words", "frames", "texts"):
                wanted, lengths = batch[slot].pad(length=values[slot].values.shape[1])
                assert np.array_equal(values[slot].values, wanted)
                assert values[slot].lengths.tolist() == lengths.tolist()
            for slot in ("bag", "weights"):
                dense = np.zeros((16, 40), np.float32)
                np.add.at(
                    dense, (np.arange(16)[:, None], np.asarray(values[slot].indices)), np.asarray(values[slot].values)
                )
                assert np.array_equal(dense, batch[slot].to_scipy().toarray())
                assert np.allclose(values[slot].dot(jnp.eye(40)), dense)
        assert count == len(data) == 20


@pytest.fixture
def wide(provider_file: Callable[[str], str]) -> Iterator[str]:
    """The address of a service whose pass is in memory, so that it is faster than steps on a device."""
    with pydp2.launch(FILES, provider_file(WIDE), workers=1) as service:
        yield service.address


def expected_of(address: str) -> list[list[Any]]:
    with pydp2.connect(address, batch_size=64, seed=5, job="expected", last_batch="drop") as client:
        batches: list[Any] = [batch for _ in range(4) for batch in client]
    return [[batch["big"].astype(np.int32), batch["label"], batch["row"]] for batch in batches]


@everywhere
@both_places
@pytest.mark.parametrize("is_late", [False, True], ids=["fast", "late"])
def test_hundreds_of_batches_are_whole_although_their_numpy_memory_is_dropped_at_once(
    wide: str, name: str, is_committed: bool, is_late: bool
) -> None:
    """The program waits for no copy and no step; all is looked at in the end."""
    expected, seen = expected_of(wide), []
    with (
        jax.default_device(BY_NAME[name][0]),
        pydp2.jax.loader(wide, batch_size=64, seed=5, job="seen", ahead=3, sharding=place(name, is_committed)) as data,
    ):
        busy = jax.device_put(np.ones(1 << 20 if name == "gpu" else 1 << 8, np.float32), place(name, is_committed))
        for _ in range(4):
            for values in data:
                if is_late:
                    busy, values = late(busy, values)
                seen.append(values)
        assert len(seen) == _BATCHES
        assert same([host(values) for values in seen], expected)


@everywhere
@both_places
def test_a_step_that_donates_its_batch_changes_neither_the_numpy_batch_nor_those_ahead(
    wide: str, name: str, is_committed: bool
) -> None:
    expected, seen = expected_of(wide), []
    step = jax.jit(lambda values: jax.tree.map(lambda leaf: leaf + 1, values), donate_argnums=0)
    with (
        jax.default_device(BY_NAME[name][0]),
        pydp2.jax.loader(wide, batch_size=64, seed=5, job="seen", sharding=place(name, is_committed)) as data,
    ):
        for _ in range(4):
            for values in data:
                seen.append(step(values))
                if name == "gpu":
                    assert values["row"].is_deleted()  # type: ignore[call-overload]
                if len(seen) % 7 == 0:
                    jax.block_until_ready(seen[-1])
                    assert np.array_equal(data.batch["row"], expected[len(seen) - 1][2])  # type: ignore[index,arg-type]
        assert same([host(values) for values in seen], [[leaf + 1 for leaf in leaves] for leaves in expected])


@everywhere
@both_places
@pytest.mark.parametrize("dtype", ["float32", "int64", "float64", "bool"])
def test_each_shape_goes_through_the_public_functions_once(
    monkeypatch: pytest.MonkeyPatch, name: str, is_committed: bool, dtype: str
) -> None:
    """The faster way is taken from then on, on each platform, and gives the same."""
    calls = []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return public(*args)

    public = device_put_module._put_publicly
    monkeypatch.setattr(device_put_module, "_put_publicly", counted)
    with jax.default_device(BY_NAME[name][0]):
        put = make_put(ProcessPlacement(0, 1), place(name, is_committed))
        for first in range(5):
            array = aligned_empty((64, 33), dtype)
            array[...] = np.arange(first, first + array.size).reshape(64, 33) % 251
            made, wanted = put(array), jax.device_put(array, place(name, is_committed))
            assert (made.aval, made.sharding, made.committed) == (wanted.aval, wanted.sharding, wanted.committed)
            assert np.array_equal(made, array)
            assert made.devices() == {BY_NAME[name][0]}
    assert len(calls) == 1


@needs_gpu
@needs_cpu
def test_the_default_device_may_change_between_platforms(wide: str) -> None:
    expected = expected_of(wide)[:12]
    with pydp2.jax.loader(wide, batch_size=64, seed=5, job="seen", ahead=0) as data:
        steps, seen = iter(data), []
        for number in range(12):
            device = BY_NAME["gpu" if number % 3 else "cpu"][0]
            with jax.default_device(device):
                values: Any = next(steps)
            assert values["row"].devices() == {device}
            seen.append(values)
    assert same([host(values) for values in seen], expected)


@everywhere
def test_a_mesh_of_one_device_has_all_rows_and_its_steps_are_compiled_once(name: str) -> None:
    mesh = jax.make_mesh((1,), ("data",), devices=BY_NAME[name][:1])
    rows, traced = NamedSharding(mesh, P("data")), []

    @jax.jit  # type: ignore[untyped-decorator]
    def step(weights: Any, values: Any) -> Any:
        traced.append(values["pixel"].shape)
        return weights + values["pixel"].sum(axis=0)

    values: Any
    weights, plain = jax.device_put(jnp.zeros(64), NamedSharding(mesh, P())), np.zeros(64)
    with pydp2.jax.loader("train.list", "digits_provider.process", **DIGITS, sharding=rows) as data:
        for _ in range(2):
            for values in data:
                weights = step(weights, values)
                plain += data.batch["pixel"].sum(axis=0)  # type: ignore[index,union-attr]
        assert {value.sharding for value in values.values()} == {rows}
    assert len(traced) == 1
    assert np.asarray(weights).tolist() == plain.tolist(), "whole numbers, so the order of sums is no matter"


@everywhere
def test_the_kind_of_memory_is_that_of_the_sharding(name: str) -> None:
    device = BY_NAME[name][0]
    mesh = jax.make_mesh((1,), ("data",), devices=[device])
    kinds = [memory.kind for memory in device.addressable_memories()]
    with pydp2.load("train.list", "digits_provider.process", **DIGITS, last_batch="drop") as client:
        expected = [[batch["label"].copy(), batch["pixel"].copy()] for batch in client]  # type: ignore[union-attr]
    for kind in kinds:
        for sharding in (
            NamedSharding(mesh, P("data"), memory_kind=kind),
            SingleDeviceSharding(device, memory_kind=kind),
        ):
            with pydp2.jax.loader("train.list", "digits_provider.process", **DIGITS, sharding=sharding) as data:
                seen = list(data)
            assert {value.sharding.memory_kind for values in seen for value in values.values()} == {kind}  # type: ignore[union-attr]
            assert same([host(values) for values in seen], expected), kind


@everywhere
def test_the_state_is_that_of_the_values_in_hand_whatever_is_ahead(name: str) -> None:
    def digits(device: str, **options: Any) -> pydp2.jax.JaxLoader:
        sharding = place(device, True)
        return pydp2.jax.loader("train.list", "digits_provider.process", **DIGITS, sharding=sharding, **options)

    seen: list[list[Any]] = []
    states: dict[int, str] = {}
    with digits(name, ahead=4) as data:
        for _ in range(2):
            for values in data:
                seen.append(host(values))
                states[len(seen)] = json.dumps(data.state_dict())
        data.load_state_dict(json.loads(states[40]))
        assert same([host(values) for values in data], seen[40:44])
        data.load_state_dict(json.loads(states[5]))
        assert same([host(values) for values in islice(data, 3)], seen[5:8])
    for after, other in ((1, name), (17, "cpu" if BY_NAME["cpu"] else name), (43, name), (44, name), (45, name)):
        with digits(other, ahead=1) as data:
            data.load_state_dict(json.loads(states[after]))
            rest = [host(values) for _ in range(data.pass_id, 2) for values in data]
        assert same(rest, seen[after:]), after


@everywhere
def test_nothing_of_a_loop_that_was_left_stays_on_the_device(wide: str, name: str) -> None:
    def alive() -> int:
        gc.collect()
        return len(jax.live_arrays(BY_NAME[name][0].platform))

    before = alive()
    with pydp2.jax.loader(wide, batch_size=64, seed=5, job="seen", ahead=4, sharding=BY_NAME[name][0]) as data:
        for values in islice(data, 3):
            assert jax.block_until_ready(values["row"]).shape == (64, 1024)  # type: ignore[call-overload]
        ahead = 0 if name == "cpu" else 4  # nothing is copied there
        assert alive() >= before + 3 * (1 + ahead), "the values in hand and those ahead, three arrays each"
        del values
        data.load_state_dict(data.state_dict())
        assert alive() == before
    del data
    assert alive() == before


@everywhere
def test_numpy_batches_go_to_the_device_as_trees(provider_file: Callable[[str], str], name: str) -> None:
    device = BY_NAME[name][0]
    double = jax.jit(lambda batch: jax.tree.map(lambda leaf: leaf + leaf, batch))
    with pydp2.load(FILES, provider_file(KINDS), batch_size=16, seed=3, workers=1) as client:
        seen: list[tuple[Any, Any]] = [(batch, jax.device_put(batch, device)) for batch in client]
        for batch, placed in seen:
            assert placed.index == batch.index
            leaves = jax.tree.leaves(placed)
            assert {each for leaf in leaves for each in leaf.devices()} == {device}
            for leaf, wanted in zip(leaves, jax.tree.leaves(batch), strict=True):
                assert np.array_equal(leaf, wanted.astype(leaf.dtype))
        for batch, placed in seen[:2]:  # each is compiled for shapes of its own
            assert np.array_equal(double(placed)["pixel"], batch["pixel"] * 2)
