"""Claim a connection file for one service, from its start to its end.

The lock is on the connection file itself, so that none stays beside it: a service locks its file before the file gets
its name, and holds the lock as long as it lives, however it ends. The file of a service that was killed is thus one
whose lock is free.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from pydp2.api.rundir import RELEASE_SECONDS, RETRY_SECONDS, is_at, open_lock
from pydp2.errors import OptionError, ServiceUnreachable
from pydp2.transport.key_files import ConnectionFile, is_connection_text

_MAX_BYTES = 64 * 1024
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class ConnectionClaim:
    """Claim of one service on the connection file ``path``. ``lock``: a descriptor; the lock is free when the last
    process that has it ends.

    Raises ServiceUnreachable if the file at ``path`` is that of a running service, and OptionError if it is some other
    file, or if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        with _locked_old(path):
            pass
        self.path = path
        self._young = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
        try:
            self.lock = open_lock(self._young)
        except OSError as error:
            raise _refusal(path, error) from None
        _lock(self.lock)

    def write(self, content: ConnectionFile) -> None:
        """Write ``content`` to the file, completely or not at all. Raises the errors that the class raises."""
        try:
            with open(self.lock, "w", encoding="ascii", closefd=False) as stream:
                stream.write(content.text())
                stream.flush()
                os.fsync(self.lock)
            while not self._take_name():
                pass
        except ServiceUnreachable:  # it is an OSError, but needs no other text
            raise
        except OSError as error:
            raise _refusal(self.path, error) from None

    def _take_name(self) -> bool:
        """Give the file its name; return False if another service has taken the name just now."""
        with _locked_old(self.path) as is_there:
            if not is_there:
                try:
                    os.link(self._young, self.path)  # unlike a rename, it never replaces a file that appeared meanwhile
                except FileExistsError:
                    return False
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                else:
                    self._young.unlink()
                    return True
            self._young.replace(self.path)
            return True

    def discard(self) -> None:
        """Remove the temporary file, unless :meth:`write` has given it its name."""
        with contextlib.suppress(OSError):
            self._young.unlink()


def _refusal(path: Path, error: OSError) -> OptionError:
    return OptionError(
        f"connection={str(path)!r} must be a file that can be written: {error.strerror or error}; choose another place"
    )


@contextlib.contextmanager
def _locked_old(path: Path) -> Iterator[bool]:
    """Hold the lock of the connection file that a killed service left at ``path``; give False if no file is there.
    Raises the errors that :class:`ConnectionClaim` raises."""
    deadline = time.monotonic() + RELEASE_SECONDS
    while (file := _opened(path)) is not None:
        try:
            if _lock(file):
                if is_at(file, path):
                    yield True
                    return
            elif time.monotonic() > deadline:
                raise ServiceUnreachable(
                    f"connection={str(path)!r} is the file of a service that is running; stop it, or name another file"
                )
            else:  # workers of a killed service hold the lock a moment longer
                time.sleep(RETRY_SECONDS)
        finally:
            os.close(file)
    yield False


def _opened(path: Path) -> int | None:
    """Return a descriptor of the connection file ``path``, None if there is no file. Raises OptionError if it is some
    other file, which must not be overwritten. An empty file, such as one of ``mktemp``, may be."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if not path.is_symlink():  # a broken link is not "no file"
            return None
    except OSError as error:
        raise _refusal(path, error) from None
    else:
        content = os.pread(file, _MAX_BYTES, 0) if stat.S_ISREG(os.fstat(file).st_mode) else b"no file"
        if not content or is_connection_text(content):
            return file
        os.close(file)
    raise OptionError(
        f"connection={str(path)!r} must be a new file, or a connection file that a service left, and what is there is "
        "something else, which would be lost; name another file, or remove that one"
    )


def _lock(file: int) -> bool:
    """Lock ``file``; return False if another process has the lock. On a file system without locks, return True."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
