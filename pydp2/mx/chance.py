"""Draw what chance decides about one picture: a random word for each kind of choice, the same whenever it is asked for.

The words belong to (seed, reading, file, place of the record in it) and nothing else: neither the number of threads nor
that of parts, nor the order of the records changes what becomes of a picture. Each kind of choice has a word of its
own, so that one augmentation more leaves the others as they were. See docs/mxnet.md, "Chance".
"""

from __future__ import annotations

from enum import IntEnum, auto

from pydp2.order.random_bits import RandomBits


class ChanceKind(IntEnum):
    """Kinds of choices. The order is that of the words: new ones go to the end."""

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
    """The words of one picture: of the record at ``offset`` of file number ``file``, in reading ``reading``."""

    __slots__ = ("_bits", "_key")

    def __init__(self, seed: int, reading: int, file: int, offset: int) -> None:
        self._key = (seed, reading, f"mx picture {file}", offset)
        self._bits: list[int] | None = None  # most pictures of a test set need none

    def _bits_for(self, kind: ChanceKind) -> int:
        if self._bits is None:
            self._bits = RandomBits(*self._key).draw(len(ChanceKind)).tolist()
        return self._bits[kind]

    def uniform(self, kind: ChanceKind, low: float, high: float) -> float:
        """A number from ``low`` up to ``high``, all alike."""
        return low if low == high else low + (high - low) * (self._bits_for(kind) >> 11) * 2.0**-53

    def integer(self, kind: ChanceKind, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both of them included, all alike."""
        return low + (self._bits_for(kind) * (high - low + 1) >> 64)
