"""Read text files in large blocks of whole lines that end with LF, from any sample on.

A sample is a line that is not blank. Lines before the first one that is wanted are counted, not parsed: a blank line
begins with a blank, so the offsets of the line feeds and the byte behind each of them are enough. Parts are those of
:mod:`.lines`, whose lines also end with CR; a CR between the values of JSON is a blank.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pydp2.errors import FormatError, OptionError
from pydp2.file_parts import WHOLE_FILE, FilePart
from pydp2.formats.first_bytes import looks_like
from pydp2.formats.lines import MOST
from pydp2.formats.source import Closable, PathOrFile, open_source

BLOCK = 1 << 19
"""Bytes that are read at a time; whole lines of them are parsed together."""

_BOM = b"\xef\xbb\xbf"
_PIECE = 1 << 16
_BLANKS = 0x20  # a byte up to it may begin a blank line


class LineBlocks(Closable):
    """Open text file, plain, gzip or zstd; a context manager. It reads ``part`` from front to back, once.

    Attributes:
        name: name of the file in errors.

    Raises:
        OptionError: ``part`` is a part of a compressed file; or zstandard is not installed, and the file is zstd.
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile, part: FilePart = WHOLE_FILE) -> None:
        self._source = source = open_source(path, gzipped=True, zstd=True)
        self.name = source.name
        if source.compressed and part.count > 1:
            source.close()
            raise OptionError(
                f"{source.name} is compressed, so it cannot be read in parts: name it whole, or decompress it"
            )
        self._part, self._begin = part, 0
        self._lines_before: int | None = None  # of the part; None: they are not counted yet
        self._offset, self._lines = 0, 0  # offset of the current block; number of lines of the part before it
        self._block: list[bytes] = []

    def blocks(self, start: int = 0) -> Iterator[list[bytes]]:
        """Yield whole lines, without their line feeds, about :data:`BLOCK` bytes at a time, from sample ``start`` of
        the part on. Some may be blank.

        Raises:
            FormatError: a line has more than 16 MiB, or compression is damaged.
        """
        source, last = self._source, None
        if source.size is not None:
            self._begin, last = (self._line_from(at, source.size) for at in self._part.range(source.size))
            source.seek(self._begin)
        begin, partial = self._begin, bytearray()  # offset of the first line that was not yielded, and its beginning
        while data := source.read_some(BLOCK if last is None else min(BLOCK, last - source.offset)):
            if begin == 0 and not partial and data.startswith(_BOM):
                begin, data = len(_BOM), data[len(_BOM) :]
            if start:
                data, partial = bytes(partial) + data, bytearray()
                at, start = _skipped(data, start)
                self._lines += data.count(b"\n", 0, at)
                begin, data = begin + at, data[at:]
            lines = data.split(b"\n")
            if len(lines) > 1:
                lines[0] = bytes(partial) + lines[0]
                partial = bytearray(lines.pop())
                yield self._entered(begin, lines)
                self._lines += len(lines)
                begin = source.offset - len(partial)
            else:
                partial += data
            if len(partial) > MOST:
                raise self._error(self._lines, begin, f"expected the end of a line within {MOST} bytes: is this text?")
        if partial and not start:
            yield self._entered(begin, [bytes(partial)])

    def _entered(self, begin: int, lines: list[bytes]) -> list[bytes]:
        self._offset, self._block = begin, lines
        return lines

    def error(self, line: int, what: str) -> FormatError:
        """Return a FormatError for the line of this index in the current block, with its number from 1.

        At the beginning of the file the text says what the file looks like.
        """
        at = sum(len(before) + 1 for before in self._block[:line])
        return self._error(self._lines + line, self._offset + at, what)

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _error(self, lines: int, offset: int, what: str) -> FormatError:
        if self._lines_before is None:
            self._lines_before = self._count_before() if self._begin else 0
        known = looks_like(self._source.head()) if offset in (0, len(_BOM)) else ""
        if known and not known.startswith("JSON"):
            what = f"{what}; the file looks like {known}"
        return self._source.error(f"line {self._lines_before + lines + 1}: {what}", offset)

    def _line_from(self, at: int, size: int) -> int:
        """Return the first offset from ``at`` on where a line begins, or ``size``, the end of the file."""
        if at == 0:
            return 0
        source = self._source
        source.seek(at - 1)
        while data := source.read_some(_PIECE):
            found = data.find(b"\n")
            if found >= 0:
                return source.offset - len(data) + found + 1
        return size

    def _count_before(self) -> int:
        """Return the number of lines before the part, by reading them."""
        count, before = 0, self._source.offset
        with self._source.at(0) as source:
            while data := source.read_some(min(_PIECE, self._begin - source.offset)):
                count += data.count(b"\n")
            if source is self._source:
                source.seek(before)
        return count


def _skipped(block: bytes, count: int) -> tuple[int, int]:
    """Return the offset in ``block`` behind ``count`` lines that are not blank, and how many of them it does not
    have. A line that is not complete does not count."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == ord("\n")) + 1
    starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    maybe_blank = np.flatnonzero(data[starts] <= _BLANKS)
    blank = [i for i in maybe_blank.tolist() if block[starts[i] : ends[i]].isspace()]
    ends = np.delete(ends, blank)
    if count <= len(ends):
        return int(ends[count - 1]), 0
    return int(ends[-1]) if len(ends) else 0, count - len(ends)
