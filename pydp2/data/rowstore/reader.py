"""Gather rows from memory that another process keeps: what a trainer does with the cache, the heap and the cells of its
service. (:mod:`.heap` and :mod:`.ids` say what can happen meanwhile.)"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pydp2.data.columns.columns import Array, Columns, Ints
from pydp2.data.rowstore.append_only import AppendOnlyStore
from pydp2.data.rowstore.gather import EntryRanges, gather_copy
from pydp2.data.rowstore.ids import StaleRows, check_handles, ids_of
from pydp2.data.rowstore.region import HEAP_NOTE_PREFIX, SWEEPS, RegionLayout, RegionViews, fence
from pydp2.data.schema.input_types import Slots

_PATIENCE = 1.0  # seconds that a sweep may take
_RETRY_SECONDS = 0.0001


class SharedRows(Protocol):
    """Rows in memory that another process keeps, found by their handles."""

    layout: RegionLayout
    row_cost: int | None
    """Number of bytes that a row holds until it is taken; None: its own."""

    def resolve(self, handles: Ints) -> Ints:
        """Return the ids of ``handles``, which may be any numbers."""
        ...

    def row_sizes(self, handles: Ints) -> Ints:
        """Return the bytes of each row. Of rows that were given back the numbers mean nothing."""
        ...

    def take(self, handles: Ints) -> Columns:
        """Return the rows, in that order, as columns over fresh, writable arrays. Raises IndexError for a row that
        cannot be, StaleRows if one was given back."""
        ...


def shared_rows_of(slots: Slots, note: bytes, map_memory: Callable[[int], Any]) -> SharedRows:
    """Return the rows of samples with ``slots`` in memory with this ``note``, of which ``map_memory`` maps so many
    bytes."""
    is_heap = note.startswith(HEAP_NOTE_PREFIX)
    layout = RegionLayout.from_note(slots, note.removeprefix(HEAP_NOTE_PREFIX), movable=is_heap)
    memory = map_memory(layout.size)
    return SharedHeapReader(layout, memory) if is_heap else AppendOnlyStore(layout, memory)


class SharedHeapReader:
    """Rows in ``memory`` of ``layout`` that another process keeps in a heap or in cells."""

    row_cost: int | None = None

    def __init__(self, layout: RegionLayout, memory: Any) -> None:
        self.layout = layout
        self._views = RegionViews(layout, memory)
        self._fixed_bytes = sum(fields[0].entry_bytes for fields in layout.slots.fields)
        self._has_arenas = any(layout.slots.depths)

    def resolve(self, handles: Ints) -> Ints:
        """Return the ids of ``handles``, which may be any numbers."""
        return ids_of(handles)

    def row_sizes(self, handles: Ints) -> Ints:
        """Return the bytes of each row. Of rows that were given back the numbers mean nothing."""
        sizes = np.full(len(handles), self._fixed_bytes, np.int64)
        ids = ids_of(handles) if self._has_arenas else handles
        for slot, levels in enumerate(self._views.counts):
            for level, counts in enumerate(levels):
                entry_bytes = sum(array.strides[0] for array in self._views.level(slot, level))
                sizes += np.maximum(counts[ids], 0) * entry_bytes
        return sizes

    def take(self, handles: Ints) -> Columns:
        """Return the rows of ``handles``, in that order, as columns over fresh, writable arrays. Raises StaleRows if
        one of them was given back, or if rows move for longer than a second: their process ended in the middle of it,
        say."""
        ids = ids_of(handles)
        columns = self._gather_between_sweeps(ids) if self._has_arenas else self._gather(ids)
        fence()  # compare after the rows are copied
        check_handles(handles, self._views.generations)
        if columns is None:
            raise IndexError("a row without an end")
        return columns

    def _gather_between_sweeps(self, ids: Ints) -> Columns | None:
        """Return what :meth:`_gather` does, gathered while no row moved."""
        deadline, header = time.monotonic() + _PATIENCE, self._views.header
        while True:
            before = int(header[SWEEPS])
            fence()
            if before % 2 == 0:
                columns = self._gather(ids)
                fence()
                if int(header[SWEEPS]) == before:
                    return columns
            if time.monotonic() > deadline:
                raise StaleRows
            if before % 2:
                time.sleep(_RETRY_SECONDS)

    def _gather(self, ids: Ints) -> Columns | None:
        """Return the rows ``ids``. None: a row is not where it should be."""
        taken: list[list[Array]] = []
        with contextlib.suppress(IndexError):
            for slot, fixed in enumerate(self.layout.records.take(ids, self._views.rows)):
                rows = [fixed]
                for level, starts in enumerate(self._views.starts[slot]):
                    counts = self._views.counts[slot][level][ids]
                    which = EntryRanges(starts[ids], counts)
                    sources = self._views.level(slot, level)
                    if len(ids) and not 0 <= int(counts.min()) <= which.entry_count <= len(sources[0]):
                        return None  # before room is made for it
                    rows += [gather_copy(source, which) for source in sources]
                taken.append(rows)
            return Columns(self.layout.slots, len(ids), taken)
        return None
