"""Batches and their values are pytrees: what transformations see of them, and what comes out."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from pydp2.data.columns.batch import Batch, Csr, Ragged
from pydp2.data.schema.input_types import (
    Slots,
    dense_vector,
    integer_value,
    integer_value_sequence,
    integer_value_sub_sequence,
    sparse_float_vector,
)

from ..sample_cases import filled

jax: Any = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402 - it is there

import pydp2.jax  # noqa: E402, F401 - registers them

jax.devices()  # what it opens stays open
KINDS = Slots(
    (dense_vector(2), integer_value(10), sparse_float_vector(6), integer_value_sequence(9)),
    ("pixel", "label", "bag", "words"),
)
SAMPLES = [
    [[0.0, 1.0], 3, [(1, 0.5)], [1, 2, 3]],
    [[2.0, 3.0], 4, [], [4]],
    [[4.0, 5.0], 5, [(0, 1.0), (5, 2.0)], []],
]


def batch_of(some: Any, declared: Slots = KINDS, samples: Any = SAMPLES, **facts: Any) -> Batch:
    facts = {"pass_id": 2, "index": 7, "size": len(samples), "padding": 1} | facts
    return Batch(some.columns_of(declared, samples), **facts)


def test_a_mapped_batch_is_a_batch_with_the_mapped_arrays(some: Any) -> None:
    batch = batch_of(some)
    mapped = jax.tree.map(jnp.asarray, batch)
    assert isinstance(mapped, Batch)
    assert mapped.names == batch.names
    assert len(mapped) == 3
    assert (mapped.pass_id, mapped.index, mapped.padding, mapped.bucket) == (2, 7, 1, None)
    assert isinstance(mapped["pixel"], jax.Array)
    assert isinstance(mapped["bag"], Csr)
    assert mapped["bag"].shape == (3, 6)
    assert isinstance(mapped["words"], Ragged)
    assert mapped["words"].sub_sequence_start_positions is None
    assert np.array_equal(mapped["label"], batch["label"])
    assert "pixel: float32 (3, 2)" in repr(mapped)


def test_leaves_are_named_by_slot_and_field(some: Any) -> None:
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch_of(some))]
    assert paths == [
        "['pixel']", "['label']", "['bag'].indptr", "['bag'].indices", "['bag'].values",
        "['words'].values", "['words'].sequence_start_positions",
    ]  # fmt: skip
    unnamed = batch_of(some, Slots((dense_vector(1), integer_value(3))), [[[0.5], 1]])
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(unnamed)] == ["[0]", "[1]"]


def test_batches_of_one_stream_have_one_structure_and_are_compiled_once(some: Any) -> None:
    traced = []

    @jax.jit
    def step(batch: Batch) -> Batch:
        traced.append((batch.index, batch.padding))
        return jax.tree.map(lambda leaf: leaf * 2, batch)

    first, second = (batch_of(some, index=index, padding=index) for index in (0, 1))
    assert jax.tree.structure(first) == jax.tree.structure(second)
    once, twice = step(first), step(second)
    assert traced == [(None, None)]  # compiled code must not keep the padding of the batch that it was traced with
    assert (once.index, twice.padding) == (None, None)
    assert np.array_equal(twice["pixel"], second["pixel"] * 2)
    other = batch_of(some, Slots((dense_vector(2), integer_value(11)), ("pixel", "label")), [[[0, 1], 3]])
    assert jax.tree.structure(first) != jax.tree.structure(other)


def test_device_put_and_a_map_over_two_batches_keep_what_the_first_says_of_itself(some: Any) -> None:
    batch, other = batch_of(some), batch_of(some, index=8)
    placed = jax.device_put(batch, jax.devices()[0])
    assert isinstance(placed["words"].values, jax.Array)
    assert placed.index == 7
    summed = jax.tree.map(lambda one, two: one + two, placed, other)
    assert summed.index == 7
    assert np.array_equal(summed["label"], 2 * batch["label"])


def test_a_tree_of_anything_can_be_put_together_and_taken_apart(some: Any) -> None:
    leaves, structure = jax.tree.flatten(batch_of(some))
    for anything in (object(), "text", jax.ShapeDtypeStruct((3,), np.int32), np.float32(0.5)):
        made = jax.tree.unflatten(structure, [anything] * len(leaves))
        assert jax.tree.structure(made) == structure
        assert "pixel" in made
    assert jax.tree.leaves(jax.tree.unflatten(structure, [None] * len(leaves))) == []
    means = jax.tree.map(np.mean, batch_of(some, Slots((integer_value(9),)), [[1], [2]]))
    assert len(means) == 0
    assert repr(means) == "<Batch 7 of pass 2: 0 rows, size 2; slot 0: float64 ()>"
    assert repr(jax.eval_shape(lambda batch: batch, batch_of(some))).startswith("<Batch None of pass None: 3 rows")


def test_a_mapped_batch_can_be_copied(some: Any) -> None:
    mapped = jax.tree.map(lambda leaf: leaf + 1, batch_of(some))
    copied = copy.deepcopy(mapped)
    assert jax.tree.structure(copied) == jax.tree.structure(mapped)
    assert all(map(np.array_equal, jax.tree.leaves(copied), jax.tree.leaves(mapped)))


@given(case=filled())
def test_any_batch_comes_back_from_its_leaves(some: Any, case: Any) -> None:
    declared, samples = case
    batch = batch_of(some, declared, samples)
    leaves, structure = jax.tree.flatten(batch)
    assert all(isinstance(leaf, np.ndarray) for leaf in leaves)
    made = jax.tree.unflatten(structure, leaves)
    assert made.keys() == batch.keys()
    for one, two in zip(jax.tree.leaves(made), leaves, strict=True):
        assert one is two
    assert len(made) == len(batch)


def test_nested_sequences_keep_both_levels(some: Any) -> None:
    batch = batch_of(some, Slots((integer_value_sub_sequence(9),)), [[[[1, 2], [3]]], [[[4]]]])
    mapped = jax.tree.map(jnp.asarray, batch)
    assert mapped[0].sub_sequence_start_positions.tolist() == [0, 2, 3, 4]
    assert mapped[0].sequence_start_positions.tolist() == [0, 3, 4]
