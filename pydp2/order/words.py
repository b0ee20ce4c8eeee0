"""Random words: the only randomness of an order (docs/order.md, "Random words").

A word is 64 raw bits of the counter-based generator Philox under a key that names what the word is for. Nothing is
kept between calls, so no generator state exists that would have to be saved. numpy's ``Generator`` methods are not
used: their streams may change between versions of numpy, raw Philox words may not.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from numpy.random import Philox

ORDER_VERSION = 1
"""Raised whenever a rule of the order changes: two versions give different orders for the same seed."""

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Words:
    """The words for one purpose, drawn front to back: ``Words(seed, pass_id, "pick", n).take(128)``."""

    __slots__ = ("_bits",)

    def __init__(self, seed: int, pass_id: int, purpose: str, n: int | None = None) -> None:
        name = f"{ORDER_VERSION}|{seed}|{pass_id}|{purpose}" + ("" if n is None else f"|{n}")
        key = int.from_bytes(blake2b(name.encode(), digest_size=16).digest(), "little")
        self._bits = Philox(key=key)

    def take(self, count: int) -> npt.NDArray[np.uint64]:
        """The next ``count`` words, uint64 (count,)."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)


def below(words: npt.NDArray[np.uint64], bound: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Indices below ``bound``: (word * bound) >> 64, element by element. ``bound`` must be under 2**32."""
    return (((words >> _HALF) * bound) + (((words & _LOW) * bound) >> _HALF)) >> _HALF


def permutation(seed: int, pass_id: int, purpose: str, count: int, n: int | None = None) -> npt.NDArray[np.int64]:
    """A permutation of ``range(count)``: the stable argsort of ``count`` words."""
    return np.argsort(Words(seed, pass_id, purpose, n).take(count), kind="stable").astype(np.int64, copy=False)
