"""Read records of text whose fields may be quoted, in blocks of whole records, from a whole file or a part of one.

A record is a line, but for the line breaks between two quotes: ``"a ""b"", c"`` is one field, in which a quote is
written twice. A quote opens a field only where the field begins; anywhere else it is a sign like others.

Theory of operation. Nobody can tell from the middle of such a file whether a line break there ends a record: it depends
on all quotes before it. So a part is found from the front: all text before it is read, and looked through for quotes
(nothing in it is converted). A block that has no quote takes one search. In the others a pattern goes from one quoted
field to the next, beginning at the begin of a record; it is linear, because each of its repetitions begins with another
sign. Without quotes (``quotes=False``) a part is found by seeking.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydp2.data.packers.arrow_values import pyarrow
from pydp2.errors import FormatError, OptionError
from pydp2.file_parts import FilePart
from pydp2.formats.first_bytes import COUNT, is_no_table, looks_like
from pydp2.formats.library_errors import errors_of
from pydp2.formats.lines import MOST, line_from
from pydp2.formats.source import ByteSource, Closable, PathOrFile, open_source

_BOM = b"\xef\xbb\xbf"
_PIECE = 1 << 18
_ZSTD = b"\x28\xb5\x2f\xfd"
_END = re.compile(rb"\r\n?|\n")


def _quoted_after(separator: bytes) -> re.Pattern[bytes]:
    """Return the pattern of a quoted field behind a ``separator`` or at the beginning of a line."""
    inner = re.escape(separator) if separator != b"^" else rb"\^"
    return re.compile(rb"(?<![^" + inner + rb'\r\n])"[^"]*(?:""[^"]*)*(?:"|\Z)')


_QUOTED = _quoted_after(b",")


class _Compressed:
    """Bytes of a source, from front to back, for pyarrow, which closes what it reads from."""

    closed = False

    def __init__(self, source: ByteSource) -> None:
        source.seek(0)
        self._source = source

    def read(self, count: int, /) -> bytes:
        return self._source.read_some(count)

    def close(self) -> None:
        """Do nothing."""


class _ZstdFile:
    """Decompressed bytes of a zstd file, of any number of frames, from front to back."""

    def __init__(self, source: ByteSource) -> None:
        pa = pyarrow()
        self._name = source.name
        self._stream = pa.CompressedInputStream(pa.PythonFile(_Compressed(source), "r"), "zstd")

    def read(self, count: int, /) -> bytes:
        with errors_of(self._name, lambda: "damaged zstd"):
            data: bytes = self._stream.read(count)
            return data

    def seek(self, offset: int, /) -> int:
        raise NotImplementedError("compressed text is read from front to back")


class RecordReader(Closable):
    """Open text file, plain, gzip or zstd; a context manager.

    Args:
        path: the file.
        separator: the sign between two fields.
        quotes: True if fields may be quoted.

    Attributes:
        name: name of the file in errors.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile, separator: bytes, quotes: bool) -> None:
        source = open_source(path, gzipped=True)
        self.name, self._quotes = source.name, quotes
        self._source, self._owned = source, source
        if not source.compressed and source.head().startswith(_ZSTD):
            self._source = ByteSource(source.name, _ZstdFile(source), None, [])
        self._quoted = _QUOTED if separator == b"," else _quoted_after(separator)

    @property
    def is_compressed(self) -> bool:
        """True if the file has no parts, because it cannot be read from the middle."""
        return self._source.compressed

    def blocks(self, part: FilePart, behind: int, size: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, whole records) of the records that begin in ``part`` and at byte ``behind`` or later, about
        ``size`` bytes at a time, once.

        Raises:
            OptionError: it is a part of a compressed file.
            FormatError: the file is known as something else, or has a record of more than 16 MiB.
        """
        total = self._source.size
        if total is None and part.count > 1:
            raise OptionError(
                f"{self.name} is compressed, so it cannot be read in parts: name it whole, or decompress it"
            )
        first, last = (0, None) if total is None else part.range(total)
        begin = 0
        if first > behind and not self._quotes:
            begin = line_from(self._source, first)
        for offset, block in self._records(begin, size):
            end = offset + len(block)
            if last is not None and offset >= last:
                return
            low = max(first, behind)
            if offset < low or (last is not None and end > last):
                starts = [0, *self.ends(block)]
                lo = next((at for at in starts if offset + at >= low), len(block))
                hi = len(block) if last is None else next((at for at in starts if offset + at >= last), len(block))
                offset, block = offset + lo, block[lo:hi]
            if block:
                yield offset, block

    def _records(self, begin: int, size: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, whole records) from ``begin`` on, where a record begins."""
        source = self._source
        if begin:
            source.seek(begin)
        rest = b""
        step = min(size, _PIECE) if source.compressed else size  # gzip needs the memory of a piece several times
        while data := source.read_some(step):
            if not begin and not rest:
                if is_no_table(data[:COUNT]):
                    raise self.error(0, f"expected records of text; the file looks like {looks_like(data[:COUNT])}")
                if data.startswith(_BOM):
                    begin, data = len(_BOM), data[len(_BOM) :]
            rest += data
            cut = self._last_end(rest)
            if cut:
                yield begin, rest[:cut]
                begin, rest = begin + cut, rest[cut:]
            elif len(rest) > MOST:
                raise self.error(begin, f"expected the end of a record within {MOST} bytes: is a quote not closed?")
        if rest:
            if self._quotes and self._is_open(rest):
                raise self.error(begin, "a quote is not closed before the end of the file")
            yield begin, rest

    def _last_end(self, data: bytes) -> int:
        """Return where the last whole record of ``data`` ends, 0 if there is none."""
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not cut or not self._quotes or b'"' not in data:
            return cut
        for begin, end in reversed([match.span() for match in self._quoted.finditer(data)]):
            if end < cut:
                break
            if begin < cut:
                cut = max(data.rfind(b"\n", 0, begin), data.rfind(b"\r", 0, begin)) + 1
        return cut

    def _is_open(self, data: bytes) -> bool:
        """Return True if the last quote of ``data`` is not closed."""
        fields = [match[0] for match in self._quoted.finditer(data)]
        return bool(fields) and not _closes(fields[-1])

    def ends(self, block: bytes) -> list[int]:
        """Return where each record of a block ends, behind its line break."""
        ends = [match.end() for match in _END.finditer(block)]
        if self._quotes and b'"' in block:
            spans = [match.span() for match in self._quoted.finditer(block)]
            outside, number = [], 0
            for end in ends:
                while number < len(spans) and spans[number][1] < end:
                    number += 1
                if number == len(spans) or spans[number][0] >= end:
                    outside.append(end)
            ends = outside
        return ends if ends and ends[-1] == len(block) else [*ends, len(block)]

    def error(self, offset: int, what: str) -> FormatError:
        """Return a FormatError for the record at ``offset``."""
        return self._owned.error(what, offset)

    def close(self) -> None:
        """Close the file."""
        self._owned.close()


def _closes(field: bytes) -> bool:
    """Return True if a field that begins with a quote ends with the quote that closes it."""
    inner = field[1:]
    return (len(inner) - len(inner.rstrip(b'"'))) % 2 == 1


def is_blank(record: bytes) -> bool:
    """Return True for a record without any sign but its line break."""
    return not record.rstrip(b"\r\n")
