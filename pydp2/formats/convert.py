"""One format into another, sample by sample: files may be larger than memory.

It answers for which pairs there are and what an option means for them; reading and writing is the formats' own. What is
written lies beside the target under another name until it is whole.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pydp2.errors import OptionError
from pydp2.formats import comma, dmlc_recordio, idx, libsvm, lst, paddle_recordio, record_index
from pydp2.formats.irheader import IRHeader, pack
from pydp2.formats.serving import BLOCK

FORMATS = ("idx", "csv", "libsvm", "rec", "paddle", "lst")
"""Their names here: ``rec`` is dmlc's RecordIO, ``paddle`` Paddle's."""

_SUFFIXES = {
    ".idx": "idx", ".csv": "csv", ".svm": "libsvm", ".libsvm": "libsvm", ".rec": "rec", ".recordio": "paddle",
    ".dat": "paddle", ".lst": "lst",
}  # fmt: skip
_BUFFER = 1 << 17
_UBYTE = re.compile(r"idx\d+-ubyte\Z")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a conversion may have to be told.

    Args:
        dtype: of an idx file that is made of CSV.
        shape: of one of its samples; default: as many values as there are columns.
        label: column of the label, where CSV becomes libsvm.
        dim: number of columns, where libsvm becomes CSV; the label is then the first column, before them.
        base: index of the first column in libsvm.
        header: whether CSV begins with a line of names.
        separator: of CSV.
        layout, packing: of a Paddle RecordIO file that is made.
        folder: where the paths of a list of images begin.
    """

    dtype: str = "float32"
    shape: tuple[int, ...] | None = None
    label: int = 0
    dim: int | None = None
    base: int = 0
    header: bool = False
    separator: str = ","
    layout: paddle_recordio.Layout = "go"
    packing: paddle_recordio.Packing = "none"
    folder: str = ""


Reader = Callable[[BinaryIO, Options], Iterator[Any]]
Writer = Callable[[Path, Iterator[Any], Options], int]


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    source_format: str | None = None,
    target_format: str | None = None,
    options: Options | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> int:
    """Write the samples of ``source`` to ``target``; how many there were.

    Args:
        source, target: files. A target that ends in ``.gz`` is compressed, where its format may be.
        source_format, target_format: one of :data:`FORMATS`; default: as the name says, see :func:`format_of`.
        options: see :class:`Options`.
        progress: called with the bytes of the source that were read so far.

    Raises:
        OptionError: there is no such conversion, or a sample that the target's format cannot hold.
        FormatError: the source is not what its format says.
        OSError: a file cannot be read or written.
    """
    pair = (source_format or format_of(source), target_format or format_of(target))
    if pair not in CONVERSIONS:
        ways = ", ".join(f"{one} → {other}" for one, other in CONVERSIONS)
        raise OptionError(f"{pair[0]} cannot become {pair[1]}; there are {ways}")
    read, write = CONVERSIONS[pair]
    given = options or Options()
    with io.BufferedReader(_Watched(source, progress), _BUFFER) as file, _written(Path(target)) as beside:
        return write(beside, read(file, given), given)


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that a file's name tells: by its suffix (``.gz`` behind it does not count), or ``…idx3-ubyte``.

    Raises:
        OptionError: it tells none.
    """
    name = Path(path).name.removesuffix(".gz")
    if _UBYTE.search(name):
        return "idx"
    try:
        return _SUFFIXES[Path(name).suffix]
    except KeyError:
        known = ", ".join(_SUFFIXES)
        raise OptionError(f"the name {name} does not tell a format ({known}); say it: {', '.join(FORMATS)}") from None


class _Watched(io.FileIO):
    """A file that tells how far it was read."""

    def __init__(self, path: str | os.PathLike[str], progress: Callable[[int], None]) -> None:
        super().__init__(path, "rb")
        self._progress, self._furthest = progress, 0

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer) or 0
        self._furthest = max(self._furthest, self.tell())
        self._progress(self._furthest)
        return count


@contextmanager
def _written(target: Path) -> Iterator[Path]:
    """A name beside ``target`` to write to, which becomes it at the end; with an error nothing is left of it. An index
    that is written with it goes along."""
    beside = target.with_name(f".{os.getpid()}.{target.name}")
    try:
        yield beside
        index = beside.with_suffix(".idx")
        if index.exists() and index != beside:
            index.replace(target.with_suffix(".idx"))
        beside.replace(target)
    finally:
        for left in {beside, beside.with_suffix(".idx")}:
            left.unlink(missing_ok=True)


# -- reading -----------------------------------------------------------------------------------------------------------
def _dmlc(file: BinaryIO, given: Options) -> Iterator[bytes]:
    return dmlc_recordio.read(file)


def _paddle(file: BinaryIO, given: Options) -> Iterator[bytes]:
    return paddle_recordio.read(file)


def _idx(file: BinaryIO, given: Options) -> Iterator[Any]:
    with idx.Reader(file) as reader:
        yield reader.dtype, reader.shape[1:]
        step = max(1, BLOCK * len(reader) // max(1, reader.dtype.itemsize * int(np.prod(reader.shape, dtype=float))))
        for at in range(0, len(reader), step):
            yield reader.rows(at, min(len(reader), at + step))


def _comma(file: BinaryIO, given: Options) -> Iterator[Any]:
    try:
        kind = np.dtype(given.dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in "fiu":
        raise OptionError(f"dtype must be one of numbers, got {given.dtype}")
    wide = kind if kind.kind == "f" else np.dtype(np.float64)  # 1.0 is a whole number, too; idx has at most 32 bits
    blocks = comma.read(file, dtype=wide, header=given.header, separator=given.separator)
    first = next(blocks, None)
    columns = 0 if first is None else first.shape[1]
    yield kind, given.shape or (columns,)
    if first is not None:
        yield first
        yield from blocks


def _labelled(file: BinaryIO, given: Options) -> Iterator[libsvm.Row]:
    for block in comma.read(file, dtype=np.float64, header=given.header, separator=given.separator):
        if not 0 <= given.label < block.shape[1]:
            raise OptionError(f"label must be one of {block.shape[1]} columns, from 0, got {given.label}")
        values = np.delete(block, given.label, axis=1).astype(np.float32)
        for label, row in zip(block[:, given.label].tolist(), values, strict=True):
            there = np.flatnonzero(row)
            yield libsvm.Row(label, there, row[there])


def _libsvm(file: BinaryIO, given: Options) -> Iterator[libsvm.Row]:
    return libsvm.read(file, base=given.base)


def _images(file: BinaryIO, given: Options) -> Iterator[tuple[int, bytes]]:
    for number, labels, name in lst.read(file):
        label = labels[0] if len(labels) == 1 else labels
        yield number, pack(IRHeader(0, label, number), Path(given.folder, name).read_bytes())


# -- writing -----------------------------------------------------------------------------------------------------------
def _to_dmlc(path: Path, records: Iterator[bytes], given: Options) -> int:
    count = 0
    with dmlc_recordio.Writer(path) as writer:
        for count, record in enumerate(records, 1):  # noqa: B007  # the last one is what is asked for
            writer.write(record)
    return count


def _to_paddle(path: Path, records: Iterator[bytes], given: Options) -> int:
    count = 0
    with paddle_recordio.Writer(path, layout=given.layout, packing=given.packing) as writer:
        for count, record in enumerate(records, 1):  # noqa: B007
            writer.write(record)
    return count


def _to_idx(path: Path, blocks: Iterator[Any], given: Options) -> int:
    dtype, sides = next(blocks)
    count = 0
    with idx.Writer(path, dtype, sides) as writer:
        for block in blocks:
            try:
                writer.write(block.reshape(len(block), *sides))
            except ValueError as error:
                raise OptionError(f"rows of {block[0].size} values cannot become {sides}: {error}") from None
            count += len(block)
    return count


def _to_comma(path: Path, blocks: Iterator[Any], given: Options) -> int:
    next(blocks)
    count = 0

    def counted() -> Iterator[Any]:
        nonlocal count
        for block in blocks:
            count += len(block)
            yield block.reshape(len(block), -1)

    comma.write(path, counted(), separator=given.separator)
    return count


def _to_libsvm(path: Path, rows: Iterator[libsvm.Row], given: Options) -> int:
    count = 0

    def counted() -> Iterator[libsvm.Row]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    libsvm.write(path, counted(), base=given.base)
    return count


def _dense(path: Path, rows: Iterator[libsvm.Row], given: Options) -> int:
    if given.dim is None:
        raise OptionError("libsvm becomes CSV with dim, the number of columns: the file does not tell it")
    dim, count = given.dim, 0

    def blocks() -> Iterator[Any]:
        nonlocal count
        for label, indices, values in rows:
            # as float32 where the label is one too: its numbers are shorter, and read back the same
            row = np.zeros((1, 1 + dim), np.float32 if np.float32(label) == label else np.float64)
            if len(indices) and indices.max() >= dim:
                raise OptionError(f"row {count} has column {int(indices.max())}, and dim={dim} ends before it")
            row[0, 0], row[0, 1 + indices] = label, values
            count += 1
            yield row

    comma.write(path, blocks(), separator=given.separator)
    return count


def _indexed(path: Path, records: Iterator[tuple[int, bytes]], given: Options) -> int:
    count = 0
    with record_index.IndexedWriter(path, path.with_suffix(".idx")) as writer:
        for count, (number, record) in enumerate(records, 1):  # noqa: B007
            writer.write(number, record)
    return count


CONVERSIONS: dict[tuple[str, str], tuple[Reader, Writer]] = {
    ("rec", "paddle"): (_dmlc, _to_paddle),
    ("paddle", "rec"): (_paddle, _to_dmlc),
    ("paddle", "paddle"): (_paddle, _to_paddle),
    ("idx", "csv"): (_idx, _to_comma),
    ("csv", "idx"): (_comma, _to_idx),
    ("csv", "libsvm"): (_labelled, _to_libsvm),
    ("libsvm", "csv"): (_libsvm, _dense),
    ("lst", "rec"): (_images, _indexed),
}
"""Pairs of formats, and how the one is read and the other written."""
