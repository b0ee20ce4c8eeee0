"""Share memory that one process, or several, fill for long, and that others of the machine may read.

The memory is an unnamed file like a slab (:mod:`.slabs`), of a size that is used only as far as it is written to.
No process can cut it short, and a process that was only given it to read cannot write there. It is gone with the
last process that has it.
"""

from __future__ import annotations

import contextlib
import mmap
import stat
import sys

from pydp2.system.stdlib import fcntl, os
from pydp2.transport.address_space import map_memory

_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # the mmap module does not name it; without it so much is refused


class SharedRegion:
    """Region of ``size`` bytes, all 0, writable in this process: ``memory``. ``read_only_descriptor``: the one to give
    to others; ``writable_descriptor``: the one for those that may write too. Both are None where memory cannot be
    shared. Raises OSError if there is no room for that many addresses."""

    def __init__(self, size: int) -> None:
        self.read_only_descriptor: int | None = None
        self.writable_descriptor: int | None = None
        self.memory = self._map_shared(size) or _map_private(size)

    def _map_shared(self, size: int) -> mmap.mmap | None:
        try:
            descriptor = os.memfd_create("pydp2-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError):
            return None
        try:
            os.ftruncate(descriptor, size)
            memory = map_memory(descriptor, size)
            self.read_only_descriptor = _sealed_read_only(descriptor)
            self.writable_descriptor = os.dup(descriptor)
        except (AttributeError, OSError):
            self.close()  # one of them alone would lead to other memory than ours
            return None
        finally:
            os.close(descriptor)
        return memory

    def close_writable(self) -> None:
        """Close the descriptor for those that may write: nobody is going to use it."""
        if self.writable_descriptor is not None:
            os.close(self.writable_descriptor)
            self.writable_descriptor = None

    def close(self) -> None:
        """Close both descriptors. The memory stays as long as something refers to it."""
        for descriptor in (self.read_only_descriptor, self.writable_descriptor):
            if descriptor is not None:
                os.close(descriptor)
        self.read_only_descriptor = self.writable_descriptor = None


def _sealed_read_only(descriptor: int) -> int:
    """Return a read-only descriptor of the same file, whose size cannot change any more. Raises OSError,
    AttributeError if that is not possible."""
    os.fchmod(descriptor, stat.S_IRUSR)  # so that another user cannot open it anew, to write
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    # There is no seal against writing: holes could not be given back (fallocate), nor could the file be written to.
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def _map_private(size: int) -> mmap.mmap:
    return map_memory(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)


def map_region(descriptor: int, size: int, *, writable: bool = False) -> mmap.mmap:
    """Return the ``size`` bytes of another process's :class:`SharedRegion`, to be read (``writable``: and written).
    Raises OSError if ``descriptor`` is of any other file: a process that reads a file which is cut short
    meanwhile is ended by a signal."""
    with contextlib.suppress(AttributeError):
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(descriptor).st_size != size:
            raise OSError("memory that is not sealed, or of another size")
    return map_memory(descriptor, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
