"""Count the descriptors that this process may still open, and make Unix sockets that only their owner can connect to.

Every connection takes a descriptor. libzmq ends the process when it has none left for a connection to a Unix socket,
and takes all there are for connections over TCP; so they are counted here before a peer is let in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import stat
import struct
from pathlib import Path

MAX_DESCRIPTORS = 4096
"""Number of descriptors that a server uses at most, however many it may have: each stranger's
connection takes memory, too."""
_BACKLOG = 128
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def descriptor_limit() -> int:
    """Return how many descriptors this process uses at most."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)


def raise_descriptor_limit() -> None:
    """Let this process open as many descriptors as it may, up to :data:`MAX_DESCRIPTORS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= MAX_DESCRIPTORS:
        return
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_descriptors() -> int:
    """Return how many descriptors this process has open: the limit if not one more can be opened, and 0 if
    the system does not tell."""
    try:
        return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208  # numbers, no paths; and one of them lists them
    except OSError as error:
        return descriptor_limit() if error.errno in (errno.EMFILE, errno.ENFILE) else 0


def unix_listener(path: str, kind: int) -> socket.socket:
    """Return a Unix socket that listens at ``path``, which only this user can connect to, at any time. A socket that is
    there is replaced. Raises OSError, also if anything else is there."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):  # else bind() says that something is there
            os.unlink(path)  # noqa: PTH108  # of a service that was killed; the address is ours
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        private = False
        with contextlib.suppress(OSError):  # Linux gives the file the mode of the socket, less the umask
            os.fchmod(listener.fileno(), 0o600)
            private = True
        listener.bind(path)
        if not private:
            Path(path).chmod(0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def file_identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return an identity of the file at ``path``, which no other file has, not even a later one there; None: there is
    none. A symbolic link is a file of its own."""
    try:
        known = os.lstat(path)
    except OSError:
        return None
    return known.st_dev, known.st_ino


def unlink_own(path: str | os.PathLike[str], identity: tuple[int, int] | None) -> None:
    """Remove the file at ``path`` if it is the one with ``identity``. Whoever removed that one may have made room for
    a file of another service."""
    if identity is not None and file_identity(path) == identity:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108  # no path object where a text is enough


def peer_credentials(connection: socket.socket) -> tuple[int, int, int] | None:
    """Return the numbers of process, user and group that opened the other end of a Unix socket; None where the system
    does not tell. Raises OSError."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(data)
    return process, user, group


def foreign_user(connection: socket.socket) -> int | None:
    """Return the number of the user who opened the other end of a Unix socket; None if it was this user, or root."""
    found = peer_credentials(connection)  # None: here the mode of the socket must do
    return None if found is None or found[1] in (os.geteuid(), 0) else found[1]
