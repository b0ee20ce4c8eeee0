"""Columns of many files side by side in one memory, where they stay: the cache fills it, and whoever has the memory
gathers rows from it.

Rows are numbered as they come. Each array of the columns has a region of its own, as long as it can become within the
limit; so a row is found by its number alone, in every array, and rows of all files are gathered in one go. A region for
each level of counts says where the entries of a row begin. All of this has a size on paper that is a multiple of the
limit: the memory must be of the kind that is used when it is first written to.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pydp2.inputs.columns import Array, Columns, Ints
from pydp2.inputs.moving import Stretches, Where, gathered
from pydp2.inputs.spec import Slots

OVERHEAD = 64
"""Bytes that a row counts besides those of its columns: for its name, its size, its weight, and where it lies."""
_ALIGN = 4096
_INT = np.dtype(np.int64)


class _Region(NamedTuple):
    offset: int
    entries: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Layout:
    """Where everything lies in the memory of a shelf of ``slots`` with room for ``limit`` bytes. ``size``: of it all.
    ``rows``: so many it can hold at most, 0 where one is larger than that. ``row_bytes``: what one takes at least. The
    same for all who know slots and limit."""

    def __init__(self, slots: Slots, limit: int) -> None:
        self.slots, self.limit = slots, limit
        self.row_bytes = OVERHEAD + sum(fields[0].entry_bytes for fields in slots.fields)
        self.rows = limit // self.row_bytes
        self.size = 0
        self.arrays = [
            [
                self._region(self.rows if i == 0 else limit // max(1, field.entry_bytes), field.dtype, field.shape)
                for i, field in enumerate(fields)
            ]
            for fields in slots.fields
        ]
        self.edges = [[self._region(self.rows + 1, _INT) for _ in range(depth)] for depth in slots.depths]
        self.notes = [self._region(self.rows, _INT) for _ in range(3)]

    @property
    def note(self) -> bytes:
        """What is told of it to who knows the slots."""
        return self.limit.to_bytes(8, "little")

    @classmethod
    def noted(cls, slots: Slots, note: bytes) -> Layout:
        """Inverse of :attr:`note`."""
        return cls(slots, int.from_bytes(note, "little"))

    @staticmethod
    def over(memory: Any, region: _Region) -> Array:
        """The array that ``region`` of ``memory`` is."""
        count = region.entries * math.prod(region.shape)
        flat = np.frombuffer(memory, region.dtype, count, region.offset) if count else np.empty(0, region.dtype)
        return flat.reshape(region.entries, *region.shape)

    def _region(self, entries: int, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> _Region:
        region = _Region(self.size, entries, dtype, shape)
        self.size += -(-entries * dtype.itemsize * math.prod(shape) // _ALIGN) * _ALIGN
        return region


class Shelf:
    """What lies in ``memory``, of ``layout``: who fills it appends, who only has it to read gathers rows by number."""

    def __init__(self, layout: Layout, memory: Any) -> None:
        self.layout = layout
        self._arrays = [[layout.over(memory, region) for region in regions] for regions in layout.arrays]
        self._edges = [[layout.over(memory, region) for region in regions] for regions in layout.edges]
        self.ordinals, self.sizes, self.weights = (layout.over(memory, region) for region in layout.notes)
        """Of each row, int64."""
        self.rows = 0
        """How many there are, of whoever fills it."""
        self.nbytes = 0
        """The sum of their sizes."""
        self.heaviest = 0
        self.uniform = True
        """All weigh 1."""

    held_bytes = 0
    """Of rows that wait to be drawn; these here are the cache's."""
    row_cost = 8
    """Bytes of memory that a row holds for a trainer until it is taken: its number."""

    @property
    def shown(self) -> int:
        """Rows are among the first so many that a trainer can gather by itself."""
        return self.rows

    def append(self, columns: Columns, ordinals: Ints, sizes: Ints, weights: Ints | None) -> tuple[int, Columns]:
        """Copy rows in, with what is to be known of each (``weights`` None: all 1): the number of the first, and the
        same columns where they lie now."""
        at, end = self.rows, self.rows + columns.rows
        views = []
        for slot, arrays in enumerate(columns.arrays):
            where = [slice(at, end)]
            for mine, edges in zip(self._edges[slot], columns.bounds(slot), strict=True):
                begin = int(mine[at])
                np.add(edges[1:], begin, out=mine[at + 1 : end + 1])
                where.append(slice(begin, begin + int(edges[-1])))
            found = [mine[where[min(i, len(where) - 1)]] for i, mine in enumerate(self._arrays[slot])]
            for mine, theirs in zip(found, arrays, strict=True):
                mine[...] = theirs
            views.append(found)
        self.ordinals[at:end] = ordinals
        self.sizes[at:end] = sizes
        self.weights[at:end] = 1 if weights is None else weights
        self.rows = end
        self.nbytes += int(sizes.sum())
        self.heaviest = max(self.heaviest, int(self.weights[at:end].max(initial=0)))
        self.uniform = self.uniform and bool((self.weights[at:end] == 1).all())
        return at, Columns(columns.slots, columns.rows, views)

    def found(self, columns: Columns) -> Ints:
        """By which numbers the rows of ``columns`` are known here, ``(rows,)``: of what :meth:`append` gave, or a slice
        of it. Raises ValueError for columns that lie elsewhere."""
        if not columns.rows:
            return np.empty(0, np.int64)
        mine, theirs = self._arrays[0][0], columns.arrays[0][0]
        first, rest = divmod(theirs.ctypes.data - mine.ctypes.data, mine.strides[0])
        if rest or not 0 <= first <= self.rows - columns.rows:
            raise ValueError("columns that do not lie on the shelf")
        return np.arange(first, first + columns.rows)

    def sources(self, ids: Ints) -> list[tuple[Array, Where]]:
        """As of a :class:`ColumnStore`: for each array of the columns of ``ids`` where its entries lie. Raises
        IndexError for a row that cannot be."""
        result: list[tuple[Array, Where]] = []
        for arrays, levels in zip(self._arrays, self._edges, strict=True):
            result.append((arrays[0], ids))
            for level, edges in enumerate(levels, 1):
                starts = edges[ids]
                counts = edges[ids + 1] - starts
                if len(ids) and not 0 <= int(counts.min()) <= int(counts.max()) <= len(arrays[level]):
                    raise IndexError("a row without an end")  # before there is room made for it
                which = Stretches(starts, counts)
                result += [(a, which) for a in (arrays[level:] if level == len(levels) else arrays[level : level + 1])]
        return result

    def take(self, ids: Ints) -> Columns:
        """The rows ``ids``, in that order, as columns over fresh, writable arrays. Raises IndexError for a row that
        cannot be."""
        taken = iter([gathered(array, which) for array, which in self.sources(ids)])
        slots = self.layout.slots
        return Columns(slots, len(ids), [[next(taken) for _ in fields] for fields in slots.fields])

    def lengths(self, ids: Ints, slot: int) -> Ints:
        """How many time steps each of the rows ``ids`` has in ``slot``, a sequence or nested sequence: ``(rows,)``."""
        edges = self._edges[slot][self.layout.slots.types[slot].seq_type - 1]
        return edges[ids + 1] - edges[ids]

    def numbers(self, ids: Ints) -> Ints:
        """What a trainer is told of them: a row stays where it is."""
        return ids

    within = numbers

    def sizes_of(self, numbers: Ints) -> Ints:
        """The bytes of each of the rows ``numbers``."""
        return self.sizes[numbers]

    def give_back(self, ids: Ints) -> None:
        """Nobody draws them now; they stay."""

    release = give_back
