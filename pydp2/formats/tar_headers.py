"""Read the headers of tar archives in the forms ustar, pax, GNU and V7, plain or in gzip.

Theory of operation. A tar archive is a row of members: a header of 512 bytes, then the bytes of the member, filled up
to a multiple of 512. Two blocks of zeros end it. There is no table of contents, and no mark by which a member can be
found from the middle: bytes of a member may themselves be an archive. So the only safe way to a member is from header
to header, which needs 512 bytes for each of them and not what lies between.

A name of more than 100 bytes lies in members of its own, before the member that it names: type ``L`` of GNU, type ``x``
of pax. They belong to the member behind them, which therefore begins at the first of them.

What would be silently lost otherwise is an error here: a header with a wrong checksum; links, devices and sparse
members, whose bytes are not in the archive as they are; an archive that ends without its zeros, as one does that was
cut between two members; more bytes behind the zeros, as when archives were joined by ``cat``.

A plain file is read at any offset. Gzip has only one direction, so its bytes are kept from :meth:`Archive.release`'s
offset on.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from pydp2.errors import FormatError
from pydp2.formats.first_bytes import CUT_SHORT, described, looks_like
from pydp2.formats.source import LIMIT, Closable, PathOrFile, open_source

BLOCK = 512
MOST_NAME = 1 << 20
"""Most bytes of a pax header or a long name."""

_HEADER = struct.Struct("100s24x12s12x8sc100x8s80x155s12x")  # name, size, checksum, type, magic, prefix
_ZEROS = bytes(BLOCK)
_REGULAR = (b"0", b"\0", b"7")
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL, _DIRECTORY = b"L", b"K", (b"x", b"X"), b"g", b"5"
_REFUSED = {
    b"1": "a hard link: pack with tar --hard-dereference",
    b"2": "a symbolic link: pack with tar --dereference",
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
    b"S": "a sparse file: pack without --sparse",
    b"M": "the rest of a file of another volume: join the volumes",
}
_RECORD = re.compile(rb"(\d{1,9}) ([^=\n]+)=")  # of a pax header
_MODULUS = 65521  # of Adler-32, whose lower half is the sum of all bytes and 1
_LEAST = 1 << 11  # bytes read for a header: pax has up to three blocks before the bytes of a member
_NEAR = 1 << 14  # bytes between two headers, up to which they are read together
_AHEAD = 1 << 16
_PIECE = 1 << 16


class Member(NamedTuple):
    """Regular file in an archive: its name; the offset of its first header; offset and number of its bytes."""

    name: bytes
    begin: int
    offset: int
    size: int


class Archive(Closable):
    """Open archive, plain or gzip; a context manager.

    Args:
        path: the file.
        limit: most bytes that are kept of a gzip file, such as those of the largest member.

    Attributes:
        name: name of the file in errors.
        compressed: True for gzip.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile, *, limit: int = LIMIT) -> None:
        self._source = source = open_source(path, gzipped=True)
        self.name, self.compressed = source.name, source.compressed
        self._limit = limit
        self._window = 0, b""  # offset, bytes
        self._kept, self._start, self._first = bytearray(), 0, 0  # of gzip: bytes, their offset, what to keep

    def members(self, at: int = 0) -> Iterator[Member]:
        """Yield the regular files from the header at ``at`` on; folders are left out.

        Raises:
            FormatError: a header or the end of the archive is damaged or missing, or a member is no regular file.
        """
        begin, name, size_of_pax = at, b"", -1
        while (header := self._header(at)) is not None:
            own_name, size, kind = header
            offset = at + BLOCK
            if kind in _REGULAR and not (kind == b"\0" and own_name.endswith(b"/")):
                size = size if size_of_pax < 0 else size_of_pax
                self._check_size(size, offset)
                yield Member(name or own_name, begin, offset, size)
            elif kind == _LONG_NAME:
                name = self._extension(offset, size).partition(b"\0")[0]
            elif kind in _PAX:
                records = self._pax_records(offset, size)
                name = records.get(b"path", name)
                size_of_pax = self._pax_size(records, offset)
            elif kind == _PAX_GLOBAL:
                self._check_global(self._pax_records(offset, size), offset)
            elif kind == _LONG_LINK:
                self._extension(offset, size)
            elif kind == _DIRECTORY or kind == b"\0":
                size = 0
            else:
                what = _REFUSED.get(kind, f"of the type {kind!r}, which is unknown")
                raise self.error(f"the member {_shown(name or own_name)} is {what}", at)
            at = offset + size + -size % BLOCK
            if kind not in (_LONG_NAME, _LONG_LINK, *_PAX):
                begin, name, size_of_pax = at, b"", -1
        if begin != at:
            raise self.error("expected a member behind its long name, got the end of the archive", begin)

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from ``begin`` to ``end``; fewer at the end of the file."""
        if self.compressed:
            self._keep_to(end)
            return bytes(self._kept[begin - self._start : end - self._start])
        first, window = self._window
        if first <= begin and end <= first + len(window):  # as a small member behind its header
            return window[begin - first : end - first]
        self._source.seek(begin)
        return self._source.read_some(end - begin)

    def release(self, offset: int) -> None:
        """Forget the bytes of a gzip file before ``offset``: they are not read again."""
        if self.compressed and offset > self._first:
            self._first = offset
            self._drop()

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def error(self, what: str, offset: int) -> FormatError:
        """Return a FormatError for the archive at ``offset``."""
        return self._source.error(what, offset)

    def _header(self, at: int) -> tuple[bytes, int, bytes] | None:
        """Return name, size and type of the header at ``at``; None at the end of the archive."""
        first, window = self._window
        begin = at - first
        if not 0 <= begin <= len(window) - BLOCK:
            ahead = _AHEAD if 0 <= begin < len(window) + _NEAR and not self.compressed else _LEAST
            window = self.read(at, at + ahead)
            self._window, begin = (at, window), 0
            if len(window) < BLOCK:
                raise self._cut(at, window)
        if not window[begin] and window.startswith(_ZEROS, begin):
            self._check_end(at + BLOCK)
            return None
        name, size, checksum, kind, magic, prefix = _HEADER.unpack_from(window, begin)
        block = window[begin : begin + BLOCK]
        if not _has_checksum(block, checksum):
            got = described(block, 8) if not at else f"a wrong checksum: {checksum.hex()}"
            raise self.error(f"expected the header of a member of a tar archive, got {got}", at)
        count = _number(size)
        if count is None:
            raise self.error(f"expected the size of a member in octal digits, got {size!r}", at + 124)
        name = name.partition(b"\0")[0]
        if prefix[0] and magic == b"ustar\x0000":
            name = prefix.partition(b"\0")[0] + b"/" + name
        return name, count, kind

    def _cut(self, at: int, rest: bytes) -> FormatError:
        if not at and looks_like(rest) and not rest[257:].startswith(b"ustar"):
            return self.error(f"expected a tar archive, got {looks_like(rest)}", 0)
        return self.error(
            f"expected a header of a tar archive, or the zeros that end it, got {len(rest)} bytes and the end of the "
            f"file{CUT_SHORT}",
            at,
        )

    def _check_end(self, at: int) -> None:
        """Check that nothing but zeros follows ``at``. Bytes that are kept of a gzip file stay."""
        data = bytes(self._kept[at - self._start :]) if self.compressed else b""
        if not self.compressed:
            self._source.seek(at)
        while True:
            if data.count(0) < len(data):
                raise self.error("expected only zeros behind the end of the archive; were archives joined by cat?", at)
            at += len(data)
            if not (data := self._source.read_some(_PIECE)):
                return

    def _check_size(self, size: int, offset: int) -> None:
        source = self._source
        if source.size is not None and size > source.size - offset:
            left = source.size - offset
            raise self.error(f"a member has {size} bytes, {left} are left in the file{CUT_SHORT}", offset)
        if source.size is None and size > self._limit:
            raise self.error(f"a member of a compressed archive has at most {self._limit} bytes, got {size}", offset)

    def _extension(self, offset: int, size: int) -> bytes:
        """Return the bytes of a member that describes the one behind it."""
        if size > MOST_NAME:
            raise self.error(f"a long name or a pax header has at most {MOST_NAME} bytes, got {size}", offset)
        self._check_size(size, offset)
        data = self.read(offset, offset + size)
        if len(data) < size:
            raise self._cut(offset, data)
        return data

    def _pax_records(self, offset: int, size: int) -> dict[bytes, bytes]:
        data, at, records = self._extension(offset, size), 0, {}
        while at < len(data):
            found = _RECORD.match(data, at)
            end = at + int(found[1]) if found else 0
            if not found or not found.end() < end <= len(data) or data[end - 1 : end] != b"\n":
                raise self.error(f"expected a record of a pax header, got {data[at : at + 40]!r}", offset + at)
            records[found[2]] = data[found.end() : end - 1]
            at = end
        if any(key.startswith(b"GNU.sparse.") for key in records):
            raise self.error(f"a member is {_REFUSED[b'S']}", offset)
        return records

    def _pax_size(self, records: dict[bytes, bytes], offset: int) -> int:
        text = records.get(b"size", b"")
        if text and not (text.isdigit() and len(text) < 20):
            raise self.error(f"expected the size of a member in digits, got {text[:40]!r}", offset)
        return int(text) if text else -1

    def _check_global(self, records: dict[bytes, bytes], offset: int) -> None:
        if b"path" in records or b"size" in records:
            raise self.error("a pax header gives all members one name or size", offset)

    def _keep_to(self, end: int) -> None:
        """Read a gzip file up to ``end``, or its end; pieces before the first kept byte are dropped."""
        source = self._source
        while source.offset < end and (piece := source.read_some(_PIECE)):
            self._kept += piece
            self._drop()
            if len(self._kept) > self._limit + _AHEAD:
                raise self.error(f"a sample of a compressed archive has at most {self._limit} bytes", self._first)

    def _drop(self) -> None:
        count = min(self._first - self._start, len(self._kept))
        if count > 0:
            del self._kept[:count]
            self._start += count


def _number(field: bytes) -> int | None:
    """Return the number in a field of a header: octal digits, or GNU's binary form; None if it is neither."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else None
    text = field.partition(b"\0")[0].strip(b" ")
    try:
        return int(text, 8) if text.isdigit() else None if text else 0
    except ValueError:  # 8 or 9
        return None


def _has_checksum(block: bytes, checksum: bytes) -> bool:
    """Return True if the sum of the bytes of a header, with blanks in place of the field ``checksum``, is what it says.
    Old programs summed bytes from -128 to 127."""
    total = _number(checksum)
    if total is None:
        return False
    if zlib.adler32(block) & 0xFFFF == (total + sum(checksum) - 8 * ord(" ") + 1) % _MODULUS:
        return True
    rest = block[:148] + block[156:]
    return sum(rest) - 256 * sum(byte > 127 for byte in rest) + 8 * ord(" ") == total


def _shown(name: bytes) -> str:
    return repr(name.decode(errors="backslashreplace"))
