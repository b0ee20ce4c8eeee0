"""Make readers of arrays, lines of text, and records of files."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, SupportsIndex

import numpy as np

from pydp2.data.columns.array_likes import as_array
from pydp2.errors import FormatError, OptionError, OptionTypeError
from pydp2.formats import paddle_recordio
from pydp2.reader.contract import Reader
from pydp2.reader.decoding import LineCutter, decoder_of, texts_of
from pydp2.reader.prefetch import buffered
from pydp2.reader.unpickled import plain

_PIECE = 1 << 16  # bytes of a text file that are read at a time

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def np_array(x: Any) -> Reader:
    """Return a reader of ``x`` along its first axis: scalars of a vector, rows of a matrix, arrays of anything larger.

    An array without dimensions is one entry. Rows are views of an array, not copies. See docs/readers.md (RD-32).
    """
    given = as_array(x)
    array = np.asarray(x) if given is None else given

    def reader() -> Iterator[Any]:
        if array.ndim:
            yield from array
        else:
            yield array[()]

    return reader


def text_file(path: str | os.PathLike[str], *, encoding: str = "utf-8-sig") -> Reader:
    r"""Return a reader of the lines of a file, without line breaks. Each call opens it. See docs/readers.md (RD-33).

    A line ends with ``\n`` or ``\r\n``; a ``\r`` elsewhere is part of the line. The default ``encoding`` is UTF-8
    and leaves out a byte order mark at the beginning of the file.

    While iterating, it raises OSError, and after the lines before it UnicodeDecodeError, which names the file and the
    line, counted from 1.

    Raises OptionTypeError, OptionError: ``path`` is not a path; ``encoding`` is not the name of an encoding of text.
    """
    name = _path("path", path)
    decoder = decoder_of(encoding)

    def reader() -> Iterator[str]:
        number = 0
        cutter = LineCutter("\n")
        with open(name, "rb") as file:
            try:
                for text in texts_of(iter(partial(file.read1, _PIECE), b""), decoder()):
                    for line in cutter.lines(text):
                        number += 1
                        yield line.removesuffix("\r")
            except UnicodeDecodeError as error:
                error.reason += f" (file {name}, line {number + 1})"
                raise
        if rest := cutter.rest():
            yield rest

    return reader


def recordio(paths: Paths, buf_size: SupportsIndex = 100, *, decode: Callable[[bytes], Any] = plain) -> Reader:
    """Return a reader of the records of Paddle's RecordIO files, one file after the other.

    Args:
        paths: a path or a pattern such as ``data/*.recordio``, several of them with commas between them, or a list.
        buf_size: number of records that a thread reads ahead; 0 means any number.
        decode: function that turns the bytes of a record into a sample. The default reads pickles, and builds plain
            data and numpy arrays only. With ``bytes`` the samples are the bytes of the records. A function that
            unpickles runs any code that a file names; use it only for files that you trust.

    The reader looks for the files when a pass begins. While iterating, it raises FormatError for a file or record that
    is damaged or not plain, with file and record in the text, and FileNotFoundError for a path or pattern without a
    file. See docs/readers.md (RD-34).

    Raises OptionError, OptionTypeError: ``paths`` is empty or is not made of paths; ``decode`` cannot be called;
    ``buf_size`` is not a whole number, or is negative.
    """
    patterns = _patterns(paths)
    if not callable(decode):
        raise OptionTypeError(f"decode must be a function of the bytes of a record, got {decode!r:.80}")

    def reader() -> Iterator[Any]:
        for path in _found(patterns):
            for number, record in enumerate(paddle_recordio.read(path)):
                try:
                    value = decode(record)
                except FormatError as error:
                    if error.file:
                        raise
                    raise FormatError(
                        f"file {path}, record {number}: {error}", file=str(path), offset=error.offset
                    ) from None
                except Exception as error:
                    error.add_note(f"file {path}, record {number}")
                    raise
                yield value

    return buffered(reader, buf_size)


def _patterns(paths: Paths) -> list[str]:
    if isinstance(paths, str):
        found = [part.strip() for part in paths.split(",") if part.strip()]
    elif isinstance(paths, os.PathLike):
        found = [_path("paths", paths)]
    elif isinstance(paths, Sequence) and not isinstance(paths, bytes | bytearray | memoryview):
        found = [_path(f"path {i} of paths", path) for i, path in enumerate(paths)]
    else:
        raise OptionTypeError(f"paths must be a path or a list of paths, got {paths!r:.80} ({type(paths).__name__})")
    if not found:
        raise OptionError(f"paths must name at least one file, got {paths!r:.80}")
    return found


def _path(name: str, path: str | os.PathLike[str]) -> str:
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str):
        raise OptionTypeError(f"{name} must be the path of a file, got {path!r:.80} ({type(path).__name__})")
    return text


def _found(patterns: list[str]) -> Iterator[str]:
    """Yield the files of all patterns, those of a pattern in the order of their names."""
    for pattern in patterns:
        if os.path.exists(pattern):  # noqa: PTH110 - a name with a bracket in it is a file first
            yield pattern
            continue
        files = sorted(glob.glob(pattern))  # noqa: PTH207 - of patterns with and without a folder, absolute or not
        if not files:
            raise FileNotFoundError(f"{pattern}: no such file, and as a pattern it matches no file")
        yield from files
