"""Make run directories: a short path for a service's sockets, and a lock that shows whether the service still lives.

libzmq takes over a bound ipc path silently, so a lock of our own shows which service owns it. A service holds the lock
of its directory as long as it lives, however it ends; the next start removes directories whose lock is free. The lock
is on the directory itself: programs that clean up old files may remove the files in it, but not a directory that a
process has open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from hashlib import blake2b
from pathlib import Path

from pydp2.errors import OptionError, ServiceUnreachable
from pydp2.transport.service_address import new_token, split_token

_LOCK = "lock"
"""Name of the lock file of a state directory. In a run directory it only makes the directory not empty, so that no
rename replaces it."""
_TOKEN = "token"
_MAX_TOKEN_BYTES = 1024
_STALE_SECONDS = 60.0
RELEASE_SECONDS = 3.0  # seconds within which a service that is ending releases its directory
_ORPHAN_SECONDS = 0.5  # seconds within which the processes that a killed server has left behind release it
RETRY_SECONDS = 0.02


def run_directories() -> Path:
    """Return the parent of this user's run directories: in the temporary folder, because ipc paths hold 107 bytes at
    most."""
    try:
        path = Path(tempfile.gettempdir()) / f"pydp2-{os.getuid()}"
    except FileNotFoundError:
        raise ServiceUnreachable(
            "a folder for temporary files is needed, and none of the usual ones can be written; set TMPDIR to one that "
            "can"
        ) from None
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
    """Directory for one service. ``lock``: a descriptor; the lock is free when the last process that has it ends.

    ``of``: the state directory of a service that can be started again; its address is always the same.
    """

    def __init__(self, of: Path | None = None) -> None:
        remove_stale()
        self._named = of is not None
        name = os.urandom(4).hex() if of is None else f"s{blake2b(os.fsencode(of), digest_size=6).hexdigest()}"
        temporary = run_directories() / f".{os.urandom(4).hex()}"  # a sweep must not see it before its lock is held
        temporary.mkdir(mode=0o700)
        (temporary / _LOCK).touch(0o600)
        self.lock = _lock_new(temporary)
        path = run_directories() / name
        deadline = time.monotonic() + RELEASE_SECONDS
        while True:  # a directory of that name may be left from a killed service, an ending one, or another sweep
            with contextlib.suppress(OSError):
                if _remove_if_free(path):
                    self.path = temporary.rename(path)
                    return
            if time.monotonic() > deadline:
                shutil.rmtree(temporary, ignore_errors=True)
                os.close(self.lock)
                raise ServiceUnreachable(f"{path} is in use by a service that is running; stop it first")
            time.sleep(RETRY_SECONDS)

    def address(self, name: str) -> str:
        """Return the ipc address of a socket in this directory."""
        return f"ipc://{self.path / name}"

    def release(self) -> None:
        """Release our copy of the lock; the service has its own."""
        with contextlib.suppress(OSError):
            os.close(self.lock)

    def remove(self) -> None:
        """Remove the directory after the end of the service. A service started in its place keeps its own files."""
        if not self._named:  # only this service uses it, and orphans of the server may hold its lock a moment longer
            shutil.rmtree(self.path, ignore_errors=True)
            return
        deadline = time.monotonic() + _ORPHAN_SECONDS
        while not _remove_if_free(self.path) and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)


def take_state(path: Path) -> list[int]:
    """Lock the state directory ``path``, and make it if it does not exist. Raise ServiceUnreachable if it is taken, and
    OptionError if it cannot be one.

    There are two locks, as descriptors: of the directory itself, and of a file in it. A program that cleans up may
    remove the file; a file system of other hosts may have locks of files only.
    """
    locks: list[int] = []
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(path)
        locks.append(_open_directory(path))
        locks.append(open_lock(path / _LOCK))
        is_free = _wait_for_locks(*locks)
    except OSError as error:
        _close_all(locks)
        raise OptionError(
            f"state_dir={str(path)!r} must be a directory that can be written: {error.strerror}; choose another place, "
            "or leave the option out"
        ) from None
    if not is_free:
        _close_all(locks)
        raise ServiceUnreachable(
            f"state_dir={str(path)!r} belongs to a service that is running; stop it, or give another directory"
        )
    return locks


def _wait_for_locks(directory: int, file: int) -> bool:
    """Lock the state directory and its lock file. Wait a moment, because workers of a killed service release them
    late. Return False if they stay locked. Raises OSError if not even the file can be locked."""
    deadline = time.monotonic() + RELEASE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            except OSError:  # the file system has locks of files only
                return True
            else:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(RETRY_SECONDS)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _require_own(path: Path) -> None:
    """Raise OptionError if other users can write to the state directory ``path``: they could put anything there."""
    known = path.stat()
    if known.st_mode & 0o022 or known.st_uid not in (os.geteuid(), 0):
        raise OptionError(
            f"state_dir={str(path)!r} must be a directory that only its user can write to, this one belongs to user "
            f"{known.st_uid} and has mode {stat.S_IMODE(known.st_mode):04o}; run chmod go-w {path}, or name a new "
            "folder in it, which pydp2 makes"
        )


def keep_token(state_dir: Path) -> str:
    """Return the token of the service with this state directory, which must be locked. A token that exists is kept,
    because trainers that wait for the service have it; otherwise make one. Raise OptionError for a file that is not a
    token."""
    path = state_dir / _TOKEN
    try:
        with contextlib.suppress(FileNotFoundError):
            return split_token(f"tcp://?token={_content(path)}")[1]
        token = new_token()
        temporary = state_dir / f"{_TOKEN}.new"
        temporary.unlink(missing_ok=True)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "w", encoding="ascii") as text:
            text.write(token)
            text.flush()
            os.fsync(file)
        temporary.rename(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds no token"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise OptionError(
                f"state_dir must be a folder that can be written, where the token of the service is kept in {path}: "
                f"{why}; make room there, or choose another folder"
            ) from None
        raise OptionError(
            f"{path} must be a file of this user alone that holds the token of the service: {why}; remove it, then "
            "trainers that wait must be given the new address, or name the token, bind=…?token=…"
        ) from None
    return token


def _content(path: Path) -> str:
    """Return the content of a small file. Raise OSError, and ValueError if other users could have written it."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(file, encoding="ascii") as text:
        known = os.fstat(file)
        if not stat.S_ISREG(known.st_mode) or known.st_uid != os.geteuid() or known.st_mode & 0o077:
            raise OSError(errno.EPERM, "other users can read or write it, or it is not a regular file")
        return text.read(_MAX_TOKEN_BYTES)


def take_path(path: str) -> int:
    """Lock the file beside the ipc socket ``path``, and remove a stale socket. Raise ServiceUnreachable if it is
    taken."""
    lock_path = Path(f"{path}.lock")
    while True:
        try:
            lock = open_lock(lock_path)
        except OSError as error:
            raise ServiceUnreachable(
                f"cannot bind ipc://{path}: {error.strerror} ({lock_path}); "
                "choose a path in a folder that can be written"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_at(lock, lock_path):  # a service that ended removed it between our opening and locking it
                os.close(lock)
                continue
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(Path(path).lstat().st_mode):
                    lock_path.unlink()
                    raise ServiceUnreachable(
                        f"cannot bind ipc://{path}: it is there and no socket; choose another path"
                    )
                if _is_served(path):  # its lock file was removed
                    raise _taken(path)
                Path(path).unlink()
        except BlockingIOError:
            os.close(lock)
            raise _taken(path) from None
        except BaseException:
            os.close(lock)
            raise
        return lock


def _taken(path: str) -> ServiceUnreachable:
    return ServiceUnreachable(f"ipc://{path} is taken by a service that is running; stop it, or bind to another path")


def _is_served(path: str) -> bool:
    """Return True if a process listens at the socket ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # it is busy, or does not speak this protocol
            return True
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether the file that ``descriptor`` opened is still at ``path``."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def remove_stale() -> None:
    """Remove run directories whose service is gone."""
    for path in run_directories().iterdir():
        with contextlib.suppress(OSError):
            # a directory without a name belongs to a start that is under way, unless it is old
            if not path.name.startswith(".") or path.stat().st_mtime < time.time() - _STALE_SECONDS:
                _remove_if_free(path)


def _remove_if_free(path: Path) -> bool:
    """Remove the run directory ``path`` unless its service lives; return False if its lock is not free. Only the owner
    of the lock removes it, so a directory made anew in its place stays."""
    try:
        lock = _open_directory(path)
    except OSError:  # there is none, or it is something else
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(lock, path):
            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _open_directory(path: Path) -> int:
    """Return a descriptor of the directory ``path``. Raises OSError, also for a symbolic link."""
    return move_above_standard_streams(
        os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    )


def _lock_new(path: Path) -> int:
    """Lock the directory ``path``, which was just made, and return the lock. Raises ServiceUnreachable where
    directories have no locks."""
    lock = _open_directory(path)
    deadline = time.monotonic() + RELEASE_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError) and time.monotonic() < deadline:
                time.sleep(RETRY_SECONDS)  # a program that cleans up is looking at it
                continue
            os.close(lock)
            shutil.rmtree(path, ignore_errors=True)
            raise ServiceUnreachable(
                f"{path.parent} must be in a folder whose file system has locks for directories: {error.strerror}; set "
                "TMPDIR to a folder on a local disk"
            ) from None
        return lock


def move_above_standard_streams(descriptor: int) -> int:
    """Return ``descriptor``, moved above 2, because a child would replace it by its own stdin, stdout or stderr."""
    if descriptor > 2:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return moved


def is_open(descriptor: int) -> bool:
    """Return whether ``descriptor`` is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def open_lock(lock: str | Path) -> int:
    """Open a lock file, and make it if there is none. Raise OSError, also for a symbolic link, which may lead to
    another user's file, and for a file of another user, whose program could hold its lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = move_above_standard_streams(os.open(lock, flags, 0o600))
    known = os.fstat(descriptor)
    if not stat.S_ISREG(known.st_mode) or known.st_uid not in (os.geteuid(), 0):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is not a regular file of this user", str(lock))
    return descriptor
