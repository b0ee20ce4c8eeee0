"""Describe slots: type, width and sequence level; the constructors that users write; all slots of a provider together.

This module also lists the arrays that store a slot (:attr:`Slots.fields`), because everything that stores or sends
samples starts from there. Nothing here looks at a sample.
"""

from __future__ import annotations

import importlib
import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import dropwhile
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pydp2.errors import OptionError, OptionTypeError, RemoteProtocolError, count_text

INT32_RANGE = 2**31  # ids below it are int32; a wider slot takes int64
_COUNT = np.dtype(np.int32)  # of the arrays that are counts
_MAX_SIDES = 32  # numpy allows twice as many, and a batch adds one
_DTYPE_CODE = re.compile("[<>|=]?[fiu][1248]|[|]b1|bfloat16")
_ROW_BYTES_LIMIT = 2**40  # a dense row beyond it cannot be meant, and numpy cannot even shape it


class DataType(IntEnum):
    """Kind of one element of a slot."""

    Dense = 0
    SparseNonValue = 1
    SparseValue = 2
    Index = 3
    Text = 4
    Raw = 5


class SequenceType(IntEnum):
    """Depth to which the elements of a slot are nested."""

    NO_SEQUENCE = 0
    SEQUENCE = 1
    SUB_SEQUENCE = 2


STRING_TYPES = frozenset({DataType.Text, DataType.Raw})
"""Types whose elements are strings: text, stored as UTF-8, and bytes."""
_DATA_TYPES = frozenset(DataType)
_SEQUENCE_TYPES = frozenset(SequenceType)


def _enum_name(kind: type[IntEnum], code: int) -> str:
    try:
        return f"{kind.__name__}.{kind(code).name}"
    except ValueError:
        return f"INVALID({code})"


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Return True for the dtype of ``ml_dtypes.bfloat16``."""
    return dtype.kind == "V" and dtype.name == "bfloat16"


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return True for a dtype of floating-point numbers, bfloat16 included."""
    return dtype.kind == "f" or is_bfloat16(dtype)


@dataclass(frozen=True, repr=False)
class InputType:
    """Declaration of one slot; made by the constructors below.

    ``dim``: width of a dense or sparse element, or the range of an index; 0 for text and bytes. ``seq_type``, ``type``:
    codes of :class:`SequenceType` and :class:`DataType`. Dense slots may also declare ``dtype`` (None: float32; kept in
    the machine's byte order) and ``shape`` (None: ``(dim,)``; ``()``: one number). Raises :class:`OptionError` or
    :class:`OptionTypeError`. See docs/semantics.md.
    """

    dim: int
    seq_type: int
    type: int
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise OptionTypeError(f"the dim of an input type must be an int, got {self.dim!r}")
        # A slot without a place for a number may be empty: rows of a dictionary without words.
        alone = self.type == DataType.Index and self.seq_type == SequenceType.NO_SEQUENCE
        if not (0 <= self.dim < 2**63):
            raise OptionError(f"the dim of an input type must be at least 0 and below 2**63, got {self.dim}")
        if not self.dim and (alone or self.type == DataType.Dense):
            what = "the range of an integer slot" if alone else "the width of a dense slot"
            raise OptionError(f"{what} must be at least 1, got 0: no value could be right")
        if self.dim and self.type in STRING_TYPES:
            raise OptionError(f"a slot of text or bytes has no width, so its dim must be 0, got {self.dim}")
        if self.type != DataType.Dense:
            if self.dtype is not None or self.shape is not None:
                raise OptionError(f"only dense slots declare a dtype or a shape, got {self!r}")
            return
        self._check_dense()

    def _check_dense(self) -> None:
        if self.dtype is not None and not isinstance(self.dtype, np.dtype):
            raise OptionTypeError(f"the dtype of an input type must be a numpy dtype, got {self.dtype!r}")
        known = self.dtype is None or is_bfloat16(self.dtype) or self.dtype.kind in "fiub"
        if not known or (self.dtype is not None and self.dtype.itemsize > 8):
            raise OptionError(
                f"a dense slot's dtype must be bool, an integer type, bfloat16 or float16 to float64, got {self.dtype}"
            )
        if self.dtype is not None and not is_bfloat16(self.dtype):  # samples are packed in the machine's byte order
            object.__setattr__(self, "dtype", self.dtype.newbyteorder("="))
        if self.dtype == np.float32:  # what repeats a default is dropped, so that equal declarations are equal
            object.__setattr__(self, "dtype", None)
        if self.shape == (self.dim,):
            object.__setattr__(self, "shape", None)
        if self.shape is not None and any(side < 1 for side in self.shape):
            raise OptionError(f"every side of a dense slot's shape must be at least 1, got {self.shape}")
        if self.shape is not None and len(self.shape) > _MAX_SIDES:
            raise OptionError(f"a dense slot's shape has at most {_MAX_SIDES} sides, got {len(self.shape)}")
        if self.shape is not None and math.prod(self.shape) != self.dim:
            elements = count_text(math.prod(self.shape), "element")
            raise OptionError(f"the shape {self.shape} has {elements}, but dim is {self.dim}")
        if self.dim * self.element_dtype.itemsize > _ROW_BYTES_LIMIT:
            raise OptionError(f"a dense row of {self.dim} values would be larger than a TiB")

    @cached_property
    def element_dtype(self) -> np.dtype[Any]:
        """dtype of a dense slot's values in a batch, of another slot's ids or indices, or of the bytes of strings."""
        if self.type == DataType.Dense:
            return self.dtype if self.dtype is not None else np.dtype(np.float32)
        if self.type in STRING_TYPES:
            return np.dtype(np.uint8)
        return np.dtype(np.int64 if self.dim > INT32_RANGE else np.int32)

    @cached_property
    def element_shape(self) -> tuple[int, ...]:
        """Shape of one dense element."""
        return self.shape if self.shape is not None else (self.dim,)

    def fits_shape(self, shape: tuple[int, ...]) -> bool:
        """Return True if an array of ``shape`` with :attr:`dim` elements has them in the order of a dense element.

        An array of one dimension has, and one of the declared shape; leading sides of 1 do not count. If the slot
        declares no shape of several sides, each array has.
        """
        if self.shape is None or len(self.shape) < 2 or shape == self.shape:
            return True
        inner = inner_sides(shape)
        return len(inner) < 2 or inner == inner_sides(self.shape)

    @cached_property
    def stored_dtype(self) -> np.dtype[Any]:
        """dtype in which elements are stored and sent: that of the batch, or uint16 for bfloat16, which is no dtype of
        numpy's own and has no buffers."""
        dtype = self.element_dtype
        return np.dtype(np.uint16) if is_bfloat16(dtype) else dtype

    @property
    def is_scalar(self) -> bool:
        """True if an element is one number by itself, and no vector."""
        return self.shape == ()

    @cached_property
    def depth(self) -> int:
        """Number of arrays that are counts: one for each level of sequences, one more where elements differ in size."""
        return self.seq_type + (self.type not in (DataType.Dense, DataType.Index))

    @property
    def has_lengths(self) -> bool:
        """True if samples have lengths by which they are put into buckets: a sequence, or strings."""
        return bool(self.seq_type) or self.type in STRING_TYPES

    @property
    def length_level(self) -> int:
        """Level below the rows on which :attr:`has_lengths` counts: time steps of a sequence, else bytes."""
        return max(self.seq_type, 1) - 1

    def as_declared(self, elements: NDArray[Any]) -> NDArray[Any]:
        """Return ``elements``, of :attr:`stored_dtype`, as an array of :attr:`element_dtype`, without a copy."""
        return elements if self.dtype is None or not is_bfloat16(self.dtype) else elements.view(self.dtype)

    def __repr__(self) -> str:
        sequence, kind = _enum_name(SequenceType, self.seq_type), _enum_name(DataType, self.type)
        text = f"dim={self.dim}, seq_type={sequence}, type={kind}"
        if self.dtype is not None:
            text += f", dtype={self.dtype.name}"
        if self.shape is not None:
            text += f", shape={self.shape}"
        return f"InputType({text})"


def inner_sides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``shape`` without its leading sides of 1."""
    return tuple(dropwhile((1).__eq__, shape))


def _dense_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            dtype = importlib.import_module("ml_dtypes").bfloat16
        except ImportError as exc:
            raise ImportError(
                "a slot of dtype bfloat16 needs ml_dtypes, which is not installed: pip install 'ml_dtypes>=0.4'"
            ) from exc
    try:
        made = np.dtype(dtype)
    except TypeError as exc:
        raise OptionTypeError(f"a dense slot's dtype must be one that numpy knows, got {dtype!r}") from exc
    return made if is_bfloat16(made) else made.newbyteorder("=")  # so that float32 in any order is the default


def _checked_sides(shape: Sequence[SupportsIndex]) -> tuple[int, ...]:
    try:
        sides = tuple(operator.index(side) for side in shape)
    except TypeError as exc:
        raise OptionTypeError(f"a dense slot's shape must be a tuple of ints, got {shape!r}") from exc
    if any(side < 1 for side in sides):
        raise OptionError(f"every side of a dense slot's shape must be at least 1, got {sides}")
    return sides


def _input_type(
    dim: SupportsIndex,
    seq_type: int,
    kind: DataType,
    dtype: DTypeLike | None = None,
    shape: Sequence[SupportsIndex] | None = None,
) -> InputType:
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        hint = "; only dense slots have a shape" if isinstance(dim, tuple | list) else ""
        raise OptionTypeError(f"the width or range of a slot must be an int, got {dim!r}{hint}")
    made = None if dtype is None else _dense_dtype(dtype)
    width = operator.index(dim)
    sides = None if shape is None else _checked_sides(shape)
    try:
        level = SequenceType(seq_type)
    except ValueError:
        raise OptionError(f"seq_type must be one of SequenceType, got {seq_type!r}") from None
    return InputType(dim=width, seq_type=level, type=kind, dtype=made, shape=sides)


def dense_vector(
    dim: SupportsIndex | Sequence[SupportsIndex],
    seq_type: int = SequenceType.NO_SEQUENCE,
    *,
    dtype: DTypeLike | None = None,
    shape: Sequence[SupportsIndex] | None = None,
) -> InputType:
    """Declare ``dim`` numbers: a list or tuple of floats, or an array of any real dtype with dim elements.

    ``shape``: an array of several dimensions must have it, apart from leading sides of 1; without it, any shape is
    right. A tuple or list in the place of ``dim`` is the shape: ``dense_vector((3, 32, 32))`` declares what
    ``dense_vector(3072, shape=(3, 32, 32))`` does.
    ``dtype``: bool, an integer type, float16 to float64, or ``"bfloat16"``, which needs the package ml_dtypes.
    In a batch: ``(rows, dim)`` float32, or the declared ``dtype`` and ``(rows, *shape)``. Raises :class:`OptionError`,
    :class:`OptionTypeError`, and ImportError, with the remedy, if ml_dtypes is not installed. See docs/semantics.md.
    """
    if isinstance(dim, tuple | list):
        if shape is not None:
            raise OptionTypeError(f"a dense slot has one shape, got {dim!r} and shape={shape!r}; leave out one of them")
        sides = _checked_sides(dim)
        return _input_type(math.prod(sides), seq_type, DataType.Dense, dtype, sides)
    return _input_type(dim, seq_type, DataType.Dense, dtype, shape)  # type: ignore[arg-type]  # it may be anything


def dense_vector_sequence(
    dim: SupportsIndex | Sequence[SupportsIndex],
    *,
    dtype: DTypeLike | None = None,
    shape: Sequence[SupportsIndex] | None = None,
) -> InputType:
    """Declare a list of dense elements per sample, or one array ``(steps, dim)``. See docs/semantics.md."""
    return dense_vector(dim, SequenceType.SEQUENCE, dtype=dtype, shape=shape)


def dense_vector_sub_sequence(
    dim: SupportsIndex | Sequence[SupportsIndex],
    *,
    dtype: DTypeLike | None = None,
    shape: Sequence[SupportsIndex] | None = None,
) -> InputType:
    """Declare a list of lists of dense elements per sample. See docs/semantics.md."""
    return dense_vector(dim, SequenceType.SUB_SEQUENCE, dtype=dtype, shape=shape)


def sparse_binary_vector(dim: SupportsIndex, seq_type: int = SequenceType.NO_SEQUENCE) -> InputType:
    """Declare the indices, each in ``[0, dim)`` and once, of the columns that are 1. See docs/semantics.md."""
    return _input_type(dim, seq_type, DataType.SparseNonValue)


def sparse_binary_vector_sequence(dim: SupportsIndex) -> InputType:
    """Declare a list of sparse binary elements per sample. See docs/semantics.md."""
    return sparse_binary_vector(dim, SequenceType.SEQUENCE)


def sparse_binary_vector_sub_sequence(dim: SupportsIndex) -> InputType:
    """Declare a list of lists of sparse binary elements per sample. See docs/semantics.md."""
    return sparse_binary_vector(dim, SequenceType.SUB_SEQUENCE)


def sparse_float_vector(dim: SupportsIndex, seq_type: int = SequenceType.NO_SEQUENCE) -> InputType:
    """Declare ``(index, value)`` pairs, each index in ``[0, dim)`` and once. See docs/semantics.md."""
    return _input_type(dim, seq_type, DataType.SparseValue)


def sparse_float_vector_sequence(dim: SupportsIndex) -> InputType:
    """Declare a list of sparse float elements per sample. See docs/semantics.md."""
    return sparse_float_vector(dim, SequenceType.SEQUENCE)


def sparse_float_vector_sub_sequence(dim: SupportsIndex) -> InputType:
    """Declare a list of lists of sparse float elements per sample. See docs/semantics.md."""
    return sparse_float_vector(dim, SequenceType.SUB_SEQUENCE)


def integer_value(value_range: SupportsIndex, seq_type: int = SequenceType.NO_SEQUENCE) -> InputType:
    """Declare one int in ``[0, value_range)``; int32 in a batch, int64 if the range asks for it.
    See docs/semantics.md."""
    return _input_type(value_range, seq_type, DataType.Index)


def integer_value_sequence(value_range: SupportsIndex) -> InputType:
    """Declare a list, tuple or 1-D array of ints per sample. See docs/semantics.md."""
    return integer_value(value_range, SequenceType.SEQUENCE)


def integer_value_sub_sequence(value_range: SupportsIndex) -> InputType:
    """Declare a list of lists of ints per sample. See docs/semantics.md."""
    return integer_value(value_range, SequenceType.SUB_SEQUENCE)


def scalar(dtype: DTypeLike | None = None, seq_type: int = SequenceType.NO_SEQUENCE) -> InputType:
    """Declare one number of any value: ``scalar()`` is float32, ``scalar("int64")`` an int.

    In a batch: ``(rows,)`` of ``dtype``, which may be any of :func:`dense_vector`. Raises what that function raises.
    See docs/semantics.md.
    """
    return _input_type(1, seq_type, DataType.Dense, dtype, ())


def scalar_sequence(dtype: DTypeLike | None = None) -> InputType:
    """Declare a list, tuple or 1-D array of numbers per sample, as of a time series. See docs/semantics.md."""
    return scalar(dtype, SequenceType.SEQUENCE)


def text(seq_type: int = SequenceType.NO_SEQUENCE) -> InputType:
    """Declare one str, of any length; a :class:`pydp2.StringArray` in a batch. See docs/semantics.md."""
    return _input_type(0, seq_type, DataType.Text)


def text_sequence() -> InputType:
    """Declare a list of str per sample. See docs/semantics.md."""
    return text(SequenceType.SEQUENCE)


def raw(seq_type: int = SequenceType.NO_SEQUENCE) -> InputType:
    """Declare one bytes object, of any length, for example a file; a :class:`pydp2.BinaryArray` in a batch. See
    docs/semantics.md."""
    return _input_type(0, seq_type, DataType.Raw)


def raw_sequence() -> InputType:
    """Declare a list of bytes objects per sample. See docs/semantics.md."""
    return raw(SequenceType.SEQUENCE)


dense_slot = dense_array = dense_vector
sparse_non_value_slot = sparse_binary_vector
sparse_value_slot = sparse_vector = sparse_float_vector
sparse_vector_sequence = sparse_float_vector_sequence
sparse_vector_sub_sequence = sparse_float_vector_sub_sequence
index_slot = integer_value
integer_sequence = integer_value_sequence


class Field(NamedTuple):
    """One of the arrays that store a slot.

    ``kind`` is the meaning of an entry. Counts: "subs" (sub-sequences of a row), "steps" (steps of a row or
    sub-sequence), "nnz" (entries of an element), "nbytes" (bytes of a string). Elements: "ids", "indices", "values" or
    "bytes". ``shape`` is the shape of one entry, ``entry_bytes`` its size.
    """

    kind: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    entry_bytes: int


def _field(kind: str, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> Field:
    return Field(kind, dtype, shape, dtype.itemsize * math.prod(shape))


def _fields_of(slot_type: InputType) -> tuple[Field, ...]:
    fields = [_field(kind, _COUNT) for kind in ((), ("steps",), ("subs", "steps"))[slot_type.seq_type]]
    if slot_type.type == DataType.Dense:
        return (*fields, _field("values", slot_type.stored_dtype, slot_type.element_shape))
    if slot_type.type == DataType.Index:
        return (*fields, _field("ids", slot_type.element_dtype))
    if slot_type.type in STRING_TYPES:
        return (*fields, _field("nbytes", _COUNT), _field("bytes", slot_type.element_dtype))
    fields += [_field("nnz", _COUNT), _field("indices", slot_type.element_dtype)]
    if slot_type.type == DataType.SparseValue:
        fields.append(_field("values", np.dtype(np.float32)))
    return tuple(fields)


@dataclass(frozen=True)
class Slots:
    """All slots of a provider, in order; ``names`` when they were declared as a dict.

    Raises :class:`OptionError` or :class:`OptionTypeError` when made of something else. See docs/semantics.md.
    """

    types: tuple[InputType, ...]
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.types:
            raise OptionError("input_types must declare at least one slot")
        for i, declared in enumerate(self.types):
            if not isinstance(declared, InputType):
                raise OptionTypeError(
                    f"input_types must hold input types like dense_vector(10); slot {i} is {declared!r}"
                )
            if declared.seq_type not in _SEQUENCE_TYPES or declared.type not in _DATA_TYPES:
                raise OptionError(f"slot {i} has an unknown type code: {declared!r}")
        if self.names is not None:
            if any(not isinstance(n, str) for n in self.names):
                raise OptionTypeError(f"the names of slots must be strings, got {self.names!r}")
            if len(self.names) != len(self.types) or len(set(self.names)) != len(self.names):
                many = count_text(len(self.types), "slot")
                raise OptionError(f"{many} cannot have the names {self.names!r}: each needs one of its own")

    def __len__(self) -> int:
        return len(self.types)

    def index(self, name: str) -> int:
        """Return the position of the slot called ``name``. Raises KeyError that lists the names if there is none."""
        if self.names is None or name not in self.names:
            known = "slots have no names, only positions" if self.names is None else f"slots: {', '.join(self.names)}"
            raise KeyError(f"no slot is called {name!r}; {known}")
        return self.names.index(name)

    def label(self, i: int) -> str:
        """Return the name of a slot in messages: its own, or "slot i"."""
        return self.names[i] if self.names is not None else f"slot {i}"

    @cached_property
    def fields(self) -> tuple[tuple[Field, ...], ...]:
        """For each slot the arrays that store it: counts from the outside in, then the elements."""
        return tuple(_fields_of(t) for t in self.types)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """For each slot the number of its arrays that are counts. Array 0 of a slot has one entry for each row; array
        i > 0 has as many entries as count array ``min(i, depth) - 1`` sums to."""
        return tuple(t.depth for t in self.types)

    @cached_property
    def row_bytes(self) -> int:
        """Number of column bytes of each sample, 0 if samples differ."""
        return 0 if any(self.depths) else sum(fields[0].entry_bytes for fields in self.fields)

    def to_wire(self) -> list[Any]:
        """Return plain lists of plain values; see :meth:`from_wire`."""
        types = [
            [
                t.dim,
                int(t.seq_type),
                int(t.type),
                None if t.dtype is None else "bfloat16" if is_bfloat16(t.dtype) else t.dtype.str,
                None if t.shape is None else list(t.shape),
            ]
            for t in self.types
        ]
        return [types, None if self.names is None else list(self.names)]

    @classmethod
    def from_wire(cls, wire: object) -> Slots:
        """Return the slots of ``wire``, a result of :meth:`to_wire`. Raises :class:`RemoteProtocolError` for anything
        else."""
        try:
            types, names = _checked_list(wire, 2)
            made = [_input_type_from_wire(t) for t in _checked_list(types)]
            return cls(tuple(made), None if names is None else tuple(_checked_list(names)))
        except (OptionError, OptionTypeError, TypeError, ValueError) as exc:
            raise RemoteProtocolError(f"invalid slots: {exc}") from exc


def _checked_list(value: object, length: int | None = None) -> list[Any]:
    if not isinstance(value, list | tuple) or (length is not None and len(value) != length):
        raise TypeError(f"expected a list{'' if length is None else f' of {length}'}, got a {type(value).__name__}")
    return list(value)


def _input_type_from_wire(wire: object) -> InputType:
    dim, seq_type, kind, dtype, shape = _checked_list(wire, 5)
    for code in (dim, seq_type, kind):
        if isinstance(code, bool) or not isinstance(code, int):
            raise TypeError(f"expected an int, got a {type(code).__name__}")
    if dtype is not None and (not isinstance(dtype, str) or not _DTYPE_CODE.fullmatch(dtype)):
        raise TypeError("expected a dtype's short name")  # numpy would evaluate anything here, even Python
    sides = None if shape is None else _checked_list(shape)
    if DataType(kind) != DataType.Dense and (dtype, sides) != (None, None):
        raise ValueError("only dense slots have a dtype or a shape")
    return _input_type(dim, seq_type, DataType(kind), dtype, sides)


MIN_CELL_BYTES = 1024
"""Number of bytes of a row from which on a cell pays: for smaller rows handles cost as much as the rows."""


def suits_cells(slots: Slots) -> bool:
    """Return True if samples of ``slots`` are all of one size, and so large that they are given cells."""
    return slots.row_bytes >= MIN_CELL_BYTES
