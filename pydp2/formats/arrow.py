"""Arrow's own files: IPC files and streams, Feather, and the folders of Hugging Face's ``Dataset.save_to_disk``.

All are messages one after the other: a schema, dictionaries, record batches; a file (Feather 2 is one) also has a magic
number before and a footer behind them. The file is mapped into memory. :class:`MessageFile` walks over the headers of
all messages once, without touching their values, so it knows which rows each record batch has and reads any directly.

Theory of operation. What a mapped file says is not to be trusted, and Arrow's own functions follow offsets without
looking. So each block of rows is validated before anything else looks at it, and damage is an error that names the
record batch. Where only text is no UTF-8, the block is still safe to look at with numpy
(:mod:`pydp2.data.packers.arrow_values`), and the rows are found that are to blame. A header's number of rows is taken
from the wire, as pyarrow gives no way to it without decompressing values, and compared when the batch is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.packers.arrow_values import flattened_types, pyarrow
from pydp2.data.packers.many_samples import ManySamples, rows
from pydp2.errors import BadSample, FormatError, OptionError, OptionTypeError
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.arrow_tables import (
    checked,
    chosen_names,
    column_types,
    rows_of_block,
    table_hook,
)
from pydp2.formats.first_bytes import CUT_SHORT
from pydp2.formats.folders import below, has_file, is_folder, read_small
from pydp2.formats.library_errors import errors_of
from pydp2.formats.source import Closable, PathOrFile, library_file, open_source
from pydp2.providers import provider
from pydp2.remote import is_remote
from pydp2.remote.remote_file import open_ahead

Indices = NDArray[np.int64]
_MAGIC = b"ARROW1\0\0"  # at the end of a file without the zeros
_END = 10  # bytes of the length of the footer and of the magic behind it
_BLOCK_SIZE = 24  # bytes of an entry of the footer
_STATE, _SPLITS = "state.json", "dataset_dict.json"
_MOST_JSON = _MOST_SCHEMA = 1 << 24  # bytes


class MessageFile(Closable):
    """Open Arrow file or stream; a context manager.

    Attributes:
        name: name of the file in errors.
        schema: its pyarrow Schema.
        row_counts: number of rows of each record batch, as its header says.

    Raises:
        FormatError: it is no Arrow file, is cut off, or its headers are damaged.
        ImportError: pyarrow is not installed.
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile, columns: Sequence[str] | None = None, *, only_schema: bool = False) -> None:
        pa = pyarrow()
        with open_source(path) as source:
            self.name, head, self._size = source.name, source.head(), source.size or 0
            if not (head.startswith(_MAGIC) or _is_schema(head)):
                raise source.unexpected("an Arrow file or stream", head[:4], 0)
        self._is_file = head.startswith(_MAGIC)
        given, remote = library_file(path)
        self._owned = isinstance(path, str | os.PathLike)
        self._remote = remote
        is_path = isinstance(given, str | os.PathLike)
        self._source = pa.memory_map(os.fspath(given)) if is_path else pa.PythonFile(given, "r")
        self._columns = columns
        try:
            with errors_of(self.name, lambda: "the headers of its messages"):
                self._positions, self.row_counts = self._walk()
                self._stream: Any = None
                self._next = 0  # number of the batch that comes next, in a stream with dictionaries
                self._file = self._opened() if self._is_file and not only_schema else None
                self.schema = self._first_schema() if only_schema else (self._file or self._restarted()).schema
                list(flattened_types(self.schema))  # all names are UTF-8
                if self._file is not None and self._file.num_record_batches != len(self.row_counts):
                    raise ValueError(f"the footer has {self._file.num_record_batches}, the file {len(self.row_counts)}")
                self._has_dictionaries = any(map(_has_dictionary, self.schema.types))
                if columns is not None:
                    self._file = self._opened() if self._is_file else None
                    self._restarted()
        except BaseException:
            self.close()
            raise

    def _walk(self) -> tuple[list[int], list[int]]:
        """Return the position and the number of rows of each record batch."""
        source, ipc = self._source, pyarrow("ipc")
        positions, counts = list[int](), list[int]()
        source.seek(self._begin())
        while True:
            at = source.tell()
            try:
                message = ipc.read_message(source)
            except EOFError:
                break
            if message.type == "record batch":
                positions.append(at)
                counts.append(_row_count(message.metadata.to_pybytes()))
        end = source.tell()
        if end == at:
            raise ValueError(f"the mark of the end is missing{CUT_SHORT}")
        if not self._is_file and end != self._size:
            raise ValueError(f"expected the end of the file at byte {end}, got {self._size - end} more bytes")
        return positions, counts

    def _begin(self) -> int:
        """Return where the first message is that has its length before it. In files of polars the schema has none, and
        it is the first one that the footer names."""
        if not self._is_file:
            return 0
        source = self._source
        source.seek(len(_MAGIC))
        if _is_schema(source.read(16)):
            return len(_MAGIC)
        end = self._size - _END
        source.seek(end)
        footer = end - int.from_bytes(source.read(4), "little")
        if not len(_MAGIC) <= footer < end:
            raise ValueError(f"the footer begins at byte {footer}")
        source.seek(footer)
        return min(_block_offsets(source.read(end - footer)), default=footer)

    def _first_schema(self) -> Any:
        """Return the schema of the file or stream, as pyarrow's reader of streams gives it, which starts no thread."""
        source, ipc, begin = self._source, pyarrow("ipc"), self._begin()
        source.seek(len(_MAGIC) if self._is_file else 0)
        if begin > source.tell():  # of polars: the length is missing
            schema = source.read(begin - source.tell())
            source = pyarrow().BufferReader(struct.pack("<Ii", 0xFFFFFFFF, len(schema)) + schema)
        return ipc.open_stream(source).schema

    def _opened(self) -> Any:
        """Return pyarrow's reader of the file or stream from its beginning."""
        ipc = pyarrow("ipc")
        options = ipc.IpcReadOptions(use_threads=False, included_fields=self._included())
        self._source.seek(0)
        return (ipc.open_file if self._is_file else ipc.open_stream)(self._source, options=options)

    def _included(self) -> list[int]:
        """Return the numbers of the columns that are read, none for all."""
        if self._columns is None or not hasattr(self, "schema"):
            return []
        chosen = column_types(self.schema, self._columns, self.name)
        return [
            number
            for number, name in enumerate(self.schema.names)
            if any(choice == name or choice.startswith(f"{name}.") for choice in chosen)
        ]

    def _restarted(self) -> Any:
        if not self._is_file:
            self._stream, self._next = self._opened(), 0
        return self._stream

    def batch(self, number: int) -> Any:
        """Return a record batch over the mapped memory. Nothing in it is checked but its number of rows."""
        with errors_of(self.name, lambda: f"record batch {number}"):
            if self._file is not None:
                batch = self._file.get_batch(number)
            elif self._has_dictionaries:
                if number < self._next:
                    self._restarted()
                while self._next <= number:
                    batch = self._stream.read_next_batch()
                    self._next += 1
            else:
                self._source.seek(self._positions[number])
                batch = self._stream.read_next_batch()
            if len(batch) != self.row_counts[number]:
                raise ValueError(f"expected {self.row_counts[number]} rows, got {len(batch)}")
            return batch

    def close(self) -> None:
        """Close the file; batches that were read stay."""
        if self._owned:
            self._source.close()
        if self._remote is not None:
            self._remote.close()


def _is_schema(head: bytes) -> bool:
    """Return True if a stream of messages may begin so: a length, since 2019 with a mark before it, and a table."""
    if head.startswith(b"\xff\xff\xff\xff"):
        head = head[4:]
    return len(head) >= 8 and 8 <= int.from_bytes(head[:4], "little") < _MOST_SCHEMA and head[5:8] == b"\0\0\0"


def _taken(batch: Any, wanted: Indices) -> Any:
    """Return the given rows of a batch, at least one."""
    pa = pyarrow()
    try:
        return batch.take(pa.array(wanted))
    except NotImplementedError:  # Arrow has no kernel that takes from views
        pieces = [batch.slice(row, 1) for row in wanted.tolist()]
        return pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]


def _field(data: bytes, table: int, number: int) -> int:
    """Return the place of a field of the table at ``table`` of a flatbuffer, 0 if the table leaves it out."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * number
    has = place + 2 <= struct.unpack_from("<H", data, fields)[0]
    offset: int = struct.unpack_from("<H", data, fields + place)[0] if has else 0
    return table + offset if offset else 0


def _behind(data: bytes, place: int) -> int:
    """Return the place to which the offset at ``place`` of a flatbuffer leads."""
    offset: int = struct.unpack_from("<I", data, place)[0]
    return place + offset


def _row_count(metadata: bytes) -> int:
    """Return the length in the header of a record batch, which is the flatbuffer ``metadata``."""
    try:
        header = _field(metadata, _behind(metadata, 0), 2)  # of Message: version, kind of the header, header
        length = _field(metadata, _behind(metadata, header), 0) if header else 0
        count: int = struct.unpack_from("<q", metadata, length)[0] if length else 0
    except struct.error:
        count = -1
    if count < 0:
        raise ValueError("the header of a record batch is damaged")
    return count


def _block_offsets(footer: bytes) -> list[int]:
    """Return where the dictionaries and record batches begin that the flatbuffer ``footer`` names."""
    offsets: list[int] = []
    try:
        for number in (2, 3):  # of Footer: version, schema, dictionaries, record batches
            if place := _field(footer, _behind(footer, 0), number):
                blocks = _behind(footer, place)
                count = min(struct.unpack_from("<I", footer, blocks)[0], len(footer) // _BLOCK_SIZE)
                offsets += [struct.unpack_from("<q", footer, blocks + 4 + _BLOCK_SIZE * i)[0] for i in range(count)]
    except struct.error:
        raise ValueError("the footer is damaged") from None
    if any(offset < len(_MAGIC) for offset in offsets):
        raise ValueError("the footer names a message before the beginning")
    return offsets


def _has_dictionary(kind: Any) -> bool:
    types = pyarrow().types
    if isinstance(kind, pyarrow().BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return bool(types.is_dictionary(kind)) or any(map(_has_dictionary, inner))


def _is_read_by_numpy(kind: Any) -> bool:
    """Return True if :func:`rows` reads all of a type by numpy, which does not leave the memory of the array."""
    pa = pyarrow()
    if isinstance(kind, pa.BaseExtensionType):
        return _is_read_by_numpy(kind.storage_type)
    foreign = {"dictionary", "run_end_encoded", "string_view", "binary_view"}
    if any(getattr(pa.types, f"is_{name}")(kind) for name in foreign):
        return False
    return all(_is_read_by_numpy(kind.field(i).type) for i in range(kind.num_fields))


def _check_offsets(batch: Any) -> None:
    """Raise ValueError if the offsets of a column lie."""
    try:
        rows(batch)
    except (OptionError, OptionTypeError) as error:
        raise ValueError(str(error)) from None


def data_files(path: PathOrFile) -> list[PathOrFile]:
    """Return the files that have the rows of ``path``: the file itself, or those of a folder of Hugging Face's.

    Raises:
        FormatError: the folder has no ``state.json`` or several splits, or its rows are chosen by indices.
        OSError: a file cannot be read.
    """
    if not isinstance(path, str | os.PathLike) or not is_folder(path):
        return [path]
    folder = os.fspath(path)
    if not has_file(below(folder, _STATE)):
        if not has_file(below(folder, _SPLITS)):
            file_or = "the file or " if is_remote(folder) and not folder.endswith("/") else ""
            raise _folder_error(folder, f"expected {file_or}a folder of Dataset.save_to_disk, which has a {_STATE}")
        splits = _json(below(folder, _SPLITS)).get("splits")
        names = [name for name in splits if isinstance(name, str)] if isinstance(splits, list) else []
        raise _folder_error(folder, f"a folder of splits, name one: {', '.join(below(folder, name) for name in names)}")
    state = _json(below(folder, _STATE))
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise _folder_error(
            folder, "its rows are chosen by indices; save it again with dataset.flatten_indices().save_to_disk(…)"
        )
    listed = state.get("_data_files")
    items = listed if isinstance(listed, list) else []
    names = [str(item.get("filename", "/")) if isinstance(item, dict) else "/" for item in items]
    if not names or not all(name == Path(name).name for name in names):
        raise _folder_error(folder, f"{_STATE} must list files of this folder as _data_files, got {listed!r:.80}")
    return [below(folder, name) for name in names]


def _json(file: str) -> dict[str, Any]:
    """Return the object that a file of JSON has."""
    data = read_small(file, _MOST_JSON, "a description")
    try:
        made = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file}: expected JSON: {error}", file=file) from None
    if not isinstance(made, dict):
        raise FormatError(f"{file}: expected an object of JSON, got {made!r:.80}", file=file)
    return made


def _folder_error(folder: str, what: str) -> FormatError:
    return FormatError(f"{folder}: {what}", file=folder)


class Reader(Closable):
    """Rows of one file, or of all files of a folder; a context manager. ``len()``: their number.

    Attributes:
        name, schema: of the first file.

    Raises what :class:`MessageFile` and :func:`data_files` do, and FormatError if the files of a folder differ in their
    schema.
    """

    def __init__(self, path: PathOrFile, columns: Sequence[str] | None = None, *, only_schema: bool = False) -> None:
        self._readers: list[MessageFile] = []
        try:
            files = data_files(path)
            for file in files[1:]:
                open_ahead(os.fspath(file))  # type: ignore[arg-type]  # several files have paths
            for file in files:
                self._readers.append(MessageFile(file, columns, only_schema=only_schema))
                last = self._readers[-1]
                if not last.schema.equals(self._readers[0].schema):
                    raise FormatError(f"{last.name} must have the schema of {self._readers[0].name}", file=last.name)
        except BaseException:
            self.close()
            raise
        first = self._readers[0]
        self.name, self.schema = first.name, first.schema
        self._kinds = list(column_types(self.schema, columns, self.name).values())
        self._batches = [(reader, number) for reader in self._readers for number in range(len(reader.row_counts))]
        counts = [reader.row_counts[number] for reader, number in self._batches]
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def batches(self, part: FilePart, start: int = 0, indices: Indices | None = None) -> Generator[Any]:
        """Yield the rows of ``part``, a share of all rows, from its row ``start`` on as RecordBatches; or those whose
        ``indices``, counted within the part, are given in rising order, alone. Rows between them are not read."""
        first, last = part.range(len(self))
        if indices is None:
            first = min(last, first + start)
        elif len(indices):
            wanted = indices + first
            first, last = int(wanted[0]), int(wanted[-1]) + 1
        else:
            return
        for number in range(int(np.searchsorted(self._starts, first, "right")) - 1, len(self._batches)):
            begin, end = int(self._starts[number]), int(self._starts[number + 1])
            if begin >= last:
                return
            if indices is None:
                yield from self._blocks(number, max(first, begin) - begin, min(last, end) - begin)
                continue
            lo, hi = np.searchsorted(wanted, [begin, end])
            if lo < hi:
                yield from self._chosen(number, wanted[lo:hi] - begin)

    def _blocks(self, number: int, first: int, last: int) -> Iterator[Any]:
        if first < last:
            reader, inner = self._batches[number]
            batch = reader.batch(inner)
            size = self._block_rows(batch)
            for at in range(first, last, size):
                yield self._validated(batch.slice(at, min(size, last - at)), reader, inner)

    def _block_rows(self, batch: Any) -> int:
        return rows_of_block(batch.get_total_buffer_size() / max(1, len(batch)), self._kinds)

    def _chosen(self, number: int, chosen: Indices) -> Iterator[Any]:
        """Yield the given rows of a batch, those of a block at a time."""
        reader, inner = self._batches[number]
        batch = reader.batch(inner)
        size = self._block_rows(batch)
        blocks = chosen // size
        for block in np.unique(blocks).tolist():
            lo, hi = np.searchsorted(blocks, [block, block + 1])
            wanted = chosen[lo:hi] - block * size
            piece = self._validated(batch.slice(block * size, size), reader, inner)
            if int(wanted[-1] - wanted[0]) + 1 == len(wanted):
                yield piece.slice(int(wanted[0]), len(wanted))
            else:
                yield _taken(piece, wanted)

    def _validated(self, batch: Any, reader: MessageFile, number: int) -> Any:
        """Return ``batch``, which nothing can crash that looks at it. Raises FormatError: it is damaged."""
        with errors_of(reader.name, lambda: f"record batch {number}"):
            try:
                batch.validate(full=True)
            except ValueError:  # maybe only because of text that is no UTF-8, for which its rows are blamed
                if not all(map(_is_read_by_numpy, batch.schema.types)):
                    raise
                batch.validate()
                _check_offsets(batch)
        return batch

    def close(self) -> None:
        """Close the files."""
        for reader in self._readers:
            reader.close()


def read(
    path: PathOrFile,
    *,
    start: int = 0,
    part: FilePart = WHOLE_FILE,
    indices: Indices | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[Any]:
    """Yield the rows of a file, stream or folder, some at a time, as pyarrow RecordBatches over the mapped file.

    Args:
        path: the file, or a folder of ``Dataset.save_to_disk``.
        start: index of the first row wanted, counted within the part.
        part: the part of the rows to read.
        indices: int64, rising: the rows to read, counted within the part, and no others. Default: all.
        columns: names of the columns, as in the file; a field of a struct is ``a.b``. Default: all.

    Raises:
        FormatError: the file is damaged; the text names the record batch. Or the folder is none that can be read.
        OptionError: there is no such column.
        ImportError: pyarrow is not installed.
        OSError: the file cannot be read.
    """
    with Reader(path, chosen_names(columns)) as reader:
        yield from checked(reader.name, reader.batches(part, start, indices))


# -- the provider ------------------------------------------------------------------------------------------------------
def _schema_of(path: str) -> tuple[Any, bool]:
    with Reader(path, only_schema=True) as reader:
        return reader.schema, len(reader) > 0


@provider(init_hook=table_hook(_schema_of))
def process(settings: Any, filename: str, start: int, indices: Indices | None) -> Iterator[ManySamples | BadSample]:
    """Serve the rows of Arrow files: each column is a slot of its name (docs/formats.md, "Types of Arrow").

    Arguments of the hook:
        columns: names of the columns to serve, in this order; a field of a struct is ``a.b``. Default: all.
        nulls: a value for the nulls of a column, by its name. Without one, a row with a null is a bad sample.
    """
    name, part = split_entry(filename)
    with Reader(name, settings.table.columns) as reader:
        settings.table.check(name, reader.schema)
        with contextlib.closing(reader.batches(part, start, indices)) as batches:
            for batch in batches:
                yield from settings.table.samples(batch)
