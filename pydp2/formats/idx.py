"""idx, the format of the MNIST files: one array, after a header with its type and sides; all numbers are big-endian.

    00 00 | type | number of sides d | d sides, u32 | values, last side fastest

Types: 08 u8, 09 i8, 0B i16, 0C i32, 0D f32, 0E f64. A file may be gzip as a whole; its first bytes show this.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import dense_vector
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError, count_text
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.first_bytes import CUT_SHORT
from pydp2.formats.serving import BLOCK, LabelSlot, in_pieces, whole
from pydp2.formats.source import LIMIT, ByteSource, Closable, PathOrFile, create_file, open_source
from pydp2.providers import provider

Array = NDArray[Any]

DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_CODES = {np.dtype(text): code for code, text in DTYPES.items()}
_MOST_SIDES = 32
_PIECE = 1 << 20


class Reader(Closable):
    """Open idx file; a context manager.

    Args:
        path: the file, plain or gzip.
        limit: the most bytes that the values of a compressed file may have.

    Attributes:
        shape: all sides; the first one is the number of samples.
        dtype: dtype of the values, in the machine's byte order.

    Raises:
        FormatError: the magic or type is unknown, there are too many sides, or the length does not match the sides.
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile, *, limit: int = LIMIT) -> None:
        self._source = open_source(path, gzipped=True)
        try:
            self._open(limit)
        except BaseException:
            self._source.close()
            raise

    def _open(self, limit: int) -> None:
        source = self._source
        head = source.read(4, "the header of an idx file")
        code, sides = head[2], head[3]
        if head[:2] != b"\0\0" or code not in DTYPES:
            known = ", ".join(f"0000{code:02x}" for code in DTYPES)
            raise source.unexpected(f"an idx file, which begins with one of {known}", head[:3], 0)
        if not 1 <= sides <= _MOST_SIDES:
            raise source.error(f"expected 1 to {_MOST_SIDES} sides, got {sides}", 3)
        self.shape = tuple(int(side) for side in np.frombuffer(source.read(4 * sides, "the sides"), ">u4"))
        self._disk = np.dtype(DTYPES[code])
        self.dtype = self._disk.newbyteorder("=")
        self._begin = source.offset
        self._row = math.prod(self.shape[1:]) * self._disk.itemsize
        total = self.shape[0] * self._row
        if math.prod(side or 1 for side in self.shape) > 1 << 48:
            raise source.error(f"the shape {self.shape} is impossible", 4)
        if source.size is not None and total != source.size - self._begin:
            have = source.size - self._begin
            raise source.error(
                f"{self.shape} {self.dtype.name} needs {total} bytes of values, the file has {have}"
                f"{CUT_SHORT if have < total else ''}"
            )
        if source.size is None and total > limit:
            raise source.error(f"{total} bytes would be decompressed, more than limit={limit} allows")

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, first: int, last: int) -> Array:
        """Return samples ``first`` to ``last - 1``, shape ``(last - first, *shape[1:])``.

        Going back in a compressed file decompresses it from the beginning.
        """
        if not 0 <= first <= last <= len(self):
            raise OptionError(f"rows must be a range within 0 to {len(self)}, got {first} to {last}")
        with self._source.at(self._begin + first * self._row) as source:
            if source.compressed:
                values = self._unpacked(source, last - first)
                if last == len(self):
                    source.check_at_end()  # here gzip compares its checksum, too
            else:
                values = self._placed(source, last - first)
        return values if self._disk.isnative or values.itemsize == 1 else values.byteswap(inplace=True).view(self.dtype)

    def _placed(self, source: ByteSource, count: int) -> Array:
        """Read values directly into an array, because bytes and then an array of them need the memory twice."""
        values = np.empty((count, *self.shape[1:]), self._disk)
        flat = values.reshape(-1).view(np.uint8).data if values.size else memoryview(b"")
        for at in range(0, len(flat), _PIECE):
            piece = flat[at : at + _PIECE]
            piece[:] = source.read(len(piece), "the values")
        return values

    def _unpacked(self, source: ByteSource, count: int) -> Array:
        """Read decompressed values into a buffer that grows, because the length in the header may be wrong."""
        data, total = bytearray(), count * self._row
        while len(data) < total:
            data += source.read(min(_PIECE, total - len(data)), "the values")
        return np.frombuffer(data, self._disk).reshape(count, *self.shape[1:])

    def close(self) -> None:
        """Close the file."""
        self._source.close()


def read(path: PathOrFile, *, part: FilePart = WHOLE_FILE, limit: int = LIMIT) -> Array:
    """Return the array of an idx file, in the machine's byte order; with ``part`` a share of its samples.

    Raises as :class:`Reader` does.
    """
    with Reader(path, limit=limit) as reader:
        return reader.rows(*part.range(len(reader)))


class Writer(Closable):
    """Writer of an idx file, of one or more samples at a time; a context manager.

    ``close()`` writes the number of samples into the header, so the file must be seekable; :func:`write` also writes
    gzip. If an exception leaves the ``with`` block, the header keeps 0 samples, so a file with samples is not valid.

    Args:
        path: the file.
        dtype: u8, i8, i16, i32, f32 or f64.
        sides: the shape of a sample.

    Raises:
        OptionError: idx does not have the dtype, there are too many sides, a side is below 0 or too large, the name
            ends in ``.gz`` or the file is gzip, or the file is not seekable.
        OSError: the file cannot be written.
    """

    def __init__(self, path: PathOrFile, dtype: Any, sides: tuple[int, ...] = ()) -> None:
        self._disk = _disk_dtype(np.dtype(dtype))
        self._sides = sides
        header = _header(self._disk, (0, *sides))
        if isinstance(path, gzip.GzipFile) or (isinstance(path, str | os.PathLike) and Path(path).suffix == ".gz"):
            raise OptionError(
                "an idx file that is written piece by piece cannot be gzip: use a name that does not end in .gz, "
                "or idx.write for the whole array"
            )
        self._file, self._owned = create_file(path)
        if not self._file.seekable():
            self._close_file()
            raise OptionError("writing an idx file in pieces needs a seekable file: write to a regular file")
        self._at = self._file.tell()
        self._count = 0
        self._file.write(header)

    def write(self, rows: ArrayLike) -> None:
        """Append samples; shape ``(samples, *sides)``."""
        array = _exact(np.asarray(rows), self._disk)
        if array.shape[1:] != self._sides or not array.ndim:
            raise OptionError(f"samples must have the shape {self._sides}, got {array.shape[1:]}")
        if self._count + len(array) >= 1 << 32:
            raise OptionError("an idx file has fewer than 2**32 samples")
        self._file.write(array.reshape(-1).view(np.uint8).data if array.size else b"")
        self._count += len(array)

    def close(self) -> None:
        """Write the number of samples, and close."""
        end = self._file.tell()
        self._file.seek(self._at)
        self._file.write(_header(self._disk, (self._count, *self._sides)))
        self._file.seek(end)
        self._close_file()

    def _close_file(self) -> None:
        if self._owned:
            self._file.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._close_file()


def write(path: PathOrFile, array: ArrayLike) -> None:
    """Write ``array`` as an idx file, as gzip if the name ends in ``.gz``.

    Raises:
        OptionError: idx does not have the dtype, or the array has no sides or more than 32.
    """
    values = np.asarray(array)
    disk = _disk_dtype(values.dtype)
    header = _header(disk, values.shape)
    file, owned = create_file(path, gzipped=True)
    try:
        file.write(header)
        flat = values.reshape(-1)
        step = max(1, _PIECE // disk.itemsize)
        for first in range(0, len(flat), step):
            file.write(flat[first : first + step].astype(disk).tobytes())
    finally:
        if owned:
            file.close()


def _header(disk: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    if not 1 <= len(shape) <= _MOST_SIDES:
        raise OptionError(f"an idx file has 1 to {_MOST_SIDES} sides, got the shape {shape}")
    if min(shape) < 0 or max(shape) >= 1 << 32:
        raise OptionError(f"a side of an idx file is from 0 and below 2**32, got {shape}")
    return bytes((0, 0, _CODES[disk], len(shape))) + np.array(shape, ">u4").tobytes()


def _disk_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    disk = dtype.newbyteorder(">")
    if disk not in _CODES:
        known = ", ".join(np.dtype(text).name for text in DTYPES.values())
        raise OptionError(f"idx has the types {known}, got {dtype}; convert the array first")
    return disk


def _exact(array: Array, disk: np.dtype[Any]) -> Array:
    """Return ``array`` with dtype ``disk``, if this changes no value."""
    with np.errstate(invalid="ignore", over="ignore"):
        made = np.ascontiguousarray(array, disk)
    changed = (made != array) & ~((made != made) & (array != array))
    if changed.any():
        raise OptionError(f"the value {array[changed][0]} does not fit {disk.newbyteorder('=').name}")
    return made


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    labels: str | Sequence[str] | None = None,
    label_column: int | None = None,
    classes: int | Sequence[int] = 256,
    scale: float | None = None,
) -> None:
    if labels is not None and not isinstance(labels, str) and not _is_replacement(labels):
        raise OptionTypeError(
            f"labels must be a file, or [FROM, TO], a replacement in the name of each entry, got {labels!r:.80}"
        )
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float)):
        raise OptionTypeError(f"scale must be a number, got {scale!r:.80}")
    if labels is None and label_column is not None:
        raise OptionError("label_column is for a file of labels: give labels too")
    settings.labels, settings.scale, settings.slot = labels, scale, LabelSlot(classes)
    settings.label_column = None if label_column is None else whole("label_column", label_column)
    sides: tuple[int, ...] = ()
    dtype = np.dtype(np.uint8)
    if len(file_list):
        with Reader(split_entry(file_list[0])[0]) as first:
            sides, dtype = first.shape[1:], first.dtype
    data = dense_vector(math.prod(sides), dtype=np.float32 if scale is not None else dtype, shape=sides or None)
    settings.input_types = {"data": data} | ({} if labels is None else {"label": settings.slot.type})


@provider(init_hook=_hook)
def process(settings: Any, filename: str) -> Iterator[ManySamples | BadSample]:
    """Serve the samples of idx files.

    Slots: ``data``, with the dtype and shape of a sample of the first file of the list; with ``labels`` also ``label``.

    Arguments of the hook:
        labels: the idx file of the labels, or ``[FROM, TO]``: TO replaces the last FROM in the file name of the entry.
            Relative paths are relative to the same folder as entries.
        label_column: the column of the label, from 0, in a file of labels with several for each sample, as QMNIST has.
        classes: range of the labels: 0 to ``classes - 1``; or a list of the labels, of which ``label`` is the position.
        scale: factor for ``data``, which are then float32.
    """
    name, part = split_entry(filename)
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(Reader(name))
        beside = None
        if settings.labels is not None:
            path = _label_file(name, settings.labels)
            beside = stack.enter_context(Reader(path))
            _check_labels(path, beside.shape, settings.label_column, name, len(data))
        first, last = part.range(len(data))
        step = max(1, BLOCK // max(1, math.prod(data.shape[1:]) * data.dtype.itemsize))
        for at in range(first, last, step):
            end = min(last, at + step)
            values = data.rows(at, end)
            if values.ndim == 1:
                values = values[:, None]
            if settings.scale is not None:
                values = values * np.float32(settings.scale)
            if beside is None:
                yield rows(data=values)
                continue
            labels = beside.rows(at, end)
            yield from _labelled(
                values, labels if labels.ndim == 1 else labels[:, settings.label_column], settings.slot
            )


def _labelled(data: Array, labels: Array, slot: LabelSlot) -> Iterator[ManySamples | BadSample]:
    values, errors = slot.values(labels)
    yield from in_pieces(len(data), errors, lambda lo, hi: rows(data=data[lo:hi], label=values[lo:hi]))


def _check_labels(path: str, shape: tuple[int, ...], column: int | None, name: str, count: int) -> None:
    """Raise FormatError: the file of labels ``path``, of ``shape``, has not one label for each of ``count`` samples of
    ``name``. Raise OptionError: ``column`` does not choose one of its columns."""
    if shape[0] != count or len(shape) > 2:
        raise FormatError(
            f"{path}: expected {count_text(count, 'label')}, as many as {name} has samples, got the shape {shape}",
            file=path,
        )
    if len(shape) == 2 and column is None:
        raise FormatError(
            f"{path}: expected one label for each sample of {name}, got the shape {shape}; label_column=0 chooses the "
            f"first of {count_text(shape[1], 'column')}",
            file=path,
        )
    columns = shape[1] if len(shape) == 2 else 1
    if column is not None and not -columns <= column < columns:
        raise OptionError(
            f"label_column must be one of the {count_text(columns, 'column')} of {path}, from 0, got {column}"
        )


def _label_file(name: str, labels: str | Sequence[str]) -> str:
    if isinstance(labels, str):
        return labels
    before, found, behind = name.rpartition(labels[0])
    if not found:
        raise OptionError(f"{name} does not hold {labels[0]!r}, which labels={list(labels)} is to replace")
    return before + labels[1] + behind


def _is_replacement(labels: Any) -> bool:
    return (
        isinstance(labels, list | tuple)
        and len(labels) == 2
        and all(isinstance(label, str) for label in labels)
        and bool(labels[0])
    )
