"""Read zstd files of any number of frames, in memory that a file's header does not decide.

A file is a sequence of frames; a frame is a header and blocks, each of which becomes at most 128 KiB; frames that a
reader skips may stand between them. The library alone would end without an error if the last frame is cut, and one
call of it may return a thousand times what it got. So this module finds the end of each block itself, by its three
bytes of header, and gives the library one block at a time. zstandard is imported late: only files of zstd need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from pydp2.errors import OptionError
from pydp2.formats.first_bytes import CUT_SHORT

MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = tuple(bytes((0x50 + i, 0x2A, 0x4D, 0x18)) for i in range(16))
"""First bytes of a frame that has no data, such as the table of a seekable file."""
WINDOW = 1 << 27
"""Most bytes of a window: 128 MiB, the limit of the program ``zstd`` too."""

_BLOCK = 1 << 17  # most bytes that a block has, and that it becomes
_REPEATED, _RESERVED = 1, 3  # kinds of a block: one byte many times; none
_PIECE = 1 << 16


class DamagedZstd(ValueError):
    """The file is no zstd, is damaged or cut, or needs a larger window than :data:`WINDOW`."""


class Readable(Protocol):
    """Source of bytes."""

    def read(self, count: int, /) -> bytes: ...

    def seek(self, offset: int, /) -> int: ...


class ZstdFile:
    """Decompressed content of ``file``, read from front to back; a seek backwards begins again.

    Raises:
        OptionError: zstandard is not installed.
    """

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._decompressor = _library().ZstdDecompressor(max_window_size=WINDOW)
        self._pieces: Iterator[bytes] = iter(())
        self._piece, self._at, self._offset = b"", 0, 0
        self.seek(0)

    def read(self, count: int, /) -> bytes:
        """Return at most ``count`` bytes, and none only at the end. Raises DamagedZstd."""
        while self._at == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._piece, self._at = piece, 0
        data = self._piece[self._at : self._at + count]
        self._at += len(data)
        self._offset += len(data)
        return data

    def seek(self, offset: int, /) -> int:
        """Continue at ``offset`` of the content. Raises DamagedZstd."""
        if offset < self._offset or not self._offset:
            self._file.seek(0)
            self._pieces = self._decompressed()
            self._piece, self._at, self._offset = b"", 0, 0
        while self._offset < offset and self.read(min(_PIECE, offset - self._offset)):
            pass
        return self._offset

    def _decompressed(self) -> Iterator[bytes]:
        while magic := self._file.read(4):
            magic += self._exactly(4 - len(magic)) if len(magic) < 4 else b""
            if magic in SKIPPABLE:
                self._skip(int.from_bytes(self._exactly(4), "little"))
            elif magic == MAGIC:
                yield from self._frame()
            else:
                raise DamagedZstd(f"expected a frame, got {magic.hex()}")

    def _frame(self) -> Iterator[bytes]:
        """Yield what each block of a frame becomes; its magic was read."""
        decoder = self._decompressor.decompressobj()
        flags = self._exactly(1)
        is_single = flags[0] >> 5 & 1  # a frame of one segment has no byte for its window
        size = (1 - is_single) + (0, 1, 2, 4)[flags[0] & 3] + (is_single, 2, 4, 8)[flags[0] >> 6]
        yield self._decode(decoder, MAGIC + flags + self._exactly(size))
        is_last = False
        while not is_last:
            head = self._exactly(3)
            value = int.from_bytes(head, "little")
            is_last, kind, size = bool(value & 1), value >> 1 & 3, value >> 3
            if kind == _RESERVED or size > _BLOCK:
                raise DamagedZstd(f"expected a block of at most {_BLOCK} bytes, got kind {kind} and {size} bytes")
            yield self._decode(decoder, head + self._exactly(1 if kind == _REPEATED else size))
        if flags[0] & 4:
            yield self._decode(decoder, self._exactly(4))  # its checksum, which the library compares
        if not decoder.eof:
            raise DamagedZstd("the last block of a frame does not end it")

    @staticmethod
    def _decode(decoder: Any, data: bytes) -> bytes:
        try:
            return bytes(decoder.decompress(data))
        except _library().ZstdError as error:
            raise DamagedZstd(str(error)) from None

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        while len(data) < count and (more := self._file.read(count - len(data))):
            data += more
        if len(data) < count:
            raise DamagedZstd(f"the last frame is cut{CUT_SHORT}")
        return data

    def _skip(self, count: int) -> None:
        while count:
            count -= len(self._exactly(min(_PIECE, count)))


def _library() -> Any:
    try:
        import zstandard
    except ImportError:
        raise OptionError(
            "a zstd file needs zstandard, which is not installed: pip install 'zstandard>=0.23'"
        ) from None
    return zstandard
