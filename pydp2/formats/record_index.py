"""``.idx``, MXNet's index beside a RecordIO file: the offset of the record of each key.

    key | tab | offset of the record's first header

Both are whole numbers. Each line is for one record, and each key occurs once. (:mod:`.idx` is an
unrelated format of arrays.)
"""

from __future__ import annotations

import operator
import os
import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import FormatError, OptionError
from pydp2.formats import dmlc_recordio
from pydp2.formats.lines import TextReader, shown
from pydp2.formats.source import Closable, PathOrFile, create_file

_MOST = 10**18
"""Keys are between this number and its negative, so they have at most 18 digits."""
_LINE = re.compile(rb"(-?\d{1,18})\t(\d{1,18})[ \t]*")


class Index:
    """Keys, in the order of the file, and their offsets; int64 ``(records,)``."""

    def __init__(self, keys: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        self.keys, self.offsets = keys, offsets
        self._order = np.argsort(keys, kind="stable")

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, key: int) -> int:
        """Return the offset of ``key``. Raises KeyError: there is none."""
        at = int(np.searchsorted(self.keys, key, sorter=self._order))
        if at < len(self) and self.keys[self._order[at]] == key:
            return int(self.offsets[self._order[at]])
        raise KeyError(key)

    def duplicate_key(self) -> int | None:
        """Return a key that occurs twice, or None."""
        ordered = self.keys[self._order]
        same = np.flatnonzero(ordered[1:] == ordered[:-1])
        return int(ordered[same[0]]) if len(same) else None


def read(path: PathOrFile) -> Index:
    """Return the :class:`Index` of an index file.

    Raises:
        FormatError: a line that is not a key, a tab and an offset, or a key that occurs twice.
        OSError: the file cannot be read.
    """
    keys, offsets = array("q"), array("q")
    with TextReader(path) as reader:
        for offset, line in reader.lines():
            found = _LINE.fullmatch(line)
            if found is None:
                raise reader.error(offset, f"expected key, tab and offset, got {shown(line)}")
            keys.append(int(found[1]))
            offsets.append(int(found[2]))
    index = Index(np.array(keys, np.int64), np.array(offsets, np.int64))
    if (twice := index.duplicate_key()) is not None:
        raise FormatError(f"{reader.name}, byte 0: the key {twice} is there twice", file=reader.name, offset=0)
    return index


def write(path: PathOrFile, entries: Iterable[tuple[int, int]]) -> None:
    """Write pairs of key and offset, as gzip if the name ends in ``.gz``.

    Raises:
        OptionError: a key occurs twice, or has more than 18 digits; an offset is not a whole number from 0 of at most
            18 digits. The pairs before it are in the file.
    """
    file, owned = create_file(path, gzipped=True)
    keys: set[int] = set()
    try:
        for key, offset in entries:
            number = _another(key, keys)
            file.write(_line(number, offset))
            keys.add(number)
    finally:
        if owned:
            file.close()


def built(path: PathOrFile) -> Iterator[tuple[int, int]]:
    """Yield (key, offset) of a RecordIO file's records, with their numbers, from 0, as keys."""
    with dmlc_recordio.Reader(path) as reader:
        for number, (offset, _) in enumerate(reader.with_offsets()):
            yield number, offset


def _another(key: int, keys: set[int]) -> int:
    """Return ``key``. Raises OptionError: it is one of ``keys``, or too long, so :func:`read` would not accept it."""
    number = operator.index(key)
    if not -_MOST < number < _MOST:
        raise OptionError(f"a key of an index has at most 18 digits, got {number}")
    if number in keys:
        raise OptionError(f"the key {number} is there already: an index has each key once")
    return number


def _line(key: int, offset: Any) -> bytes:
    """Return a line of an index. Raises OptionError: :func:`read` would not accept ``offset``."""
    text = b"%d\t%s" % (key, str(offset).encode())
    if isinstance(offset, str) or not _LINE.fullmatch(text):
        raise OptionError(f"an offset must be a whole number from 0 of at most 18 digits, got {offset!r:.80}")
    return text + b"\n"


class IndexedReader(Closable):
    """RecordIO file whose records are read by their keys; a context manager. Iterating gives them in the order of the
    index.

    Attributes:
        index: the :class:`Index`.
    """

    def __init__(self, path: PathOrFile, index: PathOrFile) -> None:
        self.index = read(index)
        self._reader = dmlc_recordio.Reader(path)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: int) -> bytes:
        """Return the record of ``key``.

        Raises:
            KeyError: the index does not have it.
            FormatError: no record begins where the index says.
        """
        return self._reader.read_at(self.index[key])

    def __iter__(self) -> Iterator[bytes]:
        return map(self._reader.read_at, map(int, self.index.offsets))

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


class IndexedWriter(Closable):
    """Writer of records and their index; a context manager. After an exception both files have all earlier records.

    Raises:
        OptionError: both paths are the same file, or the path of the records ends in ``.gz``.
        OSError: a file cannot be written.
    """

    def __init__(self, path: PathOrFile, index: PathOrFile) -> None:
        named = [Path(name).resolve() if isinstance(name, str | os.PathLike) else name for name in (path, index)]
        if named[0] == named[1]:
            raise OptionError(f"records and index must be two files, got {path} for both")
        self._keys: set[int] = set()
        self._writer = dmlc_recordio.Writer(path)
        try:
            self._index, self._owned = create_file(index, gzipped=True)
        except BaseException:
            self._writer.close()
            raise

    def write(self, key: int, record: bytes) -> None:
        """Append ``record`` under ``key``, a whole number.

        Raises:
            OptionError: the key was written before, or has more than 18 digits; the record is too large.
            OptionTypeError: the record is not bytes.
        """
        number = _another(key, self._keys)
        self._index.write(_line(number, self._writer.write(record)))
        self._keys.add(number)

    def close(self) -> None:
        """Close both files."""
        try:
            self._writer.close()
        finally:
            if self._owned:
                self._index.close()
