"""Arrow's arrays, batches and tables in rows(): the values that Arrow itself says, over its own memory."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2 import provider, rows
from pydp2.data.columns.batch import BinaryArray, StringArray
from pydp2.data.packers import arrow_values
from pydp2.data.packers.arrow_values import input_type, undecodable
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import (
    InputType,
    SequenceType,
    Slots,
    dense_vector,
    dense_vector_sequence,
    integer_value,
    raw,
    raw_sequence,
    scalar,
    scalar_sequence,
    text,
    text_sequence,
)
from pydp2.errors import BadSample, OptionError, OptionTypeError, ProviderError

pa: Any = pytest.importorskip("pyarrow")

FLOATS = st.sampled_from([0.0, -1.5, 2.25, float("inf")])
LEAVES = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float16": (pa.float16(), FLOATS.map(np.float16)),
    "float32": (pa.float32(), FLOATS),
    "float64": (pa.float64(), FLOATS),
    "string": (pa.string(), st.text(max_size=4)),
    "large_string": (pa.large_string(), st.text(max_size=4)),
    "string_view": (pa.string_view(), st.text(max_size=20)),
    "binary": (pa.binary(), st.binary(max_size=4)),
    "large_binary": (pa.large_binary(), st.binary(max_size=4)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "é", ""])),
}


@st.composite
def arrays(draw: Any, nulls: bool = False) -> Any:
    """An array of any type that a slot takes, with the values that it was made of."""
    kind, values = LEAVES[draw(st.sampled_from(sorted(LEAVES)))]
    if nulls:
        values = values | st.none()
    is_string = input_type(kind) in (text(), raw())
    if not is_string and draw(st.booleans()):
        for size in draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)):
            kind, values = pa.list_(kind, size), st.lists(values, min_size=size, max_size=size)
    for make in draw(st.lists(st.sampled_from([pa.list_, pa.large_list]), max_size=2)):
        kind, values = make(kind), st.lists(values, max_size=3)
        if nulls:
            values = values | st.none()
    made = draw(st.lists(values, max_size=8))
    lo = draw(st.integers(0, len(made)))
    hi = draw(st.integers(lo, len(made)))
    return pa.array(made, kind).slice(lo, hi - lo), made[lo:hi]


def plain(value: Any) -> Any:
    """A value of a sample without arrays of numpy."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


def packed(many: Any, slots: Slots) -> list[Any]:
    """All samples, packed together."""
    packer = Packer(slots, strict=True)
    laid = many.columns(slots, 0, len(many))
    assert laid is not None, "they are packed one by one"
    assert packer.add_columns(laid) == []
    return [plain(value) for (value,) in packer.finish().columns.samples()]


@given(arrays())
def test_an_array_has_the_values_that_arrow_says_together_and_one_by_one(case: Any) -> None:
    array, values = case
    slots = Slots((input_type(array.type),))
    many = rows(array)
    expected = plain(values)
    assert [plain(value) for value in many.samples(True)] == expected
    if values:
        assert packed(many, slots) == expected


@given(arrays(), st.data())
def test_chunks_are_one_array(case: Any, data: Any) -> None:
    array, values = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(array)), max_size=3)))
    edges = [0, *cuts, len(array)]
    chunked = pa.chunked_array([array[lo:hi] for lo, hi in pairwise(edges)], array.type)
    many = rows(chunked)
    assert [plain(value) for value in many.samples(True)] == plain(values)
    lo = data.draw(st.integers(0, len(array)))
    hi = data.draw(st.integers(lo, len(array)))
    if hi > lo:
        slots = Slots((input_type(array.type),))
        laid = many.columns(slots, lo, hi)
        assert laid is not None
        packer = Packer(slots, strict=True)
        packer.add_columns(laid)
        assert [plain(value) for (value,) in packer.finish().columns.samples()] == plain(values[lo:hi])


@given(arrays(nulls=True))
def test_an_entry_with_a_null_is_judged_alone_and_the_others_together(case: Any) -> None:
    array, values = case
    slots = Slots((input_type(array.type),))
    many = rows(array)
    assert [plain(value) for value in many.samples(True)] == plain(values)
    for i, value in enumerate(plain(values)):
        assert (many.columns(slots, i, i + 1) is None) == _has_null(value)


def _has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


def test_numbers_and_strings_lie_in_arrows_own_memory() -> None:
    numbers, strings = pa.array(np.arange(100.0)), pa.array(["abc"] * 100)
    laid = rows(numbers[3:], strings[3:]).columns(Slots((scalar("float64"), text())), 0, 97)
    assert laid is not None
    ((found,), (_, data)) = laid.arrays
    assert np.shares_memory(found, np.frombuffer(numbers.buffers()[1], np.float64))
    assert np.shares_memory(data, np.frombuffer(strings.buffers()[2], np.uint8))


# -- batches and tables ------------------------------------------------------------------------------------------------
BATCH = pa.record_batch({"text": ["a", "bc"], "label": [1, 2], "at": [{"x": 1.5, "y": 2}, {"x": 2.5, "y": 3}]})
ENTRIES = [{"text": "a", "label": 1, "at.x": 1.5, "at.y": 2}, {"text": "bc", "label": 2, "at.x": 2.5, "at.y": 3}]


class Exported:
    """An object of another library: it has Arrow's interface and nothing else."""

    def __init__(self, value: Any) -> None:
        self._value = value


class ExportedArray(Exported):
    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._value.__arrow_c_array__(requested_schema)


class ExportedStream(Exported):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._value.__arrow_c_stream__(requested_schema)


TABLES = {
    "a batch": lambda: BATCH,
    "a table": lambda: pa.Table.from_batches([BATCH[:1], BATCH[1:]]),
    "a reader": lambda: pa.RecordBatchReader.from_batches(BATCH.schema, [BATCH]),
    "structs": lambda: BATCH.to_struct_array(),
    "another batch": lambda: ExportedArray(BATCH),
    "another table": lambda: ExportedStream(pa.table(BATCH)),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_alone_means_its_columns_by_name_and_fields_of_structs_with_a_dot(name: str) -> None:
    many = rows(TABLES[name]())
    assert many.names == ("text", "label", "at.x", "at.y")
    assert [{key: plain(value) for key, value in sample.items()} for sample in many.samples(False)] == ENTRIES


@pytest.mark.parametrize(
    "make",
    [lambda a: a, ExportedArray, lambda a: ExportedStream(pa.chunked_array([a])), lambda a: pa.chunked_array([a])],
    ids=["array", "exported array", "exported stream", "chunked array"],
)
def test_one_array_per_slot_by_name_or_position(make: Any) -> None:
    by_name = rows(text=make(BATCH["text"]), label=np.array([5, 6]))
    assert [sample["text"] for sample in by_name.samples(False)] == ["a", "bc"]
    assert list(rows(make(BATCH["label"])).samples(True)) == [1, 2]


def test_a_field_of_a_null_struct_is_null() -> None:
    many = rows(pa.table({"a": pa.array([{"b": 1}, None, {"b": None}])}))
    assert [sample["a.b"] for sample in many.samples(False)] == [1, None, None]


def test_an_array_of_structs_is_no_value_of_one_slot() -> None:
    with pytest.raises(OptionTypeError, match=r"write rows\(batch\) for all of them"):
        rows(at=BATCH["at"])


def test_columns_of_the_same_name_are_refused() -> None:
    with pytest.raises(OptionError, match="must have different names, but a occurs twice"):
        rows(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]))


def test_a_null_is_an_error_that_names_file_column_and_row() -> None:
    @provider(input_types={"age": integer_value(200), "tags": text_sequence()})
    def process(settings: Any, filename: str) -> Iterator[Any]:
        yield rows(age=pa.array([1, int(filename), None]), tags=pa.array([["a"], ["b"], []]))

    with pytest.raises(BadSample, match=r"file 3, sample 2, slot age: expected an int in \[0, 200\), got None"):
        list(process.samples("3"))


# -- types -------------------------------------------------------------------------------------------------------------
TENSOR = pa.fixed_shape_tensor(pa.int32(), (2, 3))


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (pa.bool_(), scalar("bool")),
        (pa.uint16(), scalar("uint16")),
        (pa.float16(), scalar("float16")),
        (pa.float32(), scalar()),
        (pa.date32(), scalar("int32")),
        (pa.date64(), scalar("int64")),
        (pa.time32("ms"), scalar("int32")),
        (pa.time64("us"), scalar("int64")),
        (pa.timestamp("us", "UTC"), scalar("int64")),
        (pa.duration("s"), scalar("int64")),
        (pa.large_string(), text()),
        (pa.binary(16), raw()),
        (pa.dictionary(pa.int32(), pa.large_string()), text()),
        (pa.run_end_encoded(pa.int32(), pa.float32()), scalar()),
        (pa.list_(pa.int64()), scalar_sequence("int64")),
        (pa.large_list(pa.string()), text_sequence()),
        (pa.list_(pa.binary()), raw_sequence()),
        (pa.list_(pa.string(), 3), text_sequence()),
        (pa.list_(pa.list_(pa.int8())), scalar("int8", SequenceType.SUB_SEQUENCE)),
        (pa.list_(pa.float32(), 5), dense_vector(5)),
        (pa.list_(pa.list_(pa.uint8(), 3), 2), dense_vector((2, 3), dtype="uint8")),
        (pa.list_(pa.list_(pa.float32(), 4)), dense_vector_sequence(4)),
        (TENSOR, dense_vector((2, 3), dtype="int32")),
        (pa.uuid(), raw()),
    ],
    ids=str,
)
def test_a_type_of_arrow_has_a_slot(kind: Any, declared: InputType) -> None:
    assert input_type(kind) == declared


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.decimal128(10, 2), "cast it to float64, or to string"),
        (pa.decimal256(40, 2), "cast it to float64, or to string"),
        (pa.list_(pa.struct({"a": pa.int8()})), "write its fields as lists of their own"),
        (pa.map_(pa.string(), pa.int8()), "write its fields as lists of their own"),
        (pa.list_(pa.list_(pa.list_(pa.int8()))), "at most 2 levels of lists"),
        (pa.list_(pa.list_(pa.int8()), 2), "write it as a list"),
        (pa.list_(pa.int8(), 0), "at least one number"),
        (pa.list_view(pa.int8()), "write it as a list"),
        (pa.null(), "it has no value at all"),
        (pa.month_day_nano_interval(), "leave it out, or cast it"),
        (pa.fixed_shape_tensor(pa.int8(), (2, 3), permutation=[1, 0]), "store its elements in C order"),
    ],
    ids=str,
)
def test_a_type_that_no_slot_takes_is_refused_with_a_remedy(kind: Any, remedy: str) -> None:
    with pytest.raises(OptionTypeError, match=remedy):
        input_type(kind)
    if not pa.types.is_null(kind) and not isinstance(kind, pa.BaseExtensionType):
        with pytest.raises(OptionTypeError, match=f"price: no slot takes Arrow's type .*{remedy}"):
            rows(price=pa.array([], kind))


def test_times_are_whole_numbers_in_the_unit_of_their_type() -> None:
    day = datetime.date(1970, 1, 3)
    moment = datetime.datetime(1970, 1, 1, 0, 0, 2, tzinfo=datetime.UTC)
    many = rows(pa.array([day]), pa.array([moment], pa.timestamp("ms", "UTC")))
    assert [plain(list(sample)) for sample in many.samples(False)] == [[2, 2000]]


def test_tensors_and_runs_are_read() -> None:
    tensors = pa.ExtensionArray.from_storage(
        TENSOR, pa.array([list(range(6)), list(range(6, 12))], pa.list_(pa.int32(), 6))
    )
    assert [plain(value) for value in rows(tensors[1:]).samples(True)] == [[[6, 7, 8], [9, 10, 11]]]
    runs = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", "b"]))
    assert list(rows(runs).samples(True)) == ["a", "a", "b"]


# -- arrays that lie ---------------------------------------------------------------------------------------------------
def made(kind: Any, count: int, *buffers: Any, children: Any = None) -> Any:
    held = [None if each is None else pa.py_buffer(each) for each in buffers]
    return pa.Array.from_buffers(kind, count, held, children=children)


@pytest.mark.parametrize(
    "array",
    [
        made(pa.string(), 2, None, np.array([0, 900, 3], np.int32), b"abc"),
        made(pa.large_binary(), 2, None, np.array([0, -4, 3], np.int64), b"abc"),
        made(pa.list_(pa.int8()), 2, None, np.array([0, 9, 2], np.int32), children=[pa.array([1, 2], pa.int8())]),
    ],
    ids=["beyond the bytes", "before the bytes", "beyond the items"],
)
def test_offsets_that_lie_are_an_error(array: Any) -> None:
    with pytest.raises(OptionError, match="offsets must rise from 0"):
        rows(array)


def test_text_that_is_no_utf8_is_a_bad_sample_and_the_others_are_text() -> None:
    array = made(pa.string(), 3, None, np.array([0, 1, 2, 4], np.int32), b"a\xff\xc3\xa9")
    assert list(rows(array).samples(True)) == ["a", b"\xff", "é"]
    assert rows(array).columns(Slots((text(),)), 0, 3) is None
    plain_text, _ = arrow_values.plain_values(array)
    assert undecodable(plain_text).tolist() == [False, True, False]  # type: ignore[union-attr]
    lists = pa.ListArray.from_arrays([0, 2, 2, 3], array)
    assert undecodable(arrow_values.plain_values(lists)[0]).tolist() == [True, False, False]  # type: ignore[union-attr]


def test_what_a_batch_gives_as_arrow_comes_back_the_same() -> None:
    strings = StringArray(np.array([0, 1, 3]), np.frombuffer("aé".encode(), np.uint8))
    bytes_ = BinaryArray(strings.offsets, strings.data)
    assert list(rows(strings.to_pyarrow(), bytes_.to_pyarrow()).samples(False)) == [("a", b"a"), ("é", "é".encode())]


# -- other objects -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", [pa.scalar(5), pa.int8(), BATCH.schema], ids=lambda value: type(value).__name__)
def test_what_is_no_array_of_arrow_is_refused(value: Any) -> None:
    with pytest.raises(OptionTypeError, match="rows\\(\\) takes"):
        rows(a=value)


def test_decimals_are_refused_where_they_are_written() -> None:
    with pytest.raises(OptionTypeError, match="price: no slot takes Arrow's type decimal128"):
        rows(price=pa.array([Decimal("1.50")]))


class NumbersToo(ExportedArray):
    """As a column of another library that also exports its numbers."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._value.to_numpy()


@pytest.fixture
def _no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    arrow_values.pyarrow.cache_clear()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    yield
    arrow_values.pyarrow.cache_clear()


@pytest.mark.usefixtures("_no_pyarrow")
def test_without_pyarrow_an_error_says_what_to_install_and_numbers_are_still_taken() -> None:
    with pytest.raises(ImportError, match="need pyarrow, which is not installed: pip install 'pyarrow>=16'"):
        rows(text=ExportedArray(BATCH["text"]))
    assert list(rows(NumbersToo(BATCH["label"])).samples(True)) == [1, 2]


def test_a_provider_yields_a_batch() -> None:
    @provider(input_types={"label": integer_value(5), "text": text()})
    def process(settings: Any, filename: str) -> Iterator[Any]:
        yield rows(BATCH.select(["text", "label"]))

    assert list(process.samples("f")) == [[1, "a"], [2, "bc"]]
    with pytest.raises(ProviderError, match=r"at\.x"):
        list(_serving_all().samples("f"))


def _serving_all() -> Any:
    @provider(input_types=[integer_value(5)])
    def process(settings: Any, filename: str) -> Iterator[Any]:
        yield rows(BATCH)

    return process
