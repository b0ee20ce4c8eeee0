"""Turn the bytes of a file, such as a member of an archive, into the value of a slot: a picture, a number, an array.

Nothing is unpickled: an array of objects is refused, and so is a decoder for a file that is a pickle.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from pydp2.data.schema.input_types import InputType, dense_vector, scalar, text
from pydp2.errors import OptionError, OptionTypeError
from pydp2.formats import pillow
from pydp2.formats.serving import flag, whole

MODES = {"L": 1, "RGB": 3}
CROPS = ("center", "random", "none")
_CENTER = (0.5, 0.5)
_SHOWN = 40
_LARGEST = 2**63


class Decoder(Protocol):
    """Function from bytes to a value of a slot of ``type``."""

    @property
    def type(self) -> InputType: ...

    def __call__(self, data: bytes, rng: np.random.Generator) -> Any:
        """Return the value of ``data``. Raises ValueError that says what is wrong with it."""


@dataclass(frozen=True)
class ImageDecoder:
    """Decoder of pictures, to uint8 ``(height, width, channels)``, or with the channels first.

    A picture is turned as its EXIF says. Transparency is left out, and of 16 bits a channel the upper eight are taken.

    Args:
        size: height and width.
        crop: "center" scales a picture until it covers the size and keeps the middle; "random" keeps a part that
            ``rng`` chooses; "none" scales height and width by factors of their own, so that nothing is cut off.
        mode: "RGB", or "L" for grey.
        channels_first: True for the shape (channels, height, width).
    """

    size: tuple[int, int]
    crop: str = "center"
    mode: str = "RGB"
    channels_first: bool = False

    @property
    def type(self) -> InputType:
        channels = MODES[self.mode]
        return dense_vector((channels, *self.size) if self.channels_first else (*self.size, channels), dtype=np.uint8)

    def __call__(self, data: bytes, rng: np.random.Generator) -> Any:
        fit = None if self.crop == "none" else _CENTER
        if self.crop == "random":
            fit = float(rng.random()), float(rng.random())
        pixels = pillow.decode_to(data, MODES[self.mode], self.size, fit)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)) if self.channels_first else pixels


def image_decoder(options: Any) -> ImageDecoder:
    """Return a decoder for ``options``, a dict of the arguments of :class:`ImageDecoder`, or only its ``size``; a size
    of one number is a square.

    Raises:
        OptionError, OptionTypeError: one of them is something else, or Pillow is not installed.
    """
    given = dict(options) if isinstance(options, Mapping) else {"size": options}
    names = [field.name for field in fields(ImageDecoder)]
    if unknown := [name for name in given if name not in names]:
        raise OptionError(f"image has no option {unknown[0]!r:.40}; it has {', '.join(names)}")
    size = given.get("size")
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, list | tuple) or len(sides) != 2:
        raise OptionTypeError(
            f'image needs the height and width of pictures, as {{"size": [224, 224]}}, got {size!r:.80}'
        )
    height, width = (whole("size", side) for side in sides)
    if not (height > 0 < width and height * width <= pillow.MOST_PIXELS):
        raise OptionError(f"size must be from 1 to {pillow.MOST_PIXELS} pixels, got {height} x {width}")
    made = ImageDecoder(**(given | {"size": (height, width)}))
    if made.crop not in CROPS:
        raise OptionError(f"crop must be one of {', '.join(CROPS)}, got {made.crop!r:.80}")
    if made.mode not in MODES:
        raise OptionError(f"mode must be one of {', '.join(MODES)}, got {made.mode!r:.80}")
    flag("channels_first", made.channels_first)
    pillow.need("decoding pictures")
    return made


class IntDecoder:
    """Decoder of a whole number as text, from -2**63 to 2**63 - 1."""

    type = scalar("int64")

    def __call__(self, data: bytes, rng: np.random.Generator) -> int:
        digits = data.strip()
        if not digits.removeprefix(b"-").isdigit() or len(digits) > 20 or not -_LARGEST <= int(digits) < _LARGEST:
            raise ValueError(f"expected a whole number of 64 bits, got {data[:_SHOWN]!r}")
        return int(digits)


class JsonDecoder:
    """Decoder of JSON, which stays a text: it checks that the text is JSON (RFC 8259) in UTF-8."""

    type = text()

    def __call__(self, data: bytes, rng: np.random.Generator) -> bytes:
        content = data.decode()  # UnicodeDecodeError is a ValueError
        try:
            json.loads(content, parse_constant=_refuse_constant, parse_int=len, parse_float=len)
        except RecursionError:
            raise ValueError("JSON is nested too deeply") from None
        return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


class ArrayDecoder:
    """Decoder of an array of numpy (``.npy``) like ``first``, the bytes of another one: of its shape and dtype.

    Raises:
        ValueError: ``first`` is no such array, or one of objects or texts.
    """

    def __init__(self, first: bytes) -> None:
        array = npy_array(first)
        self._dtype, self._shape = array.dtype, array.shape
        if self._dtype.kind not in "biuf" or self._dtype.itemsize > 8 or not math.prod(self._shape):
            raise ValueError(f"expected an array of numbers, got {self._dtype} {self._shape}")
        self.type = dense_vector(self._shape, dtype=self._dtype) if self._shape else scalar(self._dtype)

    def __call__(self, data: bytes, rng: np.random.Generator) -> Any:
        array = npy_array(data)
        if (array.dtype, array.shape) != (self._dtype, self._shape):
            raise ValueError(f"expected {self._dtype} {self._shape}, got {array.dtype} {array.shape}")
        return array


_HEADERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def npy_array(data: bytes) -> Any:
    """Return the array in ``data`` as a view. ``numpy.load`` would take the memory that its header claims."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"expected an array of numpy in version 1.0 or 2.0, got {version}")
    try:
        shape, in_columns, dtype = _HEADERS[version](file)
        rest = len(data) - file.tell()
        if dtype.hasobject:
            raise ValueError("an array of objects is a pickle, which is not read")
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != rest:
            raise ValueError(f"the array {dtype} {shape} does not have the {rest} bytes behind its header")
        return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if in_columns else "C")
    except ValueError:
        raise
    except Exception as error:  # the header is a text of Python; what reads it raises more than ValueError
        raise ValueError(f"the header of the array is damaged: {error}") from error
