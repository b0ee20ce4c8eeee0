"""What a type checker sees of the public interface. Only checked, never run: ``mypy tests/typing/api.py``."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import pydp2
from pydp2 import CacheType, dense_vector, fluid, integer_value, provider, reader, scalar, text


def hook(settings: Any, file_list: list[str], **kwargs: object) -> None:
    settings.input_types = {"pixel": dense_vector(64, dtype=np.uint8, shape=(8, 8))}


@provider(input_types={"pixel": dense_vector(64), "label": integer_value(10)}, pool_size=4096)
def named(settings: Any, filename: str) -> Iterator[dict[str, object]]:
    yield {"pixel": [0.0] * 64, "label": 1}


@provider([integer_value(10)], should_shuffle="on", cache=CacheType.CACHE_PASS_IN_MEM, init_hook=hook)
def positional(settings: Any, filename: str) -> Iterator[int]:
    yield 1


@provider(calc_batch_size=len, slots=[integer_value(10)])
def legacy(settings: Any, filename: str) -> list[int]:
    return [1, 2]


assert_type(named, pydp2.Provider)
assert_type(dense_vector(3), pydp2.InputType)
assert_type(dense_vector((3, 32, 32)), pydp2.InputType)

for sample in named.samples("part-00.txt", args={"a": 1}, is_train=False):
    assert_type(sample, list[Any])

with pydp2.load("train.list", named, batch_size=128) as data:
    assert_type(data, pydp2.Client)
    assert_type(len(data), int)
    data.set_epoch(3)
    assert_type(data.names, tuple[str, ...] | None)
    for batch in data:
        assert_type(batch, pydp2.Batch)
        assert_type(batch.size, int)
        assert_type(batch.padding, int)
        for value in batch:
            assert_type(value, NDArray[Any] | pydp2.Csr | pydp2.Ragged | pydp2.BinaryArray | pydp2.StringArray)
        assert_type("pixel" in batch, bool)
        assert_type(batch.keys(), tuple[str, ...] | tuple[int, ...])
        assert_type(
            batch.values(), list[NDArray[Any] | pydp2.Csr | pydp2.Ragged | pydp2.BinaryArray | pydp2.StringArray]
        )
        for key, _ in batch.items():
            assert_type(key, str | int)

with pydp2.launch(["a.txt", "b.txt"], "module.process", args={"n": 1}, workers=4, root=".") as service:
    assert_type(service, pydp2.Service)
    assert_type(service.address, str)
    assert_type(service.stats(), dict[str, Any])
    assert_type(service.connect(batch_size=1, seed=3), pydp2.Client)

assert_type(pydp2.count("train.list", named, workers=2, again=True), pydp2.ListCount)
assert_type(pydp2.connect("ipc:///tmp/address", batch_size=1, timeout=2.0), pydp2.Client)

with pydp2.mix({"a.list": 0.7, "b.list": 0.3}, named, batch_size=8, seed=1, workers=2) as mixed:
    assert_type(mixed, pydp2.Client)
    assert_type(mixed.set_weights({"a.list": 1, "b.list": 0}), tuple[int, int])
    for mixed_batch in mixed:
        assert isinstance(mixed_batch, pydp2.MixedBatch)
        assert_type(mixed_batch.source, NDArray[np.int32])
with (
    pydp2.mix({"a": "a.list"}, named, weights=[(0, {"a": 1.0})], linear=True, batch_size=8) as scheduled,
    pydp2.pack_sequences(scheduled, slot="tokens", length=4096, batch_size=8, balance="attention") as rows,
):
    assert_type(rows, pydp2.Client)
    for packed in rows:
        if isinstance(packed, pydp2.PackedBatch):
            assert_type(packed["tokens"], NDArray[Any])
            assert_type(packed.cu_seqlens, NDArray[np.int32])
            assert_type(packed.segments.row, NDArray[np.int64])

train, test = pydp2.define_py_data_sources2("train.list", None, "module", "process", args={"n": 1})
assert_type(train, pydp2.Source | None)
if train is not None:
    pydp2.load(train, batch_size=8).close()


samples = named.reader(["part-00.txt"], is_train=False)
assert_type(next(samples()), tuple[Any, ...])
with pydp2.load("train.list", named, batch_size=128) as data:
    assert_type(next(data.reader()()), tuple[Any, ...])
assert_type(reader.shuffle(reader.buffered(samples, 10), 5, seed=1), Callable[[], Iterable[Any]])
for mini_batch in reader.batch(reader.xmap_readers(len, samples, 2, 4, processes=True), 32)():
    assert_type(mini_batch, list[Any])
assert_type(reader.DataFeeder({"x": integer_value(3)}, {"x": 0})([(1,)]).frames, dict[str | int, tuple[int, int]])
assert_type(reader.provider_from_reader(reader.text_file, input_types=[integer_value(3)]), pydp2.Provider)

assert_type(pydp2.replay("bad.jsonl", "module.process", root=".").ok, bool)


def use(ragged: pydp2.Ragged, csr: pydp2.Csr) -> None:
    ragged.pad(0, length=10)
    assert_type(len(ragged), int)
    assert_type(csr.shape, tuple[int, int])
    assert_type(csr.values, NDArray[np.float32] | None)


def use_strings(texts: pydp2.StringArray, binaries: pydp2.BinaryArray) -> None:
    assert_type(texts[0], str)
    assert_type(texts[1:], pydp2.StringArray)
    assert_type(texts.to_list(), list[str])
    assert_type(binaries[0], bytes)
    for binary in binaries:
        assert_type(binary, bytes)


assert_type(text(), pydp2.InputType)
assert_type(scalar(np.int64), pydp2.InputType)

stacked = fluid.double_buffer(fluid.batch(fluid.shuffle(fluid.open_files("a.recordio", [[-1, 1]]), 100), 4))
assert_type(stacked.read_next(), tuple[fluid.LoDTensor, ...])
assert_type(stacked.has_next(), bool)
for instance in stacked:
    assert_type(fluid.to_ragged(instance[0]), pydp2.Ragged)
fluid.multi_pass(lambda: [(np.zeros(3), 1)], 3).close()


@fluid.register_file_reader("lines")
def lines(filename: str, shapes: Any) -> Iterator[Any]:
    yield [[len(filename)]]


# Options: every form that is taken, and what a type checker flags.
pydp2.launch(
    "train.list",
    named,
    workers=np.int64(2),
    start="spawn",
    memory_limit="2GiB",
    sample_timeout=1,
    error_budget=0.01,
    quarantine=Path("bad.jsonl"),
    cache_dir="cache",
    input_order=["pixel", "label"],
)
pydp2.connect("ipc:///tmp/a", batch_size=np.int32(8), pool_bytes=1 << 20, bucket_by="words", bucket_bounds=[8, 16])
pydp2.load("train.list", named, batch_size=8, rank=0, world_size=1, job="a", workers=2, last_batch="pad", lease=3)
pydp2.bench("train.list", named, seconds=1.0, workers=2, shuffle=False)
reader.cloud_reader("ipc:///tmp/a", interleave=4)

pydp2.connect("ipc:///tmp/a", batch_size=1, sed=3)  # type: ignore[call-arg]
pydp2.connect("ipc:///tmp/a", seed=3)  # type: ignore[call-arg]
pydp2.connect("ipc:///tmp/a", batch_size=1, workers=2)  # type: ignore[call-arg]
pydp2.connect("ipc:///tmp/a", batch_size="1")  # type: ignore[arg-type]
pydp2.connect("ipc:///tmp/a", batch_size=1, last_batch="keeep")  # type: ignore[arg-type]
pydp2.connect("ipc:///tmp/a", batch_size=1, timeout="2")  # type: ignore[arg-type]
pydp2.launch("train.list", named, worker=2)  # type: ignore[call-arg]
pydp2.launch("train.list", named, batch_size=2)  # type: ignore[call-arg]
pydp2.launch("train.list", named, start="fork")  # type: ignore[arg-type]
pydp2.launch("train.list", named, input_order="pixel")  # type: ignore[arg-type]
pydp2.load("train.list", named, workers=2)  # type: ignore[call-arg]
pydp2.load("train.list", named, batch_size=2, drop_last=True)  # type: ignore[call-arg]
pydp2.launch("train.list", named).connect(batch_size=2, sede=1)  # type: ignore[call-arg]
pydp2.bench("train.list", named, second=1.0)  # type: ignore[call-arg]
reader.cloud_reader("ipc:///tmp/a", batch_size=4)  # type: ignore[call-arg]
reader.provider_from_reader(reader.text_file, input_type=[integer_value(3)])  # type: ignore[call-arg]
provider(input_types=[integer_value(3)], pool_sise=4)  # type: ignore[call-arg]

pydp2.lod("train.list", named, batch_size=2)  # type: ignore[attr-defined]
assert_type(pydp2.packing(), str)
assert_type(pydp2.CacheFolder().entries(), list[pydp2.CacheEntry])

try:
    pydp2.launch("no.list", "no.process")
except pydp2.errors.ListError as error:
    assert_type(error, pydp2.errors.ListError)
except pydp2.errors.Error:
    pass
