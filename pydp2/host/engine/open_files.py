"""Find the open files that a process would share with its forks.

A fork has the same open files, with a common position: if one process reads, the position moves for all. A connection
has one stream of bytes for all. A file that is only written, a memory map, and a pipe with both ends in the process are
no problem. Python keeps a descriptor of each file that it maps, so for each map of a file one of its descriptors does
not count. Without ``/proc``, no open file is found.
"""

from __future__ import annotations

import contextlib
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydp2.system.stdlib import fcntl, os, socket

_FOLDER = Path("/proc/self/fd")
_SHARED_MEMORY = ("/dev/shm/", "/memfd:")  # paths of files that are made to be mapped
_STREAMS = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)

Held = dict[int, tuple[int, int]]
"""Descriptors, each with device and inode of its file."""


def open_descriptors() -> Held:
    """Return the descriptors that this process has now."""
    return {number: (status.st_dev, status.st_ino) for number, status in _descriptors()}


def shared_files(before: Held) -> str:
    """Return text with the files opened since ``before`` that a fork would share, as the reason why workers cannot be
    forked from this process; '' if there are none."""
    opened = [(number, status) for number, status in _descriptors() if before.get(number) != _identity(status)]
    maps = _mapped_files()
    ends = Counter(_identity(status) for _, status in opened)
    found = []
    for number, status in opened:
        with contextlib.suppress(OSError):  # a thread has just closed it
            if not _is_readable(number):
                continue
            name = str((_FOLDER / str(number)).readlink())
            kind = stat.S_IFMT(status.st_mode)
            if kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFBLK):
                if maps[name] and name.startswith(_SHARED_MEMORY):
                    continue
                maps[name] -= 1
                if maps[name] < 0:
                    found.append((name, "one position in it"))
            elif kind == stat.S_IFIFO and ends[_identity(status)] == 1:
                found.append(("a pipe", "it"))
            elif kind == stat.S_IFSOCK and (peer := _peer(number)) is not None:
                found.append((f"a connection{peer}", "it"))
    if not found:
        return ""
    name, what = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"they leave {name} open{more}, and forked workers would share {what}"


@contextlib.contextmanager
def kept_positions() -> Iterator[None]:
    """Restore the position in each open file at the end of the context, because a child may have moved it."""
    positions = {}
    for number, status in _descriptors():
        with contextlib.suppress(OSError):
            if stat.S_ISREG(status.st_mode) and _is_readable(number):
                positions[number] = os.lseek(number, 0, os.SEEK_CUR)
    try:
        yield
    finally:
        for number, position in positions.items():
            with contextlib.suppress(OSError):
                os.lseek(number, position, os.SEEK_SET)


def _descriptors() -> list[tuple[int, os.stat_result]]:
    """Return each descriptor with the status of its file."""
    found = []
    with contextlib.suppress(OSError):
        for number in sorted(int(entry.name) for entry in _FOLDER.iterdir()):
            with contextlib.suppress(OSError):  # the descriptor with which they were listed is closed
                found.append((number, os.fstat(number)))
    return found


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_readable(number: int) -> bool:
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    return flags & os.O_ACCMODE != os.O_WRONLY and not flags & getattr(os, "O_PATH", 0)


def _mapped_files() -> Counter[str]:
    """Return the number of maps of each file, by the target of the links in /proc for its descriptors."""
    found: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_bytes().splitlines():
            fields = line.split(None, 5)
            if len(fields) == 6:
                found[os.fsdecode(fields[5].replace(rb"\012", b"\n"))] += 1
    return found


def _peer(number: int) -> str | None:
    """Return the peer of a socket as text, " to HOST:PORT", or '' if it has no name; None if the socket keeps messages
    apart, or is not connected."""
    waits = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)  # a timeout would make the socket non-blocking for all processes that share it
    try:
        opened = socket.socket(fileno=number)
    finally:
        socket.setdefaulttimeout(waits)
    try:
        if opened.type not in _STREAMS:
            return None
        peer = opened.getpeername()
    except OSError:
        return None
    finally:
        opened.detach()
    if isinstance(peer, tuple):
        return f" to {peer[0]}:{peer[1]}"
    return f" to {peer}" if isinstance(peer, str) and peer else ""
