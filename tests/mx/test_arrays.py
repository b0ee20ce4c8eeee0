"""Providers of arrays in memory: batches, padding, orders, the last batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.mx import ArrayDataProvider, NDArrayIter
from tests.array_likes import KINDS, Unreadable


def rows(batches: Any, array: int = 0) -> list[list[float]]:
    return [batch.data[array].tolist() for batch in batches]


def test_mx_2_batches_are_slices_and_the_last_one_counts_what_is_left() -> None:
    data = np.arange(30).reshape(15, 2)
    provider = ArrayDataProvider(data, batch_size=4)
    batches = list(provider)
    assert [provider.count_samples(batch) for batch in batches] == [4, 4, 4, 3]
    assert [batch.pad for batch in batches] == [0, 0, 0, 1]
    for n, batch in enumerate(batches):
        assert batch.data[0][: batch.count].tolist() == data[4 * n : 4 * n + 4].tolist()


def test_mx_3_the_last_batch_is_padded_with_numbers_of_one_s_own() -> None:
    provider = ArrayDataProvider(np.ones((5, 2)), np.ones((5, 3)), batch_size=4, data_padding=-7.5, label_padding=9)
    first, last = provider
    assert first.data[0].tolist() == [[1, 1]] * 4
    assert last.data[0].tolist() == [[1, 1]] + [[-7.5, -7.5]] * 3
    assert last.label[0].tolist() == [[1, 1, 1]] + [[9, 9, 9]] * 3
    assert last.count == 1


def test_mx_3_without_them_it_is_padded_with_zeros() -> None:
    _, last = ArrayDataProvider(np.ones(3), np.ones(3), batch_size=2)
    assert (last.data[0].tolist(), last.label[0].tolist()) == ([1, 0], [1, 0])


def test_mx_4_a_batch_size_of_0_is_all_of_them() -> None:
    provider = ArrayDataProvider(np.arange(7))
    assert provider.batch_size == 7
    assert rows(provider) == [list(range(7))]
    assert provider.provide_data == [("data", (7,))]


@pytest.mark.parametrize("size", [6, -1, 100])
def test_mx_5_a_batch_size_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        ArrayDataProvider(np.zeros((5, 2)), batch_size=size)
    with pytest.raises(TypeError, match="batch_size"):
        ArrayDataProvider(np.zeros((5, 2)), batch_size=2.5)  # type: ignore[arg-type]


A, B = np.arange(4), np.arange(8).reshape(4, 2)


@pytest.mark.parametrize(
    ("form", "names"),
    [
        (A, ["data"]),
        (("pixel", A), ["pixel"]),
        ([("x", A), ("y", B)], ["x", "y"]),
        ((("x", A), ("y", B)), ["x", "y"]),
        ({"x": A, "y": B}, ["x", "y"]),
        ([("x", [0, 1, 2, 3])], ["x"]),
    ],
)
def test_mx_6_every_form_of_data_is_taken(form: Any, names: list[str]) -> None:
    provider = ArrayDataProvider(form, batch_size=4)
    (batch,) = provider
    assert [name for name, _ in provider.provide_data] == names
    assert batch.data[0].tolist() == A.tolist()
    assert all(array.tolist() == B.tolist() for array in batch.data[1:])


def test_mx_6_labels_take_the_same_forms_and_are_called_softmax_label() -> None:
    assert ArrayDataProvider(A, A).provide_label == [("softmax_label", (4,))]
    assert ArrayDataProvider(A, ("l", B)).provide_label == [("l", (4, 2))]
    assert ArrayDataProvider(A, {"l": A, "m": B}).provide_label == [("l", (4,)), ("m", (4, 2))]


@pytest.mark.parametrize("form", [[1, 2, 3], "text", 5, [A, B], {"x": "text"}, [("x", A), B], object(), ("x", A, B)])
def test_mx_6_any_other_form_is_refused(form: Any) -> None:
    with pytest.raises(TypeError, match="array"):
        ArrayDataProvider(form)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (np.array([1j]), TypeError, "'x' must be an array of real numbers, got complex128"),
        (np.array(["1", "2"]), TypeError, "'x' must be an array of real numbers, got <U1"),
        (np.array([1, None]), TypeError, "'x' must be an array of real numbers, got object"),
        (np.array(["2020-01-01"], "M8[D]"), TypeError, "'x' must be an array of real numbers"),
        (np.array([1, 1e300]), ValueError, "'x' must hold numbers of float32, got some beyond 3.4e"),
        (np.ma.array([1.0, 2.0], mask=[0, 1]), TypeError, r"'x' must be an array without a mask \(write x.filled"),
    ],
)
def test_numbers_that_float32_cannot_hold_are_refused(wrong: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        ArrayDataProvider(("x", wrong))


@pytest.mark.parametrize("kind", KINDS)
def test_what_exports_its_numbers_is_an_array(kind: Any) -> None:
    for source in (kind(A), ("x", kind(A)), {"x": kind(A)}):
        (batch,) = ArrayDataProvider(source, batch_size=len(A))
        assert batch.data[0].tolist() == A.tolist()


def test_an_array_that_cannot_be_read_is_told_what_to_call() -> None:
    for source in (Unreadable(A), ("x", Unreadable(A))):
        with pytest.raises(TypeError, match=r"must be an array.*\(write x.numpy\(\)\)"):
            ArrayDataProvider(source)


def test_numbers_that_are_none_stay_so() -> None:
    (batch,) = ArrayDataProvider(np.array([np.inf, -np.inf, np.nan, 1e-300, True]))
    assert np.array_equal(batch.data[0], np.array([np.inf, -np.inf, np.nan, 0, 1], np.float32), equal_nan=True)


@pytest.mark.parametrize("name", ["data_padding", "label_padding"])
@pytest.mark.parametrize("wrong", [None, "x", True])
def test_a_padding_that_is_no_number_is_named(name: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a number, got {wrong!r}"):
        ArrayDataProvider(A, **{name: wrong})
    with pytest.raises(ValueError, match=rf"{name} must be a number of float32, got 1e\+300; the largest is 3.4e\+38"):
        ArrayDataProvider(A, **{name: 1e300})


def test_mx_7_without_labels_there_are_none() -> None:
    provider = ArrayDataProvider(A)
    assert provider.provide_label == []
    (batch,) = provider
    assert provider.get_label(batch) == []
    provider.load_label(batch, [])


def test_mx_8_arrays_with_different_numbers_of_samples_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'x' has 4 and 'y' has 3"):
        ArrayDataProvider({"x": A, "y": A[:3]})
    with pytest.raises(ValueError, match="'data' has 4 and 'softmax_label' has 5"):
        ArrayDataProvider(A, np.zeros(5))


@pytest.mark.parametrize("wrong", [{}, [], (), np.float32(3), np.zeros((0, 2))])
def test_data_without_an_array_or_a_sample_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"must|batch_size"):
        ArrayDataProvider(wrong)


def test_two_arrays_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="different names"):
        ArrayDataProvider([("x", A), ("x", B)])
    with pytest.raises(ValueError, match="different names"):
        ArrayDataProvider(("softmax_label", A), A)


@pytest.mark.parametrize("kind", [ArrayDataProvider, NDArrayIter])
def test_mx_9_shuffled_labels_stay_with_their_data(kind: Any) -> None:
    numbers = np.arange(100)
    provider = kind({"x": numbers, "y": numbers * 2}, numbers % 7, batch_size=10, shuffle=True)
    batches = list(provider)
    x, y = (np.concatenate([batch.data[i] for batch in batches]) for i in (0, 1))
    label = np.concatenate([batch.label[0] for batch in batches])
    assert (y == 2 * x).all()
    assert (label == x % 7).all()
    assert Counter(label.tolist()) == Counter((numbers % 7).tolist())
    assert x.tolist() != numbers.tolist()


@pytest.mark.parametrize("kind", [ArrayDataProvider, NDArrayIter])
def test_mx_10_each_epoch_has_an_order_of_its_own_where_it_is_shuffled(kind: Any) -> None:
    def epochs(**options: Any) -> list[list[list[float]]]:
        provider = kind(np.arange(50), batch_size=10, **options)
        return [rows(provider) for _ in range(3)]

    same = epochs()
    assert same[0] == same[1] == same[2]
    one, two, three = epochs(shuffle=True)
    assert one != two != three != one
    assert epochs(shuffle=True) == [one, two, three]
    assert epochs(shuffle=True, seed=1)[0] != one


@pytest.mark.parametrize("kind", [ArrayDataProvider, NDArrayIter])
@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64", "float16", "bool"])
def test_mx_14_everything_is_float32_and_belongs_to_its_batch(kind: Any, dtype: str) -> None:
    data = np.array([0, 1, 1, 0, 1, 1]).astype(dtype)
    provider = kind(data, data, batch_size=2)
    kept = list(provider)
    before = [batch.data[0].tolist() for batch in kept]
    for batch in provider:
        assert batch.data[0].dtype == batch.label[0].dtype == np.float32
        batch.data[0][:] = 99  # neither the source nor another batch sees it
    assert [batch.data[0].tolist() for batch in kept] == before
    data[:] = 0  # it was copied
    assert rows(provider) == before


def epochs_of(provider: NDArrayIter, count: int = 3) -> list[list[tuple[list[float], int]]]:
    return [[(batch.data[0].tolist(), batch.pad) for batch in provider] for _ in range(count)]


def test_mx_41_pad_fills_the_last_batch_from_the_start() -> None:
    one, two, _ = epochs_of(NDArrayIter(np.arange(10), batch_size=3))
    assert one == [([0, 1, 2], 0), ([3, 4, 5], 0), ([6, 7, 8], 0), ([9, 0, 1], 2)]
    assert one == two


def test_mx_41_pad_repeats_what_is_too_little_for_a_batch() -> None:
    assert epochs_of(NDArrayIter(np.arange(2), batch_size=5), 1) == [[([0, 1, 0, 1, 0], 3)]]


def test_mx_41_discard_leaves_the_last_batch_out() -> None:
    one, two, _ = epochs_of(NDArrayIter(np.arange(10), batch_size=3, last_batch_handle="discard"))
    assert one == two == [([0, 1, 2], 0), ([3, 4, 5], 0), ([6, 7, 8], 0)]


def test_mx_41_roll_over_opens_the_next_epoch_with_the_rest() -> None:
    one, two, three = epochs_of(NDArrayIter(np.arange(10), batch_size=3, last_batch_handle="roll_over"))
    assert [len(epoch) for epoch in (one, two, three)] == [3, 3, 4]
    assert one == [([0, 1, 2], 0), ([3, 4, 5], 0), ([6, 7, 8], 0)]
    assert two == [([9, 0, 1], 0), ([2, 3, 4], 0), ([5, 6, 7], 0)]
    assert three[0] == ([8, 9, 0], 0)


@pytest.mark.parametrize("handle", ["discard", "roll_over"])
def test_fewer_samples_than_a_batch_are_refused_where_they_could_give_none(handle: str) -> None:
    with pytest.raises(ValueError, match="needs at least a batch of 5 samples, got 2"):
        NDArrayIter(np.arange(2), batch_size=5, last_batch_handle=handle)


def test_an_unknown_way_with_the_last_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="last_batch_handle"):
        NDArrayIter(np.arange(2), last_batch_handle="drop")


def test_what_an_epoch_that_was_left_did_not_give_does_not_open_the_next() -> None:
    provider = NDArrayIter(np.arange(10), batch_size=3, last_batch_handle="roll_over")
    list(provider)
    for _ in provider:
        break
    assert rows(provider)[0] == [0, 1, 2]


@given(
    count=st.integers(1, 30), size=st.integers(1, 12), handle=st.sampled_from(["pad", "discard", "roll_over"]),
    shuffle=st.booleans(), epochs=st.integers(1, 5),
)  # fmt: skip
def test_each_sample_comes_as_often_as_its_epochs_say(
    count: int, size: int, handle: str, shuffle: bool, epochs: int
) -> None:
    if handle != "pad" and count < size:
        return
    provider = NDArrayIter(np.arange(count), batch_size=size, shuffle=shuffle, last_batch_handle=handle)
    seen: Counter[float] = Counter()
    for _ in range(epochs):
        epoch = list(provider)
        assert all(len(batch.data[0]) == size for batch in epoch)
        real = [x for batch in epoch for x in batch.data[0][: batch.count].tolist()]
        seen.update(real)
        if handle == "pad":
            assert sorted(real) == list(range(count))
        elif handle == "discard":
            assert len(real) == len(set(real)) == count // size * size
    if handle == "roll_over":
        assert sum(seen.values()) == epochs * count // size * size
        assert max(seen.values()) <= epochs
        assert min(seen[x] for x in range(count)) >= epochs - 1


@given(count=st.integers(1, 40), size=st.integers(1, 40), shuffle=st.booleans())
def test_an_epoch_of_arrays_has_each_sample_once(count: int, size: int, shuffle: bool) -> None:
    size = min(size, count)
    provider = ArrayDataProvider(np.arange(count), batch_size=size, shuffle=shuffle, data_padding=-1)
    epoch = list(provider)
    assert len(epoch) == -(-count // size)
    real = [x for batch in epoch for x in batch.data[0][: batch.count].tolist()]
    assert sorted(real) == list(range(count))
    assert all((batch.data[0][batch.count :] == -1).all() for batch in epoch)
