"""Arrays of other libraries are taken as arrays, in every slot and at every way in; what cannot be read is told."""

from __future__ import annotations

import array
import ctypes
import mmap
import sys
import types
from typing import Any

import numpy as np
import pytest

import pydp2
from pydp2 import rows
from pydp2.data import native
from pydp2.data.columns.array_likes import as_array
from pydp2.data.columns.batch import Ragged
from pydp2.data.schema.input_types import (
    InputType,
    Slots,
    dense_vector,
    dense_vector_sequence,
    dense_vector_sub_sequence,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    raw,
    scalar,
    scalar_sequence,
    sparse_binary_vector,
    sparse_binary_vector_sequence,
    sparse_float_vector,
    text,
    text_sequence,
)
from pydp2.errors import OptionTypeError
from pydp2.reader.feeding import DataFeeder
from tests.array_likes import KINDS, ByArray, ByDlpack, Unreadable
from tests.sample_cases import FORMS, verdict

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
each_form = pytest.mark.parametrize("form", FORMS, ids=["compiled", "python"][-len(FORMS) :])
each_strict = pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])


def packed(declared: InputType, value: Any, strict: bool = False, form: bool | None = None) -> Any:
    got = verdict(declared, value, strict, form)
    assert isinstance(got, list), got
    return got


FLOATS, INTS = np.array([1.5, 2.5, 3.5], np.float32), np.array([2, 0, 1])


@each_kind
@each_form
@each_strict
@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (dense_vector(3), FLOATS),
        (dense_vector(3), INTS),
        (dense_vector(3, dtype="int64"), INTS),
        (dense_vector((1, 3)), FLOATS.reshape(1, 3)),
        (dense_vector((2, 3), dtype="uint8"), np.arange(6, dtype=np.uint8).reshape(2, 3)),
        (dense_vector_sequence(3), np.stack([FLOATS, FLOATS])),
        (dense_vector_sub_sequence(3), np.stack([[FLOATS, FLOATS]])),
        (scalar(), np.array([1.5])),
        (scalar("int64"), np.array([7])),
        (scalar_sequence(), FLOATS),
        (integer_value_sequence(5), INTS),
        (integer_value_sub_sequence(5), np.stack([INTS, INTS])),
        (sparse_binary_vector(5), INTS),
        (sparse_binary_vector_sequence(5), np.stack([INTS, INTS])),
        (raw(), np.frombuffer(b"abc", np.uint8)),
    ],
)
def test_what_exports_its_numbers_is_what_its_array_is(
    kind: Any, form: bool, strict: bool, declared: InputType, values: Any
) -> None:
    assert packed(declared, kind(values), strict, form) == packed(declared, values, strict, form)


@each_form
@each_strict
@pytest.mark.parametrize("kind", KINDS[:-1], ids=lambda kind: kind.__name__)
def test_an_array_without_dimensions_is_its_number(kind: Any, form: bool, strict: bool) -> None:
    assert packed(scalar(), kind(1.5), strict, form) == [[1.5]]
    assert packed(scalar("int64"), kind(7), strict, form) == [[7]]
    assert packed(dense_vector(1), kind(1.5), strict, form) == [[[1.5]]]
    assert packed(dense_vector(2), [kind(1.5), 2.5], strict, form) == [[[1.5, 2.5]]]
    assert packed(integer_value(9), kind(7), strict, form) == [[7]]
    assert packed(integer_value_sequence(9), [kind(7), 1], strict, form) == [[2], [7, 1]]
    assert packed(sparse_float_vector(9), [(kind(7), kind(1.5))], strict, form) == [[1], [7], [1.5]]
    assert packed(sparse_binary_vector(9), [kind(7)], strict, form) == [[1], [7]]


@each_kind
@each_form
def test_lists_of_them_are_lists_of_arrays(kind: Any, form: bool) -> None:
    assert packed(dense_vector_sequence(3), [kind(FLOATS), FLOATS], False, form) == [[2], [FLOATS.tolist()] * 2]
    assert packed(integer_value_sub_sequence(5), [kind(INTS), []], False, form) == [[2], [3, 0], INTS.tolist()]


@each_kind
def test_a_block_of_them_is_a_block_of_arrays(kind: Any) -> None:
    slots = Slots((dense_vector(3), integer_value(5)), ("x", "y"))
    many = rows(x=kind(np.stack([FLOATS] * 3)), y=kind(INTS))
    laid = many.columns(slots, 0, 3)
    assert laid is not None
    assert [arrays[0].tolist() for arrays in laid.arrays] == [[FLOATS.tolist()] * 3, INTS.tolist()]
    assert many.sample(1, False)["x"].tolist() == FLOATS.tolist()
    starts: Any = np.array([0, 2, 3])
    steps = rows(Ragged(kind(np.stack([FLOATS] * 3)), starts)).columns(Slots((dense_vector_sequence(3),)), 0, 2)
    assert steps is not None
    assert steps.arrays[0][0].tolist() == [2, 1]


@each_kind
def test_the_feeder_takes_them(kind: Any) -> None:
    feeder = DataFeeder({"x": dense_vector((2, 3)), "y": integer_value_sequence(5), "z": scalar()})
    square = np.arange(6.0).reshape(2, 3)
    batch: Any = feeder([(kind(square), kind(INTS), kind([0.5]))])
    assert (batch["x"].tolist(), batch["y"].values.tolist(), batch["z"].tolist()) == (
        [square.tolist()],
        INTS.tolist(),
        [0.5],
    )


CODE = """
import numpy as np
from pydp2 import dense_vector, integer_value_sequence, provider, rows

class Array:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values

@provider(input_types={"x": dense_vector((2, 2)), "y": integer_value_sequence(9)}, pool_size=8)
def process(settings, filename):
    x, y = np.arange(4.0).reshape(2, 2), np.arange(3)
    for _ in range(4):
        yield {"x": Array(x), "y": Array(y)}
    yield rows(x=Array(np.stack([x] * 10)), y=Array(np.stack([y] * 10)))
"""


@pytest.mark.parametrize("pure", ["0", "1"])
def test_a_service_takes_them(pure: str, provider_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.PURE_PYTHON_VARIABLE, pure)
    with pydp2.load(["f"], provider_file(CODE), batch_size=14, workers=1) as data:
        (batch,) = data
        assert batch["x"].tolist() == [[[0, 1], [2, 3]]] * 14
        assert batch["y"].values.tolist() == [0, 1, 2] * 14


def test_what_is_no_array_stays_what_it_is() -> None:
    file = mmap.mmap(-1, 3)
    for value in (
        [1], (1,), {1: 2}, "ab", b"ab", bytearray(b"ab"), memoryview(b"ab"), file, 1, 1.5, None, np.float32(1),
        object(), ByArray, iter([1]), range(3), ByArray(object()), array.array("u", "ab"),
    ):  # fmt: skip
        assert as_array(value) is None, value
    file.close()
    assert packed(text_sequence(), ByArray(np.array(["a", "b"], object)))[0] == [2]


def test_a_mask_is_not_lost_on_the_way() -> None:
    class Masked:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return np.ma.array([1.0, 2.0], mask=[False, True])

    for declared in (dense_vector(2), scalar_sequence(), integer_value_sequence(5)):
        assert "without a mask (write x.filled(0)), got an array (Masked) of shape (2,)" in packed_text(
            declared, Masked()
        )


def packed_text(declared: InputType, value: Any) -> str:
    text = verdict(declared, value)
    assert isinstance(text, str)
    return text


def test_the_message_about_an_array_like_has_its_shape_and_a_remedy_for_its_class() -> None:
    value = ByArray(np.zeros((4, 5, 3)))
    assert packed_text(dense_vector((3, 4, 5)), value) == (
        "x: expected an array of shape (3, 4, 5) (write np.asarray(x).transpose(2, 0, 1)), "
        "got an array (ByArray) of shape (4, 5, 3) and dtype float64"
    )
    assert packed_text(raw(), value).startswith(
        "x: expected bytes (write np.asarray(x).tobytes()), got an array (ByArray)"
    )
    assert packed_text(text(), value).startswith("x: expected a str, got an array (ByArray) of shape (4, 5, 3)")


def test_what_cannot_be_read_is_told_with_the_call_that_makes_numbers_of_it() -> None:
    for declared in (dense_vector(3), dense_vector_sequence(3), integer_value_sequence(3), sparse_float_vector(3)):
        assert "(write x.numpy() or x.tolist()), got" in packed_text(declared, Unreadable(FLOATS))
    with pytest.raises(OptionTypeError, match=r"rows\(\) takes arrays .*; x is a Unreadable \(write x.numpy\(\)\)"):
        rows(x=Unreadable(FLOATS))


def test_no_library_is_imported_to_look_at_a_value() -> None:
    before = set(sys.modules)
    for value in (object(), types.SimpleNamespace(), ByDlpack(FLOATS), ctypes.c_int(3)):
        as_array(value)
        packed_text(dense_vector(5), value)
    assert set(sys.modules) == before
