"""Files of tokens: numbers one after the other, ``.bin`` or ``.npy``, or Megatron's ``.bin`` with ``.idx``.

A sample is a window of a fixed length, or a document. Its place in the file is known without reading what is before it,
apart from documents that an end token parts. Tokens are read into memory block by block and not mapped, because a
process that reads a mapped file dies if the file becomes shorter.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pydp2.data.columns.batch import Ragged
from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import dense_vector, integer_value_sequence
from pydp2.errors import BadSample, FormatError, OptionError, bad_value
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.megatron_index import check_size, index_of
from pydp2.formats.serving import BLOCK, IDS, in_pieces, text, whole
from pydp2.formats.source import ByteSource, Closable, open_source
from pydp2.providers import provider

Array = NDArray[Any]
Indices = NDArray[np.int64]

DTYPES = ("uint16", "uint32", "int32", "int64")
"""dtypes that a ``.bin`` or ``.npy`` file of tokens may have."""

_NPY = b"\x93NUMPY"
_MOST_HEADER = 10_000  # bytes of a .npy header that numpy parses


class TokenFile(Closable):
    """Open file of tokens; a context manager. ``len()``: the number of tokens.

    Args:
        path: a ``.npy`` file with one dimension; any other name is of plain numbers, little-endian.
        dtype: dtype of plain numbers; None if an index of Megatron is beside the file, or for ``.npy``.

    Attributes:
        name: name of the file in errors.
        dtype: dtype of the tokens in the file.
        edges: int64 ``(documents + 1,)``, the bounds of documents that an index gives; None without an index.

    Raises:
        FormatError: the file is not what its name, header or index says.
        OptionError: there is no dtype, another one than the file has, or one that tokens do not have.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], dtype: DTypeLike | None = None) -> None:
        given = None if dtype is None else _checked_dtype(dtype)
        self.name = os.fspath(path)
        self._begin, self.edges = 0, None
        if Path(path).suffix == ".idx":
            raise OptionError(f"{self.name} is an index: name the file of tokens beside it, which ends in .bin")
        index = index_of(path) if Path(path).suffix == ".bin" else None
        self._source = open_source(path)
        try:
            size = self._source.size or 0
            if index is not None:
                self.dtype, self.edges = index
                check_size(self.name, index, size)
            elif Path(path).suffix == ".npy":
                self.dtype = self._read_header()
            elif given is None:
                raise OptionError(f"{self.name} does not say its dtype: give dtype=, one of {', '.join(DTYPES)}")
            else:
                self.dtype = given.newbyteorder("<")
            if given is not None and given.name != self.dtype.name:
                raise OptionError(f"{self.name} has tokens of {self.dtype.name}, dtype={given.name} was given")
            self._count, rest = divmod(size - self._begin, self.dtype.itemsize)
            if rest:
                raise self._source.error(f"{size - self._begin} bytes are no whole number of {self.dtype.name}", size)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._count

    def tokens(self, first: int, last: int) -> Array:
        """Return tokens ``first`` to ``last - 1``, of ``dtype``, read-only.

        Raises FormatError: the file has become shorter.
        """
        size = self.dtype.itemsize
        with self._source.at(self._begin + first * size) as source:
            return np.frombuffer(source.read((last - first) * size, "a block of tokens"), self.dtype)

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _read_header(self) -> np.dtype[Any]:
        """Return the dtype of a ``.npy`` file, whose array must have one dimension and fill the file."""
        source = self._source
        magic = source.read(8, "the header of a .npy file")
        if magic[:6] != _NPY:
            raise source.unexpected("an array of numpy", magic[:6], 0)
        wide = 2 if magic[6] == 1 else 4
        length = int.from_bytes(source.read(wide, "the length of the header"), "little")
        if magic[6] not in (1, 2, 3) or length > _MOST_HEADER:
            raise source.error(f"expected a header of version 1 to 3 and at most {_MOST_HEADER} bytes", 6)
        header = source.read(length, "the header of a .npy file")
        shape, dtype = _array_header(source, magic + length.to_bytes(wide, "little") + header)
        self._begin = source.offset
        if len(shape) != 1:
            raise source.error(f"expected tokens in one dimension, got the shape {shape}; write a provider for it", 10)
        if dtype.name not in DTYPES:
            raise source.error(f"expected tokens of {', '.join(DTYPES)}, got {dtype}", 10)
        have = (source.size or 0) - self._begin
        if shape[0] * dtype.itemsize != have:
            raise source.error(f"{shape[0]} tokens need {shape[0] * dtype.itemsize} bytes, the file has {have}", 10)
        return dtype


def _array_header(source: ByteSource, data: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except Exception as error:  # numpy lets errors of Python's parser pass
        raise source.error(f"damaged header of an array: {error!s:.80}", 0) from None
    return shape, dtype


def _checked_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        made = np.dtype(dtype)
    except TypeError:
        made = np.dtype(object)
    if made.name not in DTYPES:
        raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r:.80}")
    return made


def read(
    path: str | os.PathLike[str],
    *,
    start: int = 0,
    part: FilePart = WHOLE_FILE,
    indices: Indices | None = None,
    length: int | None = None,
    stride: int | None = None,
    end_token: int | None = None,
    dtype: DTypeLike | None = None,
) -> Iterator[Array | Ragged]:
    """Yield the samples of a file of tokens, some at a time, in the dtype of the file.

    With ``length`` they are windows: arrays ``(windows, length)``. Without it they are documents: a :class:`Ragged`,
    whose values are the tokens.

    Args:
        path: ``.npy``; or plain numbers, of ``dtype`` or with Megatron's index beside them.
        start: index of the first sample of the part that is wanted.
        part: the part of the file to read: windows or documents.
        indices: the samples of the part that are wanted, int64, rising; None: all from ``start`` on.
        length: number of tokens of a window. Tokens at the end that fill no window are left out.
        stride: number of tokens from one window to the next; default: ``length``.
        end_token: the token that ends a document, and is its last one. The last document may lack it.
        dtype: dtype of plain numbers.

    Raises:
        FormatError: the file is not what its name, header or index says.
        OptionError: a length or stride below 1, a ``stride`` without ``length``, neither ``length`` nor anything that
            parts documents; or there is no such dtype.
        OSError: the file cannot be read.
    """
    cut = _checked_cut(length, stride, end_token)
    with TokenFile(path, dtype) as file:
        yield from _samples(file, cut, part, start, indices)


class _Cut(NamedTuple):
    """How a file is cut into samples: windows of ``length`` if it is above 0, else documents that end with
    ``end_token``, or that an index gives."""

    length: int
    stride: int
    end_token: int | None

    def check(self, file: TokenFile) -> None:
        """Raise OptionError if ``file`` does not say where documents end, and nothing else does."""
        if not self.length and self.end_token is None and file.edges is None:
            raise OptionError(f"{file.name} has no documents: give length= for windows, or end_token=")


def _checked_cut(length: int | None, stride: int | None, end_token: int | None) -> _Cut:
    """Return how a file is cut. Raises OptionError, OptionTypeError."""
    for name, value, least in (("length", length, 1), ("stride", stride, 1), ("end_token", end_token, 0)):
        if value is not None and whole(name, value) < least:
            raise OptionError(f"{name} must be at least {least}, got {value}")
    if length is None and stride is not None:
        raise OptionError("stride is for windows: give length too")
    if length is not None and end_token is not None:
        raise OptionError("end_token is for documents, length for windows: give one of them")
    return _Cut(length or 0, stride or length or 1, end_token)


def _samples(
    file: TokenFile, cut: _Cut, part: FilePart, start: int, indices: Indices | None
) -> Iterator[Array | Ragged]:
    cut.check(file)
    if cut.length:
        return _windows(file, cut, part, start, indices)
    if cut.end_token is not None:
        return _chosen(_ended_documents(file, cut.end_token, part), start, indices)
    return _indexed_documents(file, part, start, indices)


def _windows(file: TokenFile, cut: _Cut, part: FilePart, start: int, indices: Indices | None) -> Iterator[Array]:
    length, stride, _ = cut
    first, last = part.range(max(0, len(file) - length + stride) // stride)
    together = max(1, BLOCK // (4 * max(length, stride)))  # a slot has int32, if not int64
    if indices is not None:
        for at in range(0, len(indices), together):
            begins = (first + indices[at : at + together]) * stride
            yield np.stack([file.tokens(begin, begin + length) for begin in begins.tolist()])
        return
    for at in range(first + start, last, together):
        end = min(last, at + together)
        tokens = file.tokens(at * stride, (end - 1) * stride + length)
        if stride == length:
            yield tokens.reshape(-1, length)
        else:
            yield np.lib.stride_tricks.sliding_window_view(tokens, length)[::stride]


def _indexed_documents(file: TokenFile, part: FilePart, start: int, indices: Indices | None) -> Iterator[Ragged]:
    """Yield documents whose bounds the index gives."""
    edges = file.edges
    assert edges is not None
    first, last = part.range(len(edges) - 1)
    if indices is not None:
        pieces: list[Array] = []
        size = 0
        for i in (first + indices).tolist():
            pieces.append(file.tokens(edges[i], edges[i + 1]))
            size += 1 + len(pieces[-1])
            if size >= BLOCK // 8:
                yield _ragged(pieces)
                pieces, size = [], 0
        if pieces:
            yield _ragged(pieces)
        return
    at = first + start
    while at < last:
        end = int(np.searchsorted(edges, edges[at] + BLOCK // 8, "right")) - 1
        end = min(last, max(at + 1, end))
        yield Ragged(file.tokens(edges[at], edges[end]), edges[at : end + 1] - edges[at])
        at = end


def _ended_documents(file: TokenFile, end_token: int, part: FilePart) -> Iterator[Ragged]:
    """Yield the documents that begin in ``part`` of the tokens; each ends with ``end_token``."""
    begin, stop = part.range(len(file))  # the first token of the next document; where the next part begins
    at = max(0, begin - 1)  # the token before the part says whether a document begins with the part
    is_begun = begin == 0
    pieces: list[Array] = []
    while at < len(file) and begin < stop:
        block = file.tokens(at, min(len(file), at + BLOCK // 8))
        ends = np.flatnonzero(block == end_token) + 1
        if not is_begun:
            if len(ends):
                begin, is_begun = at + int(ends[0]), True
                at = begin
            else:
                at += len(block)
                begin = at
            continue
        at += len(block)
        if at == len(file) and not (len(ends) and ends[-1] == len(block)):
            ends = np.append(ends, len(block))  # the last document lacks its end token
        if not len(ends):
            pieces.append(block)
            continue
        before = sum(map(len, pieces))
        edges = np.concatenate(([0], ends + before))
        count = int(np.searchsorted(edges[:-1], stop - begin))
        values = np.concatenate([*pieces, block[: ends[-1]]])
        yield Ragged(values[: edges[count]], edges[: count + 1])
        pieces = [block[ends[-1] :]] if ends[-1] < len(block) else []
        begin = at - len(block) + int(ends[-1])


def _chosen(blocks: Iterator[Ragged], start: int, indices: Indices | None) -> Iterator[Ragged]:
    """Yield of the sequences of ``blocks`` those from ``start`` on, or those of ``indices`` alone."""
    seen = 0
    for block in blocks:
        edges, values = block.sequence_start_positions, block.values
        assert isinstance(values, np.ndarray)
        count = len(block)
        if indices is None:
            skipped = min(count, max(0, start - seen))
            if skipped < count:
                yield Ragged(values[edges[skipped] :], edges[skipped:] - edges[skipped])
        else:
            some = indices[np.searchsorted(indices, seen) : np.searchsorted(indices, seen + count)] - seen
            if len(some):
                yield _ragged([values[edges[i] : edges[i + 1]] for i in some.tolist()])
        seen += count
        if indices is not None and (not len(indices) or seen > indices[-1]):
            return


def _ragged(sequences: list[Array]) -> Ragged:
    edges: Any = np.concatenate(([0], np.cumsum([len(sequence) for sequence in sequences])))
    return Ragged(np.concatenate(sequences), edges)


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(  # noqa: PLR0913 - its keywords are the arguments of the provider
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    length: int | None = None,
    stride: int | None = None,
    end_token: int | None = None,
    dtype: str | None = None,
    vocabulary: int | None = None,
) -> None:
    settings.cut, settings.dtype = _checked_cut(length, stride, end_token), dtype
    if vocabulary is not None and not 1 <= whole("vocabulary", vocabulary, "the number of tokens") <= IDS:
        raise OptionError(f"vocabulary must be from 1 to {IDS}, got {vocabulary}")
    settings.first, kind = "", np.dtype(np.int64) if dtype is None else _checked_dtype(text("dtype", dtype))
    if len(file_list):
        with TokenFile(split_entry(file_list[0])[0], dtype) as file:
            settings.first, kind = file.name, file.dtype
            settings.cut.check(file)
    settings.kind = kind
    settings.vocabulary = min(IDS, int(np.iinfo(kind).max) + 1) if vocabulary is None else vocabulary
    documents = integer_value_sequence(settings.vocabulary)
    settings.slot_dtype = documents.element_dtype
    windows = dense_vector(length, dtype=settings.slot_dtype) if length else documents
    settings.input_types = {"tokens": windows}


@provider(init_hook=_hook)
def process(settings: Any, filename: str, start: int, indices: Indices | None) -> Iterator[ManySamples | BadSample]:
    """Serve windows or documents of files of tokens.

    Slot: ``tokens``. Windows are a dense vector ``(length,)``, documents a sequence of integers. Both are int32, or
    int64 if ``vocabulary`` is above 2**31.

    Arguments of the hook:
        length, stride, end_token, dtype: as in :func:`read`.
        vocabulary: number of tokens; a sample with a token from there on is bad. Default: what the dtype can hold.
    """
    name, part = split_entry(filename)
    with TokenFile(name, settings.dtype) as file:
        if file.dtype.name != settings.kind.name:
            raise FormatError(
                f"{name} has tokens of {file.dtype.name}, the first file {settings.first} of {settings.kind.name}: "
                "serve them alone, or write them in one dtype",
                file=name,
            )
        for block in _samples(file, settings.cut, part, start, indices):
            if isinstance(block, Ragged):
                yield rows(tokens=block)
            else:
                yield from _checked(block, settings)


def _checked(windows: Array, settings: Any) -> Iterator[ManySamples | BadSample]:
    """Yield ``windows`` in the dtype of the slot, and an error in place of each with a token beyond the vocabulary."""
    limits, most = np.iinfo(windows.dtype), settings.vocabulary
    errors = {}
    if limits.min < 0 or limits.max >= most:
        wrong = (windows < 0) | (windows >= most) if limits.max >= most else windows < 0
        if wrong.any():
            for i in np.flatnonzero(wrong.any(axis=1)).tolist():
                token = int(windows[i][wrong[i].argmax()])
                errors[i] = bad_value("tokens", f"tokens from 0 to {most - 1}", str(token))
    yield from in_pieces(
        len(windows), errors, lambda lo, hi: rows(tokens=windows[lo:hi].astype(settings.slot_dtype, copy=False))
    )
