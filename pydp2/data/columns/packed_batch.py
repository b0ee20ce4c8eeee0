"""Define the batch of packed sequences, and the rows of which it is made on the wire (docs/mixing.md, "Packing").

A packed row is sent as a sample: its packed slots, which have a fixed length, and a sequence with one step per segment.
``position_ids`` and ``segment_ids`` follow from the segments, so they are made where the batch arrives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pydp2.data.columns.batch import Batch, Origin
from pydp2.data.columns.columns import Array, Columns, Ints, expand_ranges
from pydp2.data.schema.input_types import (
    INT32_RANGE,
    DataType,
    InputType,
    SequenceType,
    Slots,
    dense_vector,
    integer_value,
)
from pydp2.errors import RemoteProtocolError

Origins = NDArray[np.int64]
"""Origins of rows, ``(2, rows)``: number of the list entry, and sample index in it."""


_FIELDS = 6  # of a segment on the wire: start, length, document, offset, list entry, sample index
_OWN = ("position_ids", "segment_ids")


class Segments(NamedTuple):
    """Segments of the rows of a batch, by row and start, as int64 arrays with one entry per segment.

    ``row``, ``start``: row, and first token in the row; ``length``: number of tokens; ``document``: number of the
    sequence in the pass, from 0; ``offset``: number of tokens of the sequence
    before the segment.
    """

    row: Ints
    start: Ints
    length: Ints
    document: Ints
    offset: Ints

    def select(self, which: Any) -> Segments:
        """Return the segments at the index ``which``, a slice, mask or array of numbers."""
        return Segments(*(array[which] for array in self))


def packed_slots(slots: Slots, numbers: tuple[int, ...], length: int, ragged: tuple[int, ...] = ()) -> Slots:
    """Return the slots of rows of ``length`` steps on the wire, packed from the slots ``numbers`` of ``slots``. Those
    of ``ragged`` follow, with a sub-sequence for each segment; the last one has the segments."""
    names = slots.names
    if names is not None:
        labels = tuple(names[number] for number in (*numbers, *ragged))
    else:
        labels = ("tokens", *(f"slot {number}" for number in (*numbers[1:], *ragged)))
    types = [_row_type(slots.types[number], length) for number in numbers]
    types += [replace(slots.types[number], seq_type=SequenceType.SUB_SEQUENCE) for number in ragged]
    segments = dense_vector(_FIELDS, SequenceType.SEQUENCE, dtype="int64")
    return Slots((*types, segments), (*labels, "segments"))


def _row_type(declared: InputType, length: int) -> InputType:
    if declared.dim == 1 or declared.type == DataType.Index:
        return dense_vector(length, dtype=declared.element_dtype)
    return dense_vector((length, *(declared.shape or (declared.dim,))), dtype=declared.element_dtype)


def segments_columns(segments: Segments, origins: Origins, rows: int) -> list[Array]:
    """Return the arrays of the slot with the segments of ``rows`` rows."""
    counts = np.bincount(segments.row, minlength=rows).astype(np.int32)
    values = np.stack([*segments[1:], *origins], axis=1) if len(segments.row) else np.empty((0, _FIELDS), np.int64)
    return [counts, np.ascontiguousarray(values, np.int64)]


class PackedBatch(Batch):
    """Batch of packed sequences. ``segments``: the segments of its rows; see :class:`pydp2.Segments`.

    ``batch["position_ids"]`` and ``batch["segment_ids"]``: ``(rows, length)`` int32, the position of each token within
    its segment, and the number of the segment within its row, from 1; both are 0 for padding tokens.
    """

    __slots__ = ("length", "segments")

    segments: Segments
    length: int

    if TYPE_CHECKING:

        def __getitem__(self, key: str | int) -> Array: ...

    @property
    def _converted_slots(self) -> Slots:
        return slots_of_indices(self.slots)

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Start of each segment in the concatenated rows, and at the end their total length: ``(n + 1,)`` int32, for
        the variable-length functions of FlashAttention. The padding of a row counts as a segment."""
        starts = self.segments.row * self.length + self.segments.start
        edges = [starts, starts + self.segments.length, np.arange(len(self) + 1) * self.length]
        return np.unique(np.concatenate(edges)).astype(np.int32)

    @property
    def max_seqlen(self) -> int:
        """Number of tokens of the longest segment, padding included."""
        return int(np.diff(self.cu_seqlens).max(initial=0))

    def unpack(self, slot: str | int = 0) -> list[Array]:
        """Return the tokens of each segment of ``slot``, as views, in the order of ``segments``."""
        rows = self[slot]
        return [
            rows[row, start : start + length]
            for row, start, length in zip(*(array.tolist() for array in self.segments[:3]), strict=True)
        ]


def view_slots(wire: Slots, length: int) -> Slots:
    """Return the slots of a batch of rows with the slots ``wire``: the packed ones, ``position_ids`` and
    ``segment_ids``."""
    own = dense_vector(length, dtype="int32")
    assert wire.names is not None
    return Slots((*wire.types[:-1], own, own), (*wire.names[:-1], *_OWN))


def slots_of_indices(slots: Slots) -> Slots:
    """Return ``slots`` with slots of integers as index slots, because tokens, positions and segment numbers are
    indices."""
    return Slots(tuple(map(_as_index, slots.types)), slots.names)


def _as_index(declared: InputType) -> InputType:
    dtype: Any = np.dtype(declared.element_dtype)
    if declared.seq_type != SequenceType.NO_SEQUENCE or dtype.kind not in "iu" or len(declared.shape or ()) > 1:
        return declared
    return integer_value(INT32_RANGE if dtype == np.int32 else 2**63 - 1)


def packed_columns(wire: Columns, slots: Slots, length: int) -> tuple[Columns, Segments, Origin]:
    """Return the columns of a batch with ``slots``, the segments of its rows and their origins, from ``wire``. Raises
    RemoteProtocolError for segments that do not fit into rows of ``length``."""
    counts, values = wire.arrays[-1]
    segments = Segments(np.repeat(np.arange(wire.rows), counts), *values.T[:4].copy())
    row, start, size = segments[:3]
    inside = (start >= 0) & (size > 0) & (start + size <= length)
    if not inside.all():
        raise RemoteProtocolError("BatchHead: segments must lie in their rows")
    where = expand_ranges(row * length + start, size)
    positions = np.zeros(wire.rows * length, np.int32)
    positions[where] = np.arange(len(where)) - np.repeat(np.cumsum(size) - size, size)
    numbers = np.zeros(wire.rows * length, np.int32)
    numbers[where] = np.repeat(_numbers_in_row(row, counts), size)
    shape = (wire.rows, length)
    arrays = [*wire.arrays[:-1], [positions.reshape(shape)], [numbers.reshape(shape)]]
    return Columns(slots, wire.rows, arrays), segments, Origin(*values.T[4:].copy())


def _numbers_in_row(row: Ints, counts: Array) -> Ints:
    """Return the number of each segment within its row, from 1."""
    before: Ints = np.cumsum(counts) - counts
    numbers: Ints = np.arange(len(row)) - np.repeat(before, counts) + 1
    return numbers
