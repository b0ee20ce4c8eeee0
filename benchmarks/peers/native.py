"""Provide the samples of a workload, as bytes and labels, to peers with their own file formats.

Each of them writes its format once, beside the data of the workload, before its first pass.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.job import HEADER, Batch, Job

Sample = tuple[np.ndarray | bytes, int]


def _rows(path: str) -> Iterator[Sample]:
    for number, row in enumerate(np.load(path, mmap_mode="r")):
        yield row, number % 10


def _pictures(path: str) -> Iterator[Sample]:
    with open(path, "rb") as file:
        while head := file.read(HEADER.size):
            label, size = HEADER.unpack(head)
            yield file.read(size), label


_READ = {"rows": _rows, "jpeg": _pictures}


def stored(job: Job) -> Iterator[Sample]:
    """Yield the stored samples of all files of the list: a row, or the bytes of a picture, and the label."""
    for path in job.files():
        yield from _READ[job.workload](path)


def decoded(value: np.ndarray | bytes) -> np.ndarray:
    """Return the array of a stored sample."""
    if isinstance(value, bytes):
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(value)))
    return value


def collated(job: Job, samples: list[tuple[np.ndarray, int]]) -> Batch:
    """Return ``samples`` as a batch."""
    return job.kind.collate(samples)


def converted(job: Job, name: str, write: Callable[[Path], Any]) -> Path:
    """Return the folder ``name`` beside the data of the workload; if it does not exist, ``write`` fills it."""
    folder = Path(job.folder) / f"{name}-of-{len(job.files())}"
    if not folder.exists():
        half = folder.with_suffix(".tmp")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir()
        write(half)
        half.rename(folder)
    return folder
