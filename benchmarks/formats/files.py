"""Make the files of the workloads: seeded, once in a folder. Needs pyarrow for parquet, and nothing of pydp2."""

from __future__ import annotations

import io
import json
import shutil
import struct
import tarfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np

FILES = 8
TOKENS = 50_000
"""Size of the vocabulary."""
DOCUMENT, WINDOW = 512, 1024
"""Tokens of a document, and of a window of a token file."""
COLUMNS = 20
CLASSES = 10
SAMPLES = {
    "parquet_floats": 1_000_000,
    "parquet_text": 400_000,
    "jsonl_tokens": 64_000,
    "tar_100k": 4_000,
    "tar_20k": 16_000,
    "tokens": 160_000,
    "tfrecord_tokens": 128_000,
    "tfrecord_images": 16_000,
    "images": 16_000,
}
"""Samples of a pass at scale 1."""
IMAGE_BYTES = {"tar_100k": 100_000, "tar_20k": 20_000, "tfrecord_images": 20_000, "images": 20_000}
"""Bytes of a record, on average: they vary by a tenth."""
_GROUP = 1 << 16  # rows of a row group
_VERSION = 1


def count(workload: str, scale: float) -> int:
    """Return the number of samples of a pass."""
    return FILES * max(1, int(SAMPLES[workload] * scale) // FILES)


def make(workload: str, folder: Path, scale: float = 1.0) -> list[Path]:
    """Return the files of a workload, below ``folder``; make them unless they are there already.

    Raises:
        ModuleNotFoundError: a library that writes them is not installed.
    """
    samples = count(workload, scale) // FILES
    done = folder / f"{workload}-{samples * FILES}-v{_VERSION}"
    suffix = workload.partition("_")[0].replace("tokens", "bin")
    names = [f"part-{number}.{suffix}" for number in range(FILES)]
    if not done.exists():
        half = done.with_suffix(".tmp")
        shutil.rmtree(half, ignore_errors=True)  # incomplete data of a run that was interrupted
        half.mkdir(parents=True)
        for number, name in enumerate(names):
            _MAKERS[workload](half / name, samples, np.random.default_rng(number))
        half.rename(done)
    return [done / name for name in names]


def _parquet(path: Path, columns: dict[str, object]) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=_GROUP)


def _floats(path: Path, rows: int, random: np.random.Generator) -> None:
    _parquet(path, {f"f{i}": random.standard_normal(rows, dtype=np.float32) for i in range(COLUMNS)})


def _text(path: Path, rows: int, random: np.random.Generator) -> None:
    """Lines of 10 to 30 words of 3 to 9 letters."""
    letters = random.integers(97, 123, (5000, 9), np.uint8)
    words = [row[: 3 + i % 7].tobytes().decode() for i, row in enumerate(letters)]
    chosen = random.integers(0, len(words), (rows, 30)).tolist()
    lengths = random.integers(10, 31, rows).tolist()
    lines = [" ".join([words[i] for i in line[:length]]) for line, length in zip(chosen, lengths, strict=True)]
    _parquet(path, {"text": lines})


def _documents(random: np.random.Generator, count: int) -> np.ndarray:
    return random.integers(0, TOKENS, (count, DOCUMENT))


def _jsonl(path: Path, lines: int, random: np.random.Generator) -> None:
    with path.open("w") as file:
        for document in _documents(random, lines):
            file.write(json.dumps({"tokens": document.tolist()}) + "\n")


def _images(workload: str, random: np.random.Generator, count: int) -> list[bytes]:
    size = IMAGE_BYTES[workload]
    sizes = random.integers(size * 9 // 10, size * 11 // 10, count)
    return [random.bytes(int(each)) for each in sizes]


def _tar(workload: str, path: Path, count: int, random: np.random.Generator) -> None:
    with tarfile.open(path, "w") as archive:
        for number, image in enumerate(_images(workload, random, count)):
            for suffix, data in (("jpg", image), ("cls", b"%d" % (number % CLASSES))):
                member = tarfile.TarInfo(f"{number:08d}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def _folder(path: Path, count: int, random: np.random.Generator) -> None:
    """A folder with a folder for each of ten classes."""
    for number, image in enumerate(_images("images", random, count)):
        folder = path / f"class{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:08d}.jpg").write_bytes(image)


def _tokens(path: Path, windows: int, random: np.random.Generator) -> None:
    random.integers(0, TOKENS, windows * WINDOW, np.uint16).tofile(path)


# -- TFRecord, without TensorFlow --------------------------------------------------------------------------------------
def _tfrecord(path: Path, examples: list[dict[str, bytes]]) -> None:
    with path.open("wb") as file:
        for features in examples:
            entries = [_field(1, _field(1, name.encode()) + _field(2, value)) for name, value in features.items()]
            data = _field(1, b"".join(entries))
            head = struct.pack("<Q", len(data))
            file.write(head + _checksum(head) + data + _checksum(data))


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(data + bytes([value]))


_short_varint = cache(_varint)


def _integers(values: list[int]) -> bytes:
    return _field(3, _field(1, b"".join(map(_short_varint, values))))


def _checksum(data: bytes) -> bytes:
    import google_crc32c

    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _tfrecord_tokens(path: Path, count: int, random: np.random.Generator) -> None:
    _tfrecord(path, [{"tokens": _integers(document)} for document in _documents(random, count).tolist()])


def _tfrecord_images(path: Path, count: int, random: np.random.Generator) -> None:
    images = _images("tfrecord_images", random, count)
    _tfrecord(
        path,
        [{"image": _field(1, _field(1, image)), "label": _integers([i % CLASSES])} for i, image in enumerate(images)],
    )


_MAKERS: dict[str, Callable[[Path, int, np.random.Generator], None]] = {
    "parquet_floats": _floats,
    "parquet_text": _text,
    "jsonl_tokens": _jsonl,
    "tar_100k": partial(_tar, "tar_100k"),
    "tar_20k": partial(_tar, "tar_20k"),
    "images": _folder,
    "tokens": _tokens,
    "tfrecord_tokens": _tfrecord_tokens,
    "tfrecord_images": _tfrecord_images,
}
