"""Random words: the only randomness of an order (docs/order.md, "Random words").

A word is 64 raw bits of the counter-based generator Philox under a key that names what the word is for. Nothing is
kept between calls, so no generator state exists that would have to be saved. numpy's ``Generator`` methods are not
used: their streams may change between versions of numpy, raw Philox words may not.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pydp2.inputs.drawing import compiled

if TYPE_CHECKING:
    from numpy.random import Philox

if compiled():
    from pydp2.order import _words
else:
    _words = None  # type: ignore[assignment]

ORDER_VERSION = 1
"""Raised whenever a rule of the order changes: two versions give different orders for the same seed."""

_KEY = struct.Struct("<QQ")
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Words:
    """The words for one purpose, drawn front to back: ``Words(seed, pass_id, "pick", n).take(128)``."""

    __slots__ = ("_bits", "_key", "_taken")

    def __init__(self, seed: int, pass_id: int, purpose: str, n: int | None = None) -> None:
        name = f"{ORDER_VERSION}|{seed}|{pass_id}|{purpose}" + ("" if n is None else f"|{n}")
        self._key = blake2b(name.encode(), digest_size=16).digest()
        self._taken = 0
        self._bits: Philox | None = None

    def take(self, count: int) -> npt.NDArray[np.uint64]:
        """The next ``count`` words, uint64 (count,)."""
        if _words is not None:
            low, high = _KEY.unpack(self._key)
            words = np.empty(count, np.uint64)
            _words.philox(low, high, self._taken, words)
            self._taken += count
            return words
        if self._bits is None:
            from numpy.random import Philox  # takes 10 ms, and the compiled form needs none

            self._bits = Philox(key=int.from_bytes(self._key, "little"))
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)


def below(words: npt.NDArray[np.uint64], bound: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Indices below ``bound``: (word * bound) >> 64, element by element. ``bound`` must be under 2**32."""
    return (((words >> _HALF) * bound) + (((words & _LOW) * bound) >> _HALF)) >> _HALF


def permutation(seed: int, pass_id: int, purpose: str, count: int, n: int | None = None) -> npt.NDArray[np.int64]:
    """A permutation of ``range(count)``: the stable argsort of ``count`` words."""
    words = Words(seed, pass_id, purpose, n).take(count)
    order = np.argsort(words)  # several times as fast, and the same where no two words are alike
    ordered = words[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(words, kind="stable")
    return order.astype(np.int64, copy=False)
