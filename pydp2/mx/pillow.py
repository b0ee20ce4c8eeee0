"""Pillow, and nothing else of this part knows it: decoding, warping, resizing. The extra ``images``.

Pictures are uint8 arrays of shape (height, width, channels); channels are 1 (grey), 3 (RGB) or 4 (RGBA).
"""

from __future__ import annotations

import io
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pydp2.errors import OptionError
from pydp2.formats.first_bytes import COUNT, looks_like

if TYPE_CHECKING:
    from types import ModuleType

Picture = NDArray[np.uint8]
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
MOST_PIXELS = (1 << 30) // 12
"""Of a picture that is decoded: a quarter of a GiB as RGB. Above that Pillow warns of a trap, too."""


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


def available() -> bool:
    """Return True if Pillow is installed."""
    try:
        _image()
    except OptionError:
        return False
    return True


def need(what: str) -> None:
    """Raise OptionError where Pillow is not installed, because ``what`` needs it."""
    try:
        _image()
    except OptionError as error:
        raise OptionError(f"{what}: {error}") from error


def _image() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as exc:
        raise OptionError("this needs Pillow, which is not installed: pip install 'pillow>=10'") from exc
    return Image


def decode(data: bytes, channels: int) -> Picture:
    """Return the picture in ``data``, in any format that Pillow reads, as uint8 (height, width, channels).

    Raises:
        ValueError: no picture, a damaged one, one of more than 8 bits a channel that are no 16, or one so large that it
            must be a trap (MOST_PIXELS).
    """
    image = _image()
    try:
        with image.open(io.BytesIO(data)) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise image.DecompressionBombError
            eight = _eight_bits(opened)
            pixels = np.asarray(eight if eight.mode == _MODES[channels] else eight.convert(_MODES[channels]))
    except (image.DecompressionBombError, image.DecompressionBombWarning) as exc:
        raise ValueError(
            f"cannot be decoded: more than {MOST_PIXELS} pixels; a function for decode=... may read larger pictures"
        ) from exc
    except image.UnidentifiedImageError:  # whose text is the address of our BytesIO
        raise ValueError(f"cannot be decoded: Pillow knows no format that begins with {_first(data)}") from None
    except Exception as exc:  # damaged pictures make its many readers raise nearly anything
        raise ValueError(f"cannot be decoded: {exc}") from exc
    return pixels.reshape(*pixels.shape[:2], channels)


def _first(data: bytes) -> str:
    """Describe ``data`` by its format, or by its first bytes."""
    known = looks_like(data[:COUNT])
    return f"{data[:8]!r}; it looks like {known}" if known and "picture" not in known else repr(data[:8])


def _eight_bits(opened: Any) -> Any:
    """Return ``opened`` with 8 bits a channel. Pillow itself would cut off all values above 255."""
    # Older releases of Pillow give 16 bits of a PNG out as I, as all do with those of a PGM.
    if opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format in ("PNG", "PPM")):
        return _image().fromarray((np.asarray(opened) >> 8).astype(np.uint8))
    if opened.mode in ("I", "F"):
        kind = "whole numbers" if opened.mode == "I" else "floats"
        raise ValueError(
            f"{kind} of more than 8 bits a channel have no common scale; a function for decode=... may give them one"
        )
    return opened


def warp(picture: Picture, size: tuple[int, int], inverse: tuple[float, ...], method: Method, fill: int) -> Picture:
    """Return ``picture`` as an affine map shows it.

    Args:
        picture: (height, width, channels).
        size: (height, width) of the result.
        inverse: a, b, c, d, e, f: the pixel (x, y) of the result is at (ax + by + c, dx + ey + f) in the picture.
        method: the way to sample the picture.
        fill: the value of pixels outside of the picture.
    """
    image = _image()
    channels = picture.shape[2]
    resample = image.Resampling[_WARPS.get(method, _FILTERS[method])]
    colour: Any = fill if channels == 1 else (fill,) * channels
    source = _from(picture)
    made = source.transform((size[1], size[0]), image.Transform.AFFINE, inverse, resample=resample, fillcolor=colour)
    return np.asarray(made).reshape(*size, channels)


def resize(picture: Picture, size: tuple[int, int], method: Method) -> Picture:
    """Return ``picture`` with ``size``, (height, width)."""
    made = _from(picture).resize((size[1], size[0]), _image().Resampling[_FILTERS[method]])
    return np.asarray(made).reshape(*size, picture.shape[2])


def _from(picture: Picture) -> Any:
    height, width, channels = picture.shape
    if channels == 4:  # as CMYK: four channels alike, where RGBA would multiply colours by alpha and back
        return _image().frombytes("CMYK", (width, height), picture.tobytes())
    return _image().fromarray(picture[:, :, 0] if channels == 1 else picture)
