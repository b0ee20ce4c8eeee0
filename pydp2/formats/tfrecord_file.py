"""Read the records of a TFRecord file, plain or gzip, and check their checksums.

A record is its length as u64, a checksum of these eight bytes, its data, and a checksum of them, all little-endian. So
a record with damaged data costs that record alone; behind a damaged length nothing can be found. Nothing marks where a
record begins: the records before a part, or before a start, are passed over by their lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import FormatError, OptionError
from pydp2.file_parts import WHOLE_FILE, FilePart
from pydp2.formats.crc32c import masked_crc32c
from pydp2.formats.first_bytes import CUT_SHORT
from pydp2.formats.source import LIMIT, Closable, PathOrFile, open_source

_HEAD = struct.Struct("<QI")
_SUM = struct.Struct("<I")
_BLOCK = 4 << 20  # bytes that are read at a time; the whole records in them are decoded together
_COMPRESSED = 1 << 18  # the same of a gzip file
_SKIPPED = 1 << 16  # and where records are passed over


class RecordBlock:
    """Records that lie in ``data``: iterating gives the bytes of each, or the error of one whose data are damaged.

    Attributes:
        data: bytes that hold them.
        starts, stops: offsets in ``data`` of the first byte of each and of the one behind it, int64 ``(records,)``.
        errors: the errors, by the index of the record.
    """

    def __init__(self, data: bytes, places: list[tuple[int, int]], errors: dict[int, FormatError]) -> None:
        self.data, self.errors = data, errors
        places_array: NDArray[np.int64] = np.array(places, np.int64).reshape(-1, 2)
        self.starts, self.stops = np.ascontiguousarray(places_array.T)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes | FormatError]:
        for i, (start, stop) in enumerate(zip(self.starts.tolist(), self.stops.tolist(), strict=True)):
            yield self.errors.get(i) or self.data[start:stop]


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
        self._block = 0, RecordBlock(b"", [], {})  # the current one, and the offset of its data

    def blocks(self, start: int = 0) -> Iterator[RecordBlock]:
        """Yield records from record ``start`` of the part on, about a MiB at a time.

        Raises:
            FormatError: a length is damaged, or the file ends within a record. The records before it were yielded.
        """
        at, error = self._first(start), None
        while error is None and (self._end is None or at < self._end) and self._has_record(at):
            block, at, error = self._take(at)
            if len(block):
                self._block = self._offset, block
                yield block
        if error is not None:
            raise error

    def error(self, index: int, what: str) -> FormatError:
        """Return a FormatError for the record of this index in the current block."""
        offset, block = self._block
        return self._source.error(what, offset + int(block.starts[index]) - _HEAD.size)

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _has_record(self, at: int) -> bool:
        """Read on until the record at ``at`` is in hand; return False at the end of the file."""
        together = _COMPRESSED if self._source.compressed else _BLOCK
        place = self._place(at, _HEAD.size, together)
        if place is None:
            return False
        self._place(at, _HEAD.size + self._length(place, at) + _SUM.size, together)
        return True

    def _take(self, at: int) -> tuple[RecordBlock, int, FormatError | None]:
        """Return the whole records in hand from offset ``at`` on, the offset of the first that is not whole or belongs
        to the next part, and the error of its length."""
        data, offset, size = self._data, self._offset, len(self._data)
        last = size if self._end is None else self._end - offset
        at -= offset
        places: list[tuple[int, int]] = []
        errors: dict[int, FormatError] = {}
        wrong = None
        unpack, unpack_sum, checksum_of = _HEAD.unpack_from, _SUM.unpack_from, masked_crc32c
        while at < last and at + _HEAD.size <= size:
            length, checksum = unpack(data, at)
            if checksum_of(data[at : at + 8]) != checksum:
                wrong = self._damaged_length(at, at + offset)
                break
            first = at + _HEAD.size
            stop = first + length
            if stop + _SUM.size > size:
                break
            if checksum_of(data[first:stop]) != unpack_sum(data, stop)[0]:
                what = f"the checksum of a record of {length} bytes is wrong"
                errors[len(places)] = self._source.error(what, offset + at)
            places.append((first, stop))
            at = stop + _SUM.size
        return RecordBlock(data, places, errors), at + offset, wrong

    def _first(self, start: int) -> int:
        """Pass over the records before the part, and ``start`` more; return the offset of the next."""
        at = 0
        while start or at < self._begin:
            place = self._place(at, _HEAD.size, _SKIPPED)
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

    def _place(self, at: int, count: int, together: int) -> int | None:
        """Return the place in hand of offset ``at``, after reading on if fewer than ``count`` bytes from there are in
        hand, ``together`` or more at a time; None at the end of the file.

        Raises FormatError: the file ends within these bytes, or before them.
        """
        source, have = self._source, self._offset + len(self._data) - at
        if have >= count:
            return at - self._offset
        # Bytes of a plain file are read again, which costs less than to join them with those behind.
        tail = self._data[at - self._offset :] if have > 0 and source.compressed else b""
        if source.size is not None:
            source.seek(at)
        elif have < 0:
            source.seek(at - 1)
            if not source.read_some(1):
                raise source.error(f"the file ends within a record{CUT_SHORT}", at)
        missing = count - len(tail)
        if missing > together:
            more = source.read(missing, "a record")
        else:  # without room for more than there is: a small file takes little memory
            more = source.read_some(together if source.size is None else max(0, min(together, source.size - at)))
        self._offset, self._data = at, tail + more if tail else more
        if not self._data:
            return None
        if len(self._data) < count:
            raise source.error(f"the file ends within a record{CUT_SHORT}", at)
        return 0
