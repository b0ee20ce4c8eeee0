"""Encodings of the columns of MDS, mosaicml-streaming's format: how the bytes of a value become values of a slot."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.batch import BinaryArray, Ragged, StringArray
from pydp2.data.columns.columns import offsets
from pydp2.data.schema.input_types import DataType, InputType, SequenceType, dense_vector, raw, scalar, text

_CODES = {8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8", 65: "i8", 66: "f8"}
_DTYPES = {np.dtype(code).name: np.dtype(f"<{code}") for code in _CODES.values()}
_MOST_SIDES = 32
_MODES = {b"L": (), b"RGB": (3,), b"RGBA": (4,), b"CMYK": (4,), b"YCbCr": (3,), b"HSV": (3,), b"LAB": (3,)}


class MdsColumn(NamedTuple):
    """Column of a name. ``size``: bytes of its values, None if they differ. ``decode`` makes a value of its bytes, and
    raises ValueError if they are none. ``type``: of its slot, None if the first sample has to say it."""

    name: str
    encoding: str
    size: int | None
    type: InputType | None
    decode: Callable[[bytes], Any]

    def of_first(self, data: bytes) -> MdsColumn:
        """Return the column with the type that its first value has."""
        if self.type is not None:
            return self
        value = self.decode(data)
        is_list = self.encoding.startswith("ndarray") and value.ndim == 1
        kind = scalar(value.dtype, SequenceType.SEQUENCE) if is_list else dense_vector(value.shape, dtype=value.dtype)
        return self._replace(type=kind)

    def is_decoded(self) -> bool:
        """Return True if its bytes are no value as they lie."""
        return self.size is None and self.encoding not in ("bytes", "str", "json", "str_decimal", "jpeg", "png")

    def values(self, strings: list[bytes]) -> Any:
        """Return the values of ``strings``, one per sample, as :func:`pydp2.rows` takes them."""
        if self.is_decoded():
            decoded = list(map(self.decode, strings))
            if self.type is None or self.type.seq_type == SequenceType.NO_SEQUENCE or self.type.type != DataType.Dense:
                return decoded
            return Ragged(np.concatenate(decoded), offsets(np.array([*map(len, decoded)], np.int64)))
        data = b"".join(strings)
        if self.size is None:
            kind = StringArray if self.type == text() else BinaryArray
            return kind(offsets(np.array([*map(len, strings)], np.int64)), np.frombuffer(data, np.uint8))
        assert self.type is not None
        return np.frombuffer(data, self.type.element_dtype.newbyteorder("<")).reshape(len(strings), *self._shape())

    def _shape(self) -> tuple[int, ...]:
        assert self.type is not None
        return self.type.element_shape


def column(name: str, encoding: str) -> MdsColumn:
    """Return the column of a name and encoding. Raises ValueError: there is none, or it is refused."""
    if encoding == "pkl":
        raise ValueError("its values are pickles, and nothing is unpickled: write them with another encoding")
    if encoding in _PLAIN:
        kind, decode = _PLAIN[encoding]
        return MdsColumn(name, encoding, None, kind, decode)
    dtype = _DTYPES.get("int64" if encoding == "int" else encoding)
    if dtype is not None:
        return MdsColumn(name, encoding, dtype.itemsize, scalar(dtype), lambda data: np.frombuffer(data, dtype)[0])
    base, *details = encoding.split(":")
    if base != "ndarray" or len(details) > 2 or details[:1] not in ([], *([known] for known in _DTYPES)):
        raise ValueError(f"no slot takes the encoding {encoding!r:.80}; write it as jpeg, png, ndarray, bytes or str")
    given = _DTYPES[details[0]] if details else None
    if len(details) < 2:
        return MdsColumn(name, encoding, None, None, lambda data: _array(data, given))
    shape = tuple(map(int, details[1].split(",")))
    if min(shape) < 1 or math.prod(shape) >= 1 << 32 or len(shape) > _MOST_SIDES:
        raise ValueError(f"no array has the shape {shape!r:.80}")
    kind = dense_vector(shape, dtype=given)
    size = math.prod(shape) * kind.element_dtype.itemsize
    return MdsColumn(name, encoding, size, kind, lambda data: np.frombuffer(data, given).reshape(shape))


def _array(data: bytes, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """Return an array that says its shape, and its dtype if it is not given."""
    if dtype is None:
        if data[:1] == b"" or data[0] not in _CODES:
            raise ValueError(f"expected a code of a dtype, got {data[:1].hex() or 'nothing'}")
        dtype, data = np.dtype(f"<{_CODES[data[0]]}"), data[1:]
    dimensions, wide = divmod(data[0], 4) if data else (0, 0)
    sides = data[1 : 1 + dimensions * 2**wide]
    if not 0 < dimensions <= _MOST_SIDES or len(sides) < dimensions * 2**wide:
        raise ValueError("expected the shape of an array")
    shape = tuple(map(int, np.frombuffer(sides, f"<u{2**wide}")))
    values = data[1 + len(sides) :]
    if 0 in shape or math.prod(shape) * dtype.itemsize != len(values):
        raise ValueError(f"an array {shape} of {dtype.name} does not have {len(values)} bytes")
    return np.frombuffer(values, dtype).reshape(shape)


def _picture(data: bytes) -> NDArray[np.uint8]:
    """Return a picture without compression (``pil``), of shape (height, width) or (height, width, channels)."""
    width, height, length = (int(word) for word in np.frombuffer(data[:12].ljust(12, b"\0"), "<u4"))
    mode, pixels = data[12 : 12 + length], data[12 + length :]
    shape = (height, width, *_MODES.get(mode, (0,)))
    if not math.prod(shape) or math.prod(shape) != len(pixels):
        raise ValueError(f"a picture {width} x {height} of mode {mode!r:.20} has no {len(pixels)} bytes")
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def _parts(data: bytes, skipped: int) -> list[bytes]:
    """Return the strings of a list: their number, their lengths, their bytes, behind ``skipped`` bytes."""
    count = int.from_bytes(data[skipped : skipped + 4], "little")
    begin = skipped + 4 + 4 * count
    if len(data) < begin:
        raise ValueError(f"a list of {count} does not fit into {len(data)} bytes")
    edges = offsets(np.frombuffer(data[skipped + 4 : begin], "<u4")) + begin
    if edges[-1] != len(data):
        raise ValueError(f"the lengths of a list make {edges[-1]} bytes, there are {len(data)}")
    return [data[lo:hi] for lo, hi in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]


def _whole_number(data: bytes) -> int:
    if len(data) > 20:
        raise ValueError(f"expected a whole number of 64 bits, got {len(data)} digits")
    return int(np.int64(int(data)))


_Decode = Callable[[bytes], Any]
_PLAIN: dict[str, tuple[InputType | None, _Decode]] = {
    "bytes": (raw(), bytes),
    "str": (text(), bytes.decode),
    "json": (text(), bytes.decode),
    "str_decimal": (text(), bytes.decode),
    "str_int": (scalar("int64"), _whole_number),
    "str_float": (scalar("float64"), float),
    "jpeg": (raw(), bytes),
    "png": (raw(), bytes),
    "pil": (None, _picture),
    "list[jpeg]": (raw(SequenceType.SEQUENCE), lambda data: _parts(data, 4)),
    "list[png]": (raw(SequenceType.SEQUENCE), lambda data: _parts(data, 4)),
    "jpeg_array": (raw(SequenceType.SEQUENCE), lambda data: _parts(data, 0)),
    "jpegarray": (raw(SequenceType.SEQUENCE), lambda data: _parts(data, 0)),
}
