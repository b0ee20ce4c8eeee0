"""Read the files of a workload with the library that most people use, into numpy, without pydp2.

:func:`blocks` is the least that any loader has to do. :func:`samples` gives single samples to a shuffle buffer, and
:func:`collate` makes a batch of them: both for peers, whose datasets are made of this module. Text and the bytes of
pictures become lists of str and arrays of uint8.
"""

from __future__ import annotations

import os
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.formats.files import WINDOW

Batch = dict[str, Any]
_BLOCK = 1 << 13  # rows of parquet, or lines
_HEAD = struct.Struct("<QI")
_SUM = struct.Struct("<I")


def blocks(workload: str, path: str) -> Iterator[int]:
    """Read a file into numpy in the fastest way of its library; yield the number of samples of each block."""
    if workload.startswith("parquet"):
        for batch in _record_batches(path):
            for column in batch.columns:
                column.to_numpy(zero_copy_only=False)
            yield len(batch)
    else:
        for _ in samples(workload, path):
            yield 1


def samples(workload: str, path: str) -> Iterator[Any]:
    """Yield the samples of a file: an array or text; for pictures the bytes, and a label."""
    return _SAMPLES[workload](path)


def _record_batches(path: str) -> Iterator[Any]:
    from pyarrow import parquet

    return parquet.ParquetFile(path, pre_buffer=False).iter_batches(batch_size=_BLOCK, use_threads=False)


def _parquet_floats(path: str) -> Iterator[Any]:
    for batch in _record_batches(path):
        yield from np.stack([column.to_numpy() for column in batch.columns], axis=1)


def _parquet_text(path: str) -> Iterator[Any]:
    for batch in _record_batches(path):
        yield from batch.column(0).to_pylist()


def _jsonl_tokens(path: str) -> Iterator[Any]:
    import msgspec

    line_type = msgspec.defstruct("Line", [("tokens", list[int])])
    decode = msgspec.json.Decoder(line_type).decode
    with open(path, "rb") as lines:
        for line in lines:
            yield np.array(decode(line).tokens, np.int64)


def _tar(path: str) -> Iterator[Any]:
    with tarfile.open(path, "r:") as archive:
        image = b""
        for member in archive:
            data = archive.extractfile(member).read()
            if member.name.endswith(".jpg"):
                image = data
            else:
                yield np.frombuffer(image, np.uint8), int(data)


def _images(path: str) -> Iterator[Any]:
    for label, folder in enumerate(sorted(Path(path).iterdir())):
        for picture in sorted(entry.path for entry in os.scandir(folder)):
            with open(picture, "rb") as file:
                yield np.frombuffer(file.read(), np.uint8), label


def _tokens(path: str) -> Iterator[Any]:
    tokens = np.memmap(path, np.uint16, "r")
    for at in range(0, len(tokens) - WINDOW + 1, WINDOW):
        yield tokens[at : at + WINDOW].astype(np.int64)


def _features(path: str) -> Iterator[Any]:
    """Yield the features of each tf.train.Example, with both checksums checked, as TensorFlow reads them."""
    import google_crc32c
    from tfrecord import example_pb2

    def masked(data: bytes) -> int:
        crc = google_crc32c.value(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    with open(path, "rb") as file:
        while head := file.read(_HEAD.size):
            length, checksum = _HEAD.unpack(head)
            data = file.read(length)
            if masked(head[:8]) != checksum or masked(data) != _SUM.unpack(file.read(4))[0]:
                raise ValueError("a checksum is wrong")
            yield example_pb2.Example.FromString(data).features.feature


def _tfrecord_tokens(path: str) -> Iterator[Any]:
    for feature in _features(path):
        yield np.array(feature["tokens"].int64_list.value, np.int64)


def _tfrecord_images(path: str) -> Iterator[Any]:
    for feature in _features(path):
        yield np.frombuffer(feature["image"].bytes_list.value[0], np.uint8), feature["label"].int64_list.value[0]


_SAMPLES = {
    "parquet_floats": _parquet_floats,
    "parquet_text": _parquet_text,
    "jsonl_tokens": _jsonl_tokens,
    "tar_100k": _tar,
    "tar_20k": _tar,
    "images": _images,
    "tokens": _tokens,
    "tfrecord_tokens": _tfrecord_tokens,
    "tfrecord_images": _tfrecord_images,
}


def collate(some: list[Any]) -> Batch:
    """Return samples as a batch: ``data``, rows of one length or a list of str; for pictures ``data``, all bytes one
    after the other, their ``offsets``, and ``label``."""
    if isinstance(some[0], str):
        return {"data": some}
    if isinstance(some[0], tuple):
        images, labels = zip(*some, strict=True)
        sizes = np.fromiter(map(len, images), np.int64, len(images))
        return {
            "data": np.concatenate(images),
            "offsets": np.concatenate(([0], np.cumsum(sizes))),
            "label": np.array(labels, np.int64),
        }
    return {"data": np.stack(some)}
