"""Walk over the slots of a batch by their kind, and convert each to a value of a framework.

The walk is the same for all frameworks: the kind of a slot follows from its declared type, so the method for it is
chosen once for all batches. A framework defines the conversion of one array, and how values of several arrays are
built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pydp2.data.columns.batch import Batch, Csr, Ragged
from pydp2.data.columns.columns import Array
from pydp2.data.schema.input_types import STRING_TYPES, DataType, SequenceType, Slots

PLAIN_TYPES = (DataType.Dense, DataType.Index)
"""Types whose elements are one number, or have one shape; elements of other types differ in size."""
_Visit: TypeAlias = Callable[[Any, int, Batch], Any]


class RaggedTensor(NamedTuple):
    """Sequences, one after the other: sequence i has the rows ``[offsets[i], offsets[i + 1])`` of ``values``.

    ``values``: one row per time step, ``(steps, …)``, or a sparse CSR tensor with ``steps`` rows. ``offsets``:
    ``(sequences + 1,)``, as a level of Paddle's LoD. ``sub_offsets``: those of nested sequences, also counted in time
    steps; otherwise None. Offsets are int64; with torch they have its ``index_dtype``.
    """

    values: Any
    offsets: Any
    sub_offsets: Any = None


class PaddedTensor(NamedTuple):
    """Sequences, filled up to one length: ``values`` ``(sequences, length, …)`` and ``lengths`` ``(sequences,)``, int64
    or, with torch, its ``index_dtype``."""

    values: Any
    lengths: Any


class SlotVisitor(ABC):
    """Converter from a batch to the values of the slots ``order``, in that order; by default of all slots.

    ``pads``: for each slot of sequences that is filled up, the number with which this is done. ``length``: the length
    to which they are filled up; default: that of the longest sequence of a batch. Each method for a kind of slot gets
    the value of the slot, its number, and the batch.
    """

    index_dtype: np.dtype[Any] | None = None
    """dtype of indices, offsets and lengths; None leaves them as they are."""

    def __init__(
        self,
        slots: Slots,
        order: Iterable[int] | None = None,
        *,
        pads: Mapping[int, float] | None = None,
        length: int | None = None,
    ) -> None:
        self.slots = slots
        self.pads = pads or {}
        self.length = length
        self.visits = [(slot, self._visit(slot)) for slot in (range(len(slots)) if order is None else order)]

    def values(self, batch: Batch) -> list[Any]:
        """Return the values of ``batch``."""
        return [visit(batch[slot], slot, batch) for slot, visit in self.visits]

    def _visit(self, slot: int) -> _Visit:
        if self.slots.types[slot].seq_type == SequenceType.NO_SEQUENCE:
            return self._element(slot)
        return self.padded if slot in self.pads else self.ragged

    def _element(self, slot: int) -> _Visit:
        """Return the method for the elements of a slot: a slot without sequences, or all time steps of sequences."""
        kind = self.slots.types[slot].type
        if kind == DataType.Dense:
            return lambda value, slot, batch: self.array(value)
        if kind == DataType.Index:
            return lambda value, slot, batch: self.indices(value)
        if kind in STRING_TYPES:
            return lambda value, slot, batch: value.to_list()
        return self.sparse

    @abstractmethod
    def array(self, array: Array) -> Any:
        """Return the value of an array."""

    def indices(self, array: Array) -> Any:
        """Return the value of an array of indices, offsets or lengths."""
        return self.array(array if self.index_dtype is None else array.astype(self.index_dtype, copy=False))

    @abstractmethod
    def sparse(self, value: Csr, slot: int, batch: Batch) -> Any:
        """Return the value of sparse rows."""

    def csr_parts(self, value: Csr) -> tuple[Any, Any, Any]:
        """Return the values of row offsets, columns and entries of sparse rows. Binary entries are 1."""
        entries = np.ones(len(value.indices), np.float32) if value.values is None else value.values
        return self.indices(value.indptr), self.indices(value.indices), self.array(entries)

    def ragged(self, value: Ragged, slot: int, batch: Batch) -> Any:
        """Return the value of sequences."""
        subs = value.sub_sequence_start_positions
        offsets = [value.sequence_start_positions] if subs is None else [value.sequence_start_positions, subs]
        steps = self._element(slot)(value.values, slot, batch)
        return self.make_ragged(steps, [self.indices(level) for level in offsets])

    def padded(self, value: Ragged, slot: int, batch: Batch) -> Any:
        """Return the value of sequences that are filled up."""
        if self.index_dtype is not None and self.slots.types[slot].type == DataType.Index:
            steps: Any = value.values  # convert before filling up: the number may not fit the dtype of the array
            value = Ragged(steps.astype(self.index_dtype, copy=False), value.sequence_start_positions)
        values, lengths = value.pad(self.pads[slot], self.length)
        return self.make_padded(self.array(values), self.indices(lengths))

    def make_ragged(self, values: Any, offsets: Sequence[Any]) -> Any:
        """Return the value of sequences, made of ``values`` and ``offsets``: those of the sequences, and of
        sub-sequences if there are any."""
        return RaggedTensor(values, *offsets)

    def make_padded(self, values: Any, lengths: Any) -> Any:
        """Return the value of sequences of one length."""
        return PaddedTensor(values, lengths)


def pads_of_all(slots: Slots, pad: float | None) -> dict[int, float]:
    """Return ``pads`` that fill up all slots of sequences with ``pad``; {} if it is None."""
    if pad is None:
        return {}
    return {slot: pad for slot, declared in enumerate(slots.types) if declared.seq_type != SequenceType.NO_SEQUENCE}
