"""Arrays in slots with a shape: what is taken keeps the order of its elements, and all else is told how to."""

from __future__ import annotations

import math
import re
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pydp2
from pydp2 import rows
from pydp2.data import native
from pydp2.data.packers.packer import Packer
from pydp2.data.schema.input_types import InputType, Slots, dense_vector, dense_vector_sequence
from pydp2.errors import BadSample
from pydp2.reader.feeding import DataFeeder
from tests.sample_cases import DENSE_DTYPES

FORMS = [True, False] if native.is_built() else [False]
SIDES = st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=1, max_size=4).map(tuple)
PICTURE = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
TRANSPOSED = r"expected an array of shape \(3, 4, 5\) \(write x.transpose\(2, 0, 1\)\), got "


@st.composite
def _shapes(draw: Any, declared: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of as many elements, or of a few more."""
    total = math.prod(declared)
    other = draw(SIDES)
    some = [
        declared, (total,), (1, *declared), (1, 1, total), (*declared, 1), (total, 1), declared[1:], declared[::-1],
        tuple(draw(st.permutations(declared))), other, (), (0, *declared), (total // 2, 2), (2, total // 2),
    ]  # fmt: skip
    return tuple(draw(st.sampled_from(some)))


@st.composite
def _array(draw: Any, shape: tuple[int, ...]) -> Any:
    dtype = draw(st.sampled_from(["f4", "f8", "f2", "u1", "i8", "?", ">i4", *DENSE_DTYPES[-1:]]))
    values = np.arange(math.prod(shape)) % 7
    if dtype == "?":
        values = values % 2
    array = values.reshape(shape).astype(dtype)
    form = draw(st.sampled_from(["C", "F", "strided"]))
    if form == "strided" and array.ndim:
        wide = np.zeros((*shape[:-1], 2 * shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    return np.array(array, order="F") if form == "F" else array


def _verdict(packer: Packer, value: Any) -> Any:
    """The message about ``value``, or its elements, bit by bit."""
    try:
        packer.add([value])
    except BadSample as error:
        packer.finish()
        return str(error)
    cut = packer.finish()
    if cut.bad:
        return str(cut.bad[0][1])
    return [(array.shape, array.dtype.name, array.tobytes()) for array in cut.columns.arrays[0]]


def _slot(shape: tuple[int, ...], level: int, dtype: Any = None) -> Slots:
    return Slots((dense_vector(shape, level, dtype=dtype),), ("x",))


def _inner(shape: tuple[int, ...]) -> tuple[int, ...]:
    return _inner(shape[1:]) if shape[:1] == (1,) else shape


@given(data=st.data(), strict=st.booleans(), level=st.integers(0, 2))
def test_what_is_taken_keeps_its_elements_in_order_in_both_forms_of_packing(
    data: Any, strict: bool, level: int
) -> None:
    declared = data.draw(SIDES)
    dtype = data.draw(st.sampled_from([None, "float64", "uint8", "int64", *DENSE_DTYPES[-1:]]))
    shape = data.draw(_shapes(declared).filter(bool))
    array = data.draw(_array(shape))
    value: Any = array
    for _ in range(level):
        value = [value, value] if data.draw(st.booleans()) else np.stack([value, value])
    slots = _slot(declared, level, dtype)
    verdicts = [_verdict(Packer(slots, strict, native=form), value) for form in FORMS]
    assert verdicts[:-1] == verdicts[1:]
    in_order = len(declared) < 2 or len(_inner(shape)) < 2 or _inner(shape) == _inner(declared)
    assert isinstance(verdicts[0], list) == (math.prod(shape) == math.prod(declared) and in_order), verdicts[0]
    if isinstance(verdicts[0], list):
        (packed, _, elements), element = verdicts[0][-1], slots.types[0]
        assert packed == (2**level, *element.element_shape)
        assert elements == array.flatten(order="C").astype(element.element_dtype).tobytes() * 2**level


@given(data=st.data(), strict=st.booleans(), level=st.integers(0, 1), form=st.sampled_from(FORMS))
def test_a_block_is_judged_as_its_samples_are(data: Any, strict: bool, level: int, form: bool) -> None:
    declared = data.draw(SIDES)
    shape = data.draw(_shapes(declared))
    count = 3
    block = np.stack([data.draw(_array(shape)).astype("f4")] * count * (2 if level else 1))
    if level:
        block = block.reshape(count, 2, *shape)
    slots = _slot(declared, level)
    together, alone = Packer(slots, strict, native=form), Packer(slots, strict, native=form)
    laid = rows(x=block).columns(slots, 0, count)
    one_by_one = [_verdict(alone, sample) for sample in block]
    if laid is None:
        return  # they are packed one by one
    assert together.add_columns(laid) == []
    assert [v for v in one_by_one if isinstance(v, str)] == []
    cut = together.finish().columns.arrays[0][-1]
    assert cut.tobytes() == b"".join(v[-1][2] for v in one_by_one)


def test_a_block_of_another_shape_is_not_packed_together() -> None:
    block = np.stack([PICTURE] * 9)
    for level, values in ((0, block), (1, np.stack([block, block]))):
        assert rows(x=values).columns(_slot((3, 4, 5), level, "uint8"), 0, 2) is None
        good = np.moveaxis(values, -1, -3)
        assert rows(x=good).columns(_slot((3, 4, 5), level, "uint8"), 0, 2) is not None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bool", "int64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_another_shape_is_told_with_the_permutation(form: bool, dtype: str, order: Any) -> None:
    value = np.array(PICTURE.astype(dtype), order=order)
    for level, sample, place in (
        (0, value, ""),
        (1, [value, value], r" at \[0\]"),
        (1, np.stack([value]), r" at \[0\]"),
        (2, [[value.transpose(2, 0, 1)], [value]], r" at \[1\]\[0\]"),
        (2, [[value.transpose(2, 0, 1)], np.stack([value])], r" at \[1\]\[0\]"),
    ):
        text = _verdict(Packer(_slot((3, 4, 5), level, dtype), False, native=form), sample)
        assert re.fullmatch(f"x: {TRANSPOSED}a numpy array of shape \\(4, 5, 3\\) and dtype {dtype}{place}", text), text


@pytest.mark.parametrize("form", FORMS)
def test_a_flat_array_and_leading_sides_of_one_stay_right(form: bool) -> None:
    good = np.arange(60, dtype="f4").reshape(3, 4, 5)
    expected = _verdict(Packer(_slot((3, 4, 5), 0), False, native=form), good)
    for value in (good.ravel(), good[None], good[None, None], good.reshape(1, 60), good.ravel().tolist()):
        assert _verdict(Packer(_slot((3, 4, 5), 0), False, native=form), value) == expected
    grey = np.zeros((28, 28), np.float32)
    for value in (grey, grey[None], grey[None, None]):
        assert not isinstance(_verdict(Packer(_slot((1, 28, 28), 0), False, native=form), value), str)
    for value in (np.zeros((0, 5, 4), "f4"), [], np.zeros((0, 3, 4, 5), "f4")):  # no steps, in any shape
        assert not isinstance(_verdict(Packer(_slot((3, 4, 5), 1), False, native=form), value), str)


@pytest.mark.parametrize("form", FORMS)
def test_a_slot_that_declares_only_a_size_flattens_as_before(form: bool) -> None:
    for declared in (dense_vector(60), dense_vector(60, shape=(60,)), dense_vector((60,))):
        packer = Packer(Slots((declared,)), False, native=form)
        packer.add([PICTURE])
        assert packer.finish().columns.arrays[0][0].tolist() == [PICTURE.ravel().tolist()]


@pytest.mark.parametrize(
    ("shape", "declared", "axes"),
    [
        ((32, 32, 3), (3, 32, 32), (2, 0, 1)),  # the usual one, where another fits too
        ((3, 32, 32), (32, 32, 3), (1, 2, 0)),
        ((3, 8, 3), (3, 3, 8), (2, 0, 1)),
        ((8, 32, 32, 3), (8, 3, 32, 32), (0, 3, 1, 2)),
        ((8, 32, 32, 3), (3, 8, 32, 32), (3, 0, 1, 2)),
        ((1, 4, 5, 3), (3, 4, 5), (0, 3, 1, 2)),
        ((4, 5, 3), (1, 3, 4, 5), (2, 0, 1)),
        ((28, 28, 1), (1, 28, 28), (2, 0, 1)),
        ((4, 5), (5, 4), (1, 0)),
    ],
)
def test_of_several_permutations_the_usual_one_is_told(shape: Any, declared: Any, axes: Any) -> None:
    text = _verdict(Packer(_slot(declared, 0), False), np.zeros(shape, "f4"))
    assert f"(write x.transpose{axes})" in text


@given(declared=SIDES, data=st.data())
def test_what_is_told_is_right_when_it_is_written(declared: Any, data: Any) -> None:
    shape = data.draw(st.sampled_from(sorted(set(permutations(declared)))))
    x = np.arange(math.prod(shape), dtype="f4").reshape(shape)
    text = _verdict(Packer(_slot(declared, 0), False), x)
    if isinstance(text, str):
        (code,) = re.findall(r"\(write (x\.transpose\([^)]*\))\)", text)
        written = eval(code)
        assert not isinstance(_verdict(Packer(_slot(declared, 0), False), written), str)


def test_without_a_permutation_the_elements_are_taken_as_they_lie() -> None:
    text = _verdict(Packer(_slot((3, 4, 5), 0), False), np.zeros((12, 5), "f4"))
    assert "(write x.reshape(3, 4, 5) if its elements lie in that order), got a numpy array of shape (12, 5)" in text
    text = _verdict(Packer(_slot((3, 4, 5), 0), False), np.zeros((4, 4, 5), "f4"))
    assert text.startswith("x: expected an array of shape (3, 4, 5), got a numpy array of shape (4, 4, 5)")


CODE = """
import numpy as np
from pydp2 import dense_vector, provider, rows

@provider(input_types={{"image": dense_vector((3, 4, 5), dtype="uint8")}}, pool_size=8)
def process(settings, filename):
    good, bad = np.zeros((3, 4, 5), np.uint8), np.zeros((4, 5, 3), np.uint8)
    {body}
"""


@pytest.mark.parametrize("form", ["0", "1"])
@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("yield {'image': good}; yield {'image': bad}", 1),
        ("yield good; yield bad", 1),
        ("yield rows(image=np.stack([good] * 20)); yield rows(image=np.stack([bad] * 20))", 20),
        ("yield rows(image=[good] * 20 + [bad])", 20),
    ],
)
def test_every_way_in_names_file_sample_and_slot(
    body: str, number: int, form: str, provider_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.PURE_PYTHON_VARIABLE, form)
    process = provider_file(CODE.format(body=body))
    words = f"file f, sample {number}, slot image: {TRANSPOSED}a numpy array of shape \\(4, 5, 3\\) and dtype uint8"
    with (
        pydp2.load(["f"], process, is_train=False, batch_size=4, workers=1) as data,
        pytest.raises(BadSample, match=words),
    ):
        list(data)
    assert re.search(words, str(pydp2.check(["f"], process)))


SHAPED = InputType(60, 0, 0, None, (3, 4, 5))


@pytest.mark.parametrize(
    ("value", "name"), [(PICTURE, "x"), (PICTURE.tolist(), r"np.asarray\(x\)"), (tuple(PICTURE), r"np.asarray\(x\)")]
)
def test_the_feeder_tells_the_permutation_too(value: Any, name: str) -> None:
    words = TRANSPOSED.replace("write x", f"write {name}")
    with pytest.raises(BadSample, match=f"entry 1 of the mini-batch, x: {words}"):
        DataFeeder({"x": SHAPED})([(np.zeros((3, 4, 5)),), (value,)])


def test_the_feeder_takes_the_declared_shape_however_many_dimensions_it_has() -> None:
    good = np.arange(60.0).reshape(3, 4, 5)
    for value in (good, good[None], good.tolist()):
        batch: Any = DataFeeder({"x": SHAPED})([(value,)])
        assert batch["x"].tolist() == [good.tolist()]
    wide = np.arange(24.0).reshape(1, 2, 3, 4)
    fed: Any = DataFeeder([dense_vector(wide.shape)])([(wide,)])
    assert fed[0].tolist() == [wide.tolist()]
    steps: Any = DataFeeder([dense_vector_sequence((2, 3))])([([np.ones((2, 3))],)])
    assert steps[0].values.shape == (1, 2, 3)
