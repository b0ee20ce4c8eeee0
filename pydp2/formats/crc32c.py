"""CRC-32C, as TFRecord has it: masked. google-crc32c computes it where it is installed.

Without it numpy does, some 20 times slower. The checksum of a block is the exclusive or of what each of its bytes adds
by itself, which depends on the byte and on how many bytes follow it: a table has these numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_TOGETHER = 1024  # bytes that numpy takes at a time; the table has 1 KiB for each
_FEW = 64  # bytes up to which a loop is faster
_MASK = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Return the checksum that TFRecord has of ``data``."""
    crc = crc32c()(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


@cache
def crc32c() -> Callable[[bytes], int]:
    """Return the function that computes CRC-32C: that of google-crc32c if it is installed as a C extension."""
    try:
        with warnings.catch_warnings():  # where it has no extension it warns, and is slower than numpy
            warnings.simplefilter("ignore")
            import google_crc32c
    except ImportError:
        return own_crc32c
    value: Callable[[bytes], int] = google_crc32c.value
    return value if google_crc32c.implementation == "c" else own_crc32c


def own_crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data``, computed with numpy."""
    table = _bytes_table()
    crc, at = 0xFFFFFFFF, 0
    if len(data) > _FEW:
        values, places = np.frombuffer(data, np.uint8), np.arange(_TOGETHER)
        for at in range(0, len(data), _TOGETHER):
            block = values[at : at + _TOGETHER].copy()
            if len(block) <= _FEW:
                break
            block[:4] ^= np.frombuffer(crc.to_bytes(4, "little"), np.uint8)
            crc = int(np.bitwise_xor.reduce(_block_table()[places[_TOGETHER - len(block) :], block]))
        else:
            at = len(data)
    for byte in data[at:]:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@cache
def _bytes_table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


@cache
def _block_table() -> NDArray[Any]:
    """Return uint32 ``(_TOGETHER, 256)``: what a byte adds that stands at this place of a full block."""
    first = np.array(_bytes_table(), np.uint32)
    rows = [first]
    for _ in range(_TOGETHER - 1):
        rows.append(rows[-1] >> np.uint32(8) ^ first[rows[-1] & 0xFF])
    return np.array(rows[::-1])
