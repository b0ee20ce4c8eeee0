"""Encode and decode a record of a Fluid RecordIO file: the tensors of one instance. This module handles bytes; it opens
no files.

    u32 number of tensors, then for each of them
    u32 version 0
    u64 number of LoD levels, then for each level  u64 size in bytes | u64 offsets
    u32 version 0
    i32 size of a description | the description: protobuf, field 1 the dtype, field 2 the dimensions
    the data, row by row

All numbers are little-endian. Decoding is strict: it raises a FormatError with the byte offset if anything does not
fit, and it compares each length with the size of the record before it allocates memory.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from pydp2.errors import FormatError, OptionError
from pydp2.fluid.tensors import Instance, Lod, LoDTensor

DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.bool_),
    1: np.dtype("<i2"),
    2: np.dtype("<i4"),
    3: np.dtype("<i8"),
    4: np.dtype("<f2"),
    5: np.dtype("<f4"),
    6: np.dtype("<f8"),
    20: np.dtype("u1"),
    21: np.dtype("i1"),
}
"""Dtypes by their codes in the description. Later releases added 20 and 21."""
_CODES = {dtype: code for code, dtype in DTYPES.items()}

_U32, _I32, _U64 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<Q")
_MOST_TENSORS, _MOST_LEVELS, _MOST_DIMS = 4096, 32, 32  # an empty tensor takes more memory than its bytes
_SIGN = 1 << 63
_DTYPE_TAG, _DIM_TAG, _DIMS_TAG = 1 << 3, 2 << 3, 2 << 3 | 2  # field << 3 | wire type: 0 varint, 2 bytes


def encode(instance: Instance) -> bytes:
    """Return ``instance`` as a record.

    Raises OptionError for dtypes that the format does not have, and for more tensors, levels or dimensions than
    :func:`decode` accepts.
    """
    if len(instance) > _MOST_TENSORS:
        raise OptionError(f"a record holds at most {_MOST_TENSORS} tensors, got {len(instance)}")
    parts = [_U32.pack(len(instance))]
    for slot, tensor in enumerate(instance):
        array = np.ascontiguousarray(tensor) if tensor.shape else np.asarray(tensor)
        code = _CODES.get(array.dtype.newbyteorder("<"))
        if code is None:
            names = ", ".join(sorted(dtype.name for dtype in _CODES))
            raise OptionError(f"slot {slot}: a record holds {names}, not {array.dtype}; convert it")
        if array.ndim > _MOST_DIMS or len(tensor.lod) > _MOST_LEVELS:
            raise OptionError(
                f"slot {slot}: a record holds at most {_MOST_DIMS} dimensions and {_MOST_LEVELS} levels of LoD, got "
                f"{array.ndim} and {len(tensor.lod)}"
            )
        parts += [_U32.pack(0), _U64.pack(len(tensor.lod))]
        for level in tensor.lod:
            parts += [_U64.pack(8 * len(level)), level.astype("<u8").tobytes()]
        dims = b"".join(_varint(_DIM_TAG) + _varint(dim) for dim in array.shape)
        described = _varint(_DTYPE_TAG) + _varint(code) + dims
        parts += [_U32.pack(0), _I32.pack(len(described)), described, array.astype(DTYPES[code]).tobytes()]
    return b"".join(parts)


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def decode(record: bytes) -> Instance:
    """Return the instance in ``record``. Its arrays have memory of their own.

    Raises FormatError, with the offset in the record, for anything that :func:`encode` does not write. The only
    exception: dimensions may be packed into one field, as newer protobuf writers do.
    """
    cursor = _Cursor(record)
    count = cursor.u32("the number of tensors")
    cursor.at_most(count, _MOST_TENSORS, "tensors")
    instance = tuple(_tensor(cursor) for _ in range(count))
    if cursor.at != len(record):
        raise cursor.error(f"{len(record) - cursor.at} bytes behind the last tensor")
    return instance


class _Cursor:
    """A record, and the position of the next byte to read."""

    def __init__(self, record: bytes) -> None:
        self._record = record
        self.at = 0

    def read(self, size: int, what: str) -> memoryview:
        """Return the next ``size`` bytes. Raises FormatError if the record has fewer."""
        begin, left = self.at, len(self._record) - self.at
        if size > left:
            raise self.error(f"{what} needs {size} bytes, {left} are left")
        self.at += size
        return memoryview(self._record)[begin : self.at]

    def u32(self, what: str) -> int:
        """Return the next number, 4 bytes long."""
        return int(_U32.unpack(self.read(4, what))[0])

    def u64(self, what: str) -> int:
        """Return the next number, 8 bytes long."""
        return int(_U64.unpack(self.read(8, what))[0])

    def version(self, what: str) -> None:
        """Read a version number. Raises FormatError if it is not 0."""
        if number := self.u32(what):
            raise self.error(f"expected {what} 0, got {number}", self.at - 4)

    def at_most(self, number: int, most: int, what: str) -> None:
        """Raise FormatError if ``number``, which was just read, is above ``most``."""
        if number > most:
            raise self.error(f"{number} {what}, a record has at most {most}")

    def error(self, what: str, at: int | None = None) -> FormatError:
        """Return the FormatError that ``what`` is wrong, at the present position or at ``at``."""
        where = self.at if at is None else at
        return FormatError(f"at byte {where} of the record: {what}", offset=where)


def _tensor(cursor: _Cursor) -> LoDTensor:
    cursor.version("the version of a LoD")
    lod_at = cursor.at
    lod = _lod(cursor)
    cursor.version("the version of a tensor")
    size_at = cursor.at
    size = int(_I32.unpack(cursor.read(4, "the size of a description"))[0])
    if size < 0:
        raise cursor.error(f"a description of {size} bytes", size_at)
    dtype, dims = _description(cursor, size)
    array = _data(cursor, dtype, dims)
    try:
        return LoDTensor(array, lod)
    except OptionError as error:
        raise cursor.error(str(error), lod_at) from None


def _lod(cursor: _Cursor) -> Lod:
    count = cursor.u64("the number of LoD levels")
    cursor.at_most(count, _MOST_LEVELS, "LoD levels")
    levels = []
    for _ in range(count):
        at = cursor.at
        size = cursor.u64("the size of a LoD level")
        if size % 8:
            raise cursor.error(f"a LoD level of {size} bytes is not a list of 8-byte numbers", at)
        offsets = _numbers(cursor.read(size, "a LoD level"), np.dtype("<u8"))
        if (offsets >= _SIGN).any():
            raise cursor.error("an offset of 2**63 or more", at + 8)
        levels.append(offsets.astype(np.int64))
    return tuple(levels)


def _description(cursor: _Cursor, size: int) -> tuple[np.dtype[Any], list[int]]:
    begin = cursor.at
    text = bytes(cursor.read(size, "a description"))
    dtype: np.dtype[Any] | None = None
    dims: list[int] = []
    at = 0
    while at < size:
        field_at = begin + at
        tag, at = _number(cursor, text, at, begin)
        if tag == _DTYPE_TAG and dtype is None:
            code, at = _number(cursor, text, at, begin)
            dtype = DTYPES.get(code)
            if dtype is None:
                raise cursor.error(
                    f"expected the code of a dtype ({', '.join(map(str, DTYPES))}), got {code}", field_at
                )
        elif tag == _DIM_TAG:
            dim, at = _number(cursor, text, at, begin)
            dims.append(dim)
        elif tag == _DIMS_TAG and not dims:
            length, at = _number(cursor, text, at, begin)
            end = at + length
            if end > size:
                raise cursor.error(f"dimensions of {length} bytes in a description with {size - at} left", field_at)
            while at < end:
                dim, at = _number(cursor, text[:end], at, begin)
                dims.append(dim)
        else:
            raise cursor.error(f"a description has one dtype and dimensions, got the tag {tag}", field_at)
        if len(dims) > _MOST_DIMS:
            raise cursor.error(f"more than {_MOST_DIMS} dimensions", field_at)
    if dtype is None:
        raise cursor.error("a description without a dtype", begin)
    if any(dim >= _SIGN for dim in dims):
        raise cursor.error("a negative dimension", begin)
    return dtype, dims


def _number(cursor: _Cursor, text: bytes, at: int, begin: int) -> tuple[int, int]:
    """Return the varint at ``at``, and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(text):
            raise cursor.error("the description ends within a number", begin + at)
        byte = text[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            if number >> 64:
                break
            return number, at
    raise cursor.error("a number of more than 64 bits", begin + at - 1)


def _data(cursor: _Cursor, dtype: np.dtype[Any], dims: list[int]) -> np.ndarray[Any, np.dtype[Any]]:
    at = cursor.at
    filled = math.prod(dim for dim in dims if dim) * dtype.itemsize
    if filled >= _SIGN:  # if one dimension is 0 the array is empty, but numpy still multiplies the others
        raise cursor.error(f"dimensions {dims} are more than an array can have", at)
    data = cursor.read(0 if 0 in dims else filled, "the data of a tensor")
    if dtype.kind == "b" and _numbers(data, np.dtype("u1")).max(initial=0) > 1:
        raise cursor.error("a bool that is neither 0 nor 1", at)
    return _numbers(data, dtype).reshape(dims).astype(dtype.newbyteorder("="))


def _numbers(data: memoryview, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    return np.frombuffer(data, dtype) if data.nbytes else np.empty(0, dtype)  # an empty buffer has no address for numpy
