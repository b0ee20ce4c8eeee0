"""Take the arrays and tables of Arrow as values of slots: numpy views of Arrow's own buffers, no object per value.

Theory of operation. Arrow lays a column out nearly as pydp2 does: numbers side by side; strings as offsets and bytes;
lists as offsets and the column of their items. So :func:`plain_values` only looks at buffers. What differs:

- An array may be a slice of its buffers (``offset``), and so may each child of a list. Every view is cut to it.
- An entry may be null; its place in the buffers has any value then. A view cannot say so, so the entries that are null,
  or have a null somewhere in them, are returned beside it, and are judged one by one, as None.
- Bools are bits, and dictionaries, views of strings and runs have an indirection: these are copied.
- Offsets come from whoever made the array. They are compared with the length of what they point into before numpy
  follows them, so an array that lies is an error and no read of foreign memory.

:func:`input_type` says which slot takes a type of Arrow. It and :func:`plain_values` are the two sides of one table
(docs/formats.md, "Types of Arrow"). Objects of other libraries come in by Arrow's PyCapsule interface
(``__arrow_c_array__``, ``__arrow_c_stream__``). pyarrow is imported by this module alone, and not before it is needed.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.batch import BinaryArray, StringArray
from pydp2.data.columns.columns import Array, Ints, offsets
from pydp2.data.schema.input_types import InputType, dense_vector, raw, scalar, text
from pydp2.errors import OptionError, OptionTypeError

MAX_LEVELS = 2
"""Levels of lists that a slot has at most."""

Mask = NDArray[np.bool_]
_CAPSULES = ("__arrow_c_array__", "__arrow_c_stream__")


class Lists(NamedTuple):
    """Lists: number i has the entries ``starts[i]`` to ``starts[i + 1]`` of ``values``; ``starts`` are int64."""

    starts: Ints
    values: PlainValues


class CheckedText(StringArray):
    """Text that Arrow has found to be UTF-8, each string of it."""


PlainValues = Array | StringArray | BinaryArray | Lists


@functools.cache
def pyarrow(module: str = "") -> Any:
    """Return pyarrow, or a ``module`` of it. Raises ImportError, with the remedy: it is not installed."""
    try:
        return importlib.import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ImportError as error:
        raise ImportError("Arrow's data need pyarrow, which is not installed: pip install 'pyarrow>=16'") from error


def exports_arrow(value: object) -> bool:
    """Return True for an object of pyarrow, or another one with Arrow's PyCapsule interface.

    Those of pandas are taken as numpy's arrays: pandas exports NaN as null.
    """
    kind = type(value)
    return any(hasattr(kind, name) for name in _CAPSULES) and kind.__module__.partition(".")[0] != "pandas"


def has_pyarrow() -> bool:
    """Return True if pyarrow can be imported."""
    try:
        pyarrow()
    except ImportError:
        return False
    return True


def as_arrow(value: Any) -> Any:
    """Return what :func:`exports_arrow` as a pyarrow Array, ChunkedArray, RecordBatch or Table. Raises ImportError."""
    pa = pyarrow()
    if isinstance(value, pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table):
        return value
    if isinstance(value, pa.Scalar | pa.DataType | pa.Schema | pa.Field):
        raise OptionTypeError(f"rows() takes Arrow's arrays, batches and tables, got a {type(value).__name__}")
    if hasattr(value, _CAPSULES[0]):
        array = pa.array(value)
        return pa.RecordBatch.from_struct_array(array) if pa.types.is_struct(array.type) else array
    chunked = pa.chunked_array(value)
    return pa.Table.from_struct_array(chunked) if pa.types.is_struct(chunked.type) else chunked


def table_columns(table: Any) -> dict[str, Any] | None:
    """Return the columns of a RecordBatch, Table or array of structs by their names, None for any other array.

    A struct gives a column for each of its fields, ``a.b`` for field b of column a.

    Raises OptionError: a name occurs twice.
    """
    pa = pyarrow()
    if isinstance(table, pa.Array | pa.ChunkedArray):
        if not pa.types.is_struct(table.type):
            return None
        pairs = _fields(table)
    else:
        pairs = zip(table.schema.names, table.columns, strict=True)
    columns: dict[str, Any] = {}
    for name, column in _flattened(pairs):
        if name in columns:
            raise OptionError(f"columns must have different names, but {name} occurs twice")
        columns[name] = column
    return columns


def flattened_types(fields: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, type) of each pyarrow Field, with those of the fields of a struct, ``a.b``, in its place."""
    for field in fields:
        if pyarrow().types.is_struct(field.type):
            yield from ((f"{field.name}.{inner}", kind) for inner, kind in flattened_types(field.type))
        else:
            yield field.name, field.type


def _flattened(columns: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield (name, column), with the fields of a struct, ``a.b``, in the place of a column a of structs."""
    for name, column in columns:
        if pyarrow().types.is_struct(column.type):
            yield from ((f"{name}.{inner}", field) for inner, field in _flattened(_fields(column)))
        else:
            yield name, column


def _fields(column: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, column) of each field of a column of structs. A field of a null struct is null."""
    return zip((field.name for field in column.type), column.flatten(), strict=True)


# -- types -------------------------------------------------------------------------------------------------------------
def input_type(kind: Any) -> InputType:
    """Return the input type for a column of the Arrow type ``kind``, a pyarrow DataType.

    Numbers are :func:`scalar` of their dtype; times and dates are whole numbers in the unit of their type. A list is a
    sequence, a list of lists a nested one; a list of fixed size of numbers is a :func:`dense_vector` with its shape.

    Raises OptionTypeError, with a remedy: no slot takes the type.
    """
    whole, levels, sides = kind, 0, list[int]()
    while True:
        kind, shape = _stored(kind)
        sides += shape
        if _is_list(kind) and not sides:
            levels += 1
        elif pyarrow().types.is_fixed_size_list(kind):
            sides.append(kind.list_size)
        else:
            break
        kind = kind.value_type
    string = _is_text(kind)
    if string is not None:  # a list of so many strings is a list
        levels, sides = levels + len(sides), []
    dtype = None if string is not None else _number_dtype(kind)
    if (string is None and dtype is None) or levels > MAX_LEVELS or 0 in sides:
        raise OptionTypeError(f"no slot takes Arrow's type {whole}; {_remedy(kind, levels, sides)}")
    if string is not None:
        return text(levels) if string else raw(levels)
    return dense_vector(tuple(sides), levels, dtype=dtype) if sides else scalar(dtype, levels)


def _stored(kind: Any) -> tuple[Any, list[int]]:
    """Return the type in which a type is stored, without dictionary, runs and extension; and the shape of a tensor."""
    pa = pyarrow()
    while True:
        if isinstance(kind, pa.FixedShapeTensorType):
            if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
                raise OptionTypeError(f"no slot takes Arrow's type {kind}; store its elements in C order")
            return kind.value_type, list(kind.shape)
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind, []


class _Kinds(NamedTuple):
    """Types of Arrow by their ids: the dtypes of numbers, and what else has the layout of text, bytes or lists."""

    numbers: dict[int, np.dtype[Any]]
    text: frozenset[int]
    bytes: frozenset[int]
    lists: frozenset[int]


@functools.cache
def _kinds() -> _Kinds:
    ids: dict[str, int] = {
        name.removeprefix("Type_"): number for name, number in vars(pyarrow("lib")).items() if name.startswith("Type_")
    }
    named = {name: name.lower() for name in ("BOOL", *(f"{u}INT{bits}" for u in ("", "U") for bits in (8, 16, 32, 64)))}
    named |= {"HALF_FLOAT": "float16", "FLOAT": "float32", "DOUBLE": "float64", "DATE32": "int32", "TIME32": "int32"}
    named |= dict.fromkeys(("DATE64", "TIME64", "TIMESTAMP", "DURATION"), "int64")

    def known(*names: str) -> frozenset[int]:
        return frozenset(ids[name] for name in names if name in ids)  # older releases have fewer

    return _Kinds(
        {ids[name]: np.dtype(dtype) for name, dtype in named.items()},
        known("STRING", "LARGE_STRING", "STRING_VIEW"),
        known("BINARY", "LARGE_BINARY", "BINARY_VIEW", "FIXED_SIZE_BINARY"),
        known("LIST", "LARGE_LIST"),
    )


def _is_list(kind: Any) -> bool:
    """Return True for lists of any length; a map is none."""
    return kind.id in _kinds().lists


def _is_text(kind: Any) -> bool | None:
    """Return True for text, False for bytes, None for anything else."""
    kinds, number = _kinds(), kind.id
    return True if number in kinds.text else False if number in kinds.bytes else None


def _number_dtype(kind: Any) -> np.dtype[Any] | None:
    """Return the dtype of a type of numbers, None for any other type."""
    return _kinds().numbers.get(kind.id)


def _remedy(kind: Any, levels: int, sides: list[int]) -> str:
    """Return what to do about a type that no slot takes: ``kind`` inside of ``levels`` of lists, and of fixed ones with
    ``sides``."""
    types = pyarrow().types
    if types.is_decimal(kind):
        return "cast it to float64, or to string, when the data are written"
    if types.is_struct(kind) or types.is_map(kind):
        return "write its fields as lists of their own"
    if _is_list(kind) and sides:
        return "a list of fixed size holds numbers or lists of fixed size: write it as a list"
    if types.is_null(kind):
        return "it has no value at all: leave it out"
    if 0 in sides:
        return "a dense slot has at least one number: leave it out"
    if hasattr(types, "is_list_view") and (types.is_list_view(kind) or types.is_large_list_view(kind)):
        return "write it as a list"  # Arrow's own cast reads foreign memory
    return f"a slot has at most {MAX_LEVELS} levels of lists" if levels > MAX_LEVELS else "leave it out, or cast it"


# -- values ------------------------------------------------------------------------------------------------------------
def chunks_of(column: Any) -> list[Any]:
    """Return the arrays, at least one, of an Array or ChunkedArray."""
    pa = pyarrow()
    if isinstance(column, pa.Array):
        return [column]
    return [chunk for chunk in column.chunks if len(chunk)] or [pa.nulls(0, column.type)]


def plain_values(array: Any) -> tuple[PlainValues, Mask | None]:
    """Return the entries of a pyarrow Array over its own memory where that is possible, and which of them are null or
    hold a null, ``(len(array),)``; None if none is.

    Numbers are an array ``(entries,)``, those of lists of fixed size ``(entries, *shape)``.

    Raises OptionTypeError for a type that :func:`input_type` refuses, OptionError for offsets beyond their memory.
    """
    if array.type.id not in _kinds().numbers:
        input_type(array.type)
    return _plain_values(array)


def _plain_values(array: Any) -> tuple[PlainValues, Mask | None]:
    """Do the work of :func:`plain_values` for a type that a slot takes."""
    array, shape = _decoded(array)
    kind = array.type
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    dtype = _number_dtype(kind)
    if dtype is not None:
        return _numbers(array, dtype), missing
    string = _is_text(kind)
    if string is not None:
        edges, data = _strings(array)
        return (_text_kind(array) if string else BinaryArray)(edges, data), missing
    if pyarrow().types.is_fixed_size_list(kind):
        return _fixed_lists(array, shape, missing)
    edges = array.offsets.to_numpy().astype(np.int64)
    items = array.values
    if edges[0] < 0 or edges[-1] < edges[0] or edges[-1] > len(items):
        raise OptionError(f"an Arrow list points beyond its {len(items)} items: the array is damaged")
    values, inside = _plain_values(items.slice(edges[0], edges[-1] - edges[0]))
    edges -= edges[0]
    return Lists(edges, values), _either(missing, inside, edges)


def _decoded(array: Any) -> tuple[Any, list[int]]:
    """Return the same entries in the layout that they are read in here, and the shape of a tensor."""
    pa = pyarrow()
    shape: list[int] = []
    while True:
        kind = array.type
        if kind.id in _kinds().numbers:  # the usual case
            return array, shape
        if isinstance(kind, pa.BaseExtensionType):
            if isinstance(kind, pa.FixedShapeTensorType):
                shape = _stored(kind)[1]
            array = array.storage
        elif pa.types.is_dictionary(kind):
            array = decoded_dictionary(array)
        elif pa.types.is_run_end_encoded(kind):
            array = pyarrow("compute").run_end_decode(array)
        elif pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            array = without_views(array)
        else:
            return array, shape


def without_views(array: Any) -> Any:
    """Return an Array of ``string_view`` or ``binary_view`` as one of offsets and bytes, another Array as it is."""
    pa = pyarrow()
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(array.type) else array


def decoded_dictionary(array: Any) -> Any:
    """Return the values of a DictionaryArray, each in full."""
    dictionary = without_views(array.dictionary)  # Arrow has no kernel that takes from views
    if dictionary is not array.dictionary:
        array = pyarrow().DictionaryArray.from_arrays(array.indices, dictionary)
    return array.dictionary_decode()


def _text_kind(array: Any) -> type[StringArray]:
    try:
        array.validate(full=True)
    except ValueError:  # the offsets are right
        return StringArray
    return CheckedText


def undecodable(values: PlainValues) -> Mask | None:
    """Return which entries have a string that is no UTF-8, ``(entries,)``; None if none has."""
    if isinstance(values, Lists):
        return _either(None, undecodable(values.values), values.starts)
    if not isinstance(values, StringArray) or isinstance(values, CheckedText):
        return None
    data, edges = values.data.tobytes(), values.offsets.tolist()
    return np.array([not _is_utf8(data[lo:hi]) for lo, hi in pairwise(edges)], np.bool_)


def _is_utf8(string: bytes) -> bool:
    try:
        string.decode()
    except UnicodeDecodeError:
        return False
    return True


def _numbers(array: Any, dtype: Any) -> Array:
    first, count = array.offset, len(array)
    memory = array.buffers()[1]
    if not count or memory is None:
        return np.zeros(count, dtype)
    if dtype.kind != "b":
        return np.frombuffer(memory, dtype, count, first * dtype.itemsize)
    byte, bit = divmod(first, 8)
    bits = np.frombuffer(memory, np.uint8, (bit + count + 7) // 8, byte)
    return np.unpackbits(bits, count=bit + count, bitorder="little")[bit:].view(np.bool_)


def _strings(array: Any) -> tuple[Ints, Array]:
    """Return the offsets, from 0, and the bytes of an array of text or bytes."""
    kind, first, count = array.type, array.offset, len(array)
    types = pyarrow().types
    if types.is_fixed_size_binary(kind):
        width = kind.byte_width
        edges = np.arange(count + 1, dtype=np.int64) * width
        memory = array.buffers()[1]
        if not edges[-1]:
            return edges, np.zeros(0, np.uint8)
        return edges, np.frombuffer(memory, np.uint8, int(edges[-1]), first * width)
    _, places, memory = array.buffers()
    if not count or places is None:
        return np.zeros(count + 1, np.int64), np.zeros(0, np.uint8)
    wide = types.is_large_string(kind) or types.is_large_binary(kind)
    dtype = np.dtype(np.int64 if wide else np.int32)
    edges = np.frombuffer(places, dtype, count + 1, first * dtype.itemsize).astype(np.int64)
    begin, end = int(edges[0]), int(edges[-1])
    if not 0 <= begin <= end <= (0 if memory is None else memory.size):
        raise OptionError("an Arrow string points beyond its bytes: the array is damaged")
    data = np.frombuffer(memory, np.uint8, end - begin, begin) if end > begin else np.zeros(0, np.uint8)
    edges -= begin
    return edges, data


def _fixed_lists(array: Any, shape: list[int], missing: Mask | None) -> tuple[PlainValues, Mask | None]:
    """Return the entries of an array of lists of a fixed size, of a tensor of ``shape`` if it has one."""
    count, size = len(array), array.type.list_size
    values, inside = _plain_values(array.values.slice(array.offset * size, count * size))
    missing = _either(missing, inside, np.arange(count + 1) * size)
    if not isinstance(values, np.ndarray):
        return Lists(np.arange(count + 1, dtype=np.int64) * size, values), missing
    if math.prod(shape or [size]) != size:
        raise OptionError(f"an Arrow tensor of the shape {shape} has lists of {size}: the array is damaged")
    return values.reshape(count, *(shape or [size]), *values.shape[1:]), missing


def _either(missing: Mask | None, inside: Mask | None, edges: Ints) -> Mask | None:
    """Return which lists between ``edges`` are ``missing`` themselves, or have an entry that is (``inside``)."""
    if inside is None:
        return missing
    gaps = offsets(inside)[edges]
    holed = gaps[1:] > gaps[:-1]
    return holed if missing is None else missing | holed
