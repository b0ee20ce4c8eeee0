"""Read text files in blocks of whole lines, from a whole file or a part of one.

A line ends with LF, CR or CR LF. Lines of blanks and a byte order mark are ignored. Parts are ranges of bytes of equal
size; a line belongs to the part in which it begins. Compressed text has no parts, because it cannot be read from the
middle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pydp2.errors import FormatError, OptionError
from pydp2.file_parts import WHOLE_FILE, FilePart
from pydp2.formats.source import ByteSource, PathOrFile, open_source

MOST = 16 << 20
"""Most bytes of a line. Without a limit, a file without line breaks would be read into memory as one line."""

BLOCK = 1 << 14  # bytes that are parsed at a time: parsing needs dozens of times this memory
NUMBER = re.compile(rb"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE)
"""Pattern of a number as text; ``float`` accepts more, such as underscores. Only the part behind the dot may be empty,
so that digits match in one way: a second way makes the time for a long field grow with its square."""

_BOM = b"\xef\xbb\xbf"
_ENDS = (b"\n", b"\r")


def open_text(path: PathOrFile, part: FilePart) -> ByteSource:
    """Open a text file, plain or gzip.

    Raises:
        OptionError: ``part`` is a part of a compressed file.
        OSError: the file cannot be read.
    """
    source = open_source(path, gzipped=True)
    if source.compressed and part.count > 1:
        source.close()
        raise OptionError(f"{source.name} is gzip, which cannot be read in parts: name it whole, or decompress it")
    return source


def blocks(source: ByteSource, part: FilePart = WHOLE_FILE) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, whole lines) until the part ends: about :data:`BLOCK` bytes of lines at a time, at least one line.

    Raises:
        FormatError: a line of more than :data:`MOST` bytes.
    """
    begin, last = 0, None
    if source.size is not None:
        begin, last = (_line_from(source, at) for at in part.range(source.size))
        source.seek(begin)
    partial_line = bytearray()
    while data := source.read_some(BLOCK if last is None else min(BLOCK, last - source.offset)):
        if begin == 0 and not partial_line and data.startswith(_BOM):
            begin, data = len(_BOM), data[len(_BOM) :]
        cut = max(data.rfind(end) for end in _ENDS) + 1
        if cut:
            yield begin, bytes(partial_line) + data[:cut]
            begin, partial_line = source.offset - len(data) + cut, bytearray(data[cut:])
        else:
            partial_line += data
            if len(partial_line) > MOST:
                raise source.error(f"expected the end of a line within {MOST} bytes: is this text?", begin)
    if partial_line:
        yield begin, bytes(partial_line)


def lines(path: PathOrFile, part: FilePart = WHOLE_FILE) -> Iterator[tuple[ByteSource, int, bytes]]:
    """Yield (source, offset, line) of each line that is not blank, without its line break."""
    with open_text(path, part) as source:
        for begin, block in blocks(source, part):
            for offset, line in each(begin, block):
                yield source, offset, line


def each(begin: int, block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of the lines of a block that are not blank."""
    for line in block.splitlines(keepends=True):
        if (stripped := line.rstrip(b"\r\n")) and not stripped.isspace():
            yield begin, stripped
        begin += len(line)


def wrong(source: ByteSource, offset: int, what: str) -> FormatError:
    """Return a FormatError for the line at ``offset``, with its number from 1, by reading the lines before."""
    number, left = 1, offset
    source.seek(0)
    before = b""
    while left and (data := source.read_some(min(left, 1 << 16))):
        number += data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") - (before == b"\r" and data[:1] == b"\n")
        before = data[-1:]
        left -= len(data)
    return source.error(f"line {number}: {what}", offset)


def too_large(text: bytes, value: float) -> bool:
    """Return True if ``value`` is infinite although the number ``text`` that it was made of is not."""
    return math.isinf(value) and b"i" not in text.lower()


def _line_from(source: ByteSource, at: int) -> int:
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
    """Return the beginning of ``text``, for an error."""
    return repr(text.strip()[:40].decode("utf-8", "backslashreplace"))
