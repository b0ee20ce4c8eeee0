"""Find how much memory a service may use: the least of what the machine, its control groups and the limit on address
space allow."""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass

from pydp2.errors import OutOfMemory
from pydp2.system import cgroups
from pydp2.transport import address_space

SERVER_BASE_BYTES = 24 << 20
"""Bytes of memory that a worker takes while it reads: chunks of large rows that it builds and has not sent."""
SERVER_ADDRESS_BYTES = 400 << 20
"""Bytes of address space that a server takes before the first sample: libraries, stacks and heaps of its threads."""
POOL_OVERHEAD = 1.25
"""Memory of a pool, as a multiple of the bytes of its samples."""


@dataclass(frozen=True)
class AvailableMemory:
    """Number of ``bytes``, and ``where`` they are, as text for errors: "of this machine". ``remedy``: how to get more
    of them, as text, "" if there is no way."""

    bytes: int
    where: str
    remedy: str = ""

    def describe(self) -> str:
        """Return the end of a sentence that says how much there is, and where."""
        return f"{self.bytes} bytes {self.where}"


def machine_memory() -> AvailableMemory:
    """Return all memory of this machine."""
    return AvailableMemory(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "of this machine")


def available_memory() -> AvailableMemory:
    """Return the memory that a server may use, in this process or in one that it starts."""
    found = [machine_memory()]
    if (group := cgroups.tightest_memory_limit()) is not None:
        where = f"left in control group {group.path} (its limit is {group.limit}, {group.used} are in use)"
        found.append(AvailableMemory(group.free, where, "raise the limit of the group"))
    if (most := address_space.address_limit()) is not None:
        left = max(0, most - most // address_space.LIMIT_DIVISOR - SERVER_ADDRESS_BYTES)
        where = f"of address space that are left (RLIMIT_AS is {most}, a server itself takes {SERVER_ADDRESS_BYTES})"
        found.append(AvailableMemory(left, where, "raise the limit with `ulimit -v`"))
    return min(found, key=lambda bound: bound.bytes)


def describe_exhaustion(error: BaseException) -> OutOfMemory | None:
    """Return the error to raise if ``error`` comes from a lack of memory, also for a new thread; None otherwise."""
    lacks = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    if not lacks and not (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return None
    if isinstance(error, OutOfMemory):
        return error
    have, most = available_memory(), address_space.address_limit()
    has = f"there are {have.describe()}"
    if most is not None:
        has = f"it has {address_space.used_addresses()} of {most} bytes of address space (RLIMIT_AS)"
    remedy = f", or {have.remedy}" if have.remedy else ""
    return OutOfMemory(
        f"the server has no memory for its next step ({error or 'the amount is unknown'}); {has}; "
        f"lower pool_bytes, memory_limit or batch_size{remedy}"
    )


def release_free_heap() -> None:
    """Return free memory of the heap to the system, if the C library can do that. It takes some milliseconds, and 0.2 s
    for a heap of 1 GB with 600,000 gaps.

    Messages of all sizes come and go, and leave gaps: without this, the heap would grow for hours, more and more
    slowly, although the memory in use stays the same.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))
