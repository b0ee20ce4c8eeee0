"""Two processes that train together on this machine, with two devices each: one stream, dealt out by the sharding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")

READ = """
from jax.experimental import multihost_utils


def whole(value):
    return np.asarray(multihost_utils.process_allgather(value, tiled=True)).tolist()


def mesh(shape, names):
    return jax.make_mesh(shape, names)
"""


def test_two_processes_read_one_stream_and_go_on_bit_by_bit(jax_program: Callable[..., Any]) -> None:
    """The global batch is the batches of both ranks one after the other, and the state is the same in both."""
    first, second = jax_program(
        READ
        + """
def labels(data, count):
    got = []
    for values in data:
        got.append(whole(values["label"]))
        if len(got) == count:
            break
    return got


def run():
    rows = NamedSharding(mesh((4,), ("data",)), P("data"))
    step = jax.jit(lambda values: values["pixel"].sum())
    with digits(sharding=rows, batch_size=32) as data:
        got, state = [], None
        for values in data:
            step(values).block_until_ready()
            got.append(whole(values["label"]))
            assert values["pixel"].shape == (64, 64)
            assert np.asarray(values["label"].addressable_shards[0].data).tolist() == data.batch["label"][:16].tolist()
            if len(got) == 5:
                state = data.state_dict()
        assert len(data) == len(got)
    with digits(sharding=rows, last_batch="drop", ahead=0) as again:
        again.load_state_dict(state)
        rest = [whole(values["label"]) for values in again]
    compiled = step._cache_size()
    return [got, rest == got[5:], compiled, state]
""",
        processes=2,
        devices=2,
    )
    assert first == second
    got, goes_on, compiled, _ = first
    assert (len(got), goes_on, compiled) == (22, True, 1)
    (alone,) = jax_program("""
def run():
    with digits() as data:
        return [values["label"].tolist() for values in data]
""")
    assert got == [one + other for one, other in zip(alone[::2], alone[1::2], strict=True)]


def test_the_shape_of_a_step_is_that_of_its_longest_bucket_in_all_processes(jax_program: Callable[..., Any]) -> None:
    first, second = jax_program(
        READ
        + """
def run():
    words = {"root": path("sequence"), "args": {"dictionary": "dictionary.txt"}, "seed": 1, "workers": 1}
    rows = NamedSharding(mesh((4,), ("data",)), P("data"))
    buckets = {"bucket_by": "words", "bucket_bounds": [8, 16, 32], "pad_to": 64}
    got = []
    with pydp2.jax.loader("train.list", "sequence_provider.process", **words, batch_size=32, sharding=rows,
                          last_batch="pad", **buckets) as data:
        for values in data:
            total = jax.jit(lambda words: words.values.sum())(values["words"]).block_until_ready()
            got.append([data.batch.bucket, values["words"].values.shape[1], int(total)])
            assert int(values["words"].lengths.addressable_shards[0].data.max()) <= got[-1][1]
    return got
""",
        processes=2,
        devices=2,
    )
    assert [one[1:] for one in first] == [one[1:] for one in second]
    for (mine, length, _), (theirs, _, _) in zip(first, second, strict=True):
        assert length == (64 if None in (mine, theirs) else max(mine, theirs))
    assert {length for _, length, _ in first} >= {8, 16, 32}
    assert any(mine != theirs for (mine, *_), (theirs, *_) in zip(first, second, strict=True))


def test_processes_that_hold_the_same_rows_read_the_same_batches(jax_program: Callable[..., Any]) -> None:
    """A mesh whose model axis goes across the processes, which ``mpirun`` has started."""
    first, second = jax_program(
        READ
        + """
import os


def run():
    os.environ.update(OMPI_COMM_WORLD_RANK=str(RANK), OMPI_COMM_WORLD_SIZE=str(WORLD))
    across = mesh((2, 2), ("model", "data"))
    got = []
    with digits(sharding=NamedSharding(across, P("data"))) as data:
        for values in data:
            assert values["pixel"].shape == (32, 64)
            got.append(data.batch["label"].tolist())
    return got
""",
        processes=2,
        devices=2,
    )
    assert first == second
    assert len(first) == 44


def test_processes_of_a_mesh_with_two_axes_are_ranks_along_one_and_peers_along_the_other(
    jax_program: Callable[..., Any],
) -> None:
    """One service with one job reads for all of them."""
    got = jax_program(
        READ
        + """
def run():
    both = mesh((2, 2), ("data", "model"))
    with digits(sharding=NamedSharding(both, P("data"))) as data:
        got = [[data.batch["label"].tolist(), whole(values["label"])] for values in data]
        jobs = data.client.owner.service.stats()["jobs"] if RANK == 0 else {}
    return [got, [len(jobs)]]
""",
        processes=4,
        devices=1,
    )
    batches = [[own for own, _ in process] for process, _ in got]
    assert batches[0] == batches[1] != batches[2] == batches[3]
    for first, other, both in zip(batches[0], batches[2], got[0][0], strict=True):
        assert both[1] == first + other
    assert got[0][1] == [1]
    (alone,) = jax_program("""
def run():
    with digits() as data:
        return [values["label"].tolist() for values in data]
""")
    assert [both for _, both in got[3][0]] == [one + other for one, other in zip(alone[::2], alone[1::2], strict=True)]


def test_rows_that_more_processes_hold_than_others_are_refused(jax_program: Callable[..., Any]) -> None:
    texts = jax_program(
        """
from jax.sharding import Mesh


def run():
    devices = jax.devices()
    uneven = Mesh(np.array([devices[:2], [devices[2], devices[4]]]), ("data", "model"))  # process 0; processes 1 and 2
    try:
        digits(sharding=NamedSharding(uneven, P("data")))
    except OptionError as error:
        return str(error)
""",
        processes=3,
        devices=2,
    )
    assert len(set(texts)) == 1
    assert texts[0].startswith("each row of a batch must be held by equally many processes")


def test_what_would_differ_between_processes_is_refused(jax_program: Callable[..., Any]) -> None:
    """The length of sequences, with buckets too: at the end of a pass the ranks may have batches of different ones."""
    first, second = jax_program(
        READ
        + """
ROWS = {"batch_size": 16, "workers": 1}
WORDS = {"root": path("sequence"), "args": {"dictionary": "dictionary.txt"}, "bucket_by": "words"}


def words(**options):
    options |= ROWS | WORDS | {"sharding": NamedSharding(mesh((4,), ("data",)), P("data"))}
    return pydp2.jax.loader("train.list", "sequence_provider.process", **options)


def refused(**options):
    try:
        words(**options)
    except OptionError as error:
        return str(error)


def run():
    texts = [refused(), refused(pad_to=64, order="relaxed"), refused(pad_to=64, world_size=1)]
    with digits(world_size=1) as data:
        assert len([data.batch for _ in data]) == 44  # each process reads all
    with words(bucket_bounds=[8, 16], pad_to=64) as data:
        shapes = [values["words"].values.shape for values in data]
    return [*texts, shapes]
""",
        processes=2,
        devices=2,
    )
    assert first == second
    length, order, ranks, shapes = first
    assert "follow from a sharding over several processes; leave them out" in ranks
    assert length.endswith("pass pad_to={'words': 128} with the greatest")
    assert "must get equally many batches, in one order" in order
    assert shapes
    assert {tuple(shape) for shape in shapes} == {(32, 8), (32, 16), (32, 64)}


def test_processes_on_two_machines_share_the_service_of_the_first(jax_program: Callable[..., Any]) -> None:
    """Each has a folder of its own for temporary files, as on a machine of its own."""
    first, second = jax_program(
        READ
        + """
import tempfile


def run():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        tempfile.tempdir = folder
        rows = NamedSharding(mesh((4,), ("data",)), P("data"))
        with digits(sharding=rows, workers=0, workers_per_node=1) as data:
            got = [whole(values["label"]) for values in data]
            hosts = data.client.owner.service.stats()["hosts"] if RANK == 0 else []
    return [got, [host["places"] for host in hosts]]
""",
        processes=2,
        devices=2,
    )
    assert first[0] == second[0]
    assert first[1] == [1]
    (alone,) = jax_program("""
def run():
    with digits() as data:
        return [values["label"].tolist() for values in data]
""")
    assert first[0] == [one + other for one, other in zip(alone[::2], alone[1::2], strict=True)]
