"""Generate random words, the only randomness of an order (docs/order.md, "Random words").

A word is 64 raw bits of the counter-based generator Philox under a key that names what the word is for. Nothing is kept
between calls, so no generator state exists that would have to be saved. numpy's ``Generator`` methods are not used:
their streams may change between versions of numpy, raw Philox words may not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pydp2.data.native import is_active

if TYPE_CHECKING:
    from numpy.random import Philox

if is_active():
    from pydp2.data.native import _order_kernels
else:
    _order_kernels = None  # type: ignore[assignment]

ORDER_VERSION = 1
"""Version of the rules, raised whenever one of them changes: two versions give different orders for the same seed."""

_KEY = struct.Struct("<QQ")
_LOW_MASK = np.uint64(0xFFFFFFFF)
_HALF_BITS = np.uint64(32)


def _key(seed: int, pass_id: int, purpose: str, n: int | None) -> bytes:
    name = f"{ORDER_VERSION}|{seed}|{pass_id}|{purpose}" + ("" if n is None else f"|{n}")
    return blake2b(name.encode(), digest_size=16).digest()


def keys(seed: int, pass_id: int, purpose: str, numbers: Iterable[int]) -> npt.NDArray[np.uint64]:
    """Return the keys of Philox for this purpose and each of ``numbers``: uint64 (n, 2), the low half first."""
    return np.frombuffer(b"".join([_key(seed, pass_id, purpose, n) for n in numbers]), "<u8").reshape(-1, 2)


class RandomBits:
    """Words for one purpose, drawn front to back: ``RandomBits(seed, pass_id, "pick", n).draw(128)``."""

    __slots__ = ("_drawn", "_generator", "_key")

    def __init__(self, seed: int, pass_id: int, purpose: str, n: int | None = None) -> None:
        self._key = _key(seed, pass_id, purpose, n)
        self._drawn = 0
        self._generator: Philox | None = None

    def draw(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the next ``count`` words, uint64 (count,)."""
        if _order_kernels is not None:
            low, high = _KEY.unpack(self._key)
            words = np.empty(count, np.uint64)
            _order_kernels.philox(low, high, self._drawn, words)
            self._drawn += count
            return words
        if self._generator is None:
            from numpy.random import Philox  # the import takes 10 ms, and the compiled form does without

            self._generator = Philox(key=int.from_bytes(self._key, "little"))
        return np.asarray(self._generator.random_raw(count), dtype=np.uint64)


def indices_below(bits: npt.NDArray[np.uint64], bound: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return indices below ``bound``: (word * bound) >> 64, element by element. ``bound`` must be under 2**32."""
    return (((bits >> _HALF_BITS) * bound) + (((bits & _LOW_MASK) * bound) >> _HALF_BITS)) >> _HALF_BITS


def permutation(seed: int, pass_id: int, purpose: str, count: int, n: int | None = None) -> npt.NDArray[np.int64]:
    """Return a permutation of ``range(count)``: the stable argsort of ``count`` words."""
    words = RandomBits(seed, pass_id, purpose, n).draw(count)
    order = np.argsort(words)  # several times as fast as a stable one, and the same if no two words are alike
    ordered = words[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(words, kind="stable")
    return order.astype(np.int64, copy=False)
