"""Parquet: a table in row groups, each with its columns one after the other; at the end of the file, where they are.

pyarrow reads it (``ParquetFile``), in the calling thread alone. A part of a file is some of its row groups, and a start
passes over row groups without reading them. A block of rows is decoded at a time, so memory does not grow with the
file: it holds the pages of one row group that are being read, and a block.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from pydp2.data.packers.arrow_values import flattened_types, pyarrow
from pydp2.data.packers.many_samples import ManySamples
from pydp2.errors import BadSample
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.arrow_tables import (
    checked,
    chosen_names,
    column_types,
    rows_of_block,
    table_hook,
)
from pydp2.formats.library_errors import errors_of
from pydp2.formats.source import Closable, PathOrFile, library_file, open_source
from pydp2.providers import provider

_PAGES = 1 << 20  # bytes of a column that are read from the file at a time


class Reader(Closable):
    """Open parquet file; a context manager.

    Attributes:
        name: name of the file in errors.
        schema: the pyarrow Schema of its columns.
        row_counts: number of rows of each row group.

    Raises:
        FormatError: it is no parquet file, or its footer is damaged.
        ImportError: pyarrow is not installed.
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile) -> None:
        parquet = pyarrow("parquet")
        with open_source(path) as source:
            self.name, head, size = source.name, source.head(), source.size or 0
            if not head.startswith((b"PAR1", b"PARE")) or size < 12:
                raise source.unexpected("a parquet file, which begins with PAR1", head[:4], 0)
        given, remote = library_file(path)
        self._remote = remote
        self._file = pyarrow().OSFile(os.fspath(given)) if isinstance(given, str | os.PathLike) else remote
        try:
            with errors_of(self.name, lambda: "the footer"):
                self._parquet = parquet.ParquetFile(
                    given if self._file is None else self._file,
                    buffer_size=_PAGES,
                    pre_buffer=False,
                    page_checksum_verification=True,
                )
                metadata = self._parquet.metadata
                groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
                self.schema = self._parquet.schema_arrow
                list(flattened_types(self.schema))  # all names are UTF-8
                self.row_counts = [group.num_rows for group in groups]
                self._bytes = [group.total_byte_size for group in groups]
                if min(self.row_counts, default=0) < 0 or sum(self.row_counts) != metadata.num_rows:
                    raise ValueError(f"row groups of {self.row_counts} rows are not {metadata.num_rows} rows together")
        except BaseException:
            self.close()
            raise

    def batches(self, part: FilePart, start: int, columns: Sequence[str] | None) -> Generator[Any]:
        """Yield the rows of ``part`` from its row ``start`` on as pyarrow RecordBatches of the ``columns``, None for
        all; whole row groups before it are not read."""
        types = column_types(self.schema, columns, self.name)
        chosen = None if columns is None else list(types)
        for group in range(*part.range(len(self.row_counts))):
            count = self.row_counts[group]
            if start < count:
                size = rows_of_block(self._bytes[group] / count, types.values())
                yield from self._group(group, start, size, chosen)
            start = max(0, start - count)

    def _group(self, group: int, start: int, size: int, columns: list[str] | None) -> Iterator[Any]:
        """Yield the rows of a row group from ``start`` on, ``size`` rows at a time."""
        count, done = self.row_counts[group], 0
        with errors_of(self.name, lambda: f"row group {group}"):
            batches = self._parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)
        while True:
            with errors_of(self.name, lambda: f"row group {group}"):
                batch = next(batches, None)
                if done + (0 if batch is None else len(batch)) > count or (batch is None and done < count):
                    raise ValueError(f"expected {count} rows, got {done if batch is None else 'more'}")
            if batch is None:
                return
            done += len(batch)
            if done > start:
                yield batch.slice(max(0, start - (done - len(batch))))

    def close(self) -> None:
        """Close the file."""
        for opened in (self._file, self._remote):
            if opened is not None:
                opened.close()


def read(
    path: PathOrFile, *, start: int = 0, part: FilePart = WHOLE_FILE, columns: Sequence[str] | None = None
) -> Iterator[Any]:
    """Yield the rows of a file, some at a time, as pyarrow RecordBatches.

    Args:
        path: the file.
        start: index of the first row wanted, counted within the part. Row groups before it are not read.
        part: the row groups to read.
        columns: names of the columns, as in the file; a field of a struct is ``a.b``. Default: all.

    Raises:
        FormatError: the file is damaged. The text names the row group.
        OptionError: there is no such column.
        ImportError: pyarrow is not installed.
        OSError: the file cannot be read.
    """
    with Reader(path) as reader:
        yield from checked(reader.name, reader.batches(part, start, chosen_names(columns)))


# -- the provider ------------------------------------------------------------------------------------------------------
def _schema_of(file: str) -> tuple[Any, bool]:
    with Reader(file) as reader:
        return reader.schema, any(reader.row_counts)


@provider(init_hook=table_hook(_schema_of))
def process(settings: Any, filename: str, start: int) -> Iterator[ManySamples | BadSample]:
    """Serve the rows of parquet files: each column is a slot of its name (docs/formats.md, "Types of Arrow").

    Arguments of the hook:
        columns: names of the columns to serve, in this order; a field of a struct is ``a.b``. Default: all.
        nulls: a value for the nulls of a column, by its name. Without one, a row with a null is a bad sample.
    """
    name, part = split_entry(filename)
    with Reader(name) as reader:
        settings.table.check(name, reader.schema)
        with contextlib.closing(reader.batches(part, start, settings.table.columns)) as batches:
            for batch in batches:
                yield from settings.table.samples(batch)
