"""Take a batch apart into its samples, each as values that pack to the same: the inverse of packing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from pydp2.data.columns.batch import Batch
from pydp2.data.columns.columns import Array, offsets, strings
from pydp2.data.schema.input_types import STRING_TYPES, DataType, InputType, SequenceType


def unbatch(batch: Batch) -> Iterator[tuple[Any, ...]]:
    """Yield each sample of ``batch`` as the tuple of its slot values, in slot order; rows that
    are only padding left out.

    Dense: an array, a view into the batch, or a numpy number; index: an int; sparse: a list of indices or of (index,
    value) pairs; text: a str; raw: bytes. Sequences of dense or integer steps: an array, one row a step; of others: a
    list. Nested: a list of sequences.
    """
    columns = batch._columns
    slots = [
        _sample_values(declared, arrays) for declared, arrays in zip(columns.slots.types, columns.arrays, strict=True)
    ]
    for i in range(len(batch) - batch.padding):
        yield tuple(value(i) for value in slots)


def _sample_values(slot_type: InputType, arrays: tuple[Array, ...]) -> Callable[[int], Any]:
    """Return a function ``value(i)`` of one slot."""
    levels, leaves = arrays[: slot_type.seq_type], arrays[slot_type.seq_type :]
    if slot_type.type == DataType.Dense:
        leaves = (slot_type.as_declared(leaves[0]),)
    if slot_type.seq_type == SequenceType.NO_SEQUENCE:
        return _element_reader(slot_type, leaves)
    steps = _sequence_reader(slot_type, leaves)
    edges = offsets(levels[-1]).tolist()
    if slot_type.seq_type == SequenceType.SEQUENCE:
        return lambda i: steps(edges[i], edges[i + 1])
    subs = offsets(levels[0]).tolist()
    return lambda i: [steps(lo, hi) for lo, hi in pairwise(edges[subs[i] : subs[i + 1] + 1])]


def _sequence_reader(slot_type: InputType, leaves: tuple[Array, ...]) -> Callable[[int, int], Any]:
    """Return a function ``steps(lo, hi)`` that gives these time steps as one sequence."""
    if slot_type.type in (DataType.Dense, DataType.Index):
        return lambda lo, hi: leaves[0][lo:hi]
    if slot_type.type in STRING_TYPES:
        every = strings(offsets(leaves[0]), leaves[1], slot_type.type == DataType.Text)
        return lambda lo, hi: every[lo:hi]
    element = _element_reader(slot_type, leaves)
    return lambda lo, hi: [element(j) for j in range(lo, hi)]


def _element_reader(slot_type: InputType, leaves: tuple[Array, ...]) -> Callable[[int], Any]:
    if slot_type.type == DataType.Dense:
        return lambda j: leaves[0][j]
    if slot_type.type == DataType.Index:
        return lambda j: int(leaves[0][j])
    if slot_type.type in STRING_TYPES:
        return strings(offsets(leaves[0]), leaves[1], slot_type.type == DataType.Text).__getitem__
    edges = offsets(leaves[0]).tolist()
    if slot_type.type == DataType.SparseNonValue:
        return lambda j: leaves[1][edges[j] : edges[j + 1]].tolist()
    return lambda j: [
        *zip(leaves[1][edges[j] : edges[j + 1]].tolist(), leaves[2][edges[j] : edges[j + 1]].tolist(), strict=True)
    ]
