"""Make the random choices about one picture. Each kind of choice has one random word; asking again gives the same word.

Only the seed, the reading, the file and the place of the record in it decide the words. The number of threads, the
number of parts and the order of the records do not change a picture. Because each kind of choice has its own word, one
more augmentation does not change the others. See docs/mxnet.md, "Chance".
"""

from __future__ import annotations

from enum import IntEnum, auto

from pydp2.order.random_bits import RandomBits


class ChanceKind(IntEnum):
    """Kinds of choices, in the order of their words. Add new kinds at the end."""

    SHEAR = 0
    ANGLE = auto()
    SCALE = auto()
    RATIO = auto()
    WARP_METHOD = auto()
    CROP_SIZE = auto()
    CROP_Y = auto()
    CROP_X = auto()
    CROP_METHOD = auto()
    HUE = auto()
    SATURATION = auto()
    LIGHTNESS = auto()
    CONTRAST = auto()
    ILLUMINATION = auto()
    MIRROR = auto()


class Chance:
    """The random words of one picture: the record at ``offset`` of file number ``file``, in reading number
    ``reading``."""

    __slots__ = ("_bits", "_key")

    def __init__(self, seed: int, reading: int, file: int, offset: int) -> None:
        self._key = (seed, reading, f"mx picture {file}", offset)
        self._bits: list[int] | None = None  # drawn at the first use: most pictures of a test set need no word

    def _bits_for(self, kind: ChanceKind) -> int:
        if self._bits is None:
            self._bits = RandomBits(*self._key).draw(len(ChanceKind)).tolist()
        return self._bits[kind]

    def uniform(self, kind: ChanceKind, low: float, high: float) -> float:
        """Return a number from ``low`` up to ``high``, uniformly distributed."""
        return low if low == high else low + (high - low) * (self._bits_for(kind) >> 11) * 2.0**-53

    def integer(self, kind: ChanceKind, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``, both included, uniformly distributed."""
        return low + (self._bits_for(kind) * (high - low + 1) >> 64)
