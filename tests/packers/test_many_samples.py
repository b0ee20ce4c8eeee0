"""Many samples in one yield: the same columns, verdicts and words as the same samples yielded one by one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2 import rows
from pydp2.data.columns.batch import Batch, BinaryArray, Csr, Ragged, StringArray
from pydp2.data.columns.columns import Columns
from pydp2.data.packers.many_samples import ManySamples
from pydp2.data.packers.packer import Packer
from pydp2.data.packers.slot_order import SlotOrder
from pydp2.data.schema.input_types import (
    STRING_TYPES,
    DataType,
    InputType,
    SequenceType,
    Slots,
    dense_vector,
    dense_vector_sequence,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    scalar,
    scalar_sequence,
    sparse_binary_vector,
    sparse_float_vector,
    text,
)
from pydp2.errors import BadSample, OptionError, OptionTypeError, ProviderError
from tests.sample_cases import bfloat16_arrays

try:
    BFLOAT16 = dense_vector(1, dtype="bfloat16").dtype
except ImportError:
    BFLOAT16 = None
FLOATS = [0.0, -1.5, 3.25, 1e39, 7e4, float("nan"), float("inf")]
INTS = [0, 1, 2, 0, 1, 2, -1, 3, 10, 2**31 - 1, 2**31, 2**40, 2**62]


@st.composite
def _numbers(draw: Any, shape: tuple[int, ...], good: bool) -> Any:
    """An array for a dense slot, or something like one."""
    kinds = ["f4", "f8", "f2", "i4", "i8", "u1", "?", ">f4"]
    if BFLOAT16 is not None and draw(st.integers(0, 5)) == 0:
        return draw(bfloat16_arrays(shape, BFLOAT16))
    dtype = draw(st.sampled_from(kinds if good else [*kinds, "c8", "O", "M8[D]"]))
    total = int(np.prod(shape, dtype=int))
    picked = draw(st.lists(st.sampled_from(FLOATS[:3] if good or dtype[0] not in "f>" else FLOATS),
                           min_size=total, max_size=total))  # fmt: skip
    with np.errstate(all="ignore"):
        array = np.array(picked, "f8").reshape(shape).astype(dtype)
    if dtype == "i8" and draw(st.booleans()):
        array += 2**60 + 2**36 + 1  # rounded to float32 at once, or first to float64, it is not the same
    return np.asfortranarray(array) if draw(st.booleans()) else array


@st.composite
def _ids(draw: Any, count: int, good: bool, dim: int) -> Any:
    """A flat array of ids."""
    dtype = np.dtype(draw(st.sampled_from(["i4", "i8", "u1", "i1", "u8", "?", ">i8"] + ([] if good else ["f4", "O"]))))
    allowed = [0, 1, 2] if good else INTS
    picked = draw(st.lists(st.sampled_from([i for i in allowed if not good or i < dim]), min_size=count,
                           max_size=count))  # fmt: skip
    with np.errstate(all="ignore"):
        return np.array(picked, "i8").astype(dtype)


@st.composite
def _edges(draw: Any, groups: int) -> Any:
    lengths = draw(st.lists(st.integers(0, 3), min_size=groups, max_size=groups))
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


@st.composite
def values(draw: Any, declared: InputType, count: int, good: bool) -> Any:
    """Values of ``count`` samples of a slot in any form that :func:`rows` takes; mostly ones that fit if ``good``."""
    if draw(st.integers(0, 9)) == 0:  # any form for any slot
        other = st.sampled_from([InputType(3 * (t not in STRING_TYPES), s, t) for s in SequenceType for t in DataType])
        declared = declared if good else draw(other)
    if declared.seq_type == SequenceType.NO_SEQUENCE:
        return draw(_elements(declared, count, good))
    if declared.seq_type == SequenceType.SEQUENCE:
        if declared.type == DataType.Index and draw(st.integers(0, 4)) == 0:
            return draw(_ids(count * 2, good, declared.dim)).reshape(count, 2)
        if declared.type == DataType.Dense and draw(st.integers(0, 4)) == 0:
            return draw(_numbers((count, 2, *declared.element_shape), good))
        edges = draw(_edges(count))
        return Ragged(draw(_elements(declared, int(edges[-1]), good)), edges)
    subs = draw(_edges(sum(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))))
    edges = np.sort(np.array([0, *draw(st.lists(st.sampled_from(subs.tolist()), min_size=count - 1,
                                                max_size=count - 1)), subs[-1]]))  # fmt: skip
    inner = draw(_elements(declared, int(subs[-1]), good))
    return Ragged(inner, edges, subs)


@st.composite
def _elements(draw: Any, declared: InputType, count: int, good: bool) -> Any:
    if declared.type == DataType.Dense:
        shapes = [(declared.dim,), declared.element_shape]
        shape = draw(st.sampled_from(shapes if good else [*shapes, (declared.dim + 1,), ()]))
        return draw(_numbers((count, *shape), good))
    if declared.type == DataType.Index:
        array = draw(_ids(count, good, declared.dim))
        return array.tolist() if draw(st.integers(0, 3)) == 0 else array
    if declared.type in STRING_TYPES:
        return draw(_strings(count, good, declared.type == DataType.Text))
    edges = draw(_edges(count))
    indices = draw(_ids(int(edges[-1]), good, declared.dim))
    if good:  # each once in a row
        indices = np.concatenate([[], *(np.arange(hi - lo) for lo, hi in pairwise(edges))])
        indices = (indices % declared.dim).astype(draw(st.sampled_from(["i4", "i8", "u2"])))
    binary = declared.type == DataType.SparseNonValue
    if not good and draw(st.integers(0, 5)) == 0:
        binary = not binary
    numbers = None if binary else draw(_numbers((int(edges[-1]),), good))
    return Csr(edges, indices, numbers, (count, declared.dim))


@st.composite
def _strings(draw: Any, count: int, good: bool, is_text: bool) -> Any:
    """Strings in a list or in an array, one that may be no text at times."""
    if not good and draw(st.integers(0, 3)) == 0:
        is_text = not is_text
    given_ = draw(st.lists(st.text(max_size=5).map(str.encode), min_size=count, max_size=count))
    if draw(st.booleans()):
        return [string.decode() if is_text else string for string in given_]
    edges = np.concatenate([[0], np.cumsum([len(string) for string in given_], dtype=np.int64)])
    if not good:  # a string may begin or end inside of a character
        inner = st.lists(st.integers(0, int(edges[-1])), min_size=max(count - 1, 0), max_size=max(count - 1, 0))
        edges[1:-1] = sorted(draw(inner))
    data = np.frombuffer(b"".join(given_), np.uint8)
    return (StringArray if is_text else BinaryArray)(edges, data)


@st.composite
def yielded(draw: Any, slots: Slots, good: bool) -> ManySamples:
    count = draw(st.integers(1, 6))
    drawn = [draw(values(declared, count, good)) for declared in slots.types]
    given_ = [value if len(value) == count and _unambiguous(value) else [None] * count for value in drawn]
    if slots.names is None:
        return rows(*given_)
    return rows(**dict(zip(slots.names, given_, strict=True)))


def _unambiguous(value: Any) -> bool:
    try:
        rows(value)
    except OptionError:
        return False
    return True


def singly(slots: Slots, strict: bool, given_: ManySamples, raw: Any) -> Any:
    """What becomes of the samples one by one: the columns, and what is wrong with which."""
    packer, wrapper = Packer(slots, strict), SlotOrder(slots)
    found: dict[int, tuple[str, ...]] = {}
    packed: list[int] = []
    for i, sample in enumerate(given_.samples(len(slots) == 1)):
        _add(packer, wrapper, sample, i, packed, found)
    return _outcome(packer, packed, found, raw)


def _add(packer: Packer, wrapper: SlotOrder, sample: Any, i: int, packed: list[int], found: Any) -> None:
    try:
        packer.add(wrapper.arrange(sample))
        packed.append(i)
    except BadSample as error:
        found[i] = (str(error), error.slot, error.expected, error.got)


def _outcome(packer: Packer, packed: list[int], found: Any, raw: Any) -> Any:
    nbytes = packer.nbytes
    cut = packer.finish()
    for row, error in cut.bad:
        found[packed[row]] = (str(error), error.slot, error.expected, error.got)
    return raw(cut.columns), cut.sample_bytes.tolist(), nbytes, found


@given(data=st.data(), strict=st.booleans(), good=st.booleans())
def test_rows_become_what_their_samples_become_one_by_one(some: Any, data: Any, strict: bool, good: bool) -> None:
    """However they are split, and with single samples between."""
    slots = data.draw(some.slots)
    given_ = data.draw(yielded(slots, good))
    packer, wrapper = Packer(slots, strict), SlotOrder(slots)
    found: dict[int, tuple[str, ...]] = {}
    packed: list[int] = []
    at = 0
    while at < len(given_):
        end = data.draw(st.integers(at + 1, len(given_)))
        laid = given_.columns(slots, at, end) if data.draw(st.integers(0, 3)) else None
        before = packer.nbytes
        bad = None if laid is None else packer.add_columns(laid)
        if laid is None or bad is None:
            assert packer.nbytes == before
            for i in range(at, end):
                _add(packer, wrapper, given_.sample(i, len(slots) == 1), i, packed, found)
        else:
            assert laid.rows == end - at
            expected = int(laid.sample_bytes().sum())
            assert packer.nbytes - before == expected
            assert all(row >= len(packed) for row, _ in bad)
            packed += range(at, end)
        at = end
    assert _outcome(packer, packed, found, some.raw) == singly(slots, strict, given_, some.raw)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16"])
@pytest.mark.parametrize("wrong", [np.float64(1e300), np.int64(300), np.float32(0.5)])
def test_a_number_that_does_not_fit_is_named_as_that_of_a_single_sample(dtype: str, wrong: Any, some: Any) -> None:
    slots = Slots((scalar(dtype), integer_value(9)))
    given_ = rows(np.array([1, 0, wrong, 1], type(wrong)), [1, 2, 3, 4])
    packer, found = Packer(slots, strict=False), dict[int, tuple[str, ...]]()
    packed: list[int] = []
    laid = given_.columns(slots, 0, 4)
    assert laid is not None
    if packer.add_columns(laid) is None:
        for i in range(4):
            _add(packer, SlotOrder(slots), given_.sample(i, single=False), i, packed, found)
    else:
        packed += range(4)
    assert _outcome(packer, packed, found, some.raw) == singly(slots, False, given_, some.raw)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dtype", ["bool", "u1", "i8", "u8", ">i8", "f2", "f4", "f8", "g"])
@pytest.mark.parametrize(
    "declared",
    [scalar(), scalar("float64"), scalar("float16"), scalar("int64"), scalar_sequence(), dense_vector(1)],
    ids=str,
)
def test_numbers_in_an_array_are_judged_and_rounded_as_each_of_them_is_alone(
    declared: InputType, dtype: str, strict: bool, some: Any
) -> None:
    slots = Slots((declared,))
    with np.errstate(all="ignore"):
        values = np.array([0, 1, 1, 2**60 + 2**36 + 1, 2**53 + 1], object if dtype == "g" else "i8").astype(dtype)
    values = values + np.finfo("g").eps if dtype == "g" else values
    given_ = rows(values if declared.is_scalar and not declared.depth else values.reshape(5, 1))
    packer, found = Packer(slots, strict), dict[int, tuple[str, ...]]()
    packed: list[int] = []
    laid = given_.columns(slots, 0, 5)
    if laid is None or packer.add_columns(laid) is None:
        for i in range(5):
            _add(packer, SlotOrder(slots), given_.sample(i, single=True), i, packed, found)
    else:
        packed += range(5)
    assert _outcome(packer, packed, found, some.raw) == singly(slots, strict, given_, some.raw)


def test_an_array_of_ints_for_a_float_scalar_is_packed_together_unless_each_is_refused() -> None:
    slots = Slots((scalar(),))
    laid = rows(np.arange(100)).columns(slots, 0, 100)
    assert laid is not None
    assert Packer(slots, strict=False).add_columns(laid) == []
    strict = Packer(slots, strict=True)
    assert strict.add_columns(laid) is None
    assert (strict.rows, strict.nbytes) == (0, 0)


@given(data=st.data())
def test_usual_forms_are_packed_together(some: Any, data: Any) -> None:
    """What a batch has, in the dtypes that it has it in."""
    slots, samples = data.draw(some.filled())
    columns = some.columns_of(slots, samples)
    batch = Batch(columns, pass_id=0, index=0, size=len(samples))
    if not all(map(_unambiguous, batch)):  # nested ones with empty sub-sequences
        return
    again = rows(*batch) if slots.names is None else rows(**dict(zip(slots.names, batch, strict=True)))
    assert len(again) == len(samples)
    if not samples:
        return
    packer = Packer(slots, strict=True)
    laid = again.columns(slots, 0, len(samples))
    assert laid is not None
    assert packer.add_columns(laid) == []
    assert some.raw(packer.finish().columns) == some.raw(columns)


def _packed(packer: Packer, slots: Slots, values: Any, labels: Any) -> None:
    laid = rows(values, labels).columns(slots, 0, len(values))
    assert laid is not None
    assert packer.add_columns(laid) == []


def test_blocks_are_copied_once_and_the_memory_is_used_again_when_nobody_has_it() -> None:
    slots = Slots((dense_vector(64), integer_value(10)))
    packer = Packer(slots, strict=True, chunk_bytes=1 << 16)
    values, labels = np.arange(64 * 64, dtype=np.float32).reshape(64, 64), np.zeros(64, np.int32)
    memory = []
    for _ in range(3):
        for lo in range(0, 64, 16):
            _packed(packer, slots, values[lo : lo + 16], labels[lo : lo + 16])
        columns = packer.finish().columns
        assert columns.arrays[0][0].tolist() == values.tolist()
        assert not np.may_share_memory(columns.arrays[0][0], values)
        memory.append(columns.arrays[0][0].__array_interface__["data"][0])
        del columns
    assert len(set(memory)) == 1


@pytest.mark.parametrize("dim", [3, 128, 129, 1 << 15, 1 << 31, (1 << 31) + 1, 1 << 62])
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", ">i4", "i8", ">i8", "u1", "u8"])
def test_an_id_below_zero_or_not_below_the_dimension_is_bad_in_any_dtype(dtype: str, dim: int) -> None:
    limits = np.iinfo(dtype)
    ids = [0, dim - 1, dim, -1, limits.min, limits.max]
    ids = [each for each in ids if limits.min <= each <= limits.max]
    for one in ids:
        packer = Packer(Slots((integer_value(dim),)), strict=True)
        columns = rows(np.array([0, one], dtype)).columns(Slots((integer_value(dim),)), 0, 2)
        assert columns is not None
        found = packer.add_columns(columns)  # None: beyond the dtype of the column, to be judged alone
        assert (found == []) == (0 <= one < dim)


def test_what_was_packed_stays_as_it_is_while_somebody_has_it() -> None:
    slots = Slots((dense_vector(8), integer_value(10)))
    packer = Packer(slots, strict=True)
    kept = []
    for number in range(4):
        for _ in range(3):
            _packed(packer, slots, np.full((5, 8), number, np.float32), np.full(5, number))
        kept.append(packer.finish().columns.slice(2, 13))
    for number, columns in enumerate(kept):
        assert set(columns.arrays[0][0].reshape(-1).tolist()) == {number}
        assert set(columns.arrays[1][0].tolist()) == {number}


# -- entries -----------------------------------------------------------------------------------------------------------
def test_a_sample_is_what_would_be_yielded_alone() -> None:
    both = rows(a=np.array([[1.0, 2.0], [3.0, 4.0]]), b=[5, 6])
    assert (len(both), repr(both)) == (2, "<rows: 2 samples, 2 slots>")
    assert both.sample(1, False)["a"].tolist() == [3.0, 4.0]
    assert both.sample(1, False)["b"] == 6
    assert rows([5, 6], [7, 8]).sample(0, False) == (5, 7)
    assert rows([5, 6]).sample(0, True) == 5
    assert rows([5, 6]).sample(0, False) == (5,)
    sparse = Csr(np.array([0, 0, 2]), np.array([4, 5]), np.array([0.5, 1.5]), (2, 9))
    assert list(rows(sparse).samples(True)) == [[], [(4, 0.5), (5, 1.5)]]
    nested = Ragged(np.arange(4), np.array([0, 3, 3, 4]), np.array([0, 1, 3, 4]))
    entries = [[steps.tolist() for steps in sample] for sample in rows(nested).samples(True)]
    assert entries == [[[0], [1, 2]], [], [[3]]]


def test_mapped_files_are_packed_as_arrays_are(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(4, 3))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    slots = Slots((dense_vector(3),))
    assert rows(mapped).columns(slots, 0, 4) is not None
    sequences = Ragged(mapped, np.array([0, 1, 4]))
    assert rows(sequences).columns(Slots((dense_vector_sequence(3),)), 0, 2) is not None


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (dense_vector(2), np.ones((9, 2), np.float32)),
        (integer_value(5), np.ones(9, np.int32)),
        (integer_value_sequence(5), Ragged(np.ones(9, np.int32), np.arange(10))),
        (sparse_binary_vector(5), Csr(np.arange(10), np.ones(9, np.int32), None, (9, 5))),
        (sparse_float_vector(5), Csr(np.arange(10), np.ones(9, np.int32), np.ones(9, np.float32), (9, 5))),
    ],
)
def test_what_was_packed_does_not_change_with_what_was_yielded(declared: InputType, value: Any) -> None:
    slots = Slots((declared,))
    packer = Packer(slots, strict=True)
    laid = rows(value).columns(slots, 0, 9)
    assert laid is not None
    packer.add_columns(laid)
    packer.copy_lent()
    for array in (value, *([value.values] if isinstance(value, Csr | Ragged) else []), getattr(value, "indices", None)):
        if isinstance(array, np.ndarray):
            array[:] = 0
    cut = packer.finish()
    assert all(array.all() for array in cut.columns.arrays[0])


def test_a_chunk_of_one_block_is_not_copied() -> None:
    value = np.ones((9, 2), np.float32)
    slots = Slots((dense_vector(2),))
    packer = Packer(slots, strict=True)
    for start in (0, 3):
        laid = rows(value).columns(slots, start, 9)
        assert laid is not None
        assert packer.add_columns(laid) == []
        assert np.shares_memory(packer.finish().columns.arrays[0][0], value)


def test_blocks_that_share_a_chunk_keep_their_values_and_their_order() -> None:
    slots = Slots((dense_vector(1), text()))
    packer = Packer(slots, strict=True)
    value = np.zeros((8, 1), np.float32)
    for number in range(5):
        value[:] = number
        laid = rows(value, StringArray(np.arange(9), np.full(8, 65 + number, np.uint8))).columns(slots, 0, 8)
        assert laid is not None
        assert packer.add_columns(laid) == []
        if number < 4:
            packer.copy_lent()
    found = packer.finish().columns
    assert found.arrays[0][0].ravel().tolist() == np.repeat(range(5), 8).tolist()
    assert bytes(found.arrays[1][1]) == b"".join(bytes([65 + number]) * 8 for number in range(5))


# -- what rows() refuses -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: rows(), OptionTypeError, "takes the values of all slots, by name or by position"),
        (lambda: rows([1], a=[2]), OptionTypeError, "takes the values of all slots, by name or by position"),
        (lambda: rows(a=np.ones((2, 3)), b=[1]), OptionError, "as many samples in each slot, but a has 2, b has 1"),
        (lambda: rows([1], (1, 2)), OptionError, "but value 0 has 1, value 1 has 2"),
        (lambda: rows({"a": [1]}), OptionTypeError, "got a dict: write rows(**columns)"),
        (lambda: rows(a=5), OptionTypeError, "lists and tuples; a is a int"),
        (lambda: rows(a=np.float32(5)), OptionTypeError, "a is a float32"),
        (lambda: rows(a=np.array(5)), OptionTypeError, "a is an array without dimensions"),
        (lambda: rows(a=iter([5])), OptionTypeError, "a is a list_iterator"),
        (lambda: rows(a=Ragged(np.ones(3), [0, 2])), OptionError,  # type: ignore[arg-type]
         "a: sequence_start_positions must rise from 0 to 3"),
        (lambda: rows(a=Ragged(np.ones(3), np.array([0, 2, 1, 3]))), OptionError, "must rise from 0 to 3"),
        (lambda: rows(a=Ragged(np.ones(3), np.array([0.0, 3.0]))), OptionTypeError, "must be an array of ints"),
        (lambda: rows(a=Ragged(np.ones(3), np.array([0, 1, 3]), np.array([0, 2, 3]))), OptionError,
         "each of sequence_start_positions must be one of sub_sequence_start_positions"),
        (lambda: rows(a=Ragged(np.ones(3), np.array([0, 1, 3]), np.array([0, 1, 1, 3]))), OptionError,
         "an empty sub-sequence lies between two sequences"),
        (lambda: rows(a=Csr(np.array([0, 2]), np.ones(2, int), np.ones(3), (1, 9))), OptionError,
         "a value for each index, it has 3 for 2"),
        (lambda: rows(a=Csr(np.array([1, 2]), np.ones(2, int), None, (1, 9))), OptionError,
         "a: indptr must rise from 0"),
        (lambda: rows(a=StringArray(np.array([0, 2]), np.zeros(3, np.uint8))), OptionError,
         "a: offsets must rise from 0 to 3"),
        (lambda: rows(a=BinaryArray(np.array([0, 1]), np.zeros(1))), OptionTypeError,  # type: ignore[arg-type]
         "a: data must be an array (bytes,) of uint8"),
    ],
)  # fmt: skip
def test_what_cannot_be_rows_is_said_where_it_is_written(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert words in str(caught.value)


def test_empty_sub_sequences_inside_a_sequence_and_at_both_ends_are_told_apart() -> None:
    nested = Ragged(np.arange(4), np.array([0, 2, 4]), np.array([0, 0, 1, 1, 2, 4, 4]))
    entries = [[steps.tolist() for steps in sample] for sample in rows(nested).samples(True)]
    assert entries == [[[], [0], [], [1]], [[2, 3], []]]
    slots = Slots((integer_value_sub_sequence(9),))
    laid = rows(nested).columns(slots, 0, 2)
    assert laid is not None
    assert [array.tolist() for array in laid.arrays[0]] == [[4, 2], [0, 1, 0, 1, 2, 0], [0, 1, 2, 3]]


# -- in this process ---------------------------------------------------------------------------------------------------
BOTH = """
import numpy as np
from pydp2 import rows
@provider(input_types={"x": dense_vector(2), "y": integer_value(20)}, check=True, check_fail_continue=True)
def process(settings, filename):
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20)
    y[7] = 20
    if filename == "rows":
        yield rows(x=x[:0], y=y[:0])
        yield rows(x=x[:3], y=y[:3])
        yield {"x": x[3], "y": y[3]}
        yield rows(x=x[4:], y=y[4:].tolist())
    else:
        for a, b in zip(x, y):
            yield {"x": a, "y": b}
"""


def test_check_and_peek_and_samples_see_each_sample(provider_file: Any) -> None:
    address = provider_file(BOTH)
    reports = [pydp2.check([name], address) for name in ("rows", "singles")]
    for report in reports:
        assert (report.samples, report.found, report.findings[0].sample) == (19, 1, 7)
        assert report.findings[0].text.partition(", ")[2].startswith("sample 7, slot y: expected an int in [0, 20)")
    seen = [pydp2.peek([name], address, samples=10, batch_size=10) for name in ("rows", "singles")]
    assert [[each.sample for each in one.samples] for one in seen] == [[0, 1, 2, 3, 4, 5, 6, 8, 9, 10]] * 2
    assert seen[0].batch is not None
    assert seen[0].batch[1].tolist() == seen[1].batch[1].tolist()  # type: ignore[index, union-attr]


def test_numbers_that_differ_are_an_error_of_the_program() -> None:
    @pydp2.provider(input_types=[integer_value(5), integer_value(5)])
    def process(settings: Any, filename: str) -> Any:
        yield rows([1], [1])
        yield rows([1, 2], [1])

    samples = process.samples("f")
    assert next(samples) == [1, 1]
    with pytest.raises(ProviderError) as caught:
        next(samples)
    assert "rows() needs as many samples in each slot" in str(caught.value)
    assert "sample 1" in str(caught.value)


def test_columns_are_views_of_what_was_yielded() -> None:
    """So a large array is not copied before its samples are sent."""
    array = np.zeros((1000, 16), np.float32)
    laid = rows(array).columns(Slots((dense_vector(16),)), 0, 1000)
    assert isinstance(laid, Columns)
    assert np.shares_memory(laid.arrays[0][0], array)


def test_text_is_packed_together_only_where_each_string_is_whole() -> None:
    data = np.frombuffer("aé€".encode(), np.uint8)
    slots = Slots((text(),))
    assert rows(StringArray(np.array([0, 1, 3, 6]), data)).columns(slots, 0, 3) is not None
    assert rows(BinaryArray(np.array([0, 1, 3, 6]), data)).columns(slots, 0, 3) is None
    split = rows(StringArray(np.array([0, 2, 6]), data))  # the second string begins inside of a character
    assert split.columns(slots, 0, 2) is None
    with pytest.raises(BadSample, match=r"expected a str \(write x.decode\(\)\), got b'a\\xc3'"):
        Packer(slots, strict=False).add([split.sample(0, True)])


def test_numbers_by_themselves_are_packed_together() -> None:
    packer = Packer(Slots((scalar("float64"), scalar_sequence("int32"))), strict=True)
    laid = rows(np.arange(3.0), np.arange(6).reshape(3, 2)).columns(packer._slots, 0, 3)
    assert laid is not None
    assert packer.add_columns(laid) == []
    ((numbers,), (counts, steps)) = packer.finish().columns.arrays
    assert [numbers.tolist(), counts.tolist(), steps.tolist()] == [[0, 1, 2], [2, 2, 2], [0, 1, 2, 3, 4, 5]]
