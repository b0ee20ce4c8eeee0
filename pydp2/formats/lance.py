"""Lance: a table in a folder, in columns, of which any row can be read directly.

pylance reads it, into Arrow's record batches. It starts threads when it is imported, and is not safe to fork. So a
service whose hook has looked at a folder forks no workers from that process: the threads are found there, and each
worker imports and opens for itself (docs/workers.md).
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.packers.many_samples import ManySamples
from pydp2.errors import BadSample, FormatError
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.arrow_tables import checked, chosen_names, column_types, rows_of_block, table_hook
from pydp2.formats.library_errors import errors_of
from pydp2.providers import provider
from pydp2.remote import is_remote

Indices = NDArray[np.int64]


class Reader:
    """Rows of the newest version of a table. ``len()``: their number.

    Attributes: ``name``, of the folder; ``schema``, the pyarrow Schema.

    Raises:
        FormatError: the folder is no table of Lance, or is damaged.
        ImportError: pylance is not installed.
        OSError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> None:
        self.name = os.fspath(path)
        if is_remote(self.name):
            raise FormatError(
                f"{self.name}: folders of Lance must lie on this machine, because its library opens them by itself; "
                "copy it here, or write its rows as Parquet",
                file=self.name,
            )
        if not Path(path).stat() or not Path(path).is_dir():
            raise FormatError(f"{self.name}: expected a folder of Lance", file=self.name)
        for name in ("LANCE_CPU_THREADS", "LANCE_IO_THREADS"):
            os.environ.setdefault(name, "1")  # a worker has one core
        try:
            lance = importlib.import_module("lance")
        except ImportError as error:
            raise ImportError("Lance needs pylance, which is not installed: pip install 'pylance>=4'") from error
        with errors_of(self.name):
            self._table = lance.dataset(self.name)
            self.schema, self._count = self._table.schema, self._table.count_rows()
        types = column_types(self.schema, columns, self.name)
        self._columns = None if columns is None else list(dict.fromkeys(name.partition(".")[0] for name in types))
        data = sum(file.stat().st_size for file in (Path(path) / "data").glob("*"))
        self._block = rows_of_block(data / max(1, self._count), types.values())

    def __len__(self) -> int:
        return int(self._count)

    def batches(self, part: FilePart, start: int = 0, indices: Indices | None = None) -> Generator[Any]:
        """Yield the rows of ``part``, a share of all rows, from its row ``start`` on as RecordBatches; or those whose
        ``indices``, counted within the part, are given in rising order, alone."""
        first, last = part.range(len(self))
        wanted = None if indices is None else indices + first
        first = first + start if wanted is None else 0
        count = max(0, last - first) if wanted is None else len(wanted)
        found = self._scanned(first, count) if wanted is None else self._taken(wanted)
        while count:
            with errors_of(self.name):
                batch = next(found, None)
                if batch is None or len(batch) > count:
                    raise ValueError(f"expected {count} more rows, got {0 if batch is None else len(batch)}")
            count -= len(batch)
            if len(batch):
                yield batch

    def _scanned(self, first: int, count: int) -> Iterator[Any]:
        if not count:
            return iter(())
        with errors_of(self.name):
            found: Iterator[Any] = self._table.to_batches(
                columns=self._columns, offset=first, limit=count, batch_size=self._block, scan_in_order=True,
                batch_readahead=1, fragment_readahead=1,
            )  # fmt: skip
        return found

    def _taken(self, wanted: Indices) -> Iterator[Any]:
        for at in range(0, len(wanted), self._block):
            yield from self._table.take(wanted[at : at + self._block].tolist(), columns=self._columns).to_batches()


def read(
    path: str | os.PathLike[str],
    *,
    start: int = 0,
    part: FilePart = WHOLE_FILE,
    indices: Indices | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[Any]:
    """Yield the rows of a table, some at a time, as pyarrow RecordBatches.

    Args:
        path: the folder.
        start: index of the first row wanted, counted within the part.
        part: the part of the rows to read.
        indices: int64, rising: the rows to read, counted within the part, and no others. Default: all.
        columns: names of the columns; a field ``a.b`` of a struct reads a. Default: all.

    Raises:
        FormatError: the folder is no table of Lance, or is damaged.
        OptionError: there is no such column.
        ImportError: pylance is not installed.
        OSError: it cannot be read.
    """
    reader = Reader(path, chosen_names(columns))
    yield from checked(reader.name, reader.batches(part, start, indices))


# -- the provider ------------------------------------------------------------------------------------------------------
def _schema_of(path: str) -> tuple[Any, bool]:
    reader = Reader(path)
    return reader.schema, len(reader) > 0


@provider(init_hook=table_hook(_schema_of))
def process(settings: Any, filename: str, start: int, indices: Indices | None) -> Iterator[ManySamples | BadSample]:
    """Serve the rows of Lance's tables: each column is a slot of its name (docs/formats.md, "Types of Arrow").

    Arguments of the hook:
        columns: names of the columns to serve, in this order; a field of a struct is ``a.b``. Default: all.
        nulls: a value for the nulls of a column, by its name. Without one, a row with a null is a bad sample.
    """
    name, part = split_entry(filename)
    reader = Reader(name, settings.table.columns)
    settings.table.check(name, reader.schema)
    with contextlib.closing(reader.batches(part, start, indices)) as batches:
        for batch in batches:
            yield from settings.table.samples(batch)
