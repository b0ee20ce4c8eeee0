"""Read and write snappy in its two framings with cramjam (``pip install 'cramjam>=2.9'``).

    stream (``sNaPpY``)    FF 06 00 00 "sNaPpY", then chunks: kind u8 | length u24 LE | CRC u32 LE | data
    blocks (``snappy\\0``)  "snappy\\0", then blocks:           flag u8 | length u16 BE | CRC u32 BE | data

A piece of either framing has at most 64 KiB of content, with its masked CRC-32C. So this module rewrites one framing as
the other, and the library checks the sums. A length inside snappy may be wrong, so this module adds up all lengths
before it decompresses anything. Only this module imports cramjam, and only when it needs it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from pydp2.errors import OptionError

_STREAM = b"\xff\x06\x00\x00sNaPpY"
_BLOCKS = b"snappy\0"
_PACKED, _PLAIN, _LAST_NEEDED, _LAST_SKIPPED = 0x00, 0x01, 0x7F, 0xFE
_MOST = 1 << 16  # the most bytes of content of a chunk or block
_WRITTEN = 1 << 15  # bytes of content of a written block: the length of its compressed form always fits 16 bits
_BLOCK = struct.Struct(">BHI")
_CHUNK = struct.Struct("<I")


def unpack(data: bytes, *, blocks: bool, limit: int) -> bytes | bytearray:
    """Return the content of ``data``, at most ``limit`` bytes.

    Raises:
        ValueError: ``data`` are damaged, or decompress to more than ``limit``.
        OptionError: cramjam is not installed.
    """
    stream = _rewritten(data) if blocks else data
    del data
    total = 0
    for kind, begin, end in _chunks(stream):
        if kind == _PLAIN:
            content = end - begin - 4
        elif kind == _PACKED:
            content = _claimed(stream, begin + 4, end)
        else:
            continue
        if not 0 <= content <= _MOST:
            raise ValueError(f"a snappy chunk must have 0 to {_MOST} bytes of content, this one says {content}")
        total += content
    if total > limit:
        raise ValueError(f"{total} bytes would be decompressed, more than limit={limit} allows")
    content_of_all = bytearray(total)
    library = _library()
    try:
        count = library.snappy.decompress_into(stream, content_of_all) if total else 0
    except library.DecompressionError as error:
        raise ValueError(str(error)) from None
    if count != total:
        raise ValueError(f"snappy gave {count} bytes where its chunks say {total}")
    return content_of_all


def pack(data: bytes | bytearray, *, blocks: bool) -> bytes:
    """Return ``data`` as snappy in one of the framings.

    Raises:
        OptionError: cramjam is not installed.
    """
    library = _library()
    if not blocks:
        return bytes(library.snappy.compress(data)) if data else _STREAM
    parts = [_BLOCKS]
    for first in range(0, len(data), _WRITTEN):
        stream = bytes(library.snappy.compress(data[first : first + _WRITTEN]))
        for kind, begin, end in _chunks(stream):
            (crc,) = _CHUNK.unpack_from(stream, begin)
            parts += (_BLOCK.pack(kind == _PACKED, end - begin - 4, crc), stream[begin + 4 : end])
    return b"".join(parts)


def _rewritten(data: bytes) -> bytearray:
    """Return ``data``, which are blocks, in the stream framing."""
    if not data.startswith(_BLOCKS):
        raise ValueError(f"expected {_BLOCKS!r} in front of snappy blocks, got {data[:7]!r}")
    stream = bytearray(_STREAM)
    at = len(_BLOCKS)
    while at < len(data):
        if at + 7 > len(data):
            raise ValueError("snappy ends within the header of a block")
        flag, length, crc = _BLOCK.unpack_from(data, at)
        if flag > 1:
            raise ValueError(f"a snappy block is marked 0 or 1, this one {flag}")
        at += 7
        if at + length > len(data):
            raise ValueError(f"a snappy block needs {length} bytes, {len(data) - at} are left")
        stream += bytes((_PACKED if flag else _PLAIN,)) + (length + 4).to_bytes(3, "little") + _CHUNK.pack(crc)
        stream += data[at : at + length]
        at += length
    return stream


def _chunks(stream: bytes | bytearray) -> Iterator[tuple[int, int, int]]:
    """Yield (kind, begin, end) of each chunk after the stream's mark."""
    if not stream.startswith(_STREAM):
        raise ValueError(f"expected the mark of a snappy stream, got {bytes(stream[:10])!r}")
    at = len(_STREAM)
    while at < len(stream):
        if at + 4 > len(stream):
            raise ValueError("snappy ends within the header of a chunk")
        kind = stream[at]
        begin = at + 4
        at = begin + int.from_bytes(stream[at + 1 : begin], "little")
        if at > len(stream):
            raise ValueError(f"a snappy chunk needs {at - begin} bytes, {len(stream) - begin} are left")
        if _PLAIN < kind <= _LAST_NEEDED:
            raise ValueError(f"a snappy chunk of the unknown kind {kind:#04x}")
        if kind <= _PLAIN:
            if at - begin < 4:
                raise ValueError("a snappy chunk without a checksum")
            yield kind, begin, at


def _claimed(stream: bytes | bytearray, begin: int, end: int) -> int:
    """Return the decompressed length that the packed chunk ``[begin, end)`` gives: its first number, 7 bits a byte."""
    value = 0
    for i, byte in enumerate(stream[begin : min(end, begin + 5)]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value
    raise ValueError("a packed snappy chunk does not say how much it becomes")


def _library() -> Any:
    try:
        import cramjam
    except ImportError:
        raise OptionError("snappy needs cramjam, which is not installed: pip install 'cramjam>=2.9'") from None
    return cramjam
