"""Lay samples out as columns: the one layout that chunks, the pool, batches and the wire share.

Each slot is a tuple of arrays (:attr:`Slots.fields`): counts from the outside in, then the elements of all rows one
after the other. Nothing here checks what the values mean; :mod:`pydp2.data.packers.packer` does that before columns are
made, and :meth:`Columns.from_frames` checks what could break us: sizes and counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from sys import getrefcount
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pydp2.data.columns.checksum import crc32
from pydp2.data.native import is_active
from pydp2.data.schema.input_types import STRING_TYPES, DataType, Field, InputType, Slots
from pydp2.errors import RemoteProtocolError

Array = NDArray[Any]
Ints = NDArray[np.int64]

ALIGNMENT = 64
"""Bytes: the memory of the arrays of a batch begins at a multiple of it, where each array has memory of its own."""

_MIN_KEPT_BYTES = 1 << 17  # of an array: the C library keeps the memory of smaller ones by itself
_INTEGERS_LIMIT = 1 << 22  # 32 MiB of positions at most are kept
_integers: Ints = np.arange(1 << 16, dtype=np.int64)


def _first_integers(total: int) -> Ints:
    """Return 0 to ``total``; kept between calls, because a fresh arange costs as much as the gather that it serves."""
    global _integers
    if total > _INTEGERS_LIMIT:
        return np.arange(total, dtype=np.int64)
    integers = _integers  # another thread may replace them
    if total > len(integers):
        _integers = integers = np.arange(min(2 * total, _INTEGERS_LIMIT), dtype=np.int64)
    return integers[:total]


def _bytes_to_boundary_in_python(memory: Array, boundary: int) -> int:
    """Return how many bytes of ``memory`` come before the first address that is a multiple of ``boundary``."""
    return -_address(memory) % boundary


_bytes_to_boundary: Callable[[Array, int], int] = _bytes_to_boundary_in_python
_Memory: Callable[[int], Any] | None = None
if is_active():
    from pydp2.data.native._array_kernels import Memory as _Memory
    from pydp2.data.native._array_kernels import bytes_to_boundary as _bytes_to_boundary
    from pydp2.data.native._array_kernels import free_kept_memory as free_kept_memory
else:

    def free_kept_memory() -> int:
        """Return 0: none is kept."""
        return 0


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return a new array as ``np.empty(shape, dtype)`` does, whose memory begins at a multiple of 64 bytes.

    JAX and TensorFlow take over such memory, and copy any other. Large arrays get memory that others have left
    (docs/internals/bytes.md)."""
    entry = np.dtype(dtype)
    size = math.prod(shape) * entry.itemsize
    if size >= _MIN_KEPT_BYTES and _Memory is not None:
        return np.ndarray(shape, entry, _Memory(size))
    memory = np.empty(size + ALIGNMENT - 1, np.uint8)
    return np.ndarray(shape, entry, memory, _bytes_to_boundary(memory, ALIGNMENT))


def aligned(array: Array) -> Array:
    """Return ``array``, or a writable copy of it whose memory begins at a multiple of 64 bytes."""
    flags = array.flags
    if flags.c_contiguous and flags.writeable and not _bytes_to_boundary(array, ALIGNMENT):
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def offsets(counts: Array) -> Ints:
    """Return where each of the counted groups starts, and at the end where the last one ends."""
    result = np.empty(len(counts) + 1, np.int64)
    result[0] = 0
    np.add.accumulate(counts, dtype=np.int64, out=result[1:])  # np.cumsum() without its detour
    return result


def expand_ranges(starts: Ints, counts: Ints) -> Ints:
    """Return the positions ``starts[i], starts[i] + 1, …`` (``counts[i]`` of them), all one after the other."""
    ends = np.cumsum(counts)
    positions = np.repeat(starts - ends + counts, counts)
    positions += _first_integers(len(positions))
    return positions


def gather_ranges(array: Array, starts: Ints, counts: Ints) -> Array:
    """Return a copy of ``array[starts[i]:starts[i] + counts[i]]`` for each i, one after the other: for long ranges, of
    which a position for each entry would take more room than the entries."""
    ends = starts + counts
    return np.concatenate([array[:0], *(array[lo:hi] for lo, hi in zip(starts.tolist(), ends.tolist(), strict=True))])


def _references(container: Any, key: Any) -> int:
    return getrefcount(container[key])


# Measured, because versions of Python count the references of a call otherwise.
_OF_CONTAINER = _references([object()], 0)


def is_held_elsewhere(container: list[Array] | dict[Any, Array], key: Any) -> bool:
    """Return True if anything but ``container`` refers to its array ``key``, or to a view of it: a variable of the
    caller, too. Otherwise nobody else can come to refer to it, because views and other libraries that look at its
    memory hold the array."""
    return _references(container, key) > _OF_CONTAINER


def _join(parts: Sequence[Array]) -> Array:
    """Return ``parts`` one after the other, without a copy if they lie so."""
    whole, first = parts[0].base, _address(parts[0])
    end = first
    for part in parts:
        if part.base is not whole or _address(part) != end or not part.flags.c_contiguous:
            return np.concatenate(parts)
        end += part.nbytes
    if not isinstance(whole, np.ndarray) or whole.dtype != parts[0].dtype or whole.shape[1:] != parts[0].shape[1:]:
        return np.concatenate(parts)
    begin, rest = divmod(first - _address(whole), max(1, whole.strides[0]))
    return np.concatenate(parts) if rest else whole[begin : begin + sum(map(len, parts))]


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


class Columns:
    """``rows`` samples as ``arrays``: per slot a tuple of arrays in schema order.

    ====================  ==================================================================================
    dense                 values ``(n, dim)`` or ``(n, *shape)``
    index                 ids ``(n,)``
    sparse                nnz ``(n,)``, indices ``(sum nnz,)``, and for float ones values ``(sum nnz,)``
    text, raw             nbytes ``(n,)``, bytes ``(sum nbytes,)``: of text as UTF-8
    sequence              steps ``(rows,)``, then the above with n = sum of steps
    nested sequence       subs ``(rows,)``, steps ``(sum subs,)``, then the above with n = sum of steps
    ====================  ==================================================================================

    Counts are int32; ids and indices int32, or int64 where dim is above 2**31; bytes uint8; values of bfloat16 uint16
    here. See docs/internals/bytes.md.
    """

    __slots__ = ("_arrays", "_row_offsets", "_whole", "rows", "slots")

    def __init__(self, slots: Slots, rows: int, arrays: Sequence[Sequence[Array]]) -> None:
        self.slots = slots
        self.rows = rows
        self._arrays: tuple[tuple[Array, ...], ...] | None = tuple(map(tuple, arrays))  # None: not cut yet
        self._row_offsets: list[tuple[Ints, ...] | None] = [None] * len(slots.types)
        self._whole: tuple[Columns, int, int] | None = None  # the columns that these are a slice of, and which one

    def __reduce__(self) -> tuple[Any, ...]:
        return Columns, (self.slots, self.rows, self.arrays)  # a slice travels without the rest

    def __len__(self) -> int:
        return self.rows

    @property
    def arrays(self) -> tuple[tuple[Array, ...], ...]:
        """Arrays of each slot."""
        if self._arrays is None:
            self._arrays = self._cut(*self.whole)
        return self._arrays

    @property
    def whole(self) -> tuple[Columns, int, int]:
        """Columns that these are a slice of, its first row, and the one behind its last; of others themselves."""
        return self._whole or (self, 0, self.rows)

    def __repr__(self) -> str:
        return f"<Columns: {self.rows} rows, {len(self.slots)} slots, {self.nbytes} bytes>"

    @property
    def nbytes(self) -> int:
        """Number of bytes of all arrays."""
        return sum(a.nbytes for arrays in self.arrays for a in arrays)

    def row_offsets(self, slot: int) -> tuple[Ints, ...]:
        """Return for each level below the rows the ``rows + 1`` edges of the rows in the arrays of that level."""
        known = self._row_offsets[slot]
        if known is None:
            edges: list[Ints] = []
            if self._whole is not None:  # which has them since it was cut, and one sum serves all its slices
                whole, lo, hi = self._whole
                edges += [each[lo : hi + 1] - each[lo] for each in whole.row_offsets(slot)]
            else:
                for counts in self.arrays[slot][: self.slots.depths[slot]]:
                    inner = offsets(counts)
                    edges.append(inner[edges[-1]] if edges else inner)
            known = self._row_offsets[slot] = tuple(edges)
        return known

    def lengths(self, slot: int) -> Ints:
        """Return how many time steps each row has in ``slot``, a sequence or nested sequence, or how many bytes, of a
        single string: ``(rows,)``."""
        edges = self.row_offsets(slot)[self.slots.types[slot].length_level]
        return edges[1:] - edges[:-1]

    def slice(self, lo: int, hi: int) -> Columns:
        """Return rows ``lo`` to ``hi`` (not included) as views, which are cut when they are asked for; the limits as in
        Python, but never negative."""
        hi = min(max(hi, 0), self.rows)
        lo = min(max(lo, 0), hi)
        if hi - lo == self.rows:
            return self  # with the edges that it knows
        part = Columns.__new__(Columns)
        whole, first, _ = self.whole
        part.slots, part.rows, part._whole = self.slots, hi - lo, (whole, first + lo, first + hi)
        part._arrays, part._row_offsets = None, [None] * len(self.slots.types)
        return part

    @staticmethod
    def _cut(whole: Columns, lo: int, hi: int) -> tuple[tuple[Array, ...], ...]:
        if whole.slots.row_bytes:  # no slot has more than one array
            return tuple([(array[lo:hi],) for (array,) in whole.arrays])
        result = []
        for slot, arrays in enumerate(whole.arrays):
            edges = whole.row_offsets(slot)
            views = [arrays[0][lo:hi]]
            for i in range(1, len(arrays)):
                edge = edges[min(i, len(edges)) - 1]
                views.append(arrays[i][edge[lo] : edge[hi]])
            result.append(tuple(views))
        return tuple(result)

    def release(self) -> None:
        """Do nothing: arrays are freed with the last reference. Rows in cells, which may stand in place of columns,
        have to be given back (:meth:`pydp2.data.rowstore.cells.CellRows.release`)."""

    def take(self, rows: Array | Sequence[int]) -> Columns:
        """Return the given rows, in the given order, as copies."""
        picked = np.asarray(rows, np.int64)
        result = []
        for slot, arrays in enumerate(self.arrays):
            taken = [arrays[0].take(picked, axis=0)]
            ranges = [(start := edge[picked], edge[picked + 1] - start) for edge in self.row_offsets(slot)]
            has_strings = self.slots.types[slot].type in STRING_TYPES
            # One gather serves all arrays of a level.
            where = [expand_ranges(*each) for each in ranges[: len(ranges) - has_strings]]
            some = arrays[1 : len(arrays) - has_strings]
            taken += [a.take(where[min(i, len(where)) - 1], axis=0) for i, a in enumerate(some, 1)]
            if has_strings:
                taken.append(gather_ranges(arrays[-1], *ranges[-1]))
            result.append(taken)
        return Columns(self.slots, len(picked), result)

    @staticmethod
    def concat(parts: Sequence[Columns]) -> Columns:
        """Return the rows of all parts, one after the other; ``parts`` (of equal slots) must not be empty. Arrays that
        lie one after the other in memory already are not copied."""
        first = parts[0]
        if len(parts) == 1:
            return first
        arrays = [
            [_join([p.arrays[s][i] for p in parts]) for i in range(len(first.arrays[s]))]
            for s in range(len(first.arrays))
        ]
        return Columns(first.slots, sum(p.rows for p in parts), arrays)

    @staticmethod
    def empty(slots: Slots) -> Columns:
        """Return columns without rows."""
        return Columns(slots, 0, [[np.empty((0, *f.shape), f.dtype) for f in fields] for fields in slots.fields])

    def sample_bytes(self) -> Ints:
        """Return the bytes of each row, ``(rows,)``: what its entries take in all arrays. They
        sum to :attr:`nbytes`."""
        if row_bytes := self.slots.row_bytes:
            return np.full(self.rows, row_bytes, np.int64)
        fixed = 0
        result = np.zeros(self.rows, np.int64)
        for slot, fields in enumerate(self.slots.fields):
            fixed += fields[0].entry_bytes
            for i, field in enumerate(fields[1:], 1):
                edges = self.row_offsets(slot)
                edge = edges[min(i, len(edges)) - 1]
                result += (edge[1:] - edge[:-1]) * field.entry_bytes
        result += fixed
        return result

    def samples(self) -> list[list[Any]]:
        """Return for each row the list of its slots' values, as a provider could have yielded them: ints, lists, pairs,
        str, bytes; dense elements as arrays of the slot's dtype and shape (views of the columns), or numpy numbers."""
        slots = [_slot_values(self, i, t) for i, t in enumerate(self.slots.types)]
        return [list(row) for row in zip(*slots, strict=True)]

    def frames(self) -> list[Array]:
        """Return the arrays of all slots, flat and C-contiguous, for the wire; see :meth:`from_frames`."""
        return [
            a if a.ndim == 1 and a.flags.c_contiguous else np.ascontiguousarray(a).reshape(-1)
            for arrays in self.arrays
            for a in arrays
        ]

    @staticmethod
    def from_frames(slots: Slots, rows: int, frames: Sequence[Any]) -> Columns:
        """Return columns over the buffers that :meth:`frames` gave on the other side, without
        a copy (except of counts).

        Raises :class:`RemoteProtocolError` unless sizes, counts and totals agree with ``slots`` and ``rows``.
        """
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
            raise RemoteProtocolError(f"columns must have a number of rows, got {rows!r}")
        if len(frames) != frame_count(slots):
            raise RemoteProtocolError(f"columns of these slots have {frame_count(slots)} frames, got {len(frames)}")
        buffers = iter(frames)
        result = []
        for slot, fields in enumerate(slots.fields):
            entries, arrays = rows, []
            for i, field in enumerate(fields):
                array = _array_from_frame(slots, slot, field, entries, next(buffers))
                if i < slots.depths[slot] and len(array):
                    array = array.copy()  # other arrays are found by it: it must stay as it was when it was checked
                    if int(array.min()) < 0:
                        raise RemoteProtocolError(f"{slots.label(slot)}: a negative count in {field.kind}")
                    entries = int(array.sum(dtype=np.int64))
                arrays.append(array)
            result.append(arrays)
        return Columns(slots, rows, result)


def _array_from_frame(slots: Slots, slot: int, field: Field, entries: int, frame: Any) -> Array:
    try:
        view = memoryview(frame)
    except TypeError as exc:
        raise RemoteProtocolError(f"{slots.label(slot)}: {field.kind} is not a frame of bytes") from exc
    need = entries * field.entry_bytes
    if not view.c_contiguous or view.nbytes != need:
        raise RemoteProtocolError(f"{slots.label(slot)}: {field.kind} needs {need} contiguous bytes, got {view.nbytes}")
    if not need:  # an empty buffer has no address that numpy would take
        return np.empty((entries, *field.shape), field.dtype)
    return np.frombuffer(view, field.dtype).reshape(entries, *field.shape)


def _slot_values(columns: Columns, slot: int, slot_type: InputType) -> list[Any]:
    arrays = columns.arrays[slot]
    groups = list(arrays[: slot_type.seq_type])
    leaves = arrays[slot_type.seq_type :]
    values: list[Any]
    if slot_type.type == DataType.Dense:
        values = list(slot_type.as_declared(leaves[0]))
    elif slot_type.type == DataType.Index:
        values = leaves[0].tolist()
    elif slot_type.type == DataType.SparseNonValue:
        values = _group(leaves[1].tolist(), leaves[0])
    elif slot_type.type in STRING_TYPES:
        values = strings(offsets(leaves[0]), leaves[1], slot_type.type == DataType.Text)
    else:
        values = _group(list(zip(leaves[1].tolist(), leaves[2].tolist(), strict=True)), leaves[0])
    for counts in reversed(groups):
        values = _group(values, counts)
    return values


def strings(edges: Ints, data: Array, is_text: bool) -> list[Any]:
    """Return the strings ``data[edges[i]:edges[i + 1]]``, of uint8: each a str, of UTF-8, or a bytes object. Raises
    UnicodeDecodeError for bytes that are no UTF-8."""
    limits = edges.tolist()
    if not is_text:
        view = data.data
        return [view[lo:hi].tobytes() for lo, hi in pairwise(limits)]
    whole = data.tobytes()
    if not whole.isascii():
        return [whole[lo:hi].decode() for lo, hi in pairwise(limits)]
    characters = whole.decode()
    return [characters[lo:hi] for lo, hi in pairwise(limits)]


def _group(values: list[Any], counts: Array) -> list[Any]:
    edges = offsets(counts).tolist()
    return [values[lo:hi] for lo, hi in pairwise(edges)]


def frame_count(slots: Slots) -> int:
    """Return how many frames :meth:`Columns.frames` gives, and how many values :func:`running_crcs` carries."""
    return sum(map(len, slots.fields))


def running_crcs(columns: Columns, running: Iterable[int]) -> list[int]:
    """Return the CRC-32 of each array, continued from ``running`` (zeros at the start): the same
    for any cut into chunks."""
    return [crc32(frame.data, value) for frame, value in zip(columns.frames(), running, strict=True)]
