"""The interface: what every provider can do because of what it says about itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pydp2.errors import OptionTypeError
from pydp2.mx import AbstractDataProvider, ArrayDataProvider, DataBatch


def provider(batch_size: int = 4) -> ArrayDataProvider:
    """Ten samples with two data arrays and two labels, different in every number."""
    return ArrayDataProvider(
        {"image": np.arange(60).reshape(10, 2, 3), "age": np.arange(10) + 100},
        {"kind": np.arange(10) + 200, "box": np.arange(40).reshape(10, 4) + 300},
        batch_size=batch_size,
    )


def test_mx_1_names_and_shapes_begin_with_the_batch_axis() -> None:
    given = provider()
    assert given.batch_size == 4
    assert given.provide_data == [("image", (4, 2, 3)), ("age", (4,))]
    assert given.provide_label == [("kind", (4,)), ("box", (4, 4))]


def test_mx_11_get_finds_data_before_labels() -> None:
    given = provider()
    for batch in given:
        assert given.get(batch, "age") is given.get_data(batch)[1]
        assert given.get(batch, "kind") is given.get_label(batch)[0]
        with pytest.raises(KeyError, match=r"no data and no label is named 'colour'.*'image', 'age', 'kind', 'box'"):
            given.get(batch, "colour")


def test_mx_11_of_two_with_one_name_it_is_the_data() -> None:
    class Both(Letters):
        @property
        def provide_label(self) -> list[tuple[str, tuple[int, ...]]]:
            return [("code", (2,))]

        def get_label(self, batch: str) -> list[np.ndarray[Any, Any]]:
            return [np.zeros(2)]

    given = Both()
    assert given.get("ab", "code").tolist() == [97, 98]


def test_mx_12_load_data_fills_slices_of_a_batch() -> None:
    given = provider()
    batch = next(iter(given))
    first, rest, ages = np.zeros((1, 2, 3), np.float32), np.zeros((3, 2, 3), np.float32), np.zeros(4, np.float32)
    given.load_data(batch, [[(slice(0, 1), first), (slice(1, 4), rest)], [(slice(None), ages)]])
    assert np.concatenate((first, rest)).tolist() == np.arange(24).reshape(4, 2, 3).tolist()
    assert ages.tolist() == [100, 101, 102, 103]


def test_mx_12_load_data_fills_whole_arrays() -> None:
    given = provider()
    batch = next(iter(given))
    images, ages = np.zeros((4, 2, 3)), np.zeros(4)
    given.load_data(batch, [images, ages])
    assert images.tolist() == np.arange(24).reshape(4, 2, 3).tolist()
    assert ages.tolist() == [100, 101, 102, 103]


def test_mx_13_load_label_does_the_same_with_labels() -> None:
    given = provider()
    batch = next(iter(given))
    kinds, low, high = np.zeros(4), np.zeros((2, 4)), np.zeros((2, 4))
    given.load_label(batch, [kinds, [(slice(2), low), (slice(-2, None), high)]])
    assert kinds.tolist() == [200, 201, 202, 203]
    assert np.concatenate((low, high)).tolist() == (np.arange(16).reshape(4, 4) + 300).tolist()


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ([np.zeros(4)], r"2 arrays \['kind', 'box'\] need as many targets, got 1"),
        ([np.zeros(4), np.zeros((4, 4)), np.zeros(4)], "need as many targets, got 3"),
        ([np.zeros(5), np.zeros((4, 4))], r"'kind'\[:\] has the shape \(4,\), its destination \(5,\)"),
        ([np.zeros(4), [(slice(1, 3), np.zeros((3, 4)))]], r"'box'\[1:3\] has the shape \(2, 4\)"),
        ([np.zeros(4), [(slice(2, 6), np.zeros((4, 4)))]], r"'box'\[2:6\] has the shape \(2, 4\).* batch has 4 rows"),
        ([np.zeros((4, 1)), np.zeros((4, 4))], r"its destination \(4, 1\)"),  # numpy alone would have spread it out
    ],
)
def test_mx_13_targets_that_do_not_fit_are_refused_and_none_is_written(targets: Any, words: str) -> None:
    given = provider()
    batch = next(iter(given))
    with pytest.raises(ValueError, match=words):
        given.load_label(batch, targets)
    for target in targets:
        assert not np.any(target if isinstance(target, np.ndarray) else target[0][1])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([[1, 2]], "'data'"),
        ([[(3, np.zeros(4))]], "'data'"),
        ([[(slice(2), [0, 0])]], "'data'"),
        ([None], "a target of 'data' must be an array or a list of .*, got None"),
        ([5], "a target of 'data' must be an array or a list of .*, got 5"),
        ([(slice(2), np.zeros(2))], "a target of 'data' must be"),
        ([[(slice("a", "b"), np.zeros(2))]], "a target of 'data' has an invalid slice"),
        ([[(slice(None, None, 0), np.zeros(2))]], "a target of 'data' has an invalid slice"),
        (np.zeros((1, 4)), "targets must be a list with one entry for each array, got ndarray"),
        ("x", "targets must be a list"),
    ],
)
def test_what_is_no_target_is_a_type_error(wrong: Any, words: str) -> None:
    given = ArrayDataProvider(np.zeros(4))
    with pytest.raises(TypeError, match=words):
        given.load_data(next(iter(given)), wrong)


# -- dtypes of destinations --------------------------------------------------------------------------------------------
def copied(values: Any, target: np.ndarray[Any, Any]) -> list[Any]:
    """What ``target`` holds after it was given ``values``, of whatever dtype they are."""

    class One(Letters):
        def get_data(self, batch: str) -> list[np.ndarray[Any, Any]]:
            return [np.asarray(values)]

    One().load_data("ab", [target])
    given: list[Any] = target.tolist()
    return given


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.float32([1.5, -2]), np.float64),
        (np.float32([1.5, -2]), np.float16),
        (np.float32([7, 9]), np.int64),  # labels
        (np.float32([0, 255]), np.uint8),
        (np.int64([-(2**31), 2**31 - 1]), np.int32),
        (np.uint64([0, 2**63 - 1]), np.int64),
        (np.int64([3, 4]), np.float32),
    ],
)
def test_a_destination_may_have_another_dtype_that_holds_the_values(values: Any, dtype: Any) -> None:
    assert copied(values, np.zeros(2, dtype)) == values.tolist()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.float32([1.5, 2]), np.int64),
        (np.float32([np.nan, 2]), np.int64),
        (np.float32([np.inf, 2]), np.int64),
        (np.float32([256, 2]), np.uint8),
        (np.float32([-1, 2]), np.uint8),
        (np.float32([2**31, 2]), np.int32),
        (np.int64([2**31, 2]), np.int32),
        (np.uint64([2**63, 2]), np.int64),
        (np.float32([1, 0]), np.bool_),
        (np.float32([1, 0]), np.dtype("U4")),
        (np.complex64([1, 0]), np.float32),
        (np.array(["1", "2"]), np.int64),
    ],
)
def test_a_destination_that_cannot_hold_the_values_is_a_type_error_that_names_the_array(
    values: Any, dtype: Any
) -> None:
    target = np.zeros(2, dtype)
    with pytest.raises(OptionTypeError, match=r"'code'\[:\] is .* with values that its destination, .*, cannot hold"):
        copied(values, target)
    assert (target == np.zeros(2, dtype)).all()


def test_nothing_is_written_before_all_targets_are_known_to_fit() -> None:
    given = provider()
    batch = next(iter(given))
    frozen = np.zeros((4, 4))
    frozen.flags.writeable = False
    for last, error, words in (
        (frozen, ValueError, r"the destination of 'box'\[:\] cannot be written"),
        (np.zeros((4, 4), "U8"), TypeError, r"'box'\[:\] is float32 .* cannot hold"),
        (None, TypeError, "a target of 'box' must be"),
    ):
        kinds = np.zeros(4)
        with pytest.raises(error, match=words):
            given.load_label(batch, [kinds, last])  # type: ignore[list-item]
        assert not kinds.any()


def test_a_batch_knows_how_many_of_its_rows_are_samples() -> None:
    assert DataBatch([np.zeros((4, 2))], [np.zeros(4)], count=3).pad == 1
    for data, count in (([], 0), ([np.zeros(4)], -1), ([np.zeros(4)], 5), ([np.zeros(4), np.zeros(3)], 3)):
        with pytest.raises(ValueError, match="batch"):
            DataBatch(data, [], count)


class Letters(AbstractDataProvider[str]):
    """A provider of one's own: a batch is whatever it likes, here two letters."""

    batch_size = 2  # type: ignore[assignment]  # a class attribute is enough
    provide_data = [("code", (2,))]  # type: ignore[assignment]  # noqa: RUF012
    provide_label = []  # type: ignore[assignment]  # noqa: RUF012

    def eachbatch(self) -> Iterator[str]:
        yield "ab"
        yield "c"

    def count_samples(self, batch: str) -> int:
        return len(batch)

    def get_data(self, batch: str) -> list[np.ndarray[Any, Any]]:
        return [np.array([*batch.ljust(2).encode()], np.float32)]

    def get_label(self, batch: str) -> list[np.ndarray[Any, Any]]:
        return []


def test_a_provider_of_one_s_own_has_get_and_load_for_nothing() -> None:
    letters = Letters()
    seen = []
    for batch in letters:
        target = np.zeros(2)
        letters.load_data(batch, [target])
        assert letters.get(batch, "code").tolist() == target.tolist()
        seen.append((letters.count_samples(batch), target.tolist()))
    assert seen == [(2, [97, 98]), (1, [99, 32])]
