"""Run directories: a short path for a service's sockets, and the lock that says whether the service still lives.

libzmq takes over a bound ipc path without a word, so a lock of our own tells who owns one. A service holds the lock of
its directory as long as it lives, however it ends; the next start removes directories whose lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from pydp2.errors import ServiceUnreachable

_LOCK = "lock"


def base() -> Path:
    """Where this user's run directories are: under the temporary folder, because ipc paths hold 107 bytes at most."""
    path = Path(tempfile.gettempdir()) / f"pydp2-{os.getuid()}"
    if len(str(path)) > 60:
        path = Path("/tmp") / f"pydp2-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ServiceUnreachable(
            f"{path} must be a directory of this user alone (mode 0700); remove it, or set TMPDIR to another folder"
        )
    return path


class RunDir:
    """A directory for one service. ``lock``: a descriptor; the lock is free when the last process that has it ends."""

    def __init__(self) -> None:
        sweep()
        self.path = base() / secrets.token_hex(4)
        self.path.mkdir(mode=0o700)
        self.lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def address(self, name: str) -> str:
        """The ipc address of a socket here."""
        return f"ipc://{self.path / name}"

    def release(self) -> None:
        """Give up our copy of the lock; the service has its own."""
        with contextlib.suppress(OSError):
            os.close(self.lock)

    def remove(self) -> None:
        """Remove the directory: the service has ended."""
        shutil.rmtree(self.path, ignore_errors=True)


def take_path(path: str) -> int:
    """Lock the file beside the ipc socket ``path``; a stale socket is removed. Raises ServiceUnreachable when taken."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ServiceUnreachable(
            f"ipc://{path} is taken by a service that is running; stop it, or bind to another path"
        ) from None
    with contextlib.suppress(FileNotFoundError):
        Path(path).unlink()
    return lock


def sweep() -> None:
    """Remove run directories whose service is gone."""
    for path in base().iterdir():
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            # between mkdir and lock of a start that is under way: leave the young ones alone
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < _young():
                    shutil.rmtree(path, ignore_errors=True)
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # its service lives
        finally:
            os.close(lock)


def _young() -> float:
    import time

    return time.time() - 60
