"""Convert files from one format to another, sample by sample, so files may be larger than memory.

This module defines which pairs of formats it converts and what each option means for them. The modules of the formats
read and write. The output has another name beside the target until it is complete.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pydp2.errors import OptionError, count_text
from pydp2.formats import comma, dmlc_recordio, idx, libsvm, lst, paddle_recordio, record_index
from pydp2.formats.irheader import IRHeader, pack
from pydp2.formats.serving import BLOCK
from pydp2.formats.source import written_whole

FORMATS = ("idx", "csv", "libsvm", "rec", "paddle", "lst")
"""Names of the formats: ``rec`` is dmlc's RecordIO, ``paddle`` is Paddle's RecordIO."""

_SUFFIXES = {
    ".idx": "idx",
    ".csv": "csv",
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".rec": "rec",
    ".recordio": "paddle",
    ".dat": "paddle",
    ".lst": "lst",
}
_BUFFER = 1 << 17
_INDEX = re.compile(rb"-?\d{1,18}\t\d{1,18}[ \t]*[\r\n]")  # a list of images never looks like this
_UBYTE = re.compile(r"idx\d+-ubyte\Z")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a conversion.

    Args:
        dtype: from CSV to idx: dtype of the idx file.
        shape: from CSV to idx: shape of a sample; default: as many values as the CSV file has columns.
        label: from CSV to libsvm: column of the label; -1 is the last one.
        dim: from libsvm to CSV: number of columns without the label, which comes before them.
        base: index of the first column in libsvm.
        header: True if the CSV source begins with a line of names.
        separator: character between two fields of CSV.
        layout, packing: layout and packing of the Paddle RecordIO file that is written.
        folder: folder that the paths in a list of images are relative to.
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
    """Write the samples of ``source`` to ``target``, and return their number.

    Args:
        source, target: paths of files; the source must be seekable. If the name of the target ends in ``.gz``, text is
            compressed; for other formats this is an error. If the target is a link, the file that it points to is
            replaced.
        source_format, target_format: one of :data:`FORMATS`; default: from the names, see :func:`format_of`.
        options: see :class:`Options`. An option that has no effect on the two formats is an error.
        progress: function that is called with the number of bytes of the source that were read so far.

    Raises:
        OptionError: there is no such conversion, an option has no effect, the format of the target cannot hold a
            sample, or the name of the target or of the index beside it is not allowed.
        FormatError: the source violates its format.
        OSError: a file cannot be read or written.
    """
    pair = (source_format or format_of(source), target_format or format_of(target))
    if pair not in CONVERSIONS:
        ways = ", ".join(f"{old} → {new}" for old, new in CONVERSIONS)
        raise OptionError(f"{pair[0]} cannot become {pair[1]}; there are {ways}")
    read, write, used = CONVERSIONS[pair]
    given = options or Options()
    for field in fields(Options):
        if field.name not in used and getattr(given, field.name) != field.default:
            raise OptionError(f"{field.name} does nothing where {pair[0]} becomes {pair[1]}: leave it out")
    _check_target(Path(target), pair[1], indexed=write is _indexed)
    with io.BufferedReader(_Watched(source, progress), _BUFFER) as file:
        if not file.seekable():
            raise OptionError(f"{os.fspath(source)} is not seekable, such as a pipe: write it to a file first")
        with ExitStack() as stack:
            beside = stack.enter_context(written_whole(target, gzipped=True))
            if write is _indexed:
                index = stack.enter_context(written_whole(Path(target).with_suffix(".idx")))
                write = partial(_indexed, index=index)
            return write(beside, read(file, given), given)


def _check_target(target: Path, kind: str, *, indexed: bool) -> None:
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no folder to write to", str(target.parent))
    if target.suffix == ".gz" and kind in ("idx", "rec", "paddle"):
        raise OptionError(f"{kind} is not written as gzip here: leave .gz off the name {target.name}")
    if not indexed:
        return
    index = target.with_suffix(".idx")
    if target.resolve() == index.resolve():
        raise OptionError(f"{target.name} is the name of the index that is written beside the records: take another")
    if index.exists():
        with index.open("rb") as file:
            begin = file.read(64)
        if begin and not _INDEX.match(begin):
            raise OptionError(f"{index} is there and no index of records, which would be written over it: move it away")


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format that a file's name shows: by its suffix (``.gz`` behind it does not count), or ``…idx3-ubyte``.

    Raises:
        OptionError: the name does not show a format.
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
    """File that reports to ``progress`` how many bytes were read."""

    def __init__(self, path: str | os.PathLike[str], progress: Callable[[int], None]) -> None:
        super().__init__(path, "rb")
        self._progress, self._furthest = progress, 0

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer) or 0
        self._furthest = max(self._furthest, self.tell())
        self._progress(self._furthest)
        return count


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
    wide = kind if kind.kind == "f" else np.dtype(np.float64)  # allows "1.0" for ints; idx has at most 32 bits
    blocks = comma.read(file, dtype=wide, header=given.header, separator=given.separator)
    first = next(blocks, None)
    columns = 0 if first is None else first.shape[1]
    yield kind, given.shape or (columns,)
    if first is not None:
        yield first
        yield from blocks


def _labelled(file: BinaryIO, given: Options) -> Iterator[libsvm.Row]:
    count = 0
    for block in comma.read(file, dtype=np.float64, header=given.header, separator=given.separator):
        if not -block.shape[1] <= given.label < block.shape[1]:
            raise OptionError(f"label must be one of {count_text(block.shape[1], 'column')}, from 0, got {given.label}")
        values = np.delete(block, given.label, axis=1)
        for label, row in zip(block[:, given.label].tolist(), values, strict=True):
            numbers = libsvm.as_float32(row, count)
            nonzero = np.flatnonzero(numbers)
            yield libsvm.Row(label, nonzero, numbers[nonzero])
            count += 1


def _libsvm(file: BinaryIO, given: Options) -> Iterator[libsvm.Row]:
    return libsvm.read(file, base=given.base)


def _images(file: BinaryIO, given: Options) -> Iterator[tuple[int, bytes]]:
    for number, labels, name in lst.read(file):
        label = labels[0] if len(labels) == 1 else labels
        try:
            image = Path(given.folder, name).read_bytes()
        except OSError as error:
            why = f"{error.strerror}; the list names it for id {number}, and folder says where its paths begin"
            raise OSError(error.errno, why, error.filename) from None
        yield number, pack(IRHeader(0, label, number), image)


# -- writing -----------------------------------------------------------------------------------------------------------
def _to_dmlc(path: Path, records: Iterator[bytes], given: Options) -> int:
    count = 0
    with dmlc_recordio.Writer(path) as writer:
        for count, record in enumerate(records, 1):  # noqa: B007  # the last count is the result
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
            if block[0].size != math.prod(sides):
                raise OptionError(
                    f"rows of {count_text(block[0].size, 'value')} cannot become samples of the shape {sides}, which "
                    "have "
                    f"{math.prod(sides)}"
                )
            writer.write(block.reshape(len(block), *sides))
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
            row = np.zeros((1, 1 + dim))  # float64, as the label is
            if len(indices) and indices.max() >= dim:
                raise OptionError(f"row {count} has column {int(indices.max())}, and dim={dim} ends before it")
            # through text, so that values have the few digits of float32 and not those of the same number as float64
            row[0, 0], row[0, 1 + indices] = label, values.astype(str).astype(np.float64)
            count += 1
            yield row

    comma.write(path, blocks(), separator=given.separator)
    return count


def _indexed(path: Path, records: Iterator[tuple[int, bytes]], given: Options, *, index: Path | None = None) -> int:
    count = 0
    with record_index.IndexedWriter(path, index or path.with_suffix(".idx")) as writer:
        for count, (number, record) in enumerate(records, 1):  # noqa: B007
            writer.write(number, record)
    return count


CONVERSIONS: dict[tuple[str, str], tuple[Reader, Writer, tuple[str, ...]]] = {
    ("rec", "paddle"): (_dmlc, _to_paddle, ("layout", "packing")),
    ("paddle", "rec"): (_paddle, _to_dmlc, ()),
    ("paddle", "paddle"): (_paddle, _to_paddle, ("layout", "packing")),
    ("idx", "csv"): (_idx, _to_comma, ("separator",)),
    ("csv", "idx"): (_comma, _to_idx, ("dtype", "shape", "header", "separator")),
    ("csv", "libsvm"): (_labelled, _to_libsvm, ("label", "base", "header", "separator")),
    ("libsvm", "csv"): (_libsvm, _dense, ("dim", "base", "separator")),
    ("lst", "rec"): (_images, _indexed, ("folder",)),
}
"""For each pair of formats: the function that reads, the function that writes, and the options that have an effect."""
