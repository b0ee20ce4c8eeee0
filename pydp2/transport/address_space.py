"""Map memory where the address space of a process may be limited (RLIMIT_AS, ``ulimit -v``).

Memory that is shared or kept for speed alone is mapped through here. Where there is a limit, all of it together takes
at most one part in :data:`LIMIT_DIVISOR`: the rest is for what a process cannot do without.
"""

from __future__ import annotations

import errno
import resource
import weakref
from pathlib import Path

from pydp2.system.stdlib import mmap, os

LIMIT_DIVISOR = 8
_mapped_bytes = 0  # bytes that were mapped here and are still there


def address_limit() -> int | None:
    """Return how many bytes of addresses this process may have, None where there is no limit."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def used_addresses() -> int:
    """Return how many bytes of addresses this process has, 0 where the kernel does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def capped_size(size: int, parts: int = 1) -> int:
    """Return ``size``; with a limit, at most what one of ``parts`` may have of the share."""
    most = address_limit()
    return size if most is None else min(size, most // LIMIT_DIVISOR // parts)


def map_memory(descriptor: int, size: int, **how: int) -> mmap.mmap:
    """Return ``size`` bytes of ``descriptor`` (-1: anonymous memory) as ``mmap.mmap(descriptor, size, **how)``.

    Raises:
        OSError: there are no addresses left, or the share is used.
    """
    global _mapped_bytes
    if size > capped_size(size) - (0 if address_limit() is None else _mapped_bytes):
        raise OSError(errno.ENOMEM, f"{size} bytes of address space are not available (RLIMIT_AS is {address_limit()})")
    made = mmap.mmap(descriptor, size, **how)
    _mapped_bytes += size
    weakref.finalize(made, _on_unmapped, size).atexit = False
    return made


def _on_unmapped(size: int) -> None:
    global _mapped_bytes
    _mapped_bytes -= size
