"""A batch as its user sees it: keys, kinds of values, ownership, padding."""

from __future__ import annotations

import html
import importlib.util
import re
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.batch import Batch, Csr, Ragged
from pydp2.data.columns.columns import Columns
from pydp2.data.columns.converters import converters
from pydp2.data.schema.input_types import (
    Slots,
    dense_vector,
    dense_vector_sequence,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    scalar,
    sparse_binary_vector,
    sparse_binary_vector_sequence,
    sparse_float_vector,
    text,
    text_sequence,
)
from pydp2.errors import OptionError, OptionTypeError

DIGITS = Slots((dense_vector(2), integer_value(10)), ("pixel", "label"))


def batch_of(some, slots, samples):
    return Batch(some.columns_of(slots, samples), pass_id=0, index=0, size=len(samples), pool_weight=9)


def digits(some):
    return batch_of(some, DIGITS, [[[0.0, 1.0], 3], [[2.0, 3.0], 4], [[4.0, 5.0], 5]])


def test_a_slot_is_found_by_name_and_by_position(some):
    batch = digits(some)
    assert batch["label"] is batch[1] is batch[-1]
    assert batch["label"].tolist() == [3, 4, 5]
    assert (len(batch), batch.size, batch.pass_id, batch.index, batch.pool_weight, batch.padding) == (3, 3, 0, 0, 9, 0)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_tensors_of_a_batch_need_torch_and_the_error_says_how_to_get_it(some):
    for give in (digits(some).to, digits(some).pin_memory):
        with pytest.raises(ImportError, match=r"pip install 'torch>="):
            give()


def test_a_batch_is_converted_by_the_function_that_a_framework_has_put_into_the_registry(some, monkeypatch):
    batch = digits(some)
    monkeypatch.setitem(converters, "torch", lambda *given, **options: (given, options))
    assert batch.to("cuda:1", non_blocking=True) == ((batch, "cuda:1"), {"non_blocking": True})
    assert batch.pin_memory() == ((batch,), {"pin_memory": True})


def test_what_is_neither_name_nor_number_of_a_slot_is_an_error_that_says_how_rows_are_had(some):
    for key, shown in (
        (slice(0, 1), r"slice\(0, 1, None\)"),
        (1.0, "1.0"),
        (["pixel"], r"\['pixel'\]"),
        (None, "None"),
    ):
        words = rf"indexed by the name or the number of a slot, got {shown}; .* batch\['pixel'\]\[0:1\]"
        with pytest.raises(TypeError, match=words):
            digits(some)[key]
    with pytest.raises(TypeError, match=r"batch\[0\]\[0:1\]"):
        batch_of(some, Slots((integer_value(3),)), [[1]])[0:1]
    assert digits(some)[np.int64(1)] is not None


def test_a_slot_that_is_not_there_is_an_error_that_lists_those_that_are(some):
    with pytest.raises(KeyError, match="slots: pixel, label"):
        digits(some)["labels"]
    with pytest.raises(IndexError, match="the batch has 2"):
        digits(some)[2]
    unnamed = batch_of(some, Slots((integer_value(3),)), [[1]])
    with pytest.raises(KeyError, match="no names, only positions"):
        unnamed["label"]


def test_keys_values_and_items_stand_in_slot_order(some):
    batch = digits(some)
    assert batch.names == batch.keys() == ("pixel", "label")
    pixel, label = batch
    assert [(k, v is w) for (k, v), w in zip(batch.items(), (pixel, label), strict=True)] == [
        ("pixel", True), ("label", True),
    ]  # fmt: skip
    assert dict(batch)["label"] is label
    unnamed = batch_of(some, Slots((integer_value(3), integer_value(3))), [[1, 2]])
    assert unnamed.names is None
    assert unnamed.keys() == (0, 1)
    assert [k for k, _ in unnamed.items()] == [0, 1]


def test_in_asks_for_a_slot_and_never_for_a_value(some):
    batch = digits(some)
    assert "pixel" in batch
    assert "pixels" not in batch
    assert [i in batch for i in (-3, -2, 1, 2)] == [False, True, True, False]
    assert [other in batch for other in (None, 1.0, batch[0], [1])] == [False] * 4
    unnamed = batch_of(some, Slots((integer_value(3), integer_value(3))), [[1, 2]])
    assert "label" not in unnamed
    assert 1 in unnamed


def test_a_batch_can_be_unpacked_as_values_and_as_keywords(some):
    batch = digits(some)
    pixel, label = batch
    assert [value is other for value, other in zip(batch.values(), (pixel, label), strict=True)] == [True, True]
    assert dict(**batch).keys() == {"pixel", "label"}
    assert list(iter(batch))[1] is label  # the values, where a dict would give its keys


def test_the_repr_of_a_batch_says_what_is_in_it(some):
    assert repr(digits(some)) == ("<Batch 0 of pass 0: 3 rows, size 3; pixel: float32 (3, 2); label: int32 (3,)>")
    slots = Slots((integer_value_sub_sequence(9), sparse_float_vector(9)))
    batch = batch_of(some, slots, [[[[1, 2], [3]], [(1, 2.0)]]])
    assert repr(batch[0]) == "<Ragged 1 sequence, 3 steps in 2 sub-sequences, of int32 (3,)>"
    assert repr(batch[1]) == "<Csr 1 x 9, float32, 1 entry>"


def test_writing_into_a_batch_lasts_and_reaches_no_other(some):
    columns = some.columns_of(DIGITS, [[[0.0, 1.0], 3], [[2.0, 3.0], 4]])
    one, other = (Batch(columns.slice(i, i + 1), pass_id=0, index=i, size=1) for i in range(2))
    one["pixel"][:] = 7
    assert one["pixel"].tolist() == [[7, 7]]
    assert other["pixel"].tolist() == [[2, 3]]


def test_a_batch_over_memory_that_may_not_be_written_becomes_writable(some):
    columns = some.columns_of(Slots((dense_vector(2), sparse_float_vector(3))), [[[0.0, 1.0], [(1, 0.5)]]])
    frames = [f.tobytes() for f in columns.frames()]
    batch = Batch(Columns.from_frames(columns.slots, 1, frames), pass_id=0, index=0, size=1)
    batch[0][:] = 7
    batch[1].values[:] = 8
    assert batch[0].tolist() == [[7, 7]]
    assert batch[1].values.tolist() == [8]


def test_a_sparse_slot_is_csr_in_the_order_of_the_yields(some):
    csr = batch_of(some, Slots((sparse_float_vector(9),)), [[[(5, 0.5), (1, 1.5)]], [[]], [[(8, 2.5)]]])[0]
    assert isinstance(csr, Csr)
    assert len(csr) == 3
    assert csr.indptr.tolist() == [0, 2, 2, 3]
    assert csr.indptr.dtype == csr.indices.dtype == np.int32
    assert csr.indices.tolist() == [5, 1, 8]
    assert csr.values.tolist() == [0.5, 1.5, 2.5]
    assert csr.shape == (3, 9)


def test_a_sparse_slot_becomes_a_scipy_matrix(some):
    pytest.importorskip("scipy")
    slots = Slots((sparse_binary_vector(3), sparse_float_vector(3)))
    batch = batch_of(some, slots, [[[2, 0], [(1, 0.5)]], [[], []]])
    assert batch[0].to_scipy().toarray().tolist() == [[1, 0, 1], [0, 0, 0]]
    assert batch[1].to_scipy().toarray().tolist() == [[0, 0.5, 0], [0, 0, 0]]


def test_without_scipy_the_error_says_what_to_install(some, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    csr = batch_of(some, Slots((sparse_binary_vector(3),)), [[[1]]])[0]
    with pytest.raises(ImportError, match="pip install scipy"):
        csr.to_scipy()


def test_sequences_are_padded_to_the_longest(some):
    ragged = batch_of(some, Slots((integer_value_sequence(9),)), [[[1, 2, 3]], [[]], [[4]]])[0]
    padded, lengths = ragged.pad()
    assert padded.tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]
    assert padded.dtype == np.int32
    assert lengths.tolist() == [3, 0, 1]
    padded, lengths = ragged.pad(value=-1, length=2)
    assert padded.tolist() == [[1, 2], [-1, -1], [4, -1]]
    assert lengths.tolist() == [2, 0, 1]
    assert ragged.pad(length=5)[0].shape == (3, 5)


@given(rows=st.lists(st.lists(st.integers(0, 8), max_size=5), max_size=5), length=st.none() | st.integers(0, 6))
def test_padding_loses_nothing_but_what_is_too_long(some, rows, length):
    ragged = batch_of(some, Slots((integer_value_sequence(9),)), [[r] for r in rows])[0]
    padded, lengths = ragged.pad(value=-1, length=length)
    assert [p[:n] for p, n in zip(padded.tolist(), lengths.tolist(), strict=True)] == [r[:length] for r in rows]
    assert (padded == -1).sum() == padded.size - lengths.sum()


def test_dense_and_nested_sequences_are_padded_along_their_steps(some):
    dense = batch_of(some, Slots((dense_vector_sequence(2),)), [[[[1.0, 2.0]]], [[[3.0, 4.0], [5.0, 6.0]]]])[0]
    assert dense.pad()[0].tolist() == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]
    nested = batch_of(some, Slots((integer_value_sub_sequence(9),)), [[[[1], [2, 3]]], [[[]]]])[0]
    assert nested.pad()[0].tolist() == [[1, 2, 3], [0, 0, 0]]


def test_what_cannot_be_padded_says_so(some):
    slots = Slots((sparse_binary_vector_sequence(9), integer_value_sequence(9)))
    batch = batch_of(some, slots, [[[[1]], [1]]])
    with pytest.raises(OptionTypeError, match="sparse"):
        batch[0].pad()
    with pytest.raises(OptionError, match="at least 0"):
        batch[1].pad(length=-1)
    assert isinstance(batch[0], Ragged)
    assert isinstance(batch[0].values, Csr)


def ragged_of(dtype):
    return Ragged(np.ones(3, dtype), np.array([0, 2, 3], np.int32))


FITTING = [
    ("int32", 0), ("int32", -100), ("int64", -100), ("int32", 0.0), ("uint8", 255), ("int32", np.int64(-1)),
    ("int32", True), ("uint64", 2**64 - 1), ("int64", Fraction(4, 2)), ("bool", False), ("bool", 1),
    ("float32", 0.1), ("float32", -100), ("float32", np.nan), ("float32", np.inf), ("float32", 1e-60),
    ("float32", 2**24 + 1), ("float64", np.float32(0.1)), ("float16", 65504), ("float16", np.array(3)),
]  # fmt: skip
NOT_FITTING = [
    ("int32", 1.5), ("uint8", np.int64(-1)), ("uint8", -1), ("uint8", 256), ("int32", np.nan), ("int32", np.inf),
    ("int32", 2**31), ("int64", 2.0**63), ("int64", 2**63), ("int64", 2**70), ("uint64", -1), ("bool", 2),
    ("bool", 0.5), ("float32", 1e39), ("float32", 10**400), ("float16", 1e5), ("float16", np.float32(1e5)),
    ("int32", Fraction(1, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "value"), FITTING, ids=lambda each: f"{each}"[:20])
def test_a_value_to_pad_with_is_kept_where_it_fits(dtype, value):
    padded, _ = ragged_of(dtype).pad(value)
    assert padded.dtype == dtype
    assert np.array_equal(padded[1, 1:], np.array([value]).astype(dtype), equal_nan=padded.dtype.kind == "f")


@pytest.mark.parametrize(("dtype", "value"), NOT_FITTING, ids=lambda each: f"{each}"[:20])
def test_a_value_to_pad_with_that_does_not_fit_is_refused(dtype, value):
    with pytest.raises(OptionError, match=f"to pad with must be a number that {dtype} can hold, got "):
        ragged_of(dtype).pad(value)


def test_a_value_to_pad_with_fits_into_bfloat16_if_it_is_small_enough():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    ragged = ragged_of(ml_dtypes.bfloat16)
    for value in (0, 0.1, -100, ml_dtypes.bfloat16(2), np.inf):
        assert ragged.pad(value)[0][1, 1] == ml_dtypes.bfloat16(value)
    with pytest.raises(OptionError, match="a number that bfloat16 can hold, got 1e\\+39"):
        ragged.pad(1e39)
    assert ragged_of(np.int32).pad(ml_dtypes.bfloat16(2))[0][1, 1] == 2
    with pytest.raises(OptionError, match="a number that int32 can hold"):
        ragged_of(np.int32).pad(ml_dtypes.bfloat16(0.5))


@pytest.mark.parametrize("value", ["0", None, 1j, [0], np.zeros(1), b"0"])
def test_what_is_no_number_is_no_value_to_pad_with(value):
    with pytest.raises(OptionTypeError, match="the value to pad with must be one number, got "):
        ragged_of("float32").pad(value)


@pytest.mark.parametrize("length", [1.5, "2", True, 2.0])
def test_a_length_to_pad_to_is_a_whole_number(length):
    with pytest.raises(OptionTypeError, match="the length to pad to must be a whole number or None, got "):
        ragged_of("float32").pad(length=length)
    assert ragged_of("float32").pad(length=np.int64(4))[0].shape == (2, 4)


def test_an_empty_batch_has_a_value_for_every_slot():
    slots = Slots((integer_value_sub_sequence(9), sparse_binary_vector(3), dense_vector(4, shape=(2, 2))))
    batch = Batch(Columns.empty(slots), pass_id=1, index=2, size=0)
    assert batch[0].sequence_start_positions.tolist() == batch[0].sub_sequence_start_positions.tolist() == [0]
    assert batch[0].pad()[0].shape == (0, 0)
    assert batch[1].shape == (0, 3)
    assert batch[2].shape == (0, 2, 2)


def cells(value):
    """The texts of its table in a notebook, by row."""
    rows = re.findall("<tr>(.*?)</tr>", value._repr_html_())
    return [[html.unescape(text) for text in re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def test_a_notebook_shows_slots_ranges_and_the_first_row(some):
    assert cells(digits(some)) == [
        ["slot", "values", "range", "first row"],
        ["pixel", "float32 (3, 2)", "0 to 5", "0, 1"],
        ["label", "int32 (3,)", "3 to 5", "3"],
    ]
    slots = Slots(
        (integer_value_sequence(99), sparse_float_vector(50), sparse_binary_vector_sequence(9)), ("<b>", "c", "d")
    )
    sparse = [[(3, 0.5), (4, 2)], [(1, 1)]]
    mixed = batch_of(some, slots, [[[*range(10)], sparse[0], [[1, 2], [3]]], [[7], sparse[1], [[4]]]])
    assert [row[2:] for row in cells(mixed)[1:]] == [
        ["1 to 10, mean 5.5", "0 to 9", "0, 1, 2, 3, 4, 5, 6, 7, …"],
        ["1 to 2, mean 1.5", "0.5 to 2", "columns 3, 4"],
        ["1 to 2, mean 1.5", "", "columns 1, 2, 3"],
    ]
    strings = batch_of(some, Slots((text(), text_sequence(), scalar("bool"))), [["a" * 41, ["x", "y"], True]])
    assert [row[2:] for row in cells(strings)[1:]] == [
        ["41 to 41, mean 41.0", "", f"'{'a' * 40}'…"],
        ["2 to 2, mean 2.0", "", "'x', 'y'"],
        ["", "1 to 1", "1"],
    ]
    assert cells(mixed)[1][0] == "<b>"
    assert "<b>" not in mixed._repr_html_()
    assert cells(mixed["<b>"]) == [
        ["lengths", "1 to 10, mean 5.5"],
        ["range", "0 to 9"],
        ["first row", "0, 1, 2, 3, 4, 5, 6, 7, …"],
    ]
    assert cells(mixed["c"])[0] == ["lengths", "1 to 2, mean 1.5"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_a_notebook_shows_nan_without_a_warning(some, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    shown = batch_of(some, Slots((dense_vector(2, dtype=dtype), integer_value(9))), [[[1.0, np.nan], 1], [[2, 3], 1]])
    assert cells(shown)[1] == ["slot 0", f"{dtype} (2, 2)", "nan to nan", "1, nan"]


def test_a_notebook_shows_batches_without_rows_and_with_many_slots(some):
    slots = Slots((dense_vector(2), integer_value_sequence(9), sparse_binary_vector(9), sparse_float_vector(9)))
    assert cells(batch_of(some, slots, []))[:2] == [["slot", "values"], ["slot 0", "float32 (0, 2)"]]
    wide = batch_of(some, Slots((integer_value(9),) * 30), [[1] * 30])
    assert cells(wide)[-1] == ["… and 10 more"]
