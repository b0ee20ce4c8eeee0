"""Compute CRC-32, by which a file is known to have repeated itself and a cache to be whole.

With the extra ``fast`` a library does this that uses the processor's instructions for it, at about the speed of memory;
else :mod:`zlib`, which takes as long as copying the same bytes does or longer. The numbers are the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["EndChecksum", "checksums", "crc32", "dropped_crc", "fold_crcs"]

EndChecksum = tuple[int, int]
"""Sample index behind the last sample of a file, and the checksum of all before it; (0, 0): not known."""


def checksums() -> str:
    """Return the library that :func:`crc32` is from: ``"isal"`` or ``"zlib"``."""
    return "zlib" if crc32 is zlib.crc32 else "isal"


def dropped_crc(sample_indices: Iterable[int], running: int) -> int:
    """Return the CRC-32 of the sample indices of dropped samples, continued from ``running``."""
    return crc32(b"".join(y.to_bytes(8, "little") for y in sample_indices), running)


def fold_crcs(crcs: Sequence[int]) -> int:
    """Return the running checksums of a file, one for each array and one of its dropped samples, as one number of 32
    bits, however many arrays there are."""
    digest = blake2b(np.array(crcs, "<u4").tobytes(), digest_size=4).digest()
    return int.from_bytes(digest, "little")
