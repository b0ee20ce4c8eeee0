"""Walk over the slots of a batch by their kind, and make of each a value of a framework.

The walk is the same for all frameworks: what a slot is follows from what its provider declares, so the method for it is
chosen once for all batches. A framework says what one array becomes, and how it builds what consists of several arrays.
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
"""Types of which each element has one number, or one shape; elements of others differ in size."""
_Visit: TypeAlias = Callable[[Any, int, Batch], Any]


class RaggedTensor(NamedTuple):
    """Sequences, one after the other: sequence i has the rows ``[offsets[i], offsets[i + 1])`` of ``values``.

    ``values``: one row per time step, ``(steps, …)``, or a sparse CSR tensor of so many rows. ``offsets``:
    ``(sequences + 1,)``, as a level of Paddle's LoD. ``sub_offsets``: of nested sequences, also counted in time steps;
    else None. Offsets are int64, with torch of its ``index_dtype``.
    """

    values: Any
    offsets: Any
    sub_offsets: Any = None


class PaddedTensor(NamedTuple):
    """Sequences, filled up to one length: ``values`` ``(sequences, length, …)`` and ``lengths`` ``(sequences,)``, int64
    or with torch of its ``index_dtype``."""

    values: Any
    lengths: Any


class SlotVisitor(ABC):
    """Makes the values of the slots ``order`` of a batch, in that order; by default of all.

    ``pads``: the number with which a slot of sequences is filled up, for those that are. ``length``: to which; default
    that of the longest sequence of a batch. Each method for a kind of slot gets its value, its number, and the batch.
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
        """Return the method for what is no sequence, or for all time steps of one."""
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
        """Return what one array becomes."""

    def indices(self, array: Array) -> Any:
        """Return what an array of indices, offsets or lengths becomes."""
        return self.array(array if self.index_dtype is None else array.astype(self.index_dtype, copy=False))

    @abstractmethod
    def sparse(self, value: Csr, slot: int, batch: Batch) -> Any:
        """Return what sparse rows become."""

    def csr_parts(self, value: Csr) -> tuple[Any, Any, Any]:
        """Return row offsets, columns and entries of sparse rows, each as its array becomes. Binary entries are 1."""
        entries = np.ones(len(value.indices), np.float32) if value.values is None else value.values
        return self.indices(value.indptr), self.indices(value.indices), self.array(entries)

    def ragged(self, value: Ragged, slot: int, batch: Batch) -> Any:
        """Return what sequences become."""
        subs = value.sub_sequence_start_positions
        offsets = [value.sequence_start_positions] if subs is None else [value.sequence_start_positions, subs]
        steps = self._element(slot)(value.values, slot, batch)
        return self.make_ragged(steps, [self.indices(each) for each in offsets])

    def padded(self, value: Ragged, slot: int, batch: Batch) -> Any:
        """Return what sequences that are filled up become."""
        if self.index_dtype is not None and self.slots.types[slot].type == DataType.Index:
            steps: Any = value.values  # before it is filled up: the number may not fit what they have
            value = Ragged(steps.astype(self.index_dtype, copy=False), value.sequence_start_positions)
        values, lengths = value.pad(self.pads[slot], self.length)
        return self.make_padded(self.array(values), self.indices(lengths))

    def make_ragged(self, values: Any, offsets: Sequence[Any]) -> Any:
        """Return sequences, one after the other. ``offsets``: of them, and of sub-sequences if there are any."""
        return RaggedTensor(values, *offsets)

    def make_padded(self, values: Any, lengths: Any) -> Any:
        """Return sequences of one length."""
        return PaddedTensor(values, lengths)


def pads_of_all(slots: Slots, pad: float | None) -> dict[int, float]:
    """Return ``pads`` that fill up all slots of sequences with ``pad``, none where it is None."""
    if pad is None:
        return {}
    return {slot: pad for slot, each in enumerate(slots.types) if each.seq_type != SequenceType.NO_SEQUENCE}
