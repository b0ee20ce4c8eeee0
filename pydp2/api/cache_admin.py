"""List, verify and remove the entries of a cache on disk. Services may use it meanwhile."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydp2.cache.file_format import CacheEntryReader, DamagedEntry
from pydp2.cache.folder import EntryFile, default_folder, entry_files, remove_entry


@dataclass(frozen=True)
class CacheEntry:
    """Entry of a cache on disk: the samples of one file.

    ``used``: when it was last used, in seconds since 1970; ``size`` in bytes; ``provider``: its address; ``file``: the
    entry of the list; ``samples``: how many. ``damaged``: why it cannot be used; then the last three have no meaning.
    """

    path: Path
    used: float
    size: int
    provider: str = ""
    file: str = ""
    samples: int = 0
    damaged: str = ""


class CacheFolder:
    """Cache in the directory ``path``; None: the default directory. It need not exist."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_folder()

    def entries(self, *, verify: bool = False) -> list[CacheEntry]:
        """Return the entries by provider, the least recently used first. ``verify``: compare the checksums of all
        bytes, which reads them; otherwise only of the part that identifies the entry."""
        found = [one for each in sorted(entry_files(self.path)) if (one := _entry_of(each, verify)) is not None]
        return sorted(found, key=lambda entry: entry.path.parent)

    def remove(self, entry: CacheEntry) -> bool:
        """Remove ``entry``; return False if that is not possible. A service that reads it keeps its samples."""
        return remove_entry(EntryFile(int(entry.used * 1e9), entry.size, entry.path))


def _entry_of(found: EntryFile, verify: bool) -> CacheEntry | None:
    used = found.last_used / 1e9
    try:
        reader = CacheEntryReader(found.path)
        if verify:
            reader.verify()
    except FileNotFoundError:  # a service removed it just now
        return None
    except DamagedEntry as error:
        return CacheEntry(found.path, used, found.size, damaged=str(error))
    except OSError as error:
        return CacheEntry(found.path, used, found.size, damaged=error.strerror or str(error))
    label = reader.index.label
    return CacheEntry(found.path, used, found.size, label.provider, label.list_entry, reader.index.rows)
