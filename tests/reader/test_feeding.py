"""The data feeder: columns of a mini-batch by dict, list and no mapping; what dense values may look like."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.batch import Batch, BinaryArray, Csr, Ragged, StringArray
from pydp2.data.columns.unbatch import unbatch
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import (
    Slots,
    dense_vector,
    dense_vector_sequence,
    dense_vector_sub_sequence,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    raw_sequence,
    scalar,
    scalar_sequence,
    sparse_binary_vector,
    sparse_binary_vector_sub_sequence,
    sparse_float_vector,
    sparse_float_vector_sequence,
    text,
)
from pydp2.errors import BadSample, OptionError, OptionTypeError
from pydp2.reader import DataFeeder, FedBatch

NAMED = {"image": dense_vector(2), "label": integer_value(10)}
MINI = [([1.0, 2.0], "unused", 3), ([4, 5], "unused", 6)]


def arrays(batch: Batch) -> list[list[Any]]:
    return [value.tolist() for value in batch]  # type: ignore[union-attr]


def test_rd_35_a_dict_may_use_a_column_twice_and_leave_columns_out() -> None:
    batch = DataFeeder({"a": dense_vector(2), "b": dense_vector(2), "label": integer_value(10)},
                       OrderedDict(label=2, b=0, a=0))(MINI)  # fmt: skip
    assert batch.names == ("a", "b", "label")
    assert arrays(batch) == [[[1, 2], [4, 5]], [[1, 2], [4, 5]], [3, 6]]
    assert not np.shares_memory(batch["a"], batch["b"])  # type: ignore[arg-type]
    assert isinstance(batch, FedBatch)
    assert (len(batch), batch.size) == (2, 2)


def test_rd_35_a_list_of_names_and_none_go_by_position() -> None:
    pairs = [("label", integer_value(10)), ("image", dense_vector(2))]
    batch = DataFeeder(pairs, ["image", "junk", "label"])(MINI)
    assert batch.names == ("label", "image")
    assert arrays(batch) == [[3, 6], [[1, 2], [4, 5]]]
    assert arrays(DataFeeder(NAMED)([([1.0, 2.0], 3)])) == [[[1, 2]], [3]]
    assert arrays(DataFeeder([integer_value(10)])([(3,), 4, [5]])) == [[3, 4, 5]]


@pytest.mark.parametrize("mapping", [5, "image", {"image", "label"}, {"image": "0", "label": 1}, {"image": True, 2: 0}])
def test_rd_35_any_other_mapping_is_a_type_error(mapping: Any) -> None:
    with pytest.raises(OptionTypeError, match="mapping must"):
        DataFeeder(NAMED, mapping)


def test_one_dict_serves_feeders_that_have_some_of_its_names() -> None:
    batch = DataFeeder({"image": dense_vector(2)}, {"image": 0, "label": 2})(MINI)
    assert arrays(batch) == [[[1, 2], [4, 5]]]


def test_a_mapping_that_does_not_fit_the_slots_is_refused() -> None:
    with pytest.raises(OptionError, match="it lacks label; there is no slot lable"):
        DataFeeder(NAMED, {"image": 0, "lable": 1})
    with pytest.raises(OptionError, match="it lacks image"):
        DataFeeder(NAMED, ["label", "junk"])
    with pytest.raises(OptionError, match="columns from 0"):
        DataFeeder(NAMED, {"image": 0, "label": -1})
    with pytest.raises(OptionError, match="each column once"):
        DataFeeder(NAMED, ["image", "label", "label"])
    with pytest.raises(OptionTypeError, match="slots with names"):
        DataFeeder([dense_vector(2)], {"image": 0})
    with pytest.raises(OptionTypeError, match="input_types must be"):
        DataFeeder(dense_vector(2))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="at least one slot"):
        DataFeeder([])
    with pytest.raises(
        BadSample, match=r"entry 1 of the mini-batch, label: expected column 2 of the entry, got an entry with 2"
    ):
        DataFeeder(NAMED, {"image": 0, "label": 2})([([1.0, 2.0], 0, 1), ([1.0, 2.0], 1)])  # fmt: skip


def test_rd_36_lists_tuples_and_arrays_give_the_same_columns() -> None:
    rows = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    feeder = DataFeeder([dense_vector(4)])
    made = [
        feeder([(form(row),) for row in rows])[0]
        for form in (list, tuple, np.array, lambda row: np.array(row, np.int64), lambda row: list(map(int, row)))
    ]
    nested = feeder([(((row[:2], tuple(row[2:]))),) for row in rows])[0]
    for array in (*made, nested):
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.float32
        assert array.tolist() == rows


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[1.0, 2.0, 3.0, 4.0], [[1.0, 2.0], [3.0, 4.0]]], "expected the shape"),
        ([np.zeros((2, 2)), np.zeros((4, 1))], "expected the shape"),
        ([1.0], "expected a vector, got 1.0"),
        ([np.float32(1)], "expected a vector"),
        ([np.zeros((1, 1, 2, 2))], "at most 3 dimensions"),
        ([[1.0, 2.0, 3.0]], "expected 4 numbers, got 3"),
        ([[[1.0, 2.0], [3.0]]], "lists of equal lengths"),
        ([np.zeros((2, 0))], r"a frame with numbers in it, got an empty one, of shape \(2, 0\)"),
        ([np.zeros((3, 3)), np.zeros((2, 2))], r"expected the shape \(3, 3\), as before it in this batch"),
        ([np.ma.masked_greater([[1.0, 2.0], [3.0, 4.0]], 3)], "masked"),
        ([None], "expected 4 numbers"),
        ([["a", "b", "c", "d"]], "expected a number"),
        ([[1e300, 0.0, 0.0, 0.0]], "range of float32"),
    ],
)
def test_rd_36_shapes_that_differ_and_scalars_are_value_errors(values: list[Any], words: str) -> None:
    number = len(values) - 1
    with pytest.raises(ValueError, match=f"entry {number} of the mini-batch, slot 0: .*{words}"):
        DataFeeder([dense_vector(4)])([(value,) for value in values])


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("int64", [2**53 + 1, 1.0, 2, 3]),
        ("int64", [-(2**63), 1.0, 2**63 - 1, 0]),
        ("uint64", [2**63 + 1, 5, 2**64 - 1, 0]),
        ("int64", [2**53 + 1, np.float32(2), np.uint64(3), True]),
        ("float64", [2**70, 1, 0.5, 2]),
        ("bool", [1.0, 0, True, False]),
    ],
)
def test_rd_36_numbers_in_nested_lists_are_what_they_are_in_one_list(dtype: str, numbers: list[Any]) -> None:
    feeder = DataFeeder([dense_vector(4, dtype=dtype)])
    plain = feeder([(numbers,)])[0]
    nested = [numbers[:2], tuple(numbers[2:])]
    assert feeder([(nested,)])[0].tolist() == plain.tolist() == [list(map(np.dtype(dtype).type, numbers))]  # type: ignore[union-attr]
    assert feeder([([nested],)])[0].tolist() == plain.tolist()  # type: ignore[union-attr]


def test_rd_36_arrays_of_several_dtypes_in_a_list_keep_their_numbers() -> None:
    value = [np.array([2**53 + 1, 2]), np.array([3.0, 4.0]), (5, 6)]
    batch = DataFeeder([dense_vector(6, dtype="int64")])([(value,)])
    assert batch[0].tolist() == [[2**53 + 1, 2, 3, 4, 5, 6]]  # type: ignore[union-attr]


class Tensor:
    """As torch has them: numpy can read it, unless that raises ``error``."""

    def __init__(self, values: Any, error: Exception | None = None) -> None:
        self.values, self.error = np.array(values), error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self.error is not None:
            raise self.error
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return Tensor(self.values[index], self.error)

    def __repr__(self) -> str:
        return "tensor(…)"

    def tolist(self) -> Any:
        return self.values.tolist()


@pytest.mark.parametrize("error", [RuntimeError("it requires grad"), TypeError("it is on cuda:0"), ValueError("no")])
def test_a_tensor_that_numpy_cannot_read_is_told_with_entry_slot_and_remedy(error: Exception) -> None:
    for value in (Tensor([1.0, 2.0], error), Tensor([[1.0], [2.0]], error), [Tensor([1.0], error)] * 2):
        text = r"entry 1 of the mini-batch, slot 0: expected .* \(write x.tolist\(\)\), got "
        with pytest.raises(BadSample, match=text):
            DataFeeder([dense_vector(2)])([([1.0, 2.0],), (value,)])


def test_a_tensor_that_numpy_can_read_is_taken_as_an_array_however_many_dimensions_it_has() -> None:
    feeder = DataFeeder([dense_vector(2)])
    for value in (Tensor([1.0, 2.0]), Tensor([[1.0], [2.0]]), [Tensor([1.0]), Tensor([2.0])]):
        assert arrays(feeder([(value,)])) == [[[1.0, 2.0]]]


@pytest.mark.parametrize("entry", [([1.0, 2.0], 3, 4), [[1.0, 2.0], 3, 4]])
def test_without_a_mapping_an_entry_has_no_column_beyond_the_slots(entry: Any) -> None:
    text = "all slots: expected 2 columns, one for each slot, got an entry with 3 columns"
    with pytest.raises(BadSample, match=f"entry 1 of the mini-batch, {text}"):
        DataFeeder(NAMED)([([1.0, 2.0], 3), entry])
    assert arrays(DataFeeder(NAMED, {"image": 0, "label": 2})([entry])) == [[[1, 2]], [4]]


@pytest.mark.parametrize(
    "value",
    [
        [np.ma.array([1.0, 2.0], mask=[False, True])],
        ([[1.0, 2.0]], (np.ma.array([1.0, 2.0]),)),
        [1.0, np.ma.masked],
    ],
)
def test_a_mask_inside_of_a_nested_value_is_told(value: Any) -> None:
    with pytest.raises(BadSample, match=r"slot 0: expected .* without a mask \(write x\.filled\(0\)\)"):
        DataFeeder([dense_vector(2)])([(value,)])


def test_a_shape_may_differ_from_batch_to_batch() -> None:
    feeder = DataFeeder({"x": dense_vector(4)})
    assert feeder([(np.zeros((2, 2)),)]).frames == {"x": (2, 2)}
    assert feeder([(np.zeros(4),)]).frames == {}


def test_rd_37_height_and_width_of_a_frame_are_the_last_two_dimensions() -> None:
    image = np.arange(24.0).reshape(2, 3, 4)
    batch = DataFeeder({"image": dense_vector(24), "label": integer_value(2)})([(image, 0), (image.tolist(), 1)])
    assert batch.frames == {"image": (3, 4)}
    assert batch["image"].tolist() == [list(range(24))] * 2  # type: ignore[union-attr]
    assert DataFeeder([dense_vector(12)])([(image[0],)]).frames == {0: (3, 4)}


def test_rd_37_a_frame_of_another_size_than_dim_makes_the_slot_as_wide_as_it_is() -> None:
    """The length is demanded of vectors only; pictures of two sizes go through one feeder, batch by batch."""
    feeder = DataFeeder({"image": dense_vector(4, dtype=np.uint8, shape=(2, 2)), "label": integer_value(3)})
    for shape in ((3, 5), (2, 3, 5), (2, 2)):
        images = np.arange(2 * math.prod(shape), dtype=np.uint8).reshape(2, *shape)
        batch = feeder([(images[0], 1), (images[1].tolist(), 2)])
        made = batch["image"]
        assert isinstance(made, np.ndarray)
        assert (made.dtype, made.reshape(2, -1).tolist()) == (np.uint8, images.reshape(2, -1).tolist())
        assert batch.frames == {"image": shape[-2:]}
        assert batch["label"].tolist() == [1, 2]  # type: ignore[union-attr]
    assert made.shape == (2, 2, 2), "as declared, where it has as many numbers"


def test_a_mini_batch_without_entries_has_no_rows() -> None:
    batch = DataFeeder(NAMED)([], pass_id=3, index=4)
    assert (len(batch), batch.pass_id, batch.index, batch["image"].shape) == (0, 3, 4, (0, 2))  # type: ignore[union-attr]


# -- taking a batch apart ----------------------------------------------------------------------------------------------
FLOATS = st.floats(-1e6, 1e6, width=32)
IDS = st.lists(st.integers(0, 8), max_size=4, unique=True)
PAIRS = st.dictionaries(st.integers(0, 8), FLOATS, max_size=4).map(lambda pairs: list(pairs.items()))
SLOTS = [
    (dense_vector(2), st.tuples(FLOATS, FLOATS)),
    (dense_vector(4, dtype=np.int16, shape=(2, 2)), st.lists(st.integers(-9, 9), min_size=4, max_size=4)),
    (integer_value(9), st.integers(0, 8)),
    (sparse_binary_vector(9), IDS),
    (sparse_float_vector(9), PAIRS),
    (integer_value_sequence(9), st.lists(st.integers(0, 8), max_size=4)),
    (dense_vector_sequence(2), st.lists(st.tuples(FLOATS, FLOATS), max_size=3)),
    (sparse_float_vector_sequence(9), st.lists(PAIRS, max_size=3)),
    (integer_value_sub_sequence(9), st.lists(st.lists(st.integers(0, 8), max_size=3), max_size=3)),
    (dense_vector_sub_sequence(2), st.lists(st.lists(st.tuples(FLOATS, FLOATS), max_size=2), max_size=3)),
    (sparse_binary_vector_sub_sequence(9), st.lists(st.lists(IDS, max_size=3), max_size=3)),
    (scalar(), FLOATS),
    (scalar_sequence("int64"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)),
    (text(), st.text(max_size=4)),
    (raw_sequence(), st.lists(st.binary(max_size=4), max_size=3)),
]


@given(st.lists(st.tuples(*(values for _, values in SLOTS)), max_size=5))
def test_a_batch_that_is_taken_apart_packs_to_the_same_columns(samples: list[tuple[Any, ...]]) -> None:
    types = [declared for declared, _ in SLOTS]
    packer = Packer(Slots(tuple(types)), strict=False)
    for sample in samples:
        packer.add(list(sample))
    columns, _, bad = packer.finish()
    assert not bad
    batch = Batch(columns, pass_id=0, index=0, size=len(samples))
    again = DataFeeder(types)(unbatch(batch))
    for one, other in zip(batch, again, strict=True):
        same(one, other)


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
        return
    if isinstance(one, BinaryArray | StringArray):
        assert [one.to_list(), one.offsets.tolist()] == [other.to_list(), other.offsets.tolist()]
        return
    parts = ("indptr", "indices", "values") if isinstance(one, Csr) else (
        "values", "sequence_start_positions", "sub_sequence_start_positions")  # fmt: skip
    assert isinstance(one, Csr | Ragged)
    for name in parts:
        if getattr(one, name) is None:
            assert getattr(other, name) is None
        else:
            same(getattr(one, name), getattr(other, name))
