"""Convert whole pictures to hue, lightness and saturation, and back.

Hue counts from 0 to 180 (half degrees), lightness and saturation from 0 to 255, as they do in pictures of bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HUE, BYTE = 180.0, 255.0
"""The upper ends of the scales: of hue, and of lightness and saturation."""

Floats = NDArray[np.float32]


def to_hls(picture: NDArray[np.uint8]) -> tuple[Floats, Floats, Floats]:
    """Return hue, lightness and saturation of an RGB picture (height, width, 3), each float32 (height, width)."""
    rgb = picture.astype(np.float32) / np.float32(BYTE)
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    high, low = rgb.max(axis=2), rgb.min(axis=2)
    spread = high - low
    grey = spread == 0
    divisor = np.where(grey, 1, spread)
    lightness = (high + low) / 2
    reach = 1 - np.abs(2 * lightness - 1)  # the most that the spread can be at this lightness
    saturation = np.where(grey, 0, spread / np.where(reach == 0, 1, reach))
    sixth = np.where(
        high == red,
        (green - blue) / divisor,
        np.where(high == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    hue = np.where(grey, 0, sixth % 6) * np.float32(HUE / 6)
    return hue, lightness * np.float32(BYTE), np.minimum(saturation, 1) * np.float32(BYTE)


def from_hls(hue: Floats, lightness: Floats, saturation: Floats) -> NDArray[np.uint8]:
    """Return the RGB picture, uint8 (height, width, 3), of the three arrays that :func:`to_hls` returns."""
    light = lightness / np.float32(BYTE)
    reach = saturation / np.float32(BYTE) * np.minimum(light, 1 - light)
    picture = np.empty((*hue.shape, 3), np.uint8)
    for channel, turn in enumerate((0, 8, 4)):
        k = (turn + hue * np.float32(12 / HUE)) % 12
        value = light - reach * np.clip(np.minimum(k - 3, 9 - k), -1, 1)
        picture[..., channel] = np.rint(np.clip(value, 0, 1) * np.float32(BYTE))
    return picture


def shifted(picture: NDArray[np.uint8], hue: int, lightness: int, saturation: int) -> NDArray[np.uint8]:
    """Return an RGB picture with these numbers added to hue, lightness and saturation. A value that would leave its
    scale becomes the end of the scale, also a hue."""
    parts = to_hls(picture)
    moved = (
        np.clip(part + np.float32(by), 0, np.float32(most))
        for part, by, most in zip(parts, (hue, lightness, saturation), (HUE, BYTE, BYTE), strict=True)
    )
    return from_hls(*moved)
