"""Providers of :mod:`benchmarks.resume`: the same samples, in blocks from memory, read in three ways.

They count the samples that they yield again: those that the pass had merged when the state was taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from pydp2 import dense_vector, provider, rows
from pydp2.data.packers.many_samples import ManySamples

WIDTH = 4
BLOCK = 1000  # samples of one yield
SLOTS = 64  # processes that may count at the same time
MERGED, COUNTS = "BENCHMARK_MERGED", "BENCHMARK_COUNTS"
"""Environment variables with the paths of two files of int64: the sample index up to which each file was merged, and
the number of samples that each process has read again."""

_values = np.tile(np.arange(BLOCK * WIDTH, dtype=np.float32).reshape(BLOCK, WIDTH), (2, 1))  # of samples y % BLOCK


def _read(filename: str, indices: np.ndarray | None, start: int = 0) -> Iterator[ManySamples]:
    """Yield the samples of a file, whose name is its number and how many samples it has."""
    number, count = map(int, filename.split("+"))
    merged = int(np.memmap(os.environ[MERGED], np.int64, "r")[number])
    counts = np.memmap(os.environ[COUNTS], np.int64, "r+")
    first, total = start, count - start if indices is None else len(indices)
    for done in range(0, total, BLOCK):
        size = min(BLOCK, total - done)
        again = min(size, max(0, merged - first - done)) if indices is None else size
        counts[os.getpid() % SLOTS] += again
        at = (first + done) % BLOCK
        yield rows(_values[at : at + size] if indices is None else _values[indices[done : done + size] % BLOCK])


@provider(input_types=[dense_vector(WIDTH)])
def whole(settings: Any, filename: str) -> Iterator[ManySamples]:
    """Read each file from its first sample."""
    return _read(filename, None)


@provider(input_types=[dense_vector(WIDTH)])
def start(settings: Any, filename: str, start: int) -> Iterator[ManySamples]:
    """Read each file from any sample."""
    return _read(filename, None, start)


@provider(input_types=[dense_vector(WIDTH)])
def indices(settings: Any, filename: str, start: int, indices: Any) -> Iterator[ManySamples]:
    """Read chosen samples alone, too."""
    return _read(filename, indices, start)
