"""Decode pictures with Pillow, the extra ``images``, and fit them into a size.

Pictures are uint8 arrays of shape (height, width, channels); channels are 1 (grey), 3 (RGB) or 4 (RGBA).
"""

from __future__ import annotations

import io
from collections.abc import Callable
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


def available() -> bool:
    """Return True if Pillow is installed."""
    try:
        module()
    except OptionError:
        return False
    return True


def need(what: str) -> None:
    """Raise OptionError where Pillow is not installed, because ``what`` needs it."""
    try:
        module()
    except OptionError as error:
        raise OptionError(f"{what}: {error}") from error


def module() -> ModuleType:
    """Return the module ``PIL.Image``. Raises OptionError, with the remedy: Pillow is not installed."""
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
    return _pixels(data, channels, lambda picture: picture)


Fit = tuple[float, float] | None
"""Position in a picture of the part that is kept, (x, y) from 0 to 1; None keeps the whole picture."""


def decode_to(data: bytes, channels: int, size: tuple[int, int], fit: Fit) -> Picture:
    """Return the picture in ``data``, turned as its EXIF says and scaled to ``size``, (height, width).

    With ``fit`` the proportions stay: the picture is scaled until it covers ``size``, and the rest is cut off. Raises
    ValueError as :func:`decode` does.
    """
    from PIL import ImageOps

    height, width = size
    bilinear = module().Resampling.BILINEAR

    def scaled(picture: Any) -> Any:
        if fit is None:
            return picture.resize((width, height), bilinear)
        return ImageOps.fit(picture, (width, height), bilinear, centering=fit)

    return _pixels(data, channels, scaled, _turned)


def _turned(picture: Any) -> Any:
    from PIL import ImageOps

    ImageOps.exif_transpose(picture, in_place=True)  # copies only a picture that it turns
    return picture


def _pixels(
    data: bytes, channels: int, change: Callable[[Any], Any], turn: Callable[[Any], Any] = lambda opened: opened
) -> Picture:
    """Return the pixels of ``change(picture)`` for the picture in ``data``, which ``turn`` turns before."""
    image, mode = module(), _MODES[channels]
    try:
        with image.open(io.BytesIO(data)) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise image.DecompressionBombError
            eight = turn(_eight_bits(opened))
            pixels = np.asarray(change(eight if eight.mode == mode else eight.convert(mode)))
    except (image.DecompressionBombError, image.DecompressionBombWarning) as exc:
        raise ValueError(
            f"cannot be decoded: more than {MOST_PIXELS} pixels; a function of your own may decode larger pictures"
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
        return module().fromarray((np.asarray(opened) >> 8).astype(np.uint8))
    if opened.mode in ("I", "F"):
        kind = "whole numbers" if opened.mode == "I" else "floats"
        raise ValueError(
            f"{kind} of more than 8 bits a channel have no common scale; a function of your own may give them one"
        )
    return opened
