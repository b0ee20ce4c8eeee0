"""Check and convert a yielded value: the general path of packing, and the words of every :class:`BadSample`.

:func:`normalise` is the authority on types and lengths. The packer's fast paths accept only what they are certain of
and leave the rest to it, so that a verdict never depends on the path. What can be judged for many samples at once
(ranges, overflow, duplicates) is judged in :mod:`.vector_checks`.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.array_likes import as_array, tensor_hint
from pydp2.data.columns.masks import UNMASK_HINT
from pydp2.data.packers.hints import (
    MISSING_HINT,
    dtype_hint,
    element_hint,
    is_missing,
    list_hint,
    number_hint,
    shape_hint,
)
from pydp2.data.schema.input_types import (
    INT32_RANGE,
    STRING_TYPES,
    DataType,
    InputType,
    SequenceType,
    Slots,
    is_bfloat16,
    is_float,
)
from pydp2.errors import BadSample, bad_value, count_text

ValuePath = tuple[int, ...]

PAIR_DTYPE = np.dtype([("i", np.int64), ("v", np.float64)])  # of (index, value) pairs on the general path
REAL_KINDS = "fiub"
MAX_STRING_BYTES = 2**31 - 1  # counts are int32
_INT_TYPES = {int, bool, np.int32, np.int64}
_FLOAT_TYPES = {float, np.float16, np.float32, np.float64}

_MAX_REPR = 120
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 60
_repr.maxlist = _repr.maxtuple = _repr.maxset = _repr.maxdict = 4
_repr.maxlevel = 3


def describe(value: object) -> str:
    """Return ``value`` as messages show it: a shortened repr with its type, the shape of an
    array, the length of a list."""
    name = type(value).__name__
    array = as_array(value)
    if array is not None and array.ndim:
        masked = "masked " if isinstance(array, np.ma.MaskedArray) else ""
        kind = f"a {masked}numpy array" if array is value else f"an array ({name})"
        return f"{kind} of shape {array.shape} and dtype {array.dtype}"
    try:
        text = _repr.repr(value[:_MAX_REPR] if isinstance(value, bytes | bytearray) else value)
        sized = isinstance(value, list | tuple | str | bytes | set | frozenset | dict)
        kind = f"{name} of length {len(value)}" if sized else name  # type: ignore[arg-type]  # these have one
    except Exception:  # a user's __repr__ or __len__ may raise: the type still helps
        return f"a {name}"
    if len(text) > _MAX_REPR:
        text = f"{text[: _MAX_REPR // 2]}…{text[-_MAX_REPR // 2 :]}"
    if value is None or value is True or value is False:
        return text
    return f"{text} ({kind})"


def bad_sample(label: str, expected: str, value: object, path: ValuePath = ()) -> BadSample:
    """Return a :class:`BadSample` about ``value``, found at ``path`` inside what was yielded for the slot."""
    got = describe(value)
    if path:
        got += f" at {''.join(f'[{i}]' for i in path)}"
    return bad_value(label, expected, got, remedy=MISSING_HINT if is_missing(value) else "")


def expected_id(dim: int) -> str:
    """Return the words for one index of a slot of width or range ``dim``."""
    return f"an int in [0, {dim})"


def shape_words(slot_type: InputType, array: NDArray[Any], value: object) -> str:
    """Return the words for a dense element, where ``value`` was yielded, which is ``array`` of another shape."""
    name = "x" if array is value else "np.asarray(x)"
    return f"an array of shape {slot_type.shape}{shape_hint(slot_type, array, name)}"


def integer_limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the greatest value of an integer dtype; 0 and 1 of bool."""
    if dtype.kind == "b":
        return 0, 1
    info = np.iinfo(dtype.type)
    return int(info.min), int(info.max)


def expected_value(slot_type: InputType) -> str:
    """Return the words for one number that fits a dense slot or the values of a sparse one."""
    dtype = slot_type.element_dtype if slot_type.type == DataType.Dense else np.dtype(np.float32)
    if is_float(dtype):
        return f"a number within the range of {dtype}"
    if dtype.kind == "b":
        return "a bool, 0 or 1"
    least, most = integer_limits(dtype)
    return f"a whole number in [{least}, {most}]"


def normalise(slots: Slots, slot: int, value: object, strict: bool) -> Any:
    """Return ``value`` of one slot with every element in the one form that the packer always takes.

    Ids become lists of ints or integer arrays, dense elements lists of floats or arrays of a real dtype, single numbers
    floats or such arrays, pairs arrays of :data:`PAIR_DTYPE`, strings a str or bytes. Raises :class:`BadSample`, at the
    first thing that has a wrong type or length.
    """
    return _Normaliser(slots.types[slot], slots.label(slot), strict).slot_value(value)


def _items(value: object) -> Sequence[Any] | None:
    """Return the items of a list, tuple, array or other sequence; None for anything else, texts and bytes among it."""
    if type(value) is list or type(value) is tuple:
        return value
    if isinstance(value, list | tuple):
        return list(iter(value))  # what it has, whatever its own __len__ says
    array = as_array(value)
    if array is not None:
        return list(array) if array.ndim and not isinstance(array, np.ma.MaskedArray) else None
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(value)
    return None


def _sequence_hint(value: object) -> str:
    """Return the hint for what has no items."""
    if isinstance(as_array(value), np.ma.MaskedArray):
        return UNMASK_HINT
    if isinstance(value, Iterator):
        return " (an iterator cannot be packed: make it a list)"
    if isinstance(value, Mapping | str | bytes | bytearray | memoryview):
        return ""
    return tensor_hint(value, "numpy", "tolist") or (" (make it a list)" if isinstance(value, Iterable) else "")


def _number_of(value: object) -> object:
    """Return the number in an array without dimensions; a bfloat16 as a float32, anything else as it is."""
    array = as_array(value)
    if array is not None and not array.ndim and array.dtype.kind in REAL_KINDS:
        return array[()]
    return np.float32(value) if isinstance(value, np.generic) and is_bfloat16(value.dtype) else value


def _scalar_text(declared: InputType) -> str:
    """Return how a slot of single numbers is declared, for one of vectors of one number."""
    arguments = [] if declared.dtype is None else [repr(declared.dtype.name)]
    if declared.seq_type == SequenceType.SUB_SEQUENCE:
        arguments.append("seq_type=SequenceType.SUB_SEQUENCE")
    name = "scalar_sequence" if declared.seq_type == SequenceType.SEQUENCE else "scalar"
    return f"{name}({', '.join(arguments)})"


class _Normaliser:
    def __init__(self, slot_type: InputType, label: str, strict: bool) -> None:
        self.declared = slot_type
        self.label = label
        self.strict = strict

    def slot_value(self, value: object) -> Any:
        kind = self.declared.type
        level = self.declared.seq_type
        if value is None:
            raise bad_sample(self.label, self.expected_kind(level), value)
        if level == SequenceType.SUB_SEQUENCE:
            subs = self.sequence_items(value, "a list, tuple or numpy array of sub-sequences", ())
            return [self.sequence(sub, (i,)) for i, sub in enumerate(subs)]
        if level == SequenceType.SEQUENCE:
            return self.sequence(value, ())
        if kind == DataType.Index:
            return self.id(value, ())
        return self.element(value, ())

    def expected_kind(self, level: int) -> str:
        if level:
            return "a list, tuple or numpy array of " + ("steps" if level == SequenceType.SEQUENCE else "sub-sequences")
        kind = self.declared.type
        if kind == DataType.Index:
            return expected_id(self.declared.dim)
        if kind in STRING_TYPES:
            return "a str" if kind == DataType.Text else "bytes"
        if self.declared.is_scalar:
            return "a number" if is_float(self.declared.element_dtype) else expected_value(self.declared)
        if kind == DataType.SparseNonValue:
            return "a list, tuple or numpy array of indices"
        if kind == DataType.SparseValue:
            return "a list or tuple of (index, value) pairs"
        return f"{count_text(self.declared.dim, 'number')} in a list, tuple or numpy array"

    def sequence_items(self, value: object, expected: str, path: ValuePath) -> Sequence[Any]:
        """Return ``value`` as an object with a length that can be iterated over. Raises BadSample if it is not one."""
        items = _items(value)
        if items is None:
            raise bad_sample(self.label, expected + _sequence_hint(value), value, path)
        return items

    def sequence(self, value: object, path: ValuePath) -> Any:
        """Return one sequence of elements."""
        if self.declared.type == DataType.Index:
            return self.ids(value, "a list, tuple or numpy array of ints", path)
        array = as_array(value) if self.declared.is_scalar else None
        if type(array) is np.ndarray and array.ndim == 1 and self.takes_as_is(array.dtype):
            return np.ascontiguousarray(array)
        steps = self.sequence_items(value, self.expected_kind(SequenceType.SEQUENCE), path)
        return [self.element(step, (*path, i)) for i, step in enumerate(steps)]

    def takes_as_is(self, dtype: np.dtype[Any]) -> bool:
        """Return True if arrays of ``dtype`` are packed as they are: bfloat16 only for itself, so its bits stay."""
        return dtype.kind in REAL_KINDS or (is_bfloat16(dtype) and dtype == self.declared.element_dtype)

    def element(self, value: object, path: ValuePath) -> Any:
        """Return one element of any type but an id."""
        if self.declared.type == DataType.Dense:
            array = as_array(value)
            if array is not None:
                return self.dense_array(array, value, path)
            return self.number(value, path) if self.declared.is_scalar else self.dense(value, path)
        if self.declared.type in STRING_TYPES:
            return self.string(value, path)
        words = self.expected_kind(SequenceType.NO_SEQUENCE)
        if self.declared.type == DataType.SparseNonValue:
            return self.ids(value, words, path)
        pairs = self.sequence_items(value, words, path)
        quick = self.usual_pairs(pairs)
        return np.array([self.pair(p, (*path, i)) for i, p in enumerate(pairs)], PAIR_DTYPE) if quick is None else quick

    def ids(self, value: object, expected: str, path: ValuePath) -> Any:
        array = as_array(value)
        if type(array) is np.ndarray and array.ndim == 1 and array.dtype.kind in "iub":
            return np.ascontiguousarray(array)
        expected += list_hint(value, int)
        return [self.id(v, (*path, i)) for i, v in enumerate(self.sequence_items(value, expected, path))]

    def id(self, value: object, path: ValuePath) -> int:
        expected = expected_id(self.declared.dim)
        if isinstance(value, np.bool_):
            return int(value)
        try:
            index = operator.index(value)  # type: ignore[arg-type]  # what has no __index__ is what we look for
        except TypeError:
            array = as_array(value)
            if array is not None and array is not value and not array.ndim:
                return self.id(array[()], path)
            if isinstance(value, float | np.floating) and math.isfinite(value):
                expected += " (write int(x))"
            raise bad_sample(self.label, expected + number_hint(value, int), value, path) from None
        least, most = integer_limits(self.declared.element_dtype)
        if not least <= index <= most:
            raise bad_sample(self.label, expected, index, path)
        return index

    def usual_pairs(self, pairs: Sequence[Any]) -> Any:
        """Return pairs of the usual numbers as :meth:`pair` would, or None for any others."""
        if not set(map(type, pairs)) <= {tuple, list} or not set(map(len, pairs)) <= {2}:
            return None
        if not {type(i) for i, _ in pairs} <= _INT_TYPES:
            return None
        if not {type(v) for _, v in pairs} <= (_FLOAT_TYPES if self.strict else _FLOAT_TYPES | _INT_TYPES):
            return None
        try:
            return np.array(list(map(tuple, pairs)), PAIR_DTYPE)
        except OverflowError:
            return None

    def pair(self, value: object, path: ValuePath) -> tuple[int, float]:
        if isinstance(value, np.void) and value.dtype.names:
            value = tuple(value)  # type: ignore[arg-type]  # a record can be walked, which its stub does not say
        array = as_array(value)
        if array is not None and array.ndim == 1:
            value = list(array)
        entries = _items(value) if isinstance(value, list | tuple) else None
        if entries is None or len(entries) != 2:
            raise bad_sample(self.label, "an (index, value) pair", value, path)
        return self.id(entries[0], (*path, 0)), self.floating(entries[1], (*path, 1))

    def string(self, value: object, path: ValuePath) -> str | bytes:
        """Return one string of text or bytes."""
        words = self.expected_kind(SequenceType.NO_SEQUENCE)
        string: str | bytes
        if self.declared.type == DataType.Text:
            if not isinstance(value, str):
                hint = " (write x.decode())" if isinstance(value, bytes | bytearray) else ""
                raise bad_sample(self.label, words + hint, value, path)
            string = str.__str__(value)
            try:
                size = len(string.encode())
            except UnicodeEncodeError:
                raise bad_sample(self.label, f"{words} without lone surrogates", value, path) from None
        else:
            string = self.raw_bytes(value, path)
            size = len(string)
        if size > MAX_STRING_BYTES:
            raise bad_sample(self.label, f"{words} of at most {MAX_STRING_BYTES} bytes", value, path)
        return string

    def raw_bytes(self, value: object, path: ValuePath) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value) if not isinstance(value, memoryview) else value.tobytes()
        array = as_array(value)
        if type(array) is np.ndarray and array.dtype == np.uint8 and array.ndim == 1:
            return array.tobytes()
        words = self.expected_kind(SequenceType.NO_SEQUENCE)
        if isinstance(value, str):
            words += " (write x.encode())"
        elif isinstance(array, np.ma.MaskedArray):
            words += UNMASK_HINT
        elif array is not None and not array.dtype.hasobject:  # the bytes of objects are addresses
            words += f" (write {'x' if array is value else 'np.asarray(x)'}.tobytes())"
        raise bad_sample(self.label, words, value, path)

    def number(self, value: object, path: ValuePath) -> Any:
        """Return the number of a scalar slot."""
        if isinstance(value, list | tuple):
            hint = " (write x[0])" if len(_items(value) or ()) == 1 else ""
            raise bad_sample(self.label, f"a number{hint}", value, path)
        if isinstance(value, np.generic) and is_bfloat16(value.dtype) and self.takes_as_is(value.dtype):
            return np.array([value])
        if is_float(self.declared.element_dtype):
            return self.floating(value, path)
        return np.array([self.integer(value, path)], self.declared.element_dtype)

    def dense_array(self, array: NDArray[Any], value: object, path: ValuePath) -> Any:
        """Return a dense element of ``array``, which was yielded as ``value``."""
        declared, words = self.declared, self.expected_kind(SequenceType.NO_SEQUENCE)
        if isinstance(array, np.ma.MaskedArray):
            raise bad_sample(self.label, words + UNMASK_HINT, value, path)
        if is_bfloat16(array.dtype) and not self.takes_as_is(array.dtype):
            array = array.astype(np.float32)
        name = "x" if array is value else "np.asarray(x)"
        if not self.takes_as_is(array.dtype):
            words = f"{count_text(declared.dim, 'number')}, an array of a real dtype{dtype_hint(array, name)}"
            raise bad_sample(self.label, words, value, path)
        if not declared.fits_shape(array.shape):
            raise bad_sample(self.label, shape_words(declared, array, value), value, path)
        if array.size != declared.dim:
            raise bad_sample(self.label, words, value, path)
        return np.ascontiguousarray(array)

    def dense(self, value: object, path: ValuePath) -> Any:
        """Return a dense element of anything but an array."""
        entries = _items(value)
        if entries is None or len(entries) != self.declared.dim:
            hint = self.list_hint(value) or element_hint(self.declared, value)
            hint = hint or (_sequence_hint(value) if entries is None else "")
            raise bad_sample(self.label, self.expected_kind(SequenceType.NO_SEQUENCE) + hint, value, path)
        kinds = set(map(type, entries))
        if kinds == {float}:
            return list(entries)
        if not kinds.isdisjoint((list, tuple)) and (hint := element_hint(self.declared, value)):
            raise bad_sample(self.label, self.expected_kind(SequenceType.NO_SEQUENCE) + hint, value, path)
        if is_float(self.declared.element_dtype):
            if kinds <= (_FLOAT_TYPES if self.strict else _FLOAT_TYPES | _INT_TYPES):
                with contextlib.suppress(OverflowError):  # the long way finds which one it was
                    return list(map(float, entries))
            return [self.floating(v, (*path, i)) for i, v in enumerate(entries)]
        if kinds == {int} and all(-INT32_RANGE <= v < INT32_RANGE for v in entries):
            return list(entries)
        return np.array([self.integer(v, (*path, i)) for i, v in enumerate(entries)], self.declared.element_dtype)

    def list_hint(self, value: object) -> str:
        """Return the hint for a number where a vector of one is declared."""
        if self.declared.dim != 1:
            return ""
        return list_hint(value, float, f", or declare {_scalar_text(self.declared)}")

    def floating(self, value: object, path: ValuePath) -> float:
        """Return a number for a float slot as a float64."""
        if not isinstance(value, float | np.floating):
            value = _number_of(value)
        if isinstance(value, float | np.floating):
            number = float(value)
            if math.isinf(number) and np.isfinite(value):  # a long double may be wider than float64
                raise bad_sample(self.label, expected_value(self.declared), value, path)
            return number
        is_real = isinstance(value, numbers.Real | np.bool_) and not isinstance(value, np.timedelta64)
        if self.strict or not is_real:
            words = "a float" if self.strict else "a number"
            hint = " (write float(x))" if is_real else number_hint(value, float)
            raise bad_sample(self.label, words + hint, value, path)
        try:
            return float(value)  # type: ignore[arg-type]
        except OverflowError:
            raise bad_sample(self.label, expected_value(self.declared), value, path) from None

    def integer(self, value: object, path: ValuePath) -> int:
        """Return a number for a slot of an integer dtype, which takes ints and whole floats alike."""
        words = expected_value(self.declared)
        value = _number_of(value)
        if isinstance(value, np.timedelta64) or not isinstance(value, numbers.Real | np.bool_ | np.floating):
            raise bad_sample(self.label, words + number_hint(value, int), value, path)
        try:
            number = int(value)  # type: ignore[arg-type]  # every real number has __int__
        except (OverflowError, ValueError):  # inf and NaN
            raise bad_sample(self.label, words, value, path) from None
        least, most = integer_limits(self.declared.element_dtype)
        if number != value or not least <= number <= most:
            raise bad_sample(self.label, words, value, path)
        return number
