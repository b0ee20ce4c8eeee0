"""Compute CRC-32, by which a file is known to have repeated itself and a cache to be whole.

With the extra ``fast`` a library does this that uses the processor's instructions for it, at about the speed of memory;
else :mod:`zlib`, which takes as long as copying the same bytes does or longer. The numbers are the same.
"""

from __future__ import annotations

import zlib

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["checksums", "crc32"]


def checksums() -> str:
    """Return the library that :func:`crc32` is from: ``"isal"`` or ``"zlib"``."""
    return "zlib" if crc32 is zlib.crc32 else "isal"
