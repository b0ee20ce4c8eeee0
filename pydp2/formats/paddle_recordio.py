"""RecordIO of Paddle, in both layouts: chunks of records. Each chunk has a checksum and may be compressed.

A chunk has five words, u32 little-endian, and a payload. Each record in the payload is u32 length | bytes.

    go       01020304 | CRC-32 of the stored payload | packing | stored size | number of records
    fluid    01020304 | number of records | CRC-32 | packing | stored size

Neither the magic nor the file name shows the layout. A file has the layout in which the sum of its first chunk is
right; all its chunks have the same layout. Packing is 0 none, 1 snappy (a stream in go, blocks in fluid), 2 gzip.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.checksum import crc32
from pydp2.errors import BadSample, FormatError, OptionError
from pydp2.file_parts import WHOLE_FILE, FilePart, split_entry
from pydp2.formats import snappy_frames
from pydp2.formats.first_bytes import CUT_SHORT
from pydp2.formats.serving import BYTES, as_steps, bad_record
from pydp2.formats.source import LIMIT, ByteSource, Closable, PathOrFile, as_bytes, create_file, open_source
from pydp2.providers import provider

Layout = Literal["go", "fluid"]
Packing = Literal["none", "snappy", "gzip"]

MAGIC = 0x01020304
PACKINGS: tuple[Packing, ...] = ("none", "snappy", "gzip")
CHUNK_BYTES = 32 << 20
CHUNK_RECORDS = 1000  # of the fluid layout

_HEAD = struct.Struct("<5I")
_LENGTH = struct.Struct("<I")
_MOST = 1 << 32


class Chunk(NamedTuple):
    """Header of a chunk. ``offset`` is the offset of the header, ``size`` the bytes of the stored payload."""

    offset: int
    records: int
    crc: int
    packing: int
    size: int

    @property
    def end(self) -> int:
        """Offset at which the next chunk begins."""
        return self.offset + _HEAD.size + self.size


class Reader(Closable):
    """Open RecordIO file; a context manager. Iterating gives the records of ``part``, as ``bytes``.

    Parts are ranges of bytes of equal size. A chunk belongs to the part in which its header begins.

    Args:
        path: the file.
        part: the part of the file to read.
        limit: the most bytes that a compressed chunk may decompress to.

    Attributes:
        layout: "go" or "fluid"; None for a file without records.

    Raises:
        FormatError: the magic, sum or packing is wrong, the file ends within a chunk, the number or lengths of the
            records do not match the chunk, or compressed content is damaged or above ``limit``. The constructor
            raises it, or the iteration.
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile, *, part: FilePart = WHOLE_FILE, limit: int = LIMIT) -> None:
        self._source = open_source(path)
        self._part, self._limit = part, limit
        self._first_chunk: tuple[int, bytes] | None = None  # offset and payload of the chunk that shows the layout
        try:
            self.layout = self._found_layout()
        except BaseException:
            self._source.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.chunks():
            yield from self.records(chunk)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the headers of the chunks of the part, and skip their payloads."""
        size = self._source.size
        assert size is not None
        first, last = self._part.range(size)
        at = 0
        while at < last:
            chunk = self._header(at)
            if at >= first:
                yield chunk
            at = chunk.end

    def records(self, chunk: Chunk) -> Iterator[bytes]:
        """Yield the records of one chunk, one after the other."""
        source = self._source
        content = self._content(chunk)
        whole = content if isinstance(content, bytes) else memoryview(content)
        at, total = 0, len(content)
        for number in range(chunk.records):
            begin = at + 4
            if begin > total:
                raise source.error(f"the chunk ends before record {number} of {chunk.records}", chunk.offset)
            at = begin + _LENGTH.unpack_from(content, at)[0]
            if at > total:
                raise source.error(
                    f"record {number} of the chunk needs {at - begin} bytes, {total - begin} are left", chunk.offset
                )
            yield bytes(whole[begin:at])
        if at != total:
            raise source.error(f"{total - at} bytes behind the {chunk.records} records of the chunk", chunk.offset)

    def _content(self, chunk: Chunk) -> bytes | bytearray:
        stored = self._stored(chunk)
        if stored is None:
            raise self._source.error("the checksum of the chunk does not match: the file is damaged", chunk.offset)
        if chunk.packing == 0:
            return stored
        try:
            if chunk.packing == 1:
                return snappy_frames.unpack(stored, blocks=self.layout == "fluid", limit=self._limit)
            return _gunzip(stored, self._limit)
        except ValueError as error:
            if isinstance(error, OptionError):
                raise
            raise self._source.error(f"{PACKINGS[chunk.packing]}: {error}", chunk.offset) from None

    def _stored(self, chunk: Chunk) -> bytes | None:
        """Return the payload as it is stored; None if the sum does not match."""
        first_chunk, self._first_chunk = self._first_chunk, None
        if first_chunk is not None and first_chunk[0] == chunk.offset:
            return first_chunk[1]
        with self._source.at(chunk.offset + _HEAD.size) as source:
            stored = source.read(chunk.size, "a chunk")
        return stored if crc32(stored) == chunk.crc else None

    def _header(self, at: int) -> Chunk:
        assert self.layout is not None
        with self._source.at(at) as source:
            chunk = _as_chunk(at, _words(source), self.layout)
            if chunk.packing >= len(PACKINGS):
                raise source.error(f"expected the packing 0, 1 or 2, got {chunk.packing}", at)
            source.check_available(chunk.size, "a chunk")
        return chunk

    def _found_layout(self) -> Layout | None:
        """Return the layout in which the sum of the first chunk with a payload is right."""
        source = self._source
        assert source.size is not None
        at = 0
        while at < source.size:
            with source.at(at) as reader:
                words = _words(reader)
            if any(words[1:]):
                layouts: tuple[Layout, ...] = ("go", "fluid")
                for layout in layouts:
                    chunk = _as_chunk(at, words, layout)
                    if chunk.packing >= len(PACKINGS) or chunk.end > source.size:
                        continue
                    if (stored := self._stored(chunk)) is not None:
                        self._first_chunk = chunk.offset, stored
                        return layout
                raise source.error(
                    f"the file ends within the chunk, or its checksum does not match, in either layout{CUT_SHORT}", at
                )
            at += _HEAD.size
        return "go" if at else None  # empty chunks are the same in both layouts

    def close(self) -> None:
        """Close the file."""
        self._source.close()


def read(path: PathOrFile, *, part: FilePart = WHOLE_FILE, limit: int = LIMIT) -> Iterator[bytes]:
    """Yield the records of a file, one after the other. Raises the errors of :class:`Reader`."""
    with Reader(path, part=part, limit=limit) as reader:
        yield from reader


def _words(source: ByteSource) -> tuple[int, ...]:
    """Return the words of the header that begins here."""
    begin = source.offset
    header = source.read(_HEAD.size, "the header of a chunk")
    words: tuple[int, ...] = _HEAD.unpack(header)
    if words[0] != MAGIC:
        raise source.unexpected(f"the magic {_LENGTH.pack(MAGIC).hex()} (0x{MAGIC:08x}) of a chunk", header[:4], begin)
    return words


def _as_chunk(at: int, words: tuple[int, ...], layout: Layout) -> Chunk:
    if layout == "go":
        _, crc, packing, size, records = words
    else:
        _, records, crc, packing, size = words
    return Chunk(at, records, crc, packing, size)


def _gunzip(data: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(content) > limit:
        raise ValueError(f"more would be decompressed than limit={limit} allows")
    if not stream.eof:
        raise ValueError("it ends too early")
    if stream.unused_data:
        raise ValueError(f"{len(stream.unused_data)} bytes behind its end")
    return content


class Writer(Closable):
    """Writer of records; a context manager.

    It writes a chunk when the chunk is full, and at the end of the ``with`` block. After an exception the file has all
    records that were written before.

    Args:
        path: the file.
        layout: "go" for the readers of Paddle V2, "fluid" for those of Fluid.
        packing: "none", "snappy" or "gzip" (only go).
        max_bytes: number of bytes of records at which a chunk is full.
        max_records: number of records at which a chunk is full; default: 1000 in fluid, any number in go.

    Raises:
        OptionError: an argument has another value, or the path ends in ``.gz``; RecordIO is not read as gzip.
        OSError: the file cannot be written.
    """

    def __init__(
        self,
        path: PathOrFile,
        *,
        layout: Layout = "go",
        packing: Packing = "none",
        max_bytes: int = CHUNK_BYTES,
        max_records: int | None = None,
    ) -> None:
        if layout not in ("go", "fluid"):
            raise OptionError(f'layout must be "go" or "fluid", got {layout!r}')
        if packing not in PACKINGS:
            raise OptionError(f"packing must be one of {', '.join(PACKINGS)}, got {packing!r}")
        if layout == "fluid" and packing == "gzip":
            raise OptionError("readers of the fluid layout cannot read gzip: use none or snappy, or the go layout")
        if max_bytes < 1 or (max_records is not None and max_records < 1):
            raise OptionError("max_bytes and max_records must be at least 1")
        self._layout, self._packing = layout, packing
        self._max_bytes = max_bytes
        self._max_records = max_records or (CHUNK_RECORDS if layout == "fluid" else _MOST - 1)
        self._pieces: list[bytes] = []
        self._records = self._bytes = 0
        self._closed = False
        self._file, self._owned = create_file(path)

    def write(self, record: bytes | bytearray | memoryview) -> None:
        """Append ``record``.

        Raises:
            OptionError: the record is too large for a chunk, which has fewer than 2**32 bytes.
            OptionTypeError: the record is not bytes.
            ValueError: the writer is closed.
        """
        if self._closed:  # the record would wait for a chunk that is never written
            raise ValueError("a record needs an open writer, and this one is closed: make another")
        data = as_bytes(record)
        if len(data) + 4 >= _MOST:
            raise OptionError(f"a record must have fewer than {_MOST - 4} bytes, got {len(data)}")
        if self._bytes + 4 * self._records + len(data) + 4 >= _MOST:
            self.flush()
        self._pieces += (_LENGTH.pack(len(data)), data)
        self._records += 1
        self._bytes += len(data)
        if self._bytes >= self._max_bytes or self._records >= self._max_records:
            self.flush()

    def flush(self) -> None:
        """Write the current chunk, if it has records, and begin a new one."""
        if not self._records:
            return
        content = b"".join(self._pieces)
        self._pieces.clear()
        if self._packing == "snappy":
            content = snappy_frames.pack(content, blocks=self._layout == "fluid")
        elif self._packing == "gzip":
            packer = zlib.compressobj(wbits=31)
            content = packer.compress(content) + packer.flush()
        crc, packing, count = crc32(content), PACKINGS.index(self._packing), self._records
        words = (crc, packing, len(content), count) if self._layout == "go" else (count, crc, packing, len(content))
        self._file.write(_HEAD.pack(MAGIC, *words))
        self._file.write(content)
        self._records = self._bytes = 0

    def close(self) -> None:
        """Write the last chunk, and close the file."""
        self._closed = True
        try:
            self.flush()
        finally:
            if self._owned:
                self._file.close()


def write(path: PathOrFile, records: Iterable[bytes], *, layout: Layout = "go", packing: Packing = "none") -> None:
    """Write a file of ``records``; see :class:`Writer`."""
    with Writer(path, layout=layout, packing=packing) as writer:
        for record in records:
            writer.write(record)


# -- the provider ------------------------------------------------------------------------------------------------------
def _hook(settings: Any, *, file_list: Any, is_train: bool, input_order: Any) -> None:
    """Take no arguments, so that any is an error."""


@provider(input_types={"record": BYTES}, init_hook=_hook)
def process(settings: Any, filename: str) -> Iterator[NDArray[np.uint8] | BadSample]:
    """Serve the records of RecordIO files. One slot: ``record``, its bytes as a sequence."""
    name, part = split_entry(filename)
    with Reader(name, part=part) as reader:
        for chunk in reader.chunks():
            try:
                for record in reader.records(chunk):
                    yield as_steps(record)
            except FormatError as error:  # its header says where the next chunk begins
                yield bad_record(error)
