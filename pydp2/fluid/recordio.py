"""Read RecordIO files of Fluid (the tag ``recordio``), and write readers to such files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydp2.errors import FormatError, OptionError
from pydp2.fluid.base import Reader, Source, reader_of
from pydp2.fluid.content import decode, encode
from pydp2.fluid.files import FileReader, Name, register_file_reader, text_of
from pydp2.fluid.repeating import multi_pass
from pydp2.fluid.shapes import Shape
from pydp2.fluid.tensors import Instance, instance_of
from pydp2.formats import paddle_recordio
from pydp2.formats.source import written_whole
from pydp2.options.values import integer_from

SUFFIX = ".recordio"


@register_file_reader("recordio")
def read_recordio(filename: str, shapes: tuple[Shape, ...] = ()) -> Iterator[Instance]:
    """Yield the instances of a RecordIO file in either layout, one for each record.

    Raises FormatError for a damaged file or record, with the file, the record and the offset of its chunk; OSError if
    the file cannot be read. See docs/fluid.md.
    """
    y = 0
    with paddle_recordio.Reader(filename) as file:
        for piece in file.chunks():
            for record in file.records(piece):
                try:
                    yield decode(record)
                except FormatError as error:
                    raise FormatError(
                        f"{filename}, record {y}, in the chunk at byte {piece.offset}: {error}",
                        file=filename,
                        offset=piece.offset,
                    ) from None
                y += 1


def open_recordio_file(
    filename: Name,
    shapes: Sequence[Sequence[int]],
    lod_levels: Sequence[int] | None = None,
    dtypes: Sequence[Any] | None = None,
    *,
    pass_num: int = 1,
) -> Reader:
    """Return a reader of one RecordIO file; its name may have any ending. The thread that calls the reader reads the
    file. Arguments and errors are those of :func:`open_files`."""
    reader = FileReader(f"recordio:{text_of(filename)}", shapes, lod_levels, dtypes)
    passes = integer_from(1)("pass_num", pass_num)
    return reader if passes == 1 else multi_pass(reader, passes)


Feeder = Callable[[Any], Any]
"""A function that takes an entry of a reader and returns an instance: a tuple or list of tensors and arrays."""


def convert_reader_to_recordio_file(
    filename: Name,
    reader: Source,
    feeder: Feeder | None = None,
    *,
    compressor: paddle_recordio.Packing = "none",
    max_num_records: int = paddle_recordio.CHUNK_RECORDS,
) -> int:
    """Write one pass of ``reader`` to a RecordIO file, one record for each instance. Return the number of records.

    ``reader``: a Fluid reader, or any callable that returns an iterable of entries. ``feeder(entry)`` returns the
    instance for an entry; None: the entries are instances. ``compressor``: ``"none"`` or ``"snappy"``.
    ``max_num_records``: the largest number of records in a chunk. The file gets its name when it is complete. If the
    name is a link, the file that it points to is replaced. Raises OptionError for an instance that a record cannot hold
    and for a name that ends in ``.gz``, OSError if the file cannot be written. See docs/fluid.md.
    """
    with closing(_instances(reader, feeder)) as instances:
        return _write(Path(text_of(filename)), instances, compressor, max_num_records)


def convert_reader_to_recordio_files(
    filename: Name,
    batch_per_file: int,
    reader: Source,
    feeder: Feeder | None = None,
    *,
    compressor: paddle_recordio.Packing = "none",
    max_num_records: int = paddle_recordio.CHUNK_RECORDS,
) -> list[str]:
    """Write one pass of ``reader`` to files of exactly ``batch_per_file`` records; the last file has the rest. Return
    their names.

    For ``filename="train.recordio"`` the names are ``train-00000.recordio``, ``train-00001.recordio`` and so on; an
    empty reader gives no file. The other arguments and errors are those of :func:`convert_reader_to_recordio_file`;
    also raises OptionError for a ``filename`` that does not end with ``.recordio``. See docs/fluid.md.
    """
    path = Path(text_of(filename))
    if path.suffix != SUFFIX:
        raise OptionError(f"filename must end with {SUFFIX}, by which its reader is found, got {str(path)!r}")
    size = integer_from(1)("batch_per_file", batch_per_file)
    written: list[str] = []
    with closing(_instances(reader, feeder)) as instances:
        for first in instances:
            part = path.with_name(f"{path.stem}-{len(written):05d}{SUFFIX}")
            _write(part, chain([first], islice(instances, size - 1)), compressor, max_num_records)
            written.append(str(part))
    return written


def _instances(reader: Source, feeder: Feeder | None) -> Generator[Instance]:
    fluid = reader_of(reader)
    if feeder is None:
        yield from fluid()
    else:
        for entry in reader():
            yield instance_of(feeder(entry), "a feeder")


def _write(path: Path, instances: Iterable[Instance], compressor: paddle_recordio.Packing, max_num_records: int) -> int:
    count = 0
    with (
        written_whole(path) as beside,
        paddle_recordio.Writer(beside, layout="fluid", packing=compressor, max_records=max_num_records) as writer,
    ):
        for instance in instances:
            writer.write(encode(instance))
            count += 1
    return count
