"""What a batch becomes: padded sequences and sparse rows of fixed shapes, compared with what was yielded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydp2.data.columns.batch import Batch
from pydp2.data.schema.input_types import (
    Slots,
    dense_vector,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    sparse_binary_vector,
    sparse_binary_vector_sequence,
    sparse_float_vector,
    text,
)
from pydp2.errors import OptionError, OptionTypeError, SampleTooLarge

jax: Any = pytest.importorskip("jax")
import pydp2.jax  # noqa: E402 - it is there
from pydp2.jax.arrays import ArrayMaker, lengths_by_slot, rounded_length  # noqa: E402
from pydp2.jax.placement import ProcessPlacement  # noqa: E402

jax.devices()  # what it opens stays open


def made(some: Any, slots: Slots, samples: Any, *, bucket: int | None = None, padding: int = 0, **options: Any) -> Any:
    """What a batch of ``samples`` becomes."""
    batch = Batch(
        some.columns_of(slots, samples), pass_id=1, index=4, size=len(samples), bucket=bucket, padding=padding
    )
    options["pad_to"] = lengths_by_slot(slots, options.get("pad_to"))
    return ArrayMaker(slots, ProcessPlacement(0, 1), None, **{"bucket_by": None, "mask": None} | options)(batch)


def one(some: Any, slot: Any, values: list[Any], **options: Any) -> Any:
    return made(some, Slots((slot,)), [[value] for value in values], **options)[0]


def test_named_slots_become_a_dict_and_others_a_tuple(some: Any) -> None:
    types = (dense_vector(2), integer_value(10))
    named = made(some, Slots(types, ("pixel", "label")), [[[0.5, 1.5], 3]])
    assert {key: (value.dtype.name, value.shape) for key, value in named.items()} == {
        "pixel": ("float32", (1, 2)), "label": ("int32", (1,)),
    }  # fmt: skip
    assert all(isinstance(value, jax.Array) for value in named.values())
    unnamed = made(some, Slots(types), [[[0.5, 1.5], 3]])
    assert isinstance(unnamed, tuple)
    assert [value.tolist() for value in unnamed] == [[[0.5, 1.5]], [3]]


def test_the_mask_tells_rows_from_those_that_only_fill_up(some: Any) -> None:
    slots, samples = Slots((integer_value(10),), ("label",)), [[1], [2], [1]]
    assert made(some, slots, samples, mask="real", padding=1)["real"].tolist() == [True, True, False]
    assert made(some, Slots(slots.types), samples, mask="real")[1].tolist() == [True, True, True]
    with pytest.raises(OptionError, match="mask='label' must be a name that no slot has; slots: label"):
        made(some, slots, samples, mask="label")


@given(
    sequences=st.lists(st.lists(st.integers(0, 8), max_size=9), min_size=1, max_size=5),
    pad=st.none() | st.integers(1, 9),
)
def test_sequences_are_padded_to_one_of_few_lengths(some: Any, sequences: Any, pad: Any) -> None:
    padded = one(some, integer_value_sequence(9), sequences, pad_to=pad)
    length = padded.values.shape[1]
    assert length == (pad or rounded_length(max(map(len, sequences))))
    assert padded.lengths.tolist() == [min(len(each), length) for each in sequences]
    assert padded.segments is None
    for row, inside, each in zip(padded.values.tolist(), padded.mask.tolist(), sequences, strict=True):
        assert row == (each + [0] * length)[:length]
        assert inside == [step < len(each) for step in range(length)]


def test_the_bound_of_the_bucket_is_the_length_and_pad_the_greatest(some: Any) -> None:
    slots = Slots((integer_value_sequence(9), integer_value_sequence(9)))
    samples = [[[1, 2, 3], [1]], [[4], [2, 3]]]
    for bucket, pad, lengths in (
        (6, None, (6, 2)), (6, {0: 5}, (5, 2)), (None, {0: 9}, (9, 2)), (None, None, (4, 2)), (6, 7, (6, 7)),
    ):  # fmt: skip
        values = made(some, slots, samples, bucket=bucket, bucket_by=0, pad_to=pad)
        assert tuple(value.values.shape[1] for value in values) == lengths


def test_few_lengths_occur_without_any_option() -> None:
    assert [rounded_length(longest) for longest in range(9)] == [1, 1, 2, 4, 4, 8, 8, 8, 8]
    assert {rounded_length(longest) for longest in range(1000)} == {2**n for n in range(11)}


@given(
    nested=st.lists(st.lists(st.lists(st.integers(0, 8), max_size=3), max_size=4), min_size=1, max_size=4),
    pad=st.none() | st.integers(1, 9),
)
def test_segments_number_the_sub_sequences_that_have_time_steps(some: Any, nested: Any, pad: Any) -> None:
    padded = one(some, integer_value_sub_sequence(9), nested, pad_to=pad)
    length = padded.values.shape[1]
    for row, numbers, subs in zip(padded.values.tolist(), padded.segments.tolist(), nested, strict=True):
        steps = [(step, n) for n, sub in enumerate(filter(None, subs), 1) for step in sub]
        assert list(zip(row, numbers, strict=True)) == (steps + [(0, 0)] * length)[:length]


ENTRIES = st.dictionaries(st.integers(0, 6), st.floats(-9, 9, width=32), max_size=7)


@given(rows=st.lists(ENTRIES, min_size=1, max_size=5), binary=st.booleans(), room=st.integers(0, 3))
def test_sparse_rows_hold_what_dense_ones_would(some: Any, rows: Any, binary: bool, room: int) -> None:
    slot = sparse_binary_vector(7) if binary else sparse_float_vector(7)
    most = max(map(len, rows))
    sparse = one(some, slot, [list(row) if binary else list(row.items()) for row in rows], pad_to=(most or 1) + room)
    assert sparse.indices.shape == sparse.values.shape == (len(rows), (most or 1) + room)
    dense = np.zeros((len(rows), 7), np.float32)
    for row, entries in enumerate(rows):
        for column, value in entries.items():
            dense[row, column] = 1 if binary else value
    found = np.zeros((len(rows), 7), np.float32)
    np.add.at(found, (np.arange(len(rows))[:, None], np.asarray(sparse.indices)), np.asarray(sparse.values))
    assert np.array_equal(found, dense)


def test_sparse_rows_are_multiplied_in_compiled_functions(some: Any) -> None:
    sparse = one(some, sparse_float_vector(7), [[(1, 0.5), (6, 2.0)], [], [(0, 3.0)]])
    dense = np.zeros((3, 7), np.float32)
    dense[[0, 0, 2], [1, 6, 0]] = [0.5, 2.0, 3.0]
    weights = np.arange(14.0, dtype=np.float32).reshape(7, 2)
    assert np.array_equal(jax.jit(lambda rows, weights: rows.dot(weights))(sparse, weights), dense @ weights)
    assert np.array_equal(sparse.dot(weights[:, 0]), dense @ weights[:, 0])


def test_a_sparse_row_with_more_entries_than_pad_is_an_error_that_names_it(some: Any) -> None:
    with pytest.raises(SampleTooLarge, match="slot 0: row 1 of batch 4 of pass 1 has 3 entries, and pad_to says"):
        one(some, sparse_binary_vector(7), [[1], [2, 3, 4]], pad_to={0: 2})


@pytest.mark.parametrize(
    ("slot", "pad", "error", "text"),
    [
        (integer_value(3), 7, OptionError, "no slot has any; leave it out"),
        (integer_value(3), {"a": 7}, OptionError, "'a', which has one shape already"),
        (integer_value_sequence(3), {1: 7}, OptionError, "names slot 1, which"),
        (integer_value_sequence(3), {"b": 7}, KeyError, "slots: a"),
        (integer_value_sequence(3), 0, OptionError, "at least 1, got 0"),
        (integer_value_sequence(3), True, OptionTypeError, "must be a length"),
        (integer_value_sequence(3), {"a": "long"}, OptionTypeError, "must be a length"),
    ],
)
def test_a_wrong_pad_is_refused(slot: Any, pad: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        lengths_by_slot(Slots((slot,), ("a",)), pad)


def test_slots_without_a_fixed_shape_or_too_wide_for_jax_are_refused() -> None:
    for slot, message in (
        (sparse_binary_vector_sequence(5), "a: sequences of sparse vectors have no array of a fixed shape"),
        (integer_value(2**40), "a: its numbers below 1099511627776 need 64 bits.*jax_enable_x64"),
        (sparse_binary_vector(2**40), "need 64 bits"),
        (text(), "a: jax has no arrays of strings; make numbers of them in the provider"),
    ):
        with pytest.raises(OptionError, match=message):
            ArrayMaker(Slots((slot,), ("a",)), ProcessPlacement(0, 1), None, pad_to={}, bucket_by=None, mask=None)


def test_padded_values_are_trees(some: Any) -> None:
    padded = one(some, integer_value_sequence(9), [[1], [2, 3]])
    assert isinstance(padded, pydp2.jax.Padded)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, padded)
    assert doubled.lengths.tolist() == [2, 4]
    sparse = one(some, sparse_binary_vector(7), [[1]])
    assert isinstance(jax.tree.map(abs, sparse), pydp2.jax.SparseRows)
    assert jax.tree.map(abs, sparse).width == 7
