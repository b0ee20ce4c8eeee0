"""Memory that one process fills for long, or some do, and that others of the machine may look at.

An unnamed file as a slab is one (:mod:`.slabs`), of a size that is used only as far as it is written to. Nobody can cut
it short, and who was only given it to look at cannot write there. It is gone with the last process that has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys

from pydp2.transport.address_space import mapped

_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # not among what mmap names; without it so much is refused
_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE, Linux 5.1: what was mapped before can be written to, nothing else


class Lasting:
    """``size`` bytes, all 0, writable in this process: ``memory``. ``descriptor``: what others may be given, None where
    nothing can be; ``writable``: what those are given who may write too, where ``common`` asks for that. Raises OSError
    where there is no room for that many addresses."""

    def __init__(self, size: int, *, common: bool = False) -> None:
        self.descriptor: int | None = None
        self.writable: int | None = None
        self.memory = self._shared(size, common) or _private(size)

    def _shared(self, size: int, common: bool) -> mmap.mmap | None:
        try:
            descriptor = os.memfd_create("pydp2-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError):
            return None
        try:
            os.ftruncate(descriptor, size)
            memory = mapped(descriptor, size)
            self.descriptor = _sealed(descriptor, later=common)
            if common:
                self.writable = os.dup(descriptor)
        except (AttributeError, OSError):
            self.close()  # one of them alone would lead to other memory than ours
            return None
        finally:
            os.close(descriptor)
        return memory

    def close(self) -> None:
        """Give nothing to anybody any more. The memory stays as long as something refers to it."""
        for descriptor in (self.descriptor, self.writable):
            if descriptor is not None:
                os.close(descriptor)
        self.descriptor = self.writable = None


def _sealed(descriptor: int, *, later: bool) -> int:
    """A descriptor of the same that can only be read. ``later``: others are still to write there. Raises OSError,
    AttributeError where that cannot be."""
    short = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, short | (0 if later else _FUTURE_WRITE))
    except OSError:  # an older kernel: there whoever has the other one opens it no other way than as it is given
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, short)
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def _private(size: int) -> mmap.mmap:
    return mapped(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)


def look(descriptor: int, size: int, *, write: bool = False) -> mmap.mmap:
    """The ``size`` bytes of what another process has as :class:`Lasting`, to be read (``write``: and written). Closes
    ``descriptor``; raises OSError for what is not such a thing: whoever reads a file that is cut short meanwhile is
    ended by a signal."""
    try:
        with contextlib.suppress(AttributeError):
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            if not seals & fcntl.F_SEAL_SHRINK or os.fstat(descriptor).st_size != size:
                raise OSError("memory that is not sealed, or of another size")
        return mapped(descriptor, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))
    finally:
        os.close(descriptor)
