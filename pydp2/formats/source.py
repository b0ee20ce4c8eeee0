"""A binary file that is read from front to back: where one is in it, how much is left, what is wrong with it.

It answers for one promise that every format leans on: nothing is allocated because a header says so. What a length
asks for is compared with what is left of the file, and where that is not known (gzip) it is read in pieces.
"""

from __future__ import annotations

import gzip
import os
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from pydp2.errors import FormatError, OptionError, OptionTypeError

PathOrFile = str | os.PathLike[str] | BinaryIO
"""What can be read: a path, or a binary file that is open and can be rewound. An open file stays open."""

LIMIT = 1 << 30
"""Most bytes that compressed input may become before it is refused, unless the caller says otherwise: 1 GiB."""

_GZIP = b"\x1f\x8b"
_PIECE = 1 << 16
_BUFFER = 1 << 17  # of a plain file; what is longer goes past it


class Closable(ABC):
    """Object that is closed at the end of a ``with``."""

    @abstractmethod
    def close(self) -> None:
        """Close what was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class ByteSource(Closable):
    """File that is being read; a context manager. :func:`open_source` makes it.

    Attributes:
        name: what errors call it.
        file: the bytes, decompressed; whoever reads from it directly keeps ``offset`` himself.
        offset: bytes read so far, of the decompressed file.
        size: bytes of the file; None for a compressed one, which does not tell.
        compressed: whether it is gzip.
    """

    def __init__(self, name: str, file: BinaryIO, size: int | None, owned: list[BinaryIO]) -> None:
        self.name, self.file, self.size = name, file, size
        self.offset = 0
        self.compressed = size is None
        self._owned = owned

    def read(self, count: int, what: str) -> bytes:
        """Return exactly ``count`` bytes.

        Raises:
            FormatError: the file ends before, or is damaged gzip; ``what`` was being read.
        """
        begin = self.offset
        self.check_available(count, what)
        data = self.read_some(count) if self.size is not None or count <= _PIECE else self._pieces(count)
        if len(data) < count:
            raise self.error(f"{what} needs {count} bytes, the file ends after {len(data)} of them", begin)
        return data

    def read_some(self, count: int) -> bytes:
        """Up to ``count`` bytes: fewer only at the end of the file."""
        data = self._fill(count)
        self.offset += len(data)
        return data

    def check_available(self, count: int, what: str) -> None:
        """Raise FormatError unless ``count`` bytes are left, as far as that is known."""
        if self.size is not None and count > self.size - self.offset:
            left = max(0, self.size - self.offset)
            raise self.error(f"{what} needs {count} bytes, {left} are left in the file")

    def seek(self, offset: int) -> None:
        """Go on at ``offset``; in a compressed file that means reading up to there."""
        try:
            self.file.seek(offset)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self._damaged(error) from error
        self.offset = offset

    def check_at_end(self) -> None:
        """Raise FormatError unless this is the end of the file."""
        if self.read_some(1):
            raise self.error("expected the end of the file, got more bytes", self.offset - 1)

    def error(self, what: str, offset: int | None = None) -> FormatError:
        """A FormatError that names the file and the place: ``offset``, or where one is."""
        at = self.offset if offset is None else offset
        return FormatError(f"{self.name}, byte {at}: {what}", file=self.name, offset=at)

    def close(self) -> None:
        """Close what was opened here."""
        for file in self._owned:
            file.close()

    def _fill(self, count: int) -> bytes:
        try:
            data = self.file.read(count)
            while len(data) < count and (more := self.file.read(count - len(data))):  # a raw file may give less
                data += more
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self._damaged(error) from error
        return data

    def _pieces(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count and (piece := self.read_some(min(_PIECE, count - len(data)))):
            data += piece
        return bytes(data)

    def _damaged(self, error: Exception) -> FormatError:
        return self.error(f"damaged gzip: {error}")


def open_source(path: PathOrFile, *, gzipped: bool = False) -> ByteSource:
    """Open ``path`` for reading. With ``gzipped`` a file that begins like gzip is decompressed, whatever its name.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    if isinstance(path, str | os.PathLike):
        plain: BinaryIO = open(path, "rb", buffering=_BUFFER)  # noqa: SIM115  # the Source closes it
        owned = [plain]
        name = os.fspath(path)
    else:
        plain, owned = path, []
        name = str(getattr(path, "name", "the file"))
    try:
        plain.seek(0)
        packed = gzipped and plain.read(2) == _GZIP
        if packed:
            plain.seek(0)
            unpacked = gzip.GzipFile(fileobj=plain, mode="rb")
            return ByteSource(name, unpacked, None, [unpacked, *owned])  # type: ignore[arg-type, list-item]  # it can what we need
        size = plain.seek(0, os.SEEK_END)
        plain.seek(0)
    except BaseException:
        for file in owned:
            file.close()
        raise
    return ByteSource(name, plain, size, owned)


def create_file(path: PathOrFile, *, gzipped: bool = False, append: bool = False) -> tuple[BinaryIO, bool]:
    """(file to write to, whether it is ours to close).

    With ``gzipped``, for formats that are also read so, a path that ends in ``.gz`` is written as gzip, without a name
    or time in it: the same content gives the same bytes.

    Raises:
        OptionError: without it, for such a path, before anything is touched.
        OSError: the file cannot be written.
    """
    if not isinstance(path, str | os.PathLike):
        return path, False
    if Path(path).suffix == ".gz":
        if not gzipped:
            raise OptionError(
                f"{os.fspath(path)}: this format is not read as gzip; take a name that does not end in .gz"
            )
        return _Packed(path), True  # type: ignore[return-value]  # it writes and closes
    return open(path, "ab" if append else "wb"), True


def as_bytes(record: bytes | bytearray | memoryview) -> bytes:
    """``record`` as bytes; OptionTypeError for what is none, as a number, of which ``bytes`` makes so many zeros."""
    if isinstance(record, bytes):
        return record
    try:
        return bytes(memoryview(record))
    except TypeError:
        raise OptionTypeError(f"a record must be bytes, got {record!r:.80} ({type(record).__name__})") from None


class _Packed(gzip.GzipFile):
    """A gzip file that closes the file below it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._below = open(path, "wb")  # noqa: SIM115  # closed below
        super().__init__(filename="", mode="wb", fileobj=self._below, mtime=0)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._below.close()
