"""Manage the directory of the cache on disk: its path, its entries, the removal of entries.

::

    DIRECTORY / key of a provider / name of an entry
    DIRECTORY / key of a provider / counts

Several services may use one directory at the same time, because complete entries appear by rename and disappear by
unlink only.

A user may name a directory that holds other files too. So pydp2 looks at, and removes, only files with the names that
it gives: keys and entries are named by 24 hexadecimal digits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydp2.system.user_folders import cache_home

TEMPORARY_PREFIX = ".new-"
"""Beginning of the name of an entry that is being written."""
COUNTS_NAME = "counts"
"""Name of the file with the counts of samples; names of entries are hexadecimal."""
_DIGEST = re.compile("[0-9a-f]{24}")
_TAG = "CACHEDIR.TAG"  # backup programs know this name, and leave out the directory
_TAGGED = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by pydp2; `pydp2 cache clear` empties it.\n"


def default_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/pydp2``, or ``~/.cache/pydp2``. Raise OptionError if this user has neither."""
    return cache_home() / "pydp2"


@dataclass(frozen=True, order=True)
class EntryFile:
    """Entry with the time of its last use (ns since 1970), and its size in bytes; it may be damaged."""

    last_used: int
    size: int
    path: Path


def prepare_folder(folder: Path, key: str) -> Path:
    """Return the directory of entries of ``key``; make it if it is not there. Raises OSError."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _scan(folder):  # a backup must not leave out a directory with other files
        with contextlib.suppress(FileExistsError):
            tag = os.open(folder / _TAG, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(tag, "w", encoding="ascii") as file:
                file.write(_TAGGED)
    directory = folder / key
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def entry_files(folder: Path) -> Iterator[EntryFile]:
    """Yield all entries in ``folder``, in no order."""
    return (file for file in _files(folder) if file.path.name != COUNTS_NAME)


def count_files(folder: Path) -> Iterator[EntryFile]:
    """Yield the files with counts of samples in ``folder``, in no order."""
    return (file for file in _files(folder) if file.path.name == COUNTS_NAME)


def used_bytes(folder: Path, progress: Callable[[], None]) -> int:
    """Return the number of bytes of all entries in ``folder``, including those that services are writing; remove the
    leftovers of killed services. ``progress`` is called after every entry."""
    written = remove_leftovers(folder).written_bytes
    for entry, known in _known_files(folder):
        written += known.st_size if entry.name != COUNTS_NAME else 0
        progress()
    return written


def _files(folder: Path) -> Iterator[EntryFile]:
    return (EntryFile(known.st_mtime_ns, known.st_size, Path(entry.path)) for entry, known in _known_files(folder))


def _known_files(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    for entry in _in_places(folder):
        if entry.name == COUNTS_NAME or _DIGEST.fullmatch(entry.name):
            with contextlib.suppress(OSError):  # another service removed it
                known = entry.stat(follow_symlinks=False)
                if not stat.S_ISDIR(known.st_mode):
                    yield entry, known


def _in_places(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of the directories of keys."""
    for directory in _scan(folder):
        if _DIGEST.fullmatch(directory.name) and directory.is_dir(follow_symlinks=False):
            yield from _scan(directory.path)


@dataclass(frozen=True)
class Leftovers:
    """Unfinished files: number and bytes of those that were removed, bytes of those that services are writing."""

    removed: int
    removed_bytes: int
    written_bytes: int


def remove_leftovers(folder: Path) -> Leftovers:
    """Remove the unfinished files of killed services, but not those that other services are writing now."""
    removed: list[int] = []
    written = 0
    for entry in _in_places(folder):
        if entry.name.startswith(TEMPORARY_PREFIX):
            with contextlib.suppress(OSError):
                size, is_removed = _remove_leftover(Path(entry.path))
                written += 0 if is_removed else size
                removed += [size] if is_removed else []
    return Leftovers(len(removed), sum(removed), written)


def _remove_leftover(path: Path) -> tuple[int, bool]:
    """Return the size of an unfinished file, and whether it was removed."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size = os.fstat(file).st_size
        if not size:  # its writer may just have made it, and be about to lock it
            return 0, False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return size, False
        path.unlink()
    finally:
        os.close(file)
    _remove_if_empty(path.parent)
    return size, True


def flush_writes(file: int) -> None:
    """Flush the descriptor ``file`` to the server of a network file system, as closing it would. Raises OSError: such a
    file system reports only then that there is no room. The lock of ``file`` stays."""
    os.close(os.dup(file))


def was_used_since(found: EntryFile) -> bool:
    """Return True if an entry was used, or replaced, since it was found."""
    try:
        return found.path.lstat().st_mtime_ns != found.last_used
    except OSError:
        return False


def remove_entry(found: EntryFile) -> bool:
    """Remove an entry; return False if that failed. A process that has mapped it keeps its bytes."""
    try:
        found.path.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    _remove_if_empty(found.path.parent)
    return True


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):  # another service uses the directory
        directory.rmdir()


def _scan(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
