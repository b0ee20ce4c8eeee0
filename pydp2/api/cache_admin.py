"""What lies in a cache on disk: to look at, to verify, to remove. Services may use it meanwhile."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydp2.cache.file_format import CacheEntryReader, DamagedEntry
from pydp2.cache.folder import EntryFile, default_folder, entry_files, remove_entry


@dataclass(frozen=True)
class CacheEntry:
    """An entry of a cache on disk: the samples of one file.

    ``used``: when it was last used, in seconds since 1970; ``size`` in bytes; ``provider``: its address; ``file``: the
    entry of the list; ``samples``: how many. ``damaged``: why it cannot be used; then the last three say nothing.
    """

    path: Path
    used: float
    size: int
    provider: str = ""
    file: str = ""
    samples: int = 0
    damaged: str = ""


class CacheFolder:
    """The cache in the directory ``path``; None: where it is by default. It need not be there."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_folder()

    def entries(self, *, verify: bool = False) -> list[CacheEntry]:
        """What is there, by provider, the one used longest ago first. ``verify``: compare the checksums of all bytes,
        which reads them; else only of the part that says what an entry is of."""
        found = [one for each in sorted(entry_files(self.path)) if (one := _entry_of(each, verify)) is not None]
        return sorted(found, key=lambda entry: entry.path.parent)

    def remove(self, entry: CacheEntry) -> bool:
        """Remove ``entry``; False when that cannot be done. A service that reads it keeps what it has."""
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
