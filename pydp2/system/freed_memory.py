"""Have malloc keep freed memory for what is allocated next, in processes that allocate large blocks again and again."""

from __future__ import annotations

import ctypes
import os

KEPT_BYTES = 32 << 20
"""Number of bytes at the end of the heap that are kept; larger blocks go back to the system at once."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of glibc's parameters


def keep_freed_memory() -> None:
    """Have malloc keep freed memory, up to :data:`KEPT_BYTES` at the end of the heap.

    Else each array above 128 KiB may be laid in fresh pages, whose first use costs more than a copy of what they hold.
    glibc raises its limits by itself up to these, but only as far as one block needs, and a chunk has several.
    Other libraries, and a user who sets the limits in the environment, keep theirs.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
