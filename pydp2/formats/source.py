"""Read a binary file, from front to back or from any offset; keep the offset, the number of bytes left, and the place
of errors.

All formats rely on one rule of this module: it never allocates memory only because a header gives a length. It compares
the length with the rest of the file. If the rest is not known (gzip), it reads in pieces.
"""

from __future__ import annotations

import gzip
import io
import os
import secrets
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

from pydp2.errors import FormatError, OptionError, OptionTypeError
from pydp2.formats.first_bytes import COUNT, CUT_SHORT, described, looks_like
from pydp2.formats.zstd_frames import MAGIC, SKIPPABLE, DamagedZstd, ZstdFile
from pydp2.remote import RemoteFile, is_remote, shown_url

PathOrFile = str | os.PathLike[str] | BinaryIO
"""File to read: a path or the URL of a remote file, or an open binary file that is seekable, which stays open."""

LIMIT = 1 << 30
"""Default of the most bytes that compressed input may decompress to: 1 GiB."""

_GZIP = b"\x1f\x8b"
_DAMAGES = (EOFError, gzip.BadGzipFile, zlib.error, DamagedZstd)
_PIECE = 1 << 16


class Closable(ABC):
    """Context manager that closes itself at the end of the ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Close the files that this object has opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _Bytes(Protocol):
    """Source of bytes: a binary file, or a :class:`_OwnOffset` in a file."""

    def read(self, count: int, /) -> bytes: ...

    def seek(self, offset: int, /) -> int: ...


class _OwnOffset:
    """Plain file with a read offset of its own. The offset of the descriptor is not used and does not move, because all
    forked processes and threads share it.
    """

    def __init__(self, file: io.FileIO, offset: int = 0) -> None:
        self._file, self._offset = file, offset

    def another(self, offset: int) -> _OwnOffset:
        return _OwnOffset(self._file, offset)

    def read(self, count: int, /) -> bytes:
        # the descriptor is asked for each time, because that of a closed file may belong to another one
        data = os.pread(self._file.fileno(), count, self._offset)
        self._offset += len(data)
        return data

    def seek(self, offset: int, /) -> int:
        self._offset = offset
        return offset

    def seekable(self) -> bool:
        return True


class _RemoteOffset(_OwnOffset):
    """Remote file with a read offset of its own."""

    def __init__(self, file: RemoteFile, offset: int = 0) -> None:
        self._remote, self._offset = file, offset

    def another(self, offset: int) -> _OwnOffset:
        return _RemoteOffset(self._remote, offset)

    def read(self, count: int, /) -> bytes:
        data = self._remote.pread(count, self._offset)
        self._offset += len(data)
        return data


class ByteSource(Closable):
    """File that is being read; a context manager. :func:`open_source` makes it.

    Attributes:
        name: name of the file in errors.
        offset: number of bytes read so far, decompressed.
        size: bytes of the file; None for a compressed file, whose size is not known.
        compressed: True for gzip and zstd.
    """

    def __init__(self, name: str, file: _Bytes, size: int | None, owned: list[io.IOBase]) -> None:
        self.name, self.size = name, size
        self.offset = 0
        self.compressed = size is None
        self._file, self._owned = file, owned
        self._locks: dict[int, threading.RLock] = {}

    def at(self, offset: int) -> AbstractContextManager[ByteSource]:
        """Return a context manager that gives a source which continues at ``offset``, for the ``with`` block.

        Threads may use such blocks of one source at the same time. So may forked processes, unless the source is an
        open file of the caller, or gzip in which another thread was reading at the fork. A plain file that was opened
        by its path is then read at several offsets at a time. Any other file has one offset, so a thread waits until no
        other thread is in such a block.
        """
        if not isinstance(self._file, _OwnOffset):
            return self._alone_at(offset)
        source = ByteSource(self.name, self._file.another(offset), self.size, [])
        source.offset = offset
        return source

    @contextmanager
    def _alone_at(self, offset: int) -> Iterator[ByteSource]:
        # a lock for each process: at a fork, another thread may have held that of the parent
        with self._locks.setdefault(os.getpid(), threading.RLock()):
            self.seek(offset)
            yield self

    def read(self, count: int, what: str) -> bytes:
        """Return exactly ``count`` bytes.

        Raises:
            FormatError: the file ends too early, or is damaged gzip. The text names ``what``.
        """
        begin = self.offset
        self.check_available(count, what)
        data = self.read_some(count) if self.size is not None or count <= _PIECE else self._pieces(count)
        if len(data) < count:
            raise self._too_short(f"{what} needs {count} bytes, the file ends after {len(data)} of them", begin)
        return data

    def read_some(self, count: int) -> bytes:
        """Return ``count`` bytes, or fewer at the end of the file."""
        data = self._fill(count)
        self.offset += len(data)
        return data

    def check_available(self, count: int, what: str) -> None:
        """Raise FormatError if fewer than ``count`` bytes are left; for a compressed file do nothing."""
        if self.size is not None and count > self.size - self.offset:
            left = max(0, self.size - self.offset)
            raise self._too_short(f"{what} needs {count} bytes, {left} are left in the file", self.offset)

    def seek(self, offset: int) -> None:
        """Continue at ``offset``. In a compressed file this reads all bytes up to there."""
        try:
            self._file.seek(offset)
        except _DAMAGES as error:
            raise self._damaged(error) from error
        self.offset = offset

    def check_at_end(self) -> None:
        """Raise FormatError if the file has more bytes."""
        if self.read_some(1):
            raise self.error("expected the end of the file, got more bytes", self.offset - 1)

    def error(self, what: str, offset: int | None = None) -> FormatError:
        """Return a FormatError that names the file and the byte: ``offset``, or the current one."""
        at = self.offset if offset is None else offset
        return FormatError(f"{self.name}, byte {at}: {what}", file=self.name, offset=at)

    def unexpected(self, what: str, got: bytes, offset: int) -> FormatError:
        """Return a FormatError for ``got``, the bytes at ``offset`` that are not ``what``. At the beginning of the file
        the text says what the file looks like."""
        return self.error(f"expected {what}, got {got.hex() if offset else described(self.head(), len(got))}", offset)

    def head(self) -> bytes:
        """Return the first bytes of the file, as :func:`.first_bytes.looks_like` needs them; the offset stays."""
        before = self.offset
        with self.at(0) as source:
            data = source.read_some(COUNT)
            if source is self:
                self.seek(before)
        return data

    def _too_short(self, what: str, offset: int) -> FormatError:
        known = "" if offset else looks_like(self.head())
        return self.error(f"{what}; the file looks like {known}" if known else f"{what}{CUT_SHORT}", offset)

    def close(self) -> None:
        """Close the files that :func:`open_source` has opened."""
        for file in self._owned:
            file.close()

    def _fill(self, count: int) -> bytes:
        try:
            data = self._file.read(count)
            while len(data) < count and (more := self._file.read(count - len(data))):  # a raw file may give less
                data += more
        except _DAMAGES as error:
            raise self._damaged(error) from error
        return data

    def _pieces(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count and (piece := self.read_some(min(_PIECE, count - len(data)))):
            data += piece
        return bytes(data)

    def _damaged(self, error: Exception) -> FormatError:
        packing = "zstd" if isinstance(error, DamagedZstd) else "gzip"
        return self.error(f"damaged {packing}: {error}{CUT_SHORT if isinstance(error, EOFError) else ''}")


def open_source(path: PathOrFile, *, gzipped: bool = False, zstd: bool = False) -> ByteSource:
    """Open ``path`` for reading. With ``gzipped`` decompress a file that begins like gzip, with any name; with ``zstd``
    one that begins like zstd.

    Raises:
        OptionError: it begins like zstd, and zstandard is not installed.
        OSError: there is no such file, or it cannot be read.
        StoreError: it is the URL of a remote file, and its store does not give it.
    """
    owned: list[io.IOBase] = []
    plain: BinaryIO | io.RawIOBase
    if isinstance(path, str | os.PathLike) and is_remote(os.fspath(path)):
        plain = remote = RemoteFile(os.fspath(path))
        owned.append(remote)
        file: _Bytes = _RemoteOffset(remote)
        name = shown_url(remote.name)
    elif isinstance(path, str | os.PathLike):
        opened = open(path, "rb", buffering=0)  # noqa: SIM115  # the Source closes it
        owned.append(opened)
        plain = opened
        file = _OwnOffset(opened)
        name = os.fspath(path)
    else:
        plain = file = path
        name = str(getattr(path, "name", "the file"))
    try:
        size = plain.seek(0, os.SEEK_END)
        file.seek(0)
        magic = file.read(4)
        file.seek(0)
        if zstd and (magic == MAGIC or magic in SKIPPABLE):
            return ByteSource(name, ZstdFile(file), None, owned)
        if gzipped and magic.startswith(_GZIP):
            unpacked = gzip.GzipFile(fileobj=file, mode="rb")
            return ByteSource(name, unpacked, None, [unpacked, *owned])
    except BaseException:
        for resource in owned:
            resource.close()
        raise
    return ByteSource(name, file, size, owned)


def library_file(path: PathOrFile) -> tuple[Any, io.IOBase | None]:
    """Return a file for a library that takes paths and open files, and what the caller must close: ``path`` itself, or
    of a remote file its copy if all of it is here, and else an open file. Raises StoreError, OSError."""
    if isinstance(path, str | os.PathLike) and is_remote(os.fspath(path)):
        remote = RemoteFile(os.fspath(path))
        return remote.local_path(waits=False) or remote, remote
    return path, None


def local_path(path: str | os.PathLike[str]) -> tuple[str, Callable[[], None]]:
    """Return the path of a file for a library that opens files by itself, and a function to call when it is done: a
    remote file is copied to the disk as a whole. Raises StoreError, OSError."""
    if not is_remote(os.fspath(path)):
        return os.fspath(path), lambda: None
    remote = RemoteFile(os.fspath(path))
    try:
        return str(remote.local_path()), remote.close
    except BaseException:
        remote.close()
        raise


def create_file(path: PathOrFile, *, gzipped: bool = False, append: bool = False) -> tuple[BinaryIO, bool]:
    """Return (file to write to, True if the caller must close it).

    With ``gzipped`` a path that ends in ``.gz`` is written as gzip, without a name or time in it, so the same content
    gives the same bytes. Formats that are not read as gzip do not set ``gzipped``.

    Raises:
        OptionError: the path ends in ``.gz``, without ``gzipped``. No file is changed then.
        OSError: the file cannot be written.
    """
    if not isinstance(path, str | os.PathLike):
        return path, False
    if Path(path).suffix == ".gz":
        if not gzipped:
            raise _not_as_gzip(path)
        return _Packed(path), True  # type: ignore[return-value]  # it writes and closes
    return open(path, "ab" if append else "wb"), True


@contextmanager
def written_whole(path: str | os.PathLike[str], *, gzipped: bool = False) -> Iterator[Path]:
    """Create a new, empty file with the ending of ``path``, and give its path to the ``with`` block. At the end of the
    block rename the file to ``path``; after an exception delete it.

    So ``path`` always has either its old or its new content, also if several threads, processes or machines write it at
    the same time. If it is a link, it stays one, and the file that it points to is replaced.

    Raises:
        OptionError: the path ends in ``.gz``, without ``gzipped``.
        OSError: the file cannot be written.
    """
    if Path(path).suffix == ".gz" and not gzipped:
        raise _not_as_gzip(path)
    real = Path(os.path.realpath(path))
    beside = real.with_name(f".{secrets.token_hex(4)}.{Path(path).name}")
    open(beside, "xb").close()  # nobody else has the name then
    try:
        yield beside
        beside.replace(real)
    finally:
        beside.unlink(missing_ok=True)


def _not_as_gzip(path: str | os.PathLike[str]) -> OptionError:
    return OptionError(f"{os.fspath(path)}: this format is not read as gzip; take a name that does not end in .gz")


def as_bytes(record: bytes | bytearray | memoryview) -> bytes:
    """Return ``record`` as bytes. Raises OptionTypeError: it is not bytes-like, for example an int."""
    if isinstance(record, bytes):
        return record
    try:
        return bytes(memoryview(record))
    except TypeError:
        raise OptionTypeError(f"a record must be bytes, got {record!r:.80} ({type(record).__name__})") from None


class _Packed(gzip.GzipFile):
    """Gzip file that also closes the file below it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._below = open(path, "wb")  # noqa: SIM115  # closed below
        super().__init__(filename="", mode="wb", fileobj=self._below, mtime=0)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._below.close()
