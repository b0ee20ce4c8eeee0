"""Read the records of a TFRecord file, plain or gzip, and check their checksums.

A record is its length as u64, a checksum of these eight bytes, its data, and a checksum of them, all little-endian. So
a record with damaged data costs that record alone; behind a damaged length nothing can be found. Nothing marks where a
record begins: the records before a part, or before a start, are passed over by their lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pydp2.errors import FormatError, OptionError
from pydp2.file_parts import WHOLE_FILE, FilePart
from pydp2.formats.crc32c import masked_crc32c
from pydp2.formats.first_bytes import CUT_SHORT
from pydp2.formats.source import LIMIT, Closable, PathOrFile, open_source

_HEAD = struct.Struct("<QI")
_SUM = struct.Struct("<I")
_BLOCK = 1 << 19  # bytes of the records that are decoded together
_WINDOW = 1 << 16  # bytes that are read at a time: malloc maps larger ones anew each time


class RecordFile(Closable):
    """Open TFRecord file; a context manager. It reads ``part`` from front to back, once.

    Attributes:
        name: name of the file in errors.

    Raises:
        OptionError: ``part`` is a part of a gzip file.
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile, part: FilePart = WHOLE_FILE) -> None:
        self._source = source = open_source(path, gzipped=True)
        self.name = source.name
        if source.compressed and part.count > 1:
            source.close()
            raise OptionError(f"{source.name} is gzip, which cannot be read in parts: name it whole, or decompress it")
        self._begin, self._end = 0, None if source.size is None else source.size
        if source.size is not None:
            self._begin, self._end = part.range(source.size)
        self._offset, self._data = 0, b""  # the bytes in hand, and the offset of the first
        self._offsets: list[int] = []  # of the records of the current block

    def blocks(self, start: int = 0) -> Iterator[list[bytes | FormatError]]:
        """Yield the data of records from record ``start`` of the part on, about 512 KiB at a time. In place of a record
        whose data are damaged stands its error.

        Raises:
            FormatError: a length is damaged, or the file ends within a record.
        """
        at, error = self._first(start), None
        records: list[bytes | FormatError] = []
        offsets: list[int] = []
        while error is None and (self._end is None or at < self._end):
            try:
                if not self._has_record(at):
                    break
            except FormatError as wrong:  # the records before it are right
                error = wrong
                break
            before = offsets[0] if offsets else at
            at, error = self._take(at, records, offsets)
            if at - before >= _BLOCK:
                self._offsets = offsets
                yield records
                records, offsets = [], []
        if records:
            self._offsets = offsets
            yield records
        if error is not None:
            raise error

    def error(self, index: int, what: str) -> FormatError:
        """Return a FormatError for the record of this index in the current block."""
        return self._source.error(what, self._offsets[index])

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _has_record(self, at: int) -> bool:
        """Read on until the record at ``at`` is in hand; return False at the end of the file."""
        place = self._place(at, _HEAD.size)
        if place is None:
            return False
        self._place(at, _HEAD.size + self._length(place, at) + _SUM.size)
        return True

    def _take(self, at: int, records: list[bytes | FormatError], offsets: list[int]) -> tuple[int, FormatError | None]:
        """Add the whole records in hand from offset ``at`` on, and their offsets. Return the offset of the first that
        is not whole or belongs to the next part, and the error of its length."""
        data, offset, size = self._data, self._offset, len(self._data)
        last = size if self._end is None else self._end - offset
        at -= offset
        while at < last and at + _HEAD.size <= size:
            length, checksum = _HEAD.unpack_from(data, at)
            if masked_crc32c(data[at : at + 8]) != checksum:
                return at + offset, self._damaged_length(at, at + offset)
            first, stop = at + _HEAD.size, at + _HEAD.size + length
            if stop + _SUM.size > size:
                break
            record = data[first:stop]
            if masked_crc32c(record) == _SUM.unpack_from(data, stop)[0]:
                records.append(record)
            else:
                what = f"the checksum of a record of {length} bytes is wrong"
                records.append(self._source.error(what, offset + at))
            offsets.append(offset + at)
            at = stop + _SUM.size
        return at + offset, None

    def _first(self, start: int) -> int:
        """Pass over the records before the part, and ``start`` more; return the offset of the next."""
        at = 0
        while start or at < self._begin:
            place = self._place(at, _HEAD.size)
            if place is None:
                break
            start -= at >= self._begin
            at += _HEAD.size + self._length(place, at) + _SUM.size
        return at

    def _length(self, place: int, offset: int) -> int:
        """Return the length of the record at ``offset``, whose header lies at ``place``.

        Raises FormatError: its checksum is wrong, or it goes beyond the end of the file.
        """
        length, checksum = _HEAD.unpack_from(self._data, place)
        if masked_crc32c(self._data[place : place + 8]) != checksum:
            raise self._damaged_length(place, offset)
        source = self._source
        if source.size is not None and offset + _HEAD.size + length + _SUM.size > source.size:
            raise source.error(f"a record of {length} bytes goes beyond the end of the file{CUT_SHORT}", offset)
        if length > LIMIT:
            raise source.error(f"a record of {length} bytes is larger than a GiB", offset)
        return int(length)

    def _damaged_length(self, place: int, offset: int) -> FormatError:
        head = self._data[place : place + _HEAD.size]
        if not offset:
            return self._source.unexpected("a TFRecord file, which begins with a length and its checksum", head, 0)
        return self._source.error(f"the checksum of a record's length is wrong, got {head.hex()}", offset)

    def _place(self, at: int, count: int) -> int | None:
        """Return the place in hand of offset ``at``, after reading on if fewer than ``count`` bytes from there are in
        hand; None at the end of the file.

        Raises FormatError: the file ends within these bytes, or before them.
        """
        source, have = self._source, self._offset + len(self._data) - at
        if have >= count:
            return at - self._offset
        tail = self._data[at - self._offset :] if have > 0 else b""
        if have < 0:
            source.seek(at - 1)
            if not source.read_some(1):
                raise source.error(f"the file ends within a record{CUT_SHORT}", at)
        missing = count - len(tail)
        more = source.read_some(_WINDOW) if missing <= _WINDOW else source.read(missing, "a record")
        self._offset, self._data = at, tail + more
        if not self._data:
            return None
        if len(self._data) < count:
            raise source.error(f"the file ends within a record{CUT_SHORT}", at)
        return 0
