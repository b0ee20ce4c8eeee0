"""Lay out memory that several processes map: where each array of the columns, the offsets and the row information lie.

The layout follows from the slots and a limit alone, so a process that knows both finds every array in the memory.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pydp2.data.columns.columns import Array
from pydp2.data.schema.input_types import Slots

ROW_OVERHEAD = 64
"""Number of bytes that a row counts besides those of its columns: for its name, its size, its
weight, and where it lies."""
_ALIGN = 4096
_INT = np.dtype(np.int64)
_HEADER_INTS = 8  # numbers that concern all rows


class _Extent(NamedTuple):
    offset: int
    entries: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class RegionLayout:
    """Layout of the memory of a store of ``slots`` with room for ``limit`` bytes. ``size``: of all of it.
    ``max_rows``: number of rows that it can hold at most, 0 if one row is larger than that. ``min_row_bytes``: bytes
    that a row takes at least. The same slots and limit always give the same layout.

    ``movable``: rows may lie in any order and move, so each has a count beside its offset at each level.
    """

    def __init__(self, slots: Slots, limit: int, *, movable: bool = False) -> None:
        self.slots, self.limit = slots, limit
        self.min_row_bytes = ROW_OVERHEAD + sum(fields[0].entry_bytes for fields in slots.fields)
        self.max_rows = limit // self.min_row_bytes
        self.size = 0
        self.arrays = [
            [
                self._extent(self.max_rows if i == 0 else limit // max(1, field.entry_bytes), field.dtype, field.shape)
                for i, field in enumerate(fields)
            ]
            for fields in slots.fields
        ]
        self.offsets = [[self._extent(self.max_rows + 1, _INT) for _ in range(depth)] for depth in slots.depths]
        self.row_info = [self._extent(self.max_rows, _INT) for _ in range(3)]
        self.counts = [[self._extent(self.max_rows, _INT) for _ in range(depth * movable)] for depth in slots.depths]
        self.header = self._extent(_HEADER_INTS * movable, _INT)

    @property
    def note(self) -> bytes:
        """Bytes that tell the layout to a process that knows the slots."""
        return self.limit.to_bytes(8, "little")

    @classmethod
    def from_note(cls, slots: Slots, note: bytes, *, movable: bool = False) -> RegionLayout:
        """Return the layout that :attr:`note` tells."""
        return cls(slots, int.from_bytes(note, "little"), movable=movable)

    @staticmethod
    def view(memory: Any, region: _Extent) -> Array:
        """Return the array that ``region`` of ``memory`` is."""
        count = region.entries * math.prod(region.shape)
        flat = np.frombuffer(memory, region.dtype, count, region.offset) if count else np.empty(0, region.dtype)
        return flat.reshape(region.entries, *region.shape)

    def _extent(self, entries: int, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> _Extent:
        region = _Extent(self.size, entries, dtype, shape)
        self.size += -(-entries * dtype.itemsize * math.prod(shape) // _ALIGN) * _ALIGN
        return region
