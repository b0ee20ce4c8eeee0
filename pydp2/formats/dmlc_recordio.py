"""RecordIO of dmlc and MXNet (``.rec``): records of any bytes, which a reader can find from any offset in the file.

    magic CE D7 23 0A as u32 little-endian | u32: kind << 29 | length | payload | zeros to a multiple of 4

Kind 0 is a whole record. A payload never has the magic at a multiple of 4. If a record has it there, the writer cuts
the record there and leaves out the four bytes. The pieces have kind 1 (first), 2 (middle) and 3 (last). So a reader can
begin at any offset: the next multiple of 4 with the magic and kind 0 or 1 is the next record.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from pydp2.data.schema.input_types import integer_value
from pydp2.errors import BadSample, FormatError, OptionError, bad_value
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats.irheader import unpack
from pydp2.formats.serving import BYTES, IDS, LabelSlot, as_steps, bad_record, flag
from pydp2.formats.source import ByteSource, Closable, PathOrFile, as_bytes, create_file, open_source
from pydp2.providers import provider

MAGIC = struct.pack("<I", 0xCED7230A)
MOST = 1 << 29
"""A record, or a piece of one, is shorter than this many bytes."""

_HEAD = struct.Struct("<4sI")
_LENGTH = MOST - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_BLOCK = 1 << 16  # bytes that are read at a time in a search for the magic


class Reader(Closable):
    """Open RecordIO file; a context manager. Iterating gives the records of ``part``, as ``bytes``.

    Parts are ranges of bytes of equal size, whose ends move forward to the next record. So a record belongs to the part
    in which it begins.

    Raises:
        FormatError: (while reading records) the magic is wrong, a piece of a record is out of place, the file ends
            within a record, or padding is not zero.
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile, *, part: FilePart = WHOLE_FILE) -> None:
        self._source = open_source(path)
        self._part = part

    def __iter__(self) -> Iterator[bytes]:
        return (record for _, record in self.with_offsets())

    def with_offsets(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset of the first header, record) of each record. Meanwhile records may be read by offset."""
        with closing(self.records_or_errors()) as items:
            for offset, record in items:
                if isinstance(record, FormatError):
                    raise record
                yield offset, record

    def records_or_errors(self) -> Generator[tuple[int, bytes | FormatError]]:
        """Yield records as :meth:`with_offsets` does, and an error in place of a damaged one. The next record is the
        first whose header is behind the damage."""
        at, last = self.bounds()
        source = self._source
        small = True
        while at < last:
            begin = at
            if small:
                with source.at(begin) as reader:
                    block = reader.read_some(min(_BLOCK, last - begin))
                for start, end, record in _whole_ones(block):
                    yield begin + start, record
                    at = begin + end
            if at == begin:  # the next record is long, is in pieces, or is damaged
                item, at = self._long_or_damaged(begin, last)
                small = not isinstance(item, bytes) or len(item) < _BLOCK // 4
                yield begin, item

    def _long_or_damaged(self, begin: int, last: int) -> tuple[bytes | FormatError, int]:
        """Return the record at ``begin``, or its error, and the offset at which to go on. That offset is never before
        that of the error, so a damaged file is read only once."""
        with self._source.at(begin) as reader:
            try:
                record = _record(reader)
            except FormatError as error:
                at = max(begin + 4, error.offset or 0)
                return error, min(last, self._next_record(at + -at % 4))
            if reader.offset > last:
                return reader.error(f"the record reaches beyond byte {last}, where another one begins", begin), last
            return record, reader.offset

    def bounds(self) -> tuple[int, int]:
        """Return begin and end of the part in bytes: each is the beginning of a record, or the end of the file."""
        source, part = self._source, self._part
        assert source.size is not None
        step = -(-source.size // part.count)
        step += -step % 4
        return self._next_record(step * part.index), self._next_record(step * (part.index + 1))

    def read_at(self, offset: int) -> bytes:
        """Return the record whose first header is at ``offset``."""
        source = self._source
        assert source.size is not None
        if not 0 <= offset < source.size:
            raise source.error(f"there is no record: the file has {source.size} bytes", offset)
        with source.at(offset) as reader:
            return _record(reader)

    def _next_record(self, at: int) -> int:
        """Return the first offset from ``at`` on, a multiple of 4, where a record begins, or the end of the file."""
        source = self._source
        assert source.size is not None
        if at == 0:
            return 0  # if no record begins there, reading it raises the error
        while at < source.size:
            with source.at(at) as reader:
                block = reader.read_some(_BLOCK + 4)  # so a header at the end of a block is complete
            for found in re.finditer(re.escape(MAGIC), block):
                begin = found.start()
                if (
                    not begin % 4
                    and begin < _BLOCK
                    and len(block) >= begin + 8
                    and block[begin + 7] >> 5 in (_WHOLE, _FIRST)
                ):
                    return at + begin
            at += _BLOCK
        return source.size

    def close(self) -> None:
        """Close the file."""
        self._source.close()


def _record(source: ByteSource) -> bytes:
    """Return the record that begins here."""
    kind, payload = _piece(source)
    if kind == _WHOLE:
        return payload
    if kind != _FIRST:
        raise source.error(f"expected the begin of a record, got a later piece (kind {kind})", source.offset)
    joined = bytearray(payload)
    while kind != _LAST:
        begin = source.offset
        kind, payload = _piece(source)
        if kind not in (_MIDDLE, _LAST):
            raise source.error(f"expected another piece of the record, got kind {kind}", begin)
        joined += MAGIC
        joined += payload
    return bytes(joined)


def _piece(source: ByteSource) -> tuple[int, bytes]:
    begin = source.offset
    magic, word = _HEAD.unpack(source.read(8, "the header of a record"))
    if magic != MAGIC:
        raise source.unexpected(f"the magic {MAGIC.hex()} (0xced7230a) of a record", magic, begin)
    length = word & _LENGTH
    padding = -length % 4
    source.check_available(length + padding, "a record")
    payload = source.read(length, "a record")
    if padding and source.read(padding, "the padding of a record") != bytes(padding):
        raise source.error("expected zeros behind a record", source.offset - padding)
    return word >> 29, payload


def _whole_ones(block: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (begin, end with padding, record) of the records at the beginning of ``block``.

    Stop at a record that is not complete in ``block``, is in pieces, or is damaged; the caller handles it.
    """
    at, total = 0, len(block)
    while at + 8 <= total:
        magic, word = _HEAD.unpack_from(block, at)  # a length with a kind other than 0 is beyond any block
        begin = at + 8
        end = begin + word
        behind = end + (-word & 3)
        if magic != MAGIC or behind > total or block[end:behind].strip(b"\0"):
            return
        yield at, behind, block[begin:end]
        at = behind


def read(path: PathOrFile, *, part: FilePart = WHOLE_FILE) -> Iterator[bytes]:
    """Yield the records of a file, one after the other. Raises the errors of :class:`Reader`."""
    with Reader(path, part=part) as reader:
        yield from reader


class Writer(Closable):
    """Writer of records; a context manager. After an exception the file has all records that were written before.

    Raises:
        OptionError: the path ends in ``.gz``; RecordIO is not read as gzip.
        OSError: the file cannot be written.
    """

    def __init__(self, path: PathOrFile, *, append: bool = False) -> None:
        self._file, self._owned = create_file(path, append=append)

    def write(self, record: bytes | bytearray | memoryview) -> int:
        """Append ``record`` and return the offset of its header.

        Raises:
            OptionError: the record has 2**29 bytes or more.
            OptionTypeError: the record is not bytes.
        """
        data = as_bytes(record)
        if len(data) >= MOST:
            raise OptionError(f"a record must have fewer than {MOST} bytes, got {len(data)}")
        at = self._file.tell()
        pieces = _cut(data) if MAGIC in data else [data]
        last = len(pieces) - 1
        for i, piece in enumerate(pieces):
            kind = _WHOLE if not last else _FIRST if i == 0 else _LAST if i == last else _MIDDLE
            self._file.write(_HEAD.pack(MAGIC, kind << 29 | len(piece)))
            self._file.write(piece)
            if len(piece) % 4:
                self._file.write(bytes(-len(piece) % 4))
        return at

    def close(self) -> None:
        """Close the file."""
        if self._owned:
            self._file.close()


def _cut(data: bytes) -> list[bytes]:
    """Return ``data`` in pieces, cut at the magics at multiples of 4 and without them.

    Two magics cannot overlap, so a plain search finds all of them.
    """
    pieces, begin = [], 0
    for found in re.finditer(re.escape(MAGIC), data):
        if found.start() % 4 == 0:
            pieces.append(data[begin : found.start()])
            begin = found.end()
    return [*pieces, data[begin:]]


def write(path: PathOrFile, records: Iterable[bytes]) -> None:
    """Write a file of ``records``."""
    with Writer(path) as writer:
        for record in records:
            writer.write(record)


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(
    settings: Any,
    *,
    file_list: Any,
    is_train: bool,
    input_order: Any,
    header: bool = True,
    label_width: int = 1,
    classes: int | Sequence[int] | None = None,
) -> None:
    settings.header, settings.slot = flag("header", header), LabelSlot(classes, label_width)
    if not header and (classes is not None or label_width != 1):
        raise OptionError("with header=false records have no labels: leave classes and label_width out")
    header_types = {"label": settings.slot.type, "id": integer_value(IDS)}
    settings.input_types = {"data": BYTES} | (header_types if header else {})


@provider(init_hook=_hook)
def process(settings: Any, filename: str) -> Iterator[dict[str, Any] | BadSample]:
    """Serve the records of RecordIO files.

    Slots: ``data``, the bytes of a record as a sequence. With ``header``, ``data`` are the bytes after the IRHeader,
    and ``label`` and ``id`` come from the IRHeader.

    Arguments of the hook:
        header: True if each record begins with an IRHeader.
        label_width: number of labels of each record.
        classes: range of the label, which is then an integer, or a list of the labels such as ``[-1, 1]``, of which the
            integer is the position; without it the label is a dense vector.
    """
    name, part = split_entry(filename)
    with Reader(name, part=part) as reader:
        for offset, record in reader.records_or_errors():
            if isinstance(record, FormatError):
                yield bad_record(record)
            elif not settings.header:
                yield {"data": as_steps(record)}
            else:
                try:
                    yield _sample(record, settings)
                except FormatError as error:
                    hint = "header=false is for records without an IRHeader"
                    yield BadSample(f"record at byte {offset}: {error}; {hint}", slot="all slots")
                except BadSample as error:
                    yield error


def _sample(record: bytes, settings: Any) -> dict[str, Any]:
    """Return the sample of a record with an IRHeader. Raises FormatError or BadSample: something in it is wrong."""
    header, payload = unpack(record)
    labels = np.atleast_1d(np.asarray(header.label, np.float32))
    hint = "" if payload else "the record has no picture, as the first one of a face data set, which describes the rest"
    label = settings.slot.value(labels, hint)
    if header.id >= IDS:
        raise bad_value("id", f"a number below {IDS}", str(header.id))
    return {"data": as_steps(payload), "label": label, "id": header.id}
