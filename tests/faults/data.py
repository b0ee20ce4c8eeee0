"""Samples whose content follows from their names, and what an independent oracle says of their order.

The order comes from tests/order/oracle.py, one process with plain lists, written from the rules; the content from the
formula below, said a second time in numpy. Nothing here asks pydp2 what is right.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

import pydp2

from ..order.oracle import File, Options, Row, expect

CODE = """
import os, time
import numpy.random  # before some generator lowers the recursion limit, under which it cannot be imported
from pydp2 import *

def hook(settings, counts, more, **kwargs):
    settings.counts, settings.more = counts, more

@provider(
    input_types={"name": integer_value(1 << 62), "words": integer_value_sequence(1000)}, init_hook=hook, ARGUMENTS
)
def process(settings, filename):
    file = int(filename.split("-")[1])
    for y in range(settings.counts[file]):
        EXTRA
        yield {"name": file << 32 | y, "words": [(7 * y + 13 * j + file) % 1000 for j in range((file + y) % 5)]}
"""


@dataclass(frozen=True)
class Dataset:
    """Files with so many samples each, and how they are shuffled. ``extra``: a line of the generator before each yield;
    it sees ``settings.more`` (plain data), ``file`` and ``y``."""

    counts: tuple[int, ...]
    pool_size: int = 2000
    arguments: str = ""
    extra: str = "pass"
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def files(self) -> list[str]:
        return [f"file-{number:05d}" for number in range(len(self.counts))]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def write(self, folder: Path, name: str = "faulty") -> str:
        """Write the provider into ``folder``; its address."""
        arguments = f"pool_size={self.pool_size}" + (f", {self.arguments}" if self.arguments else "")
        path = folder / f"{name}.py"
        path.write_text(CODE.replace("ARGUMENTS", arguments).replace("EXTRA", self.extra))
        return f"{path}:process"

    def args(self) -> dict[str, Any]:
        """What the hook is given."""
        return {"counts": list(self.counts), "more": dict(self.more)}


@dataclass(frozen=True)
class Expected:
    """A pass: the names of all samples in their order, where each batch begins, the weight of the pool at each, and the
    bounds of buckets, where there are any."""

    names: np.ndarray[Any, Any]
    edges: tuple[int, ...]
    pool_weights: tuple[int, ...]
    bounds: tuple[int, ...] | None = None

    @property
    def batches(self) -> int:
        return len(self.edges) - 1

    def batch(self, index: int) -> np.ndarray[Any, Any]:
        """The names of batch ``index``."""
        return self.names[self.edges[index] : self.edges[index + 1]]

    def lines(self, pass_id: int) -> list[str]:
        """The batches as trainers of the battery write them down: pass, index, checksum, weight of the pool."""
        return [
            f"{pass_id} {index} {sign_expected(self.batch(index))} {self.pool_weights[index]}"
            for index in range(self.batches)
        ]


@functools.lru_cache(maxsize=32)
def expected(
    counts: tuple[int, ...],
    pool_size: int,
    batch_size: int,
    seed: int,
    pass_id: int = 0,
    shuffle: bool = True,
    ends: tuple[tuple[int, int], ...] = (),
    last_batch: Literal["keep", "drop", "pad"] = "keep",
    cached: bool = False,
    buckets: int = 0,
    bounds: tuple[int, ...] | None = None,
    group: int = 1,
) -> Expected:
    """What the oracle says of a pass over files with so many samples. ``ends``: (file, y) where a file ends early.
    ``buckets`` are of the words, ``bounds`` those that pass 0 drew."""
    last = dict(ends)
    row = [Row(length=length) for length in range(5)]  # of the words, as the generator says
    files = [
        File([row[(n + y) % 5] for y in range(min(count, last.get(n, count)))], n in last)
        for n, count in enumerate(counts)
    ]
    options = Options(
        batch_size=batch_size, seed=seed, pool_size=pool_size, shuffle=shuffle, skip=True, last_batch=last_batch,
        cached=cached, buckets=buckets, group=group,
    )  # fmt: skip
    said = expect(files, options, pass_id, bounds)
    edges = [0]
    for batch in said.batches:
        edges.append(edges[-1] + len(batch))
    names = np.array([file << 32 | y for batch in said.batches for file, y in batch], np.int64)
    return Expected(names, tuple(edges), tuple(said.pool_weights), said.bounds)


def words_of(names: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The words of samples of these names, and where each sequence of them begins."""
    file, y = names >> 32, names & 0xFFFFFFFF
    lengths = (file + y) % 5
    starts = np.concatenate([[0], np.cumsum(lengths)])
    j = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    return (7 * np.repeat(y, lengths) + 13 * j + np.repeat(file, lengths)) % 1000, starts


def sign(names: np.ndarray[Any, Any], words: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> int:
    """A checksum over a batch: names, words, and where sequences begin."""
    crc = 0
    for array in (names, words, starts):
        crc = zlib.crc32(np.ascontiguousarray(array, np.int64).tobytes(), crc)
    return crc


def sign_expected(names: np.ndarray[Any, Any]) -> int:
    """The checksum that a batch of these names must have."""
    return sign(names, *words_of(names))


def sign_batch(batch: pydp2.Batch) -> int:
    """The checksum of a batch that came."""
    words = batch["words"]
    return sign(batch["name"], words.values, words.sequence_start_positions)


class Judge:
    """Compares the batches of a pass with what is expected, one by one, as they come."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self.seen = 0

    def take(self, batch: pydp2.Batch) -> None:
        """The next batch; AssertionError where it is another."""
        index, wanted = batch.index, self.expected
        assert index == self.seen, f"batch {index} came where batch {self.seen} was next"
        assert index < wanted.batches, f"batch {index} came, the pass has {wanted.batches}"
        names = wanted.batch(index)
        assert np.array_equal(batch["name"], names), f"batch {index} holds {told(batch['name'])}, not {told(names)}"
        words, starts = words_of(names)
        assert np.array_equal(batch["words"].sequence_start_positions, starts), f"batch {index}: lengths of words"
        assert np.array_equal(batch["words"].values, words), f"batch {index}: the words are others"
        assert batch.pool_weight == wanted.pool_weights[index], f"batch {index}: the pool weighed {batch.pool_weight}"
        self.seen += 1

    def all(self, client: pydp2.Client) -> None:
        """A whole pass of ``client``."""
        for batch in client:
            self.take(batch)
        self.end()

    def end(self) -> None:
        """The pass is over; AssertionError where something is missing."""
        assert self.seen == self.expected.batches, f"{self.seen} of {self.expected.batches} batches came"


def told(names: Sequence[int] | np.ndarray[Any, Any]) -> str:
    """Names for an error: (file, y) of the first few."""
    some = [f"({int(name) >> 32}, {int(name) & 0xFFFFFFFF})" for name in names[:5]]
    return f"{' '.join(some)}{' …' if len(names) > 5 else ''} [{len(names)}]"


def nothing_but(counts: tuple[int, ...], file: int, y: int, what: str) -> Dataset:
    """A dataset whose generator does ``what`` instead of yielding sample ``y`` of ``file``."""
    extra = f"if (file, y) == ({file}, {y}):\n            {what}\n            continue"
    return Dataset(counts, pool_size=500, extra=extra)
