"""Read text files in blocks of whole lines, from a whole file or a part of one.

A line ends with LF, CR or CR LF. Lines of blanks and a byte order mark are ignored. Parts are ranges of bytes of equal
size; a line belongs to the part in which it begins. Compressed text has no parts, because it cannot be read from the
middle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TypeVar

from pydp2.errors import FormatError, OptionError
from pydp2.file_parts import WHOLE_FILE, FilePart
from pydp2.formats.first_bytes import COUNT, is_no_table, looks_like
from pydp2.formats.source import ByteSource, Closable, PathOrFile, open_source

MOST = 16 << 20
"""Most bytes of a line. Without a limit, a file without line breaks would be read into memory as one line."""

BLOCK = 1 << 14  # bytes that are parsed at a time: parsing needs dozens of times this memory
NUMBER = re.compile(rb"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE)
"""Pattern of a number as text; ``float`` accepts more, such as underscores. Only the part behind the dot may be empty,
so that digits match in one way: a second way makes the time for a long field grow with its square."""

T = TypeVar("T")
_PIECE = 1 << 16
_BOM = b"\xef\xbb\xbf"
_ENDS = (b"\n", b"\r")


class TextReader(Closable):
    """Open text file, plain or gzip; a context manager. It reads ``part`` from front to back, once.

    Attributes:
        name: name of the file in errors.

    Raises:
        OptionError: ``part`` is a part of a compressed file.
        OSError: the file cannot be read.
    """

    def __init__(self, path: PathOrFile, part: FilePart = WHOLE_FILE) -> None:
        self._source = source = open_source(path, gzipped=True)
        self._part = part
        self._begin = 0  # offset at which the part begins
        self._block = 0, b""  # offset and lines of the current block
        self._line = 1  # number of the first line of the block, counted from the beginning of the part
        self._lines_before: int | None = None  # of the part; None: they are not counted yet
        self._head = b""
        self.name = source.name
        if source.compressed and part.count > 1:
            source.close()
            raise OptionError(f"{source.name} is gzip, which cannot be read in parts: name it whole, or decompress it")

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, whole lines) until the part ends: about :data:`BLOCK` bytes of lines at a time, at least one
        line.

        Raises:
            FormatError: the file is known as something else, or has a line of more than :data:`MOST` bytes.
        """
        source = self._source
        last = None
        if source.size is not None:
            self._begin, last = (line_from(source, at) for at in self._part.range(source.size))
            source.seek(self._begin)
        begin, partial_line = self._begin, bytearray()
        while data := source.read_some(BLOCK if last is None else min(BLOCK, last - source.offset)):
            if begin == 0 and not partial_line:
                self._head = data[:COUNT]
                if is_no_table(self._head):
                    raise self.error(0, "expected lines of text")
                if data.startswith(_BOM):
                    begin, data = len(_BOM), data[len(_BOM) :]
            cut = max(data.rfind(end) for end in _ENDS) + 1
            if cut:
                yield self._entered(begin, bytes(partial_line) + data[:cut])
                begin, partial_line = source.offset - len(data) + cut, bytearray(data[cut:])
            else:
                partial_line += data
                if len(partial_line) > MOST:
                    self._entered(begin, b"")
                    raise self.error(begin, f"expected the end of a line within {MOST} bytes: is this text?")
        if partial_line:
            yield self._entered(begin, bytes(partial_line))

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, line) of each line that is not blank, without its line break."""
        for begin, block in self.blocks():
            yield from block_lines(begin, block)

    def is_first(self, offset: int) -> bool:
        """Return True if the line at ``offset`` in the current block is the first of the file that is not blank."""
        begin, block = self._block
        return not self._begin and self._line == 1 and not block[: offset - begin].strip()

    def error(self, offset: int, what: str) -> FormatError:
        """Return a FormatError for the line at ``offset`` in the current block, with its number from 1.

        If the file does not look like text, the error says what the file looks like.
        """
        source = self._source
        begin, block = self._block
        if self._lines_before is None:
            self._lines_before = self._count_before() if self._begin else 0
        number = self._lines_before + self._line + _count_ends(block[: offset - begin])
        self._head = self._head or source.head()
        known = looks_like(self._head)
        return source.error(f"line {number}: {what}{'; the file looks like ' if known else ''}{known}", offset)

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _entered(self, begin: int, block: bytes) -> tuple[int, bytes]:
        """Return the next block, and count the lines of the one before it."""
        before = self._block[1]
        self._line += _count_ends(before) - (before.endswith(b"\r") and block.startswith(b"\n"))
        self._block = begin, block
        return self._block

    def _count_before(self) -> int:
        """Return the number of lines before the part, by reading them."""
        count, last = 0, b""
        before = self._source.offset
        with self._source.at(0) as source:
            while data := source.read_some(min(_PIECE, self._begin - source.offset)):
                count += _count_ends(data) - (last == b"\r" and data.startswith(b"\n"))
                last = data[-1:]
            count -= last == b"\r" and source.read_some(1) == b"\n"  # the part begins within a line break
            if source is self._source:
                source.seek(before)
        return count


def good_only(items: Generator[T | FormatError]) -> Iterator[T]:
    """Yield ``items`` up to the first one that is an error, and raise that."""
    with closing(items):
        for item in items:
            if isinstance(item, FormatError):
                raise item
            yield item


def lines(path: PathOrFile, part: FilePart = WHOLE_FILE) -> Iterator[tuple[TextReader, int, bytes]]:
    """Yield (reader, offset, line) of each line that is not blank, without its line break."""
    with TextReader(path, part) as reader:
        for offset, line in reader.lines():
            yield reader, offset, line


def block_lines(begin: int, block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of the lines of a block that are not blank."""
    for line in block.splitlines(keepends=True):
        if (stripped := line.rstrip(b"\r\n")) and not stripped.isspace():
            yield begin, stripped
        begin += len(line)


def _count_ends(data: bytes) -> int:
    """Return the number of line breaks in ``data``."""
    count = data.count(b"\n")
    return count + data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else count


def too_large(text: bytes, value: float) -> bool:
    """Return True if ``value`` is infinite although the number ``text`` that it was made of is not."""
    return math.isinf(value) and b"i" not in text.lower()


def line_from(source: ByteSource, at: int) -> int:
    """Return the first offset from ``at`` on where a line begins, or the end of the file."""
    assert source.size is not None
    if at == 0:
        return 0
    source.seek(at - 1)
    while data := source.read_some(BLOCK):
        ends = [found for end in _ENDS if (found := data.find(end)) >= 0]
        if ends:
            return source.offset - len(data) + min(ends) + 1
    return source.size


def shown(text: bytes) -> str:
    """Return the beginning of ``text``, for an error, with its blanks."""
    return repr(text[:40].decode("utf-8", "backslashreplace"))
