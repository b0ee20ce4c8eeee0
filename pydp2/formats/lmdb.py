"""LMDB: keys and values in a tree that is sorted by the keys, in a folder with ``data.mdb`` or one file.

The package lmdb reads it. A sample is a value, and samples are in the order of the keys. The file is opened in the
worker that reads it, because LMDB must not be used across a fork; it is mapped, read-only and without locks, so nobody
may write it meanwhile.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.batch import BinaryArray
from pydp2.data.columns.columns import offsets
from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.data.schema.input_types import raw
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.first_bytes import CUT_SHORT
from pydp2.formats.folders import below, is_folder
from pydp2.formats.library_errors import errors_of
from pydp2.formats.serving import BLOCK, flag, text
from pydp2.formats.source import Closable, local_path, open_source
from pydp2.providers import provider

Indices = NDArray[np.int64]
_MAGIC = b"\xde\xc0\xef\xbe"
_MOST_NAMES = 64  # databases of a file that are read by turns
_MAGIC_AT = 16  # behind the header of the first page


@dataclass
class _Shared:
    """Environment of LMDB, what to call when it is closed, and the number of readers that use it."""

    opened: Any
    release: Callable[[], None]
    count: int = 0


_environments: dict[tuple[int, str], _Shared] = {}
"""Those that are open, by process and file: LMDB must not open a file twice in a process, and a worker may read several
parts of a file by turns."""


class Reader(Closable):
    """Open database; a context manager. ``len()``: the number of its values.

    Raises:
        FormatError: it is none, or is cut off.
        ImportError: lmdb is not installed.
        OSError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], database: str = "") -> None:
        try:
            lmdb = importlib.import_module("lmdb")
        except ImportError as error:
            raise ImportError("this needs lmdb, which is not installed: pip install 'lmdb>=1.4'") from error
        in_folder = is_folder(path)
        file = below(path, "data.mdb") if in_folder else os.fspath(path)
        with open_source(file) as source:
            self.name, size, head = source.name, source.size or 0, source.head()
            if head[_MAGIC_AT : _MAGIC_AT + 4] != _MAGIC:
                raise source.unexpected("a database of LMDB", head[:8], 0)
        local, release = local_path(file)
        self._key = os.getpid(), os.path.realpath(local)
        if self._key in _environments:
            release()  # the reader that has it open keeps it
        else:
            try:
                with errors_of(self.name):
                    opened = lmdb.open(
                        local, subdir=False, readonly=True, lock=False, readahead=False, max_dbs=_MOST_NAMES
                    )
            except BaseException:
                release()
                raise
            _environments[self._key] = _Shared(opened, release)
        shared = _environments[self._key]
        shared.count += 1
        self._opened = shared.opened
        try:
            with errors_of(self.name):
                pages, page = self._opened.info()["last_pgno"] + 1, self._opened.stat()["psize"]
                if pages * page > size:  # looking at a page that is not there would end the process
                    raise ValueError(f"{pages} pages need {pages * page} bytes, the file has {size}{CUT_SHORT}")
                self._database = self._opened.open_db(database.encode(), create=False) if database else None
                with self._opened.begin() as transaction:
                    self._count = transaction.stat(self._database or self._opened.open_db(None))["entries"]
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return int(self._count)

    def blocks(self, part: FilePart, start: int, indices: Indices | None) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield (key, value) of ``part`` from its entry ``start`` on, or those of ``indices`` alone, some at a time.

        LMDB cannot find an entry by its number, so those before it are passed over one by one, and not copied.
        """
        first, last = part.range(len(self))
        wanted = iter(range(first + start, last) if indices is None else (indices + first).tolist())
        with errors_of(self.name), self._opened.begin(db=self._database, buffers=True) as transaction:
            entries, at = iter(transaction.cursor()), 0
            block, size = list[tuple[bytes, bytes]](), 0
            for number in wanted:
                entry = next(itertools.islice(entries, number - at, None), None)
                if entry is None:
                    raise ValueError(f"expected {len(self)} entries, got fewer")
                at = number + 1
                block.append((bytes(entry[0]), bytes(entry[1])))
                size += len(block[-1][0]) + len(block[-1][1])
                if size >= BLOCK:
                    yield block
                    block, size = [], 0
            if block:
                yield block

    def close(self) -> None:
        """Close the database, if no other reader has it open."""
        shared = _environments[self._key]
        shared.count -= 1
        if not shared.count:
            del _environments[self._key]
            shared.opened.close()
            shared.release()


def read(
    path: str | os.PathLike[str],
    *,
    start: int = 0,
    part: FilePart = WHOLE_FILE,
    indices: Indices | None = None,
    database: str = "",
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) of each entry, in the order of the keys.

    Args:
        path: a folder with ``data.mdb``, or a file.
        start: index of the first entry wanted, counted within the part.
        part: the part of the entries to read.
        indices: int64, rising: the entries to read, counted within the part, and no others. Default: all.
        database: name of a database in the file. Default: the main one.

    Raises:
        FormatError: it is no database, is damaged or cut off, or has no ``database`` of that name.
        ImportError: lmdb is not installed.
        OSError: it cannot be read.
    """
    with Reader(path, text("database", database)) as reader:
        for block in reader.blocks(part, start, indices):
            yield from block


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(
    settings: Any, *, file_list: Any, is_train: bool, input_order: Any, keys: bool = False, database: str = ""
) -> None:
    settings.keys, settings.database = flag("keys", keys), text("database", database)
    settings.input_types = {"data": raw(), **({"key": raw()} if keys else {})}


@provider(init_hook=_hook)
def process(settings: Any, filename: str, start: int, indices: Indices | None) -> Iterator[ManySamples]:
    """Serve the values of databases of LMDB, in the order of their keys. Slots: ``data``, and ``key`` if ``keys``.

    Arguments of the hook:
        keys: serve the keys too. Default: false.
        database: name of a database in the file. Default: the main one.
    """
    name, part = split_entry(filename)
    with Reader(name, settings.database) as reader:
        for block in reader.blocks(part, start, indices):
            slots = {"data": _bytes([value for _, value in block])}
            yield rows(**slots, **({"key": _bytes([key for key, _ in block])} if settings.keys else {}))


def _bytes(strings: list[bytes]) -> BinaryArray:
    return BinaryArray(offsets(np.array([*map(len, strings)], np.int64)), np.frombuffer(b"".join(strings), np.uint8))
