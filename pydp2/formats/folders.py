"""Look into a folder that is one entry of a list, on this machine or in a store.

A store has no folders: names of files have slashes. So the URL of a folder is one that ends in ``/``, or that is not
the URL of a file. Then its files are asked for by their names, and a listing is only made where a format needs one.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydp2.errors import FormatError
from pydp2.formats.source import LIMIT, open_source
from pydp2.remote import RemoteFile, is_remote, shown_url
from pydp2.remote.remote_file import MissingFile

PathOrUrl = str | os.PathLike[str]


def is_folder(path: PathOrUrl) -> bool:
    """Return True if ``path`` is a folder, or the URL of one. Raises StoreError."""
    name = os.fspath(path)
    if not is_remote(name):
        return Path(path).is_dir()
    return name.endswith("/") or not has_file(name)


def below(folder: PathOrUrl, name: str) -> str:
    """Return the path or URL of the file ``name`` in ``folder``."""
    path = os.fspath(folder)
    return f"{path.rstrip('/')}/{name}" if is_remote(path) else str(Path(path) / name)


def has_file(path: PathOrUrl) -> bool:
    """Return True if there is the file ``path``. Raises StoreError."""
    name = os.fspath(path)
    if not is_remote(name):
        return Path(path).exists()
    try:
        RemoteFile(name).close()
    except MissingFile:
        return False
    return True


def read_whole(path: PathOrUrl) -> bytes:
    """Return all bytes of a file. Raises FormatError for more than 1 GiB, OSError, StoreError."""
    if not is_remote(os.fspath(path)):
        with open(path, "rb", buffering=0) as file:
            _check_size(os.fspath(path), os.fstat(file.fileno()).st_size)
            return file.readall()
    with RemoteFile(os.fspath(path)) as remote:
        _check_size(shown_url(remote.name), remote.size)
        return remote.pread(remote.size, 0)


def _check_size(name: str, size: int) -> None:
    if size > LIMIT:
        raise FormatError(f"{name}: expected a file of at most {LIMIT} bytes, got {size}", file=name)


def read_small(path: PathOrUrl, most: int, what: str) -> bytes:
    """Return all bytes of a file. Raises FormatError for more than ``most``, OSError, StoreError."""
    with open_source(path) as source:
        size = source.size or 0
        if size > most:
            raise source.error(f"{what} has at most {most} bytes, got {size}")
        return source.read(size, what)
