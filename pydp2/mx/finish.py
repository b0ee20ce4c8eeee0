"""Finish the numbers of a picture: mean, contrast, illumination, mirror, scale (docs/mxnet.md, "Numbers")."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import OptionError
from pydp2.formats.pillow import Picture
from pydp2.mx.chance import Chance, ChanceKind
from pydp2.mx.options import typed

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The options of ImageRecordIter for ((x - mean) * contrast + illumination) * scale and for mirroring, by their
    names.

    Raises OptionError (a ValueError) or OptionTypeError (a TypeError) for invalid values.
    """

    mirror: bool = False
    rand_mirror: bool = False
    mean_r: float = 0.0
    mean_g: float = 0.0
    mean_b: float = 0.0
    mean_a: float = 0.0
    scale: float = 1.0
    max_random_contrast: float = 0.0
    max_random_illumination: float = 0.0

    def __post_init__(self) -> None:
        typed(self, fields(self))
        for name in ("max_random_contrast", "max_random_illumination"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must be at least 0, got {getattr(self, name):g}")

    @property
    def means(self) -> tuple[float, float, float, float]:
        """Numbers that are subtracted from red (or grey), green, blue and alpha."""
        return self.mean_r, self.mean_g, self.mean_b, self.mean_a

    def __call__(self, picture: Picture, chance: Chance, mean: Floats | None, out: Floats) -> None:
        """Write ``picture`` (height, width, channels), uint8, into ``out`` (channels, height, width).

        ``mean``: an array of the shape of ``out``, subtracted instead of the means of the channels; None: subtract
        those.
        """
        flip = self.mirror or (self.rand_mirror and chance.integer(ChanceKind.MIRROR, 0, 1) == 1)
        target = out[:, :, ::-1] if flip else out  # the mean belongs to the picture before it is mirrored
        target[...] = picture.transpose(2, 0, 1)
        if mean is not None:
            target -= mean
        elif any(self.means):
            target -= np.array(self.means[: len(out)], np.float32)[:, None, None]
        if self.max_random_contrast:
            target *= np.float32(
                chance.uniform(ChanceKind.CONTRAST, 1 - self.max_random_contrast, 1 + self.max_random_contrast)
            )
        if self.max_random_illumination:
            most = self.max_random_illumination
            target += np.float32(chance.uniform(ChanceKind.ILLUMINATION, -most, most))
        if self.scale != 1:
            target *= np.float32(self.scale)
