"""Keep blocks of remote files on disk, for all processes of this machine that use one folder.

Theory of operation
-------------------
A remote file of one version is two files in the folder of its URL: ``NAME.data``, which has the size of the remote file
and holes where nothing was fetched, and ``NAME.index``, whose header says what it is, and which has 8 bytes for each
block: 0, or a mark and the CRC-32 of the block. So whoever has the path of the data can read it as a file.

What can happen: a process is killed between two writes; the machine loses power; several services use one folder; one
of them removes what another reads; a disk returns other bytes than were written.

* A block is written before its entry of the index. After a kill, a block without an entry is fetched again. After a
  power loss the entry may be there and the block not: each process compares the checksum of a block that it has not
  written itself, once, before it gives it away.
* Processes share the index through its memory map. Whoever fetches blocks holds a lock on their numbers in the index
  file, so no block is fetched twice at the same time. Locks of a killed process are released by the system.
* Whoever has a file open holds a shared lock on it (the byte ``_IN_USE``), and only who gets the exclusive lock removes
  it. Between opening the index and locking it, the file may have been removed; so the name must still lead to the same
  inode afterwards, or the opening begins again.
* POSIX locks belong to a process, and closing any descriptor of a file releases all its locks there. So a process opens
  each index once (:attr:`ObjectCache._open`).

What stays true: a block that :meth:`CachedFile.has` is what the store sent for this version. The folder may have more
than its limit only by what is in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import heapq
import json
import mmap
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydp2.remote.store import ObjectInfo
from pydp2.remote.urls import shown_url

try:  # faster, and the same numbers
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

INDEX_SUFFIX = ".index"
BLOCK = 1 << 20
"""Bytes of a block, of which the last one of a file may have fewer."""
_FORMAT = 1
_HEADER = 4096
_ENTRY = 8
_MARK = 1 << 32  # a CRC-32 may be 0
_IN_USE = 1 << 40  # number of the byte that is locked while a file is open; blocks have lower numbers
_SHRINK = 64 << 20  # bytes by which a full disk lowers the limit at a time
_PUNCH = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


class CachedFile:
    """Remote file on disk; :class:`ObjectCache` opens and closes it. Several threads may use it."""

    def __init__(self, url: str, info: ObjectInfo, index: int, data: int, path: Path) -> None:
        self.url, self.info, self.path = url, info, path
        self.blocks = -(-info.size // BLOCK)
        self.users = 0
        """Number of times that it was opened in this process and not closed."""
        self._index, self._data = index, data
        self._map = mmap.mmap(index, _HEADER + _ENTRY * self.blocks)
        self._sums = memoryview(self._map)[_HEADER:].cast("Q")
        self._trusted = bytearray(self.blocks)  # 1 for blocks that this process has written or compared

    def size_of(self, block: int) -> int:
        """Return the bytes of a block."""
        return min(BLOCK, self.info.size - block * BLOCK)

    def has(self, block: int) -> bool:
        """Return True if the block is here and is what the store sent. Compare its checksum if that was not done."""
        known = self._sums[block]
        if not known:
            return False
        if not self._trusted[block]:
            data = os.pread(self._data, self.size_of(block), block * BLOCK)
            if known != _MARK | crc32(data):
                self.drop(block)
                return False
            self._trusted[block] = 1
        return True

    def put(self, block: int, data: bytes | memoryview) -> None:
        """Write a whole block. Raises OSError: the disk is full."""
        self.finish(block, self.write(block * BLOCK, memoryview(data), 0))

    def write(self, offset: int, data: memoryview, checksum: int) -> int:
        """Write a part of a block; return the checksum up to there, which was ``checksum`` before. Raises OSError."""
        view = data
        while view:
            written = os.pwrite(self._data, view, offset)
            offset, view = offset + written, view[written:]
        return int(crc32(data, checksum))

    def finish(self, block: int, checksum: int) -> None:
        """Note that a block is written, with this checksum."""
        self._trusted[block] = 1
        self._sums[block] = _MARK | checksum

    def drop(self, block: int) -> None:
        """Forget a block, and free its room on disk."""
        self._sums[block] = self._trusted[block] = 0
        _punch(self._data, block * BLOCK, self.size_of(block))

    def damaged(self) -> int:
        """Return the number of blocks whose checksum is wrong; they are dropped."""
        self._trusted = bytearray(self.blocks)
        present = [block for block in range(self.blocks) if self._sums[block]]
        return sum(not self.has(block) for block in present)

    @property
    def present(self) -> int:
        """Bytes that are here."""
        return sum(self.size_of(block) for block in range(self.blocks) if self._sums[block])

    def try_lock(self, first: int, last: int) -> bool:
        """Lock blocks ``first`` to ``last`` against other processes that fetch; False if one of them fetches some."""
        return _lock(self._index, fcntl.LOCK_EX, first, last - first + 1)

    def unlock(self, first: int, last: int) -> None:
        """Release blocks ``first`` to ``last``."""
        fcntl.lockf(self._index, fcntl.LOCK_UN, last - first + 1, first)

    def trim(self, wanted: set[int]) -> int:
        """Drop all blocks but the ``wanted`` ones if no other process has the file open. Return the bytes freed."""
        try:
            fcntl.flock(self._data, fcntl.LOCK_EX | fcntl.LOCK_NB)  # who reads the copy as a file has a shared one
        except OSError:
            return 0
        try:
            return self._trimmed(wanted)
        finally:
            fcntl.flock(self._data, fcntl.LOCK_UN)

    def _trimmed(self, wanted: set[int]) -> int:
        if not _lock(self._index, fcntl.LOCK_EX, _IN_USE):
            return 0
        freed = 0
        for block in range(self.blocks):
            if self._sums[block] and block not in wanted:
                self.drop(block)
                freed += self.size_of(block)
        fcntl.lockf(self._index, fcntl.LOCK_SH, 1, _IN_USE)
        return freed

    def close(self) -> None:
        """Close the files, which releases all locks."""
        with contextlib.suppress(OSError):
            os.utime(self._index)
        self._sums.release()
        self._map.close()
        os.close(self._index)
        os.close(self._data)


@dataclass(frozen=True, order=True)
class CachedVersion:
    """Version of a remote file in the cache. ``used``: when it was used last (POSIX time); ``bytes``: what it takes on
    disk."""

    used: float
    index: Path
    bytes: int


class ObjectCache:
    """Cache in ``folder``, which is made when it is needed, with mode 0700. All files in it have at most ``limit``
    bytes together; None: half of the space that is free or that they use. Several threads may use it."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        self.folder = folder
        self._limit = limit
        self._lock = threading.Lock()
        self._open: dict[tuple[str, ObjectInfo], CachedFile] = {}
        self._used = -1  # bytes of all files; -1: not counted
        self._oldest: list[CachedVersion] = []  # heap of what may be removed

    def knows(self, url: str) -> bool:
        """Return True if some version of ``url`` may be here."""
        return self._folder_of(url).is_dir()

    def open(self, url: str, info: ObjectInfo) -> CachedFile:
        """Return the file of this version of ``url``, empty if it is new. :meth:`close` must follow. Raises OSError."""
        with self._lock:
            file = self._open.get((url, info))
            if file is None:
                file = self._open[url, info] = self._opened(url, info)
            file.users += 1
            return file

    def close(self, file: CachedFile) -> None:
        """Close ``file`` once."""
        with self._lock:
            file.users -= 1
            if not file.users:
                del self._open[file.url, file.info]
                file.close()

    def add(self, count: int) -> int:
        """Note that ``count`` bytes are about to be written, or were freed, and remove what was not used for longest.
        Return the bytes above the limit that are in use."""
        with self._lock:
            if self._limit is None or self._used < 0:
                self._count()
            assert self._limit is not None
            self._used += count
            was_counted = False
            while self._used > self._limit and (self._oldest or not was_counted):
                if self._oldest:
                    self._used -= self._remove(heapq.heappop(self._oldest))
                else:  # files that came since the last count may be older than what is in use
                    self._count()
                    self._used += count
                    was_counted = True
            return self._used - self._limit

    def shrink(self) -> None:
        """Lower the limit below what is used, because the disk is full."""
        with self._lock:
            self._count()
            assert self._limit is not None
            self._limit = max(0, min(self._limit, self._used - _SHRINK))

    def entries(self) -> Iterator[CachedVersion]:
        """Yield all files of the cache."""
        for index in self.folder.glob(f"??/*/*{INDEX_SUFFIX}"):
            with contextlib.suppress(OSError):  # another process has just removed it
                status, data = index.stat(), index.with_suffix(".data").stat()
                yield CachedVersion(status.st_mtime, index, (data.st_blocks + status.st_blocks) * 512)

    def damaged(self, entry: CachedVersion) -> int:
        """Return the number of blocks of a version whose checksum is wrong, and drop them."""
        content = entry.index.read_bytes()
        index = _open_index(entry.index, content)
        if index is None:
            return 0
        data = os.open(entry.index.with_suffix(".data"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = int(json.loads(content[:_HEADER].rstrip(b"\0"))["size"])
        file = CachedFile("", ObjectInfo(size, ""), index, data, entry.index)
        try:
            return file.damaged()
        finally:
            file.close()

    def remove(self, entry: CachedVersion) -> bool:
        """Remove a file. Return False if it is in use."""
        with self._lock:
            return self._remove(entry) > 0

    def _count(self) -> None:
        self._oldest = sorted(self.entries())
        self._used = sum(entry.bytes for entry in self._oldest)
        if self._limit is None:
            self._limit = (self._used + shutil.disk_usage(self.folder).free) // 2

    def _remove(self, entry: CachedVersion) -> int:
        """Remove a file that no process has open. Return its bytes, 0 if it is in use."""
        data = entry.index.with_suffix(".data")
        if any(file.path == data for file in self._open.values()):
            return 0
        try:
            index = os.open(entry.index, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            if not _lock(index, fcntl.LOCK_EX, _IN_USE):
                return 0
            for path in (entry.index, data):  # without an index there is no file
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it has another version
                entry.index.parent.rmdir()
            return entry.bytes
        finally:
            os.close(index)

    def _folder_of(self, url: str) -> Path:
        name = hashlib.blake2b(url.encode(), digest_size=16).hexdigest()
        return self.folder / name[:2] / name

    def _opened(self, url: str, info: ObjectInfo) -> CachedFile:
        folder = self._folder_of(url)
        name = hashlib.blake2b(f"{info.size} {info.version}".encode(), digest_size=8).hexdigest()
        path, data = folder / f"{name}.index", folder / f"{name}.data"
        content = _header(url, info) + bytes(_ENTRY * -(-info.size // BLOCK))
        while (index := _open_index(path, content)) is None:
            with contextlib.suppress(FileNotFoundError):  # another process has just removed the folder
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _write_new(path, content)
        try:
            opened = os.open(data, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except BaseException:
            os.close(index)
            raise
        if os.fstat(opened).st_size != info.size:
            os.ftruncate(opened, info.size)
        return CachedFile(url, info, index, opened, data)


def _open_index(path: Path, content: bytes) -> int | None:
    """Return a descriptor of the index with a shared lock, None if there is none. One with another header or size than
    a new index, ``content``, is removed: it is damaged, or of another release."""
    try:
        index = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    fcntl.lockf(index, fcntl.LOCK_SH, 1, _IN_USE)
    if _leads_to(path, index):
        if os.fstat(index).st_size == len(content) and os.pread(index, _HEADER, 0) == content[:_HEADER]:
            return index
        path.unlink(missing_ok=True)
    os.close(index)
    return None


def read_header(index: Path) -> tuple[str, ObjectInfo] | None:
    """Return the URL that is shown for a file of the cache, and what it is a copy of; None if the index is damaged."""
    try:
        with index.open("rb") as file:
            plain = json.loads(file.read(_HEADER).rstrip(b"\0"))
        return str(plain["url"]), ObjectInfo(int(plain["size"]), str(plain["version"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _header(url: str, info: ObjectInfo) -> bytes:
    plain = {"format": _FORMAT, "url": shown_url(url)[:1024], "size": info.size, "version": info.version[:1024]}
    return json.dumps(plain).encode()[:_HEADER].ljust(_HEADER, b"\0")


def _write_new(path: Path, content: bytes) -> None:
    """Write ``path`` if no file has this name; it is never there in part."""
    temporary = path.with_name(f".{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _lock(descriptor: int, kind: int, start: int, length: int = 1) -> bool:
    """Lock bytes of a file; False if another process has a lock on some."""
    try:
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB, length, start)
    except OSError:
        return False
    return True


def _punch(descriptor: int, start: int, length: int) -> None:
    """Free the room of a range of a file. A file system that cannot do that keeps it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).fallocate(descriptor, _PUNCH, ctypes.c_longlong(start), ctypes.c_longlong(length))
