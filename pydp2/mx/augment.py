"""Apply the options of a picture before it is numbers: warp, crop, resize, colour, in this order (docs/mxnet.md,
Pictures).

This module computes the geometry and makes its random choices. An :class:`Augmentation` checks its values when it is
made. :mod:`.finish` does the steps on the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from pydp2.errors import OptionError
from pydp2.formats.pillow import Picture
from pydp2.mx import colour, pillow
from pydp2.mx.chance import Chance, ChanceKind
from pydp2.mx.options import typed
from pydp2.mx.pillow import Method

_AUTO, _RANDOM = 9, 10
_MOST_SIDE = 1 << 15  # of a warped picture: a larger one is a mistake that would cost much memory


class PictureError(Exception):
    """Raised for a picture to which the options cannot be applied. The caller adds the name of the record."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The options of ImageRecordIter up to the crop's colours, by their names; see docs/mxnet.md for each.

    Raises OptionError (a ValueError) or OptionTypeError (a TypeError) for invalid values.
    """

    data_shape: tuple[int, int, int]
    rand_crop: bool = False
    crop_y_start: int = -1
    crop_x_start: int = -1
    max_rotate_angle: int = 0
    rotate: int = -1
    max_aspect_ratio: float = 0.0
    max_shear_ratio: float = 0.0
    min_random_scale: float = 1.0
    max_random_scale: float = 1.0
    min_img_size: float = 0.0
    max_img_size: float = 1e10
    min_crop_size: int = -1
    max_crop_size: int = -1
    random_h: int = 0
    random_s: int = 0
    random_l: int = 0
    fill_value: int = 255
    inter_method: int = 1

    def __post_init__(self) -> None:
        typed(self, fields(self))
        self._check_ranges()
        self._check_combinations()

    def _check_ranges(self) -> None:
        if self.data_shape[0] not in (1, 3, 4):
            raise OptionError(f"data_shape must begin with 1, 3 or 4 channels, got {self.data_shape}")
        for name in ("rotate", "crop_y_start", "crop_x_start"):
            if getattr(self, name) < -1:
                more = "; 330 is -30 degrees" if name == "rotate" else ""
                raise OptionError(f"{name} must be at least 0, or -1 for none, got {getattr(self, name)}{more}")
        for low, high in (("min_random_scale", "max_random_scale"), ("min_img_size", "max_img_size")):
            least, most = getattr(self, low), getattr(self, high)
            if not 0 <= least <= most or not most > 0:
                raise OptionError(f"{low} and {high} must be 0 <= {low} <= {high}, got {least:g} and {most:g}")
        if not self.min_random_scale > 0:
            raise OptionError("min_random_scale must be more than 0, got 0")
        for name, end in (("max_rotate_angle", math.inf), ("max_aspect_ratio", 1), ("max_shear_ratio", math.inf)):
            if not 0 <= getattr(self, name) < end:
                raise OptionError(f"{name} must be from 0 to below {end:g}, got {getattr(self, name):g}")
        for name, most in (("random_h", 180), ("random_s", 255), ("random_l", 255), ("fill_value", 255)):
            if not 0 <= getattr(self, name) <= most:
                raise OptionError(f"{name} must be from 0 to {most}, got {getattr(self, name)}")

    def _check_combinations(self) -> None:
        channels = self.data_shape[0]
        if self._colours and channels != 3:
            raise OptionError(f"random_h, random_s and random_l need 3 channels, data_shape has {channels}")
        if self._resizes and not 0 < self.min_crop_size <= self.max_crop_size:
            raise OptionError(
                "min_crop_size and max_crop_size are given together, 0 < min_crop_size <= max_crop_size, got "
                f"{self.min_crop_size} and {self.max_crop_size}"
            )
        if self.inter_method not in (*Method, _AUTO, _RANDOM):
            raise OptionError(f"inter_method must be 0 to 4, 9 (auto) or 10 (random), got {self.inter_method}")

    @property
    def _warps(self) -> bool:
        return (
            self.max_rotate_angle > 0
            or self.rotate > 0
            or self.max_shear_ratio > 0
            or self.max_aspect_ratio > 0
            or (self.min_random_scale, self.max_random_scale) != (1, 1)
            or (self.min_img_size, self.max_img_size) != (0, 1e10)
        )

    @property
    def _resizes(self) -> bool:
        return (self.min_crop_size, self.max_crop_size) != (-1, -1)

    @property
    def _colours(self) -> bool:
        return bool(self.random_h or self.random_s or self.random_l)

    @property
    def samples_anew(self) -> bool:
        """True if new pixels are computed from old ones; that needs Pillow."""
        return self._warps or self._resizes

    def __call__(self, picture: Picture, chance: Chance) -> Picture:
        """Return the augmented picture. ``picture`` is uint8 (height, width, channels); the result (data_shape[1],
        data_shape[2], channels).

        Raises PictureError if the picture is smaller than its crop, if the crop leaves the picture, or if the sheet has
        an impossible size.
        """
        if self._warps:
            picture = self._warped(picture, chance)
        picture = self._cropped(picture, chance)
        if self._colours:
            h, s, ell = (
                int(chance.uniform(choice, -most, most))
                for choice, most in (
                    (ChanceKind.HUE, self.random_h),
                    (ChanceKind.SATURATION, self.random_s),
                    (ChanceKind.LIGHTNESS, self.random_l),
                )
            )
            picture = colour.shifted(picture, hue=h, lightness=ell, saturation=s)
        return picture

    def _warped(self, picture: Picture, chance: Chance) -> Picture:
        """Return the picture sheared, turned, scaled and stretched around its centre, on a sheet of a new size."""
        rows, columns = picture.shape[:2]
        shear = chance.uniform(ChanceKind.SHEAR, -self.max_shear_ratio, self.max_shear_ratio)
        if self.rotate > 0:
            angle = self.rotate
        else:
            angle = chance.integer(ChanceKind.ANGLE, -self.max_rotate_angle, self.max_rotate_angle)
        scale = chance.uniform(ChanceKind.SCALE, self.min_random_scale, self.max_random_scale)
        ratio = 1 + chance.uniform(ChanceKind.RATIO, -self.max_aspect_ratio, self.max_aspect_ratio)
        height, width = (int(max(self.min_img_size, min(self.max_img_size, scale * side))) for side in (rows, columns))
        if not (0 < height <= _MOST_SIDE and 0 < width <= _MOST_SIDE):
            raise PictureError(f"a picture of {rows} x {columns} would become {height} x {width}")
        along = 2 * scale / (1 + ratio)  # width by `along`, height by `across`: their mean is the scale
        across = ratio * along
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        # x', y' of the new picture = [[a, b], [d, e]] (x, y), then moved so that the centres coincide
        a, b = along * cos - shear * sin * across, along * sin + shear * cos * across
        d, e = -sin * across, cos * across
        determinant = a * e - b * d
        p, q, r, t = e / determinant, -b / determinant, -d / determinant, a / determinant
        inverse = (p, q, columns / 2 - p * width / 2 - q * height / 2, r, t, rows / 2 - r * width / 2 - t * height / 2)
        method = self._method(chance, ChanceKind.WARP_METHOD, (rows, columns), (height, width))
        return pillow.warp(picture, (height, width), inverse, method, self.fill_value)

    def _cropped(self, picture: Picture, chance: Chance) -> Picture:
        _, height, width = self.data_shape
        if not self._resizes:
            return self._cut(picture, height, width, chance)
        if min(picture.shape[:2]) < self.max_crop_size:
            raise PictureError(
                f"max_crop_size={self.max_crop_size} needs a picture as large, it has "
                f"{picture.shape[0]} x {picture.shape[1]} pixels"
            )
        side = chance.integer(ChanceKind.CROP_SIZE, self.min_crop_size, self.max_crop_size)
        crop = self._cut(picture, side, side, chance)
        method = self._method(chance, ChanceKind.CROP_METHOD, (side, side), (height, width))
        return pillow.resize(crop, (height, width), method)

    def _cut(self, picture: Picture, height: int, width: int, chance: Chance) -> Picture:
        """Return the crop of this size: in the middle, at the given place, or at a random place."""
        rows, columns = picture.shape[:2]
        if rows < height or columns < width:
            raise PictureError(
                f"data_shape needs a picture of {height} x {width} pixels, it has {rows} x {columns}; "
                "min_random_scale and max_random_scale above 1 enlarge it, min_img_size gives it a border"
            )
        y, x = (
            self._start(given, room, chance, choice)
            for given, room, choice in (
                (self.crop_y_start, rows - height, ChanceKind.CROP_Y),
                (self.crop_x_start, columns - width, ChanceKind.CROP_X),
            )
        )
        if y + height > rows or x + width > columns:
            raise PictureError(
                f"a crop of {height} x {width} pixels at crop_y_start={y}, crop_x_start={x} leaves the picture, which "
                f"has {rows} x {columns}"
            )
        return picture[y : y + height, x : x + width]

    def _start(self, given: int, room: int, chance: Chance, choice: ChanceKind) -> int:
        if self.rand_crop:
            return chance.integer(choice, 0, room)
        return given if given >= 0 else room // 2

    def _method(self, chance: Chance, choice: ChanceKind, old: tuple[int, int], new: tuple[int, int]) -> Method:
        if self.inter_method == _RANDOM:
            return Method(chance.integer(choice, 0, max(Method)))
        if self.inter_method != _AUTO:
            return Method(self.inter_method)
        if new[0] > old[0] and new[1] > old[1]:
            return Method.CUBIC
        return Method.AREA if new[0] < old[0] and new[1] < old[1] else Method.LINEAR
