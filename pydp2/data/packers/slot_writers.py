"""Pack values by fast paths: one writer per slot, chosen once, that takes what is certainly right and nothing else.

If a writer's :attr:`SlotWriter.add` is not certain of a value it raises (anything): the packer then asks
:func:`pydp2.data.packers.normalise.normalise`, the authority, and adds what that returns, which always succeeds.

Ids are packed with ``struct``, whose integer codes take exactly what has ``__index__``. For lists of floats there
is no such code: ``struct`` and ``array`` take everything that has ``__float__``. So these go through
``marshal.dumps``, which writes a type byte before each value; when all of these bytes are those of a float, the
list held nothing else, and the bytes after them are the float64 values. That is faster than one pass over the types
alone. Nothing is ever unmarshalled.
"""

from __future__ import annotations

import marshal
import math
from array import array
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pydp2.data.native import _packing
from pydp2.data.packers import normalise
from pydp2.data.schema.input_types import STRING_TYPES, DataType, InputType, Slots, is_bfloat16
from pydp2.system.stdlib import struct

# Version 2 of the format has a fixed size for each type and no references between equal values.
_MARSHAL_VERSION = 2
_MARSHAL_HEAD = 5  # a list or tuple: its type byte and length
MARSHALLED_FLOATS = np.dtype({"names": ["v"], "formats": ["<f8"], "offsets": [1], "itemsize": 9})
MARSHALLED_INTS = np.dtype({"names": ["v"], "formats": ["<i4"], "offsets": [1], "itemsize": 5})
MARSHALLED_PAIRS = np.dtype({"names": ["i", "v"], "formats": ["<i4", "<f8"], "offsets": [6, 11], "itemsize": 19})
_MAX_CACHED_STRUCTS = 4096  # lengths above it are too rare to keep a Struct for

_FLOAT64, _INT32, _INT64 = np.dtype(np.float64), np.dtype(np.int32), np.dtype(np.int64)
_UINT16 = np.dtype(np.uint16)
_pack_float = struct.Struct("d").pack

_dumps = marshal.dumps
_ndarray = np.ndarray


class SlotWriter(Protocol):
    """Writer that packs the values of one slot; see :class:`PythonSlotWriter`."""

    def add(self, value: Any, /) -> int: ...
    def add_checked(self, value: object, /) -> int: ...
    def rollback(self, rows: int, /) -> None: ...
    def finish(self) -> tuple[list[Any], list[Any], bool]: ...


class TypedBuffer:
    """Buffer of flat values in arrival order. ``open_bytes``, of ``dtype``, is the open run, to which
    values are appended; before values of another form are appended, :meth:`switch_dtype` is called."""

    __slots__ = ("_closed_segments", "dtype", "open_bytes")

    def __init__(self, key: np.dtype[Any]) -> None:
        self.dtype = key
        self.open_bytes = bytearray()
        self._closed_segments: list[tuple[np.dtype[Any], bytearray]] = []

    def switch_dtype(self, key: np.dtype[Any]) -> None:
        """Open a run of the form ``key``."""
        if self.open_bytes:
            self._closed_segments.append((self.dtype, self.open_bytes))
            self.open_bytes = bytearray()
        self.dtype = key

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` values."""
        for i, (key, buf) in enumerate(self._closed_segments):
            length = len(buf) // key.itemsize
            if count < length:
                del self._closed_segments[i:]
                self.dtype, self.open_bytes = key, buf
                break
            count -= length
        del self.open_bytes[count * self.dtype.itemsize :]

    def finish(self) -> list[NDArray[Any]]:
        """Return all values, an array for each run, over memory that is the caller's from now on."""
        self.switch_dtype(self.dtype)
        arrays = [np.frombuffer(buf, key) for key, buf in self._closed_segments]
        self._closed_segments = []
        return arrays


class NotCertain(Exception):
    """The value may be right, but a fast path cannot be certain of it."""


class StructPackers(dict[int, Callable[..., bytes]]):
    """Functions that pack numbers of the format ``code`` of struct, by how many they are."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def __missing__(self, length: int) -> Callable[..., bytes]:
        pack = struct.Struct(f"{length}{self._code}").pack
        if length <= _MAX_CACHED_STRUCTS:
            self[length] = pack
        return pack


class LeafWriter(Protocol):
    """Writer of the innermost values of a slot. ``value_bytes``: column bytes of one value; ``entries_per_value``: how
    many entries of ``buffer`` it takes."""

    buffer: TypedBuffer
    value_bytes: int
    entries_per_value: int

    def write_one(self, value: Any) -> int:
        """Take one value and return its bytes."""

    def write_many(self, values: Any) -> int:
        """Take a list, tuple or array of values and return their number."""


class IdWriter:
    """Writer of ids of index slots, and of indices of sparse binary ones."""

    __slots__ = ("_id_dtype", "_pack_one", "_packs", "buffer", "entries_per_value", "value_bytes")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        code = "q" if dtype.itemsize == 8 else "i"
        self._id_dtype = dtype
        self._packs = StructPackers(code)
        self._pack_one = struct.Struct(code).pack
        self.buffer = TypedBuffer(dtype)
        self.value_bytes = dtype.itemsize
        self.entries_per_value = 1

    def write_one(self, value: Any) -> int:
        buffer = self.buffer
        if buffer.dtype is not self._id_dtype:
            buffer.switch_dtype(self._id_dtype)
        buffer.open_bytes += self._pack_one(value)
        return self.value_bytes

    def write_many(self, values: Any) -> int:
        buffer = self.buffer
        kind = type(values)
        if kind is list or kind is tuple:
            count = len(values)
            if buffer.dtype is not self._id_dtype:
                buffer.switch_dtype(self._id_dtype)
            buffer.open_bytes += self._packs[count](*values)
            return count
        if kind is not _ndarray or values.ndim != 1:
            raise NotCertain
        if values.dtype is not buffer.dtype:
            if values.dtype.kind not in "iub":
                raise NotCertain
            buffer.switch_dtype(values.dtype)
        buffer.open_bytes.extend(values)
        return len(values)


class PairWriter:
    """Writer of (index, value) pairs of sparse float slots."""

    __slots__ = ("buffer", "entries_per_value", "value_bytes")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.buffer = TypedBuffer(MARSHALLED_PAIRS)
        self.value_bytes = dtype.itemsize + 4
        self.entries_per_value = 1

    def write_one(self, value: Any) -> int:
        raise NotCertain  # a pair is always in a list

    def write_many(self, values: Any) -> int:
        buffer = self.buffer
        kind = type(values)
        if kind is list or kind is tuple:
            count = len(values)
            data = _dumps(values, _MARSHAL_VERSION)
            if (
                len(data) != _MARSHAL_HEAD + 19 * count
                or data[5::19].strip(b"([")  # each a tuple or list …
                or data[6::19] != b"\2" * count  # … of two (more would not fit the length) …
                or data[10::19] != b"i" * count  # … an int …
                or data[15::19] != b"g" * count  # … and a float
            ):
                raise NotCertain
            if buffer.dtype is not MARSHALLED_PAIRS:
                buffer.switch_dtype(MARSHALLED_PAIRS)
            buffer.open_bytes += data[_MARSHAL_HEAD:]
            return count
        if kind is not _ndarray or values.ndim != 1 or values.dtype != normalise.PAIR_DTYPE:
            raise NotCertain
        if buffer.dtype is not normalise.PAIR_DTYPE:
            buffer.switch_dtype(normalise.PAIR_DTYPE)
        buffer.open_bytes.extend(values)
        return len(values)


class DenseWriter:
    """Writer of dense elements; the entries of ``buffer`` are single numbers."""

    __slots__ = (
        "_accepts_ints",
        "_bfloat16",
        "_float_marks",
        "_int_marks",
        "buffer",
        "entries_per_value",
        "value_bytes",
    )

    def __init__(self, declared: InputType, strict: bool) -> None:
        width, dtype = declared.dim, declared.element_dtype
        self.buffer = TypedBuffer(MARSHALLED_FLOATS)
        self._bfloat16 = dtype if is_bfloat16(dtype) else None
        self.entries_per_value = width
        self.value_bytes = width * dtype.itemsize
        # Made at the first list, because a slot of arrays may be much wider than any list.
        self._float_marks = self._int_marks = b""
        # Ints belong to integer slots; a float slot takes them unless strict. (float16 cannot hold every int32.)
        self._accepts_ints = dtype.kind in "iub" or (not strict and dtype.itemsize >= 4)

    def write_one(self, value: Any) -> int:
        buffer = self.buffer
        kind = type(value)
        if kind is list or kind is tuple:
            data = _dumps(value, _MARSHAL_VERSION)
            width = self.entries_per_value
            if not self._float_marks:
                self._float_marks, self._int_marks = b"g" * width, b"i" * width
            if len(data) == _MARSHAL_HEAD + 9 * width and data[5::9] == self._float_marks:
                key = MARSHALLED_FLOATS
            elif self._accepts_ints and len(data) == _MARSHAL_HEAD + 5 * width and data[5::5] == self._int_marks:
                key = MARSHALLED_INTS
            else:
                raise NotCertain
            if buffer.dtype is not key:
                buffer.switch_dtype(key)
            buffer.open_bytes += data[_MARSHAL_HEAD:]
        elif kind is _ndarray and value.size == self.entries_per_value:
            self._extend(value)
        else:
            raise NotCertain
        return self.value_bytes

    def write_many(self, values: Any) -> int:
        if type(values) is _ndarray:
            count = len(values)
            if values.ndim < 2 or values.size != count * self.entries_per_value:
                raise NotCertain
            self._extend(values)
            return count
        if type(values) is not list and type(values) is not tuple:
            raise NotCertain
        one = self.write_one
        for value in values:
            one(value)
        return len(values)

    def _extend(self, values: NDArray[Any]) -> None:
        buffer, dtype = self.buffer, values.dtype
        if dtype is not buffer.dtype:
            if dtype.kind not in normalise.REAL_KINDS and (self._bfloat16 is None or dtype != self._bfloat16):
                raise NotCertain
            buffer.switch_dtype(dtype)
        buffer.open_bytes.extend(values if self._bfloat16 is None or dtype.kind != "V" else values.view(_UINT16))


class ShapedWriter(DenseWriter):
    """Writer of dense elements with a shape of several sides. ``_fitting_shape``: that of the last array that was
    right; the next one has the same."""

    __slots__ = ("_declared", "_fitting_shape")

    def __init__(self, declared: InputType, strict: bool) -> None:
        super().__init__(declared, strict)
        self._declared = declared
        self._fitting_shape: tuple[int, ...] | None = None

    def write_one(self, value: Any) -> int:
        if type(value) is not _ndarray:
            return super().write_one(value)
        if value.shape != self._fitting_shape:
            self._check_shape(value.shape)
        self._extend(value)
        return self.value_bytes

    def write_many(self, values: Any) -> int:
        if type(values) is not _ndarray:
            return super().write_many(values)
        shape = values.shape
        if shape[1:] != self._fitting_shape:
            self._check_shape(shape[1:])
        self._extend(values)
        return len(values)

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        """Remember ``shape`` if it is right. Raises NotCertain."""
        if not shape or math.prod(shape) != self.entries_per_value or not self._declared.fits_shape(shape):
            raise NotCertain  # also an array of numbers, which are no elements
        self._fitting_shape = shape


class ScalarWriter(DenseWriter):
    """Writer of dense elements that are one number each."""

    __slots__ = ("_int_dtype", "_pack_int")

    def __init__(self, declared: InputType, strict: bool) -> None:
        super().__init__(declared, strict)
        dtype = declared.element_dtype
        # To a float, an int goes by way of float64, which holds every int32 as it is.
        self._int_dtype = _INT64 if dtype.kind in "iu" else _INT32
        self._pack_int = struct.Struct(self._int_dtype.char).pack

    def write_one(self, value: Any) -> int:
        kind = type(value)
        if kind is float:
            self._append(_FLOAT64, _pack_float(value))
        elif (kind is int or kind is bool) and self._accepts_ints:
            self._append(self._int_dtype, self._pack_int(value))
        elif kind is _ndarray and value.size == 1:
            self._extend(value)
        else:
            raise NotCertain
        return self.value_bytes

    def write_many(self, values: Any) -> int:
        kind = type(values)
        count = len(values)
        if kind is _ndarray:
            if values.size != count or not values.ndim:
                raise NotCertain
            self._extend(values)
        elif kind is not list and kind is not tuple:
            raise NotCertain
        elif set(map(type, values)) == {float}:
            self._append(_FLOAT64, struct.pack(f"{count}d", *values))
        else:
            for value in values:
                self.write_one(value)
        return count

    def _append(self, dtype: np.dtype[Any], data: bytes) -> None:
        buffer = self.buffer
        if buffer.dtype is not dtype:
            buffer.switch_dtype(dtype)
        buffer.open_bytes += data


class StringWriter:
    """Writer of strings; the entries of ``buffer`` are their bytes, of which each string is a sequence."""

    __slots__ = ("_is_text", "buffer", "entries_per_value", "value_bytes")

    def __init__(self, dtype: np.dtype[Any], is_text: bool) -> None:
        self._is_text = is_text
        self.buffer = TypedBuffer(dtype)
        self.value_bytes = self.entries_per_value = 1

    def write_one(self, value: Any) -> int:
        raise NotCertain  # a byte is always in a string

    def write_many(self, values: Any) -> int:
        kind = type(values)
        if kind is str and self._is_text:
            values = values.encode()
        elif kind is not bytes or self._is_text:
            raise NotCertain
        if len(values) > normalise.MAX_STRING_BYTES:
            raise NotCertain
        self.buffer.open_bytes += values
        return len(values)


class PythonSlotWriter:
    """Writer that packs the values of one slot. ``add(value)`` returns the column bytes of the value, or raises
    anything, after which only :meth:`rollback` is allowed."""

    __slots__ = ("_counts", "_leaf_writer", "_slot", "_slots", "_strict", "add")

    def __init__(self, slots: Slots, slot: int, strict: bool) -> None:
        declared = slots.types[slot]
        self._slots, self._slot, self._strict = slots, slot, strict
        self._leaf_writer: LeafWriter
        if declared.type == DataType.Dense:
            shaped = ShapedWriter if declared.shape else DenseWriter
            self._leaf_writer = (ScalarWriter if declared.is_scalar else shaped)(declared, strict)
        elif declared.type in STRING_TYPES:
            self._leaf_writer = StringWriter(declared.element_dtype, declared.type == DataType.Text)
        elif declared.type == DataType.SparseValue:
            self._leaf_writer = PairWriter(declared.element_dtype)
        else:
            self._leaf_writer = IdWriter(declared.element_dtype)
        depth = slots.depths[slot]
        self._counts = [array("i") for _ in range(depth)]
        adds: tuple[Callable[[Any], int], ...] = (
            self._leaf_writer.write_one,
            self._write_sequence,
            self._write_nested,
            self._write_deep,
        )
        self.add = adds[depth]

    def add_checked(self, value: object) -> int:
        """Add a value by the general path, as :attr:`add` does; raises :class:`pydp2.errors.BadSample`."""
        return self.add(normalise.normalise(self._slots, self._slot, value, self._strict))

    def rollback(self, rows: int) -> None:
        """Forget all but the first ``rows`` values since the last :meth:`finish`."""
        length = rows
        for counts in self._counts:
            del counts[length:]
            length = sum(counts)
        self._leaf_writer.buffer.truncate(length * self._leaf_writer.entries_per_value)

    def finish(self) -> tuple[list[NDArray[np.int32]], list[NDArray[Any]], bool]:
        """Return the counts and the runs of all values added since the last call; False: they
        are still to be judged."""
        counts = [np.frombuffer(c, np.int32) if c else np.empty(0, np.int32) for c in self._counts]
        self._counts = [array("i") for _ in counts]
        return counts, self._leaf_writer.buffer.finish(), False

    def append_packed(self, counts: list[NDArray[np.int32]], values: NDArray[Any]) -> None:
        """Take values that another writer has packed: the counts of each level, and the elements as one run."""
        for level_counts, added in zip(self._counts, counts, strict=True):
            level_counts.frombytes(added.tobytes())
        buffer = self._leaf_writer.buffer
        buffer.switch_dtype(values.dtype)
        buffer.open_bytes += values.tobytes()

    def _write_sequence(self, value: Any) -> int:
        leaf = self._leaf_writer
        count = leaf.write_many(value)
        self._counts[0].append(count)
        return 4 + count * leaf.value_bytes

    def _write_nested(self, value: Any, level: int = 0) -> int:
        if type(value) is not list and type(value) is not tuple and type(value) is not _ndarray:
            raise NotCertain
        outer, inner = self._counts[level : level + 2]
        many, append = self._leaf_writer.write_many, inner.append
        total = 0
        for group in value:
            count = many(group)
            append(count)
            total += count
        outer.append(len(value))
        return 4 + 4 * len(value) + total * self._leaf_writer.value_bytes

    def _write_deep(self, value: Any) -> int:
        if type(value) is not list and type(value) is not tuple and type(value) is not _ndarray:
            raise NotCertain
        size = 4
        for group in value:
            size += self._write_nested(group, 1)
        self._counts[0].append(len(value))
        return size


def slot_writers(slots: Slots, strict: bool, native: bool) -> tuple[SlotWriter, ...]:
    """Return a writer for each slot. ``native``: in the compiled form."""
    spare = tuple(PythonSlotWriter(slots, i, strict) for i in range(len(slots)))
    if not native:
        return spare
    return tuple(
        _packing.NativeSlotWriter(each, declared, depth, strict)
        for each, declared, depth in zip(spare, slots.types, slots.depths, strict=True)
    )
