"""``python -m benchmarks.binary_formats [--megabytes 128]``: reading idx and RecordIO beside reading only the bytes.

Files are in the page cache, so the reader is measured and not the disk. Only the bytes means: the file is read into one
buffer of 1 MiB, without allocation or parsing. Medians of 5, in MB of the file per second.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from pydp2.formats import dmlc_recordio, idx, paddle_recordio

ROUNDS = 5
_BUFFER = 1 << 20
_ROWS = 1000


def seconds(*works: Callable[[], object]) -> list[float]:
    """Return the median of each work; all are run in turns, after one round that does not count."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS + 1):
        for work, times in zip(works, taken, strict=True):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    return [statistics.median(times[1:]) for times in taken]


def bytes_alone(path: Path) -> None:
    buffer = memoryview(bytearray(_BUFFER))
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def drained(samples: Iterable[object]) -> None:
    for _ in samples:
        pass


def by_rows(path: Path) -> None:
    with idx.Reader(path) as reader:
        for first in range(0, len(reader), _ROWS):
            reader.rows(first, min(len(reader), first + _ROWS))


def show(what: str, path: Path, work: Callable[[], object], count: int) -> None:
    megabytes = path.stat().st_size / 1e6
    alone, taken = seconds(lambda: bytes_alone(path), work)
    print(
        f"{what:44} {megabytes / taken:8.0f} {megabytes / alone:8.0f} {alone / taken:7.2f} {count / taken:12,.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.binary_formats")
    parser.add_argument("--megabytes", type=int, default=128, help="of each file; default: 128")
    total = parser.parse_args().megabytes << 20
    noise = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
    print(f"{'':44} {'MB/s':>8} {'alone':>8} {'share':>7} {'samples/s':>12}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        for size in (100_000, 10_000, 1_000, 100):
            count = total // max(size, 400)  # fewer bytes for small records
            records = [noise[i * 997 :][:size].tobytes() for i in range(50)]
            dmlc_recordio.write(path, (records[i % 50] for i in range(count)))
            show(f"dmlc RecordIO, records of {size} bytes", path, lambda: drained(dmlc_recordio.read(path)), count)
            paddle_recordio.write(path, (records[i % 50] for i in range(count)))
            show(f"Paddle RecordIO, records of {size} bytes", path, lambda: drained(paddle_recordio.read(path)), count)
        for dtype in (np.uint8, np.float32):
            count = total // (784 * np.dtype(dtype).itemsize)
            idx.write(path, np.resize(noise, (count, 28, 28)).astype(dtype))
            name = np.dtype(dtype).name
            show(f"idx {name}, {_ROWS} rows at a time", path, lambda: by_rows(path), count)
            show(f"idx {name}, one array", path, lambda: idx.read(path), count)


if __name__ == "__main__":
    main()
