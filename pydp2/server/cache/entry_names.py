"""Make the labels under which the cache on disk and the counts of samples store the entries of a list, and the stamps
that tell versions of a file apart."""

from __future__ import annotations

import os
import time
from hashlib import blake2b
from pathlib import Path

import numpy as np

from pydp2.errors import StoreError
from pydp2.file_parts import file_of
from pydp2.remote import is_remote
from pydp2.remote.remote_file import RefusedFile, file_version
from pydp2.server.cache.disk_messages import CacheSource, cache_key
from pydp2.server.cache.file_format import EntryLabel

_RACY_NS = 20_000_000  # ns; a file whose last change is more recent may change again without a new time stamp
_STAMP_BITS = (1 << 63) - 1  # an inode may have 64 bits
_HASH_BITS = (1 << 31) - 1  # enough to find the few entries that may be equal to others


class EntryNames:
    """Names of the entries of the list of ``source``."""

    def __init__(self, source: CacheSource) -> None:
        self._source = source
        self._duplicates: dict[int, int] | None = None

    def label(self, file: int, stamp: tuple[int, ...] = ()) -> EntryLabel:
        """Return the label of the entry of ``file``."""
        source = self._source
        if self._duplicates is None:
            self._duplicates = self._number_duplicates()
        return EntryLabel(
            key=source.key,
            provider=source.provider,
            list_entry=source.files[file],
            duplicate=self._duplicates.get(file, 0),
            stamp=stamp,
        )

    def name(self, file: int) -> str:
        """Return the name of the entry of ``file``, unique below the key of the provider."""
        label = self.label(file)
        return cache_key(label.list_entry, label.duplicate)

    def stamp(self, file: int) -> tuple[int, ...] | None:
        """Return the stamp of ``file``; () if the entry names no file, None if the file may be changing just now. For a
        remote file it is that of the version that workers read; None if the store does not answer."""
        if (url := self._remote_file(file)) is not None:
            return _remote_stamp(url, self._source.fetch_address)
        known = self._stat(file)
        if known is not None and 0 <= time.time_ns() - known.st_mtime_ns < _RACY_NS:
            return None
        return _stamp_of(known)

    def stamp_before(self, file: int, when_ns: int) -> tuple[int, ...] | None:
        """Return the stamp of ``file`` if it has not changed since ``when_ns`` (ns since 1970), else None; () if the
        entry names no file."""
        known = self._stat(file)
        if known is not None:
            unsettled = when_ns - _RACY_NS
            # A modification time in the future was set by a program; the other time says when that was done.
            if known.st_ctime_ns > unsettled or unsettled < known.st_mtime_ns <= time.time_ns():
                return None
        return _stamp_of(known)

    def _stat(self, file: int) -> os.stat_result | None:
        root, entry = Path(self._source.root), self._source.files[file]
        return _stat_or_none(root / entry) or _stat_or_none(root / file_of(entry))

    def _remote_file(self, file: int) -> str | None:
        """Return the URL of the entry of ``file``, None if it is no remote file, or nobody knows its version."""
        if not self._source.fetch_address:
            return None
        entry = file_of(self._source.files[file])
        return entry if is_remote(entry) and not entry.endswith("/") else None

    def _number_duplicates(self) -> dict[int, int]:
        """Number the equal entries of the list. They are stored apart, as in memory, because their samples may
        differ."""
        files = self._source.files
        hashes = np.fromiter((hash(text) & _HASH_BITS for text in files), np.int32, len(files))
        hashes.sort()
        several = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        seen: dict[str, int] = {}
        found: dict[int, int] = {}
        for file, text in enumerate(files if several else ()):
            if hash(text) & _HASH_BITS in several:
                found[file] = seen.get(text, 0)
                seen[text] = found[file] + 1
        return found


def _remote_stamp(url: str, fetch_address: str) -> tuple[int, ...] | None:
    try:
        size, version = file_version(url, fetch_address)
    except (FileNotFoundError, RefusedFile):
        return ()  # a folder, or a name that only the provider can open
    except (StoreError, OSError, EOFError):
        return None
    digest = blake2b(version.encode(), digest_size=8, person=b"pydp2 version").digest()
    return size, int.from_bytes(digest, "little") & _STAMP_BITS, 0


def _stamp_of(known: os.stat_result | None) -> tuple[int, ...]:
    return () if known is None else (known.st_size, known.st_mtime_ns, known.st_ino & _STAMP_BITS)


def _stat_or_none(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None
