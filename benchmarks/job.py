"""Define the job of all contestants: readers of one file, the form of a batch, and the totals of a whole pass.

A reader is a generator over the samples of one file, as a user writes it. Samples are tuples, the label last. The
providers of pydp2, the loop of the bare generator and the datasets of the peers use the same functions. This module
does not import pydp2.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import prepared, streams

BATCH = 128
WORDS = 30_000  # entries of the dictionary
SIDE = prepared.SIDE  # width and height of a picture in pixels
HEADER = struct.Struct("<II")  # label and number of bytes, before each picture of a file
Batch = dict[str, np.ndarray]


# -- readers -----------------------------------------------------------------------------------------------------------
def mnist_text(settings: Any, filename: str) -> Iterator[Any]:
    with open(filename) as lines:
        for line in lines:
            label, pixels = line.split(";")
            yield [float(p) for p in pixels.split()], int(label)


def words(settings: Any, filename: str) -> Iterator[Any]:
    dictionary = settings.dictionary
    with open(filename) as lines:
        for line in lines:
            label, text = line.split("\t")
            yield [dictionary[word] for word in text.split()], int(label)


def ctr(settings: Any, filename: str) -> Iterator[Any]:
    with open(filename) as lines:
        for line in lines:
            label, ids, pairs = line.split("\t")
            values = []
            for pair in pairs.split():
                index, value = pair.split(":")
                values.append((int(index), float(value)))
            yield [int(i) for i in ids.split()], values, int(label)


def rows(settings: Any, filename: str) -> Iterator[Any]:
    array = np.load(filename)
    for i in range(len(array)):
        yield array[i], i % 10


def jpeg(settings: Any, filename: str) -> Iterator[Any]:
    from PIL import Image

    with open(filename, "rb") as file:
        while head := file.read(HEADER.size):
            label, size = HEADER.unpack(head)
            yield np.asarray(Image.open(io.BytesIO(file.read(size)))), label


def samples_again(settings: Any, filename: str) -> Iterator[Any]:
    """Yield the prepared samples one by one, as many times as the data say."""
    for _ in range(settings.times):
        yield from settings.samples


def batches_again(settings: Any, filename: str) -> Iterator[Batch]:
    """Yield the prepared samples as finished batches, which need no collation."""
    for _ in range(settings.times):
        yield from settings.batches


def read_dictionary(path: Path) -> dict[str, int]:
    with open(path) as lines:
        return {word: int(i) for word, i in (line.split("\t") for line in lines)}


def prepare(settings: Any, workload: str, folder: str) -> None:
    """Prepare the settings for a reader: the dictionary for ``words``, the samples for a prepared workload."""
    if workload == "words":
        settings.dictionary = read_dictionary(Path(folder) / "dictionary.txt")
    kind, form = prepared.kind_and_form(workload)
    if form:
        settings.arrays = prepared.arrays(kind)
        settings.times = read_meta(folder)["files"][0][1] // prepared.count(kind)
        if form == "blocks":
            settings.batches = prepared.parts(settings.arrays, BATCH)
        else:
            settings.samples = prepared.samples(kind, settings.arrays)


def read_meta(folder: str) -> dict[str, Any]:
    """Return the description of the data: name, samples, sum of labels, and elements of each file."""
    return json.loads((Path(folder) / "meta.json").read_text())


# -- batches: lists of samples to numpy, in the fastest way of plain numpy ---------------------------------------------
def _labels(column: tuple[int, ...]) -> np.ndarray:
    return np.fromiter(column, np.int64, len(column))


def _starts(column: tuple[Any, ...]) -> np.ndarray:
    starts = np.zeros(len(column) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, column), np.int64, len(column)), out=starts[1:])
    return starts


def _flat(column: tuple[Any, ...], starts: np.ndarray) -> np.ndarray:
    return np.fromiter(chain.from_iterable(column), np.int64, starts[-1])


def _numbers(name: str, width: int, samples: list[Any]) -> Batch:
    numbers, label = zip(*samples, strict=True)
    flat = np.fromiter(chain.from_iterable(numbers), np.float32, width * len(samples))
    return {name: flat.reshape(-1, width), "label": _labels(label)}


def _ids(samples: list[Any]) -> Batch:
    ids, label = zip(*samples, strict=True)
    starts = _starts(ids)
    return {"ids": _flat(ids, starts), "starts": starts, "label": _labels(label)}


def _clicks(samples: list[Any]) -> Batch:
    ids, pairs, label = zip(*samples, strict=True)
    starts, pair_starts = _starts(ids), _starts(pairs)
    indices, values = zip(*chain.from_iterable(pairs), strict=True)
    return {
        "ids": _flat(ids, starts),
        "starts": starts,
        "indices": np.array(indices, np.int64),
        "values": np.array(values, np.float32),
        "pair_starts": pair_starts,
        "label": _labels(label),
    }


def _arrays(name: str, samples: list[Any]) -> Batch:
    arrays, label = zip(*samples, strict=True)
    return {name: np.stack(arrays), "label": _labels(label)}


@dataclass(frozen=True)
class Workload:
    """One kind of data: its reader, the collation of a batch, and the arrays of a batch whose elements are counted.

    Args:
        finished: the reader yields batches, which peers pass on unchanged.
    """

    name: str
    read: Callable[[Any, str], Iterator[Any]]
    collate: Callable[[list[Any]], Batch]
    counted: tuple[str, ...]
    pool: int = 4096
    finished: bool = False


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("mnist_text", mnist_text, partial(_numbers, "pixel", 784), ("pixel",)),
        Workload("words", words, _ids, ("ids",)),
        Workload("ctr", ctr, _clicks, ("ids", "indices")),
        Workload("rows", rows, partial(_arrays, "row"), ("row",)),
        # A smaller pool: 4096 decoded pictures are 0.8 GB, and peers have a pool in each worker.
        Workload("jpeg", jpeg, partial(_arrays, "picture"), ("picture",), pool=512),
    )
}

_PREPARED = {
    "dense": (partial(_numbers, "row", 20), ("row",)),
    "ragged": (_ids, ("ids",)),
    "sparse": (_clicks, ("ids", "indices")),
    "rows_u8": (partial(_arrays, "row"), ("row",)),
    "rows_f32": (partial(_arrays, "row"), ("row",)),
    "picture": (partial(_arrays, "picture"), ("picture",)),
}


def _prepared(kind: str, form: str) -> Workload:
    collate, counted = _PREPARED[kind]
    return Workload(
        prepared.named(kind, form),
        batches_again if form == "blocks" else samples_again,
        collate,
        counted,
        pool=512 if kind == "picture" else 4096,
        finished=form == "blocks",
    )


PREPARED = {of.name: of for of in (_prepared(kind, form) for kind in prepared.KINDS for form in prepared.FORMS)}


def shuffled_batches(samples: Iterable[Any], workload: Workload, seed: int) -> Iterator[Batch]:
    """Return batches behind the usual shuffle buffer of a streaming dataset, as in the workers of most peers."""
    return streams.shuffled_batches(samples, workload.pool, workload.collate, BATCH, seed)


def _batches(
    read: Callable[[str], Iterator[Any]], workload: Workload, files: Iterable[str], seed: int
) -> Iterator[Batch]:
    stream = (item for file in files for item in read(file))
    return stream if workload.finished else shuffled_batches(stream, workload, seed)


# -- one run -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Total:
    """Totals of a pass that has each sample exactly once."""

    samples: int
    labels: int
    elements: int


@dataclass(frozen=True)
class Job:
    """One run of one contestant, as plain data that can be sent to another interpreter.

    Args:
        folder: folder with the data of the workload, and ``meta.json``.
        options: options of the contestant, such as ``{"order": "relaxed"}``, and of the run: ``times``, number of times
            that a pass reads the list; ``step``, see :mod:`benchmarks.latency`.
    """

    peer: str
    workload: str
    folder: str
    workers: int = 2
    passes: int = 2
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)

    @property
    def kind(self) -> Workload:
        return (WORKLOADS | PREPARED)[self.workload]

    def files(self) -> list[str]:
        """Return the list, in order; it may have a file several times."""
        return [str(Path(self.folder) / name) for name, *_ in self._meta()]

    def total(self) -> Total:
        meta = self._meta()
        return Total(*(sum(column) for column in list(zip(*meta, strict=True))[1:]))

    def reader(self) -> Callable[[str], Iterator[Any]]:
        """Return the reader of the workload, with prepared settings."""
        settings = SimpleNamespace()
        prepare(settings, self.workload, self.folder)
        return partial(self.kind.read, settings)

    def batches(self) -> Callable[[Iterable[str], int], Iterator[Batch]]:
        """Return the function with which a worker of a peer makes batches of its files and a seed."""
        return partial(_batches, self.reader(), self.kind)

    def _meta(self) -> list[tuple[str, int, int, int]]:
        meta = read_meta(self.folder)
        return [tuple(entry) for entry in meta["files"]] * (meta["times"] * self.option("times", 1))
