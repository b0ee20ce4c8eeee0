"""``.idx``, MXNet's index beside a RecordIO file: where the record of each key begins. No relative of :mod:`.idx`.

    key | tab | offset of the record's first header

Both are whole numbers, one record a line, no key twice.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pydp2.formats import dmlc_recordio
from pydp2.formats.lines import lines, shown, wrong
from pydp2.formats.source import PathOrFile, create

_LINE = re.compile(rb"(-?\d{1,18})\t(\d{1,18})[ \t]*")


class Index:
    """Keys, in the order of the file, and their offsets; int64 ``(records,)``."""

    def __init__(self, keys: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        self.keys, self.offsets = keys, offsets
        self._order = np.argsort(keys, kind="stable")

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, key: int) -> int:
        """The offset of ``key``; KeyError if there is none."""
        at = int(np.searchsorted(self.keys, key, sorter=self._order))
        if at < len(self) and self.keys[self._order[at]] == key:
            return int(self.offsets[self._order[at]])
        raise KeyError(key)

    def twice(self) -> int | None:
        """A key that is there twice."""
        ordered = self.keys[self._order]
        same = np.flatnonzero(ordered[1:] == ordered[:-1])
        return int(ordered[same[0]]) if len(same) else None


def read(path: PathOrFile) -> Index:
    """An index file.

    Raises:
        FormatError: a line that is something else, or a key that is there twice.
        OSError: the file cannot be read.
    """
    keys, offsets = array("q"), array("q")
    source = None
    for source, offset, line in lines(path):  # named in the error below
        found = _LINE.fullmatch(line)
        if found is None:
            raise wrong(source, offset, f"expected key, tab and offset, got {shown(line)}")
        keys.append(int(found[1]))
        offsets.append(int(found[2]))
    index = Index(np.array(keys, np.int64), np.array(offsets, np.int64))
    if (twice := index.twice()) is not None:
        assert source is not None
        raise source.error(f"the key {twice} is there twice", 0)
    return index


def write(path: PathOrFile, entries: Iterable[tuple[int, int]]) -> None:
    """Write pairs of key and offset."""
    file, ours = create(path)
    try:
        for key, offset in entries:
            file.write(b"%d\t%d\n" % (key, offset))
    finally:
        if ours:
            file.close()


def built(path: PathOrFile) -> Iterator[tuple[int, int]]:
    """(key, offset) of a RecordIO file's records, with their numbers, from 0, as keys."""
    with dmlc_recordio.Reader(path) as reader:
        for number, (offset, _) in enumerate(reader.with_offsets()):
            yield number, offset


class IndexedReader:
    """A RecordIO file whose records are read by their keys; a context manager.

    Attributes:
        index: the :class:`Index`.
    """

    def __init__(self, path: PathOrFile, index: PathOrFile) -> None:
        self.index = read(index)
        self._reader = dmlc_recordio.Reader(path)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: int) -> bytes:
        """The record of ``key``.

        Raises:
            KeyError: the index does not have it.
            FormatError: no record begins where the index says.
        """
        return self._reader.read_at(self.index[key])

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class IndexedWriter:
    """Writes records and their index; a context manager."""

    def __init__(self, path: PathOrFile, index: PathOrFile) -> None:
        self._writer = dmlc_recordio.Writer(path)
        self._index, self._ours = create(index)

    def write(self, key: int, record: bytes) -> None:
        """Append ``record`` under ``key``, which must be another one each time."""
        self._index.write(b"%d\t%d\n" % (key, self._writer.write(record)))

    def close(self) -> None:
        """Close both files."""
        self._writer.close()
        if self._ours:
            self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
