"""Declarations: what they accept, how they read, and how they travel."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.schema.input_types import (
    DataType,
    InputType,
    SequenceType,
    Slots,
    dense_vector,
    dense_vector_sequence,
    dense_vector_sub_sequence,
    integer_value,
    integer_value_sequence,
    scalar,
    scalar_sequence,
    sparse_binary_vector,
    text,
)
from pydp2.errors import OptionError, OptionTypeError, RemoteProtocolError


def test_the_codes_are_those_of_the_original():
    assert [int(c) for c in DataType][:4] == [0, 1, 2, 3]
    assert [c.name for c in DataType][:4] == ["Dense", "SparseNonValue", "SparseValue", "Index"]
    assert [c.name for c in SequenceType] == ["NO_SEQUENCE", "SEQUENCE", "SUB_SEQUENCE"]
    assert InputType(3, 1, 3) == integer_value(3, SequenceType.SEQUENCE)
    assert hash(InputType(3, 1, 3)) == hash(integer_value(np.int64(3), 1))


def test_a_declared_dtype_and_shape_show_and_count():
    image = dense_vector(4, dtype="uint8", shape=(2, 2))
    assert repr(image) == (
        "InputType(dim=4, seq_type=SequenceType.NO_SEQUENCE, type=DataType.Dense, dtype=uint8, shape=(2, 2))"
    )
    assert image == dense_vector(4, dtype=np.uint8, shape=[2, 2])
    assert image != dense_vector(4, dtype="uint8")
    assert dense_vector(4, dtype="float32", shape=(4,)) == dense_vector(4), "the defaults say nothing new"
    assert dense_vector_sequence(4, dtype=">i2").element_dtype == np.dtype(np.int16), "in the machine's byte order"


@pytest.mark.parametrize("order", "<>=")
def test_a_dtype_is_kept_in_the_byte_order_of_the_machine_however_the_slot_is_declared(order):
    declared = InputType(4, 0, 0, np.dtype("f8").newbyteorder(order))
    assert declared.element_dtype.isnative
    assert declared == dense_vector(4, dtype="float64")
    assert Slots.from_wire(Slots((declared,)).to_wire()).types == (declared,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: dense_vector(0), lambda: dense_vector(-1), lambda: integer_value(2**63), lambda: dense_vector(2**50),
        lambda: dense_vector(4, shape=(2, 3)), lambda: dense_vector(4, shape=(-2, -2)), lambda: dense_vector(4, 3),
        lambda: dense_vector(4, dtype="V2"), lambda: dense_vector(4, dtype="complex64"),
        lambda: dense_vector(2, shape=()), lambda: dense_vector(4, dtype="longdouble"),
        lambda: InputType(4, 0, 0, None, (-2, -2)),
        lambda: InputType(1, 0, DataType.Text), lambda: text(3), lambda: scalar("U3"),
        lambda: dense_vector(4, dtype="O"), lambda: dense_vector(1, shape=(1,) * 33),
        lambda: InputType(4, 0, DataType.Index, np.dtype("f4")), lambda: Slots(()),
        lambda: Slots((InputType(3, 0, 9),)), lambda: Slots((InputType(3, 3, 0),)),
        lambda: Slots((integer_value(3),), ("a", "b")), lambda: Slots((integer_value(3),) * 2, ("a", "a")),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_when_it_is_declared(make):
    with pytest.raises(OptionError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: dense_vector("4"), lambda: dense_vector(4.0), lambda: integer_value(True), lambda: integer_value(None),
        lambda: dense_vector(4, dtype="no such"), lambda: dense_vector(4, shape=4), lambda: dense_vector(4, shape="22"),
        lambda: InputType("4", 0, 0), lambda: InputType(4, 0, 0, "f4"), lambda: Slots((3,)),
        lambda: Slots((integer_value(3),), (3,)),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_is_refused_when_it_is_declared(make):
    with pytest.raises(OptionTypeError):
        make()


def test_a_dictionary_without_words_may_be_declared_where_a_sample_may_have_none_of_them():
    assert integer_value_sequence(0).dim == sparse_binary_vector(0).dim == 0


def test_a_slot_that_no_value_fits_is_refused_when_it_is_declared():
    with pytest.raises(OptionError, match="the range of an integer slot must be at least 1, got 0: no value"):
        integer_value(0)
    with pytest.raises(OptionError, match="the width of a dense slot must be at least 1, got 0: no value"):
        dense_vector_sequence(0)


@pytest.mark.parametrize("made", [dense_vector, dense_vector_sequence, dense_vector_sub_sequence])
def test_a_shape_may_stand_in_the_place_of_the_size(made):
    shaped = made(3072, shape=(3, 32, 32), dtype="uint8")
    assert made((3, 32, 32), dtype="uint8") == made([3, np.int64(32), 32], dtype="uint8") == shaped
    assert made((3072,)) == made(3072)
    assert made(()) == made(1, shape=())


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (
            lambda: dense_vector((3, 4), shape=(3, 4)),
            TypeError,
            r"one shape, got \(3, 4\) and shape=\(3, 4\); leave out",
        ),
        (lambda: dense_vector((3, 2.5)), TypeError, r"must be a tuple of ints, got \(3, 2.5\)"),
        (
            lambda: dense_vector((-3, 4)),
            ValueError,
            r"every side of a dense slot's shape must be at least 1, got \(-3, 4\)",
        ),
        (
            lambda: dense_vector((3, 0)),
            ValueError,
            r"every side of a dense slot's shape must be at least 1, got \(3, 0\)",
        ),
        (lambda: dense_vector((2**21, 2**21)), ValueError, "larger than a TiB"),
        (lambda: integer_value((3, 4)), TypeError, "must be an int, got .*; only dense slots have a shape"),
        (lambda: sparse_binary_vector([3]), TypeError, "must be an int, got .*; only dense slots have a shape"),
    ],
)
def test_a_shape_in_the_place_of_the_size_is_checked(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        ((3, 4, 5), [(3, 4, 5), (60,), (1, 3, 4, 5), (1, 60), ()], [(4, 5, 3), (12, 5), (3, 4, 5, 1), (60, 1)]),
        ((1, 4, 5), [(1, 4, 5), (4, 5), (1, 1, 4, 5), (20,)], [(5, 4), (4, 5, 1), (4, 1, 5)]),
        ((60,), [(3, 4, 5), (60,), (60, 1)], []),
        ((), [(), (1,), (1, 1)], []),
    ],
)
def test_which_shapes_fit_a_slot(declared, good, bad):
    slot = dense_vector(declared)
    assert [shape for shape in good if not slot.fits_shape(shape)] == []
    assert [shape for shape in bad if slot.fits_shape(shape)] == []


def test_a_scalar_is_a_dense_element_without_a_shape():
    assert scalar() == dense_vector(1, shape=())
    assert scalar() != dense_vector(1)
    assert scalar_sequence("int64") == scalar(np.int64, SequenceType.SEQUENCE)
    assert repr(scalar("bool")) == (
        "InputType(dim=1, seq_type=SequenceType.NO_SEQUENCE, type=DataType.Dense, dtype=bool, shape=())"
    )


def test_bfloat16_is_declared_by_its_name_or_its_type_and_stored_as_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    declared = dense_vector(3, dtype="bfloat16")
    assert declared == dense_vector(3, dtype=ml_dtypes.bfloat16)
    assert (declared.element_dtype, declared.stored_dtype) == (ml_dtypes.bfloat16, np.uint16)
    assert repr(declared).endswith("dtype=bfloat16)")
    assert Slots.from_wire(Slots((declared,)).to_wire()).types == (declared,)


def test_without_ml_dtypes_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"pip install 'ml_dtypes>="):
        dense_vector(3, dtype="bfloat16")
    with pytest.raises(ImportError, match="bfloat16"):
        Slots.from_wire([[[3, 0, 0, "bfloat16", None]], None])


def test_slots_are_called_by_name_or_position():
    named, plain = Slots((integer_value(3),), ("label",)), Slots((integer_value(3),))
    assert (named.label(0), plain.label(0), len(plain)) == ("label", "slot 0", 1)
    assert named.index("label") == 0
    with pytest.raises(KeyError, match="slots: label"):
        named.index("x")
    with pytest.raises(KeyError, match="only positions"):
        plain.index("label")


@given(data=st.data())
def test_slots_come_back_from_the_wire(some, data):
    slots = data.draw(some.slots)
    wire = slots.to_wire()
    assert Slots.from_wire(wire) == slots
    assert Slots.from_wire(tuple(map(tuple_or_none, wire))) == slots, "a codec may make tuples of lists"


def tuple_or_none(value):
    return None if value is None else tuple(value)


@pytest.mark.parametrize(
    "wire",
    [
        None, 3, [], [[]], [[], None], [[[1, 0, 3, None, None]]], [[[1, 0, 3, None]], None],
        [[["1", 0, 3, None, None]], None],
        [[[1, 0, 4, None, None]], None], [[[1, 3, 3, None, None]], None], [[[True, 0, 3, None, None]], None],
        [[[1, 0, 3, "<f4", None]], None], [[[4, 0, 0, "|O8", None]], None], [[[4, 0, 0, "<c8", None]], None],
        [[[4, 0, 0, None, [2, 3]]], None], [[[4, 0, 0, None, ["2", "2"]]], None], [[[4, 0, 0, "x" * 1000, None]], None],
        [[[1, 0, 3, None, None]], ["a", "b"]], [[[1, 0, 3, None, None]], [["a"]]], [[[1, 0, 3, None, None]], "a"],
        [[[2**70, 0, 3, None, None]], None], [[[1, 2**70, 3, None, None]], None], [[[1, 0, None, None, None]], None],
        {"types": []}, [[[4, 0, 0, "V8", None]], None], [[[4, 0, 0, [1], None]], None],
    ],
)  # fmt: skip
def test_slots_that_cannot_be_are_refused_from_the_wire(wire):
    with pytest.raises(RemoteProtocolError):
        Slots.from_wire(wire)
