"""Pillow for what :mod:`.augment` does to pictures: warping, resizing. :mod:`pydp2.formats.pillow` decodes them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from pydp2.formats.pillow import Picture, module


class Method(IntEnum):
    """Ways to sample a picture, by the numbers of ``inter_method``."""

    NEAREST = 0
    LINEAR = 1
    CUBIC = 2
    AREA = 3
    LANCZOS = 4


# A warp samples single points of the picture, so it has neither area nor Lanczos; it takes the next best.
_WARPS = {Method.AREA: "BILINEAR", Method.LANCZOS: "BICUBIC"}
_FILTERS = {
    Method.NEAREST: "NEAREST",
    Method.LINEAR: "BILINEAR",
    Method.CUBIC: "BICUBIC",
    Method.AREA: "BOX",
    Method.LANCZOS: "LANCZOS",
}


def warp(picture: Picture, size: tuple[int, int], inverse: tuple[float, ...], method: Method, fill: int) -> Picture:
    """Return ``picture`` as an affine map shows it.

    Args:
        picture: (height, width, channels).
        size: (height, width) of the result.
        inverse: a, b, c, d, e, f: the pixel (x, y) of the result is at (ax + by + c, dx + ey + f) in the picture.
        method: the way to sample the picture.
        fill: the value of pixels outside of the picture.
    """
    image = module()
    channels = picture.shape[2]
    resample = image.Resampling[_WARPS.get(method, _FILTERS[method])]
    colour: Any = fill if channels == 1 else (fill,) * channels
    source = _from(picture)
    made = source.transform((size[1], size[0]), image.Transform.AFFINE, inverse, resample=resample, fillcolor=colour)
    return np.asarray(made).reshape(*size, channels)


def resize(picture: Picture, size: tuple[int, int], method: Method) -> Picture:
    """Return ``picture`` with ``size``, (height, width)."""
    made = _from(picture).resize((size[1], size[0]), module().Resampling[_FILTERS[method]])
    return np.asarray(made).reshape(*size, picture.shape[2])


def _from(picture: Picture) -> Any:
    height, width, channels = picture.shape
    if channels == 4:  # as CMYK: four channels alike, where RGBA would multiply colours by alpha and back
        return module().frombytes("CMYK", (width, height), picture.tobytes())
    return module().fromarray(picture[:, :, 0] if channels == 1 else picture)
