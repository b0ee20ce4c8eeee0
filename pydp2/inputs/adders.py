"""The fast paths of packing: one adder per slot, chosen once, that takes what is certainly right and nothing else.

Whatever an adder's :attr:`Adder.add` is not certain of makes it raise (anything): the packer then asks
:func:`pydp2.inputs.checks.normalise`, the authority, and adds what that returns, which always succeeds.

Ids are packed with ``struct``, whose integer codes take exactly what has ``__index__``. For lists of floats there is no
such code: ``struct`` and ``array`` take whatever has ``__float__``. So these go through ``marshal.dumps``, which writes
a type byte before each value; when all of these bytes are those of a float, the list held nothing else, and the bytes
after them are the float64 values. That is faster than one pass over the types alone. Nothing is ever unmarshalled.
"""

from __future__ import annotations

import marshal
import struct
from array import array
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pydp2.inputs import checks
from pydp2.inputs.runs import Runs
from pydp2.inputs.spec import DataType, Slots

# Version 2 of the format has a fixed size for each type and no references between equal values.
_VERSION = 2
_HEAD = 5  # a list or tuple: its type byte and length
FLOATS = np.dtype({"names": ["v"], "formats": ["<f8"], "offsets": [1], "itemsize": 9})
INTS = np.dtype({"names": ["v"], "formats": ["<i4"], "offsets": [1], "itemsize": 5})
PAIRS = np.dtype({"names": ["i", "v"], "formats": ["<i4", "<f8"], "offsets": [6, 11], "itemsize": 19})
_KEPT_STRUCTS = 4096  # lengths above it are too rare to keep a Struct for

_dumps = marshal.dumps
_ndarray = np.ndarray


class Unsure(Exception):
    """The value may be right, but not in a way that a fast path knows."""


class _Packs(dict[int, Callable[..., bytes]]):
    """By length, what packs that many ints."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def __missing__(self, length: int) -> Callable[..., bytes]:
        pack = struct.Struct(f"{length}{self._code}").pack
        if length <= _KEPT_STRUCTS:
            self[length] = pack
        return pack


class Leaf(Protocol):
    """Takes the innermost values of a slot. ``size``: column bytes of one of them; ``width``: how many entries of
    ``runs`` it is."""

    runs: Runs
    size: int
    width: int

    def one(self, value: Any) -> int:
        """Take one value; its bytes."""

    def many(self, values: Any) -> int:
        """Take a list, tuple or array of values; how many."""


class IdLeaf:
    """Ids of index slots, indices of sparse binary ones."""

    __slots__ = ("_native", "_pack_one", "_packs", "runs", "size", "width")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        code = "q" if dtype.itemsize == 8 else "i"
        self._native = dtype
        self._packs = _Packs(code)
        self._pack_one = struct.Struct(code).pack
        self.runs = Runs(dtype)
        self.size = dtype.itemsize
        self.width = 1

    def one(self, value: Any) -> int:
        runs = self.runs
        if runs.key is not self._native:
            runs.switch(self._native)
        runs.buf += self._pack_one(value)
        return self.size

    def many(self, values: Any) -> int:
        runs = self.runs
        kind = type(values)
        if kind is list or kind is tuple:
            count = len(values)
            if runs.key is not self._native:
                runs.switch(self._native)
            runs.buf += self._packs[count](*values)
            return count
        if kind is not _ndarray or values.ndim != 1:
            raise Unsure
        if values.dtype is not runs.key:
            if values.dtype.kind not in "iub":
                raise Unsure
            runs.switch(values.dtype)
        runs.buf.extend(values)
        return len(values)


class PairLeaf:
    """(index, value) pairs of sparse float slots."""

    __slots__ = ("runs", "size", "width")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.runs = Runs(PAIRS)
        self.size = dtype.itemsize + 4
        self.width = 1

    def one(self, value: Any) -> int:
        raise Unsure  # a pair never stands alone

    def many(self, values: Any) -> int:
        runs = self.runs
        kind = type(values)
        if kind is list or kind is tuple:
            count = len(values)
            data = _dumps(values, _VERSION)
            if (
                len(data) != _HEAD + 19 * count
                or data[5::19].strip(b"([")  # each a tuple or list …
                or data[6::19] != b"\2" * count  # … of two (more would not fit the length) …
                or data[10::19] != b"i" * count  # … an int …
                or data[15::19] != b"g" * count  # … and a float
            ):
                raise Unsure
            if runs.key is not PAIRS:
                runs.switch(PAIRS)
            runs.buf += data[_HEAD:]
            return count
        if kind is not _ndarray or values.ndim != 1 or values.dtype != checks.PAIR:
            raise Unsure
        if runs.key is not checks.PAIR:
            runs.switch(checks.PAIR)
        runs.buf.extend(values)
        return len(values)


class DenseLeaf:
    """Dense elements; the entries of ``runs`` are single numbers."""

    __slots__ = ("_float_marks", "_int_marks", "_takes_ints", "runs", "size", "width")

    def __init__(self, width: int, dtype: np.dtype[Any], strict: bool) -> None:
        self.runs = Runs(FLOATS)
        self.width = width
        self.size = width * dtype.itemsize
        # Made at the first list, because a slot of arrays may be much wider than any list.
        self._float_marks = self._int_marks = b""
        # Ints belong to integer slots; a float slot takes them unless strict. (float16 cannot hold every int32.)
        self._takes_ints = dtype.kind in "iu" or (not strict and dtype.itemsize >= 4)

    def one(self, value: Any) -> int:
        runs = self.runs
        kind = type(value)
        if kind is list or kind is tuple:
            data = _dumps(value, _VERSION)
            width = self.width
            if not self._float_marks:
                self._float_marks, self._int_marks = b"g" * width, b"i" * width
            if len(data) == _HEAD + 9 * width and data[5::9] == self._float_marks:
                key = FLOATS
            elif self._takes_ints and len(data) == _HEAD + 5 * width and data[5::5] == self._int_marks:
                key = INTS
            else:
                raise Unsure
            if runs.key is not key:
                runs.switch(key)
            runs.buf += data[_HEAD:]
        elif kind is _ndarray and value.size == self.width:
            self._extend(value)
        else:
            raise Unsure
        return self.size

    def many(self, values: Any) -> int:
        if type(values) is _ndarray:
            count = len(values)
            if values.ndim < 2 or values.size != count * self.width:
                raise Unsure
            self._extend(values)
            return count
        if type(values) is not list and type(values) is not tuple:
            raise Unsure
        one = self.one
        for value in values:
            one(value)
        return len(values)

    def _extend(self, values: NDArray[Any]) -> None:
        runs = self.runs
        if values.dtype is not runs.key:
            if values.dtype.kind not in checks.REAL_KINDS:
                raise Unsure
            runs.switch(values.dtype)
        runs.buf.extend(values)


class Adder:
    """Packs the values of one slot. ``add(value)`` returns the column bytes of the value, or raises anything, after
    which only :meth:`rollback` is allowed."""

    __slots__ = ("_counts", "_leaf", "_slot", "_slots", "_strict", "add")

    def __init__(self, slots: Slots, slot: int, strict: bool) -> None:
        declared = slots.types[slot]
        self._slots, self._slot, self._strict = slots, slot, strict
        self._leaf: Leaf
        if declared.type == DataType.Dense:
            self._leaf = DenseLeaf(declared.dim, declared.element_dtype, strict)
        elif declared.type == DataType.SparseValue:
            self._leaf = PairLeaf(declared.element_dtype)
        else:
            self._leaf = IdLeaf(declared.element_dtype)
        depth = slots.depths[slot]
        self._counts = [array("i") for _ in range(depth)]
        adds: tuple[Callable[[Any], int], ...] = (self._leaf.one, self._flat, self._nested, self._deep)
        self.add = adds[depth]

    def add_checked(self, value: object) -> int:
        """As :attr:`add`, by the general path; raises :class:`pydp2.errors.BadSample`."""
        return self.add(checks.normalise(self._slots, self._slot, value, self._strict))

    def rollback(self, rows: int) -> None:
        """Forget all but the first ``rows`` values since the last :meth:`hand_over`."""
        kept = rows
        for counts in self._counts:
            del counts[kept:]
            kept = sum(counts)
        self._leaf.runs.truncate(kept * self._leaf.width)

    def hand_over(self) -> tuple[list[NDArray[np.int32]], list[NDArray[Any]], bool]:
        """The counts and the runs of all values added since the last call; False: they are still to be judged."""
        counts = [np.frombuffer(c, np.int32) if c else np.empty(0, np.int32) for c in self._counts]
        self._counts = [array("i") for _ in counts]
        return counts, self._leaf.runs.hand_over(), False

    def take_over(self, counts: list[NDArray[np.int32]], values: NDArray[Any]) -> None:
        """Take values that another adder has packed: the counts of each level, and the elements as one run."""
        for mine, theirs in zip(self._counts, counts, strict=True):
            mine.frombytes(theirs.tobytes())
        runs = self._leaf.runs
        runs.switch(values.dtype)
        runs.buf += values.tobytes()

    def _flat(self, value: Any) -> int:
        leaf = self._leaf
        count = leaf.many(value)
        self._counts[0].append(count)
        return 4 + count * leaf.size

    def _nested(self, value: Any, level: int = 0) -> int:
        if type(value) is not list and type(value) is not tuple and type(value) is not _ndarray:
            raise Unsure
        outer, inner = self._counts[level : level + 2]
        many, append = self._leaf.many, inner.append
        total = 0
        for group in value:
            count = many(group)
            append(count)
            total += count
        outer.append(len(value))
        return 4 + 4 * len(value) + total * self._leaf.size

    def _deep(self, value: Any) -> int:
        if type(value) is not list and type(value) is not tuple and type(value) is not _ndarray:
            raise Unsure
        size = 4
        for group in value:
            size += self._nested(group, 1)
        self._counts[0].append(len(value))
        return size
