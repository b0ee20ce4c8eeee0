"""Packing: what the fast paths do is what the general path does, and both do what the rules say."""

from __future__ import annotations

import array
import collections
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data import native
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import (
    InputType,
    Slots,
    dense_vector,
    dense_vector_sequence,
    dense_vector_sub_sequence,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    scalar,
    scalar_sequence,
    sparse_binary_vector,
    sparse_binary_vector_sequence,
    sparse_float_vector,
)
from pydp2.errors import BadSample


@pytest.fixture(scope="module", autouse=True, params=["compiled", "python"])
def form(request):
    """Every test here holds for both forms of packing."""
    if request.param == "compiled" and not native.is_built():
        pytest.skip("the compiled form was not built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.PURE_PYTHON_VARIABLE, "0" if request.param == "compiled" else "1")
        yield


MISSING = "; leave the sample out, or give a default"
data = st.data()
both = pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])


def verdict(packer, values):
    """The message about one sample, or None; the packer is cut."""
    try:
        packer.add(values)
    except BadSample as exc:
        assert packer.finish().columns.rows == 0, "a refused sample must leave nothing"
        return str(exc)
    cut = packer.finish()
    assert cut.columns.rows + len(cut.bad) == 1
    return str(cut.bad[0][1]) if cut.bad else None


def said(declared, value, strict=False):
    return verdict(Packer(Slots((declared,), ("x",)), strict), [value])


def packed(declared, value, strict=False):
    packer = Packer(Slots((declared,)), strict)
    packer.add([value])
    cut = packer.finish()
    assert not cut.bad, cut.bad[0][1]
    return [a.tolist() for a in cut.columns.arrays[0]]


def general(slots, strict):
    """A packer that never takes a fast path."""
    packer = Packer(slots, strict)

    class Slow:
        def __init__(self, adder):
            self.adder = adder

        def add(self, value):
            return self.adder.add_checked(value)

        def __getattr__(self, name):
            return getattr(self.adder, name)

    packer._writers = tuple(map(Slow, packer._writers))
    return packer


@given(data=data, strict=st.booleans())
def test_samples_come_back_as_they_were_packed(some, data, strict):
    slots, samples = data.draw(some.filled())
    columns = some.columns_of(slots, samples, strict=False)
    again = [
        [some.canonical(t, v) for t, v in zip(slots.types, sample, strict=True)]
        for sample in (columns.samples() if samples else [])
    ]
    assert again == [[some.canonical(t, v) for t, v in zip(slots.types, s, strict=True)] for s in samples]
    repacked = some.columns_of(slots, columns.samples(), strict=strict)
    assert some.raw(repacked) == some.raw(columns), "what comes back can be packed again, also strictly"


@given(data=data, strict=st.booleans())
def test_a_verdict_is_what_the_rules_say(some, data, strict):
    declared = data.draw(some.input_types)
    value = data.draw(some.values(declared))
    message = said(declared, value, strict)
    assert (message is None) == some.fits(declared, value, strict), message


@given(data=data, strict=st.booleans())
def test_the_fast_paths_give_the_verdicts_messages_and_bytes_of_the_general_path(some, data, strict):
    slots = data.draw(some.slots)
    samples = data.draw(st.lists(st.tuples(*map(some.values, slots.types)).map(list), max_size=5))
    results = []
    for packer in (Packer(slots, strict), general(slots, strict)):
        seen = []
        for sample in samples:
            try:
                seen.append(packer.add(sample))
            except BadSample as exc:
                seen.append((str(exc), exc.slot, exc.expected, exc.got))
        cut = packer.finish()
        seen.append([(row, str(exc)) for row, exc in cut.bad])
        results.append((seen, some.raw(cut.columns), cut.sample_bytes.tolist()))
    assert results[0] == results[1]


@given(data=data)
def test_bad_rows_are_dropped_and_the_others_stay(some, data):
    slots = data.draw(some.slots)
    samples = data.draw(st.lists(st.tuples(*map(some.values, slots.types)).map(list), max_size=8))
    packer = Packer(slots, strict=False)
    added, refused, found = [], 0, []
    for sample in samples:
        try:
            packer.add(sample)
            added.append(sample)
        except BadSample:
            refused += 1
        if data.draw(st.booleans()):
            found += packer.verify()
    good = [all(some.fits(t, v, False) for t, v in zip(slots.types, s, strict=True)) for s in added]
    assert packer.rows == len(added)
    cut = packer.finish()
    assert [row for row, _ in cut.bad] == [i for i, g in enumerate(good) if not g]
    assert cut.bad[: len(found)] == found, "verify says at once what cut says in the end"
    kept = [s for s, g in zip(added, good, strict=True) if g]
    assert some.raw(cut.columns) == some.raw(some.columns_of(slots, kept))
    assert (packer.rows, packer.nbytes) == (0, 0)


@given(data=data)
def test_add_returns_the_bytes_that_the_row_takes(some, data):
    slots, samples = data.draw(some.filled())
    packer = Packer(slots, strict=False)
    sizes = [packer.add(s) for s in samples]
    assert packer.nbytes == sum(sizes)
    cut = packer.finish()
    assert cut.sample_bytes.tolist() == sizes
    assert cut.columns.nbytes == sum(sizes)


def test_a_refused_sample_leaves_the_slots_before_it_as_they_were():
    packer = Packer(Slots((integer_value_sequence(9), sparse_float_vector(9), dense_vector(1))), strict=False)
    packer.add([[1, 2], [(1, 1.0)], [0.5]])
    before = packer.nbytes
    for values in ([[3], [(2, 1.0)], ["x"]], [[4], [(2, 1.0), 3], [1.0]], [[5], [], [1.0, 2.0]]):
        with pytest.raises(BadSample):
            packer.add(values)
    assert (packer.rows, packer.nbytes) == (1, before)
    packer.add([[6], [], np.zeros(1, "u1")])
    assert packer.finish().columns.samples() == [[[1, 2], [(1, 1.0)], [0.5]], [[6], [], [0.0]]]


def test_an_exception_in_a_value_of_the_users_own_passes_and_leaves_nothing():
    class Odd:
        def __index__(self):
            raise RuntimeError("not today")

    packer = Packer(Slots((integer_value(9), integer_value(9))), strict=False)
    with pytest.raises(RuntimeError, match="not today"):
        packer.add([1, Odd()])
    assert packer.add([1, 2]) == 8
    assert packer.finish().columns.samples() == [[1, 2]]


@both
def test_none_names_the_slot(strict):
    slots = Slots((integer_value(3), dense_vector(2)), ("label", "pixel"))
    with pytest.raises(BadSample) as caught:
        Packer(slots, strict).add([1, None])
    assert (caught.value.slot, caught.value.got) == ("pixel", "None")
    assert str(caught.value) == "pixel: expected 2 numbers in a list, tuple or numpy array, got None" + MISSING
    for declared in (
        integer_value(3),
        integer_value_sequence(3),
        integer_value_sub_sequence(3),
        sparse_float_vector(3),
    ):
        assert said(declared, None, strict).endswith(f"got None{MISSING}")


@both
def test_a_number_of_values_that_is_not_the_number_of_slots_is_refused(strict):
    with pytest.raises(BadSample, match="expected 1 value, got 2"):
        Packer(Slots((integer_value(3),)), strict).add([1, 2])


def test_a_plain_int_among_floats_is_refused_when_strict_and_converted_when_not():
    for value in ([1.0, 2], [1, 2], (1, 2.0), [np.int64(1), 2.0], [True, 1.0], [np.bool_(True), 1.0]):
        assert "write float(x)" in said(dense_vector(2), value, strict=True)
        assert said(dense_vector(2), value, strict=False) is None
    assert packed(dense_vector(2), [1, 2.5]) == [[[1.0, 2.5]]]
    assert said(dense_vector(2), [1.0, 2], strict=True) == "x: expected a float (write float(x)), got 2 (int) at [1]"
    assert "write float(x)" in said(sparse_float_vector(9), [(3, 1)], strict=True)
    assert packed(sparse_float_vector(9), [(3, 1)]) == [[1], [3], [1.0]]


@both
@pytest.mark.parametrize("kind", [float, np.float16, np.float32, np.float64, np.longdouble])
def test_every_float_type_is_a_float(kind, strict):
    assert packed(dense_vector(2), [kind(1.5), kind(2)], strict) == [[[1.5, 2.0]]]
    assert packed(sparse_float_vector(5), [(np.int16(4), kind(1.5))], strict) == [[1], [4], [1.5]]


@both
@pytest.mark.parametrize("value", ["1.5", b"1.5", np.str_("1.5"), 1j, np.complex128(1), [1.0], np.timedelta64(1, "s")])
def test_what_is_no_real_number_is_never_parsed(value, strict):
    assert said(dense_vector(2), [0.5, value], strict).endswith(" at [1]")
    assert said(integer_value(9), value, strict)
    assert said(integer_value_sequence(9), value, strict)
    assert said(integer_value_sequence(9), [1, value], strict).endswith(" at [1]")
    assert said(sparse_float_vector(9), [(1, value)], strict).endswith(" at [0][1]")


@both
@pytest.mark.parametrize("value", [3.7, 3.0, np.float32(3), np.float64(3)])
def test_a_float_is_no_id(value, strict):
    assert "(write int(x))" in said(integer_value(9), value, strict)
    assert "[1]" in said(integer_value_sequence(9), [1, value], strict)
    assert "[0]" in said(integer_value_sequence(9), np.array([value]), strict)
    assert "[0][0]" in said(sparse_float_vector(9), [(value, 1.0)], strict)


@both
@pytest.mark.parametrize("value", [1, True, np.bool_(True), np.int8(1), np.uint64(1), np.array(1)])
def test_every_integer_is_an_id_and_so_is_a_bool(value, strict):
    assert packed(integer_value(2), value, strict) == [[1]]
    assert packed(integer_value_sequence(2), [value, 0], strict) == [[2], [1, 0]]


@both
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", "?"])
def test_integer_arrays_are_sequences_of_ids(dtype, strict):
    ids = np.array([1, 0, 1], dtype)
    assert packed(integer_value_sequence(2), ids, strict) == [[3], [1, 0, 1]]
    assert packed(integer_value_sequence(2), np.repeat(ids, 2)[::2], strict) == [[3], [1, 0, 1]]
    assert packed(sparse_binary_vector(2), ids[:2], strict) == [[2], [1, 0]]
    assert packed(integer_value_sub_sequence(2), np.stack([ids, ids]), strict) == [[2], [3, 3], [1, 0, 1, 1, 0, 1]]
    assert packed(integer_value_sub_sequence(2), np.stack([ids, ids], 1).T, strict)[1] == [3, 3]


@both
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g", ">f8", "i1", "u1", "i8", "u8", "?"])
def test_arrays_of_any_real_dtype_and_any_shape_are_dense_values(dtype, strict):
    array = np.array([[1, 0], [0, 1]], dtype)
    for value in (
        array,
        array.T,
        array.ravel(),
        array.reshape(1, 4, 1),
        np.asfortranarray(array),
        np.repeat(array, 2)[::2],
    ):
        expected = np.ravel(value).astype("f4").tolist()
        assert packed(dense_vector(4), value, strict) == [[expected]]
    assert packed(dense_vector_sequence(4), np.stack([array, array]), strict) == [[2], [[1, 0, 0, 1]] * 2]
    assert packed(dense_vector_sub_sequence(4), np.stack([array, array])[None], strict)[:2] == [[1], [2]]


def test_a_dense_slot_keeps_its_declared_dtype_and_shape():
    packer = Packer(Slots((dense_vector(4, dtype="uint8", shape=(2, 2)),)), strict=True)
    packer.add([np.arange(4, dtype="u1").reshape(2, 2)])
    packer.add([[4, 5.0, np.uint8(6), 7]])
    packer.add([[8, 9, 10, 255]])
    packer.add([[8.0, 9.0, 10.0, 0.0]])
    (values,) = packer.finish().columns.arrays[0]
    assert values.dtype == np.uint8
    assert values.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 255]], [[8, 9], [10, 0]]]


@both
@pytest.mark.parametrize("dtype", [">f4", "<f4", ">f8", ">i2", "<i2"])
def test_numbers_are_packed_in_the_byte_order_of_the_machine_whatever_a_slot_declares(dtype, strict):
    declared = InputType(2, 0, 0, np.dtype(dtype))
    for value in ([1.0, 2.0], np.array([1, 2], dtype), np.array([1, 2], dtype).astype("=f4")):
        assert packed(declared, value, strict) == [[[1.0, 2.0]]]


@both
@pytest.mark.parametrize("value", [256, -1, 1.5, math.nan, math.inf, 10**30, np.int64(256), np.float32(0.5)])
def test_an_integer_dense_slot_refuses_what_it_cannot_hold(value, strict):
    declared = dense_vector(2, dtype="uint8")
    words = "expected a whole number in [0, 255]"
    assert words in said(declared, [1, value], strict)
    assert words in said(declared, [1.0, value], strict)
    if abs(value) != 10**30:
        assert words in said(declared, np.array([1, value]), strict)


@both
def test_the_limits_of_64_bits_are_exact(strict):
    for dtype, least, most in (("int64", -(2**63), 2**63 - 1), ("uint64", 0, 2**64 - 1)):
        declared = dense_vector(2, dtype=dtype)
        assert packed(declared, [least, most], strict) == [[[least, most]]]
        assert said(declared, [0, most + 1], strict)
        assert said(declared, [least - 1, 0], strict)
        assert said(declared, np.array([0, float(most)]), strict), "rounded up it is one too many"


@both
def test_nan_and_infinity_pass_but_a_finite_value_must_stay_finite(strict):
    assert said(dense_vector(3), [math.nan, math.inf, -math.inf], strict) is None
    assert said(dense_vector(3), np.array([math.nan, math.inf, -math.inf]), strict) is None
    words = "x: expected a number within the range of float32, got 1e+39 (float) at [1]"
    assert said(dense_vector(2), [0.5, 1e39], strict) == words
    assert said(dense_vector(2), np.array([0.5, 1e39]), strict) == words
    assert said(sparse_float_vector(5), [(1, 0.5), (2, 1e39)], strict) == words.replace("[1]", "[1][1]")
    assert said(dense_vector(2, dtype="float64"), [0.5, 1e39], strict) is None
    assert said(dense_vector(1, dtype="float16"), [70000.0], strict)
    assert said(dense_vector(1), [np.longdouble("1e4000")], strict) if np.finfo(np.longdouble).max > 1e308 else True


def test_an_int_too_large_for_any_float_is_refused():
    assert "range of float32" in said(dense_vector(1), [10**400])
    assert "range of float32" in said(dense_vector(1), [10**39])
    assert "range of float16" in said(dense_vector(1, dtype="float16"), [70000])
    assert "range of float32" in said(sparse_float_vector(3), [(1, 10**400)])


@both
def test_the_bits_of_a_bfloat16_stay_in_a_slot_of_bfloat16(strict):
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    bits = np.array([0x7FFF, 0xFFC1, 0x7FC0, 0x3F80], np.uint16)
    array = bits.view(dtype)
    as_stored = bits.tolist()
    for value in (array, array.reshape(2, 2), np.repeat(array, 2)[::2]):
        assert packed(dense_vector(4, dtype="bfloat16"), value, strict) == [[as_stored]]
    assert (
        packed(dense_vector_sequence(2, dtype="bfloat16"), array.reshape(2, 2), strict)[1]
        == bits.reshape(2, 2).tolist()
    )
    assert packed(scalar_sequence("bfloat16"), array, strict)[1] == as_stored
    for number, stored in zip(array, as_stored, strict=True):
        assert packed(scalar("bfloat16"), number, strict) == packed(scalar("bfloat16"), np.array(number), strict)
        assert packed(scalar("bfloat16"), number, strict) == [[stored]]


@both
def test_numbers_of_bfloat16_fill_the_other_slots_too(strict):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1, 2], ml_dtypes.bfloat16)
    for dtype in ("float32", "float64", "int8", "uint64"):
        assert packed(dense_vector(2, dtype=dtype), array, strict) == [[[1, 2]]]
        assert packed(dense_vector(2, dtype=dtype), list(array), strict) == [[[1, 2]]]
        assert packed(scalar(dtype), array[1], strict) == [[2]]
        assert packed(scalar_sequence(dtype), array, strict) == [[2], [1, 2]]
    assert "expected a whole number in [-128, 127]" in said(scalar("int8"), array[0] / 2, strict)


@both
def test_an_index_outside_of_its_range_is_refused_with_its_place(strict):
    assert said(integer_value(10), 10, strict) == "x: expected an int in [0, 10), got 10 (int)"
    assert said(integer_value(10), -1, strict)
    assert said(integer_value(10), 2**70, strict).startswith("x: expected an int in [0, 10), got ")
    assert said(integer_value(10), 2**31, strict).endswith("got 2147483648 (int)")
    assert said(integer_value_sequence(10), [1, 2, 12], strict).endswith("got 12 (int) at [2]")
    assert said(integer_value_sequence(10), np.array([1, 2, 12]), strict).endswith("got 12 (int) at [2]")
    assert said(integer_value_sub_sequence(10), [[1], [], [2, -3]], strict).endswith("got -3 (int) at [2][1]")
    assert said(sparse_binary_vector_sequence(10), [[], [3, 10]], strict).endswith("got 10 (int) at [1][1]")
    assert said(sparse_float_vector(10), [(3, 1.0), (10, 1.0)], strict).endswith("got 10 (int) at [1][0]")


@both
def test_an_index_twice_in_a_sparse_row_is_refused_with_its_second_place(strict):
    words = "x: expected each index once in a row, got 5 (int) at "
    assert said(sparse_binary_vector(9), [5, 1, 5], strict) == words + "[2]"
    assert said(sparse_binary_vector(9), np.array([1, 5, 5, 5]), strict) == words + "[2]"
    assert said(sparse_binary_vector_sequence(9), [[5], [1, 5], [5, 5]], strict) == words + "[2][1]"
    assert said(sparse_float_vector(9), [(5, 1.0), (5, 2.0)], strict) == words + "[1][0]"


@both
def test_duplicates_are_seen_beside_indices_far_out_of_range_and_across_rows(strict):
    packer = Packer(Slots((sparse_binary_vector(2**40),)), strict)
    for ids in ([2**62, 3], [3, 3], [2**40 - 1, 0], [-(2**63), 7], [7, 3]):
        packer.add([ids])
    cut = packer.finish()
    assert [row for row, _ in cut.bad] == [0, 1, 3]
    assert cut.columns.samples() == [[[2**40 - 1, 0]], [[7, 3]]]


@both
def test_indices_keep_the_order_in_which_they_were_yielded(strict):
    assert packed(sparse_binary_vector(9), [5, 1, 8, 0], strict) == [[4], [5, 1, 8, 0]]
    assert packed(sparse_float_vector(9), [[5, 1.0], (1, 2.0)], strict) == [[2], [5, 1], [1.0, 2.0]]


@both
def test_a_range_above_2_to_31_takes_int64(strict):
    for declared in (integer_value_sequence(2**31 + 1), sparse_binary_vector(2**40)):
        assert packed(declared, [2**31, 1], strict) == [[2], [2**31, 1]]
    assert packed(sparse_float_vector(2**40), [(2**39, 1.0), (1, 0.5)], strict) == [[2], [2**39, 1], [1.0, 0.5]]
    packer = Packer(Slots((integer_value(2**31), integer_value(2**31 + 1))), strict)
    packer.add([2**31 - 1, 2**31])
    ids, wide = (a[0] for a in packer.finish().columns.arrays)
    assert (ids.dtype, wide.dtype) == (np.int32, np.int64)


@both
def test_empty_sequences_are_legal(strict):
    for empty in ([], (), np.array([]), np.zeros((0, 2)), np.array([], "i4")):
        assert packed(integer_value_sequence(3), empty, strict) == [[0], []]
        assert packed(sparse_float_vector(3), empty, strict) == [[0], [], []]
        assert packed(dense_vector_sequence(2), empty, strict) == [[0], []]
        assert packed(integer_value_sub_sequence(3), empty, strict) == [[0], [], []]
    assert packed(integer_value_sub_sequence(3), [[], [1], []], strict) == [[3], [0, 1, 0], [1]]


@both
@pytest.mark.parametrize("value", ["abc", b"abc", 5, 1.5, {1: 2}, object()], ids=lambda value: type(value).__name__)
def test_what_has_no_steps_is_no_sequence(value, strict):
    for declared in (
        integer_value_sequence(3), integer_value_sub_sequence(3), sparse_binary_vector(3), sparse_float_vector(3),
        dense_vector(3), dense_vector_sequence(3),
    ):  # fmt: skip
        assert said(declared, value, strict)
    assert said(integer_value_sub_sequence(3), [[1], value], strict).endswith(" at [1]")


@both
def test_iterators_and_sets_are_refused_with_the_way_out(strict):
    for declared in (integer_value_sequence(3), dense_vector(2), integer_value_sub_sequence(3), sparse_float_vector(3)):
        for value in ((i for i in [1]), iter([1]), map(int, "1"), {1}, {1: 1}.keys()):
            assert "make it a list" in said(declared, value, strict)


class Tensor:
    """As torch, TensorFlow and JAX have them: an iterable that is no sequence, over tensors of fewer dimensions."""

    def __init__(self, values):
        self.array = np.asarray(values)
        self.ndim = self.array.ndim

    def __iter__(self):
        return map(type(self), self.array)

    def __repr__(self):
        return f"tensor({self.array.tolist()})"

    def numpy(self):
        return self.array


class TorchTensor(Tensor):
    def tolist(self):
        return self.array.tolist()

    def item(self):
        return self.array.item()


@both
def test_a_tensor_is_refused_with_the_call_that_makes_numbers_of_it(strict):
    many, one = TorchTensor([1.0, 2.0, 3.0]), TorchTensor(1.0)
    for declared in (dense_vector(3), dense_vector_sequence(3), integer_value_sequence(3), sparse_float_vector(3)):
        assert "(write x.numpy() or x.tolist()), got tensor(" in said(declared, many, strict)
        assert "(write x.numpy()), got tensor(" in said(declared, Tensor([1.0, 2.0, 3.0]), strict)
    kind = "float" if strict else "number"
    assert said(dense_vector(3), list(many), strict).startswith(
        f"x: expected a {kind} (write x.item()), got tensor(1.0)"
    )
    assert said(scalar(), one, strict).startswith(f"x: expected a {kind} (write x.item()), got tensor(1.0)")
    assert said(scalar(), Tensor(1.0), strict).startswith(f"x: expected a {kind} (write x.numpy()), got tensor(1.0)")
    assert "(write x.item()), got tensor(1)" in said(scalar("int64"), TorchTensor(1), strict)
    assert "write" not in said(scalar(), TorchTensor([1.0, 2.0]), strict), "it is not one number"
    assert packed(dense_vector(3), many.numpy(), strict) == packed(dense_vector(3), many.tolist(), strict)
    assert packed(scalar(), one.item(), strict) == packed(scalar(), one.numpy(), strict) == [[1.0]]


@both
def test_what_is_no_single_number_is_told_without_a_range(strict):
    assert said(scalar(), None, strict) == f"x: expected a number, got None{MISSING}"
    assert said(scalar(), np.array([1.0, 2.0]), strict).startswith(
        "x: expected a number, got a numpy array of shape (2,)"
    )
    assert said(scalar(), 1e39, strict) == "x: expected a number within the range of float32, got 1e+39 (float)"


@both
def test_other_sequences_are_as_good_as_lists(strict):
    assert packed(integer_value_sequence(9), range(3), strict) == [[3], [0, 1, 2]]
    assert packed(integer_value_sequence(9), collections.deque([4, 5]), strict) == [[2], [4, 5]]
    assert packed(dense_vector(2), array.array("d", [0.5, 1]), strict) == [[[0.5, 1.0]]]
    assert packed(integer_value_sequence(9), np.array([1, 2], object), strict) == [[2], [1, 2]]
    point = collections.namedtuple("point", "x y")
    assert packed(dense_vector(2), point(0.5, 1.5), strict) == [[[0.5, 1.5]]]
    records = np.array([(3, 0.5), (1, 1.5)], [("column", "i4"), ("weight", "f4")])
    assert packed(sparse_float_vector(9), records, strict) == [[2], [3, 1], [0.5, 1.5]]


@both
def test_a_masked_array_must_be_filled_first(strict):
    masked = np.ma.array([1, 2], mask=[False, True])
    assert said(dense_vector(2), masked, strict)
    assert said(integer_value_sequence(9), masked, strict)


@both
@pytest.mark.parametrize("pair", [3, (3,), (3, 1.0, 2.0), "ab", {3: 1.0}, {3, 1}, None, (1.0, 3), (3, "1.5")], ids=repr)
def test_what_is_no_pair_is_refused(pair, strict):
    assert "at [1]" in said(sparse_float_vector(9), [(1, 1.0), pair], strict)


@both
def test_a_dense_value_of_another_length_is_refused(strict):
    words = "x: expected 3 numbers in a list, tuple or numpy array, got "
    assert said(dense_vector(3), [1.0, 2.0], strict) == words + "[1.0, 2.0] (list of length 2)"
    assert said(dense_vector(3), np.zeros((2, 2)), strict) == words + "a numpy array of shape (2, 2) and dtype float64"
    assert said(dense_vector_sequence(3), [[1.0] * 3, [1.0]], strict) == words + "[1.0] (list of length 1) at [1]"
    assert said(dense_vector_sequence(3), np.zeros((2, 2)), strict)
    assert said(dense_vector(1), 1.5, strict), "a bare number is not a list of one"
    assert said(dense_vector_sequence(1), np.zeros(3), strict), "nor is each of an array's"


def test_the_message_stays_short_whatever_the_value_is():
    class Rude:
        def __repr__(self):
            raise ValueError("no")

    loop = []
    loop.append(loop)
    for value in (
        [0.5] * 100_000,
        "x" * 100_000,
        {i: i for i in range(10_000)},
        [[["deep"] * 50] * 50] * 50,
        Rude(),
        loop,
    ):
        assert len(said(dense_vector(2), value)) < 400
        assert len(said(integer_value(2), value)) < 400
    assert len(said(integer_value(2), 10**5000)) < 400


def test_of_several_bad_slots_the_first_is_named():
    packer = Packer(Slots((integer_value(2), integer_value(2), sparse_binary_vector(3)), ("a", "b", "c")), strict=False)
    packer.add([1, 5, [1, 1]])
    packer.add([0, 0, [1]])
    packer.add([7, 5, [9, 1, 1]])
    packer.add([0, 0, [2, 1, 1]])
    assert [(row, exc.slot) for row, exc in packer.finish().bad] == [(0, "b"), (2, "a"), (3, "c")]


def test_values_of_all_kinds_may_follow_each_other():
    packer = Packer(Slots((integer_value_sequence(300), dense_vector(2))), strict=False)
    kinds = [
        [1, 2], np.array([3, 4]), (5,), np.array([6], "u1"), np.array([7], "i4"), [8], np.array([], "i8"),
        [np.bool_(1)],
    ]  # fmt: skip
    dense = [
        [0.5, 1.0],
        [1, 2],
        np.zeros(2),
        np.ones(2, "f4"),
        [1, 2.0],
        np.ones((2, 1), "?"),
        (3.0, 4.0),
        np.zeros(2, "i8"),
    ]
    for ids, values in zip(kinds, dense, strict=True):
        packer.add([ids, values])
        with pytest.raises(BadSample):
            packer.add([ids, "no"])
    ids, values = zip(*packer.finish().columns.samples(), strict=True)
    assert ids == ([1, 2], [3, 4], [5], [6], [7], [8], [], [1])
    assert [v.tolist() for v in values] == [[0.5, 1], [1, 2], [0, 0], [1, 1], [1, 2], [1, 1], [3, 4], [0, 0]]


def test_what_was_packed_does_not_change_with_the_provider_s_own_array():
    packer = Packer(Slots((dense_vector(2), integer_value_sequence(9))), strict=False)
    floats, ids = np.zeros(2, "f4"), np.zeros(2, "i4")
    packer.add([floats, ids])
    floats[:], ids[:] = 7, 7
    assert packer.finish().columns.samples()[0][1] == [0, 0]


def test_columns_that_were_cut_do_not_change_with_the_next_ones():
    packer = Packer(Slots((integer_value_sequence(9),)), strict=False)
    packer.add([[1, 2]])
    first = packer.finish().columns
    packer.add([[3, 4]])
    second = packer.finish().columns
    first.arrays[0][1][:] = 8
    assert (first.samples(), second.samples()) == ([[[8, 8]]], [[[3, 4]]])


@both
def test_a_huge_sample_is_packed(strict):
    ids = list(range(200_000))
    packer = Packer(Slots((integer_value_sequence(200_000), sparse_float_vector(200_000))), strict)
    size = packer.add([ids, [(i, 0.5) for i in ids]])
    cut = packer.finish()
    assert cut.sample_bytes.tolist() == [size] == [4 + 4 * 200_000 + 4 + 8 * 200_000]
    assert cut.columns.arrays[0][1].tolist() == ids


def test_many_bytes_that_were_cut_do_not_change_with_the_next_ones_and_are_the_caller_s_own():
    packer = Packer(Slots((dense_vector(8192, dtype="uint8"), integer_value(256))), strict=True)

    def cut(numbers):
        for n in numbers:
            packer.add([np.full(8192, n, "u1"), n])
        return packer.finish().columns

    def kept(columns, numbers):
        pixels, labels = columns.arrays[0][0], columns.arrays[1][0]
        return (pixels == np.array(numbers, "u1")[:, None]).all() and labels.tolist() == numbers

    numbers = [list(range(40)), list(range(40, 43)), list(range(43, 143))]
    all_ = [cut(each) for each in numbers]
    assert all(kept(columns, each) for columns, each in zip(all_, numbers, strict=True))
    all_[0].arrays[0][0][:] = 0  # their memory is theirs
    assert kept(all_[2], numbers[2])


def test_an_empty_packer_cuts_empty_columns():
    packer = Packer(Slots((dense_vector(3), integer_value_sub_sequence(2))), strict=False)
    cut = packer.finish()
    assert (cut.columns.rows, cut.columns.nbytes, cut.bad, cut.sample_bytes.tolist()) == (0, 0, [], [])
    assert packer.verify() == []
