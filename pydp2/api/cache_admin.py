"""List, verify and remove the entries of a cache on disk. Services may use it meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydp2.errors import OptionError, count_text
from pydp2.remote.object_cache import INDEX_SUFFIX, CachedVersion, ObjectCache, read_header
from pydp2.server.cache.counts import read_counts
from pydp2.server.cache.file_format import CacheEntryReader, DamagedEntry
from pydp2.server.cache.folder import (
    EntryFile,
    count_files,
    default_folder,
    entry_files,
    remove_entry,
    remove_leftovers,
)

REMOTE_FILE = "(remote file)"
"""Provider of the copy of a remote file."""


@dataclass(frozen=True)
class CacheEntry:
    """Entry of a cache on disk: the samples of one file, the counts of the samples of ``files`` files, or the copy of a
    remote file, whose provider is :data:`REMOTE_FILE`.

    ``used``: when it was last used, in seconds since 1970; ``size`` in bytes; ``provider``: its address; ``file``: the
    entry of the list, "" for counts; ``samples``: how many. ``damaged``: why it cannot be used; then ``provider``,
    ``file``, ``samples`` and ``files`` have no meaning.
    """

    path: Path
    used: float
    size: int
    provider: str = ""
    file: str = ""
    samples: int = 0
    damaged: str = ""
    files: int = 1


class CacheFolder:
    """Cache in the directory ``path``. None stands for the default directory, which need not exist yet. Raises
    OptionError for an empty name, and if there is no directory of that name."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if path is not None and not os.fspath(path):
            raise OptionError("the directory of a cache must have a name, got ''; leave it out for the default one")
        self.path = Path(path) if path is not None else default_folder()
        if path is not None and not self.path.is_dir():
            what = "it is a file" if self.path.exists() else "there is none"
            raise OptionError(
                f"{self.path} must be the directory of a cache, and {what}; name the cache_dir of the service, or "
                "leave it out for the default one"
            )

    def entries(self, *, verify: bool = False) -> list[CacheEntry]:
        """Return the entries with samples, grouped by provider, the least recently used first. ``verify``: compare the
        checksums of all bytes, which reads them; otherwise only that of the part that identifies the entry."""
        found = [_described(file, partial(_entry_of, verify=verify)) for file in sorted(entry_files(self.path))]
        return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.path.parent)

    def counts(self) -> list[CacheEntry]:
        """Return the remembered numbers of samples, one entry for each provider; see docs/caching.md,
        "Counts"."""
        found = [_described(file, _counts_of) for file in sorted(count_files(self.path))]
        return [entry for entry in found if entry is not None]

    def copies(self, *, verify: bool = False) -> list[CacheEntry]:
        """Return the copies of remote files, which are in this directory or in ``remote`` below it, the least recently
        used first. ``verify``: compare the checksums of all blocks; those that are damaged are dropped."""
        found = []
        for folder in (self.path, self.path / "remote"):
            cache = ObjectCache(folder, None)
            found += [_copy_of(cache, version, verify=verify) for version in sorted(cache.entries())]
        return found

    def remove(self, entry: CacheEntry) -> bool:
        """Remove ``entry``; return False if that is not possible. A service that reads it keeps its samples; a copy of
        a remote file that is open stays."""
        if entry.path.suffix == INDEX_SUFFIX:
            return ObjectCache(entry.path.parents[2], None).remove(CachedVersion(entry.used, entry.path, entry.size))
        return remove_entry(EntryFile(int(entry.used * 1e9), entry.size, entry.path))

    def remove_leftovers(self) -> tuple[int, int]:
        """Remove the unfinished files of services that were killed. Return their number, and their bytes. Files that a
        running service is writing stay."""
        found = remove_leftovers(self.path)
        return found.removed, found.removed_bytes


def _described(found: EntryFile, describe: Callable[[EntryFile], CacheEntry]) -> CacheEntry | None:
    """Return ``describe(found)``, or an entry with the reason why it is damaged; None if a service removed it just
    now."""
    try:
        return describe(found)
    except FileNotFoundError:
        return None
    except DamagedEntry as error:
        why = str(error)
    except OSError as error:
        why = error.strerror or str(error)
    return CacheEntry(found.path, found.last_used / 1e9, found.size, damaged=why)


def _entry_of(found: EntryFile, *, verify: bool) -> CacheEntry:
    reader = CacheEntryReader(found.path)
    if verify:
        reader.verify()
    label = reader.index.label
    used = found.last_used / 1e9
    return CacheEntry(found.path, used, found.size, label.provider, label.list_entry, reader.index.rows)


def _counts_of(found: EntryFile) -> CacheEntry:
    label, rows = read_counts(found.path)
    samples = int(rows["count"]["samples"].sum())
    return CacheEntry(
        found.path, found.last_used / 1e9, found.size, label["provider"], samples=samples, files=len(rows)
    )


def _copy_of(cache: ObjectCache, version: CachedVersion, *, verify: bool) -> CacheEntry:
    """Return the entry of a copy of a remote file."""
    header = read_header(version.index)
    if header is None:
        return CacheEntry(version.index, version.used, version.bytes, damaged="its index is damaged")
    url, _ = header
    bad = cache.damaged(version) if verify else 0
    damaged = f"{count_text(bad, 'block')} of {url} had a wrong checksum, and will be fetched again" if bad else ""
    return CacheEntry(version.index, version.used, version.bytes, REMOTE_FILE, url, damaged=damaged)
