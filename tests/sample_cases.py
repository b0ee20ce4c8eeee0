"""What the tests of samples and columns share: strategies for slots and samples, and a slow, plain oracle."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from pydp2.data import native
from pydp2.data.columns.columns import Columns
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import (
    STRING_TYPES,
    DataType,
    InputType,
    SequenceType,
    Slots,
    dense_vector,
    is_bfloat16,
    is_float,
)
from pydp2.errors import BadSample

DENSE_DTYPES: list[Any] = [None, "float64", "float16", "bool", "uint8", "int64", "uint64", ">i4"]
with contextlib.suppress(ImportError):
    DENSE_DTYPES.append(dense_vector(1, dtype="bfloat16").dtype)


FORMS = [True, False] if native.is_built() else [False]
"""The forms of packing: compiled, where that was built, and in Python."""


def verdict(declared: InputType, value: Any, strict: bool = False, form: bool | None = None) -> Any:
    """What ``value`` becomes in a slot, as lists, or the message about it."""
    packer = Packer(Slots((declared,), ("x",)), strict, native=form)
    try:
        packer.add([value])
    except BadSample as error:
        return str(error)
    cut = packer.finish()
    return str(cut.bad[0][1]) if cut.bad else [array.tolist() for array in cut.columns.arrays[0]]


@st.composite
def input_types(draw: Any) -> InputType:
    """Any declaration, narrow ones, and a few wider than int32."""
    kind = draw(st.sampled_from(list(DataType)))
    level = draw(st.sampled_from(list(SequenceType)))
    if kind in STRING_TYPES:
        return InputType(0, level, kind)
    if kind != DataType.Dense:
        return InputType(draw(st.sampled_from([1, 3, 10, 2**31, 2**31 + 1, 2**40])), level, kind)
    dim, shape = draw(st.sampled_from([(1, None), (3, None), (4, (2, 2)), (6, (1, 3, 2)), (1, ())]))
    dtype = draw(st.sampled_from(DENSE_DTYPES))
    return InputType(dim, level, kind, None if dtype is None else np.dtype(dtype), shape)


@st.composite
def slots(draw: Any) -> Slots:
    types = draw(st.lists(input_types(), min_size=1, max_size=3))
    return Slots(tuple(types), draw(st.sampled_from([None, tuple("abc"[: len(types)])])))


def _ids(dim: int) -> Any:
    return st.one_of(st.integers(0, dim - 1), st.integers(max(0, dim - 3), dim - 1))


def _id_lists(dim: int, unique: bool) -> Any:
    lists = st.lists(_ids(dim), max_size=5, unique=unique)
    arrays = lists.map(lambda v: np.array(v, np.int64))
    scalars = lists.map(lambda v: tuple(np.int64(i) for i in v))
    return st.one_of(lists, arrays, scalars)


def _numbers(dtype: np.dtype[Any]) -> Any:
    if is_float(dtype):
        width = 32 if is_bfloat16(dtype) else dtype.itemsize * 8
        numbers_ = st.floats(-(2.0**126), 2.0**126, width=width) if is_bfloat16(dtype) else st.floats(width=width)
        return st.one_of(numbers_, st.sampled_from([0.0, -0.0, math.inf, math.nan]))
    if dtype.kind == "b":
        return st.booleans()
    info = np.iinfo(dtype)
    return st.integers(int(info.min), int(info.max))


def bfloat16_arrays(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Arrays of bfloat16 with NaN of several bits."""
    total = math.prod(shape)
    bits = st.lists(st.sampled_from([0x7FC0, 0x7FFF, 0xFFC1, 0x3F80]), min_size=total, max_size=total)
    return bits.map(lambda v: np.array(v, np.uint16).view(dtype).reshape(shape))


def _dense(declared: InputType) -> Any:
    dtype = declared.element_dtype
    odd = bfloat16_arrays(declared.element_shape, dtype) if is_bfloat16(dtype) else st.nothing()
    if declared.is_scalar:
        number = _numbers(dtype)
        forms = number, number.map(dtype.type), number.map(lambda v: np.array(v, dtype)), odd, odd.map(lambda v: v[()])
        return st.one_of(*forms)
    lists = st.lists(_numbers(dtype), min_size=declared.dim, max_size=declared.dim)
    arrays = odd | lists.map(lambda v: np.array(v, dtype).reshape(declared.element_shape))
    return st.one_of(lists, lists.map(tuple), arrays, arrays.map(np.asfortranarray))


def _pairs(dim: int) -> Any:
    @st.composite
    def some(draw: Any) -> Any:
        ids = draw(st.lists(_ids(dim), max_size=5, unique=True))
        values = [draw(st.floats(width=32)) for _ in ids]
        pair = draw(st.sampled_from([tuple, list]))
        return [pair((i, draw(st.sampled_from([float, np.float32]))(v))) for i, v in zip(ids, values, strict=True)]

    return some()


def good_values(declared: InputType) -> Any:
    """Values that fit the slot, strict or not."""
    if declared.type == DataType.Index:
        element = st.one_of(_ids(declared.dim), _ids(declared.dim).map(np.int64))
        sequence = _id_lists(declared.dim, unique=False)
    else:
        if declared.type == DataType.Dense:
            element = _dense(declared)
        elif declared.type == DataType.SparseNonValue:
            element = _id_lists(declared.dim, unique=True)
        elif declared.type == DataType.Text:
            element = st.text(max_size=8) | st.text("ab", max_size=8).map(np.str_)
        elif declared.type == DataType.Raw:
            binary = st.binary(max_size=8)
            element = binary | binary.map(bytearray) | binary.map(lambda v: np.frombuffer(v, np.uint8))
        else:
            element = _pairs(declared.dim)
        sequence = st.lists(element, max_size=4)
        if declared.type == DataType.Dense:
            stacked = st.lists(_dense(declared), min_size=1, max_size=4)
            if declared.is_scalar:
                sequence |= stacked.map(lambda v: np.array([np.array(e, declared.element_dtype) for e in v]))
            sequence |= stacked.map(lambda v: np.array([np.array(e, declared.element_dtype).ravel() for e in v]))
    return (element, sequence, st.lists(sequence, max_size=3))[declared.seq_type]


SCALARS = st.one_of(
    st.sampled_from([None, True, False, 0, 1, 2, 3, -1, 2**31, 2**63, 10**400, "", "1.5", "ab", b"12"]),
    st.sampled_from([3.0, 3.7, 1e39, -1e39, 70000.0, math.nan, math.inf, 1j]),
    st.sampled_from(
        [
            np.int8(1), np.int64(2), np.uint64(2**63), np.float16(1.5), np.float32(2), np.float64(1e300),
            np.bool_(True), np.str_("1.5"), np.complex64(1), np.longdouble(2), np.timedelta64(1, "s"),
            np.datetime64(1, "D"),
        ]
    ),
)  # fmt: skip
ARRAYS = st.builds(
    lambda dtype, shape, fill: np.full(shape, fill).astype(dtype),
    st.sampled_from(["f2", "f4", "f8", "i1", "i4", "i8", "u1", "u8", ">f4", ">i8", "?", "c8", "O", "M8[D]"]),
    st.sampled_from(
        [(), (0,), (1,), (2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (1, 1, 2, 2), (2, 2, 1), (0, 3), (2, 2, 2), (6,)]
    ),
    st.sampled_from([0, 1, 2]),
)
OTHERS = st.sampled_from([range(2), {1, 2}, {1: 2.0}, object(), iter([1]), (i for i in range(2)), slice(1)])
WILD = st.recursive(
    st.one_of(SCALARS, ARRAYS, OTHERS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple)),
    max_leaves=8,
)


def values(declared: InputType) -> Any:
    """Values of which some fit the slot, and some nearly do."""
    close = st.one_of(SCALARS, st.integers(-1, 11), st.floats())
    inner = close
    if declared.type == DataType.Dense:
        inner = st.lists(close, min_size=declared.dim, max_size=declared.dim) | ARRAYS
    elif declared.type in STRING_TYPES:
        inner = st.sampled_from(["", "aé€", "\ud800", "\udcff", b"", b"\xff", np.str_("a"), np.bytes_(b"b")]) | SCALARS
    elif declared.type == DataType.SparseNonValue:
        inner = st.lists(st.integers(0, 11) | SCALARS, max_size=3)
    elif declared.type == DataType.SparseValue:
        inner = st.lists(st.tuples(st.integers(0, 11) | SCALARS, close), max_size=3)
    for _ in range(declared.seq_type):
        inner = st.lists(inner, max_size=3)
    return st.one_of(inner, good_values(declared), WILD)


# The oracle: what semantics 1.6 says, one value at a time.


def _items(value: Any) -> list[Any] | None:
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim else None
    plain = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
    return list(value) if plain else None


def _scalar(value: Any) -> Any:
    """Python's own number for a numpy one; anything else as it is."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.integer | np.bool_) and not isinstance(value, np.timedelta64):
        return value.item()
    return np.float32(value) if isinstance(value, np.generic) and is_bfloat16(value.dtype) else value


def _is_id(value: Any, dim: int) -> bool:
    zero_bool = isinstance(value, np.ndarray) and value.dtype.kind == "b"
    value = _scalar(value)
    return isinstance(value, int) and not zero_bool and 0 <= value < dim


def _is_number(value: Any, dtype: np.dtype[Any], strict: bool) -> bool:
    value = _scalar(value)
    if isinstance(value, np.timedelta64) or not isinstance(value, numbers.Real):
        return False
    whole = isinstance(value, int)
    if dtype.kind in "iub":
        if not math.isfinite(value) if not whole else False:
            return False
        least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return int(value) == value and least <= int(value) <= most
    if strict and whole:
        return False
    try:
        with np.errstate(over="ignore"):
            return not math.isfinite(value) or bool(np.isfinite(np.float64(value).astype(dtype)))
    except OverflowError:
        return False


def _lies_as(declared: InputType, shape: tuple[int, ...]) -> bool:
    """Whether an array of ``shape``, with as many elements, has them as the slot declares them."""
    if declared.shape is None or len(declared.shape) < 2:
        return True
    width = max(len(shape), len(declared.shape))
    given, need = ((1,) * (width - len(sides)) + sides for sides in (shape, declared.shape))
    return given == need or sum(given[:-1]) == width - 1


def _fits_element(declared: InputType, value: Any, strict: bool) -> bool:
    if declared.type == DataType.Index:
        return _is_id(value, declared.dim)
    if declared.type == DataType.Text:
        return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)
    if declared.type == DataType.Raw:
        array = isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1
        return array or isinstance(value, bytes | bytearray | memoryview)
    dtype = declared.element_dtype
    if declared.type == DataType.Dense and isinstance(value, np.ndarray):
        if is_bfloat16(value.dtype):
            value = value.astype(np.float32)
        if value.dtype.kind not in "fiub" or value.size != declared.dim or not _lies_as(declared, value.shape):
            return False
        return all(_is_number(v, dtype, strict=False) for v in value.ravel().tolist())
    if declared.is_scalar:
        return _is_number(value, dtype, strict)
    items = _items(value)
    if items is None:
        return False
    if declared.type == DataType.Dense:
        return len(items) == declared.dim and all(_is_number(v, dtype, strict) for v in items)
    if declared.type == DataType.SparseNonValue:
        return all(_is_id(v, declared.dim) for v in items) and len({int(v) for v in items}) == len(items)
    for pair in items:
        if not isinstance(pair, list | tuple) and not (isinstance(pair, np.ndarray) and pair.ndim == 1):
            return False
        if len(pair) != 2 or not _is_id(pair[0], declared.dim):
            return False
        if not _is_number(pair[1], np.dtype(np.float32), strict):
            return False
    return len({int(p[0]) for p in items}) == len(items)


def fits(declared: InputType, value: Any, strict: bool, level: int | None = None) -> bool:
    """Whether ``value`` is a good value of the slot."""
    level = declared.seq_type if level is None else level
    if not level:
        return _fits_element(declared, value, strict)
    items = _items(value)
    return items is not None and all(fits(declared, v, strict, level - 1) for v in items)


def canonical(declared: InputType, value: Any, level: int | None = None) -> Any:
    """A good value in plain nested lists, numbers rounded as the slot rounds them."""
    level = declared.seq_type if level is None else level
    if level:
        return [canonical(declared, v, level - 1) for v in value]
    if declared.type == DataType.Index:
        return int(value)
    if declared.type == DataType.Dense:
        entries = np.ravel(value) if isinstance(value, np.ndarray) else [value] if declared.is_scalar else value
        with np.errstate(over="ignore"):
            flat = [np.array(_scalar(v)).astype(declared.element_dtype) for v in entries]
        return [repr(v.item()) for v in flat]
    if declared.type in STRING_TYPES:
        return str(value) if declared.type == DataType.Text else bytes(value)
    if declared.type == DataType.SparseNonValue:
        return [int(v) for v in value]
    return [(int(i), repr(np.float32(v).item())) for i, v in value]


def columns_of(declared: Slots, samples: list[list[Any]], strict: bool = False) -> Columns:
    """The samples, all good, as columns."""
    packer = Packer(declared, strict)
    for sample in samples:
        packer.add(sample)
    cut = packer.finish()
    assert not cut.bad
    return cut.columns


def raw(columns: Columns) -> list[Any]:
    """All of the columns as something that compares bit by bit."""
    return [columns.rows, [(a.dtype.str, a.shape, a.tobytes()) for arrays in columns.arrays for a in arrays]]


@st.composite
def filled(draw: Any, max_rows: int = 6) -> tuple[Slots, list[list[Any]]]:
    """Slots and good samples of them."""
    declared = draw(slots())
    sample = st.tuples(*(good_values(t) for t in declared.types)).map(list)
    return declared, draw(st.lists(sample, max_size=max_rows))


@pytest.fixture(scope="session")
def some() -> SimpleNamespace:
    """Strategies, oracle and helpers by name."""
    return SimpleNamespace(
        input_types=input_types(), slots=slots(), filled=filled, good_values=good_values, values=values, fits=fits,
        canonical=canonical, columns_of=columns_of, raw=raw,
    )  # fmt: skip
