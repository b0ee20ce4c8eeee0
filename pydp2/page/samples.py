"""Show samples of a batch: pictures as pictures, text as text, sequences with the places of their parts.

What is shown comes from the user's data, so it goes to the browser as text or as a picture, never as markup.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pydp2.data.columns.batch import Batch
from pydp2.data.columns.unbatch import unbatch
from pydp2.data.schema.input_types import SequenceType
from pydp2.diagnostics.in_flight import samples_in_flight

_TEXT = 400  # characters that are shown of a value
_ENTRIES = 24  # numbers that are shown of an array or a sequence
_SIDE = 8  # pixels that a picture has at least, in each direction
_MOST_PIXELS = 4 << 20
_MOST_BYTES = 8 << 20  # of a picture that is a file already
_FORMATS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


class Picture(NamedTuple):
    """Picture for a browser: its media type and its bytes."""

    media_type: str
    data: bytes


def samples_of(
    address: str | os.PathLike[str] | None, key: str | os.PathLike[str] | None
) -> Callable[[str, int], Batch | None]:
    """Return a function that looks at so many samples of a job of the service at ``address``."""
    return lambda job, count: samples_in_flight(address, job, count, key)


def show_samples(batch: Batch) -> tuple[list[str], list[list[str | Picture]]]:
    """Return the labels of the slots, and for each sample of ``batch`` its values: text, or a picture."""
    slots = batch._columns.slots
    labels = [slots.label(number) for number in range(len(slots.types))]
    sequences = [slot.seq_type != SequenceType.NO_SEQUENCE for slot in slots.types]
    return labels, [
        [show_value(value, is_sequence=is_sequence) for value, is_sequence in zip(sample, sequences, strict=True)]
        for sample in unbatch(batch)
    ]


def show_value(value: Any, *, is_sequence: bool = False) -> str | Picture:
    """Return a value of a sample as text, or as a picture if it is one. ``is_sequence``: an array is one of steps."""
    if isinstance(value, bytes):
        media_type = next((kind for begin, kind in _FORMATS.items() if value.startswith(begin)), None)
        if media_type is not None and len(value) <= _MOST_BYTES:
            return Picture(media_type, value)
        return f"{len(value):,} bytes: {value[: _TEXT // 4].hex(' ')}"
    if isinstance(value, str):
        return value if len(value) <= _TEXT else f"{value[:_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, np.ndarray) and is_sequence:
        width = " of " + " by ".join(map(str, value.shape[1:])) if value.ndim > 1 else ""
        return f"{len(value)} steps{width}: {_numbers(value)}"
    if isinstance(value, np.ndarray):
        pixels = _pixels(value)
        return _array_text(value) if pixels is None else Picture("image/png", png(pixels))
    if isinstance(value, Sequence):
        return _sequence_text(value)
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _array_text(array: npt.NDArray[Any]) -> str:
    """Return dtype, shape and first numbers of an array."""
    shape = " by ".join(map(str, array.shape)) or "1"
    return f"{array.dtype} {shape}: {_numbers(array)}"


def _numbers(array: npt.NDArray[Any]) -> str:
    flat = array.reshape(-1)
    return " ".join(f"{number:.4g}" for number in flat[:_ENTRIES].tolist()) + (" …" if len(flat) > _ENTRIES else "")


def _sequence_text(value: Sequence[Any]) -> str:
    """Return the first entries of a sequence; of a nested one also where each part begins."""
    if value and isinstance(value[0], list | np.ndarray):
        starts = [0, *accumulate(len(part) for part in value)]
        shown = " ".join(map(str, starts[:_ENTRIES]))
        flat = [entry for part in value[:_ENTRIES] for entry in part][:_ENTRIES]
        return (
            f"{len(value)} sequences, which begin at {shown}{' …' if len(starts) > _ENTRIES else ''}: {_entries(flat)}"
        )
    return f"{len(value)} steps: {_entries(value[:_ENTRIES])}{' …' if len(value) > _ENTRIES else ''}"


def _entries(values: Sequence[Any]) -> str:
    text = " ".join(f"{each:.4g}" if isinstance(each, float | np.floating) else str(each) for each in values)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


def _pixels(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | None:
    """Return ``array`` as a picture, uint8 (height, width) or (height, width, 3); None if it is none.

    It is one with two dimensions, or with three of which the first or the last has 1 or 3 channels. Bytes are taken as
    they are, and other numbers are stretched from their least to their largest.
    """
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    if not is_picture or min(array.shape[:2]) < _SIDE or array.shape[0] * array.shape[1] > _MOST_PIXELS:
        return None
    if array.dtype == np.uint8:
        return array
    numbers = np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(numbers.min()), float(numbers.max())
    return ((numbers - low) * (255.0 / (high - low) if high > low else 0.0)).astype(np.uint8)


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return ``pixels``, (height, width) or (height, width, 3), as a PNG file."""
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)  # each line begins with its filter, none
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
