"""Read files safely at paths that may lead to a pipe without a writer, a link to another file, or an endless device.

Files that pydp2 writes itself are regular files, and anything else is refused (:func:`read_own`). A file that a user
names may also be a pipe, such as ``<(command)`` in a shell (:func:`read_named`).
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def read_own(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the content of a file that pydp2 wrote, of at most ``limit`` bytes. Never blocks. Raises OSError, also for
    a symbolic link and for anything that is not a regular file."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        known = os.fstat(file)
        if not stat.S_ISREG(known.st_mode):
            raise OSError(errno.EPERM, "it is not a regular file")
        if known.st_size > limit:  # reading up to the limit would take time and memory
            raise _too_large(limit)
        return _read(file, limit)
    finally:
        os.close(file)


def read_named(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the content of a file or pipe that a user named, of at most ``limit`` bytes. Raises OSError, also for a
    device other than a terminal and ``/dev/null``, because a device may have no end."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        kind = os.fstat(file).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        is_null = stat.S_ISCHR(kind) and os.path.samestat(os.fstat(file), Path(os.devnull).stat())
        if stat.S_ISBLK(kind) or (stat.S_ISCHR(kind) and not is_null and not os.isatty(file)):
            raise OSError(errno.EINVAL, "it is a device, which may have no end")
        return _read(file, limit)
    finally:
        os.close(file)


def _read(file: int, limit: int) -> bytes:
    """Return the rest of ``file``. Raises OSError if it has more than ``limit`` bytes."""
    parts: list[bytes] = []
    left = limit + 1
    while left and (part := os.read(file, min(left, _CHUNK_BYTES))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise _too_large(limit)
    return b"".join(parts)


def _too_large(limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {limit} bytes")
