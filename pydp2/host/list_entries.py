"""Compare the files of two hosts: missing files on a host without a mount would look like errors of the data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pydp2.file_parts import file_of
from pydp2.options.file_list import FileList

_SAMPLED = 32


def sampled_entries(files: FileList) -> list[int]:
    """Return the indices of some entries of ``files``, at most 32, the same indices on every host."""
    chosen = {
        int.from_bytes(hashlib.blake2b(b"%d" % number, digest_size=8).digest(), "little") % len(files)
        for number in range(_SAMPLED if files else 0)
    }
    return sorted(chosen)


def opened_entries(files: FileList, root: Path) -> list[int]:
    """Return for each of the sampled entries 1 if it is a file for a worker in ``root`` on this host, and 0 if not,
    because an entry need not be a file."""
    found = []
    for index in sampled_entries(files):
        try:
            found.append(int((root / file_of(files[index])).exists()))
        except (OSError, ValueError):
            found.append(0)
    return found


def map_entries(files: FileList, maps: Mapping[str, str]) -> FileList:
    """Return ``files`` with folders replaced: in an entry inside the folder of a key, the value replaces this folder.
    The longest key counts."""
    if not maps:
        return files
    prefixes = sorted(((_folder(old), _folder(new)) for old, new in maps.items()), key=lambda prefix: -len(prefix[0]))

    def mapped(entry: str) -> str:
        for old, new in prefixes:
            if entry.startswith(old):
                return new + entry[len(old) :]
        return entry

    other = FileList.of([mapped(entry) for entry in files])
    return FileList(other.blob, other.offsets, files.source)


def _folder(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"
