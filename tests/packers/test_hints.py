"""Remedies in the messages about values: each is right when it is written."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import (
    InputType,
    SequenceType,
    Slots,
    dense_vector,
    dense_vector_sequence,
    dense_vector_sub_sequence,
    integer_value,
    integer_value_sequence,
    raw,
    scalar,
    scalar_sequence,
    sparse_binary_vector,
    sparse_float_vector,
    text,
)
from pydp2.errors import BadSample
from tests.sample_cases import FORMS, verdict

MISSING = "; leave the sample out, or give a default"
UTC = datetime.UTC


def said(declared: InputType, value: Any) -> str:
    """The message, which is the same with and without a compiler."""
    texts = {verdict(declared, value, False, form) for form in FORMS}
    (text,) = texts
    assert isinstance(text, str)
    return text


def written(message: str, x: Any) -> Any:
    """What the remedy in ``message`` makes of ``x``."""
    code = message.partition(" (write ")[2].rpartition("), got ")[0].partition(", or declare")[0]
    return eval(code, {"x": x, "np": np})


NUMBERS = [
    (Decimal("2"), "float(x)", "int(x)"),
    (Decimal("2.5"), "float(x)", "int(x)"),
    ("2", "float(x)", "int(x)"),
    (b"2", "float(x)", "int(x)"),
    (datetime.datetime(2024, 5, 1, tzinfo=UTC), "x.timestamp()", "int(x.timestamp())"),
    (datetime.date(2024, 5, 1), "x.toordinal()", "x.toordinal()"),
    (datetime.timedelta(seconds=5), "x.total_seconds()", "int(x.total_seconds())"),
    (np.timedelta64(5, "m"), "x / np.timedelta64(1, 's')", "int(x / np.timedelta64(1, 's'))"),
]


@pytest.mark.parametrize(("value", "real", "whole"), NUMBERS, ids=lambda value: str(value))
def test_a_number_can_be_made_of_what_is_none(value: Any, real: str, whole: str) -> None:
    for declared, wrapped in ((scalar(), value), (dense_vector(2), [0.5, value]), (scalar_sequence(), [value])):
        assert f"expected a number (write {real}), got" in said(declared, wrapped)
    assert f"(write {real}), got" in said(sparse_float_vector(3), [(1, value)])
    for declared, wrapped in (
        (integer_value(9), value), (integer_value_sequence(9), [value]), (sparse_binary_vector(9), [value]),
        (scalar("int64"), value),
    ):  # fmt: skip
        assert f"(write {whole}), got" in said(declared, wrapped)
    for code, declared in ((real, scalar("float64")), (whole, integer_value(2**40))):
        assert isinstance(verdict(declared, eval(code, {"x": value, "np": np}), False, FORMS[0]), list)


def test_a_fraction_is_a_number_but_no_id() -> None:
    assert verdict(scalar(), Fraction(1, 2), False, FORMS[0]) == [[0.5]]
    assert "expected a float (write float(x))" in verdict(scalar(), Fraction(1, 2), True, FORMS[0])
    assert "(write int(x)), got Fraction(2, 1)" in said(integer_value(9), Fraction(2))


def test_a_text_that_is_no_number_has_no_remedy() -> None:
    for value in ("abc", "", b"\xff", "1" * 101):
        assert "write" not in said(scalar(), value)
    assert "write" not in said(integer_value(9), "2.5")


def test_a_point_in_time_is_told_in_arrays_too() -> None:
    days = np.array(["2024-05-01", "2024-05-02"], "M8[D]")
    message = said(dense_vector(2, dtype="int64"), days)
    assert "(write x.astype('datetime64[s]').astype('int64')), got a numpy array" in message
    assert "x / np.timedelta64(1, 's')" in said(dense_vector(2), days - days[0])
    assert "x.astype('float64')" in said(dense_vector(2), np.array(["1", "2"]))
    assert "x.astype('float64')" in said(dense_vector(2), np.array([1, 2], object))
    assert "(write x.astype('datetime64[s]').astype('int64')), got" in said(scalar("int64"), days[0])


MISSING_VALUES = [
    None,
    np.datetime64("NaT"),
    np.timedelta64("NaT"),
    type("NAType", (), {"__repr__": lambda self: "<NA>"})(),  # as pandas has them
    type("NaTType", (datetime.datetime,), {})(1, 1, 1),
]


@pytest.mark.parametrize("value", MISSING_VALUES, ids=lambda value: type(value).__name__)
def test_a_missing_value_is_told_with_what_can_be_done(value: Any) -> None:
    for declared in (
        scalar(), scalar("int64"), dense_vector(3), dense_vector_sequence(3), integer_value(3), text(), raw(),
        integer_value_sequence(3), sparse_float_vector(3), dense_vector(1), dense_vector((3, 4)),
    ):  # fmt: skip
        message = said(declared, value)
        assert message.endswith(MISSING)
        assert "write" not in message
    for declared, inside, place in (
        (dense_vector(2), [0.5, value], "[1]"),
        (scalar_sequence(), [value], "[0]"),
        (integer_value_sequence(3), [0, value], "[1]"),
        (sparse_float_vector(3), [(0, value)], "[0][1]"),
        (dense_vector_sequence(3), [value], "[0]"),
    ):
        assert said(declared, inside).endswith(f" at {place}{MISSING}")


def test_nan_is_a_number_for_floats_and_missing_for_whole_numbers() -> None:
    assert isinstance(verdict(scalar(), math.nan, True, FORMS[0]), list)
    for declared in (integer_value(3), scalar("int64"), scalar("bool")):
        for value in (math.nan, np.float32("nan"), Decimal("nan")):
            message = said(declared, value)
            assert message.endswith(MISSING)
            assert "write" not in message
    assert said(dense_vector(2, dtype="int32"), np.array([1, math.nan])).endswith(f"got nan (float) at [1]{MISSING}")
    assert said(dense_vector(2, dtype="int32"), [1.0, math.nan]).endswith(MISSING)


def test_the_parts_of_the_error_are_without_the_remedy_for_a_missing_value() -> None:
    with pytest.raises(BadSample) as caught:
        Packer(Slots((scalar(),), ("x",)), False).add([None])
    assert (caught.value.slot, caught.value.expected, caught.value.got) == ("x", "a number", "None")


NESTED = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (dense_vector((2, 3)), NESTED),
        (dense_vector(6), NESTED),
        (dense_vector((2, 3)), (tuple(NESTED[0]), NESTED[1])),
        (dense_vector((2, 3), dtype="uint8"), [[1, 2, 3], [4, 5, 6]]),
        (dense_vector((2, 3)), [np.array(row) for row in NESTED]),
        (dense_vector((1, 2, 3)), NESTED),
        (dense_vector((2, 3)), [NESTED]),
        (dense_vector((2, 1)), [[1.0], [2.0]]),
        (dense_vector((2, 3), dtype="uint8"), memoryview(np.zeros((2, 3), np.uint8))),
        (dense_vector(6), memoryview(np.zeros(6))),
        (dense_vector((2, 3), dtype="uint8"), memoryview(b"abcdef")),
        (dense_vector((2, 3), dtype="uint8"), b"abcdef"),
        (dense_vector((2, 3)), [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]),
        (dense_vector(1), 2.5),
        (dense_vector(1), 2),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_told_of_a_dense_element_is_right_when_it_is_written(
    declared: InputType, value: Any, strict: bool
) -> None:
    message = verdict(declared, value, strict, FORMS[0])
    assert {verdict(declared, value, strict, form) for form in FORMS} == {message}
    assert isinstance(verdict(declared, written(message, value), strict, FORMS[0]), list), message


def test_nested_lists_in_a_sequence_are_told_at_their_place() -> None:
    message = said(dense_vector_sequence((2, 3)), [np.array(NESTED), NESTED])
    assert message.startswith("x: expected 6 numbers in a list, tuple or numpy array (write np.asarray(x)), got [[")
    assert message.endswith(" at [1]")
    assert "(write np.asarray(x).transpose(1, 0))" in said(dense_vector((3, 2)), NESTED)


def test_nested_lists_of_other_lengths_have_no_remedy() -> None:
    for value in ([[1.0, 2.0], [3.0]], [[1.0], [2.0]], [["a", "b", "c"]] * 2, memoryview(b"abc"), b"abc", [[]]):
        assert "write" not in said(dense_vector((2, 3)), value)


@pytest.mark.parametrize(
    ("declared", "value", "words"),
    [
        (dense_vector(1), 2.5, r"(write [2.5], or declare scalar()), got 2.5 (float)"),
        (dense_vector(1, dtype="int64"), 3, "(write [3.0], or declare scalar('int64')), got 3 (int)"),
        (dense_vector((1, 1)), 2.5, r"(write [2.5], or declare scalar()), got 2.5 (float)"),
        (dense_vector_sequence(1), [2.5], "(write [2.5], or declare scalar_sequence()), got 2.5 (float) at [0]"),
        (
            dense_vector_sub_sequence(1), [[2.5]],
            "(write [2.5], or declare scalar(seq_type=SequenceType.SUB_SEQUENCE)), got 2.5 (float) at [0][0]",
        ),
    ],
)  # fmt: skip
def test_a_bare_number_for_a_vector_of_one_names_scalar(declared: InputType, value: Any, words: str) -> None:
    assert words in said(declared, value)
    single = scalar(declared.dtype, SequenceType(declared.seq_type))
    assert isinstance(verdict(single, value, False, FORMS[0]), list)


def tensor(**state: Any) -> Any:
    """As torch has them, where numpy cannot read one."""

    def refuse(self: Any, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("it cannot be read")

    methods = dict.fromkeys(("detach", "cpu", "numpy", "tolist", "float", "to_dense"), lambda self: self)
    return type("Tensor", (SimpleNamespace,), {"__array__": refuse, **methods})(**state)


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ({"requires_grad": True, "device": "cpu"}, "x.detach().cpu()"),
        ({"requires_grad": False, "device": "cuda:0"}, "x.detach().cpu()"),
        ({"requires_grad": False, "device": "cpu", "layout": "torch.strided"}, "x.float()"),
        ({"requires_grad": False, "device": "cpu", "layout": "torch.sparse_coo"}, "x.to_dense()"),
    ],
)
def test_a_tensor_that_cannot_be_read_is_told_what_to_call(state: Any, remedy: str) -> None:
    for declared in (dense_vector(3), dense_vector_sequence(3), integer_value_sequence(3), sparse_binary_vector(3)):
        assert f"(write {remedy}), got" in said(declared, tensor(**state))
    assert f"(write {remedy}), got" in said(scalar(), tensor(ndim=0, **state))
    assert f"(write {remedy}), got" in said(integer_value(3), tensor(ndim=0, **state))


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ({"dtype": "torch.bfloat16", "requires_grad": True}, "x.detach().cpu().float()"),
        ({"dtype": "torch.float8_e4m3fn"}, "x.float()"),
        ({"dtype": "paddle.bfloat16", "layout": "NCHW"}, "x.float()"),
        ({"is_quantized": True}, "x.dequantize()"),
        ({"is_neg": lambda self: True}, "x.resolve_neg()"),
    ],
)
def test_a_remedy_for_a_tensor_names_all_that_numpy_lacks(state: dict[str, Any], remedy: str) -> None:
    assert f"(write {remedy}), got" in said(dense_vector(3), type("Tensor", (type(tensor()),), state)())


@pytest.mark.parametrize("state", [{"is_nested": True}, {"dtype": "torch.complex64"}])
def test_a_tensor_that_no_call_makes_real_has_no_remedy(state: dict[str, Any]) -> None:
    assert "write" not in said(dense_vector(3), tensor(**state))


class BitsOfBfloat16:
    """As Paddle has it, whose ``__array__`` gives the bits."""

    dtype = "paddle.bfloat16"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array([16256, 16384], np.uint16)

    def detach(self) -> Any:
        return self

    cpu = astype = detach


def test_bits_of_a_bfloat16_are_not_taken_as_ints() -> None:
    for declared in (dense_vector(2), dense_vector(2, dtype="int64"), integer_value_sequence(1 << 16)):
        assert "(write x.astype('float32')), got" in said(declared, BitsOfBfloat16())


@pytest.mark.parametrize("declared", [dense_vector(2), scalar(), integer_value(3), text(), raw(), scalar("int64")])
@pytest.mark.parametrize("value", [Decimal("sNaN"), Decimal("NaN"), np.ma.masked])
def test_a_signalling_nan_and_a_masked_number_are_missing(declared: InputType, value: Any) -> None:
    assert said(declared, value).endswith(MISSING)
    assert said(scalar_sequence(), [1.0, value]).endswith(MISSING)


@pytest.mark.parametrize("missing", [None, math.nan, np.ma.masked])
def test_an_array_of_objects_with_a_gap_is_told_to_have_a_default(missing: Any) -> None:
    array = np.array([1.0, 2.0], object)
    array[1] = missing
    message = said(dense_vector(2), array)
    assert "(values in it are missing: leave the sample out, or give a default), got" in message
    assert "astype" not in message


def test_an_array_of_texts_that_are_no_numbers_has_no_remedy() -> None:
    assert "write" not in said(dense_vector(2), np.array(["a", "b"]))
    assert "(write x.astype('float64'))" in said(dense_vector(2), np.array(["1", "2.5"]))


def test_bytes_of_objects_and_of_masked_arrays_are_not_suggested() -> None:
    assert "write" not in said(raw(), np.array([1.0, None], object))
    assert "(write x.filled(0))" in said(raw(), np.ma.array([1, 2], mask=[0, 1]))


def test_an_infinite_number_is_not_told_to_become_an_index() -> None:
    assert "write" not in said(integer_value(3), math.inf)
    assert "write" not in said(integer_value_sequence(3), [math.inf])


class ListOfAnotherLength(list[Any]):
    """A list whose own ``len()`` is wrong."""

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize("native", FORMS)
@pytest.mark.parametrize(
    ("declared", "value", "taken"),
    [
        (dense_vector(3), ListOfAnotherLength([1.0, 2.0, 3.0]), True),
        (dense_vector(2), ListOfAnotherLength([1.0, 2.0, 3.0]), False),
        (dense_vector_sequence(2), (ListOfAnotherLength([1.0]),), False),
        (integer_value_sequence(9), ListOfAnotherLength([1, 2, 3]), True),
        (sparse_float_vector(9), [ListOfAnotherLength([1])], False),
        (sparse_float_vector(9), ListOfAnotherLength([(1, 2.0)]), True),
        (scalar(), ListOfAnotherLength([1.0]), False),
    ],
)
def test_a_list_whose_len_is_wrong_is_judged_by_what_it_has(
    declared: InputType, value: Any, taken: bool, native: bool
) -> None:
    packer = Packer(Slots((declared,), None), False, native)
    if taken:
        packer.add([value])
        assert packer.finish().columns.rows == 1
    else:
        with pytest.raises(BadSample):
            packer.add([value])
