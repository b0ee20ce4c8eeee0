"""One process with four devices: rows are divided among them, and what cannot be divided is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")


def test_rows_are_divided_among_four_devices_and_steps_are_compiled_once(jax_program: Callable[..., Any]) -> None:
    (seen,) = jax_program("""
def run():
    mesh = jax.make_mesh((4,), ("data",))
    rows = NamedSharding(mesh, P("data"))
    traced = []

    @jax.jit
    def step(weights, values):
        traced.append(values["pixel"].shape)
        return weights + values["pixel"].sum(axis=0)

    weights = jax.device_put(jnp.zeros(64), NamedSharding(mesh, P()))
    plain = np.zeros(64)
    with digits(sharding=rows) as data:
        for _ in range(2):
            for values in data:
                weights = step(weights, values).block_until_ready()
                plain += data.batch["pixel"].sum(axis=0)
        shards = [(shard.device.id, shard.data.shape) for shard in values["pixel"].addressable_shards]
        specs = [value.sharding == rows for value in values.values()]
    return [len(traced), weights.tolist() == plain.tolist(), shards, specs]
""")
    assert seen == [1, True, [[n, [8, 64]] for n in range(4)], [True, True]]


def test_a_mesh_of_two_axes_divides_more_than_the_rows(jax_program: Callable[..., Any]) -> None:
    """A slot with fewer axes takes the first ones of the sharding."""
    (seen,) = jax_program("""
def run():
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    with digits(sharding=NamedSharding(mesh, P("data", "model")), batch_size=2) as data:
        values = next(iter(data))
        return [
            [list(shard.data.shape) for shard in values["pixel"].addressable_shards],
            [shard.data.tolist() for shard in values["label"].addressable_shards],
            data.batch["label"].tolist(),
            bool((np.asarray(values["pixel"]) == data.batch["pixel"]).all()),
        ]
""")
    shapes, labels, (first, second), same = seen
    assert shapes == [[1, 32]] * 4
    assert labels == [[first], [first], [second], [second]]
    assert same


def test_what_cannot_be_divided_is_refused_before_a_service_starts(jax_program: Callable[..., Any]) -> None:
    (texts,) = jax_program("""
def refused(**options):
    try:
        digits(sharding=NamedSharding(jax.make_mesh((4,), ("data",)), P("data")), **options).close()
    except OptionError as error:
        return str(error)


def run():
    return [refused(batch_size=30), refused(batch_size=3), refused(last_batch="keep"), refused(last_batch="pad")]
""")
    thirty, three, keep, pad = texts
    assert "must be a multiple of 4" in thirty
    assert thirty.endswith("got 30, so pass 28 or 32")
    assert three.endswith("got 3, so pass 4")
    assert keep.endswith('pass "drop", or "pad" with mask= to tell the rows that only fill up')
    assert pad is None


def test_padded_sequences_and_sparse_rows_are_divided_too(jax_program: Callable[..., Any]) -> None:
    (seen,) = jax_program("""
def run():
    rows = NamedSharding(jax.make_mesh((4,), ("data",)), P("data"))
    options = {"batch_size": 16, "seed": 1, "workers": 1, "sharding": rows, "pad_to": 256}
    shapes = []
    for name, slot in (("sequence", "words"), ("sparse", "weights")):
        args = {"dictionary": "dictionary.txt"}
        with pydp2.jax.loader("train.list", f"{name}_provider.process", root=path(name), args=args, **options) as data:
            values = next(iter(data))[slot]
            shapes += [leaf.addressable_data(3).shape for leaf in jax.tree.leaves(values)]
    return shapes
""")
    assert seen == [[4, 256], [4], [4, 256], [4, 256]]


def test_beside_long_steps_arrays_lie_where_the_context_of_the_loop_says(jax_program: Callable[..., Any]) -> None:
    """Another thread converts them meanwhile, and contexts of jax are those of one thread."""
    (seen,) = jax_program("""
import threading
from pydp2.jax.arrays import ArrayMaker
from tests.frameworks.conftest import long_step

threads = []
convert = ArrayMaker.__call__
ArrayMaker.__call__ = lambda self, batch: threads.append(threading.get_ident()) or convert(self, batch)


def run():
    found = []
    with digits() as data:
        for device in (None, jax.devices()[2]):
            threads.clear()
            with jax.default_device(device):
                on = []
                for values in data:
                    on += [int(array.device.id) for array in values.values()]
                    long_step(data.client)
            found.append([len(on), sorted(set(on)), len(threads) - threads.count(threading.get_ident())])
    return found
""")
    (batches, on, ahead), (again, on_other, ahead_there) = seen
    assert (on, on_other) == ([0], [2])
    assert batches == again > 0
    assert ahead > 4
    assert ahead_there == 0, "its own default device is another one"
