"""Lay out memory that several processes map, and write to it: where each array of the columns, the offsets and the row
information lie.

The layout follows from the slots and a limit alone, so a process that knows both finds every array in the memory. Its
nominal size is a multiple of the limit, because each array has a part of its own that is as long as it can become
within the limit. So the memory must be of the kind that takes pages only when they are first written to.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pydp2.data.columns.columns import Array, Ints, aligned_empty
from pydp2.data.native import is_active
from pydp2.data.rowstore.gather import gather_copy, put
from pydp2.data.schema.input_types import MIN_CELL_BYTES, Slots

ROW_OVERHEAD = 64
"""Number of bytes that a row counts besides those of its columns: for its name, its size, its
weight, and where it lies."""
HEAP_NOTE_PREFIX = b"heap"
"""Beginning of the note on memory of a heap, before the note of its layout."""
SWEEPS = 0
"""Position in the header of how often rows of the memory began or ceased to move."""
_ALIGN = 4096
_INT = np.dtype(np.int64)
_HEADER_INTS = 8  # numbers that concern all rows
_LEAST_WRITTEN = 1 << 16  # bytes: for less a call of the kernel costs more than it saves

_copy_fields: Callable[..., None] | None = None
if is_active():
    from pydp2.data.native._array_kernels import copy_fields as _copy_fields
    from pydp2.data.native._array_kernels import fence as fence
else:

    def fence() -> None:
        """Do nothing: see :func:`is_usable`."""


def is_usable() -> bool:
    """Return True if processes see what others write in the order in which it was written: the compiled form sees to
    it, and so do some processors."""
    return is_active() or platform.machine() in ("x86_64", "AMD64")


class _Extent(NamedTuple):
    offset: int
    entries: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def entry_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


class RecordLayout:
    """Layout of records of the rows of ``slots``: of each slot the field that has one entry a row. Rows come and go in
    any order, so those that are copied together lie anywhere: where the fields of a row lie side by side, they take a
    line or two of the processor's cache, and not one for each slot.

    ``offsets``: of each field in a record of ``size`` bytes. ``is_split``: each slot has an array of its own instead,
    which rows from 1 KiB on always have: they gain nothing, and several processes write to them (:mod:`.cells`).
    """

    __slots__ = ("_fields", "is_split", "offsets", "size")

    def __init__(self, slots: Slots, *, is_split: bool = False) -> None:
        self._fields = [fields[0] for fields in slots.fields]
        whole = sum(field.entry_bytes for field in self._fields)
        self.is_split = is_split or len(self._fields) == 1 or not 0 < whole < MIN_CELL_BYTES
        alignment = max((field.dtype.itemsize for field in self._fields), default=1)
        self.offsets = [0] * len(self._fields)
        self.size = 0
        # The sizes of elements are powers of two, so in falling order all are aligned.
        for slot in sorted(range(len(self._fields)), key=lambda slot: -self._fields[slot].dtype.itemsize):
            self.offsets[slot] = self.size
            self.size += self._fields[slot].entry_bytes
        if not self.is_split:
            self.size = -(-self.size // alignment) * alignment

    def parts(self) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return dtype and shape of the entries of the arrays that hold the records."""
        if self.is_split:
            return [(field.dtype, field.shape) for field in self._fields]
        return [(np.dtype(np.uint8), (self.size,))]

    def columns(self, arrays: Sequence[Array]) -> list[Array]:
        """Return for each slot its field of all records in ``arrays``, which have :meth:`parts`."""
        if self.is_split:
            return [*arrays]
        (whole,) = arrays
        return [
            whole[:, offset : offset + field.entry_bytes].view(field.dtype).reshape(len(whole), *field.shape)
            for field, offset in zip(self._fields, self.offsets, strict=True)
        ]

    def put(self, values: Sequence[Array], rows: Ints, arrays: Sequence[Array]) -> None:
        """Copy ``values``, one array of each slot, to the records ``rows`` in ``arrays``. Raises IndexError for a row
        that is not there."""
        if _copy_fields is None or self.is_split:
            for column, each in zip(self.columns(arrays), values, strict=True):
                put(each, rows, column)
        else:
            _copy_fields(arrays[0], rows, self.offsets, [np.ascontiguousarray(each) for each in values], True)

    def take(self, rows: Ints, arrays: Sequence[Array]) -> list[Array]:
        """Return the field of each slot of the records ``rows`` in ``arrays``, in memory of its own. Raises IndexError
        for a row that is not there."""
        if _copy_fields is None or self.is_split:
            return [gather_copy(column, rows) for column in self.columns(arrays)]
        taken = [aligned_empty((len(rows), *field.shape), field.dtype) for field in self._fields]
        _copy_fields(arrays[0], np.ascontiguousarray(rows, np.int64), self.offsets, taken, False)
        return taken


class RegionLayout:
    """Layout of the memory of a store of ``slots`` with room for ``limit`` bytes. ``size``: of all of it.
    ``max_rows``: number of rows that it can hold at most, 0 if one row is larger than that. ``min_row_bytes``: bytes
    that a row takes at least. The same slots and limit always give the same layout.

    ``movable``: rows may lie in any order and move, so each has a count beside its offset at each level, and the fields
    of a row lie together (``records``).
    """

    def __init__(self, slots: Slots, limit: int, *, movable: bool = False) -> None:
        self.slots, self.limit = slots, limit
        self.records = RecordLayout(slots, is_split=not movable)
        self.min_row_bytes = ROW_OVERHEAD + self.records.size
        self.max_rows = limit // self.min_row_bytes
        self.size = 0
        self.rows = [self._extent(self.max_rows, dtype, shape) for dtype, shape in self.records.parts()]
        self.entries = [
            [self._extent(limit // max(1, field.entry_bytes), field.dtype, field.shape) for field in fields[1:]]
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

    def _extent(self, entries: int, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> _Extent:
        extent = _Extent(self.size, entries, dtype, shape)
        self.size += -(-entries * extent.entry_bytes // _ALIGN) * _ALIGN
        return extent


class RegionViews:
    """Arrays of ``memory`` of ``layout``, by slot. ``arrays``: those of the columns; ``starts``, ``counts``: where the
    entries of a row begin at each level below the rows, and how many they are; ``rows``: what has one entry for each
    row, as it lies (:class:`RecordLayout`); ``row_info``: three numbers of each row; ``header``: numbers that concern
    all rows."""

    def __init__(self, layout: RegionLayout, memory: Any) -> None:
        def view(extent: _Extent) -> Array:
            count = extent.entries * math.prod(extent.shape)
            flat = np.frombuffer(memory, extent.dtype, count, extent.offset) if count else np.empty(0, extent.dtype)
            return flat.reshape(extent.entries, *extent.shape)

        self.rows = [*map(view, layout.rows)]
        columns = layout.records.columns(self.rows)
        self.arrays: list[list[Array]] = [
            [column, *map(view, extents)] for column, extents in zip(columns, layout.entries, strict=True)
        ]
        self.starts: list[list[Ints]] = [[*map(view, extents)] for extents in layout.offsets]
        self.counts: list[list[Ints]] = [[*map(view, extents)] for extents in layout.counts]
        self.row_info: list[Ints] = [*map(view, layout.row_info)]
        self.header: Ints = view(layout.header)

    @property
    def generations(self) -> Ints:
        """Generation of each id, in memory whose ids are used again."""
        return self.row_info[0]

    def level(self, slot: int, level: int) -> list[Array]:
        """Return the arrays of one level below the rows of ``slot``, counted from 0."""
        deepest = level == len(self.starts[slot]) - 1
        return self.arrays[slot][level + 1 :] if deepest else self.arrays[slot][level + 1 : level + 2]


def _address(memory: Any) -> int:
    return np.frombuffer(memory, np.uint8, 1).ctypes.data


def give_back_pages(memory: Any, array: Array, begin: int, end: int) -> None:
    """Give back the pages of entries ``begin`` to ``end`` of ``array``, which lies in ``memory``."""
    page = mmap.PAGESIZE
    base = array.ctypes.data - _address(memory)
    first = -(-(base + begin * array.strides[0]) // page) * page
    give_back_bytes(memory, first, (base + end * array.strides[0]) // page * page - first)


def give_back_bytes(memory: Any, first: int, length: int) -> None:
    """Give back ``length`` bytes of ``memory`` from ``first`` on, both in whole pages. Their values become 0."""
    if length > 0:
        with contextlib.suppress(OSError, AttributeError, ValueError):  # it can be used again all the same
            memory.madvise(mmap.MADV_REMOVE, first, length)


class PageWriter:
    """Writer to parts of ``memory`` that nobody has written to yet. ``descriptor``: of the file that it maps; None: it
    maps none.

    For a copy to such a part the kernel finds a page, fills it with zeros and maps it, one after the other. What is
    written to the file fills its pages at once, in less than half of the time.
    """

    def __init__(self, memory: Any, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._address = 0 if descriptor is None else _address(memory)

    def copy(self, values: Array, array: Array) -> None:
        """Copy ``values`` to ``array``, a part of the memory without gaps, of the same shape and dtype."""
        if self._descriptor is None or values.nbytes < _LEAST_WRITTEN or not values.flags.c_contiguous:
            array[...] = values
            return
        rest, offset = values.reshape(-1).view(np.uint8).data, array.ctypes.data - self._address
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, offset)
                rest, offset = rest[written:], offset + written
        except OSError:  # the kernel has no memory for it, say: then a copy may still find some
            array[...] = values
